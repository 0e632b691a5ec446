//! Damage to the write-ahead log of a process that was killed: found, or without effect on what was confirmed.

use std::fs;

use super::super::check_store_file;
use super::super::wal::{verify_wal, wal_path};
use super::*;
use crate::RecordChange;

const HEADER: usize = 32;
const FRAME: usize = 24 + 4_096;

/// The files of a store as a killed process leaves them, and what it confirmed.
struct KilledStore {
    fixture: StoreFixture,
    database: Vec<u8>,
    log: Vec<u8>,
    changes: Vec<Arc<RecordChange>>,
    /// Number of the last frame of each transaction.
    commits: Vec<usize>,
}

fn changes_of(store: &LocalStore) -> Vec<Arc<RecordChange>> {
    let handle: Arc<dyn Store> = Arc::new(store.clone());
    FeedReader::new(&handle, &prefix("/r/"), FIRST_REVISION).received()
}

impl KilledStore {
    /// After transactions of one change each, with values of these sizes.
    fn with_values(sizes: &[usize]) -> KilledStore {
        let fixture = StoreFixture::new();
        let store = fixture.open();
        for (name, size) in sizes.iter().enumerate() {
            let key = prefix("/r/a/").key("", &format!("n{name}")).unwrap();
            commit(&store, &key, Expect::Absent, &Mutation::put(vec![b'a' + (name % 7) as u8; *size]));
        }
        let changes = changes_of(&store);
        let log_file = wal_path(&fixture.file());
        let (database, log) = (fs::read(fixture.file()).unwrap(), fs::read(&log_file).unwrap());
        drop(store);
        let salts = &log[16..24];
        let frames = log[HEADER..].chunks_exact(FRAME).zip(1..);
        let commits = frames.filter(|(frame, _)| frame[8..16] == *salts && frame[4..8] != [0; 4]);
        let commits = commits.map(|(_, number)| number).collect();
        KilledStore { fixture, database, log, changes, commits }
    }

    fn log_file(&self) -> PathBuf {
        wal_path(&self.fixture.file())
    }

    /// Opens the store with another log.
    fn open(&self, log: &[u8]) -> Result<LocalStore, OpenError> {
        fs::write(self.fixture.file(), &self.database).unwrap();
        fs::write(self.log_file(), log).unwrap();
        LocalStore::open(self.fixture.settings())
    }

    #[track_caller]
    fn assert_damaged(&self, log: &[u8], place: &str) -> u64 {
        let error = self.open(log).err().unwrap_or_else(|| panic!("opened with {place}"));
        let OpenError::DamagedLog { file, frame } = &error else { panic!("{place}: {error}") };
        assert_eq!(file, &self.log_file());
        assert!(fs::read(file).unwrap() == log, "the log is left as it is");
        *frame
    }

    /// Asserts that the first `count` transactions are there, no others, and that another can follow.
    #[track_caller]
    fn assert_transactions(&self, log: &[u8], count: usize, place: &str) {
        let store = self.open(log).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(changes_of(&store), self.changes[..count], "{place}");
        put(&store, "/r/a/next", Expect::Absent, "1");
        drop(store);
        assert_eq!(changes_of(&self.fixture.open()).len(), count + 1, "{place}");
    }
}

/// Transactions of two frames and of several; the last has several.
const SIZES: [usize; 9] = [100, 300, 9_000, 50, 20_000, 10, 700, 30, 13_000];

#[test]
fn wal_with_flipped_bit_is_refused() {
    let killed = KilledStore::with_values(&SIZES);
    assert_eq!(killed.commits.len(), SIZES.len());
    assert_eq!(HEADER + killed.commits.last().unwrap() * FRAME, killed.log.len());
    let is_in_header = |at: usize| at < HEADER || (at - HEADER) % FRAME < 24;
    for at in (0..killed.log.len()).filter(|at| is_in_header(*at) || at % 211 == 0) {
        let mut log = killed.log.clone();
        let bit = if at == 0 || is_in_header(at) { fastrand::u32(..8) } else { at as u32 % 8 };
        log[at] ^= 1 << bit;
        let frame = killed.assert_damaged(&log, &format!("bit {bit} of byte {at} flipped"));
        let expected = if at < HEADER { 0 } else { (at - HEADER) / FRAME + 1 };
        assert_eq!(frame, expected as u64, "bit {bit} of byte {at}");
    }
    killed.assert_transactions(&killed.log, SIZES.len(), "the log as it was");
}

