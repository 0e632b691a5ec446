//! Objects of a kube-apiserver, as its watches report them. No I/O.
//!
//! An APIService is published once its Service's namespace is listed, or the wait for that has timed out: before, it
//! cannot be resolved. If it changes to another namespace, its previous version stays published until then.
//!
//! Each change records the names that it affects, so that an update does not look at other objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::value::RawValue;

use super::collection::Collection;
use super::namespace::{NamespaceStore, NamespacedResource};
use super::object_parser;
use super::reference_index::{ReferenceIndex, ReferrerSource};
use super::statuses::ApiServiceStatuses;
use super::watched_resource::WatchedResource;
use crate::process::{Problem, Problems};
use crate::registry::layered_sources::{DirtySet, RegistrySource};
use crate::registry::objects::api_service::{ApiService, ApiServiceBackend};
use crate::registry::objects::endpoints::EndpointSlice;
use crate::registry::objects::service::Service;
use crate::registry::objects::service::{service_key, split_service_key};
use crate::registry::settings::Settings;

/// Known objects of a kube-apiserver, or of the embedded API server.
pub(in crate::registry) struct ClusterStore {
    /// Name of the API server.
    pub(super) source: &'static str,
    settings: Settings,
    api_services: Collection<Arc<ApiService>>,
    /// The published version of each APIService.
    published: BTreeMap<String, Arc<ApiService>>,
    /// APIServices published in a previous version, because the new one cannot be resolved yet.
    moving: BTreeSet<String>,
    /// Stored `status` of each APIService.
    statuses: ApiServiceStatuses,
    namespaces: BTreeMap<String, NamespaceStore>,
    references: ReferenceIndex,
    /// Namespaces with a referenced Service that is still waited for.
    unsettled_namespaces: BTreeSet<String>,
    /// Namespaces that cannot be listed.
    failing_namespaces: BTreeSet<String>,
    /// Whether all referenced objects were listed once, apart from those that cannot be listed.
    pub(in crate::registry) complete: bool,
    problems: BTreeMap<(WatchedResource, String), Vec<Problem>>,
    pending: PendingNames,
    /// Names of objects that may have changed since the last [`ClusterStore::take_dirty`].
    dirty: DirtySet,
    /// Number of changes so far, including errors.
    pub(super) change_count: u64,
}

/// Names to process in the next [`ClusterStore::reconcile`].
#[derive(Default)]
struct PendingNames {
    /// Names of changed APIServices.
    api_services: BTreeSet<String>,
    /// Namespaces with a list that ended, failed or timed out.
    namespaces: BTreeSet<String>,
}

/// Changes to the set of watches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::registry) struct WatchPlan {
    /// Namespaces to stop watching.
    pub(in crate::registry) stop: Vec<String>,
    /// Collections to list and watch from the start.
    pub(in crate::registry) restart: Vec<WatchedResource>,
}

impl ClusterStore {
    pub(in crate::registry) fn new(
        source: &'static str,
        settings: Settings,
        statuses: ApiServiceStatuses,
    ) -> ClusterStore {
        ClusterStore {
            source,
            settings,
            api_services: Collection::default(),
            published: BTreeMap::new(),
            moving: BTreeSet::new(),
            statuses,
            namespaces: BTreeMap::new(),
            references: ReferenceIndex::default(),
            unsettled_namespaces: BTreeSet::new(),
            failing_namespaces: BTreeSet::new(),
            complete: false,
            problems: BTreeMap::new(),
            pending: PendingNames::default(),
            dirty: DirtySet::default(),
            change_count: 0,
        }
    }

    /// Begins a list of this collection.
    pub(in crate::registry) fn begin_list(&mut self, kind: &WatchedResource) {
        match kind {
            WatchedResource::ApiServices => self.api_services.begin_list(),
            WatchedResource::Services(namespace) => {
                self.namespace_mut(namespace).begin_list(NamespacedResource::Services)
            }
            WatchedResource::EndpointSlices(namespace) => {
                self.namespace_mut(namespace).begin_list(NamespacedResource::EndpointSlices)
            }
        }
    }

