//! The contract of [`Store`] as tests, after the scenarios of `k8s.io/apiserver/pkg/storage/testing`. Each store runs
//! all of them; the interop tests include this file and run it with etcd.

use std::sync::{Arc, mpsc};

use super::*;

/// A store under test, and what only its kind can do.
pub(crate) struct StoreUnderTest {
    pub(crate) store: Arc<dyn Store>,
    /// Discards the history up to a revision.
    pub(crate) compact: Box<dyn Fn(Revision)>,
}

/// Runs every scenario, each on a new store.
pub(crate) fn assert_contract(open: impl Fn() -> StoreUnderTest) {
    let scenarios: [fn(&StoreUnderTest); 13] = [
        create_requires_absence,
        update_compares_revision,
        delete_compares_revision,
        conditions_on_other_keys_are_checked_first,
        conditions_and_change_are_one_step,
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
    commit_if(store, key, expect, mutation, &[])
}

/// Commits with conditions, again as long as the store refuses.
pub(crate) fn commit_if(
    store: &dyn Store,
    key: &Key,
    expect: Expect,
    mutation: &Mutation,
    conditions: &[CommitCondition],
) -> CommitOutcome {
    loop {
        match wait(store.commit_if(key, expect, mutation.clone(), conditions.to_vec())) {
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
    pub(crate) last: Revision,
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

#[track_caller]
fn assert_condition_failed(outcome: &CommitOutcome, failed: &CommitCondition) {
    assert!(matches!(outcome, CommitOutcome::ConditionFailed(condition) if condition == failed), "{outcome:?}");
}

fn conditions_on_other_keys_are_checked_first(subject: &StoreUnderTest) {
    let store = &*subject.store;
    let owner = key("/r/owners/a");
    let owned = prefix("/r/owned/a/");
    let (x, empty) = (key("/r/owned/a/x"), CommitCondition::Empty(owned.clone()));
    let at = |revision| CommitCondition::At(owner.clone(), revision);
    let absent = CommitCondition::Absent(owner.clone());
    let create = |conditions: &[CommitCondition]| commit_if(store, &x, Expect::Absent, &Mutation::put("1"), conditions);
    assert_condition_failed(&create(&[at(1)]), &at(1));
    let first = put(store, "/r/owners/a", Expect::Absent, "1");
    let second = put(store, "/r/owners/a", Expect::At(first), "2");
    assert_condition_failed(&create(&[at(second), at(first)]), &at(first));
    assert_condition_failed(&create(std::slice::from_ref(&absent)), &absent);
    assert_eq!(wait(store.load(&owned)).unwrap().records.len(), 0);
    let CommitOutcome::Committed(created) = create(&[at(second), empty.clone()]) else { panic!("not created") };
    assert_condition_failed(&create(std::slice::from_ref(&empty)), &empty);
    assert_conflict(create(&[at(second)]), Some(("1", created)));
    // Neighbors in the order of keys do not count.
    put(store, "/r/owned/a-b/x", Expect::Absent, "1");
    put(store, "/r/owned/ab/x", Expect::Absent, "1");
    let end =
        |conditions: &[CommitCondition]| commit_if(store, &owner, Expect::At(second), &Mutation::Delete, conditions);
    assert_condition_failed(&end(std::slice::from_ref(&empty)), &empty);
    let deleted = delete(store, "/r/owned/a/x", created);
    assert!(matches!(end(&[empty]), CommitOutcome::Committed(revision) if revision == deleted + 1));
    assert_condition_failed(&create(&[at(second)]), &at(second));
    assert!(matches!(create(&[absent]), CommitOutcome::Committed(_)));
}

/// Writers create below an owner while it is ended again and again: nothing that was created stays after its end.
fn conditions_and_change_are_one_step(subject: &StoreUnderTest) {
    let store = &subject.store;
    let (owner, owned) = (key("/r/owners/a"), prefix("/r/owned/a/"));
    let round = std::sync::atomic::AtomicU64::new(put(&**store, "/r/owners/a", Expect::Absent, "1"));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    let (sender, created) = mpsc::channel();
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (round, is_over, owner, owned, sender) = (&round, &is_over, &owner, &owned, sender.clone());
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(order) {
                        break;
                    }
                    let at = owned.key("", &format!("w{writer}-{number}")).unwrap();
                    let begun = round.load(order);
                    let condition = CommitCondition::At(owner.clone(), begun);
                    let outcome = commit_if(&**store, &at, Expect::Absent, &Mutation::put("1"), &[condition]);
                    if matches!(outcome, CommitOutcome::Committed(_)) {
                        sender.send(begun).unwrap();
                    }
                }
            });
        }
        for _ in 0..10 {
            let begun = round.load(order);
            // It ends while they create.
            while created.recv().unwrap() != begun {}
            let mut ended = put(&**store, "/r/owners/a", Expect::At(begun), "ending");
            loop {
                for record in wait(store.load(&owned)).unwrap().records {
                    delete(&**store, record.key.as_str(), record.revision);
                }
                let empty = CommitCondition::Empty(owned.clone());
                match commit_if(&**store, &owner, Expect::At(ended), &Mutation::Delete, &[empty]) {
                    CommitOutcome::Committed(_) => break,
                    CommitOutcome::ConditionFailed(_) => {}
                    CommitOutcome::Conflict(record) => ended = record.unwrap().revision,
                }
            }
            assert_eq!(wait(store.load(&owned)).unwrap().records.len(), 0, "after the end");
            round.store(put(&**store, "/r/owners/a", Expect::Absent, "1"), order);
        }
        is_over.store(true, order);
    });
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
                            CommitOutcome::ConditionFailed(condition) => panic!("{condition:?}"),
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
