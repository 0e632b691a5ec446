//! A collection filtered to the objects of referenced Services.

use std::collections::BTreeSet;

use super::collection::Collection;

/// The objects of one kind in a namespace that belong to referenced Services.
pub(super) struct FilteredCollection<T> {
    pub(super) objects: Collection<T>,
    /// Whether a list is running or about to start.
    listing: bool,
    /// The Services that were referenced when the list began.
    listing_for: BTreeSet<String>,
    /// The Services that a complete list covered.
    covered: BTreeSet<String>,
    /// Error of the list, if a Service waits for one.
    list_error: Option<String>,
}

impl<T> Default for FilteredCollection<T> {
    fn default() -> FilteredCollection<T> {
        FilteredCollection {
            objects: Collection::default(),
            listing: false,
            listing_for: BTreeSet::new(),
            covered: BTreeSet::new(),
            list_error: None,
        }
    }
}

impl<T> FilteredCollection<T> {
    /// Sets the referenced Services. True if the caller must start a list, which counts as running from now on. A
    /// running list is not restarted: with many new APIServices it would never end.
    pub(super) fn set_referenced(&mut self, named: &BTreeSet<String>) -> bool {
        self.covered.retain(|name| named.contains(name));
        if self.covers_all(named) {
            self.list_error = None;
        }
        !self.covers_all(named) && !std::mem::replace(&mut self.listing, true)
    }

    /// A list begins.
    pub(super) fn begin_list(&mut self, named: &BTreeSet<String>) {
        self.listing = true;
        self.listing_for.clone_from(named);
        self.objects.begin_list();
    }

    /// Completes the list. Returns the removed objects.
    pub(super) fn finish_list(&mut self, named: &BTreeSet<String>) -> Vec<T> {
        self.listing = false;
        self.list_error = None;
        self.covered = std::mem::take(&mut self.listing_for);
        self.covered.retain(|name| named.contains(name));
        self.objects.finish_list().into_iter().map(|(_, one)| one).collect()
    }

    /// Records that the list failed. True if that is new and a Service waits for it; else the last list stays in use.
    pub(super) fn record_failure(&mut self, named: &BTreeSet<String>, why: &str) -> bool {
        let changed = !self.covers_all(named) && self.list_error.as_deref() != Some(why);
        if changed {
            self.list_error = Some(why.to_owned());
        }
        changed
    }

    /// Whether a complete list covered all these Services.
    pub(super) fn covers_all(&self, named: &BTreeSet<String>) -> bool {
        named.is_subset(&self.covered)
    }

    /// Whether a complete list covered this Service.
    pub(super) fn covers_one(&self, name: &str) -> bool {
        self.covered.contains(name)
    }

    /// Error of the list, if a referenced Service is not covered.
    pub(super) fn list_error(&self) -> Option<&str> {
        self.list_error.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn filtered_collection_lists_new_reference_after_current_list() {
        let mut all = FilteredCollection::<u32>::default();
        let (a, ab) = (names(&["a"]), names(&["a", "b"]));
        assert!(all.set_referenced(&a) && !all.set_referenced(&a), "one list");
        all.begin_list(&a);
        assert!(!all.set_referenced(&ab), "it is under way");
        all.finish_list(&ab);
        assert!(all.covers_one("a") && !all.covers_one("b"));
        assert!(all.set_referenced(&ab), "the next");
        assert!(all.record_failure(&ab, "500") && !all.record_failure(&ab, "500"));
        assert_eq!(all.list_error(), Some("500"));
        assert!(!all.set_referenced(&a), "no Service waits");
        assert_eq!(all.list_error(), None);
        // The running list continues.
        all.begin_list(&a);
        all.finish_list(&a);
        assert!(!all.record_failure(&a, "500"), "the last list stays in use");
        assert!(all.set_referenced(&ab), "a dropped Service must be listed again");
    }
}
