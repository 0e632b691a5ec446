//! Tests of the store in a file: the contract, what is kept across a restart, and what is refused.

mod backup;
mod history_reads;
mod kill;
mod wal;

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::contract::{FeedReader, StoreUnderTest, assert_contract, commit, key, prefix, put, wait};
use crate::random_history::{assert_history, steps};
use crate::{CommitOutcome, FIRST_REVISION, FaultyStore};

/// A folder for a store, whose clock stands still and whose failures are noted.
struct StoreFixture {
    folder: TempDir,
    /// The monotonic clock.
    now: Arc<AtomicU64>,
    /// How far the wall clock is ahead of it.
    offset: Arc<AtomicU64>,
    aborted: Arc<Mutex<Vec<String>>>,
}

impl StoreFixture {
    fn new() -> StoreFixture {
        let now = Arc::new(AtomicU64::new(1_000_000));
        StoreFixture { folder: tempfile::tempdir().unwrap(), now, offset: Arc::default(), aborted: Arc::default() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    fn settings(&self) -> LocalStoreSettings {
        let (now, aborted) = (self.now.clone(), self.aborted.clone());
        let (monotonic, offset) = (now.clone(), self.offset.clone());
        LocalStoreSettings {
            synchronizes: false,
            retained_changes: 0,
            clock: Arc::new(move || now.load(Ordering::SeqCst) + offset.load(Ordering::SeqCst)),
            monotonic: Arc::new(move || monotonic.load(Ordering::SeqCst)),
            abort: Arc::new(move |reason| aborted.lock().push(reason.to_owned())),
            ..LocalStoreSettings::new(self.file())
        }
    }

    fn open(&self) -> LocalStore {
        LocalStore::open(self.settings()).unwrap()
    }

    fn advance(&self, seconds: u64) {
        self.now.fetch_add(seconds * 1_000, Ordering::SeqCst);
    }

    /// Edits the closed file as another program would.
    fn edit(&self, statements: &str) {
        Connection::open(self.file()).unwrap().execute_batch(statements).unwrap();
    }

    #[track_caller]
    fn assert_refused(&self, expected: &[&str]) {
        let text = LocalStore::open(self.settings()).err().expect("the store was opened").to_string();
        let file = self.file();
        for part in expected.iter().chain([&file.to_str().unwrap()]) {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
}

fn subject(wrap: fn(LocalStore) -> Arc<dyn Store>) -> StoreUnderTest {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let compacted = store.clone();
    // The revision to compact to is the one at a time that is five minutes old.
    let compact = move |revision| {
        let kept = wait(compacted.current()).unwrap() - revision;
        assert!(kept > 0);
        wait(compacted.send(|reply| StoreCommand::CompactTo(revision, reply))).unwrap();
        let _ = &fixture;
    };
    StoreUnderTest { store: wrap(store), compact: Box::new(compact) }
}

#[test]
fn store_contract_local() {
    assert_contract(|| subject(|store| Arc::new(store)));
}

#[test]
fn store_contract_local_faulty() {
    assert_contract(|| subject(|store| Arc::new(FaultyStore::new(store, 7))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn store_history_local_across_restarts(steps in steps()) {
        let fixture = StoreFixture::new();
        assert_history(Arc::new(fixture.open()), steps, |store| {
            drop(store);
            Arc::new(fixture.open())
        });
    }
}

#[test]
fn store_file_is_private_and_synchronized_by_default() {
    let fixture = StoreFixture::new();
    let store = LocalStore::open(LocalStoreSettings::new(fixture.file())).unwrap();
    put(&store, "/r/a/x", Expect::Absent, "1");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fixture.folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["store.db", "store.db-wal", "store.db.lock"]);
}

#[tokio::test]
async fn store_closed_has_no_log_and_answers_closed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    let store = LocalStore::open(LocalStoreSettings::new(&file)).unwrap();
    let key = Key::parse("/r/a").unwrap();
    let written = store.commit(&key, Expect::Absent, Mutation::put("x"));
    store.close().await.unwrap();
    assert!(written.await.is_ok(), "what was sent before is written");
    assert_eq!(store.current().await, Err(Error::Closed));
    assert_eq!(store.close().await, Err(Error::Closed));
    assert!(!folder.path().join("store.db-wal").exists());
    assert!(store.monitor().is_closed());
}

#[test]
fn store_in_use_is_refused_by_process() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fixture.assert_refused(&["in use", &std::process::id().to_string()]);
    drop(store);
    fixture.open();
}

#[test]
fn store_of_other_version_is_refused() {
    let fixture = StoreFixture::new();
    drop(fixture.open());
    fixture.edit("PRAGMA user_version = 7");
    fixture.assert_refused(&["format version 7", "supports 1"]);
    fixture.edit("PRAGMA user_version = 1; PRAGMA application_id = 0");
    fixture.assert_refused(&["another program"]);
}

#[test]
fn store_with_wrong_checksum_names_key() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    put(&store, "/r/a/x", Expect::Absent, "1");
    let y = put(&store, "/r/a/y", Expect::Absent, "1");
    drop(store);
    for (edit, reason) in [
        ("UPDATE record SET value = x'32' WHERE key = '/r/a/y'", "checksum"),
        ("UPDATE record SET value = NULL WHERE key = '/r/a/y'", "checksum"),
        ("UPDATE record SET deleted = 1 WHERE key = '/r/a/y'", "checksum"),
        ("DELETE FROM record WHERE key = '/r/a/x'", "revision before it is missing"),
    ] {
        let intact = std::fs::read(fixture.file()).unwrap();
        fixture.edit(edit);
        fixture.assert_refused(&[reason, "/r/a/y", &format!("revision {y}")]);
        std::fs::write(fixture.file(), intact).unwrap();
    }
    assert_eq!(wait(fixture.open().load(&prefix("/r/a/"))).unwrap().records.len(), 2);
}

#[test]
fn store_cut_off_or_overwritten_is_refused() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    for name in 0..200 {
        let key = prefix("/r/a/").key("", &format!("n{name}")).unwrap();
        commit(&store, &key, Expect::Absent, &Mutation::put(vec![b'a'; 1_000]));
    }
    drop(store);
    let whole = std::fs::read(fixture.file()).unwrap();
    for length in [0, 1, 100, 4_096, 8_192, whole.len() / 2, whole.len() - 4_096, whole.len() - 1] {
        std::fs::write(fixture.file(), &whole[..length]).unwrap();
        fixture.assert_refused(&["damaged"]);
    }
    for (at, bytes) in [(0, 100), (4_096, 4_096), (whole.len() / 2, 4_096)] {
        let mut damaged = whole.clone();
        damaged[at..at + bytes].fill(0xa5);
        std::fs::write(fixture.file(), damaged).unwrap();
        fixture.assert_refused(&["damaged"]);
    }
    std::fs::write(fixture.file(), whole).unwrap();
    assert_eq!(wait(fixture.open().load(&prefix("/r/a/"))).unwrap().records.len(), 200);
}

#[test]
fn store_with_flipped_bit_never_differs_silently() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    for name in 0..40 {
        let key = prefix("/r/a/").key("", &format!("n{name}")).unwrap();
        commit(&store, &key, Expect::Absent, &Mutation::put(vec![b'a'; 300]));
    }
    let intact = wait(store.load(&prefix("/r/"))).unwrap();
    drop(store);
    let whole = std::fs::read(fixture.file()).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(37) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(fixture.file(), damaged).unwrap();
        match LocalStore::open(fixture.settings()) {
            Ok(store) => {
                let loaded = wait(store.load(&prefix("/r/"))).unwrap();
                assert_eq!((loaded.revision, loaded.records), (intact.revision, intact.records.clone()), "byte {at}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 300, "{refused} of {}", whole.len() / 37);
}

#[test]
fn store_log_without_its_database_is_refused() {
    let fixture = StoreFixture::new();
    std::fs::write(fixture.folder.path().join("store.db-wal"), "x").unwrap();
    fixture.assert_refused(&["store.db-wal"]);
}

#[test]
fn store_full_refuses_and_stays_whole() {
    let fixture = StoreFixture::new();
    let store = LocalStore::open(LocalStoreSettings { max_bytes: 1 << 20, ..fixture.settings() }).unwrap();
    let large = Mutation::put(vec![1; 100_000]);
    let at = |name: usize| prefix("/r/a/").key("", &format!("n{name:02}")).unwrap();
    let refused = (0..).find(|name| wait(store.commit(&at(*name), Expect::Absent, large.clone())).is_err()).unwrap();
    assert!((8..12).contains(&refused), "{refused}");
    assert_eq!(wait(store.commit(&at(refused), Expect::Absent, large.clone())).unwrap_err(), Error::Full);
    let current = wait(store.current()).unwrap();
    assert_eq!(current, FIRST_REVISION + refused as u64, "a refused commit has no revision");
    put(&store, "/r/a/small", Expect::Absent, "1");
    drop(store);
    let store = fixture.open();
    assert_eq!(wait(store.load(&prefix("/r/a/"))).unwrap().records.len(), refused + 1);
    assert_eq!(*fixture.aborted.lock(), Vec::<String>::new());
    assert!(matches!(wait(store.commit(&at(refused), Expect::Absent, large)), Ok(CommitOutcome::Committed(_))));
}

#[test]
fn store_unconfirmed_commit_ends_the_process() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    put(&store, "/r/a/x", Expect::Absent, "1");
    let mut feed = FeedReader::new(&(Arc::new(store.clone()) as Arc<dyn Store>), &prefix("/r/"), FIRST_REVISION);
    wait(store.send(StoreCommand::FailNextCommit)).unwrap();
    let unknown = wait(store.commit(&key("/r/a/y"), Expect::Absent, Mutation::put("1"))).unwrap_err();
    assert_eq!(unknown, Error::Closed);
    assert_eq!(fixture.aborted.lock().len(), 1);
    assert!(fixture.aborted.lock()[0].contains("store.db"));
    let later = wait(store.commit(&key("/r/a/z"), Expect::Absent, Mutation::put("1"))).unwrap_err();
    assert_eq!(later, Error::Closed, "nothing is written after it");
    assert_eq!(feed.received_until_end().len(), 1, "no feed has it");
    assert_eq!(wait(store.current()), Err(Error::Closed));
}

#[test]
fn store_expires_records_as_deletes() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let ttl = |seconds| Mutation::Put { value: "1".into(), ttl: Some(Duration::from_secs(seconds)) };
    let events = prefix("/r/events/");
    for name in 0..1_200 {
        let key = events.key("ns", &format!("e{name}")).unwrap();
        commit(&store, &key, Expect::Absent, &ttl(3_600));
    }
    let last = key("/r/events/ns/late");
    commit(&store, &last, Expect::Absent, &ttl(3_700));
    put(&store, "/r/a/x", Expect::Absent, "1");
    let handle: Arc<dyn Store> = Arc::new(store.clone());
    let current = wait(store.current()).unwrap();
    let mut feed = FeedReader::new(&handle, &events, current);
    fixture.advance(3_599);
    wait(store.maintain()).unwrap();
    assert_eq!(feed.received().len(), 0);
    drop((store, handle, feed));
    let store = fixture.open();
    let handle: Arc<dyn Store> = Arc::new(store.clone());
    let mut feed = FeedReader::new(&handle, &events, current);
    fixture.advance(1);
    wait(store.maintain()).unwrap();
    let deleted = feed.received();
    assert_eq!(deleted.len(), 1_200);
    assert!(deleted.iter().all(|change| change.new.is_none() && change.old.is_some()));
    assert_eq!(wait(store.load(&events)).unwrap().records[0].key, last);
    fixture.advance(1_000_000);
    wait(store.maintain()).unwrap();
    assert_eq!(wait(store.load(&prefix("/r/"))).unwrap().records.len(), 1, "what has no time to live stays");
}

#[test]
fn store_expiry_and_history_ignore_jumps_of_the_wall_clock() {
    const DAYS: u64 = 24 * 3_600_000;
    let fixture = StoreFixture::new();
    let mut store = fixture.open();
    let ttl = Mutation::Put { value: "1".into(), ttl: Some(Duration::from_secs(3_600)) };
    let mut last = put(&store, "/r/a/x", Expect::Absent, "1");
    for name in 0..20 {
        commit(&store, &prefix("/r/events/").key("ns", &format!("e{name}")).unwrap(), Expect::Absent, &ttl);
        last = put(&store, "/r/a/x", Expect::At(last), "2");
    }
    let state = |store: &LocalStore| {
        wait(store.maintain()).unwrap();
        let loaded = wait(store.load(&prefix("/r/events/"))).unwrap();
        (loaded.records.len(), loaded.oldest)
    };
    fixture.offset.store(400 * DAYS, Ordering::SeqCst);
    assert_eq!(state(&store), (20, FIRST_REVISION), "while the store is open");
    // In a process that is started with the wrong time, and in one that is started when it is mended.
    for offset in [400 * DAYS, 800 * DAYS, 0] {
        fixture.offset.store(offset, Ordering::SeqCst);
        drop(store);
        store = fixture.open();
        assert_eq!(state(&store), (20, FIRST_REVISION), "{offset}");
        fixture.advance(60);
    }
    // What was created with another wall clock lives as long as the others.
    fixture.offset.store(90 * DAYS, Ordering::SeqCst);
    commit(&store, &key("/r/events/ns/late"), Expect::Absent, &ttl);
    fixture.advance(3_600 - 180);
    assert_eq!(state(&store).0, 1);
    fixture.advance(180);
    assert_eq!(state(&store).0, 0);
}

#[test]
fn store_expiry_goes_on_after_each_end_of_the_process() {
    let fixture = StoreFixture::new();
    let ttl = Mutation::Put { value: "1".into(), ttl: Some(Duration::from_secs(3_600)) };
    commit(&fixture.open(), &key("/r/events/ns/a"), Expect::Absent, &ttl);
    for _ in 0..4 {
        let store = fixture.open();
        assert_eq!(wait(store.load(&prefix("/r/events/"))).unwrap().records.len(), 1);
        fixture.advance(900);
    }
    let store = fixture.open();
    wait(store.maintain()).unwrap();
    assert_eq!(wait(store.load(&prefix("/r/events/"))).unwrap().records.len(), 0);
}

#[test]
fn store_conditions_see_the_changes_of_their_batch() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let (owner, owned) = (key("/r/owners/a"), prefix("/r/owned/a/"));
    let first = put(&store, "/r/owners/a", Expect::Absent, "1");
    let at = |revision| vec![CommitCondition::At(owner.clone(), revision)];
    let empty = vec![CommitCondition::Empty(owned)];
    let (x, y) = (key("/r/owned/a/x"), key("/r/owned/a/y"));
    // The thread of the store is held up, so that all commits are in one batch.
    let (release, held) = mpsc::channel::<()>();
    let sink = BlockingSink { held, entered: mpsc::channel().0 };
    let after = wait(store.current()).unwrap();
    wait(store.follow(&prefix("/r/gate/"), after, Box::new(sink))).unwrap();
    let gate = store.commit(&key("/r/gate/a"), Expect::Absent, Mutation::put("1"));
    let begun = [
        store.commit_if(&x, Expect::Absent, Mutation::put("1"), at(first)),
        store.commit(&owner, Expect::At(first), Mutation::put("ending")),
        store.commit_if(&y, Expect::Absent, Mutation::put("1"), at(first)),
        store.commit_if(&owner, Expect::At(first + 3), Mutation::Delete, empty.clone()),
        store.commit(&x, Expect::At(first + 2), Mutation::Delete),
        store.commit_if(&owner, Expect::At(first + 3), Mutation::Delete, empty),
    ];
    release.send(()).unwrap();
    wait(gate).unwrap();
    let outcomes = begun.map(|outcome| match wait(outcome).unwrap() {
        CommitOutcome::Committed(revision) => format!("{revision}"),
        CommitOutcome::Conflict(_) => "conflict".to_owned(),
        CommitOutcome::ConditionFailed(condition) => format!("{condition:?}"),
    });
    let text = |offset: u64| format!("{}", first + offset);
    let failed = [format!("At(\"/r/owners/a\", {first})"), "Empty(\"/r/owned/a/\")".to_owned()];
    assert_eq!(outcomes, [text(2), text(3), failed[0].clone(), failed[1].clone(), text(4), text(5)]);
}

