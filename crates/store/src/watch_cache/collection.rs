//! The collection of one resource: takes the changes of the store, publishes snapshots, reads and writes objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::RwLock;

use super::Error;
use super::change_log::{ChangeRing, HistoryLimits, StoredChange};
use super::declared_field::DeclaredField;
use super::notify::NotifierSet;
use super::request_recorder::{RequestRecorder, StoreOperation};
use super::snapshot::Snapshot;
use super::stored::Stored;
use crate::{
    ChangeSink, Clock, CommitCondition, CommitOutcome, Expect, Key, KeyValue, Mutation, Prefix, Progress, RecordChange,
    Revision, Store,
};

/// Target of log lines, which filters name.
const LOG_TARGET: &str = "narthex::watch_cache";

/// Number of records that a load parses before other tasks of the thread run.
const RECORDS_AT_ONCE: usize = 256;

/// Attempts of a load when its feed ends at once; the last attempt is without history.
const LOAD_ATTEMPTS: usize = 4;

/// Settings of the collection of one resource.
#[derive(Clone, Debug)]
pub struct CollectionSettings {
    /// Prefix of the keys of the resource.
    pub prefix: Prefix,
    /// Fields that field selectors may name, besides name and namespace.
    pub fields: Arc<[DeclaredField]>,
    /// Rewrites values that are stored in a version which is no longer served; none for a value that stays as it is.
    pub upgrade: Option<ValueUpgrade>,
    /// Rewrites values that cannot be read as objects; none for a value that stays unreadable.
    pub repair: Option<ValueUpgrade>,
}

/// Rewrites a stored value; none if it stays as it is.
pub type ValueUpgrade = fn(&Bytes) -> Option<Bytes>;

/// What all collections of a watch cache share.
#[derive(Clone)]
pub(super) struct CacheContext {
    pub(super) store: Arc<dyn Store>,
    pub(super) notifiers: NotifierSet,
    pub(super) limits: HistoryLimits,
    /// Memory of the old objects of all histories, in bytes.
    pub(super) history_bytes: Arc<AtomicUsize>,
    pub(super) clock: Clock,
}

/// The objects of one resource. Cheap to clone.
#[derive(Clone)]
pub struct ResourceCollection(Arc<CollectionState>);

struct CollectionState {
    id: u64,
    settings: CollectionSettings,
    context: CacheContext,
    snapshot: ArcSwap<Snapshot>,
    ring: RwLock<ChangeRing>,
    /// Number of the current feed and its progress.
    progress: RwLock<Option<(u64, Progress)>>,
    /// Number of the feed that is applied; 0 when there is none.
    feed: AtomicU64,
    /// Number of the last feed that was started. Locked while the collection loads.
    feeds: tokio::sync::Mutex<u64>,
    /// Receives the requests to the store.
    request_recorder: OnceLock<Arc<dyn RequestRecorder>>,
    watches: AtomicUsize,
}

/// Counts a watch as open until it is dropped.
pub(super) struct WatchGuard(ResourceCollection);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ResourceCollection {
    pub(super) fn new(id: u64, settings: CollectionSettings, context: CacheContext) -> ResourceCollection {
        ResourceCollection(Arc::new(CollectionState {
            id,
            ring: RwLock::new(ChangeRing::new(0, context.limits, context.history_bytes.clone())),
            settings,
            context,
            snapshot: ArcSwap::from_pointee(Snapshot::empty(0)),
            progress: RwLock::new(None),
            feed: AtomicU64::new(0),
            feeds: tokio::sync::Mutex::new(0),
            request_recorder: OnceLock::new(),
            watches: AtomicUsize::new(0),
        }))
    }

    /// Prefix of the keys.
    pub fn prefix(&self) -> &Prefix {
        &self.0.settings.prefix
    }

    /// Whether both are the same collection, not one that was made again for its resource.
    pub fn is_same(&self, other: &ResourceCollection) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Fields that field selectors may name.
    pub fn declared_fields(&self) -> &[DeclaredField] {
        &self.0.settings.fields
    }

