//! Verification of a whole store: SQLite's own check, the checksum of each row, and the completeness of the history.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::super::Revision;
use super::check::check_store_header;
use super::clock::{StoreClock, monotonic_clock, system_clock};
use super::journal::{Journal, describe};
use super::lock::{StoreInUse, lock_for_reading};
use super::log_mark::check_log;
use super::recover::{ScanError, StoreIndex};
use super::snapshot::StoreSnapshot;
use super::wal::check_wal;
use super::{OpenError, wal};
use crate::own_links::resolve_own_links;

/// Number of faults that are told.
const MAX_FAULTS: usize = 20;

/// Number of rows between two reports of progress.
const ROWS_PER_REPORT: u64 = 4096;

/// What a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreContent {
    /// Revision of the last change.
    pub revision: Revision,
    /// Revision up to which the history was discarded.
    pub compacted: Revision,
    /// Number of rows: the objects, and the history.
    pub rows: u64,
    /// Number of objects of each resource.
    pub objects: BTreeMap<String, u64>,
    /// Size of file and log in bytes.
    pub bytes: u64,
}

/// What is wrong with a store.
#[derive(Debug)]
pub enum StoreDamage {
    /// It cannot be read at all.
    Unreadable(OpenError),
    /// Faults in it, at most twenty.
    Faults(Vec<String>),
}

impl fmt::Display for StoreDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreDamage::Unreadable(error) => error.fmt(f),
            StoreDamage::Faults(faults) => f.write_str(&faults.join("\n")),
        }
    }
}

impl std::error::Error for StoreDamage {}

impl From<OpenError> for StoreDamage {
    fn from(error: OpenError) -> StoreDamage {
        StoreDamage::Unreadable(error)
    }
}

/// Reads all of the store `file` and changes nothing. While a process uses the store, a copy beside it is read, which is
/// removed afterwards. `progress` is called with the number of rows that were read, now and then.
///
/// # Errors
/// [`StoreDamage`]
pub fn verify_store(file: &Path, progress: &mut dyn FnMut(u64)) -> Result<StoreContent, StoreDamage> {
    let file = &*resolve_own_links(file).map_err(|error| OpenError::io(file, error))?;
    check_store_header(file)?;
    let lock = match lock_for_reading(file) {
        Err(StoreInUse) => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let snapshot = StoreSnapshot::copy(file, folder)?;
            return verify_files(&snapshot.file(), file, progress);
        }
        Ok(lock) => lock,
    };
    check_wal(file)?;
    check_log(file)?;
    let verified = verify_files(file, file, progress);
    // A process that opens the store meanwhile would change what is read, or find SQLite's locks.
    drop(lock);
    verified
}

/// Verifies a store that no process uses; faults are told of `shown`.
pub(super) fn verify_files(
    file: &Path,
    shown: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<StoreContent, StoreDamage> {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let journal = Journal::open_unchanged(file)?;
    let unreadable = |error: &rusqlite::Error| StoreDamage::from(describe(shown, error));
    let mut faults = integrity_faults(&journal).map_err(|error| unreadable(&error))?;
    let compacted = journal.compacted().map_err(|error| unreadable(&error))?;
    let clock = StoreClock::resume(None, &system_clock(), monotonic_clock());
    let (mut index, mut rows) = (StoreIndex::new(compacted, clock), 0);
    let scanned = journal.scan(0, |checked| {
        rows += 1;
        if rows % ROWS_PER_REPORT == 0 {
            progress(rows);
        }
        let revision = checked.revision;
        match index.take(checked) {
            Err(ScanError::Row { key, revision, reason }) => {
                faults.push(format!("{reason}: key {key:?}, revision {revision}"));
                // The rows behind it are checked for themselves.
                index.revision = index.revision.max(revision);
            }
            Err(ScanError::Sqlite(error)) => return Err(error),
            Ok(()) => debug_assert!(index.revision >= revision),
        }
        Ok(())
    });
    if let Err(error) = scanned {
        faults.push(error.to_string());
    }
    progress(rows);
    if !faults.is_empty() {
        let more = faults.len().saturating_sub(MAX_FAULTS);
        faults.truncate(MAX_FAULTS);
        faults.extend((more > 0).then(|| format!("and {more} more")));
        let named = faults.into_iter().map(|fault| format!("store {} is damaged: {fault}", shown.display()));
        return Err(StoreDamage::Faults(named.collect()));
    }
    let mut objects = BTreeMap::new();
    for record in index.index.records() {
        *objects.entry(record.key.resource()).or_default() += 1;
    }
    let bytes = size(file) + size(&wal::wal_path(file));
    Ok(StoreContent { revision: index.revision, compacted, rows, objects, bytes })
}

/// What SQLite finds wrong with the pages of the file.
fn integrity_faults(journal: &Journal) -> rusqlite::Result<Vec<String>> {
    let mut statement = journal.connection().prepare(&format!("PRAGMA integrity_check({MAX_FAULTS})"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    lines.filter(|line| line.as_ref().map_or(true, |line| line != "ok")).collect()
}
