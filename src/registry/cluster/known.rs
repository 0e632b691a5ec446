//! What a kube-apiserver said, kept until it says otherwise. Pure: objects in, contents out.
//!
//! An APIService is shown once its Service's namespace has been listed, or nobody waits for that any more: before, it
//! could not be said where it leads. One that moves is shown where it was until then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::value::RawValue;

use super::collection::Collection;
use super::namespace::{Namespace, Part};
use super::object;
use super::statuses::Statuses;
use crate::process::{Problem, Problems};
use crate::registry::api_service::{ApiService, Backend};
use crate::registry::endpoints::EndpointSlice;
use crate::registry::snapshot::{Contents, Settings, service_key};

/// A collection that is followed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// All there are.
    ApiServices,
    /// Those of one namespace.
    Services(String),
    /// Those of one namespace.
    EndpointSlices(String),
}

/// All that is known.
pub(super) struct Known {
    settings: Settings,
    api_services: Collection<Arc<ApiService>>,
    /// What is shown of them.
    shown: BTreeMap<String, Arc<ApiService>>,
    /// Those that are shown as they were, because nobody knows yet where they lead now.
    moving: BTreeSet<String>,
    /// The `status` that each has there.
    statuses: Statuses,
    namespaces: BTreeMap<String, Namespace>,
    /// Whether everything was there once, as far as it can be had.
    pub(super) complete: bool,
    problems: BTreeMap<(Kind, String), Vec<Problem>>,
    /// Counts what changed.
    pub(super) version: u64,
    /// The Services whose EndpointSlices changed since this was last asked, by namespace and name.
    endpoints: BTreeSet<(String, String)>,
    /// Whether anything else did.
    otherwise: bool,
    /// Counts what was said that somebody may want to look at, be it a mistake.
    pub(super) heard: u64,
}

/// What is to be followed.
#[derive(Default)]
pub(super) struct Wanted {
    /// Whatever is in these, and nowhere else.
    pub(super) namespaces: BTreeSet<String>,
    /// What is to be followed from its beginning.
    pub(super) anew: Vec<Kind>,
}

/// A Service, by namespace and name, and its EndpointSlices.
pub(super) type ServiceEndpoints = ((String, String), Vec<Arc<EndpointSlice>>);

impl Known {
    pub(super) fn new(settings: Settings, statuses: Statuses) -> Known {
        Known {
            settings,
            api_services: Collection::default(),
            shown: BTreeMap::new(),
            moving: BTreeSet::new(),
            statuses,
            namespaces: BTreeMap::new(),
            complete: false,
            problems: BTreeMap::new(),
            version: 0,
            heard: 0,
            endpoints: BTreeSet::new(),
            otherwise: false,
        }
    }

