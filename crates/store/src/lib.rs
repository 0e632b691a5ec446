//! Storage of API objects: keys, values, revisions, compare-and-swap, and the feed of changes; and the watch cache.
#![doc = include_str!("../README.md")]

// Modules are declared in dependency order, as in the root package: the blank lines keep rustfmt from sorting them by name.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

/// Symbolic links at the path of a file that is written.
pub mod own_links;

mod key;
mod record;

#[cfg(test)]
mod contract;
#[cfg(test)]
mod faulty;
#[cfg(test)]
mod random_history;

mod memory;

mod local;

/// The watch cache: collections of objects in memory, lists, watches.
pub mod watch_cache;

#[cfg(test)]
pub(crate) use faulty::FaultyStore;
pub use key::{Key, KeyError, Prefix};
pub use local::{
    AbortHandler, BackupError, Clock, LocalStore, LocalStoreSettings, OpenError, StoreContent, StoreDamage,
    StoreMonitor, back_up_store, check_store_file, is_store_in_use, monotonic_clock, system_clock, verify_store,
};
pub use memory::MemoryStore;
pub use record::{KeyValue, RecordChange, UnixMillis};

/// Target of the log lines of the store, which filters name.
const LOG_TARGET: &str = "narthex::storage";

/// Revision of the store: the `resourceVersion` of objects, lists and bookmarks. The first change has revision 2.
pub type Revision = u64;

/// Revision of a store that has had no change. Not 0, because 0 means *any* in `resourceVersion`.
pub const FIRST_REVISION: Revision = 1;

/// Largest value in bytes; etcd's default request limit of 1.5 MiB.
pub const MAX_VALUE_BYTES: usize = 3 << 19;

/// A store of keys and values with revisions. Callable from any thread and any runtime.
pub trait Store: Send + Sync {
    /// Reads all records below `prefix` at one revision, which is at least as new as this call.
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded>;

    /// Applies `mutation` to `key` if its state is as expected and all `conditions` are met, durably and in one step: no
    /// other commit is between the check and the change. Feeds have it before the caller.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Full`] and [`Error::Unavailable`] mean that nothing was changed.
    /// [`Error::Closed`] means that the outcome is unknown.
    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome>;

    /// As [`commit_if`](Store::commit_if), without conditions on other keys.
    ///
    /// # Errors
    /// Those of [`commit_if`](Store::commit_if).
    fn commit(&self, key: &Key, expect: Expect, mutation: Mutation) -> StoreFuture<CommitOutcome> {
        self.commit_if(key, expect, mutation, Vec::new())
    }

    /// Sends the changes below `prefix` after a revision to `sink`, in order and without a gap, until the sink
    /// is closed. Changes that have happened already are sent before the future completes.
    ///
    /// # Errors
    /// [`Error::Compacted`] if the history does not reach back to `after`.
    fn follow(&self, prefix: &Prefix, after: Revision, sink: Box<dyn ChangeSink>) -> StoreFuture<Progress>;

    /// Reads up to `limit` records below `prefix` whose keys are not less than `from`, as of `revision`. A page may have
    /// fewer records than there are, but at least one: [`RecordPage::remaining`] counts those that follow.
    ///
    /// # Errors
    /// [`Error::Compacted`] or [`Error::FutureRevision`].
    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage>;

    /// The current revision, at least as new as every commit that was acknowledged before this call.
    fn current(&self) -> StoreFuture<Revision>;
}

/// Receives the changes of a feed on a thread of the store, one call after another. Must not block.
pub trait ChangeSink: Send {
    /// Takes changes with increasing revisions. Returns false when the feed is no longer wanted.
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool;

    /// Told once when the store ends the feed; the follower has to load again.
    fn end(&mut self, error: Error);
}

/// Revision up to which a feed is complete: all changes of its prefix up to it were delivered.
pub type Progress = watch::Receiver<Revision>;

/// Condition of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The last change of the key has this revision.
    At(Revision),
}

impl Expect {
    /// Whether the current state of a key, its last revision or none, meets the condition.
    pub fn is_met_by(self, current: Option<Revision>) -> bool {
        match self {
            Expect::Absent => current.is_none(),
            Expect::At(revision) => current == Some(revision),
        }
    }
}

/// Condition of a commit on other keys than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitCondition {
    /// The last change of the key has this revision: it exists, and nobody has written it since.
    At(Key, Revision),
    /// The key does not exist.
    Absent(Key),
    /// No key lies below the prefix.
    Empty(Prefix),
}

