//! SQL statements on the store's file, and the classification of SQLite's errors.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::config::DbConfig;
use rusqlite::ffi::SQLITE_IOERR_WRITE;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};

use super::super::record::Row;
use super::super::{Error, FIRST_REVISION, Key, KeyValue, Revision, UnixMillis};
use super::index::RowKey;
use super::log_mark::{LogMark, check_log, connect_immutable};
use super::wal::{verify_wal, wal_identity, wal_path};
use super::{LocalStoreSettings, OpenError, restrict_mode};
use crate::LOG_TARGET;

/// Version of the file's format, in SQLite's `user_version`.
const FORMAT_VERSION: i64 = 1;

/// Marks the file as a store, in SQLite's `application_id`: "Nrtx".
const APPLICATION_ID: i64 = 0x4e72_7478;

const SCHEMA: &str = "
    CREATE TABLE record (revision INTEGER PRIMARY KEY, key TEXT NOT NULL, created INTEGER NOT NULL,
        previous INTEGER NOT NULL, deleted INTEGER NOT NULL, expires INTEGER NOT NULL, crc INTEGER NOT NULL, value BLOB
    ) STRICT;
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;";

const COLUMNS: &str = "revision, key, created, previous, deleted, expires, crc, value";

/// Bytes of values after which the write-ahead log is copied into the database.
const CHECKPOINT_BYTES: usize = 4 << 20;

/// The way in which SQLite uses the file: locked for this process as a whole, whose connections share the index of the
/// write-ahead log in memory.
const FILE_ACCESS: &std::ffi::CStr = c"unix-excl";

