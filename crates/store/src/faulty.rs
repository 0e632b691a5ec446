//! A store for tests that fails: it refuses commits and ends feeds, both as the contract allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    ChangeSink, CommitCondition, CommitOutcome, Error, Expect, Key, Loaded, Mutation, Prefix, Progress, RecordChange,
    RecordPage, Revision, Store, StoreFuture,
};

/// Wraps a store: two of three commits are refused, feeds end after a few changes.
pub(crate) struct FaultyStore<S> {
    inner: S,
    random: AtomicU64,
}

struct FaultySink {
    inner: Box<dyn ChangeSink>,
    remaining: u64,
}

impl<S> FaultyStore<S> {
    pub(crate) fn new(inner: S, seed: u64) -> FaultyStore<S> {
        FaultyStore { inner, random: AtomicU64::new(seed) }
    }

    fn random(&self, below: u64) -> u64 {
        let seed = self.random.fetch_add(1, Ordering::Relaxed);
        fastrand::Rng::with_seed(seed).u64(..below)
    }
}

impl ChangeSink for FaultySink {
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool {
        let delivered = changes.len().min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        self.remaining -= delivered as u64;
        let is_wanted = delivered == 0 || self.inner.apply(&changes[..delivered]);
        if delivered == changes.len() {
            return is_wanted;
        }
        self.inner.end(Error::Unavailable("feed cut off".into()));
        false
    }

    fn end(&mut self, error: Error) {
        self.inner.end(error);
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        self.inner.load(prefix)
    }

    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome> {
        match self.random(3) {
            0 => self.inner.commit_if(key, expect, mutation, conditions),
            1 => StoreFuture::ready(Err(Error::Full)),
            _ => StoreFuture::ready(Err(Error::Unavailable("refused".into()))),
        }
    }

    fn follow(&self, prefix: &Prefix, after: Revision, inner: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        let remaining = 1 + self.random(20);
        self.inner.follow(prefix, after, Box::new(FaultySink { inner, remaining }))
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage> {
        self.inner.at(prefix, from, limit, revision)
    }

    fn current(&self) -> StoreFuture<Revision> {
        self.inner.current()
    }
}
