//! The changes that the watch delivers: a bounded history of them, and the followers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use parking_lot::Mutex;
use store::{ChangeSink, Error, Key, Prefix, Progress, RecordChange, Revision};
use tokio::sync::watch;

/// Changes that are kept for followers, and the bytes of their values.
const MAX_HISTORY: usize = 20_000;
const MAX_HISTORY_BYTES: usize = 64 << 20;

/// The changes of a store and its followers.
pub(crate) struct Feeds {
    state: Mutex<FeedsState>,
    published: watch::Sender<Revision>,
    /// The newest revision that somebody waits for.
    requested: watch::Sender<Revision>,
    /// Counts the times that the store began again.
    restarts: watch::Sender<u64>,
    /// Why the watch is interrupted; none while it is open.
    interruption: Mutex<Option<String>>,
    /// Whether the thread of the store has ended.
    is_closed: AtomicBool,
    /// Size of the database in bytes; 0 before it is known.
    database_bytes: AtomicU64,
}

struct FeedsState {
    /// Revision up to which the history is discarded.
    compacted: Revision,
    /// Revision up to which the watch is complete.
    delivered: Revision,
    history: VecDeque<Arc<RecordChange>>,
    history_bytes: usize,
    followers: Vec<Follower>,
    /// The newest revision that was delivered before the store began again.
    lost: Revision,
}

struct Follower {
    prefix: Prefix,
    after: Revision,
    sink: Box<dyn ChangeSink>,
}

impl Follower {
    /// Passes on what lies below the prefix. Returns whether more is wanted.
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool {
        let matches = |change: &&Arc<RecordChange>| change.revision > self.after && self.prefix.contains(&change.key);
        let matching: Vec<_> = changes.iter().filter(matches).cloned().collect();
        matching.is_empty() || self.sink.apply(&matching)
    }
}

impl Feeds {
    /// Feeds that begin after a revision.
    pub(crate) fn new(compacted: Revision) -> Feeds {
        let state = FeedsState {
            compacted,
            delivered: compacted,
            history: VecDeque::new(),
            history_bytes: 0,
            followers: Vec::new(),
            lost: 0,
        };
        Feeds {
            state: Mutex::new(state),
            published: watch::Sender::new(compacted),
            requested: watch::Sender::new(0),
            restarts: watch::Sender::new(0),
            interruption: Mutex::default(),
            is_closed: AtomicBool::new(false),
            database_bytes: AtomicU64::new(0),
        }
    }

    /// Why the watch is interrupted; none while it is open.
    pub(crate) fn interruption(&self) -> Option<String> {
        self.interruption.lock().clone()
    }

    /// Notes that the watch is interrupted, or is open.
    pub(crate) fn set_interruption(&self, reason: Option<&str>) {
        let mut interruption = self.interruption.lock();
        if interruption.as_deref() != reason {
            *interruption = reason.map(str::to_owned);
        }
    }

    /// Whether the thread of the store has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Size of the database in bytes; 0 before it is known.
    pub(crate) fn database_bytes(&self) -> u64 {
        self.database_bytes.load(Relaxed)
    }

    /// Notes the size of the database.
    pub(crate) fn set_database_bytes(&self, bytes: u64) {
        self.database_bytes.store(bytes, Relaxed);
    }

    /// Revision up to which the history is discarded.
    pub(crate) fn compacted(&self) -> Revision {
        self.state.lock().compacted
    }

    /// Revision up to which the watch is complete.
    pub(crate) fn delivered(&self) -> Revision {
        self.state.lock().delivered
    }

    /// The last change of the history.
    pub(crate) fn last_change(&self) -> Option<Arc<RecordChange>> {
        self.state.lock().history.back().cloned()
    }

    /// How often the store began again.
    pub(crate) fn restarts(&self) -> u64 {
        *self.restarts.borrow()
    }

    /// Waits until the watch is complete up to a revision.
    ///
    /// # Errors
    /// [`Error::Closed`] if the store begins again before.
    pub(crate) async fn wait_for(&self, revision: Revision) -> Result<(), Error> {
        let mut restarts = self.restarts.subscribe();
        let mut published = self.published.subscribe();
        self.request_progress(revision);
        tokio::select! {
            biased;
            reached = published.wait_for(|published| *published >= revision) => reached.map(drop).map_err(|_| Error::Closed),
            _ = restarts.changed() => Err(Error::Closed),
        }
    }