/// How long a connection waits for another one that recovers the log.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
thread_local! {
    /// How many rows this thread has read.
    pub(super) static ROWS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The open file, for the thread that writes.
pub(super) struct Journal {
    connection: Connection,
    since_checkpoint: usize,
    /// Whether the next commit is answered as if the disk had not confirmed it.
    #[cfg(test)]
    pub(super) fails_next_commit: bool,
}

/// Why a transaction failed.
#[derive(Debug)]
pub(super) enum JournalError {
    /// Nothing was changed.
    Refused(Error),
    /// It is unknown what the disk holds.
    Unknown(String),
}

/// A row as it was read, and whether its checksum is right.
pub(super) struct CheckedRow {
    pub(super) row: Result<Row, String>,
    pub(super) revision: Revision,
    pub(super) is_intact: bool,
}

impl Journal {
    /// Opens or creates the file and checks what it is.
    pub(super) fn open(settings: &LocalStoreSettings) -> Result<Journal, OpenError> {
        let file = &*settings.file;
        prepare_files(file, settings.synchronizes)?;
        let journal = Journal::from_connection(connect(file)?);
        // Only a store that was closed in order is whole without its log.
        let whole = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        journal.connection.set_db_config(whole, true).map_err(|error| describe(file, &error))?;
        let number = |pragma| journal.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let (application, found) = number("application_id")
            .and_then(|application| Ok((application, number("user_version")?)))
            .map_err(|error| describe(file, &error))?;
        check_format(file, application, found)?;
        Ok(journal)
    }

    /// Opens a file that no process uses, to read it. Changes nothing, and the log stays where it is.
    pub(super) fn open_unchanged(file: &Path) -> Result<Journal, OpenError> {
        let failed = |error| describe(file, &error);
        let connection = if wal_path(file).exists() {
            let connection = connect(file)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
            // The index of the log is then in memory.
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
            connection.pragma_update(None, "query_only", true).map_err(failed)?;
            connection
        } else {
            connect_immutable(file).map_err(failed)?
        };
        Ok(Journal::from_connection(connection))
    }

    fn from_connection(connection: Connection) -> Journal {
        Journal {
            connection,
            since_checkpoint: 0,
            #[cfg(test)]
            fails_next_commit: false,
        }
    }

    /// The connection, for statements that are not those of a store in use.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Prepares the file for changes, once all of it was read: what is damaged stays as it is.
    pub(super) fn prepare(&self, settings: &LocalStoreSettings) -> rusqlite::Result<()> {
        let pragma = |name: &str, value: &dyn rusqlite::ToSql| self.connection.pragma_update(None, name, value);
        pragma("journal_mode", &"WAL")?;
        pragma("synchronous", &if settings.synchronizes { "FULL" } else { "OFF" })?;
        // SQLite ignores errors of its own checkpoints, which may be failed synchronizations.
        pragma("wal_autocheckpoint", &0)?;
        pragma("journal_size_limit", &(64 << 20))?;
        if settings.max_bytes > 0 {
            pragma("max_page_count", &signed(settings.max_bytes / 4096))?;
        }
        self.connection.execute_batch("BEGIN IMMEDIATE; COMMIT")
    }

    /// Notes in the database, not only in its log, which log belongs to it: a copy without the log is known by that.
    pub(super) fn mark_in_use(&self, file: &Path) -> Result<(), OpenError> {
        let failed = |error: rusqlite::Error| describe(file, &error);
        let identity = || wal_identity(file).map_err(|error| OpenError::io(file, error));
        let mark = LogMark::read(&self.connection).optional().map_err(failed)?.flatten();
        if mark.is_none() || identity()? != mark.map(|mark| mark.log) {
            // A log without a transaction has no identity yet.
            LogMark::touch(&self.connection).map_err(failed)?;
            let log = identity()?;
            LogMark::write(&self.connection, log.map(|log| LogMark { log })).map_err(failed)?;
        }
        if let Some(mark) = LogMark::read(&self.connection).optional().map_err(failed)?.flatten() {
            mark.write_file_number(&self.connection, file).map_err(failed)?;
        }
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(failed)
    }

    /// Closes the file so that it is whole without its log, which is removed.
    pub(super) fn close(self) {
        let Journal { connection, .. } = self;
        let rollback_journal = connection.path().map(|file| format!("{file}-journal"));
        let closed = LogMark::write(&connection, None).and_then(|()| {
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
            // From here on a log beside the file is not its own.
            connection.pragma_update(None, "journal_mode", "DELETE")
        });
        drop(connection);
        match closed {
            // The transaction is committed. With an exclusive lock, SQLite leaves the file.
            Ok(()) => drop(rollback_journal.map(std::fs::remove_file)),
            Err(error) => {
                tracing::warn!(target: LOG_TARGET, "store not closed completely, so its log is read at the next start: {error}");
            }
        }
    }

    /// Revision up to which the history was discarded.
    pub(super) fn compacted(&self) -> rusqlite::Result<Revision> {
        compacted_revision(&self.connection)
    }

    /// Calls `visit` with each row after a revision, by revision, until it fails.
    pub(super) fn scan<E: From<rusqlite::Error>>(
        &self,
        after: Revision,
        mut visit: impl FnMut(CheckedRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let text = format!("SELECT {COLUMNS} FROM record WHERE revision > ? ORDER BY revision");
        let mut statement = self.connection.prepare(&text)?;
        let mut rows = statement.query([signed(after)])?;
        while let Some(row) = rows.next()? {
            visit(read_row(row)?)?;
        }
        Ok(())
    }

    /// The time of the store that was noted last.
    pub(super) fn noted_time(&self) -> rusqlite::Result<Option<UnixMillis>> {
        let found =
            self.connection.query_row("SELECT value FROM meta WHERE name = 'clock'", [], |row| unsigned(row, 0));
        found.optional()
    }

    /// Adds rows in one transaction, durably, and notes the time of the store if there is one.
    pub(super) fn append(&mut self, rows: &[Row], time: Option<UnixMillis>) -> Result<(), JournalError> {
        let size: usize = rows.iter().map(|row| row.value.as_ref().map_or(0, |value| value.len()) + 200).sum();
        self.transaction(|connection| {
            if let Some(time) = time {
                // A name that programs before it do not look for.
                let text =
                    "INSERT INTO meta VALUES ('clock', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
                connection.execute(text, [signed(time)])?;
            }
            let text = format!("INSERT INTO record ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?)");
            let mut insert = connection.prepare(&text)?;
            for row in rows {
                insert.execute(params![
                    signed(row.revision),
                    row.key.as_str(),
                    signed(row.created),
                    signed(row.previous),
                    row.value.is_none(),
                    signed(row.expires.unwrap_or(0)),
                    row.checksum(),
                    row.value.as_deref(),
                ])?;
            }
            Ok(())
        })?;
        self.since_checkpoint += size;
        Ok(())
    }

    /// Records in one transaction up to where the history is discarded, and deletes rows.
    pub(super) fn discard(&mut self, compacted: Revision, rows: &[RowKey]) -> Result<(), JournalError> {
        self.transaction(|connection| {
            let mark = "UPDATE meta SET value = ? WHERE name = 'compacted'";
            connection.prepare(mark)?.execute([signed(compacted)])?;
            let mut delete = connection.prepare("DELETE FROM record WHERE revision = ?")?;
            rows.iter().try_for_each(|row| delete.execute([signed(row.revision)]).map(drop))
        })?;
        self.since_checkpoint += rows.len() * 4096;
        Ok(())
    }

    fn transaction(&self, change: impl FnOnce(&Connection) -> rusqlite::Result<()>) -> Result<(), JournalError> {
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE").and_then(|()| change(&self.connection));
        if let Err(error) = begun {
            let _ = self.connection.execute_batch("ROLLBACK");
            return Err(JournalError::Refused(as_store_error(&error)));
        }
        #[cfg(test)]
        if self.fails_next_commit {
            let _ = self.connection.execute_batch("ROLLBACK");
            return Err(JournalError::Unknown("injected".to_owned()));
        }
        let Err(error) = self.connection.execute_batch("COMMIT") else { return Ok(()) };
        let is_full = is_full(&error);
        let _ = self.connection.execute_batch("ROLLBACK");
        // A full disk refuses the write of a log frame; only other errors may come after the last frame was written.
        match is_full {
            true => Err(JournalError::Refused(Error::Full)),
            false => Err(JournalError::Unknown(format!("commit not confirmed by the disk: {error}"))),
        }
    }

    /// Copies the log into the database once it is large.
    pub(super) fn checkpoint_if_large(&mut self) -> Result<(), JournalError> {
        if self.since_checkpoint < CHECKPOINT_BYTES { Ok(()) } else { self.checkpoint() }
    }

    /// Copies the log into the database.
    pub(super) fn checkpoint(&mut self) -> Result<(), JournalError> {
        self.since_checkpoint = 0;
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        match done {
            Ok(()) => Ok(()),
            // The log holds everything still.
            Err(error) if is_full(&error) => Err(JournalError::Refused(Error::Full)),
            Err(error) => Err(JournalError::Unknown(format!("checkpoint not confirmed by the disk: {error}"))),
        }
    }
}

/// Creates the file if there is none, and checks it and its log before SQLite opens them.
fn prepare_files(file: &Path, synchronizes: bool) -> Result<(), OpenError> {
    if !file.try_exists().map_err(|error| OpenError::io(file, error))? {
        create(file)?;
    }
    restrict_mode(file)?;
    if std::fs::metadata(file).map_err(|error| OpenError::io(file, error))?.len() == 0 {
        return Err(OpenError::Damaged { file: file.to_owned(), reason: "the file is empty".to_owned() });
    }
    verify_wal(file, synchronizes)?;
    match check_log(file) {
        // The log may not have reached the disk.
        Err(error @ OpenError::MissingLog { .. }) if !synchronizes => tracing::warn!(target: LOG_TARGET, "{error}"),
        checked => checked?,
    }
    Ok(())
}

/// Checks what `application_id` and `user_version` of a database say.
pub(super) fn check_format(file: &Path, application: i64, found: i64) -> Result<(), OpenError> {
    if application != APPLICATION_ID {
        let reason = "it is a SQLite database of another program".to_owned();
        return Err(OpenError::Damaged { file: file.to_owned(), reason });
    }
    if found != FORMAT_VERSION {
        return Err(OpenError::Format { file: file.to_owned(), found, supported: FORMAT_VERSION });
    }
    Ok(())
}

fn connect(file: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags_and_vfs(file, flags, FILE_ACCESS).map_err(|error| describe(file, &error))
}

/// Reads single rows of the file that a [`Journal`] of this process has open, by a connection of its own.
pub(super) struct RowReader {
    file: PathBuf,
    connection: Option<Connection>,
}

impl RowReader {
    /// A reader that opens the file when it is first used.
    pub(super) fn new(file: PathBuf) -> RowReader {
        RowReader { file, connection: None }
    }

    /// The record in the row of `revision`, for a read as of the revision `requested`.
    ///
    /// # Errors
    /// [`Error::Compacted`] if the history has been discarded meanwhile, [`Error::Unavailable`] for a row that is damaged.
    pub(super) fn record(&mut self, revision: Revision, requested: Revision) -> Result<Arc<KeyValue>, Error> {
        if let Some(record) = self.row(revision).map_err(|error| as_store_error(&error))? {
            return Ok(record);
        }
        let compacted = self.connected().and_then(compacted_revision).map_err(|error| as_store_error(&error))?;
        Err(match compacted > requested {
            true => Error::Compacted(compacted),
            false => Error::Unavailable(format!("row of revision {revision} is missing or damaged").into()),
        })
    }

    fn row(&mut self, revision: Revision) -> rusqlite::Result<Option<Arc<KeyValue>>> {
        let text = format!("SELECT {COLUMNS} FROM record WHERE revision = ?");
        let mut statement = self.connected()?.prepare(&text)?;
        let mut rows = statement.query([signed(revision)])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let checked = read_row(row)?;
        Ok(checked.row.ok().filter(|_| checked.is_intact).and_then(|row| row.record()))
    }

    fn connected(&mut self) -> rusqlite::Result<&Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                // Not read-only: the lock of such a connection would replace that of the process.
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let connection = Connection::open_with_flags_and_vfs(&self.file, flags, FILE_ACCESS)?;
                connection.busy_timeout(BUSY_TIMEOUT)?;
                connection.pragma_update(None, "query_only", true)?;
                connection
            }
        };
        Ok(self.connection.insert(connection))
    }
}

