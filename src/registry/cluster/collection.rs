//! Objects of one kind by name. A new list replaces the old one without a gap.

use std::collections::{BTreeMap, BTreeSet};

/// Objects by name.
pub(super) struct Collection<T> {
    objects: BTreeMap<String, T>,
    /// Names of the running list so far, or of the last complete list.
    listed: BTreeSet<String>,
    /// Whether a list was ever complete.
    pub(super) has_synced: bool,
}

impl<T> Default for Collection<T> {
    fn default() -> Collection<T> {
        Collection { objects: BTreeMap::new(), listed: BTreeSet::new(), has_synced: false }
    }
}

impl<T> Collection<T> {
    /// Begins a list. Known objects stay until it is complete.
    pub(super) fn begin_list(&mut self) {
        self.listed.clear();
    }

    /// Stores an object. `None`: it is invalid, and its last valid version stays. True if anything changed.
    pub(super) fn put(&mut self, name: &str, one: Option<T>, listed: bool, same: impl Fn(&T, &T) -> bool) -> bool {
        if listed {
            self.listed.insert(name.to_owned());
        }
        let Some(one) = one else { return false };
        match self.objects.get_mut(name) {
            Some(stored) if same(stored, &one) => false,
            Some(stored) => {
                *stored = one;
                true
            }
            None => {
                self.objects.insert(name.to_owned(), one);
                true
            }
        }
    }

    /// Completes the list. Removes and returns the objects that it did not contain.
    pub(super) fn finish_list(&mut self) -> Vec<(String, T)> {
        self.has_synced = true;
        let listed = &self.listed;
        self.objects.extract_if(.., |name, _| !listed.contains(name)).collect()
    }

    /// Takes the names of the list that ended last, including those of invalid objects.
    pub(super) fn take_listed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.listed)
    }

    /// Removes and returns an object.
    pub(super) fn remove(&mut self, name: &str) -> Option<T> {
        self.objects.remove(name)
    }

    /// Keeps only the objects for which `stays` is true.
    pub(super) fn retain(&mut self, stays: impl Fn(&T) -> bool) {
        self.objects.retain(|_, one| stays(one));
    }

    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.objects.get(name)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(collection: &mut Collection<u32>, name: &str, one: Option<u32>, listed: bool) -> bool {
        collection.put(name, one, listed, |a, b| a == b)
    }

    fn now(collection: &Collection<u32>) -> Vec<u32> {
        collection.values().copied().collect()
    }

    #[test]
    fn collection_keeps_objects_until_new_list_is_complete() {
        let mut all = Collection::default();
        all.begin_list();
        assert!(put(&mut all, "a", Some(1), true) && put(&mut all, "b", Some(2), true));
        assert!(!all.has_synced);
        assert!(all.finish_list().is_empty() && all.has_synced);
        all.begin_list();
        assert!(!put(&mut all, "a", Some(1), true), "the same is no change");
        assert_eq!(now(&all), [1, 2]);
        // The list broke off. The next one has other objects.
        all.begin_list();
        put(&mut all, "c", Some(3), true);
        assert_eq!(now(&all), [1, 2, 3]);
        assert_eq!(all.finish_list(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(now(&all), [3]);
        all.begin_list();
        put(&mut all, "c", Some(3), true);
        assert!(all.finish_list().is_empty());
    }

    #[test]
    fn collection_keeps_last_valid_object_until_deleted() {
        let mut all = Collection::default();
        put(&mut all, "a", Some(1), true);
        all.finish_list();
        assert!(!put(&mut all, "a", None, false));
        all.begin_list();
        put(&mut all, "a", None, true);
        all.finish_list();
        assert_eq!((now(&all), all.take_listed().len()), (vec![1], 1));
        assert!(all.remove("a").is_some() && all.remove("a").is_none());
    }
}
