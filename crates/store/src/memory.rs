//! A store in memory: the contract in its plainest form, for tests and for data that need not survive.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    ChangeSink, CommitCondition, CommitOutcome, Error, Expect, FIRST_REVISION, Key, KeyValue, Loaded, Mutation, Prefix,
    Progress, RecordChange, RecordPage, Revision, Store, StoreFuture,
};

/// Default number of changes that are kept for feeds and older reads.
const MAX_HISTORY: usize = 102_400;

/// A store without a file. It does not expire records. Cheap to clone.
#[derive(Clone)]
pub struct MemoryStore(Arc<Mutex<MemoryState>>);

struct MemoryState {
    revision: Revision,
    compacted: Revision,
    records: BTreeMap<Key, Arc<KeyValue>>,
    history: VecDeque<Arc<RecordChange>>,
    max_history: usize,
    sinks: Vec<(Prefix, Revision, Box<dyn ChangeSink>)>,
    published: watch::Sender<Revision>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::starting_at(FIRST_REVISION, MAX_HISTORY)
    }

    /// Creates an empty store with this revision that keeps at most `max_history` changes.
    pub fn starting_at(revision: Revision, max_history: usize) -> MemoryStore {
        MemoryStore(Arc::new(Mutex::new(MemoryState {
            revision,
            compacted: revision,
            records: BTreeMap::new(),
            history: VecDeque::new(),
            max_history,
            sinks: Vec::new(),
            published: watch::Sender::new(revision),
        })))
    }

    /// Discards the history up to and including `revision`.
    pub fn compact(&self, revision: Revision) {
        self.0.lock().compact(revision);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl MemoryState {
    fn compact(&mut self, revision: Revision) {
        while self.history.front().is_some_and(|change| change.revision <= revision) {
            self.history.pop_front();
        }
        self.compacted = self.compacted.max(revision.min(self.revision));
    }

    fn is_met(&self, condition: &CommitCondition) -> bool {
        match condition {
            CommitCondition::At(key, revision) => {
                self.records.get(key).is_some_and(|record| record.revision == *revision)
            }
            CommitCondition::Absent(key) => !self.records.contains_key(key),
            CommitCondition::Empty(prefix) => records_below(&self.records, prefix).next().is_none(),
        }
    }

    fn commit(
        &mut self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> Result<CommitOutcome, Error> {
        mutation.check_size()?;
        if let Some(failed) = conditions.into_iter().find(|condition| !self.is_met(condition)) {
            return Ok(CommitOutcome::ConditionFailed(failed));
        }
        let old = self.records.get(key).cloned();
        if !expect.is_met_by(old.as_ref().map(|old| old.revision)) {
            return Ok(CommitOutcome::Conflict(old));
        }
        let value = match mutation {
            Mutation::Put { value, .. } => Some((value, None)),
            Mutation::Delete => None,
        };
        if value.is_none() && old.is_none() {
            return Ok(CommitOutcome::Conflict(None));
        }
        self.revision += 1;
        let change = Arc::new(RecordChange::new(key, self.revision, old, value));
        match &change.new {
            Some(new) => self.records.insert(key.clone(), new.clone()),
            None => self.records.remove(key),
        };
        self.history.push_back(change.clone());
        if self.history.len() > self.max_history
            && let Some(oldest) = self.history.front().map(|oldest| oldest.revision)
        {
            self.compact(oldest);
        }
        self.sinks.retain_mut(|(prefix, after, sink)| {
            !prefix.contains(key) || change.revision <= *after || sink.apply(std::slice::from_ref(&change))
        });
        self.published.send_replace(self.revision);
        Ok(CommitOutcome::Committed(self.revision))
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> Result<RecordPage, Error> {
        if revision > self.revision {
            return Err(Error::FutureRevision { requested: revision, current: self.revision });
        }
        if revision < self.compacted {
            return Err(Error::Compacted(self.compacted));
        }
        let newer = self.history.iter().rev().take_while(|change| change.revision > revision);
        Ok(page_before(&self.records, newer.map(|change| &**change), prefix, from, limit))
    }
}

/// The records below a prefix, by key.
fn records_below<'m>(
    records: &'m BTreeMap<Key, Arc<KeyValue>>,
    prefix: &'m Prefix,
) -> impl Iterator<Item = &'m Arc<KeyValue>> {
    let range = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    records.range::<str, _>(range).take_while(|(key, _)| prefix.contains(key)).map(|(_, record)| record)
}

/// The first records of a prefix at an older revision: its records now, with `newer` changes undone from the last on.
fn page_before<'c>(
    records: &BTreeMap<Key, Arc<KeyValue>>,
    newer: impl Iterator<Item = &'c RecordChange>,
    prefix: &Prefix,
    from: Option<&str>,
    limit: usize,
) -> RecordPage {
    let mut records: BTreeMap<&str, Arc<KeyValue>> =
        records_below(records, prefix).map(|record| (record.key.as_str(), record.clone())).collect();
    for change in newer.filter(|change| prefix.contains(&change.key)) {
        match change.old.clone() {
            Some(old) => records.insert(change.key.as_str(), old),
            None => records.remove(change.key.as_str()),
        };
    }
    let mut records = records.into_values().filter(|record| from.is_none_or(|from| record.key.as_str() >= from));
    let page = records.by_ref().take(limit).collect();
    RecordPage { records: page, remaining: records.count() }
}

impl Store for MemoryStore {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        let state = self.0.lock();
        let records = records_below(&state.records, prefix).cloned().collect();
        StoreFuture::ready(Ok(Loaded { revision: state.revision, oldest: state.compacted, records }))
    }

    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome> {
        StoreFuture::ready(self.0.lock().commit(key, expect, mutation, conditions))
    }

    fn follow(&self, prefix: &Prefix, after: Revision, mut sink: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        let mut state = self.0.lock();
        if after < state.compacted {
            return StoreFuture::ready(Err(Error::Compacted(state.compacted)));
        }
        let missed = state.history.iter().filter(|change| change.revision > after && prefix.contains(&change.key));
        let missed: Vec<_> = missed.cloned().collect();
        if missed.is_empty() || sink.apply(&missed) {
            state.sinks.push((prefix.clone(), after, sink));
        }
        StoreFuture::ready(Ok(state.published.subscribe()))
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage> {
        StoreFuture::ready(self.0.lock().at(prefix, from, limit, revision))
    }

    fn current(&self) -> StoreFuture<Revision> {
        StoreFuture::ready(Ok(self.0.lock().revision))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::FaultyStore;
    use super::super::contract::{StoreUnderTest, assert_contract};
    use super::super::random_history::{assert_history, steps};
    use super::*;

    fn memory(wrap: impl Fn(MemoryStore) -> Arc<dyn Store>) -> StoreUnderTest {
        let store = MemoryStore::new();
        let compacted = store.clone();
        StoreUnderTest { store: wrap(store), compact: Box::new(move |revision| compacted.compact(revision)) }
    }

    #[test]
    fn store_contract_memory() {
        assert_contract(|| memory(|store| Arc::new(store)));
    }

    #[test]
    fn store_contract_faulty() {
        for seed in 0..10 {
            assert_contract(|| memory(|store| Arc::new(FaultyStore::new(store, seed * 1_000))));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn store_history_memory(steps in steps()) {
            assert_history(Arc::new(MemoryStore::new()), steps, |store| store);
        }

        #[test]
        fn store_history_faulty(steps in steps(), seed in any::<u32>()) {
            let store = Arc::new(FaultyStore::new(MemoryStore::new(), seed.into()));
            assert_history(store, steps, |store| store);
        }
    }
}
