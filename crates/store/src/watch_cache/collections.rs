//! All collections of the process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::change_log::HistoryLimits;
use super::collection::{CacheContext, CollectionSettings, ResourceCollection};
use super::notify::{Notifier, NotifierSet};
use crate::{Clock, CommitCondition, CommitOutcome, Expect, Loaded, Mutation, Prefix, Revision, Store};

/// The watch cache of the process. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Collections(Arc<CollectionsState>);

struct CollectionsState {
    context: CacheContext,
    collections: RwLock<HashMap<Prefix, ResourceCollection>>,
    next_id: AtomicU64,
}

impl Collections {
    /// A watch cache above a store; nothing is loaded.
    pub fn new(store: Arc<dyn Store>, limits: HistoryLimits, clock: Clock) -> Collections {
        let (notifiers, history_bytes) = (NotifierSet::default(), Arc::default());
        let context = CacheContext { store, notifiers, limits, history_bytes, clock };
        Collections(Arc::new(CollectionsState { context, collections: RwLock::default(), next_id: AtomicU64::new(1) }))
    }

    /// The collection of a resource. It is loaded by its first use, or by
    /// [`ensure_loaded`](ResourceCollection::ensure_loaded). Settings count when the collection is made.
    pub fn collection(&self, settings: &CollectionSettings) -> ResourceCollection {
        if let Some(collection) = self.get(&settings.prefix) {
            return collection;
        }
        let mut collections = self.0.collections.write();
        let make = || {
            let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
            ResourceCollection::new(id, settings.clone(), self.0.context.clone())
        };
        collections.entry(settings.prefix.clone()).or_insert_with(make).clone()
    }

    /// The collection of a prefix, if it has been made.
    pub fn get(&self, prefix: &Prefix) -> Option<ResourceCollection> {
        self.0.collections.read().get(prefix).cloned()
    }

    /// Removes the collection of a resource that exists no more. Watches that run keep it.
    pub fn remove(&self, prefix: &Prefix) {
        self.0.collections.write().remove(prefix);
    }

    /// All collections, for status and metrics.
    pub fn all(&self) -> Vec<ResourceCollection> {
        self.0.collections.read().values().cloned().collect()
    }

    /// The notifier of one worker thread. A task on that thread should [`run`](Notifier::run) it.
    pub fn notifier(&self) -> Notifier {
        self.0.context.notifiers.add()
    }

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.0.context.notifiers.cursors()
    }

    /// The store's revision, at least as new as every commit acknowledged before this call.
    ///
    /// # Errors
    /// The store cannot tell.
    pub async fn revision(&self) -> Result<Revision, crate::Error> {
        self.0.context.store.current().await
    }

    /// Reads what the store has below a prefix, of any resource.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load(&self, prefix: &Prefix) -> Result<Loaded, crate::Error> {
        self.0.context.store.load(prefix).await
    }

    /// Deletes what the store has below a prefix, of any resource, as long as `condition` is met. Returns how many objects
    /// were deleted.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub async fn delete_below(&self, prefix: &Prefix, condition: &CommitCondition) -> Result<usize, crate::Error> {
        let store = &self.0.context.store;
        let mut deleted = 0;
        for record in store.load(prefix).await?.records {
            let mut expected = Some(record.revision);
            while let Some(revision) = expected {
                let conditions = vec![condition.clone()];
                let expect = Expect::At(revision);
                match store.commit_if(&record.key, expect, Mutation::Delete, conditions).await? {
                    CommitOutcome::Committed(_) => {
                        deleted += 1;
                        expected = None;
                    }
                    CommitOutcome::Conflict(now) => expected = now.map(|now| now.revision),
                    CommitOutcome::ConditionFailed(_) => return Ok(deleted),
                }
            }
        }
        Ok(deleted)
    }

    /// Drops history that is too old; called every minute or so.
    pub fn trim(&self) {
        self.all().iter().for_each(ResourceCollection::trim);
    }
}
