//! Random histories of a store, compared with a map for each revision. Each store runs them; the interop tests include this
//! file and run it with etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::contract::{FeedReader, commit, key, prefix, wait};
use super::*;

/// A step of a random history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Puts or deletes one of a few keys, with the right expectation or a stale one.
    Commit { key: u8, value: Option<u16>, is_stale: bool },
    /// Reads the state at an older revision, counted back from the current one.
    ReadAt { back: u64 },
    /// Closes the store and opens it again.
    Reopen,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let commit = (0..6u8, prop::option::weighted(0.7, any::<u16>()), prop::bool::weighted(0.1));
    let commit = commit.prop_map(|(key, value, is_stale)| Step::Commit { key, value, is_stale });
    let step =
        prop_oneof![12 => commit, 2 => (0..30u64).prop_map(|back| Step::ReadAt { back }), 1 => Just(Step::Reopen)];
    prop::collection::vec(step, 1..60)
}

/// Runs a history and compares the store with a map a revision. `reopen` closes the store and opens it again.
pub(crate) fn assert_history(
    mut store: Arc<dyn Store>,
    steps: Vec<Step>,
    mut reopen: impl FnMut(Arc<dyn Store>) -> Arc<dyn Store>,
) {
    let all = prefix("/r/");
    let mut states: BTreeMap<Revision, BTreeMap<Key, (Revision, Bytes)>> =
        BTreeMap::from([(FIRST_REVISION, BTreeMap::new())]);
    let mut acknowledged = BTreeSet::new();
    let mut feed = FeedReader::new(&store, &all, FIRST_REVISION);
    let mut fed = Vec::new();
    for step in steps {
        let (current, state) = states.last_key_value().map(|(revision, state)| (*revision, state.clone())).unwrap();
        match step {
            Step::Commit { key: name, value, is_stale } => {
                let key = key(&format!("/r/{}/{name}", name % 2));
                let held = state.get(&key).map(|(revision, _)| *revision);
                let expect = match held {
                    _ if is_stale => Expect::At(current + 7),
                    Some(revision) => Expect::At(revision),
                    None => Expect::Absent,
                };
                let bytes = value.map(|value| Bytes::from(value.to_string()));
                let mutation = bytes.clone().map_or(Mutation::Delete, Mutation::put);
                match commit(&*store, &key, expect, &mutation) {
                    CommitOutcome::Committed(revision) => {
                        assert!(!is_stale && revision == current + 1 && acknowledged.insert(revision));
                        let mut next = state;
                        match bytes {
                            Some(bytes) => next.insert(key, (revision, bytes)),
                            None => next.remove(&key),
                        };
                        states.insert(revision, next);
                    }
                    CommitOutcome::Conflict(record) => {
                        assert!(is_stale || value.is_none() && held.is_none());
                        assert_eq!(record.map(|record| record.revision), held);
                    }
                    CommitOutcome::ConditionFailed(condition) => panic!("{condition:?}"),
                }
            }
            Step::ReadAt { back } => {
                let revision = current.saturating_sub(back).max(FIRST_REVISION);
                let page = wait(store.at(&all, None, usize::MAX, revision)).unwrap();
                assert_eq!(as_state(&page.records), states[&revision]);
            }
            Step::Reopen => {
                fed.extend(feed.received());
                let last = feed.last;
                drop(feed);
                store = reopen(store);
                assert_eq!(wait(store.current()), Ok(current));
                feed = FeedReader::new(&store, &all, last);
            }
        }
        let (current, state) = states.last_key_value().unwrap();
        let loaded = wait(store.load(&all)).unwrap();
        assert_eq!((loaded.revision, &as_state(&loaded.records)), (*current, state));
        fed.extend(feed.received());
    }
    // A feed that has ended resumes at its next read.
    fed.extend(feed.received());
    let mut replayed = BTreeMap::new();
    for change in &fed {
        match &change.new {
            Some(new) => replayed.insert(change.key.clone(), (new.revision, new.value.clone())),
            None => replayed.remove(&change.key),
        };
        assert_eq!(replayed, states[&change.revision], "a feed has no gap");
    }
    assert_eq!(
        fed.iter().map(|change| change.revision).collect::<Vec<_>>(),
        acknowledged.into_iter().collect::<Vec<_>>()
    );
}

fn as_state(records: &[Arc<KeyValue>]) -> BTreeMap<Key, (Revision, Bytes)> {
    records.iter().map(|record| (record.key.clone(), (record.revision, record.value.clone()))).collect()
}
