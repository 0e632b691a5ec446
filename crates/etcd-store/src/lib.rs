//! Storage of API objects in etcd.
#![doc = include_str!("../README.md")]

// Modules are declared in dependency order, as in the root package: the blank lines keep rustfmt from sorting them by name.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use store::{
    ChangeSink, CommitCondition, CommitOutcome, Error, Expect, FIRST_REVISION, Key, Loaded, MAX_VALUE_BYTES, Mutation,
    Prefix, Progress, RecordPage, Revision, Store, StoreFuture, StoreReply,
};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

mod messages;

mod connection;

mod client;

mod convert;

mod feeds;

mod watcher;

mod leases;

mod commit;

mod compactor;

pub use connection::{ByteStream, Dial, LocalFuture};

use client::{Client, EtcdCallError};
use commit::Commit;
use compactor::Compactor;
use convert::{etcd_revision, header_revision, range_of_prefix};
use feeds::Feeds;
use leases::LeaseManager;
use messages::{CompactionRequest, RangeRequest};
use watcher::Watcher;

/// Target of the log lines of the store, which filters name.
const LOG_TARGET: &str = "narthex::storage";

/// Keys that are read at once.
const PAGE: i64 = 1_000;

/// How often a list begins again because the history was discarded below it.
const LOAD_ATTEMPTS: usize = 3;

/// Revisions before the start that watches can resume from.
const RESUMABLE_REVISIONS: Revision = 10_000;

/// Time for the start, and for a feed to have what has happened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which a commit is decided, or its outcome is unknown.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval at which the size of the database is read (`--etcd-db-metric-poll-interval` of a kube-apiserver).
const SIZE_INTERVAL: Duration = Duration::from_secs(30);

/// Pause before a transaction whose outcome is unknown is tried again.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

/// What a store in etcd needs.
pub struct EtcdStoreSettings {
    /// Makes, on the thread of the store, what opens its connections.
    pub dialer: Box<dyn FnOnce() -> Box<dyn Dial> + Send>,
    /// Addresses of the members (`https://10.0.0.1:2379`), of which there is at least one.
    pub endpoints: Vec<Uri>,
    /// The keys of the store lie below it; `/registry/` in a cluster of Kubernetes.
    pub root: Prefix,
    /// Interval at which the history is discarded; none leaves that to others (`--etcd-compaction-interval`).
    pub compaction_interval: Option<Duration>,
    /// Whether commits are refused.
    pub is_read_only: bool,
}

/// Why a store in etcd cannot be opened.
#[derive(Debug)]
pub enum EtcdOpenError {
    /// An address is none of a member (`http://10.0.0.1:2379`).
    InvalidEndpoint(String),
    /// No member answers.
    Unreachable(String),
    /// The thread of the store cannot be started.
    Thread(io::Error),
}

impl fmt::Display for EtcdOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdOpenError::InvalidEndpoint(endpoint) => {
                write!(
                    f,
                    "{endpoint:?} is no address of etcd: it needs a scheme, a host and a port, as http://10.0.0.1:2379"
                )
            }
            EtcdOpenError::Unreachable(reason) => write!(f, "etcd does not answer: {reason}"),
            EtcdOpenError::Thread(error) => write!(f, "thread of the store: {error}"),
        }
    }
}

impl std::error::Error for EtcdOpenError {}

/// A store in etcd. Cheap to clone. Its calls run on a thread of its own, which ends with the last clone.
#[derive(Clone)]
pub struct EtcdStore(Arc<EtcdStoreHandle>);

struct EtcdStoreHandle {
    /// Calls for the thread, which ends with this.
    calls: mpsc::UnboundedSender<Call>,
    feeds: Arc<Feeds>,
    is_read_only: bool,
}

/// A call of the store, which runs on its thread.
type Call = Box<dyn FnOnce(Rc<StoreThread>) + Send>;

/// The state of the thread of a store.
struct StoreThread {
    client: Rc<Client>,
    root: Prefix,
    feeds: Arc<Feeds>,
    leases: LeaseManager,
    current_reads: RefCell<CurrentReads>,
}

/// Callers that wait for the next read of the current revision. A read in flight may be too old for them.
#[derive(Default)]
struct CurrentReads {
    is_reading: bool,
    waiting: Vec<StoreReply<Revision>>,
}