    /// Makes the watch ask for its progress until it is complete up to a revision.
    pub(crate) fn request_progress(&self, revision: Revision) {
        self.requested.send_if_modified(|requested| {
            let is_newer = revision > *requested;
            *requested = revision.max(*requested);
            is_newer
        });
    }

    /// Follows the newest revision that somebody waits for.
    pub(crate) fn requested(&self) -> watch::Receiver<Revision> {
        self.requested.subscribe()
    }

    /// Takes the changes of one response of the watch, in order.
    pub(crate) fn deliver(&self, changes: Vec<Arc<RecordChange>>) {
        let Some(last) = changes.last().map(|change| change.revision) else { return };
        let mut state = self.state.lock();
        state.followers.retain_mut(|follower| follower.apply(&changes));
        state.history_bytes += changes.iter().map(|change| value_bytes(change)).sum::<usize>();
        state.history.extend(changes);
        while state.history.len() > MAX_HISTORY || state.history_bytes > MAX_HISTORY_BYTES {
            let Some(first) = state.history.front().map(|change| change.revision) else { break };
            state.discard(first);
        }
        state.delivered = last;
        self.published.send_replace(last);
    }

    /// Notes that the watch is complete up to a revision: etcd says so only after the events before it.
    pub(crate) fn progress(&self, revision: Revision) {
        let mut state = self.state.lock();
        if revision > state.delivered {
            state.delivered = revision;
            self.published.send_replace(revision);
        }
    }

    /// Discards the history up to a revision.
    pub(crate) fn discard(&self, revision: Revision) {
        self.state.lock().discard(revision);
    }

    /// Begins again after a revision: changes were lost, or the cluster went back to an older state. Followers have to
    /// load again.
    pub(crate) fn restart(&self, revision: Revision, error: &Error) {
        let mut state = self.state.lock();
        state.end_followers(error);
        state.history.clear();
        state.lost = state.lost.max(state.delivered);
        (state.compacted, state.delivered, state.history_bytes) = (revision, revision, 0);
        self.published.send_replace(revision);
        self.requested.send_replace(0);
        self.restarts.send_modify(|restarts| *restarts += 1);
    }

    /// Ends all feeds: the store has ended.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.state.lock().end_followers(&Error::Closed);
        self.restarts.send_modify(|restarts| *restarts += 1);
    }

    /// Adds a follower, after it has the changes that have happened.
    ///
    /// # Errors
    /// [`Error::Compacted`].
    pub(crate) fn follow(
        &self,
        prefix: &Prefix,
        after: Revision,
        sink: Box<dyn ChangeSink>,
    ) -> Result<Progress, Error> {
        let mut state = self.state.lock();
        // A revision of the time before the store began again may be one of another history.
        if after < state.compacted || (state.delivered + 1 < after && after <= state.lost) {
            return Err(Error::Compacted(state.compacted));
        }
        let mut follower = Follower { prefix: prefix.clone(), after, sink };
        state.history.make_contiguous();
        if follower.apply(state.history.as_slices().0) {
            state.followers.push(follower);
        }
        Ok(self.published.subscribe())
    }

    /// The change after revision `since` that set `key`, whose revision was `previous` (0 for none), to `value`.
    ///
    /// # Errors
    /// [`Error::Closed`] if the history does not reach back.
    pub(crate) fn find_change(
        &self,
        key: &Key,
        previous: Revision,
        value: Option<&Bytes>,
        since: Revision,
    ) -> Result<Option<Arc<RecordChange>>, Error> {
        let state = self.state.lock();
        if state.compacted > since {
            return Err(Error::Closed);
        }
        let is_same = |change: &&Arc<RecordChange>| {
            change.revision > since
                && change.key == *key
                && change.old.as_ref().map_or(0, |old| old.revision) == previous
                && change.new.as_ref().map(|new| &new.value) == value
        };
        Ok(state.history.iter().rev().find(is_same).cloned())
    }
}

impl FeedsState {
    fn discard(&mut self, revision: Revision) {
        while let Some(change) = self.history.front().filter(|change| change.revision <= revision) {
            self.history_bytes -= value_bytes(change);
            self.history.pop_front();
        }
        self.compacted = self.compacted.max(revision.min(self.delivered));
    }

    fn end_followers(&mut self, error: &Error) {
        for mut follower in self.followers.drain(..) {
            follower.sink.end(error.clone());
        }
    }
}

/// Bytes that a change keeps.
fn value_bytes(change: &RecordChange) -> usize {
    let records = [&change.old, &change.new].into_iter().flatten();
    records.map(|record| record.value.len() + record.key.as_str().len()).sum()
}
