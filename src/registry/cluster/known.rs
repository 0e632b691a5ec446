//! What a kube-apiserver said, kept until it says otherwise. Pure: objects in, and asked by name.
//!
//! An APIService is shown once its Service's namespace has been listed, or nobody waits for that any more: before, it
//! could not be said where it leads. One that moves is shown where it was until then.
//!
//! What an object's change touches is noted when it is heard of, so that nobody has to look at the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::value::RawValue;

use super::collection::Collection;
use super::named::{By, Named};
use super::namespace::{Namespace, Part};
use super::object;
use super::statuses::Statuses;
use crate::process::{Problem, Problems};
use crate::registry::api_service::{ApiService, Backend};
use crate::registry::endpoints::EndpointSlice;
use crate::registry::service::Service;
use crate::registry::snapshot::Settings;
use crate::registry::source::{Source, Touched, of_key, service_key};

/// A collection that is followed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::registry) enum Kind {
    /// All there are.
    ApiServices,
    /// Those of one namespace.
    Services(String),
    /// Those of one namespace.
    EndpointSlices(String),
}

/// All that is known.
pub(in crate::registry) struct Known {
    settings: Settings,
    api_services: Collection<Arc<ApiService>>,
    /// What is shown of them.
    shown: BTreeMap<String, Arc<ApiService>>,
    /// Those that are shown as they were, because nobody knows yet where they lead now.
    moving: BTreeSet<String>,
    /// The `status` that each has there.
    statuses: Statuses,
    namespaces: BTreeMap<String, Namespace>,
    named: Named,
    /// Namespaces with a Service of which it is waited to be known what there is.
    unsettled: BTreeSet<String>,
    /// Namespaces that cannot be listed.
    troubled: BTreeSet<String>,
    /// Whether everything was there once, as far as it can be had.
    pub(in crate::registry) complete: bool,
    problems: BTreeMap<(Kind, String), Vec<Problem>>,
    unlooked: Unlooked,
    /// What may be another than when this was last taken.
    touched: Touched,
    /// Counts what was said that somebody may want to look at, be it a mistake.
    pub(super) heard: u64,
}

/// What is to be looked at when it is settled what is shown.
#[derive(Default)]
struct Unlooked {
    /// By name.
    api_services: BTreeSet<String>,
    /// Of which more or less is known than before.
    namespaces: BTreeSet<String>,
}

/// What is to be followed, beside what is already.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::registry) struct Wanted {
    /// Namespaces that nobody wants followed any more.
    pub(in crate::registry) gone: Vec<String>,
    /// What is to be followed from its beginning.
    pub(in crate::registry) anew: Vec<Kind>,
}

impl Known {
    pub(in crate::registry) fn new(settings: Settings, statuses: Statuses) -> Known {
        Known {
            settings,
            api_services: Collection::default(),
            shown: BTreeMap::new(),
            moving: BTreeSet::new(),
            statuses,
            namespaces: BTreeMap::new(),
            named: Named::default(),
            unsettled: BTreeSet::new(),
            troubled: BTreeSet::new(),
            complete: false,
            problems: BTreeMap::new(),
            unlooked: Unlooked::default(),
            touched: Touched::default(),
            heard: 0,
        }
    }

