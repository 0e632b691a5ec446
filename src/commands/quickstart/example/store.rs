//! The object store: objects, revisions, and a bounded history of changes, like etcd for a kube-apiserver.
//!
//! Synchronous; one lock, never held across an await.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::object;

/// Key of an object: plural, namespace (empty for cluster-scoped objects), name.
pub(super) type ObjectKey = (&'static str, String, String);

/// All objects of the example API.
pub(super) struct ObjectStore {
    state: Mutex<StoreState>,
    latest: watch::Sender<u64>,
    history: usize,
}

struct StoreState {
    revision: u64,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    /// Oldest first; contains every change after `forgotten`.
    changes: VecDeque<ObjectChange>,
    compacted: u64,
}

/// A change of an object.
#[derive(Clone)]
pub(super) struct ObjectChange {
    pub(super) revision: u64,
    pub(super) key: ObjectKey,
    /// The previous object, if there was one.
    pub(super) before: Option<Arc<Value>>,
    /// The new object; for a deletion its last state with the deletion's revision.
    pub(super) object: Arc<Value>,
    pub(super) deleted: bool,
}

/// What to do with an object.
pub(super) enum StoreAction {
    /// No change: no new revision, no event.
    Keep(Arc<Value>),
    Put(Value),
    Remove(Value),
}

/// The result of a list.
pub(super) struct ListSnapshot {
    pub(super) revision: u64,
    pub(super) objects: Vec<Arc<Value>>,
}

/// A revision outside the history.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RevisionError {
    /// Older than the oldest revision in the history.
    TooOld { oldest: u64 },
    /// Higher than the current revision.
    Future { current: u64 },
}

impl ObjectStore {
    /// Creates an empty store at `revision` that keeps the last `history` changes.
    pub(super) fn new(revision: u64, history: usize) -> ObjectStore {
        let state = StoreState { revision, objects: BTreeMap::new(), changes: VecDeque::new(), compacted: revision };
        ObjectStore { state: Mutex::new(state), latest: watch::Sender::new(revision), history }
    }

    /// The object at `key`.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<Value>> {
        self.state.lock().objects.get(key).cloned()
    }

    /// Lists the objects of one kind, in one or all namespaces, ordered by namespace and name, now or at revision `at`.
    pub(super) fn list(
        &self,
        plural: &'static str,
        namespace: Option<&str>,
        at: Option<u64>,
    ) -> Result<ListSnapshot, RevisionError> {
        let state = self.state.lock();
        let revision = at.unwrap_or(state.revision);
        let wanted = |key: &ObjectKey| key.0 == plural && namespace.is_none_or(|namespace| key.1 == namespace);
        let mut found: BTreeMap<&ObjectKey, Arc<Value>> = state
            .objects
            .range((plural, String::new(), String::new())..)
            .take_while(|(key, _)| key.0 == plural)
            .filter(|(key, _)| wanted(key))
            .map(|(key, object)| (key, Arc::clone(object)))
            .collect();
        for change in state.since(revision)?.rev().filter(|change| wanted(&change.key)) {
            match &change.before {
                Some(before) => found.insert(&change.key, Arc::clone(before)),
                None => found.remove(&change.key),
            };
        }
        Ok(ListSnapshot { revision, objects: found.into_values().collect() })
    }

    /// Applies the action that `decide` returns for the object at `key`, atomically. With `dry_run` the result is only
    /// returned.
    pub(super) fn change<E>(
        &self,
        key: &ObjectKey,
        dry_run: bool,
        decide: impl FnOnce(Option<&Arc<Value>>) -> Result<StoreAction, E>,
    ) -> Result<Arc<Value>, E> {
        let mut state = self.state.lock();
        let before = state.objects.get(key).cloned();
        let (mut value, deleted) = match decide(before.as_ref())? {
            StoreAction::Keep(object) => return Ok(object),
            StoreAction::Put(value) => (value, false),
            StoreAction::Remove(value) => (value, true),
        };
        if dry_run {
            return Ok(Arc::new(value));
        }
        let revision = state.revision + 1;
        object::set_metadata(&mut value, "resourceVersion", Some(json!(revision.to_string())));
        let object = Arc::new(value);
        state.revision = revision;
        match deleted {
            true => state.objects.remove(key),
            false => state.objects.insert(key.clone(), Arc::clone(&object)),
        };
        state.changes.push_back(ObjectChange {
            revision,
            key: key.clone(),
            before,
            object: Arc::clone(&object),
            deleted,
        });
        if state.changes.len() > self.history
            && let Some(oldest) = state.changes.pop_front()
        {
            state.compacted = oldest.revision;
        }
        // Sent under the lock, so that receivers never see the revision decrease.
        self.latest.send_replace(revision);
        Ok(object)
    }

    /// The changes after `revision`, and the revision up to which they are complete.
    pub(super) fn changes_since(&self, revision: u64) -> Result<(Vec<ObjectChange>, u64), RevisionError> {
        let state = self.state.lock();
        Ok((state.since(revision)?.cloned().collect(), state.revision))
    }

    /// A receiver of the latest revision.
    pub(super) fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }
}

