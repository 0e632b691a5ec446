//! Services and EndpointSlices of one namespace, and whether they are complete enough to resolve an APIService.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::filtered_collection::FilteredCollection;
use crate::registry::objects::endpoints::EndpointSlice;
use crate::registry::objects::service::Service;

/// The Services of one namespace that APIServices reference, and their EndpointSlices.
#[derive(Default)]
pub(super) struct NamespaceStore {
    /// Names of the referenced Services.
    pub(super) referenced: BTreeSet<String>,
    pub(super) services: FilteredCollection<Arc<Service>>,
    slices: FilteredCollection<Arc<EndpointSlice>>,
    /// The names of the slices by their Service.
    slices_of: BTreeMap<String, BTreeSet<String>>,
    /// Whether the wait for its lists has timed out, or one was refused.
    given_up: bool,
}

/// A collection of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespacedResource {
    Services,
    EndpointSlices,
}

impl NamespaceStore {
    /// Sets the referenced Services. Drops the objects of others. Returns the collections to list again.
    pub(super) fn set_referenced(&mut self, named: BTreeSet<String>) -> Vec<NamespacedResource> {
        if named != self.referenced {
            self.referenced = named;
            let named = &self.referenced;
            self.services.objects.retain(|one| named.contains(&one.name));
            self.slices.objects.retain(|one| named.contains(&one.service));
            self.slices_of.retain(|service, _| named.contains(service));
        }
        let services = self.services.set_referenced(&self.referenced).then_some(NamespacedResource::Services);
        let slices = self.slices.set_referenced(&self.referenced).then_some(NamespacedResource::EndpointSlices);
        services.into_iter().chain(slices).collect()
    }

    pub(super) fn begin_list(&mut self, part: NamespacedResource) {
        match part {
            NamespacedResource::Services => self.services.begin_list(&self.referenced),
            NamespacedResource::EndpointSlices => self.slices.begin_list(&self.referenced),
        }
    }

    /// Completes a list of one collection.
    pub(super) fn finish_list(&mut self, part: NamespacedResource) {
        match part {
            NamespacedResource::Services => drop(self.services.finish_list(&self.referenced)),
            NamespacedResource::EndpointSlices => {
                for gone in self.slices.finish_list(&self.referenced) {
                    self.unlink_slice(&gone.service, &gone.name);
                }
            }
        }
        // References added later are waited for again.
        self.given_up &= !self.has_synced();
    }

    /// Stores a slice, as [`Collection::put`](super::collection::Collection::put); `None` for an invalid one. Returns
    /// the Services of which slices changed.
    pub(super) fn put_slice(&mut self, name: &str, one: Option<Arc<EndpointSlice>>, listed: bool) -> Vec<String> {
        let before = self.slices.objects.get(name).map(|one| one.service.clone());
        if !self.slices.objects.put(name, one, listed, PartialEq::eq) {
            return Vec::new();
        }
        let now = self.slices.objects.get(name).map(|one| one.service.clone());
        if let Some(before) = &before {
            self.unlink_slice(before, name);
        }
        if let Some(now) = &now {
            self.slices_of.entry(now.clone()).or_default().insert(name.to_owned());
        }
        before.into_iter().chain(now).collect()
    }

    /// Removes a slice. Returns the Service that it belonged to, if it existed.
    pub(super) fn remove_slice(&mut self, name: &str) -> Option<String> {
        let gone = self.slices.objects.remove(name)?;
        self.unlink_slice(&gone.service, name);
        Some(gone.service.clone())
    }

    fn unlink_slice(&mut self, service: &str, slice: &str) {
        if let Some(slices) = self.slices_of.get_mut(service) {
            slices.remove(slice);
            if slices.is_empty() {
                self.slices_of.remove(service);
            }
        }
    }