    /// A list of this kind begins.
    pub(in crate::registry) fn begins(&mut self, kind: &Kind) {
        match kind {
            Kind::ApiServices => self.api_services.begin(),
            Kind::Services(namespace) => self.namespace(namespace).begins(Part::Services),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).begins(Part::Slices),
        }
    }

    /// An object of a list, or (`listed` is false) of an event.
    pub(in crate::registry) fn has(&mut self, kind: &Kind, text: &RawValue, listed: bool) {
        if self.is_foreign(kind, text) {
            return;
        }
        let mut problems = Problems::default();
        let Some(read) = object::head(kind, text, &mut problems) else {
            self.tell(kind, String::new(), problems);
            return;
        };
        let name = read.name.clone();
        match kind {
            Kind::ApiServices => {
                let (one, written) = object::api_service(read, &self.settings, &mut problems);
                self.statuses.put(&name, written);
                let same = |a: &Arc<ApiService>, b: &Arc<ApiService>| a.same(b);
                if self.api_services.put(&name, one.map(Arc::new), listed, same) {
                    self.heard += 1;
                    self.unlooked.api_services.insert(name.clone());
                }
            }
            Kind::Services(namespace) => {
                let one = object::service(read, &mut problems).map(Arc::new);
                let services = &mut self.namespaces.entry(namespace.clone()).or_default().services.objects;
                if services.put(&name, one, listed, PartialEq::eq) {
                    self.touch(namespace, [name.clone()]);
                }
            }
            Kind::EndpointSlices(namespace) => {
                let one = object::endpoint_slice(read, &mut problems);
                let of = self.namespaces.entry(namespace.clone()).or_default();
                let touched = match one {
                    // One that belongs to no Service, or has no addresses: none of ours.
                    Ok(None) => of.remove_slice(&name).into_iter().collect(),
                    Ok(Some(one)) => of.put_slice(&name, Some(Arc::new(one)), listed),
                    Err(object::Wrong) => of.put_slice(&name, None, listed),
                };
                self.touch(namespace, touched);
            }
        }
        self.tell(kind, name, problems);
    }

    /// Whether this is of a Service that no APIService names, which is neither kept nor judged.
    fn is_foreign(&mut self, kind: &Kind, text: &RawValue) -> bool {
        let is_named = |namespace: &str, service: &String| {
            self.namespaces.get(namespace).is_some_and(|one| one.named.contains(service))
        };
        match kind {
            Kind::ApiServices => false,
            Kind::Services(namespace) => object::name_of(text).is_some_and(|name| !is_named(namespace, &name)),
            Kind::EndpointSlices(namespace) => {
                let foreign = object::slice_of(text).filter(|(_, service)| !is_named(namespace, service));
                if let Some((name, _)) = &foreign {
                    // It may have been another's before.
                    self.lacks_slice(namespace, name);
                }
                foreign.is_some()
            }
        }
    }

    /// The list is whole.
    pub(in crate::registry) fn is_whole(&mut self, kind: &Kind) {
        let listed = match kind {
            Kind::ApiServices => {
                let gone = self.api_services.end();
                self.unlooked.api_services.extend(gone.into_iter().map(|(name, _)| name));
                let (statuses, api_services) = (&self.statuses, &self.api_services);
                statuses.retain(|name| api_services.has(name));
                self.api_services.listed()
            }
            Kind::Services(namespace) => self.ends(namespace, Part::Services),
            Kind::EndpointSlices(namespace) => self.ends(namespace, Part::Slices),
        };
        self.problems.retain(|(of, name), _| of != kind || listed.contains(name));
        self.heard += 1;
    }

    fn ends(&mut self, namespace: &str, part: Part) -> BTreeSet<String> {
        let of = self.namespace(namespace);
        of.ends(part);
        let listed = of.listed(part);
        self.unlooked.namespaces.insert(namespace.to_owned());
        listed
    }

    /// An object is gone.
    pub(in crate::registry) fn lacks(&mut self, kind: &Kind, text: &RawValue) {
        let Some(name) = object::name_of(text) else { return };
        match kind {
            Kind::ApiServices => {
                self.statuses.remove(&name);
                if self.api_services.remove(&name).is_some() {
                    self.heard += 1;
                    self.unlooked.api_services.insert(name.clone());
                }
            }
            Kind::Services(namespace) => {
                if self.namespace(namespace).services.objects.remove(&name).is_some() {
                    self.touch(namespace, [name.clone()]);
                }
            }
            Kind::EndpointSlices(namespace) => return self.lacks_slice(namespace, &name),
        }
        self.untell(kind, name);
    }

    fn lacks_slice(&mut self, namespace: &str, name: &str) {
        let Some(of) = self.namespaces.get_mut(namespace) else { return };
        let touched = of.remove_slice(name);
        self.touch(namespace, touched);
        self.untell(&Kind::EndpointSlices(namespace.to_owned()), name.to_owned());
    }

    /// A collection cannot be listed or watched. Of a namespace of which nothing is known that concerns the APIServices
    /// that lead there: they are shown, at once if it was `refused`, and say why nobody knows where they lead.
    pub(in crate::registry) fn fails(&mut self, kind: &Kind, why: &str, refused: bool) {
        let (namespace, part) = match kind {
            Kind::ApiServices => return,
            Kind::Services(namespace) => (namespace, Part::Services),
            Kind::EndpointSlices(namespace) => (namespace, Part::Slices),
        };
        if self.namespace(namespace).fails(part, why, refused) {
            self.heard += 1;
            self.unlooked.namespaces.insert(namespace.clone());
        }
    }

    /// A namespace was waited for; for the last time, if it is given up.
    pub(in crate::registry) fn is_late(&mut self, namespace: &str, give_up: bool) {
        if self.namespaces.get_mut(namespace).is_some_and(|one| one.is_late(give_up)) {
            self.heard += 1;
            self.unlooked.namespaces.insert(namespace.to_owned());
        }
    }

    /// A namespace is followed no more.
    pub(in crate::registry) fn forget(&mut self, namespace: &str) {
        if let Some(gone) = self.namespaces.remove(namespace) {
            self.touch(namespace, gone.named);
        }
        self.unsettled.remove(namespace);
        self.troubled.remove(namespace);
        self.problems.retain(|(kind, _), _| match kind {
            Kind::ApiServices => true,
            Kind::Services(of) | Kind::EndpointSlices(of) => of != namespace,
        });
    }

    /// Another source has an APIService of this name that leads to a Service, or none that does.
    pub(in crate::registry) fn also(&mut self, name: &str, one: Option<&ApiService>) {
        let changed = self.named.set(&(By::Directory, name.to_owned()), one.and_then(service_of));
        self.unlooked.namespaces.extend(changed);
    }

    /// Shows what can be, and says what is wanted for that: the Services that APIServices name, those of others too, and
    /// those where one that moved is still shown.
    pub(in crate::registry) fn settle(&mut self) -> Wanted {
        let mut wanted = Wanted::default();
        // A page of them would have its namespaces listed, and the next one have them listed again.
        if !self.api_services.is_whole {
            return wanted;
        }
        let Unlooked { api_services: mut names, namespaces: known } = std::mem::take(&mut self.unlooked);
        for namespace in &known {
            names.extend(self.named.namers(namespace).map(|((_, name), _)| name.clone()));
        }
        let mut namespaces = known.clone();
        for name in names {
            self.show(&name);
            for (by, one) in [(By::Server, self.api_services.get(&name)), (By::Shown, self.shown.get(&name))] {
                let service = one.and_then(|one| service_of(one));
                namespaces.extend(self.named.set(&(by, name.clone()), service));
            }
        }
        for name in namespaces {
            let named = self.named.services(&name);
            if named.is_empty() {
                wanted.gone.push(name);
                continue;
            }
            let namespace = self.namespaces.entry(name.clone()).or_default();
            let touched: Vec<String> = match known.contains(&name) {
                true => namespace.named.union(&named).cloned().collect(),
                false => namespace.named.symmetric_difference(&named).cloned().collect(),
            };
            wanted.anew.extend(namespace.select(named).into_iter().map(|part| match part {
                Part::Services => Kind::Services(name.clone()),
                Part::Slices => Kind::EndpointSlices(name.clone()),
            }));
            keep(&mut self.unsettled, &name, !namespace.settled());
            keep(&mut self.troubled, &name, namespace.trouble().is_some());
            self.touched.services.extend(touched.iter().map(|service| service_key(&name, service)));
        }
        self.complete |= self.unsettled.is_empty();
        wanted
    }

    /// Shows an APIService as it is, if it can be.
    fn show(&mut self, name: &str) {
        let before = self.shown.get(name);
        let Some(one) = self.api_services.get(name) else {
            self.moving.remove(name);
            if self.shown.remove(name).is_some() {
                self.touched.api_services.insert(name.to_owned());
            }
            return;
        };
        let shows = match service_of(one).map(|(namespace, service)| (self.namespaces.get(namespace), service)) {
            None => true,
            Some((None, _)) => false,
            // One that is new gains nothing by being hidden: who asks for it would be told that there is none.
            Some((Some(namespace), service)) => {
                let new = self.complete && before.is_none();
                namespace.is_settled(service) || (new && namespace.trouble_of(service).is_some())
            }
        };
        if shows {
            self.moving.remove(name);
            if before.is_none_or(|before| !Arc::ptr_eq(before, one)) {
                self.shown.insert(name.to_owned(), one.clone());
                self.touched.api_services.insert(name.to_owned());
            }
        } else if before.is_some() && self.moving.insert(name.to_owned()) {
            tracing::info!(
                apiservice = name,
                namespace = service_of(one).map(|(namespace, _)| namespace),
                "an APIService moved; it is served as before until it is known what is in its new namespace, or that \
                 cannot be listed"
            );
        }
    }

    /// What may be another than when this was last asked.
    pub(in crate::registry) fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// What is wrong with objects; they are as they last were when they were right, if they ever were. And what is
    /// wrong with namespaces.
    pub(super) fn problems(&self) -> Problems {
        let of_namespace = |name: &String| {
            let one = self.namespaces.get(name)?;
            let ((what, why), _) = one.trouble().filter(|(_, given_up)| *given_up || self.complete)?;
            let its = self.named.namers(name).filter(|((by, _), _)| *by == By::Server);
            let mut its: Vec<&str> = its
                .filter(|(_, service)| one.trouble_of(service).is_some())
                .map(|((_, name), _)| name.as_str())
                .collect();
            its.sort_unstable();
            let message = format!("{what} cannot be listed: {why}; unavailable until they can be: {}", its.join(", "));
            Some(Problem::new(format!("kube-apiserver, namespace {name:?}"), message))
        };
        let namespaces = self.troubled.iter().filter_map(of_namespace);
        Problems(self.problems.values().flatten().cloned().chain(namespaces).collect())
    }

    fn namespace(&mut self, name: &str) -> &mut Namespace {
        self.namespaces.entry(name.to_owned()).or_default()
    }

    fn touch(&mut self, namespace: &str, services: impl IntoIterator<Item = String>) {
        for service in services {
            self.heard += 1;
            self.touched.services.insert(service_key(namespace, &service));
        }
    }

    fn untell(&mut self, kind: &Kind, name: String) {
        self.tell(kind, name, Problems::default());
    }

    fn tell(&mut self, kind: &Kind, name: String, problems: Problems) {
        let key = (kind.clone(), name);
        let (before, now) = match problems.0.is_empty() {
            true => (self.problems.remove(&key), None),
            false => (self.problems.insert(key, problems.0.clone()), Some(problems.0)),
        };
        self.heard += u64::from(before != now);
    }
}