impl EtcdStore {
    /// Connects, and waits until the watch has the changes that have happened.
    ///
    /// # Errors
    /// No member answers, or the thread cannot be started.
    pub fn open(settings: EtcdStoreSettings) -> Result<EtcdStore, EtcdOpenError> {
        let is_address = |endpoint: &&Uri| endpoint.scheme().is_some() && endpoint.port().is_some();
        if let Some(endpoint) = settings.endpoints.iter().find(|endpoint| !is_address(endpoint)) {
            return Err(EtcdOpenError::InvalidEndpoint(endpoint.to_string()));
        }
        if settings.endpoints.is_empty() {
            return Err(EtcdOpenError::InvalidEndpoint(String::new()));
        }
        let is_read_only = settings.is_read_only;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(EtcdOpenError::Thread)?;
        let (sender, opened) = std::sync::mpsc::channel();
        let (calls, mut receiver) = mpsc::unbounded_channel::<Call>();
        let run = async move || {
            let timed_out = |_| Err(EtcdCallError::Unreachable("not opened in time".to_owned()));
            let thread = match tokio::time::timeout(OPEN_TIMEOUT, open(settings)).await.unwrap_or_else(timed_out) {
                Ok(thread) => Rc::new(thread),
                Err(error) => return drop(sender.send(Err(error))),
            };
            let _ = sender.send(Ok(thread.feeds.clone()));
            while let Some(call) = receiver.recv().await {
                call(thread.clone());
            }
            thread.feeds.close();
        };
        let thread = std::thread::Builder::new().name("etcd".to_owned());
        thread.spawn(move || LocalSet::new().block_on(&runtime, run())).map_err(EtcdOpenError::Thread)?;
        let ended = || EtcdOpenError::Unreachable("the thread of the store ended".to_owned());
        let feeds =
            opened.recv().map_err(|_| ended())?.map_err(|error| EtcdOpenError::Unreachable(error.to_string()))?;
        Ok(EtcdStore(Arc::new(EtcdStoreHandle { calls, feeds, is_read_only })))
    }

    /// Discards the history up to a revision.
    pub fn compact(&self, revision: Revision) -> StoreFuture<()> {
        self.run(async move |thread| {
            let request = CompactionRequest { revision: etcd_revision(revision), physical: false };
            match thread.client.compact(&request).await {
                // By an earlier attempt, or by others.
                Err(error) if !error.is_compacted() => return Err(error.into()),
                _ => thread.feeds.discard(revision),
            }
            Ok(())
        })
    }

    /// Revision up to which collections are fed.
    pub fn revision(&self) -> Revision {
        self.0.feeds.delivered()
    }

    /// Revision up to which the history was discarded.
    pub fn compacted(&self) -> Revision {
        self.0.feeds.compacted()
    }

    /// Why the watch is interrupted, as while no member has a leader; none while changes arrive.
    pub fn interruption(&self) -> Option<String> {
        self.0.feeds.interruption()
    }

    /// Whether the thread of the store has ended: nothing is read or written any more.
    pub fn is_closed(&self) -> bool {
        self.0.feeds.is_closed()
    }

    /// Size of the database of a member in bytes; 0 before it is known.
    pub fn database_bytes(&self) -> u64 {
        self.0.feeds.database_bytes()
    }

    /// Runs a call on the thread of the store. If the thread has ended, so has the store.
    fn run<T, F>(&self, call: impl FnOnce(Rc<StoreThread>) -> F + Send + 'static) -> StoreFuture<T>
    where
        T: Send + Unpin + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let (reply, future) = StoreFuture::channel();
        let _ = self.0.calls.send(Box::new(move |thread| {
            tokio::task::spawn_local(async move { reply.send(call(thread).await) });
        }));
        future
    }
}

/// Connects and starts the watch.
async fn open(settings: EtcdStoreSettings) -> Result<StoreThread, EtcdCallError> {
    let client = Rc::new(Client::new((settings.dialer)(), settings.endpoints));
    let current = watcher::current_revision(&client, &settings.root).await?;
    let compacted = watcher::compacted_revision(&client, &settings.root).await?;
    let compacted = compacted.max(current.saturating_sub(RESUMABLE_REVISIONS)).max(FIRST_REVISION);
    let feeds = Arc::new(Feeds::new(compacted));
    let watcher = Watcher { client: client.clone(), root: settings.root.clone(), feeds: feeds.clone() };
    let watch = tokio::task::spawn_local(watcher.run());
    let ended = feeds.clone();
    tokio::task::spawn_local(async move {
        // It ends by a panic alone.
        let _ = watch.await;
        ended.close();
    });
    if feeds.wait_for(current).await.is_err() {
        return Err(EtcdCallError::Unreachable("the history changed during the start".to_owned()));
    }
    if let Some(interval) = settings.compaction_interval {
        tokio::task::spawn_local(Compactor { client: client.clone(), feeds: feeds.clone() }.run(interval));
    }
    tokio::task::spawn_local(follow_size(client.clone(), feeds.clone()));
    Ok(StoreThread {
        client,
        root: settings.root,
        feeds,
        leases: LeaseManager::default(),
        current_reads: RefCell::default(),
    })
}

