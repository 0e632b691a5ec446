//! The objects of a resource at one revision, as a persistent map.

use std::ops::Bound;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

use super::change_log::StoredChange;
use super::stored::Stored;
use crate::{Key, Prefix, Revision};

/// The objects of a resource at one revision. A clone shares them.
#[derive(Clone)]
pub struct Snapshot {
    revision: Revision,
    objects: RedBlackTreeMapSync<Key, Arc<Stored>>,
    bytes: usize,
}

impl Snapshot {
    /// A snapshot without objects.
    pub(super) fn empty(revision: Revision) -> Snapshot {
        Snapshot { revision, objects: RedBlackTreeMapSync::new_sync(), bytes: 0 }
    }

    /// Revision of the last change in the snapshot, or of the load.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.size()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Sum of the values in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The object of a key.
    pub fn get(&self, key: &str) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    /// The objects below a prefix from the key `from` on, by key.
    pub fn range<'s>(&'s self, prefix: &'s Prefix, from: Option<&'s str>) -> impl Iterator<Item = &'s Arc<Stored>> {
        let start = from.map_or(prefix.as_str(), |from| from.max(prefix.as_str()));
        let range = (Bound::Included(start), Bound::Unbounded);
        self.objects.range::<str, _>(range).take_while(|(key, _)| prefix.contains(key)).map(|(_, object)| object)
    }

    /// Adds an object of a load, without a change of revision.
    pub(super) fn insert(&mut self, object: Arc<Stored>) {
        self.bytes += object.bytes().len();
        if let Some(old) = self.objects.get(object.key()) {
            self.bytes -= old.bytes().len();
        }
        self.objects.insert_mut(object.key().clone(), object);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(old) = self.objects.get(key) {
            self.bytes -= old.bytes().len();
            self.objects.remove_mut(key);
        }
    }

    /// Applies a change that follows the snapshot.
    pub(super) fn apply(&mut self, change: &StoredChange) {
        match change.new_object() {
            Some(new) => self.insert(new.clone()),
            None => self.remove(change.key()),
        }
        self.revision = change.revision();
    }

    /// Undoes the last change of the snapshot.
    pub(super) fn undo(&mut self, change: &StoredChange) {
        match change.old() {
            Some(old) => self.insert(old.clone()),
            None => self.remove(change.key()),
        }
        self.revision = change.revision() - 1;
    }
}