impl Source for Known {
    fn api_service(&self, name: &str) -> Option<(String, Arc<ApiService>)> {
        self.shown.get(name).map(|one| (place(&Kind::ApiServices, name), one.clone()))
    }

    fn service(&self, key: &str) -> Option<Arc<Service>> {
        let (namespace, name) = of_key(key);
        self.namespaces.get(namespace)?.services.objects.get(name).cloned()
    }

    fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>> {
        let (namespace, name) = of_key(key);
        self.namespaces.get(namespace).into_iter().flat_map(|one| one.slices_of(name)).cloned().collect()
    }

    fn trouble(&self, key: &str) -> Option<String> {
        let (namespace, name) = of_key(key);
        let of = self.namespaces.get(namespace).filter(|one| one.named.contains(name))?;
        let (what, why) = of.trouble_of(name)?;
        Some(format!("{what} cannot be listed: {why}"))
    }

    fn all(&self) -> Touched {
        let mut all = Touched { api_services: self.shown.keys().cloned().collect(), services: BTreeSet::new() };
        for (name, namespace) in &self.namespaces {
            all.services.extend(namespace.named.iter().map(|service| service_key(name, service)));
        }
        all
    }
}

fn keep(all: &mut BTreeSet<String>, name: &str, stays: bool) {
    match stays {
        true => drop(all.insert(name.to_owned())),
        false => drop(all.remove(name)),
    }
}

/// Namespace and name of the Service of this APIService.
fn service_of(one: &ApiService) -> Option<(&str, &str)> {
    match &one.backend {
        Backend::Service(reference) => Some((&reference.namespace, &reference.name)),
        Backend::Local | Backend::Url(_) => None,
    }
}

/// Where a problem stands.
pub(super) fn place(kind: &Kind, name: &str) -> String {
    match kind {
        Kind::ApiServices => format!("kube-apiserver, APIService {name:?}"),
        Kind::Services(namespace) => format!("kube-apiserver, Service \"{namespace}/{name}\""),
        Kind::EndpointSlices(namespace) => format!("kube-apiserver, EndpointSlice \"{namespace}/{name}\""),
    }
}

/// When an object was made; the epoch if it does not say.
pub(super) fn created(timestamp: &str) -> SystemTime {
    timestamp.parse::<jiff::Timestamp>().map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

#[cfg(test)]
mod tests;