    /// Applies an object of a list, or of a watch event if `listed` is false.
    pub(in crate::registry) fn apply_object(&mut self, kind: &WatchedResource, text: &RawValue, listed: bool) {
        if self.is_unreferenced(kind, text) {
            return;
        }
        let mut problems = Problems::default();
        let Some(read) = object_parser::parse_document(self.source, kind, text, &mut problems) else {
            self.set_problems(kind, String::new(), problems);
            return;
        };
        let name = read.name.clone();
        match kind {
            WatchedResource::ApiServices => {
                let (one, written) = object_parser::parse_api_service(read, &self.settings, &mut problems);
                self.statuses.put(&name, written);
                let same = |a: &Arc<ApiService>, b: &Arc<ApiService>| a.is_equivalent(b);
                if self.api_services.put(&name, one.map(Arc::new), listed, same) {
                    self.change_count += 1;
                    self.pending.api_services.insert(name.clone());
                }
            }
            WatchedResource::Services(namespace) => {
                let one = object_parser::parse_service(read, &mut problems).map(Arc::new);
                let services = &mut self.namespaces.entry(namespace.clone()).or_default().services.objects;
                if services.put(&name, one, listed, PartialEq::eq) {
                    self.mark_dirty(namespace, [name.clone()]);
                }
            }
            WatchedResource::EndpointSlices(namespace) => {
                let one = object_parser::parse_endpoint_slice(read, &mut problems);
                let of = self.namespaces.entry(namespace.clone()).or_default();
                let touched = match one {
                    // Belongs to no Service, or has no IP addresses.
                    Ok(None) => of.remove_slice(&name).into_iter().collect(),
                    Ok(Some(one)) => of.put_slice(&name, Some(Arc::new(one)), listed),
                    Err(object_parser::InvalidObject) => of.put_slice(&name, None, listed),
                };
                self.mark_dirty(namespace, touched);
            }
        }
        self.set_problems(kind, name, problems);
    }

    /// Whether the object belongs to a Service that no APIService references. It is then neither stored nor validated.
    fn is_unreferenced(&mut self, kind: &WatchedResource, text: &RawValue) -> bool {
        let is_named = |namespace: &str, service: &String| {
            self.namespaces.get(namespace).is_some_and(|one| one.referenced.contains(service))
        };
        match kind {
            WatchedResource::ApiServices => false,
            WatchedResource::Services(namespace) => {
                object_parser::object_name(text).is_some_and(|name| !is_named(namespace, &name))
            }
            WatchedResource::EndpointSlices(namespace) => {
                let foreign =
                    object_parser::slice_name_and_service(text).filter(|(_, service)| !is_named(namespace, service));
                if let Some((name, _)) = &foreign {
                    // It may have belonged to a referenced Service before.
                    self.delete_slice(namespace, name);
                }
                foreign.is_some()
            }
        }
    }

    /// Ends a list: removes the objects, and the problems of objects, that it did not contain.
    pub(in crate::registry) fn finish_list(&mut self, kind: &WatchedResource) {
        let listed = match kind {
            WatchedResource::ApiServices => {
                let gone = self.api_services.finish_list();
                self.pending.api_services.extend(gone.into_iter().map(|(name, _)| name));
                let (statuses, api_services) = (&self.statuses, &self.api_services);
                statuses.retain(|name| api_services.contains(name));
                self.api_services.take_listed()
            }
            WatchedResource::Services(namespace) => self.finish_namespace_list(namespace, NamespacedResource::Services),
            WatchedResource::EndpointSlices(namespace) => {
                self.finish_namespace_list(namespace, NamespacedResource::EndpointSlices)
            }
        };
        self.problems.retain(|(of, name), _| of != kind || listed.contains(name));
        self.change_count += 1;
    }

    fn finish_namespace_list(&mut self, namespace: &str, part: NamespacedResource) -> BTreeSet<String> {
        let of = self.namespace_mut(namespace);
        of.finish_list(part);
        let listed = of.take_listed(part);
        self.pending.namespaces.insert(namespace.to_owned());
        listed
    }

    /// Removes a deleted object.
    pub(in crate::registry) fn delete_object(&mut self, kind: &WatchedResource, text: &RawValue) {
        let Some(name) = object_parser::object_name(text) else { return };
        match kind {
            WatchedResource::ApiServices => {
                self.statuses.remove(&name);
                if self.api_services.remove(&name).is_some() {
                    self.change_count += 1;
                    self.pending.api_services.insert(name.clone());
                }
            }
            WatchedResource::Services(namespace) => {
                if self.namespace_mut(namespace).services.objects.remove(&name).is_some() {
                    self.mark_dirty(namespace, [name.clone()]);
                }
            }
            WatchedResource::EndpointSlices(namespace) => return self.delete_slice(namespace, &name),
        }
        self.clear_problems(kind, name);
    }

    fn delete_slice(&mut self, namespace: &str, name: &str) {
        let Some(of) = self.namespaces.get_mut(namespace) else { return };
        let touched = of.remove_slice(name);
        self.mark_dirty(namespace, touched);
        self.clear_problems(&WatchedResource::EndpointSlices(namespace.to_owned()), name.to_owned());
    }