fn compacted_revision(connection: &Connection) -> rusqlite::Result<Revision> {
    connection.query_row("SELECT value FROM meta WHERE name = 'compacted'", [], |row| unsigned(row, 0))
}

/// Creates a store beside `file` and moves it there: a file that exists is a whole one.
fn create(file: &Path) -> Result<(), OpenError> {
    let io = |error: std::io::Error| OpenError::io(file, error);
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let temporary = PathBuf::from(name);
    let _ = std::fs::remove_file(&temporary);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).map_err(io)?;
    let connection = connect(&temporary)?;
    let initialize = || {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", FORMAT_VERSION)?;
        connection.execute_batch(SCHEMA)?;
        connection.execute("INSERT INTO meta VALUES ('compacted', ?)", [signed(FIRST_REVISION)])
    };
    initialize().map_err(|error| describe(file, &error))?;
    drop(connection);
    File::open(&temporary).and_then(|temporary| temporary.sync_all()).map_err(io)?;
    // A log that a deleted store left must not be replayed into the new one.
    for suffix in ["-wal", "-shm", "-journal"] {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        if PathBuf::from(&name).exists() {
            let reason = format!("{} exists without it", PathBuf::from(name).display());
            return Err(OpenError::Damaged { file: file.to_owned(), reason });
        }
    }
    std::fs::rename(&temporary, file).map_err(io)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

