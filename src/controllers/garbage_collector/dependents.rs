//! What becomes of the dependents of an object that is deleted, or was.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use kubeapi::Status;
use kubeapi::object_meta::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use store::Key;
use store::watch_cache::Stored;

use super::collection_feeds::CollectionFeed;
use super::owners::is_deleted_with;
use super::ownership_graph::Edge;
use super::{CollectorKey, GarbageCollector};

/// Edges of an owner that are taken from the graph at a time.
const EDGES_AT_ONCE: usize = 128;

/// Dependents of one owner that are changed in the store at a time; it writes what waits in one transaction.
const CONCURRENT_CHANGES: usize = 32;

/// Objects of a cycle of owners that are looked at.
const MAX_CYCLE: usize = 1_000;

/// Passes over the dependents of an object that is deleted and orphans them, while they come to be.
const ORPHANING_PASSES: usize = 3;

impl GarbageCollector {
    /// Deletes the dependents of an object that is gone. Those that fail are queued by themselves.
    pub(super) async fn collect_dependents(&self, uid: &str) {
        let collect = async |feed: &CollectionFeed, dependent: Arc<Stored>| {
            let key = CollectorKey::of(&dependent);
            if self.collect(feed, dependent).await.is_err() {
                self.queue.add(key);
            }
            Ok(())
        };
        // It has no errors.
        let _ = self.for_each_dependent(uid, collect).await;
    }

    /// Calls `visit` for the dependents of an owner, several at a time.
    ///
    /// # Errors
    /// The first of `visit`, after all were called.
    async fn for_each_dependent(
        &self,
        uid: &str,
        visit: impl AsyncFn(&CollectionFeed, Arc<Stored>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let mut position: Option<Edge> = None;
        let mut result = Ok(());
        loop {
            let edges = self.graph.borrow().dependents(uid, position.as_ref(), EDGES_AT_ONCE);
            let Some(last) = edges.last() else { return result };
            position = Some(last.clone());
            let visits = edges.iter().map(|edge| async {
                tokio::task::yield_now().await;
                match edge.dependent().and_then(|key| self.find_dependent(key, uid)) {
                    Some((feed, dependent)) => visit(&feed, dependent).await,
                    None => Ok(()),
                }
            });
            let mut visits = stream::iter(visits).buffer_unordered(CONCURRENT_CHANGES);
            while let Some(visited) = visits.next().await {
                result = result.and(visited);
            }
        }
    }

    /// The object of a key, if it has an owner with this uid.
    fn find_dependent(&self, key: &Key, uid: &str) -> Option<(Rc<CollectionFeed>, Arc<Stored>)> {
        let feed = self.feeds.of_key(key)?;
        let dependent = feed.collection().get(key)?;
        dependent.metadata().owner_references.iter().any(|owner| *owner.uid == *uid).then_some((feed, dependent))
    }

    /// Goes on with the deletion of an object that waits for its dependents.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn finish_deletion(&self, feed: &CollectionFeed, object: &Arc<Stored>) -> Result<(), Status> {
        match () {
            () if is_deleted_with(object, ORPHAN_FINALIZER) => self.orphan_dependents(feed, object).await,
            () if is_deleted_with(object, FOREGROUND_FINALIZER) => self.delete_dependents(feed, object).await,
            () => Ok(()),
        }
    }

    /// Removes an object from the owners of its dependents, then the finalizer `orphan` (`attemptToOrphanWorker`).
    async fn orphan_dependents(&self, feed: &CollectionFeed, owner: &Arc<Stored>) -> Result<(), Status> {
        let uid = &*owner.metadata().uid;
        for _ in 0..ORPHANING_PASSES {
            self.feeds.catch_up().await?;
            if !self.graph.borrow().has_dependents(uid) {
                break;
            }
            self.for_each_dependent(uid, async |feed, dependent| self.orphan(feed, dependent, uid).await).await?;
        }
        self.remove_finalizer(feed, owner, ORPHAN_FINALIZER).await
    }