impl StoreState {
    fn since(&self, revision: u64) -> Result<impl DoubleEndedIterator<Item = &ObjectChange>, RevisionError> {
        if revision < self.compacted {
            return Err(RevisionError::TooOld { oldest: self.compacted });
        }
        if revision > self.revision {
            return Err(RevisionError::Future { current: self.revision });
        }
        let start = self.changes.partition_point(|change| change.revision <= revision);
        Ok(self.changes.range(start..))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("greetings", "default".into(), name.into())
    }

    fn put(store: &ObjectStore, name: &str, message: &str) {
        let value = json!({"metadata": {"name": name}, "spec": {"message": message}});
        store.change::<Infallible>(&key(name), false, |_| Ok(StoreAction::Put(value))).unwrap();
    }

    fn remove(store: &ObjectStore, name: &str) {
        store
            .change::<Infallible>(&key(name), false, |before| Ok(StoreAction::Remove(Value::clone(before.unwrap()))))
            .unwrap();
    }

    fn names(store: &ObjectStore, at: Option<u64>) -> Vec<String> {
        let snapshot = store.list("greetings", None, at).unwrap();
        let tell =
            |object: &Arc<Value>| format!("{}={}", object::name(object), object["spec"]["message"].as_str().unwrap());
        snapshot.objects.iter().map(tell).collect()
    }

    #[test]
    fn store_lists_past_revisions_within_history() {
        let store = ObjectStore::new(10, 4);
        put(&store, "b", "1");
        put(&store, "a", "1");
        put(&store, "b", "2");
        remove(&store, "a");
        assert_eq!(names(&store, None), ["b=2"]);
        assert_eq!(names(&store, Some(13)), ["a=1", "b=2"]);
        assert_eq!(names(&store, Some(12)), ["a=1", "b=1"]);
        assert_eq!(names(&store, Some(11)), ["b=1"]);
        assert!(names(&store, Some(10)).is_empty());
        put(&store, "c", "1");
        assert_eq!(store.list("greetings", None, Some(10)).err(), Some(RevisionError::TooOld { oldest: 11 }));
        assert_eq!(store.list("greetings", None, Some(16)).err(), Some(RevisionError::Future { current: 15 }));
    }

    #[test]
    fn store_changes_since_in_order_and_once() {
        let store = ObjectStore::new(0, 100);
        put(&store, "a", "1");
        put(&store, "a", "2");
        remove(&store, "a");
        let (changes, latest) = store.changes_since(1).unwrap();
        let told: Vec<_> = changes
            .iter()
            .map(|change| (change.revision, change.deleted, object::metadata_text(&change.object, "resourceVersion")))
            .collect();
        assert_eq!((told, latest), (vec![(2, false, "2"), (3, true, "3")], 3));
        assert!(store.changes_since(3).unwrap().0.is_empty());
        assert_eq!(*store.latest().borrow(), 3);
    }

    #[test]
    fn store_dry_run_and_keep_write_nothing() {
        let store = ObjectStore::new(0, 100);
        put(&store, "a", "1");
        let dry = store.change::<Infallible>(&key("b"), true, |_| Ok(StoreAction::Put(json!({})))).unwrap();
        assert_eq!(*dry, json!({}));
        store.change::<Infallible>(&key("a"), false, |before| Ok(StoreAction::Keep(before.unwrap().clone()))).unwrap();
        assert_eq!(names(&store, None), ["a=1"]);
        assert_eq!(store.changes_since(0).unwrap().1, 1);
    }
}