fn read_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<CheckedRow> {
    #[cfg(test)]
    ROWS_READ.with(|rows| rows.set(rows.get() + 1));
    let revision = unsigned(row, 0)?;
    let text = String::from_utf8_lossy(row.get_ref(1)?.as_bytes().unwrap_or_default()).into_owned();
    let Ok(key) = Key::parse(&text) else {
        return Ok(CheckedRow { row: Err(text), revision, is_intact: false });
    };
    let is_deleted: bool = row.get(4)?;
    let value = row.get_ref(7)?.as_blob_or_null().unwrap_or_default().map(Bytes::copy_from_slice);
    let is_whole = value.is_none() == is_deleted;
    let expires = Some(unsigned(row, 5)?).filter(|expires| *expires > 0);
    let read = Row { revision, key, created: unsigned(row, 2)?, previous: unsigned(row, 3)?, value, expires };
    let is_intact = is_whole && row.get::<_, i64>(6)? == i64::from(read.checksum());
    Ok(CheckedRow { row: Ok(read), revision, is_intact })
}

/// SQLite's integers are signed; the bits are the same.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn unsigned(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

/// Whether a write was refused for want of space. To be called before anything else is: SQLite knows a full disk, and
/// for a quota or a limit of the size of files it only says that a write failed; the reason is in the thread's `errno`.
fn is_full(error: &rusqlite::Error) -> bool {
    let reason = std::io::Error::last_os_error().kind();
    let is_failed_write = error.sqlite_error().is_some_and(|error| error.extended_code == SQLITE_IOERR_WRITE);
    let is_limit = matches!(reason, ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
    as_store_error(error) == Error::Full || (is_failed_write && is_limit)
}

fn as_store_error(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full,
        _ => Error::Unavailable(error.to_string().into()),
    }
}

/// An error of opening or reading the file.
pub(super) fn describe(file: &Path, error: &rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { file: file.to_owned(), reason: error.to_string() }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            OpenError::InUse { file: file.to_owned(), process: "unknown".to_owned() }
        }
        // A column that holds another type than it may.
        None => OpenError::Damaged { file: file.to_owned(), reason: error.to_string() },
        _ => OpenError::io(file, error),
    }
}