    /// The objects now, without waiting. Empty before the collection is loaded.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.snapshot.load_full()
    }

    /// Oldest revision after which a watch can begin.
    pub fn oldest(&self) -> Revision {
        self.0.ring.read().floor()
    }

    /// How many changes the history has.
    pub fn history_len(&self) -> usize {
        self.0.ring.read().len()
    }

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.0.watches.load(Ordering::Relaxed)
    }

    pub(super) fn watch_guard(&self) -> WatchGuard {
        self.0.watches.fetch_add(1, Ordering::Relaxed);
        WatchGuard(self.clone())
    }

    /// Reports the requests to the store to `recorder` from now on. Only the first call has an effect.
    pub fn record_requests(&self, recorder: Arc<dyn RequestRecorder>) {
        let _ = self.0.request_recorder.set(recorder);
    }

    fn record_request(&self, operation: StoreOperation, began: Instant, failed: bool) {
        if let Some(recorder) = self.0.request_recorder.get() {
            recorder.record(operation, began.elapsed(), failed);
        }
    }

    /// Whether the collection is fed by the store, and has its history.
    pub fn is_loaded(&self) -> bool {
        self.feed().is_some()
    }

    /// Number of the feed, when its history has arrived and it has not ended.
    pub(super) fn feed(&self) -> Option<u64> {
        let followed = self.0.progress.read().as_ref().map(|(feed, _)| *feed);
        followed.filter(|feed| self.0.feed.load(Ordering::Acquire) == *feed)
    }

    /// The cached object, without waiting; with the local store it is the latest.
    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        self.0.snapshot.load().get(key.as_str()).cloned()
    }

    /// The object, never older than an acknowledged write.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::TooLargeResourceVersion`].
    pub async fn get_latest(&self, key: &Key) -> Result<Option<Arc<Stored>>, Error> {
        self.wait_for_acknowledged().await?;
        Ok(self.get(key))
    }

    /// Creates an object; with a time to live the store deletes it (Events).
    ///
    /// # Errors
    /// [`Error::Conflict`] with the object that exists, [`Error::Store`].
    pub async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Stored>, Error> {
        self.create_if(key, value, ttl, Vec::new()).await
    }

    /// Creates an object if conditions on other keys are met, in one step.
    ///
    /// # Errors
    /// As [`create`](ResourceCollection::create), and [`Error::ConditionFailed`].
    pub async fn create_if(
        &self,
        key: &Key,
        value: Bytes,
        ttl: Option<Duration>,
        conditions: Vec<CommitCondition>,
    ) -> Result<Arc<Stored>, Error> {
        self.put((key, Expect::Absent), value, ttl, conditions).await
    }

    /// Replaces an object that has a revision.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the object that is there now, [`Error::Store`].
    pub async fn update(
        &self,
        key: &Key,
        revision: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Arc<Stored>, Error> {
        self.update_if(key, revision, value, ttl, Vec::new()).await
    }

    /// Replaces an object that has a revision if conditions on other keys are met, in one step.
    ///
    /// # Errors
    /// As [`update`](ResourceCollection::update), and [`Error::ConditionFailed`].
    pub async fn update_if(
        &self,
        key: &Key,
        revision: Revision,
        value: Bytes,
        ttl: Option<Duration>,
        conditions: Vec<CommitCondition>,
    ) -> Result<Arc<Stored>, Error> {
        self.put((key, Expect::At(revision)), value, ttl, conditions).await
    }

    /// Deletes an object that has a revision; returns the revision of the deletion.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the object that is there now, [`Error::Store`].
    pub async fn delete(&self, key: &Key, revision: Revision) -> Result<Revision, Error> {
        self.delete_if(key, revision, Vec::new()).await
    }

    /// Deletes an object that has a revision if conditions on other keys are met, in one step.
    ///
    /// # Errors
    /// As [`delete`](ResourceCollection::delete), and [`Error::ConditionFailed`].
    pub async fn delete_if(
        &self,
        key: &Key,
        revision: Revision,
        conditions: Vec<CommitCondition>,
    ) -> Result<Revision, Error> {
        self.commit(key, Expect::At(revision), Mutation::Delete, conditions).await
    }

    async fn put(
        &self,
        (key, expect): (&Key, Expect),
        value: Bytes,
        ttl: Option<Duration>,
        conditions: Vec<CommitCondition>,
    ) -> Result<Arc<Stored>, Error> {
        let created = match expect {
            Expect::Absent => None,
            Expect::At(_) => self.get(key).map(|old| old.created()),
        };
        let revision = self.commit(key, expect, Mutation::Put { value: value.clone(), ttl }, conditions).await?;
        // A store that feeds before it answers has it in the ring.
        let change = self.ring().read().find(revision).and_then(|change| change.new_object().cloned());
        Ok(change.unwrap_or_else(|| {
            let created = created.unwrap_or(revision);
            Arc::new(self.parse(&Arc::new(KeyValue { key: key.clone(), value, created, revision, expires: None })))
        }))
    }

    async fn commit(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> Result<Revision, Error> {
        let operation = match (&expect, &mutation) {
            (_, Mutation::Delete) => StoreOperation::Delete,
            (Expect::Absent, _) => StoreOperation::Create,
            (Expect::At(_), _) => StoreOperation::Update,
        };
        let began = Instant::now();
        let outcome = self.store().commit_if(key, expect, mutation, conditions).await;
        self.record_request(operation, began, outcome.is_err());
        match outcome? {
            CommitOutcome::Committed(revision) => Ok(revision),
            CommitOutcome::ConditionFailed(condition) => Err(Error::ConditionFailed(condition)),
            CommitOutcome::Conflict(record) => {
                let at_hand = self.get(key);
                let current = record.map(|record| match at_hand {
                    Some(object) if object.revision() == record.revision => object,
                    _ => Arc::new(self.parse(&record)),
                });
                Err(Error::Conflict { current })
            }
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.0.context.store
    }

    pub(super) fn ring(&self) -> &RwLock<ChangeRing> {
        &self.0.ring
    }

    /// Revision up to which the collection is complete; 0 if it is not fed.
    pub(super) fn progress(&self) -> Revision {
        let Some((feed, progress)) = self.progress_receiver() else { return 0 };
        let revision = *progress.borrow();
        // In this order: a feed ends before the progress passes what it has not delivered.
        if self.0.feed.load(Ordering::Acquire) == feed { revision } else { 0 }
    }

    pub(super) fn progress_receiver(&self) -> Option<(u64, Progress)> {
        self.0.progress.read().clone()
    }

    pub(super) fn parse(&self, record: &Arc<KeyValue>) -> Stored {
        self.0.parse(record)
    }

    /// Drops history that is too old; for resources that do not change.
    pub(super) fn trim(&self) {
        self.0.ring.write().trim((self.0.context.clock)());
    }

    /// Loads the collection if the store does not feed it.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn ensure_loaded(&self) -> Result<(), Error> {
        if self.is_loaded() {
            return Ok(());
        }
        let mut feeds = self.0.feeds.lock().await;
        // A feed may end while its history arrives.
        for attempt in 0..LOAD_ATTEMPTS {
            if self.is_loaded() {
                return Ok(());
            }
            *feeds += 1;
            self.load(*feeds, attempt + 1 < LOAD_ATTEMPTS).await?;
        }
        Ok(())
    }

    async fn load(&self, feed: u64, with_history: bool) -> Result<(), Error> {
        let state = &self.0;
        let began = Instant::now();
        let loaded = self.store().load(self.prefix()).await;
        self.record_request(StoreOperation::List, began, loaded.is_err());
        let loaded = loaded?;
        let mut snapshot = Snapshot::empty(loaded.revision);
        for records in loaded.records.chunks(RECORDS_AT_ONCE) {
            for record in records {
                // After a lost feed most objects are the same.
                let same = self.get(&record.key).filter(|object| object.revision() == record.revision);
                snapshot.insert(same.unwrap_or_else(|| Arc::new(self.parse(record))));
            }
            tokio::task::yield_now().await;
        }
        let mut after = if with_history { loaded.oldest } else { loaded.revision };
        loop {
            let context = &state.context;
            *state.ring.write() = ChangeRing::new(after, context.limits, context.history_bytes.clone());
            state.snapshot.store(Arc::new(snapshot.clone()));
            let sink =
                CollectionSink { state: Arc::downgrade(state), feed, loaded: loaded.revision, held: HashMap::new() };
            // Before the feed begins: one that ends at once has the last word.
            state.feed.store(feed, Ordering::Release);
            match self.store().follow(self.prefix(), after, Box::new(sink)).await {
                Ok(progress) => {
                    *state.progress.write() = Some((feed, progress));
                    state.context.notifiers.signal_all(state.id);
                    return Ok(());
                }
                // The history was compacted since the load: go without.
                Err(crate::Error::Compacted(_)) if after < loaded.revision => after = loaded.revision,
                Err(error) => {
                    state.feed.store(0, Ordering::Release);
                    return Err(error.into());
                }
            }
        }
    }
}

impl CollectionState {
    fn parse(&self, record: &Arc<KeyValue>) -> Stored {
        let read = |record: &Arc<KeyValue>, rewritten: Option<Bytes>| {
            let record = match rewritten {
                Some(value) => Arc::new(KeyValue { value, ..KeyValue::clone(record) }),
                None => record.clone(),
            };
            Stored::new(record, &self.settings.prefix, &self.settings.fields)
        };
        let stored = read(record, self.settings.upgrade.and_then(|upgrade| upgrade(&record.value)));
        let repair = self.settings.repair.filter(|_| stored.defect().is_some());
        match repair.and_then(|repair| repair(&record.value)) {
            Some(repaired) => read(record, Some(repaired)),
            None => stored,
        }
    }

    /// The object of a record: the one that is cached already, or parsed.
    fn object(&self, record: &Arc<KeyValue>, snapshot: &Snapshot, held: &HashMap<Key, Arc<Stored>>) -> Arc<Stored> {
        let candidates = [held.get(&record.key), snapshot.get(record.key.as_str())];
        let same = candidates.into_iter().flatten().find(|object| object.revision() == record.revision);
        same.cloned().unwrap_or_else(|| Arc::new(self.parse(record)))
    }
}

/// Applies the changes of one feed, on a thread of the store.
struct CollectionSink {
    state: Weak<CollectionState>,
    feed: u64,
    /// Changes up to this revision are in the loaded snapshot: history.
    loaded: Revision,
    /// The last objects of the history, so that each is parsed once.
    held: HashMap<Key, Arc<Stored>>,
}

impl ChangeSink for CollectionSink {
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool {
        let Some(state) = self.state.upgrade().filter(|state| state.feed.load(Ordering::Acquire) == self.feed) else {
            return false;
        };
        let now = (state.context.clock)();
        let mut snapshot = Snapshot::clone(&state.snapshot.load());
        let mut applied = Vec::with_capacity(changes.len());
        for change in changes {
            let object = |record: &Arc<KeyValue>| state.object(record, &snapshot, &self.held);
            let (old, new) = (change.old.as_ref().map(object), change.new.as_ref().map(object));
            let is_history = change.revision <= self.loaded;
            if is_history && let Some(new) = &new {
                self.held.insert(change.key.clone(), new.clone());
            }
            let change = StoredChange::new(change.revision, now, change.key.clone(), old, new);
            if !is_history {
                snapshot.apply(&change);
            }
            applied.push(Arc::new(change));
        }
        if changes.last().is_some_and(|last| last.revision > self.loaded) {
            self.held = HashMap::new();
        }
        // Both under the lock: a snapshot's changes can always be undone, and who takes a change from the ring finds a
        // snapshot with it.
        {
            let mut ring = state.ring.write();
            applied.iter().for_each(|change| ring.push(change.clone()));
            if snapshot.revision() > self.loaded {
                state.snapshot.store(Arc::new(snapshot));
            }
        }
        state.context.notifiers.signal(state.id, &state.settings.prefix, &applied);
        true
    }

    fn end(&mut self, error: crate::Error) {
        let Some(state) = self.state.upgrade() else { return };
        let ended = state.feed.compare_exchange(self.feed, 0, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            // A store that is closed in order ends every feed.
            if error == crate::Error::Closed {
                tracing::debug!(target: LOG_TARGET, "watch cache of {} has ended: {error}", state.settings.prefix);
            } else {
                tracing::warn!(target: LOG_TARGET, "watch cache of {} is loaded from the store again: {error}", state.settings.prefix);
            }
            state.context.notifiers.signal_all(state.id);
        }
    }
}
