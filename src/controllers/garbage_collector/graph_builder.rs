//! Keeps the ownership graph current, and queues what a change may have made collectable.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kubeapi::object_meta::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use store::watch_cache::{Error, Notifier, OwnerReference, Selection, Stored, WatchEvent, WatchQuery, WatchStart};
use tokio::task::{AbortHandle, JoinSet};

use super::collection_feeds::{CollectionFeed, FeedChanges};
use super::owners::{OwnerState, is_deleted_with};
use super::ownership_graph::{Owners, is_blocking};
use super::{CollectorKey, GarbageCollector};

/// Pause after a collection could not be followed.
const FEED_PAUSE: Duration = Duration::from_secs(1);

/// Steps of some hundred nanoseconds after which other tasks of the thread run.
const STEPS_AT_ONCE: usize = 256;

/// Edges that are examined at once.
const EDGES_AT_ONCE: usize = 4096;

/// Keys in the queue from which on a scan waits.
const MAX_SCANNED_KEYS: usize = 4096;

/// Interval of looks at objects whose owner is of an unknown kind.
const SCAN_INTERVAL: Duration = Duration::from_secs(300);

/// Pause between two scans, and while a scan waits.
const SCAN_PAUSE: Duration = Duration::from_millis(100);

/// Whether an object waits for its dependents: to be deleted, or to lose it as their owner.
fn waits_for_dependents(object: &Stored) -> bool {
    [FOREGROUND_FINALIZER, ORPHAN_FINALIZER].iter().any(|finalizer| is_deleted_with(object, finalizer))
}

/// The owner references of an object, if it exists.
fn references(object: Option<&Arc<Stored>>) -> &[OwnerReference] {
    object.map_or(&[], |object| &object.metadata().owner_references)
}

impl GarbageCollector {
    /// Follows the collections of the catalog. Does not end.
    pub(super) async fn follow_catalog(self: Rc<Self>, notifier: Notifier) {
        let (mut tasks, mut catalog) = (JoinSet::new(), self.api.catalog().clone());
        let mut running: Vec<(Rc<CollectionFeed>, AbortHandle)> = Vec::new();
        loop {
            match self.feeds.update(&self.api) {
                Ok(FeedChanges { added, removed }) => {
                    for (feed, task) in
                        running.extract_if(.., |(feed, _)| removed.iter().any(|one| Rc::ptr_eq(one, feed)))
                    {
                        // The last deletions of a resource that is gone.
                        self.feeds.wait_until_drained(&feed).await;
                        task.abort();
                        self.forget_collection(&feed).await;
                    }
                    for feed in added {
                        let (collector, notifier) = (self.clone(), notifier.clone());
                        let task = tasks.spawn_local({
                            let feed = feed.clone();
                            async move { collector.follow(&feed, &notifier).await }
                        });
                        running.push((feed, task));
                    }
                    // What an object of an unknown kind owns can be judged.
                    if self.has_deferred.take() {
                        self.request_scan();
                    }
                    self.feeds.note_progress();
                }
                Err(status) => {
                    tracing::warn!("resources cannot be followed, tried again in {FEED_PAUSE:?}: {}", status.message);
                    tokio::time::sleep(FEED_PAUSE).await;
                    continue;
                }
            }
            // Those that were aborted.
            while tasks.try_join_next().is_some() {}
            catalog.changed().await;
        }
    }

    /// Follows a collection. Does not end.
    async fn follow(&self, feed: &CollectionFeed, notifier: &Notifier) {
        loop {
            match self.follow_once(feed, notifier).await {
                Ok(()) | Err(Error::Expired { .. }) => {}
                Err(error) => {
                    let prefix = feed.collection().prefix().as_str();
                    tracing::warn!(prefix, "owners cannot be followed, tried again in {FEED_PAUSE:?}: {error}");
                    tokio::time::sleep(FEED_PAUSE).await;
                }
            }
            self.forget_collection(feed).await;
            // Deletions of owners may be among the changes that were missed.
            self.request_scan();
        }
    }

    /// Removes a collection from the graph.
    async fn forget_collection(&self, feed: &CollectionFeed) {
        feed.set_position(None);
        let mut position = None;
        loop {
            let last =
                self.graph.borrow_mut().remove_below(feed.collection().prefix(), position.as_ref(), EDGES_AT_ONCE);
            let Some(last) = last else { return };
            position = Some(last);
            tokio::task::yield_now().await;
        }
    }

    async fn follow_once(&self, feed: &CollectionFeed, notifier: &Notifier) -> Result<(), Error> {
        let collection = feed.collection();
        collection.ensure_loaded().await?;
        let snapshot = collection.snapshot();
        let query = WatchQuery {
            namespace: None,
            selection: Selection::default(),
            start: WatchStart::After(snapshot.revision()),
            sends_bookmarks: false,
            timeout: None,
        };
        let mut cursor = collection.watch(query, notifier).await?;
        for (number, object) in snapshot.range(collection.prefix(), None).enumerate() {
            self.replace_owners(None, Some(object)).await;
            if number % STEPS_AT_ONCE == STEPS_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
        }
        feed.set_position(Some(snapshot.revision()));
        if !snapshot.is_empty() {
            self.request_scan();
        }
        drop(snapshot);
        let mut steps = 0;
        loop {
            let at_hand = cursor.next_at_hand()?;
            let event = match at_hand {
                Some(event) => event,
                None => {
                    self.feeds.note_progress();
                    match cursor.next().await? {
                        Some(event) => event,
                        None => return Ok(()),
                    }
                }
            };
            self.apply(feed, &event).await;
            feed.set_position(Some(event.revision));
            steps += 1;
            if steps % (STEPS_AT_ONCE / 4) == 0 {
                self.feeds.note_progress();
                tokio::task::yield_now().await;
            }
        }
    }