    /// The slices of a Service, sorted by name.
    pub(super) fn slices_of(&self, service: &str) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        self.slices_of.get(service).into_iter().flatten().filter_map(|name| self.slices.objects.get(name))
    }

    /// Takes the names in the list that ended last, including those of invalid objects.
    pub(super) fn take_listed(&mut self, part: NamespacedResource) -> BTreeSet<String> {
        match part {
            NamespacedResource::Services => self.services.objects.take_listed(),
            NamespacedResource::EndpointSlices => self.slices.objects.take_listed(),
        }
    }

    /// Whether all referenced Services are listed, or no longer waited for.
    pub(super) fn all_settled(&self) -> bool {
        self.referenced.iter().all(|service| self.is_settled(service))
    }

    /// Whether all referenced Services and their slices were listed at least once.
    fn has_synced(&self) -> bool {
        self.services.covers_all(&self.referenced) && self.slices.covers_all(&self.referenced)
    }

    /// Whether this Service is listed, or no longer waited for.
    pub(super) fn is_settled(&self, name: &str) -> bool {
        self.given_up || (self.services.covers_one(name) && self.slices.covers_one(name))
    }

    /// The resource that could never be listed for this Service, and the error.
    pub(super) fn service_list_error(&self, name: &str) -> Option<(&'static str, &str)> {
        let services = self.services.list_error().filter(|_| !self.services.covers_one(name));
        let slices = self.slices.list_error().filter(|_| !self.slices.covers_one(name));
        services.map(|why| ("services", why)).or(slices.map(|why| ("endpointslices", why)))
    }

    /// The resource that cannot be listed, and the error, if a Service needs it. The flag: the wait for it was given up.
    pub(super) fn list_error(&self) -> Option<((&'static str, &str), bool)> {
        self.referenced.iter().find_map(|name| Some((self.service_list_error(name)?, self.given_up)))
    }

    /// Records a failed list. A `refused` list is not waited for. True if anything changed.
    pub(super) fn record_failure(&mut self, part: NamespacedResource, why: &str, refused: bool) -> bool {
        let changed = match part {
            NamespacedResource::Services => self.services.record_failure(&self.referenced, why),
            NamespacedResource::EndpointSlices => self.slices.record_failure(&self.referenced, why),
        };
        changed | self.give_up(refused)
    }

    /// Records that the lists of the API server `source` are late; `give_up` ends the wait. True if anything changed.
    pub(super) fn record_timeout(&mut self, source: &str, give_up: bool) -> bool {
        let why = format!("the {source} has not listed them yet");
        // An earlier error is the better explanation.
        let silent = self.list_error().is_none();
        let named = &self.referenced;
        let changed = silent && (self.services.record_failure(named, &why) | self.slices.record_failure(named, &why));
        changed | self.give_up(give_up)
    }

    fn give_up(&mut self, now: bool) -> bool {
        let changed = now && !self.given_up && !self.has_synced();
        self.given_up |= changed;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn referencing_api() -> NamespaceStore {
        let mut one = NamespaceStore::default();
        assert_eq!(
            one.set_referenced(BTreeSet::from(["api".to_owned()])),
            [NamespacedResource::Services, NamespacedResource::EndpointSlices]
        );
        one
    }

    fn apply_list(one: &mut NamespaceStore, part: NamespacedResource) {
        one.begin_list(part);
        one.finish_list(part);
    }

    #[test]
    fn namespace_list_error_of_one_resource_kept_when_other_is_listed() {
        let mut one = referencing_api();
        assert!(
            one.record_failure(NamespacedResource::EndpointSlices, "403", true)
                && one.is_settled("api")
                && !one.has_synced()
        );
        assert!(!one.record_failure(NamespacedResource::EndpointSlices, "403", true), "the same again");
        apply_list(&mut one, NamespacedResource::Services);
        assert_eq!(one.list_error(), Some((("endpointslices", "403"), true)));
        apply_list(&mut one, NamespacedResource::EndpointSlices);
        assert!(one.has_synced() && one.list_error().is_none() && !one.given_up);
        assert!(!one.record_failure(NamespacedResource::Services, "500", false), "the last list stays in use");
        assert!(!one.record_timeout("kube-apiserver", true));
    }

    #[test]
    fn namespace_waits_after_failure_and_counts_timeout_as_failure() {
        let mut one = referencing_api();
        assert!(one.record_failure(NamespacedResource::Services, "500", false) && !one.is_settled("api"));
        assert!(!one.record_timeout("kube-apiserver", false), "an earlier error is kept");
        assert_eq!(one.list_error(), Some((("services", "500"), false)));
        assert!(one.record_timeout("kube-apiserver", true) && one.is_settled("api"));
        assert_eq!(one.list_error(), Some((("services", "500"), true)));

        let mut silent = referencing_api();
        assert!(silent.record_timeout("kube-apiserver", false) && !silent.is_settled("api"));
        assert_eq!(silent.service_list_error("api").unwrap().0, "services");
    }

    #[test]
    fn namespace_added_reference_waits_without_blocking_others() {
        let mut one = referencing_api();
        apply_list(&mut one, NamespacedResource::Services);
        apply_list(&mut one, NamespacedResource::EndpointSlices);
        assert_eq!(
            one.set_referenced(BTreeSet::from(["api".to_owned(), "more".to_owned()])),
            [NamespacedResource::Services, NamespacedResource::EndpointSlices]
        );
        assert!(one.record_failure(NamespacedResource::Services, "500", false));
        assert!(one.is_settled("api") && !one.is_settled("more"));
        assert!(one.service_list_error("api").is_none() && one.service_list_error("more").is_some());
    }
}