    async fn orphan(&self, feed: &CollectionFeed, dependent: Arc<Stored>, uid: &str) -> Result<(), Status> {
        let mut latest = Some(dependent);
        while let Some(dependent) = latest {
            if self.remove_owners(feed, &dependent, HashSet::from([uid.to_owned()])).await? {
                return Ok(());
            }
            latest = self.latest(feed, &dependent).await?;
        }
        Ok(())
    }

    /// Deletes the dependents of an object, then removes the finalizer `foregroundDeletion`
    /// (`processDeletingDependentsItem`).
    async fn delete_dependents(&self, feed: &CollectionFeed, owner: &Arc<Stored>) -> Result<(), Status> {
        let uid = &*owner.metadata().uid;
        self.feeds.catch_up().await?;
        if self.graph.borrow().has_blocking_dependents(uid) {
            self.collect_dependents(uid).await;
            self.feeds.catch_up().await?;
        }
        if self.has_unblocked(owner) {
            return self.remove_finalizer(feed, owner, FOREGROUND_FINALIZER).await;
        }
        // Upstream leaves a cycle whose objects were all deleted by clients.
        if self.blocks_an_owner(owner) && self.is_in_waiting_cycle(owner).await {
            tracing::info!(key = %owner.key(), "cycle of owners that wait for each other is broken");
            self.unblock_owners(feed, owner).await?;
        }
        Ok(())
    }

    /// Whether no dependent blocks an object. One that is blocked is queued when that ends.
    fn has_unblocked(&self, owner: &Stored) -> bool {
        let uid = &*owner.metadata().uid;
        let is_unblocked = !self.graph.borrow().has_blocking_dependents(uid);
        match is_unblocked {
            true => drop(self.blocked.borrow_mut().remove(uid)),
            false => drop(self.blocked.borrow_mut().insert(uid.into(), owner.key().clone())),
        }
        is_unblocked
    }

    /// Queues an owner that waited for dependents that block it: there are none any more.
    pub(super) fn queue_unblocked_owner(&self, uid: &str) {
        if let Some(key) = self.blocked.borrow_mut().remove(uid) {
            self.queue.add(CollectorKey::Object { key, uid: uid.into() });
        }
    }

    /// Whether a dependent of an object waits for dependents of its own.
    pub(super) async fn has_waiting_dependent(&self, uid: &str) -> bool {
        let mut position: Option<Edge> = None;
        loop {
            let edges = self.graph.borrow().dependents(uid, position.as_ref(), EDGES_AT_ONCE);
            let Some(last) = edges.last() else { return false };
            position = Some(last.clone());
            let mut dependents = edges.iter().filter_map(|edge| self.find_dependent(edge.dependent()?, uid));
            if dependents.any(|(_, dependent)| is_deleted_with(&dependent, FOREGROUND_FINALIZER)) {
                return true;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Whether an object waits for itself: over dependents that block their owner, and wait.
    async fn is_in_waiting_cycle(&self, object: &Stored) -> bool {
        let own_uid = &object.metadata().uid;
        let mut found: HashSet<Box<str>> = HashSet::new();
        let mut next = vec![own_uid.clone()];
        while let Some(uid) = next.pop() {
            let edges = self.graph.borrow().dependents(&uid, None, MAX_CYCLE);
            for edge in edges.iter().filter(|edge| edge.is_blocking()) {
                let Some((_, dependent)) = edge.dependent().and_then(|key| self.find_dependent(key, &uid)) else {
                    continue;
                };
                if !is_deleted_with(&dependent, FOREGROUND_FINALIZER) {
                    continue;
                }
                let uid = &dependent.metadata().uid;
                if uid == own_uid {
                    return true;
                }
                if found.len() < MAX_CYCLE && found.insert(uid.clone()) {
                    next.push(uid.clone());
                }
            }
            tokio::task::yield_now().await;
        }
        false
    }
}