/// What a commit does to its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets the value, and the time after which the store deletes the key itself.
    Put {
        /// The new value.
        value: Bytes,
        /// Time to live; none is for ever.
        ttl: Option<Duration>,
    },
    /// Deletes the key.
    Delete,
}

impl Mutation {
    /// A value without a time to live.
    pub fn put(value: impl Into<Bytes>) -> Mutation {
        Mutation::Put { value: value.into(), ttl: None }
    }

    /// Refuses a value over [`MAX_VALUE_BYTES`].
    fn check_size(&self) -> Result<(), Error> {
        match self {
            Mutation::Put { value, .. } if value.len() > MAX_VALUE_BYTES => {
                Err(Error::TooLarge { size: value.len(), limit: MAX_VALUE_BYTES })
            }
            _ => Ok(()),
        }
    }
}

/// Outcome of a commit that the store could decide.
#[derive(Clone, Debug)]
pub enum CommitOutcome {
    /// The change is durable and has this revision.
    Committed(Revision),
    /// The expectation was not met; the current record, if there is one.
    Conflict(Option<Arc<KeyValue>>),
    /// A condition on other keys was not met: the first such. The expectation was not looked at.
    ConditionFailed(CommitCondition),
}

/// Records of a prefix at one revision.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Revision at which the records were read.
    pub revision: Revision,
    /// Oldest revision that [`Store::follow`] accepts as `after`.
    pub oldest: Revision,
    /// The records, by key.
    pub records: Vec<Arc<KeyValue>>,
}

/// Part of the records of a prefix at an older revision.
#[derive(Clone, Debug)]
pub struct RecordPage {
    /// The records, by key.
    pub records: Vec<Arc<KeyValue>>,
    /// How many records follow.
    pub remaining: usize,
}

/// Error of a call to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The history up to and including this revision has been discarded.
    Compacted(Revision),
    /// The revision is newer than the store's.
    FutureRevision {
        /// Revision asked for.
        requested: Revision,
        /// Revision of the store.
        current: Revision,
    },
    /// The value is too large; sizes in bytes. HTTP 413.
    TooLarge {
        /// Size of the value.
        size: usize,
        /// Largest allowed size.
        limit: usize,
    },
    /// No space is left on the device; nothing was changed. HTTP 503.
    Full,
    /// The store could not do it; nothing was changed. HTTP 503. The text is for the log.
    Unavailable(Arc<str>),
    /// The store ended before it answered; the outcome is unknown.
    Closed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Compacted(revision) => write!(f, "revision {revision} and older have been compacted"),
            Error::FutureRevision { requested, current } => {
                write!(f, "revision {requested} is newer than the current revision {current}")
            }
            Error::TooLarge { size, limit } => write!(f, "value of {size} bytes exceeds the limit of {limit} bytes"),
            Error::Full => f.write_str("no space left on the device of the store"),
            Error::Unavailable(reason) => write!(f, "store unavailable: {reason}"),
            Error::Closed => f.write_str("store closed"),
        }
    }
}

impl std::error::Error for Error {}

/// Answer of a store, made on its own thread. One allocation a call, none when the answer is at hand.
pub struct StoreFuture<T>(Answer<T>);

enum Answer<T> {
    Ready(Option<Result<T, Error>>),
    Waiting(oneshot::Receiver<Result<T, Error>>),
}

/// Side of a [`StoreFuture`] that answers it.
pub struct StoreReply<T>(oneshot::Sender<Result<T, Error>>);

impl<T> StoreFuture<T> {
    /// An answer that is at hand.
    pub fn ready(answer: Result<T, Error>) -> StoreFuture<T> {
        StoreFuture(Answer::Ready(Some(answer)))
    }

    /// A future and the reply that completes it. A dropped reply completes it with [`Error::Closed`].
    pub fn channel() -> (StoreReply<T>, StoreFuture<T>) {
        let (sender, receiver) = oneshot::channel();
        (StoreReply(sender), StoreFuture(Answer::Waiting(receiver)))
    }
}

impl<T> StoreReply<T> {
    /// Answers; a caller that went away is ignored.
    pub fn send(self, answer: Result<T, Error>) {
        let _ = self.0.send(answer);
    }
}

impl<T: Unpin> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answer::Ready(answer) => Poll::Ready(answer.take().unwrap_or(Err(Error::Closed))),
            Answer::Waiting(receiver) => {
                Pin::new(receiver).poll(context).map(|answer| answer.unwrap_or(Err(Error::Closed)))
            }
        }
    }
}
