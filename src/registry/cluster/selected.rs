//! A collection of which only some matter: what the others are is neither kept nor news.

use std::collections::BTreeSet;

use super::collection::Collection;

/// The objects of one kind in a namespace that belong to Services which APIServices name.
pub(super) struct Selected<T> {
    pub(super) objects: Collection<T>,
    /// Whether a list is under way, or is about to be.
    listing: bool,
    /// The Services that were named when it began.
    asked: BTreeSet<String>,
    /// Those of which a whole list said what there is.
    covers: BTreeSet<String>,
    /// Why there is no list, if any Service waits for one.
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
    /// These Services are named now. True if a list is to begin, which it is taken to have done then; one that is under
    /// way is waited for, as otherwise a flood of new APIServices would never let it end.
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

    /// The list is whole. Gives what is gone.
    pub(super) fn ends(&mut self, named: &BTreeSet<String>) -> Vec<T> {
        self.listing = false;
        self.trouble = None;
        self.covers = std::mem::take(&mut self.asked);
        self.covers.retain(|name| named.contains(name));
        self.objects.end().into_iter().map(|(_, one)| one).collect()
    }

    /// There is no list. True if that is new, and matters: what an earlier one said is used.
    pub(super) fn fails(&mut self, named: &BTreeSet<String>, why: &str) -> bool {
        let changed = !self.covers(named) && self.trouble.as_deref() != Some(why);
        if changed {
            self.trouble = Some(why.to_owned());
        }
        changed
    }

    /// Whether it is known what there is of all these.
    pub(super) fn covers(&self, named: &BTreeSet<String>) -> bool {
        named.is_subset(&self.covers)
    }

    /// Whether it is known what there is of this one.
    pub(super) fn covers_one(&self, name: &str) -> bool {
        self.covers.contains(name)
    }

    /// Why it is not known of all that are named.
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
        assert!(!all.select(&a), "nobody waits any more");
        assert_eq!(all.trouble(), None);
        // It was begun, and goes on.
        all.begins(&a);
        all.ends(&a);
        assert!(!all.fails(&a, "500"), "what was said last is used");
        assert!(all.select(&ab), "what was forgotten has to be listed anew");
    }
}