/// A sink that waits in its first call.
struct BlockingSink {
    held: mpsc::Receiver<()>,
    entered: mpsc::Sender<()>,
}

impl ChangeSink for BlockingSink {
    fn apply(&mut self, _: &[Arc<crate::RecordChange>]) -> bool {
        let _ = self.entered.send(());
        let _ = self.held.recv();
        true
    }

    fn end(&mut self, _: Error) {}
}

#[test]
fn store_compacts_by_age_and_keeps_revision() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let mut last = put(&store, "/r/a/x", Expect::Absent, "1");
    for _ in 0..1_500 {
        last = put(&store, "/r/a/x", Expect::At(last), "1");
    }
    let oldest = |store: &LocalStore| wait(store.load(&prefix("/r/"))).unwrap().oldest;
    wait(store.maintain()).unwrap();
    fixture.advance(299);
    wait(store.maintain()).unwrap();
    assert_eq!(oldest(&store), FIRST_REVISION);
    commit(&store, &key("/r/a/x"), Expect::At(last), &Mutation::Delete);
    fixture.advance(1);
    wait(store.maintain()).unwrap();
    assert_eq!(oldest(&store), last, "the delete is younger");
    fixture.advance(600);
    wait(store.maintain()).unwrap();
    fixture.advance(600);
    wait(store.maintain()).unwrap();
    assert_eq!(oldest(&store), last + 1);
    drop(store);
    let rows: u64 = Connection::open(fixture.file())
        .unwrap()
        .query_row("SELECT count(*) FROM record", [], |row| row.get(0).map(i64::cast_unsigned))
        .unwrap();
    assert_eq!(rows, 0);
    let store = fixture.open();
    assert_eq!((wait(store.current()), oldest(&store)), (Ok(last + 1), last + 1), "no revision twice");
    assert_eq!(put(&store, "/r/a/x", Expect::Absent, "1"), last + 2);
}

#[test]
fn store_keeps_newest_changes_whatever_their_age() {
    let fixture = StoreFixture::new();
    let store = LocalStore::open(LocalStoreSettings { retained_changes: 10, ..fixture.settings() }).unwrap();
    let mut last = put(&store, "/r/a/x", Expect::Absent, "1");
    for _ in 0..30 {
        last = put(&store, "/r/a/x", Expect::At(last), "1");
    }
    for _ in 0..2 {
        wait(store.maintain()).unwrap();
        fixture.advance(600);
    }
    wait(store.maintain()).unwrap();
    assert_eq!(wait(store.load(&prefix("/r/"))).unwrap().oldest, last - 10);
}