    /// Records that a collection cannot be listed or watched.
    ///
    /// In a namespace that was never listed, the APIServices that reference it are published with this error: at once
    /// if the list was `refused`, else after the wait.
    pub(in crate::registry) fn record_failure(&mut self, kind: &WatchedResource, why: &str, refused: bool) {
        let (namespace, part) = match kind {
            WatchedResource::ApiServices => return,
            WatchedResource::Services(namespace) => (namespace, NamespacedResource::Services),
            WatchedResource::EndpointSlices(namespace) => (namespace, NamespacedResource::EndpointSlices),
        };
        if self.namespace_mut(namespace).record_failure(part, why, refused) {
            self.change_count += 1;
            self.pending.namespaces.insert(namespace.clone());
        }
    }

    /// Records that the lists of a namespace are late; `give_up` ends the wait.
    pub(in crate::registry) fn record_timeout(&mut self, namespace: &str, give_up: bool) {
        if self.namespaces.get_mut(namespace).is_some_and(|one| one.record_timeout(self.source, give_up)) {
            self.change_count += 1;
            self.pending.namespaces.insert(namespace.to_owned());
        }
    }

    /// Removes a namespace that is no longer watched.
    pub(in crate::registry) fn remove_namespace(&mut self, namespace: &str) {
        if let Some(gone) = self.namespaces.remove(namespace) {
            self.mark_dirty(namespace, gone.referenced);
        }
        self.unsettled_namespaces.remove(namespace);
        self.failing_namespaces.remove(namespace);
        self.problems.retain(|(kind, _), _| match kind {
            WatchedResource::ApiServices => true,
            WatchedResource::Services(of) | WatchedResource::EndpointSlices(of) => of != namespace,
        });
    }

    /// Sets the APIService of this name of the registry directory (`None`: it has none). Its Service is watched too.
    pub(in crate::registry) fn set_directory_reference(&mut self, name: &str, one: Option<&ApiService>) {
        let changed =
            self.references.set(&(ReferrerSource::Directory, name.to_owned()), one.and_then(referenced_service));
        self.pending.namespaces.extend(changed);
    }

    /// Publishes the APIServices that can be resolved. Returns the watches to start and stop: referenced Services are
    /// watched, including those referenced by the directory and by previous versions still published.
    pub(in crate::registry) fn reconcile(&mut self) -> WatchPlan {
        let mut plan = WatchPlan::default();
        // Waits for the whole list: each further page would restart the lists of namespaces.
        if !self.api_services.has_synced {
            return plan;
        }
        let PendingNames { api_services: mut names, namespaces: known } = std::mem::take(&mut self.pending);
        for namespace in &known {
            names.extend(self.references.referrers(namespace).map(|((_, name), _)| name.clone()));
        }
        let mut namespaces = known.clone();
        for name in names {
            self.publish(&name);
            for (by, one) in [
                (ReferrerSource::KubeApiserver, self.api_services.get(&name)),
                (ReferrerSource::Published, self.published.get(&name)),
            ] {
                let service = one.and_then(|one| referenced_service(one));
                namespaces.extend(self.references.set(&(by, name.clone()), service));
            }
        }
        for name in namespaces {
            let named = self.references.services(&name);
            if named.is_empty() {
                plan.stop.push(name);
                continue;
            }
            let namespace = self.namespaces.entry(name.clone()).or_default();
            let touched: Vec<String> = match known.contains(&name) {
                true => namespace.referenced.union(&named).cloned().collect(),
                false => namespace.referenced.symmetric_difference(&named).cloned().collect(),
            };
            plan.restart.extend(namespace.set_referenced(named).into_iter().map(|part| match part {
                NamespacedResource::Services => WatchedResource::Services(name.clone()),
                NamespacedResource::EndpointSlices => WatchedResource::EndpointSlices(name.clone()),
            }));
            set_membership(&mut self.unsettled_namespaces, &name, !namespace.all_settled());
            set_membership(&mut self.failing_namespaces, &name, namespace.list_error().is_some());
            self.dirty.services.extend(touched.iter().map(|service| service_key(&name, service)));
        }
        self.complete |= self.unsettled_namespaces.is_empty();
        plan
    }