/// Reads the size of the database from time to time. It does not end.
async fn follow_size(client: Rc<Client>, feeds: Arc<Feeds>) {
    loop {
        // An older size is better than none.
        if let Ok(status) = client.status().await {
            feeds.set_database_bytes(u64::try_from(status.db_size).unwrap_or(0));
        }
        tokio::time::sleep(SIZE_INTERVAL).await;
    }
}

impl StoreThread {
    /// Reads all records below a prefix, page by page, at the revision of the first page.
    async fn load(&self, prefix: &Prefix) -> Result<Loaded, Error> {
        for _ in 1..LOAD_ATTEMPTS {
            match self.load_once(prefix).await {
                Err(error) if error.is_compacted() => {}
                loaded => return Ok(loaded?),
            }
        }
        Ok(self.load_once(prefix).await?)
    }

    async fn load_once(&self, prefix: &Prefix) -> Result<Loaded, EtcdCallError> {
        let oldest = self.feeds.compacted();
        let mut request = RangeRequest { limit: PAGE, ..range_of_prefix(prefix) };
        let mut records = Vec::new();
        loop {
            let response = self.client.range(&request).await?;
            if request.revision == 0 {
                request.revision = etcd_revision(header_revision(response.header.as_ref()));
            }
            records.extend(response.kvs.iter().filter_map(convert::record));
            match response.kvs.last() {
                // The first key after the last one.
                Some(last) if response.more => request.key = [&*last.key, b"\0"].concat().into(),
                _ => return Ok(Loaded { revision: convert::revision(request.revision), oldest, records }),
            }
        }
    }

    async fn commit(
        &self,
        key: &Key,
        expect: Expect,
        mutation: &Mutation,
        conditions: Vec<CommitCondition>,
    ) -> Result<CommitOutcome, Error> {
        let ttl = match mutation {
            Mutation::Put { ttl, .. } => *ttl,
            Mutation::Delete => None,
        };
        let commit = Commit::new(key, expect, mutation, conditions);
        let decided = tokio::time::timeout(COMMIT_TIMEOUT, self.decide(&commit, ttl)).await;
        decided.unwrap_or(Err(Error::Closed))
    }

