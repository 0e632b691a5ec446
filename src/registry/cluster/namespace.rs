//! Services and EndpointSlices of one namespace, and whether they are complete enough to resolve an APIService.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::selected::Selected;
use crate::registry::endpoints::EndpointSlice;
use crate::registry::service::Service;

/// The Services of one namespace that APIServices reference, and their EndpointSlices.
#[derive(Default)]
pub(super) struct Namespace {
    /// Names of the referenced Services.
    pub(super) named: BTreeSet<String>,
    pub(super) services: Selected<Arc<Service>>,
    slices: Selected<Arc<EndpointSlice>>,
    /// The names of the slices by their Service.
    slices_of: BTreeMap<String, BTreeSet<String>>,
    /// Whether the wait for its lists has timed out, or one was refused.
    given_up: bool,
}

/// A collection of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Services,
    Slices,
}

impl Namespace {
    /// Sets the referenced Services. Drops the objects of others. Returns the collections to list again.
    pub(super) fn select(&mut self, named: BTreeSet<String>) -> Vec<Part> {
        if named != self.named {
            self.named = named;
            let named = &self.named;
            self.services.objects.retain(|one| named.contains(&one.name));
            self.slices.objects.retain(|one| named.contains(&one.service));
            self.slices_of.retain(|service, _| named.contains(service));
        }
        let services = self.services.select(&self.named).then_some(Part::Services);
        let slices = self.slices.select(&self.named).then_some(Part::Slices);
        services.into_iter().chain(slices).collect()
    }

    pub(super) fn begins(&mut self, part: Part) {
        match part {
            Part::Services => self.services.begins(&self.named),
            Part::Slices => self.slices.begins(&self.named),
        }
    }

    /// Completes a list of one collection.
    pub(super) fn ends(&mut self, part: Part) {
        match part {
            Part::Services => drop(self.services.ends(&self.named)),
            Part::Slices => {
                for gone in self.slices.ends(&self.named) {
                    self.leaves(&gone.service, &gone.name);
                }
            }
        }
        // References added later are waited for again.
        self.given_up &= !self.is_known();
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
            self.leaves(before, name);
        }
        if let Some(now) = &now {
            self.slices_of.entry(now.clone()).or_default().insert(name.to_owned());
        }
        before.into_iter().chain(now).collect()
    }

    /// Removes a slice. Returns the Service that it belonged to, if it existed.
    pub(super) fn remove_slice(&mut self, name: &str) -> Option<String> {
        let gone = self.slices.objects.remove(name)?;
        self.leaves(&gone.service, name);
        Some(gone.service.clone())
    }

    fn leaves(&mut self, service: &str, slice: &str) {
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
    pub(super) fn listed(&mut self, part: Part) -> BTreeSet<String> {
        match part {
            Part::Services => self.services.objects.listed(),
            Part::Slices => self.slices.objects.listed(),
        }
    }

    /// Whether all referenced Services are listed, or no longer waited for.
    pub(super) fn settled(&self) -> bool {
        self.named.iter().all(|service| self.is_settled(service))
    }

    /// Whether all referenced Services and their slices were listed at least once.
    fn is_known(&self) -> bool {
        self.services.covers(&self.named) && self.slices.covers(&self.named)
    }

    /// Whether this Service is listed, or no longer waited for.
    pub(super) fn is_settled(&self, name: &str) -> bool {
        self.given_up || (self.services.covers_one(name) && self.slices.covers_one(name))
    }

    /// The resource that could never be listed for this Service, and the error.
    pub(super) fn trouble_of(&self, name: &str) -> Option<(&'static str, &str)> {
        let services = self.services.trouble().filter(|_| !self.services.covers_one(name));
        let slices = self.slices.trouble().filter(|_| !self.slices.covers_one(name));
        services.map(|why| ("services", why)).or(slices.map(|why| ("endpointslices", why)))
    }

    /// The resource that cannot be listed, and the error, if a Service needs it. The flag is true after the wait.
    pub(super) fn trouble(&self) -> Option<((&'static str, &str), bool)> {
        self.named.iter().find_map(|name| Some((self.trouble_of(name)?, self.given_up)))
    }

    /// Records a failed list. A `refused` list is not waited for. True if anything changed.
    pub(super) fn fails(&mut self, part: Part, why: &str, refused: bool) -> bool {
        let changed = match part {
            Part::Services => self.services.fails(&self.named, why),
            Part::Slices => self.slices.fails(&self.named, why),
        };
        changed | self.give_up(refused)
    }

    /// Records that the lists are late; `give_up` ends the wait. True if anything changed.
    pub(super) fn is_late(&mut self, give_up: bool) -> bool {
        const SILENT: &str = "the kube-apiserver has not listed them yet";
        // An earlier error is the better explanation.
        let silent = self.trouble().is_none();
        let named = &self.named;
        let changed = silent && (self.services.fails(named, SILENT) | self.slices.fails(named, SILENT));
        changed | self.give_up(give_up)
    }

    fn give_up(&mut self, now: bool) -> bool {
        let changed = now && !self.given_up && !self.is_known();
        self.given_up |= changed;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> Namespace {
        let mut one = Namespace::default();
        assert_eq!(one.select(BTreeSet::from(["api".to_owned()])), [Part::Services, Part::Slices]);
        one
    }

    fn list(one: &mut Namespace, part: Part) {
        one.begins(part);
        one.ends(part);
    }

    #[test]
    fn a_refusal_of_one_part_outlasts_a_list_of_the_other() {
        let mut one = named();
        assert!(one.fails(Part::Slices, "403", true) && one.is_settled("api") && !one.is_known());
        assert!(!one.fails(Part::Slices, "403", true), "the same again");
        list(&mut one, Part::Services);
        assert_eq!(one.trouble(), Some((("endpointslices", "403"), true)));
        list(&mut one, Part::Slices);
        assert!(one.is_known() && one.trouble().is_none() && !one.given_up);
        assert!(!one.fails(Part::Services, "500", false), "the last list stays in use");
        assert!(!one.is_late(true));
    }

    #[test]
    fn a_failure_is_waited_for_and_silence_is_a_failure() {
        let mut one = named();
        assert!(one.fails(Part::Services, "500", false) && !one.is_settled("api"));
        assert!(!one.is_late(false), "an earlier error is kept");
        assert_eq!(one.trouble(), Some((("services", "500"), false)));
        assert!(one.is_late(true) && one.is_settled("api"));
        assert_eq!(one.trouble(), Some((("services", "500"), true)));

        let mut silent = named();
        assert!(silent.is_late(false) && !silent.is_settled("api"));
        assert_eq!(silent.trouble_of("api").unwrap().0, "services");
    }

    #[test]
    fn one_more_waits_alone() {
        let mut one = named();
        list(&mut one, Part::Services);
        list(&mut one, Part::Slices);
        assert_eq!(one.select(BTreeSet::from(["api".to_owned(), "more".to_owned()])), [Part::Services, Part::Slices]);
        assert!(one.fails(Part::Services, "500", false));
        assert!(one.is_settled("api") && !one.is_settled("more"));
        assert!(one.trouble_of("api").is_none() && one.trouble_of("more").is_some());
    }
}