    /// Publishes the current version of an APIService, if it can be resolved.
    fn publish(&mut self, name: &str) {
        let before = self.published.get(name);
        let Some(one) = self.api_services.get(name) else {
            self.moving.remove(name);
            if self.published.remove(name).is_some() {
                self.dirty.api_services.insert(name.to_owned());
            }
            return;
        };
        let shows = match referenced_service(one).map(|(namespace, service)| (self.namespaces.get(namespace), service))
        {
            None => true,
            Some((None, _)) => false,
            // A new one is published with its error: hidden, its requests would get 404.
            Some((Some(namespace), service)) => {
                let new = self.complete && before.is_none();
                namespace.is_settled(service) || (new && namespace.service_list_error(service).is_some())
            }
        };
        if shows {
            self.moving.remove(name);
            if before.is_none_or(|before| !Arc::ptr_eq(before, one)) {
                self.published.insert(name.to_owned(), one.clone());
                self.dirty.api_services.insert(name.to_owned());
            }
        } else if before.is_some() && self.moving.insert(name.to_owned()) {
            tracing::info!(
                apiservice = name,
                namespace = referenced_service(one).map(|(namespace, _)| namespace),
                "an APIService moved to another namespace; its previous Service is used until the new namespace is \
                 listed or cannot be listed"
            );
        }
    }

    /// Takes the names of objects that may have changed since the last call.
    pub(in crate::registry) fn take_dirty(&mut self) -> DirtySet {
        std::mem::take(&mut self.dirty)
    }

    /// Errors of objects and of namespaces. The last valid version of an object with an error stays in use.
    pub(super) fn problems(&self) -> Problems {
        let of_namespace = |name: &String| {
            let one = self.namespaces.get(name)?;
            let ((what, why), _) = one.list_error().filter(|(_, given_up)| *given_up || self.complete)?;
            let its = self.references.referrers(name).filter(|((by, _), _)| *by == ReferrerSource::KubeApiserver);
            let mut its: Vec<&str> = its
                .filter(|(_, service)| one.service_list_error(service).is_some())
                .map(|((_, name), _)| name.as_str())
                .collect();
            its.sort_unstable();
            let message = format!("{what} cannot be listed: {why}; unavailable APIServices: {}", its.join(", "));
            Some(Problem::new(format!("{}, namespace {name:?}", self.source), message))
        };
        let namespaces = self.failing_namespaces.iter().filter_map(of_namespace);
        Problems(self.problems.values().flatten().cloned().chain(namespaces).collect())
    }

    fn namespace_mut(&mut self, name: &str) -> &mut NamespaceStore {
        self.namespaces.entry(name.to_owned()).or_default()
    }

    fn mark_dirty(&mut self, namespace: &str, services: impl IntoIterator<Item = String>) {
        for service in services {
            self.change_count += 1;
            self.dirty.services.insert(service_key(namespace, &service));
        }
    }

    fn clear_problems(&mut self, kind: &WatchedResource, name: String) {
        self.set_problems(kind, name, Problems::default());
    }

    fn set_problems(&mut self, kind: &WatchedResource, name: String, problems: Problems) {
        let key = (kind.clone(), name);
        let (before, now) = match problems.0.is_empty() {
            true => (self.problems.remove(&key), None),
            false => (self.problems.insert(key, problems.0.clone()), Some(problems.0)),
        };
        self.change_count += u64::from(before != now);
    }
}

impl RegistrySource for ClusterStore {
    fn api_service(&self, name: &str) -> Option<(String, Arc<ApiService>)> {
        self.published.get(name).map(|one| (WatchedResource::ApiServices.location(self.source, name), one.clone()))
    }

    fn service(&self, key: &str) -> Option<Arc<Service>> {
        let (namespace, name) = split_service_key(key);
        self.namespaces.get(namespace)?.services.objects.get(name).cloned()
    }

    fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>> {
        let (namespace, name) = split_service_key(key);
        self.namespaces.get(namespace).into_iter().flat_map(|one| one.slices_of(name)).cloned().collect()
    }

    fn lookup_error(&self, key: &str) -> Option<String> {
        let (namespace, name) = split_service_key(key);
        let of = self.namespaces.get(namespace).filter(|one| one.referenced.contains(name))?;
        let (what, why) = of.service_list_error(name)?;
        Some(format!("{what} cannot be listed: {why}"))
    }

    fn all_names(&self) -> DirtySet {
        let mut all = DirtySet { api_services: self.published.keys().cloned().collect(), services: BTreeSet::new() };
        for (name, namespace) in &self.namespaces {
            all.services.extend(namespace.referenced.iter().map(|service| service_key(name, service)));
        }
        all
    }
}

fn set_membership(all: &mut BTreeSet<String>, name: &str, stays: bool) {
    match stays {
        true => drop(all.insert(name.to_owned())),
        false => drop(all.remove(name)),
    }
}

/// Namespace and name of the Service of this APIService.
fn referenced_service(one: &ApiService) -> Option<(&str, &str)> {
    match &one.backend {
        ApiServiceBackend::Service(reference) => Some((&reference.namespace, &reference.name)),
        ApiServiceBackend::Local | ApiServiceBackend::Url(_) => None,
    }
}

#[cfg(test)]
mod tests;