    /// A list of this kind begins.
    pub(super) fn begins(&mut self, kind: &Kind) {
        match kind {
            Kind::ApiServices => self.api_services.begin(),
            Kind::Services(namespace) => self.namespace(namespace).begins(Part::Services),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).begins(Part::Slices),
        }
    }

    /// An object of a list, or (`listed` is false) of an event.
    pub(super) fn has(&mut self, kind: &Kind, text: &RawValue, listed: bool) {
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
                let changed = self.api_services.put(&name, one.map(Arc::new), listed, same);
                self.counts(changed);
            }
            Kind::Services(namespace) => {
                let one = object::service(read, &mut problems).map(Arc::new);
                let services = &mut self.namespaces.entry(namespace.clone()).or_default().services.objects;
                let changed = services.put(&name, one, listed, PartialEq::eq);
                self.counts(changed);
            }
            Kind::EndpointSlices(namespace) => {
                let one = object::endpoint_slice(read, &mut problems);
                let slices = &mut self.namespaces.entry(namespace.clone()).or_default().slices.objects;
                let services = |one: Option<&Arc<EndpointSlice>>| one.map(|one| one.service.clone());
                let mut touched = vec![services(slices.get(&name))];
                let changed = match one {
                    // One that belongs to no Service, or has no addresses: none of ours.
                    Ok(None) => slices.remove(&name),
                    Ok(Some(one)) => slices.put(&name, Some(Arc::new(one)), listed, PartialEq::eq),
                    Err(object::Wrong) => slices.put(&name, None, listed, PartialEq::eq),
                };
                touched.push(services(slices.get(&name)));
                self.endpoints_change(namespace, changed, touched);
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
    pub(super) fn is_whole(&mut self, kind: &Kind) {
        let changed = match kind {
            Kind::ApiServices => {
                let changed = self.api_services.end();
                let (statuses, api_services) = (&self.statuses, &self.api_services);
                statuses.retain(|name| api_services.has(name));
                changed
            }
            Kind::Services(namespace) => self.namespace(namespace).ends(Part::Services),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).ends(Part::Slices),
        };
        let listed: BTreeSet<String> = match kind {
            Kind::ApiServices => self.api_services.listed(),
            Kind::Services(namespace) => self.namespace(namespace).services.objects.listed(),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).slices.objects.listed(),
        };
        self.problems.retain(|(of, name), _| of != kind || listed.contains(name));
        self.counts(changed);
        self.heard += 1;
        self.otherwise = true;
    }

    /// An object is gone.
    pub(super) fn lacks(&mut self, kind: &Kind, text: &RawValue) {
        let Some(name) = object::name_of(text) else { return };
        let gone = match kind {
            Kind::ApiServices => {
                self.statuses.remove(&name);
                self.api_services.remove(&name)
            }
            Kind::Services(namespace) => self.namespace(namespace).services.objects.remove(&name),
            Kind::EndpointSlices(namespace) => return self.lacks_slice(namespace, &name),
        };
        self.counts(gone);
        self.untell(kind, name);
    }

    fn lacks_slice(&mut self, namespace: &str, name: &str) {
        let Some(slices) = self.namespaces.get_mut(namespace).map(|one| &mut one.slices.objects) else { return };
        let touched = slices.get(name).map(|one| one.service.clone());
        let gone = slices.remove(name);
        self.endpoints_change(namespace, gone, vec![touched]);
        self.untell(&Kind::EndpointSlices(namespace.to_owned()), name.to_owned());
    }

    /// A collection cannot be listed or watched. Of a namespace of which nothing is known that concerns the APIServices
    /// that lead there: they are shown, at once if it was `refused`, and say why nobody knows where they lead.
    pub(super) fn fails(&mut self, kind: &Kind, why: &str, refused: bool) {
        let changed = match kind {
            Kind::ApiServices => false,
            Kind::Services(namespace) => self.namespace(namespace).fails(Part::Services, why, refused),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).fails(Part::Slices, why, refused),
        };
        self.counts(changed);
    }

    /// A namespace was waited for; for the last time, if it is given up.
    pub(super) fn is_late(&mut self, namespace: &str, give_up: bool) {
        let changed = self.namespaces.get_mut(namespace).is_some_and(|one| one.is_late(give_up));
        self.counts(changed);
    }

    /// A namespace is followed no more.
    pub(super) fn forget(&mut self, namespace: &str) {
        let gone = self.namespaces.remove(namespace).is_some();
        self.counts(gone);
        self.problems.retain(|(kind, _), _| match kind {
            Kind::ApiServices => true,
            Kind::Services(of) | Kind::EndpointSlices(of) => of != namespace,
        });
    }

    /// Shows what can be, and says what is wanted for that and for `others`.
    pub(super) fn settle<'o>(&mut self, others: impl Iterator<Item = &'o ApiService>) -> Wanted {
        let Known { api_services, shown, moving, namespaces, complete, .. } = self;
        shown.retain(|name, _| api_services.has(name));
        moving.retain(|name| api_services.has(name));
        for one in api_services.values() {
            let service = service_of(one).map(|(namespace, service)| (namespaces.get(namespace), service));
            let shows = match service {
                None => true,
                Some((None, _)) => false,
                // One that is new gains nothing by being hidden: who asks for it would be told that there is none.
                Some((Some(namespace), service)) => {
                    let new = *complete && !shown.contains_key(&one.name);
                    namespace.is_settled(service) || (new && namespace.trouble_of(service).is_some())
                }
            };
            if shows {
                shown.insert(one.name.clone(), one.clone());
                moving.remove(&one.name);
            } else if shown.contains_key(&one.name) && moving.insert(one.name.clone()) {
                tracing::info!(
                    apiservice = one.name,
                    namespace = service_of(one).map(|(namespace, _)| namespace),
                    "an APIService moved; it is served as before until it is known what is in its new namespace, or \
                     that cannot be listed"
                );
            }
        }
        self.select(others)
    }

    /// What is to be followed: the Services that APIServices name, those of `others` too, and those where one that
    /// moved is still shown.
    fn select<'o>(&mut self, others: impl Iterator<Item = &'o ApiService>) -> Wanted {
        let Known { api_services, shown, namespaces, complete, .. } = self;
        let mut wanted = Wanted::default();
        // A page of them would have its namespaces listed, and the next one have them listed again.
        if !api_services.is_whole {
            return wanted;
        }
        let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut name = |one: &ApiService| {
            if let Some((namespace, service)) = service_of(one) {
                named.entry(namespace.to_owned()).or_default().insert(service.to_owned());
            }
        };
        api_services.values().chain(shown.values()).for_each(|one| name(one));
        others.for_each(name);
        let mut settled = true;
        for (name, services) in named {
            let namespace = namespaces.entry(name.clone()).or_default();
            wanted.anew.extend(namespace.select(services).into_iter().map(|part| match part {
                Part::Services => Kind::Services(name.clone()),
                Part::Slices => Kind::EndpointSlices(name.clone()),
            }));
            settled &= namespace.named.iter().all(|service| namespace.is_settled(service));
            wanted.namespaces.insert(name);
        }
        *complete |= settled;
        wanted
    }

    /// What is known, as far as it is to be shown.
    pub(super) fn contents(&self) -> Contents {
        let Known { shown, namespaces, .. } = self;
        let unknown = namespaces.iter().flat_map(|(namespace, one)| {
            one.named.iter().filter_map(move |name| {
                let (what, why) = one.trouble_of(name)?;
                Some((service_key(namespace, name), format!("{what} cannot be listed: {why}")))
            })
        });
        Contents {
            api_services: shown.values().map(|one| (place(&Kind::ApiServices, &one.name), one.clone())).collect(),
            services: namespaces.values().flat_map(|one| one.services.objects.values().cloned()).collect(),
            endpoint_slices: namespaces.values().flat_map(|one| one.slices.objects.values().cloned()).collect(),
            unknown: unknown.collect(),
        }
    }

    /// What is wrong with objects; they are as they last were when they were right, if they ever were. And what is
    /// wrong with namespaces.
    pub(super) fn problems(&self) -> Problems {
        let of_namespace = |(name, one): (&String, &Namespace)| {
            let ((what, why), _) = one.trouble().filter(|(_, given_up)| *given_up || self.complete)?;
            let leads = |one: &&Arc<ApiService>| service_of(one).is_some_and(|(namespace, _)| namespace == name);
            let unknown =
                |it: &&Arc<ApiService>| service_of(it).is_some_and(|(_, service)| one.trouble_of(service).is_some());
            let its = self.api_services.values().filter(leads).filter(unknown);
            let its: Vec<&str> = its.map(|one| one.name.as_str()).collect();
            let message = format!("{what} cannot be listed: {why}; unavailable until they can be: {}", its.join(", "));
            Some(Problem::new(format!("kube-apiserver, namespace {name:?}"), message))
        };
        let namespaces = self.namespaces.iter().filter_map(of_namespace);
        Problems(self.problems.values().flatten().cloned().chain(namespaces).collect())
    }

    fn namespace(&mut self, name: &str) -> &mut Namespace {
        self.namespaces.entry(name.to_owned()).or_default()
    }

    /// What changed since this was last asked, if it is nothing but endpoints: each Service with those it has now.
    pub(super) fn only_endpoints(&mut self) -> Option<Vec<ServiceEndpoints>> {
        let endpoints = std::mem::take(&mut self.endpoints);
        if std::mem::take(&mut self.otherwise) {
            return None;
        }
        let all = |(namespace, service): (String, String)| {
            let slices = self.namespaces.get(&namespace).map(|one| one.slices.objects.values());
            let slices = slices.into_iter().flatten().filter(|one| one.service == service).cloned().collect();
            ((namespace, service), slices)
        };
        Some(endpoints.into_iter().map(all).collect())
    }

    fn counts(&mut self, changed: bool) {
        self.version += u64::from(changed);
        self.heard += u64::from(changed);
        self.otherwise |= changed;
    }

    fn endpoints_change(&mut self, namespace: &str, changed: bool, services: Vec<Option<String>>) {
        if changed {
            self.version += 1;
            self.heard += 1;
            self.endpoints.extend(services.into_iter().flatten().map(|service| (namespace.to_owned(), service)));
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
        self.otherwise |= before != now;
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
