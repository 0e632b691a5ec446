//! The contract of [`Store`] as tests, after the scenarios of `k8s.io/apiserver/pkg/storage/testing`. Each store runs
//! all of them; the interop tests include this file and run it with etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

/// A store under test, and what only its kind can do.
pub(crate) struct StoreUnderTest {
    pub(crate) store: Arc<dyn Store>,
    /// Discards the history up to a revision.
    pub(crate) compact: Box<dyn Fn(Revision)>,
}

/// Runs every scenario, each on a new store.
pub(crate) fn assert_contract(open: impl Fn() -> StoreUnderTest) {
    let scenarios: [fn(&StoreUnderTest); 11] = [
        create_requires_absence,
        update_compares_revision,
        delete_compares_revision,
        revisions_step_by_one_over_all_keys,
        load_is_limited_to_prefix_and_sorted,
        feed_precedes_the_answer,
        feed_replays_history_with_old_values,
        feed_and_reads_end_at_compaction,
        read_at_older_revision_in_pages,
        values_are_kept_as_they_are,
        concurrent_commits_have_one_winner,
    ];
    scenarios.iter().for_each(|scenario| scenario(&open()));
}

pub(crate) fn wait<T: Unpin>(future: StoreFuture<T>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

/// Commits, again as long as the store refuses.
pub(crate) fn commit(store: &dyn Store, key: &Key, expect: Expect, mutation: &Mutation) -> CommitOutcome {
    loop {
        match wait(store.commit(key, expect, mutation.clone())) {
            Ok(outcome) => return outcome,
            Err(Error::Full | Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) fn put(store: &dyn Store, text: &str, expect: Expect, value: &'static str) -> Revision {
    match commit(store, &key(text), expect, &Mutation::put(value)) {
        CommitOutcome::Committed(revision) => revision,
        conflict => panic!("{text}: {conflict:?}"),
    }
}

fn delete(store: &dyn Store, text: &str, revision: Revision) -> Revision {
    match commit(store, &key(text), Expect::At(revision), &Mutation::Delete) {
        CommitOutcome::Committed(revision) => revision,
        conflict => panic!("{text}: {conflict:?}"),
    }
}

#[track_caller]
fn assert_conflict(outcome: CommitOutcome, current: Option<(&str, Revision)>) {
    let CommitOutcome::Conflict(record) = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        record.as_ref().map(|record| (&*record.value, record.revision)),
        current.map(|(v, r)| (v.as_bytes(), r))
    );
}

/// Follows a prefix, again when the feed ends.
pub(crate) struct FeedReader {
    store: Arc<dyn Store>,
    prefix: Prefix,
    last: Revision,
    received: mpsc::Receiver<Result<Arc<RecordChange>, Error>>,
}

struct FeedSender(mpsc::Sender<Result<Arc<RecordChange>, Error>>);

impl ChangeSink for FeedSender {
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool {
        changes.iter().all(|change| self.0.send(Ok(change.clone())).is_ok())
    }

    fn end(&mut self, error: Error) {
        let _ = self.0.send(Err(error));
    }
}

impl FeedReader {
    pub(crate) fn new(store: &Arc<dyn Store>, prefix: &Prefix, after: Revision) -> FeedReader {
        let (sender, received) = mpsc::channel();
        wait(store.follow(prefix, after, Box::new(FeedSender(sender)))).unwrap();
        FeedReader { store: store.clone(), prefix: prefix.clone(), last: after, received }
    }

    /// The changes up to the end of a feed that the store ended.
    #[allow(dead_code, reason = "not every store that is tested can end")]
    pub(crate) fn received_until_end(&mut self) -> Vec<Arc<RecordChange>> {
        self.received.iter().map_while(Result::ok).collect()
    }

    /// The changes that have arrived. Nothing is waited for: a feed precedes the answer to its commit.
    pub(crate) fn received(&mut self) -> Vec<Arc<RecordChange>> {
        let mut changes = Vec::new();
        while let Ok(received) = self.received.try_recv() {
            match received {
                Ok(change) => {
                    assert!(change.revision > self.last, "{change:?} after {}", self.last);
                    assert!(self.prefix.contains(&change.key));
                    self.last = change.revision;
                    changes.push(change);
                }
                Err(_) => *self = FeedReader::new(&self.store, &self.prefix, self.last),
            }
        }
        changes
    }
}

fn create_requires_absence(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let first = put(store, "/r/a/x", Expect::Absent, "1");
    assert_conflict(commit(store, &key("/r/a/x"), Expect::Absent, &Mutation::put("2")), Some(("1", first)));
    let loaded = wait(store.load(&prefix("/r/a/"))).unwrap();
    let record = &loaded.records[0];
    assert_eq!((record.created, record.revision, record.expires, loaded.revision), (first, first, None, first));
}

fn update_compares_revision(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let x = key("/r/a/x");
    assert_conflict(commit(store, &x, Expect::At(1), &Mutation::put("0")), None);
    let first = put(store, "/r/a/x", Expect::Absent, "1");
    let second = put(store, "/r/a/x", Expect::At(first), "2");
    for stale in [0, first, second + 1] {
        assert_conflict(commit(store, &x, Expect::At(stale), &Mutation::put("3")), Some(("2", second)));
    }
    let record = wait(store.load(&prefix("/r/a/"))).unwrap().records[0].clone();
    assert_eq!((record.created, record.revision), (first, second));
}

fn delete_compares_revision(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let x = key("/r/a/x");
    assert_conflict(commit(store, &x, Expect::At(1), &Mutation::Delete), None);
    assert_conflict(commit(store, &x, Expect::Absent, &Mutation::Delete), None);
    let first = put(store, "/r/a/x", Expect::Absent, "1");
    assert_conflict(commit(store, &x, Expect::At(first + 1), &Mutation::Delete), Some(("1", first)));
    let deleted = delete(store, "/r/a/x", first);
    assert_eq!(deleted, first + 1);
    assert!(wait(store.load(&prefix("/r/a/"))).unwrap().records.is_empty());
    assert_conflict(commit(store, &x, Expect::At(deleted), &Mutation::put("2")), None);
    let again = put(store, "/r/a/x", Expect::Absent, "2");
    assert_eq!(wait(store.load(&prefix("/r/a/"))).unwrap().records[0].created, again);
}

fn revisions_step_by_one_over_all_keys(subject: &StoreUnderTest) {
    let store = &*subject.store;
    assert_eq!(wait(store.current()), Ok(FIRST_REVISION));
    assert_eq!(wait(store.load(&prefix("/r/a/"))).unwrap().revision, FIRST_REVISION);
    let keys = ["/r/a/x", "/r/b/x", "/r/a/y"];
    for (at, key) in (1..).zip(keys) {
        assert_eq!(put(store, key, Expect::Absent, "1"), FIRST_REVISION + at);
        assert_eq!(wait(store.current()), Ok(FIRST_REVISION + at));
    }
    assert_eq!(wait(store.load(&prefix("/r/c/"))).unwrap().revision, FIRST_REVISION + 3);
}

fn load_is_limited_to_prefix_and_sorted(subject: &StoreUnderTest) {
    let store = &*subject.store;
    for text in ["/r/foobar/a", "/r/foo/b", "/r/foo/ns/a", "/r/foo/a", "/r/fo/a", "/r/foo/a-b"] {
        put(store, text, Expect::Absent, "1");
    }
    let keys = |text| -> Vec<String> {
        wait(store.load(&prefix(text))).unwrap().records.iter().map(|record| record.key.to_string()).collect()
    };
    assert_eq!(keys("/r/foo/"), ["/r/foo/a", "/r/foo/a-b", "/r/foo/b", "/r/foo/ns/a"]);
    assert_eq!(keys("/r/foo/ns/"), ["/r/foo/ns/a"]);
    assert_eq!(keys("/r/"), ["/r/fo/a", "/r/foo/a", "/r/foo/a-b", "/r/foo/b", "/r/foo/ns/a", "/r/foobar/a"]);
}

fn feed_precedes_the_answer(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let mut feeds: Vec<_> =
        ["/r/a/", "/r/b/", "/r/"].map(|text| FeedReader::new(&subject.store, &prefix(text), FIRST_REVISION)).into();
    let mut last = 0;
    for round in 0..60 {
        let expect = if round == 0 { Expect::Absent } else { Expect::At(last) };
        last = put(store, "/r/a/x", expect, "1");
        let revisions =
            |feed: &mut FeedReader| feed.received().iter().map(|change| change.revision).collect::<Vec<_>>();
        assert_eq!(feeds.iter_mut().map(revisions).collect::<Vec<_>>(), [vec![last], vec![], vec![last]]);
    }
    let progress = wait(store.follow(&prefix("/r/c/"), last, Box::new(FeedSender(mpsc::channel().0)))).unwrap();
    assert_eq!(*progress.borrow(), last);
    let next = put(store, "/r/b/x", Expect::Absent, "1");
    assert_eq!(*progress.borrow(), next, "progress does not depend on the prefix");
}

fn feed_replays_history_with_old_values(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let first = put(store, "/r/a/x", Expect::Absent, "1");
    put(store, "/r/b/x", Expect::Absent, "other");
    let second = put(store, "/r/a/x", Expect::At(first), "2");
    let deleted = delete(store, "/r/a/x", second);
    let again = put(store, "/r/a/x", Expect::Absent, "3");
    let text = |record: &Option<Arc<KeyValue>>| {
        record.as_ref().map(|record| (String::from_utf8(record.value.to_vec()).unwrap(), record.revision))
    };
    let some = |value: &str, revision| Some((value.to_owned(), revision));
    let expected = [
        (first, None, some("1", first)),
        (second, some("1", first), some("2", second)),
        (deleted, some("2", second), None),
        (again, None, some("3", again)),
    ];
    for after in [FIRST_REVISION, first, second, deleted, again, again + 1] {
        let mut feed = FeedReader::new(&subject.store, &prefix("/r/a/"), after);
        let mut found = feed.received();
        found.extend(feed.received());
        let found: Vec<_> = found.iter().map(|c| (c.revision, text(&c.old), text(&c.new))).collect();
        assert_eq!(found, expected.iter().filter(|change| change.0 > after).cloned().collect::<Vec<_>>(), "{after}");
    }
}

fn feed_and_reads_end_at_compaction(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let first = put(store, "/r/a/x", Expect::Absent, "1");
    let second = put(store, "/r/a/x", Expect::At(first), "2");
    let other = put(store, "/r/a/y", Expect::Absent, "1");
    let third = put(store, "/r/a/x", Expect::At(second), "3");
    (subject.compact)(other);
    assert_eq!(wait(store.load(&prefix("/r/a/"))).unwrap().oldest, other);
    let a = prefix("/r/a/");
    let sink = || Box::new(FeedSender(mpsc::channel().0));
    assert_eq!(wait(store.follow(&a, second, sink())).unwrap_err(), Error::Compacted(other));
    assert_eq!(wait(store.at(&a, None, 9, second)).unwrap_err(), Error::Compacted(other));
    let old = FeedReader::new(&subject.store, &a, other).received()[0].old.clone().unwrap();
    assert_eq!((old.revision, &*old.value), (second, &b"2"[..]), "the value before a kept change is kept");
    let page = wait(store.at(&a, None, 9, other)).unwrap();
    assert_eq!(page.records.iter().map(|record| record.revision).collect::<Vec<_>>(), [second, other]);
    let loaded = wait(store.load(&a)).unwrap();
    assert_eq!(loaded.records.iter().map(|record| record.revision).collect::<Vec<_>>(), [third, other]);
}

fn read_at_older_revision_in_pages(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let a = put(store, "/r/a/a", Expect::Absent, "1");
    let b = put(store, "/r/a/b", Expect::Absent, "1");
    put(store, "/r/b/x", Expect::Absent, "1");
    let c = put(store, "/r/a/c", Expect::Absent, "1");
    let a2 = put(store, "/r/a/a", Expect::At(a), "2");
    let gone = delete(store, "/r/a/b", b);
    let d = put(store, "/r/a/d", Expect::Absent, "1");
    let read = |from: Option<&str>, limit, revision| {
        let page = wait(store.at(&prefix("/r/a/"), from, limit, revision)).unwrap();
        (page.records.iter().map(|record| record.revision).collect::<Vec<_>>(), page.remaining)
    };
    assert_eq!(read(None, 9, FIRST_REVISION), (vec![], 0));
    assert_eq!(read(None, 9, c), (vec![a, b, c], 0));
    assert_eq!(read(None, 2, c), (vec![a, b], 1));
    assert_eq!(read(Some("/r/a/b"), 1, c), (vec![b], 1));
    assert_eq!(read(Some("/r/a/bb"), 9, c), (vec![c], 0));
    assert_eq!(read(None, 9, a2), (vec![a2, b, c], 0));
    assert_eq!(read(None, 1, gone), (vec![a2], 1));
    assert_eq!(read(None, 9, d), (vec![a2, c, d], 0));
    let future = wait(store.at(&prefix("/r/a/"), None, 9, d + 1)).unwrap_err();
    assert_eq!(future, Error::FutureRevision { requested: d + 1, current: d });
}

fn values_are_kept_as_they_are(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let all: Vec<u8> = (0..=255).collect();
    let largest = vec![7; MAX_VALUE_BYTES];
    for (name, value) in [("empty", vec![]), ("bytes", all), ("largest", largest)] {
        let at = prefix("/r/a/").key("", name).unwrap();
        commit(store, &at, Expect::Absent, &Mutation::put(value.clone()));
        let record =
            wait(store.at(&prefix("/r/a/"), Some(at.as_str()), 1, wait(store.current()).unwrap())).unwrap().records[0]
                .clone();
        assert!(record.key == at && record.value == value, "{name}");
    }
    let size = MAX_VALUE_BYTES + 1;
    let refused = loop {
        match wait(store.commit(&key("/r/a/over"), Expect::Absent, Mutation::put(vec![0; size]))) {
            Err(Error::Full | Error::Unavailable(_)) => {}
            other => break other.unwrap_err(),
        }
    };
    assert_eq!(refused, Error::TooLarge { size, limit: MAX_VALUE_BYTES });
    assert_eq!(wait(store.load(&prefix("/r/a/"))).unwrap().records.len(), 3);
}

fn concurrent_commits_have_one_winner(subject: &StoreUnderTest) {
    let all = prefix("/r/");
    let mut feed = FeedReader::new(&subject.store, &all, FIRST_REVISION);
    let mut won = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let store = subject.store.clone();
                scope.spawn(move || {
                    let mut won = Vec::new();
                    let mut expect = Expect::Absent;
                    while won.len() < 25 {
                        expect = match commit(&*store, &key("/r/a/x"), expect, &Mutation::put("1")) {
                            CommitOutcome::Committed(revision) => {
                                won.push(revision);
                                Expect::At(revision)
                            }
                            CommitOutcome::Conflict(current) => {
                                current.map_or(Expect::Absent, |c| Expect::At(c.revision))
                            }
                        };
                    }
                    won
                })
            })
            .collect();
        won.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap()));
    });
    won.sort_unstable();
    assert_eq!(
        won,
        (FIRST_REVISION + 1..=FIRST_REVISION + 100).collect::<Vec<_>>(),
        "no revision twice, none left out"
    );
    let mut fed = feed.received();
    fed.extend(feed.received());
    assert_eq!(fed.iter().map(|change| change.revision).collect::<Vec<_>>(), won);
    for pair in fed.windows(2) {
        assert_eq!(pair[0].new, pair[1].old);
    }
}

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
