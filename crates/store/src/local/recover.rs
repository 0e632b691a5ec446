//! Recovery at start: one pass over the file by revision makes the index and checks every row.

use super::super::Revision;
use super::super::record::Row;
use super::clock::StoreClock;
use super::compact::Compaction;
use super::expire::ExpiryQueue;
use super::index::RecordIndex;
use super::journal::{CheckedRow, Journal, describe};
use super::{LocalStoreSettings, OpenError};

/// State of the file in memory, for the thread that writes.
pub(super) struct StoreIndex {
    /// Revision of the last change.
    pub(super) revision: Revision,
    pub(super) index: RecordIndex,
    pub(super) compaction: Compaction,
    pub(super) expiry: ExpiryQueue,
    pub(super) clock: StoreClock,
}

/// Error of the recovery: of SQLite, or of a row.
pub(super) enum ScanError {
    Sqlite(rusqlite::Error),
    Row { key: String, revision: Revision, reason: &'static str },
}

impl From<rusqlite::Error> for ScanError {
    fn from(error: rusqlite::Error) -> Self {
        ScanError::Sqlite(error)
    }
}

/// Reads the whole file.
///
/// # Errors
/// The first row that is damaged, or missing from the history.
pub(super) fn recover(journal: &Journal, settings: &LocalStoreSettings) -> Result<StoreIndex, OpenError> {
    let file = &settings.file;
    let compacted = journal.compacted().map_err(|error| describe(file, &error))?;
    let noted = journal.noted_time().map_err(|error| describe(file, &error))?;
    let clock = StoreClock::resume(noted, &settings.clock, settings.monotonic.clone());
    let mut state = StoreIndex::new(compacted, clock);
    journal.scan(0, |checked| state.take(checked)).map_err(|error| match error {
        ScanError::Sqlite(error) => describe(file, &error),
        ScanError::Row { key, revision, reason } => OpenError::DamagedRow { file: file.clone(), key, revision, reason },
    })?;
    for record in state.index.records() {
        if let Some(expires) = record.expires {
            state.expiry.insert(expires, record.key.clone());
        }
    }
    let now = state.clock.now();
    // The age of the history is not in the file: it counts from now.
    state.compaction.observe(now, state.revision, settings.retention, settings.retained_changes);
    Ok(state)
}

impl StoreIndex {
    /// The state of a file without rows whose history was discarded up to a revision.
    pub(super) fn new(compacted: Revision, clock: StoreClock) -> StoreIndex {
        StoreIndex {
            revision: compacted,
            index: RecordIndex::new(),
            compaction: Compaction::new(compacted),
            expiry: ExpiryQueue::default(),
            clock,
        }
    }

    /// Adds the next row by revision.
    ///
    /// # Errors
    /// The row is damaged, or a row before it is missing. Nothing was added.
    pub(super) fn take(&mut self, checked: CheckedRow) -> Result<(), ScanError> {
        let damaged =
            |key: &str, reason| Err(ScanError::Row { key: key.to_owned(), revision: checked.revision, reason });
        let row = match checked.row {
            Ok(row) if checked.is_intact => row,
            Ok(row) => return damaged(row.key.as_str(), "the row does not match its checksum"),
            Err(key) => return damaged(&key, "the row has no valid key"),
        };
        let previous = self.index.get(&row.key).map_or(0, |record| record.revision);
        if row.revision > self.compaction.compacted() {
            if row.revision != self.revision + 1 {
                return damaged(row.key.as_str(), "the revision before it is missing");
            }
            if row.previous != previous {
                return damaged(row.key.as_str(), "the previous revision of the key is missing");
            }
        }
        self.revision = self.revision.max(row.revision);
        self.insert(&row, previous);
        Ok(())
    }

    fn insert(&mut self, row: &Row, previous: Revision) {
        // Compaction that was interrupted: what is left of it counts by the rows that are there.
        self.compaction.record(&Row { previous, ..row.clone() });
        self.index.insert(&row.key, row.revision, Some(previous).filter(|previous| *previous > 0), row.record());
    }
}
