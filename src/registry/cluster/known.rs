//! Objects of a kube-apiserver, as its watches report them. No I/O.
//!
//! An APIService is published once its Service's namespace is listed, or the wait for that has timed out: before, it
//! cannot be resolved. If it changes to another namespace, its previous version stays published until then.
//!
//! Each change records the names that it affects, so that an update does not look at other objects.

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

/// A watched collection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::registry) enum Kind {
    /// All APIServices.
    ApiServices,
    /// The Services of a namespace.
    Services(String),
    /// The EndpointSlices of a namespace.
    EndpointSlices(String),
}

/// Known objects of a kube-apiserver.
pub(in crate::registry) struct Known {
    settings: Settings,
    api_services: Collection<Arc<ApiService>>,
    /// The published version of each APIService.
    shown: BTreeMap<String, Arc<ApiService>>,
    /// APIServices published in a previous version, because the new one cannot be resolved yet.
    moving: BTreeSet<String>,
    /// Stored `status` of each APIService.
    statuses: Statuses,
    namespaces: BTreeMap<String, Namespace>,
    named: Named,
    /// Namespaces with a referenced Service that is still waited for.
    unsettled: BTreeSet<String>,
    /// Namespaces that cannot be listed.
    troubled: BTreeSet<String>,
    /// Whether all referenced objects were listed once, apart from those that cannot be listed.
    pub(in crate::registry) complete: bool,
    problems: BTreeMap<(Kind, String), Vec<Problem>>,
    unlooked: Unlooked,
    /// Names of objects that may have changed since the last [`Known::take_touched`].
    touched: Touched,
    /// Number of changes so far, including errors.
    pub(super) heard: u64,
}

/// Names to process in the next [`Known::settle`].
#[derive(Default)]
struct Unlooked {
    /// Names of changed APIServices.
    api_services: BTreeSet<String>,
    /// Namespaces with a list that ended, failed or timed out.
    namespaces: BTreeSet<String>,
}

/// Changes to the set of watches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::registry) struct Wanted {
    /// Namespaces to stop watching.
    pub(in crate::registry) gone: Vec<String>,
    /// Collections to list and watch from the start.
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

    /// Begins a list of this collection.
    pub(in crate::registry) fn begins(&mut self, kind: &Kind) {
        match kind {
            Kind::ApiServices => self.api_services.begin(),
            Kind::Services(namespace) => self.namespace(namespace).begins(Part::Services),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).begins(Part::Slices),
        }
    }

    /// Applies an object of a list, or of a watch event if `listed` is false.
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
                    // Belongs to no Service, or has no IP addresses.
                    Ok(None) => of.remove_slice(&name).into_iter().collect(),
                    Ok(Some(one)) => of.put_slice(&name, Some(Arc::new(one)), listed),
                    Err(object::Wrong) => of.put_slice(&name, None, listed),
                };
                self.touch(namespace, touched);
            }
        }
        self.tell(kind, name, problems);
    }

    /// Whether the object belongs to a Service that no APIService references. It is then neither stored nor validated.
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
                    // It may have belonged to a referenced Service before.
                    self.lacks_slice(namespace, name);
                }
                foreign.is_some()
            }
        }
    }

    /// Completes a list.
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

    /// Removes a deleted object.
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

    /// Records that a collection cannot be listed or watched.
    ///
    /// In a namespace that was never listed, the APIServices that reference it are published with this error: at once
    /// if the list was `refused`, else after the wait.
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

    /// Records that the lists of a namespace are late; `give_up` ends the wait.
    pub(in crate::registry) fn is_late(&mut self, namespace: &str, give_up: bool) {
        if self.namespaces.get_mut(namespace).is_some_and(|one| one.is_late(give_up)) {
            self.heard += 1;
            self.unlooked.namespaces.insert(namespace.to_owned());
        }
    }

    /// Removes a namespace that is no longer watched.
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

    /// Sets the APIService of this name of the registry directory (`None`: it has none). Its Service is watched too.
    pub(in crate::registry) fn also(&mut self, name: &str, one: Option<&ApiService>) {
        let changed = self.named.set(&(By::Directory, name.to_owned()), one.and_then(service_of));
        self.unlooked.namespaces.extend(changed);
    }

    /// Publishes the APIServices that can be resolved. Returns the watches to start and stop: referenced Services are
    /// watched, including those referenced by the directory and by previous versions still published.
    pub(in crate::registry) fn settle(&mut self) -> Wanted {
        let mut wanted = Wanted::default();
        // Waits for the whole list: each further page would restart the lists of namespaces.
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

    /// Publishes the current version of an APIService, if it can be resolved.
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
            // A new one is published with its error: hidden, its requests would get 404.
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
                "an APIService moved to another namespace; its previous Service is used until the new namespace is \
                 listed or cannot be listed"
            );
        }
    }

    /// Takes the names of objects that may have changed since the last call.
    pub(in crate::registry) fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// Errors of objects and of namespaces. The last valid version of an object with an error stays in use.
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
            let message = format!("{what} cannot be listed: {why}; unavailable APIServices: {}", its.join(", "));
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

/// Location of an object, for problems.
pub(super) fn place(kind: &Kind, name: &str) -> String {
    match kind {
        Kind::ApiServices => format!("kube-apiserver, APIService {name:?}"),
        Kind::Services(namespace) => format!("kube-apiserver, Service \"{namespace}/{name}\""),
        Kind::EndpointSlices(namespace) => format!("kube-apiserver, EndpointSlice \"{namespace}/{name}\""),
    }
}

/// Parses a `creationTimestamp`; the epoch if it is missing or invalid.
pub(super) fn created(timestamp: &str) -> SystemTime {
    timestamp.parse::<jiff::Timestamp>().map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

#[cfg(test)]
mod tests;