    /// Applies a change.
    async fn apply(&self, feed: &CollectionFeed, event: &WatchEvent) {
        let Some(change) = &event.change else { return };
        let (old, new) = (change.old(), change.new_object());
        self.replace_owners(old, new).await;
        if let Some(new) = new {
            self.queue_changed(old, new).await;
        }
        if let Some(old) = old
            && new.is_none_or(|new| new.metadata().uid != old.metadata().uid)
        {
            let uid = &old.metadata().uid;
            self.blocked.borrow_mut().remove(&**uid);
            if self.graph.borrow().has_dependents(uid) {
                self.absent.borrow_mut().insert(&feed.kind().resource, old);
                self.queue.add(CollectorKey::Dependents { uid: (**uid).into() });
            }
        }
    }

    /// Replaces the owners of an object in the graph, and queues the owners that do not wait for it any more.
    async fn replace_owners(&self, old: Option<&Arc<Stored>>, new: Option<&Arc<Stored>>) {
        let (old_references, new_references) = (references(old), references(new));
        let Some(object) = new.or(old).filter(|_| old_references != new_references) else { return };
        let old_owners = self.owners_of(old_references).await;
        let changes = old_owners.changes(&self.owners_of(new_references).await);
        for changes in changes.chunks(STEPS_AT_ONCE) {
            self.graph.borrow_mut().apply(object.key(), changes);
            if changes.len() == STEPS_AT_ONCE {
                tokio::task::yield_now().await;
            }
        }
        for (number, reference) in old_references.iter().enumerate() {
            if is_blocking(reference) && !self.graph.borrow().has_blocking_dependents(&reference.uid) {
                self.queue_unblocked_owner(&reference.uid);
            }
            if number % STEPS_AT_ONCE == STEPS_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn owners_of(&self, references: &[OwnerReference]) -> Owners {
        let mut owners = Owners::default();
        for references in references.chunks(STEPS_AT_ONCE) {
            self.graph.borrow().add_owners(references, &mut owners);
            if references.len() == STEPS_AT_ONCE {
                tokio::task::yield_now().await;
            }
        }
        owners.sort();
        owners
    }

    /// Queues an object that was created or changed if it may be collectable.
    async fn queue_changed(&self, old: Option<&Arc<Stored>>, new: &Arc<Stored>) {
        let (metadata, old_metadata) = (new.metadata(), old.map(|old| old.metadata()));
        if waits_for_dependents(new) {
            let is_new = old_metadata.is_none_or(|old| {
                old.deletion_timestamp.is_none() || old.finalizers != metadata.finalizers || old.uid != metadata.uid
            });
            if is_new {
                self.queue.add(CollectorKey::of(new));
            }
        } else if old_metadata.is_none_or(|old| old.owner_references != metadata.owner_references)
            && self.may_be_collectable(new).await
        {
            self.queue.add(CollectorKey::of(new));
        }
    }

    /// Whether one of the owners of an object is absent, or waits for it.
    async fn may_be_collectable(&self, object: &Arc<Stored>) -> bool {
        if object.metadata().deletion_timestamp.is_some() {
            return false;
        }
        let mut may_be = false;
        for (number, reference) in object.metadata().owner_references.iter().enumerate() {
            let state = self.find_cached_owner(object.namespace(), reference);
            match state {
                OwnerState::Solid => {}
                OwnerState::Waiting => return true,
                OwnerState::Unknown => self.has_deferred.set(true),
                OwnerState::Absent | OwnerState::OutOfScope => {
                    may_be |= state == OwnerState::Absent;
                    self.suspect(object, reference);
                }
            }
            if number % STEPS_AT_ONCE == STEPS_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
        }
        may_be
    }

    /// Asks for a look at all objects.
    pub(super) fn request_scan(&self) {
        self.scan.notify_one();
    }

    /// Looks at all objects when that is asked for: at the start, after changes were missed, and when an unknown kind may be
    /// known. Does not end.
    pub(super) async fn scan_on_request(&self) {
        loop {
            let is_asked = tokio::time::timeout(SCAN_INTERVAL, self.scan.notified()).await.is_ok();
            if !is_asked && !self.has_deferred.take() {
                continue;
            }
            self.feeds.wait_until_current().await;
            for feed in self.feeds.all() {
                let snapshot = feed.collection().snapshot();
                for (number, object) in snapshot.range(feed.collection().prefix(), None).enumerate() {
                    if waits_for_dependents(object) || self.may_be_collectable(object).await {
                        while self.queue.ready_len() >= MAX_SCANNED_KEYS {
                            tokio::time::sleep(SCAN_PAUSE).await;
                        }
                        self.queue.add(CollectorKey::of(object));
                    }
                    if number % STEPS_AT_ONCE == STEPS_AT_ONCE - 1 {
                        tokio::task::yield_now().await;
                    }
                }
            }
            tokio::time::sleep(SCAN_PAUSE).await;
        }
    }
}