#[test]
fn wal_with_overwritten_sector_is_refused_if_two_transactions_follow() {
    let killed = KilledStore::with_values(&SIZES);
    let transaction_of = |at: usize| {
        let frame = at.saturating_sub(HEADER) / FRAME + 1;
        killed.commits.partition_point(|last| *last < frame)
    };
    let mut refused = 0;
    for at in (0..killed.log.len()).step_by(512) {
        for fill in [0, 0xa5] {
            let mut log = killed.log.clone();
            let end = (at + 512).min(log.len());
            log[at..end].fill(fill);
            match killed.open(&log) {
                Err(OpenError::DamagedLog { .. }) => refused += 1,
                Err(error) => panic!("byte {at}: {error}"),
                Ok(store) => {
                    let found = changes_of(&store);
                    assert_eq!(found, killed.changes[..found.len()], "byte {at}");
                    // Nothing tells a frame of the last transaction from one that was never written. Nor, when the
                    // header of the frame before it is lost, where the last transaction begins.
                    let is_intact = found.len() == SIZES.len();
                    assert!(is_intact || found.len() >= transaction_of(at), "byte {at}");
                    assert!(is_intact || transaction_of(end - 1) + 2 >= SIZES.len(), "byte {at}");
                }
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn wal_cut_off_has_whole_transactions() {
    let killed = KilledStore::with_values(&SIZES);
    let whole = |length: usize| killed.commits.iter().filter(|frame| HEADER + **frame * FRAME <= length).count();
    for frame in 0..=killed.log.len() / FRAME {
        for length in [frame * FRAME + HEADER, frame * 4_096, frame * FRAME + HEADER + 13] {
            let length = length.min(killed.log.len());
            killed.assert_transactions(&killed.log[..length], whole(length), &format!("{length} bytes"));
        }
    }
}

#[test]
fn wal_with_incomplete_last_transaction_is_recovered() {
    let killed = KilledStore::with_values(&SIZES);
    let first = killed.commits[SIZES.len() - 2];
    assert!(killed.commits[SIZES.len() - 1] > first + 3, "the last transaction has several frames");
    for frame in first..killed.commits[SIZES.len() - 1] {
        // A frame, a page of one, or the half of it was not written; those after it were.
        for (from, bytes) in [(0, FRAME), (24, 4_096), (2_048, FRAME - 2_048)] {
            let mut log = killed.log.clone();
            let at = HEADER + frame * FRAME + from;
            log[at..at + bytes].fill(0);
            killed.assert_transactions(&log, SIZES.len() - 1, &format!("frame {} from byte {from}", frame + 1));
        }
    }
}

#[test]
fn wal_frames_of_earlier_log_are_no_damage() {
    // Over the size at which the log is copied into the database, and then begins again.
    let mut sizes = vec![600_000; 8];
    sizes.extend(SIZES);
    let killed = KilledStore::with_values(&sizes);
    let end = HEADER + killed.commits.last().unwrap() * FRAME;
    assert!(killed.log.len() > end + 100 * FRAME, "earlier frames are behind the end");
    assert!(killed.commits.len() < sizes.len());
    killed.assert_transactions(&killed.log, sizes.len(), "the log as it was");
    for at in [end, end + 9, end + 20, end + 5_000, killed.log.len() - 1] {
        let mut log = killed.log.clone();
        log[at] ^= 4;
        killed.assert_transactions(&log, sizes.len(), &format!("byte {at} behind the end"));
    }
    for at in [HEADER, end - FRAME, end - 1] {
        let mut log = killed.log.clone();
        log[at] ^= 4;
        killed.assert_damaged(&log, &format!("byte {at}"));
    }
}

#[test]
fn wal_frames_of_rollback_are_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plain.db");
    let connection = Connection::open(&file).unwrap();
    let run = |statements: &str| connection.execute_batch(statements).unwrap();
    let _mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).unwrap();
    run("PRAGMA cache_size = 5; CREATE TABLE t (a); INSERT INTO t VALUES (1)");
    for _ in 0..3 {
        // Too large for the cache: frames are written before the rollback, and the next transaction covers a few.
        run("BEGIN; INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
             SELECT zeroblob(4000) FROM n; ROLLBACK; INSERT INTO t VALUES (2)");
        let log = fs::read(wal_path(&file)).unwrap();
        assert!(log.len() > 30 * FRAME);
        verify_wal(&file, true).unwrap();
    }
}

#[test]
fn wal_damage_is_found_by_check_and_ends_when_the_operator_gives_up_changes() {
    let killed = KilledStore::with_values(&SIZES);
    let mut log = killed.log.clone();
    log[HEADER + killed.commits[3] * FRAME - 100] ^= 1;
    let frame = killed.assert_damaged(&log, "a damaged page");
    let text = check_store_file(&killed.fixture.file()).unwrap_err().to_string();
    assert!(text.contains(&format!("store.db-wal is damaged: wrong checksum of frame {frame};")), "{text}");
    // What the documentation says.
    killed.fixture.edit("PRAGMA integrity_check");
    assert_eq!(changes_of(&killed.fixture.open()), killed.changes[..3]);
    // A log in use may look like anything.
    let store = killed.open(&killed.log).unwrap();
    fs::write(killed.log_file(), &log).unwrap();
    check_store_file(&killed.fixture.file()).unwrap();
    fs::write(killed.log_file(), &killed.log).unwrap();
    drop(store);
}
