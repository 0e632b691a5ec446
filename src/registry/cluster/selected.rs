//! A collection filtered to the objects of referenced Services.

use std::collections::BTreeSet;

use super::collection::Collection;

/// The objects of one kind in a namespace that belong to referenced Services.
pub(super) struct Selected<T> {
    pub(super) objects: Collection<T>,
    /// Whether a list is running or about to start.
    listing: bool,
    /// The Services that were referenced when the list began.
    asked: BTreeSet<String>,
    /// The Services that a complete list covered.
    covers: BTreeSet<String>,
    /// Error of the list, if a Service waits for one.
    trouble: Option<String>,
}

impl<T> Default for Selected<T> {
    fn default() -> Selected<T> {
        Selected {
            objects: Collection::default(),
            listing: false,
            asked: BTreeSet::new(),
            covers: BTreeSet::new(),
            trouble: None,
        }
    }
}

impl<T> Selected<T> {
    /// Sets the referenced Services. True if the caller must start a list, which counts as running from now on. A
    /// running list is not restarted: with many new APIServices it would never end.
    pub(super) fn select(&mut self, named: &BTreeSet<String>) -> bool {
        self.covers.retain(|name| named.contains(name));
        if self.covers(named) {
            self.trouble = None;
        }
        !self.covers(named) && !std::mem::replace(&mut self.listing, true)
    }

    /// A list begins.
    pub(super) fn begins(&mut self, named: &BTreeSet<String>) {
        self.listing = true;
        self.asked.clone_from(named);
        self.objects.begin();
    }

    /// Completes the list. Returns the removed objects.
    pub(super) fn ends(&mut self, named: &BTreeSet<String>) -> Vec<T> {
        self.listing = false;
        self.trouble = None;
        self.covers = std::mem::take(&mut self.asked);
        self.covers.retain(|name| named.contains(name));
        self.objects.end().into_iter().map(|(_, one)| one).collect()
    }

    /// Records that the list failed. True if that is new and a Service waits for it; else the last list stays in use.
    pub(super) fn fails(&mut self, named: &BTreeSet<String>, why: &str) -> bool {
        let changed = !self.covers(named) && self.trouble.as_deref() != Some(why);
        if changed {
            self.trouble = Some(why.to_owned());
        }
        changed
    }

    /// Whether a complete list covered all these Services.
    pub(super) fn covers(&self, named: &BTreeSet<String>) -> bool {
        named.is_subset(&self.covers)
    }

    /// Whether a complete list covered this Service.
    pub(super) fn covers_one(&self, name: &str) -> bool {
        self.covers.contains(name)
    }

    /// Error of the list, if a referenced Service is not covered.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_named_later_is_listed_after_the_list_that_is_under_way() {
        let mut all = Selected::<u32>::default();
        let (a, ab) = (names(&["a"]), names(&["a", "b"]));
        assert!(all.select(&a) && !all.select(&a), "one list");
        all.begins(&a);
        assert!(!all.select(&ab), "it is under way");
        all.ends(&ab);
        assert!(all.covers_one("a") && !all.covers_one("b"));
        assert!(all.select(&ab), "the next");
        assert!(all.fails(&ab, "500") && !all.fails(&ab, "500"));
        assert_eq!(all.trouble(), Some("500"));
        assert!(!all.select(&a), "no Service waits");
        assert_eq!(all.trouble(), None);
        // The running list continues.
        all.begins(&a);
        all.ends(&a);
        assert!(!all.fails(&a, "500"), "the last list stays in use");
        assert!(all.select(&ab), "a dropped Service must be listed again");
    }
}