    /// Runs the transaction of a commit until its outcome is known. Feeds get the change before the caller gets the outcome.
    async fn decide(&self, commit: &Commit, ttl: Option<Duration>) -> Result<CommitOutcome, Error> {
        let (since, restarts) = (self.feeds.delivered(), self.feeds.restarts());
        let mut lease = match ttl {
            Some(ttl) => self.leases.lease(&self.client, ttl).await?,
            None => 0,
        };
        // An attempt that may have happened, or may still happen.
        let mut has_unknown = false;
        loop {
            // The same change of an existing key cannot happen twice: its revision was another before. A create can, after
            // a deletion.
            let is_inquiry = has_unknown && commit.expect == Expect::Absent;
            let transaction = if is_inquiry { commit.inquiry() } else { commit.transaction(lease) };
            match self.client.transact(&transaction).await {
                Ok(response) => {
                    let revision = header_revision(response.header.as_ref());
                    if has_unknown {
                        self.feeds.wait_for(revision).await?;
                        if self.feeds.restarts() != restarts {
                            return Err(Error::Closed);
                        }
                        let value = commit.value.as_ref();
                        if let Some(change) = self.feeds.find_change(&commit.key, commit.expected(), value, since)? {
                            return Ok(CommitOutcome::Committed(change.revision));
                        }
                        if is_inquiry && response.succeeded {
                            // It has not happened so far.
                            tokio::time::sleep(COMMIT_PAUSE).await;
                            continue;
                        }
                    }
                    let outcome = commit.outcome(&response);
                    if let CommitOutcome::Committed(revision) = outcome {
                        self.feeds.wait_for(revision).await?;
                    }
                    return Ok(outcome);
                }
                Err(EtcdCallError::Unknown(reason)) => {
                    has_unknown = true;
                    tracing::debug!(
                        target: LOG_TARGET, key = %commit.key, reason,
                        "outcome of a transaction is unknown; it is looked up"
                    );
                    tokio::time::sleep(COMMIT_PAUSE).await;
                }
                Err(EtcdCallError::Unreachable(_)) if has_unknown => tokio::time::sleep(COMMIT_PAUSE).await,
                Err(_) if has_unknown => return Err(Error::Closed),
                Err(error) if error.is_unknown_lease() && lease != 0 => {
                    self.leases.forget(lease).await;
                    lease = self.leases.lease(&self.client, ttl.unwrap_or_default()).await?;
                }
                Err(error) if error.is_too_large() => {
                    let size = commit.value.as_ref().map_or(0, Bytes::len);
                    return Err(Error::TooLarge { size, limit: MAX_VALUE_BYTES });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn follow(&self, prefix: &Prefix, after: Revision, sink: Box<dyn ChangeSink>) -> Result<Progress, Error> {
        let current = watcher::current_revision(&self.client, &self.root).await?;
        let timed_out = |_| Err(Error::Unavailable("etcd: the watch is behind".into()));
        tokio::time::timeout(FOLLOW_TIMEOUT, self.feeds.wait_for(current)).await.unwrap_or_else(timed_out)?;
        self.feeds.follow(prefix, after, sink)
    }

    async fn at(
        &self,
        prefix: &Prefix,
        from: Option<&str>,
        limit: usize,
        revision: Revision,
    ) -> Result<RecordPage, Error> {
        // etcd takes 0 for the current revision, and for no limit.
        if revision == 0 {
            return Err(Error::Compacted(self.feeds.compacted()));
        }
        let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
        let mut request = RangeRequest { revision: etcd_revision(revision), limit, ..range_of_prefix(prefix) };
        if let Some(from) = from.filter(|from| *from > prefix.as_str()) {
            request.key = convert::bytes(from);
        }
        match self.client.range(&request).await {
            Ok(response) => {
                let records: Vec<_> = response.kvs.iter().filter_map(convert::record).collect();
                let count = usize::try_from(response.count).unwrap_or(0);
                Ok(RecordPage { remaining: count.saturating_sub(response.kvs.len()), records })
            }
            Err(error) if error.is_compacted() => Err(Error::Compacted(self.feeds.compacted().max(revision + 1))),
            Err(error) if error.is_future() => {
                let current = watcher::current_revision(&self.client, &self.root).await?;
                Err(Error::FutureRevision { requested: revision, current })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers who waits for the current revision. One read serves all who waited before it began.
    async fn read_current(&self) {
        loop {
            let waiting = {
                let mut reads = self.current_reads.borrow_mut();
                reads.is_reading = !reads.waiting.is_empty();
                std::mem::take(&mut reads.waiting)
            };
            if waiting.is_empty() {
                return;
            }
            let revision = watcher::current_revision(&self.client, &self.root).await.map_err(Error::from);
            if let Ok(revision) = revision {
                self.feeds.request_progress(revision);
            }
            for reply in waiting {
                reply.send(revision.clone());
            }
        }
    }
}

impl Store for EtcdStore {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        let prefix = prefix.clone();
        self.run(async move |thread| thread.load(&prefix).await)
    }

    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome> {
        if let Mutation::Put { value, .. } = &mutation
            && value.len() > MAX_VALUE_BYTES
        {
            return StoreFuture::ready(Err(Error::TooLarge { size: value.len(), limit: MAX_VALUE_BYTES }));
        }
        if self.0.is_read_only {
            return StoreFuture::ready(Err(Error::Unavailable("the store is read-only".into())));
        }
        let key = key.clone();
        self.run(async move |thread| thread.commit(&key, expect, &mutation, conditions).await)
    }

    fn follow(&self, prefix: &Prefix, after: Revision, sink: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        let prefix = prefix.clone();
        self.run(async move |thread| thread.follow(&prefix, after, sink).await)
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage> {
        let (prefix, from) = (prefix.clone(), from.map(str::to_owned));
        self.run(async move |thread| thread.at(&prefix, from.as_deref(), limit, revision).await)
    }

    fn current(&self) -> StoreFuture<Revision> {
        let (reply, future) = StoreFuture::channel();
        let _ = self.0.calls.send(Box::new(move |thread| {
            let is_first = {
                let mut reads = thread.current_reads.borrow_mut();
                reads.waiting.push(reply);
                !std::mem::replace(&mut reads.is_reading, true)
            };
            if is_first {
                tokio::task::spawn_local(async move { thread.read_current().await });
            }
        }));
        future
    }
}
