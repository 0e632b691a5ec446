//! Reads of the history: they are on other threads than the commits, and read no rows of other keys.

use super::*;
use crate::{Loaded, RecordChange};

/// Longest wait for something that does not happen if a test fails.
const LIMIT: Duration = Duration::from_secs(20);

fn rows_read_by_writer(store: &LocalStore) -> u64 {
    wait(store.send(StoreCommand::RowsRead)).unwrap()
}

/// A store with 3,000 changes of one key, and a few of others.
fn store_with_history(fixture: &StoreFixture) -> LocalStore {
    let store = LocalStore::open(LocalStoreSettings { retained_changes: u64::MAX, ..fixture.settings() }).unwrap();
    let mut last = put(&store, "/r/hot/x", Expect::Absent, "1");
    for _ in 0..3_000 {
        last = put(&store, "/r/hot/x", Expect::At(last), "1");
    }
    let first = put(&store, "/r/cold/x", Expect::Absent, "1");
    put(&store, "/r/cold/x", Expect::At(first), "2");
    put(&store, "/r/cold/y", Expect::Absent, "1");
    store
}

#[test]
fn history_is_read_off_the_thread_that_writes() {
    let fixture = StoreFixture::new();
    let store = store_with_history(&fixture);
    let handle: Arc<dyn Store> = Arc::new(store.clone());
    let hot = prefix("/r/hot/");
    assert_eq!(FeedReader::new(&handle, &hot, FIRST_REVISION).received().len(), 3_001);
    for revision in [FIRST_REVISION + 1, 100, 1_000] {
        let page = wait(store.at(&hot, None, 10, revision)).unwrap();
        assert_eq!((page.records[0].revision, page.remaining), (revision, 0));
    }
    assert_eq!(rows_read_by_writer(&store), 0);
}

#[test]
fn commits_go_on_while_a_history_is_replayed() {
    let fixture = StoreFixture::new();
    let store = store_with_history(&fixture);
    let (entered, replaying) = mpsc::channel();
    let (release, held) = mpsc::channel();
    let following = store.follow(&prefix("/r/hot/"), FIRST_REVISION, Box::new(BlockingSink { held, entered }));
    replaying.recv_timeout(LIMIT).unwrap();
    // Answered while the history of the feed is not.
    let (sender, committed) = mpsc::channel();
    let writing = std::thread::spawn(move || {
        put(&store, "/r/cold/z", Expect::Absent, "1");
        sender.send(()).unwrap();
        store
    });
    let is_committed = committed.recv_timeout(LIMIT).is_ok();
    drop(release);
    // The store stays open until the history is read.
    let _store = writing.join().unwrap();
    wait(following).unwrap();
    assert!(is_committed);
}

/// Notes the revisions of changes; waits in the first call.
struct NotingSink {
    gate: BlockingSink,
    revisions: mpsc::Sender<Revision>,
}

impl ChangeSink for NotingSink {
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool {
        self.gate.apply(changes);
        changes.iter().all(|change| self.revisions.send(change.revision).is_ok())
    }

    fn end(&mut self, _: Error) {}
}

#[test]
fn feed_gets_changes_after_its_history_without_a_gap() {
    let fixture = StoreFixture::new();
    let store = store_with_history(&fixture);
    let hot = prefix("/r/hot/");
    let (entered, replaying) = mpsc::channel();
    let (release, held) = mpsc::channel();
    let (revisions, noted) = mpsc::channel();
    let sink = NotingSink { gate: BlockingSink { held, entered }, revisions };
    let following = store.follow(&hot, FIRST_REVISION, Box::new(sink));
    replaying.recv_timeout(LIMIT).unwrap();
    let mut last = wait(store.load(&hot)).unwrap().records[0].revision;
    for _ in 0..10 {
        last = put(&store, "/r/hot/x", Expect::At(last), "2");
    }
    drop(release);
    let progress = wait(following).unwrap();
    assert!(*progress.borrow() >= last);
    last = put(&store, "/r/hot/x", Expect::At(last), "3");
    let found: Vec<Revision> = noted.try_iter().collect();
    let cold = 3;
    let expected: Vec<Revision> = (2..=3_002).chain(3_003 + cold..=last).collect();
    assert_eq!(found, expected);
}

#[test]
fn read_of_history_takes_rows_of_its_keys_only() {
    let fixture = StoreFixture::new();
    let store = store_with_history(&fixture);
    let Loaded { revision, .. } = wait(store.load(&prefix("/r/"))).unwrap();
    let index = wait(store.send(StoreCommand::Index)).unwrap();
    let cold = index.changes_after(&prefix("/r/cold/"), FIRST_REVISION);
    let in_file = cold.iter().filter(|change| change.current.is_none()).count();
    assert_eq!((cold.len(), in_file), (3, 1));
    assert_eq!(index.values_at(&prefix("/r/cold/"), None, revision - 1).count(), 1);
    assert_eq!(index.values_at(&prefix("/r/hot/"), None, revision).count(), 1);
}

#[test]
fn history_that_is_compacted_while_it_waits_is_refused_as_such() {
    let fixture = StoreFixture::new();
    let store = store_with_history(&fixture);
    let hot = prefix("/r/hot/");
    // Both threads that read are held up.
    let gates: Vec<_> = (0..2)
        .map(|_| {
            let (entered, replaying) = mpsc::channel();
            let (release, held) = mpsc::channel::<()>();
            let following = store.follow(&prefix("/r/cold/"), FIRST_REVISION, Box::new(BlockingSink { held, entered }));
            replaying.recv_timeout(LIMIT).unwrap();
            (release, following)
        })
        .collect();
    let waiting = store.at(&hot, None, 10, 100);
    wait(store.send(|reply| StoreCommand::CompactTo(2_000, reply))).unwrap();
    drop(gates);
    assert_eq!(wait(waiting).unwrap_err(), Error::Compacted(2_000));
    assert_eq!(wait(store.at(&hot, None, 10, 2_000)).unwrap().records[0].revision, 2_000);
    assert_eq!(wait(store.at(&hot, None, 10, 1_999)).unwrap_err(), Error::Compacted(2_000));
}

#[test]
fn store_is_closed_while_its_history_is_read() {
    let fixture = StoreFixture::new();
    let store = store_with_history(&fixture);
    let (entered, replaying) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let following = store.follow(&prefix("/r/hot/"), FIRST_REVISION, Box::new(BlockingSink { held, entered }));
    replaying.recv_timeout(LIMIT).unwrap();
    let closing = store.close();
    drop(release);
    wait(closing).unwrap();
    assert_eq!(wait(following).err(), Some(Error::Closed));
    drop(store);
    assert!(!fixture.folder.path().join("store.db-wal").exists());
    assert_eq!(wait(fixture.open().load(&prefix("/r/"))).unwrap().records.len(), 3);
}
