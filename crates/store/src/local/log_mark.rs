//! The mark in a store's database that says which write-ahead log belongs to it.
//!
//! While the store is in use, changes that clients were told of may be in the log alone. A database in WAL mode with the
//! mark of a log is therefore incomplete without that log. Closing in order removes the mark, and leaves WAL mode.
//!
//! Releases from before the mark leave it as it is when they close, and remove the log. They are known by what they write
//! into the lock file; the mark is void then, if it was written to this very file and is not that of a copy.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::OpenError;
use super::lock::was_used_by_older_release;
use super::wal::{wal_identity, wal_path};

/// Place of the *file format write version* in the header of a SQLite database
/// (<https://www.sqlite.org/fileformat.html>): 2 is WAL mode.
const WRITE_VERSION_AT: usize = 18;

/// What is escaped in the path of a SQLite URI (<https://www.sqlite.org/uri.html>).
const URI_PATH: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// The log that belongs to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogMark {
    /// What [`wal_identity`] returns for it.
    pub(super) log: u32,
}

impl LogMark {
    /// The number in the table: the identity and a check of it, so that a half-written page is no mark.
    fn to_number(self) -> i64 {
        let check = self.log.wrapping_mul(0x9e37_79b1) ^ 0x4e72_7478;
        i64::from(check >> 1) << 32 | i64::from(self.log)
    }

    fn from_number(number: i64) -> Option<LogMark> {
        let mark = LogMark { log: u32::try_from(number & 0xffff_ffff).ok()? };
        (mark.to_number() == number).then_some(mark)
    }

    /// Says to which file the mark was written, and for which mark that is said.
    fn file_number(self, inode: u64) -> i64 {
        (inode ^ u64::from(self.log) << 32).cast_signed()
    }

    /// Notes that the mark was written to `file`.
    pub(super) fn write_file_number(self, connection: &Connection, file: &Path) -> rusqlite::Result<()> {
        let text = "INSERT INTO meta VALUES ('log-file', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let Ok(found) = std::fs::metadata(file) else { return Ok(()) };
        connection.execute(text, [self.file_number(found.ino())]).map(drop)
    }

    /// Whether an older release used `file` after the mark was written to it.
    fn is_void(self, connection: &Connection, file: &Path) -> bool {
        let text = "SELECT value FROM meta WHERE name = 'log-file'";
        let number = connection.query_row(text, [], |row| row.get::<_, i64>(0));
        let inode = std::fs::metadata(file).map(|found| found.ino());
        let is_of_file = matches!((number, inode), (Ok(number), Ok(inode)) if self.file_number(inode) == number);
        is_of_file && was_used_by_older_release(file)
    }

    /// Reads the mark; the row may not be there.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Option<LogMark>> {
        let number = connection.query_row("SELECT value FROM meta WHERE name = 'log'", [], |row| row.get(0));
        number.map(LogMark::from_number)
    }

    /// Writes a number that is no mark and differs from the one before: SQLite leaves out a write that changes nothing.
    pub(super) fn touch(connection: &Connection) -> rusqlite::Result<()> {
        let text = "INSERT INTO meta VALUES ('log', 1) ON CONFLICT (name) DO UPDATE SET value = (value = 0)";
        connection.execute(text, []).map(drop)
    }

    /// Sets or removes the mark, in a transaction of its own.
    pub(super) fn write(connection: &Connection, mark: Option<LogMark>) -> rusqlite::Result<()> {
        let text = "INSERT INTO meta VALUES ('log', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        connection.execute(text, [mark.map_or(0, LogMark::to_number)]).map(drop)
    }
}

/// Checks that the log beside `file` is its own, and is there if the file is incomplete without it. The file must not be
/// in use.
///
/// # Errors
/// [`OpenError::MissingLog`], [`OpenError::ForeignLog`].
pub(super) fn check_log(file: &Path) -> Result<(), OpenError> {
    let io = |error| OpenError::io(file, error);
    let mut header = [0; 20];
    if File::open(file).and_then(|mut opened| opened.read_exact(&mut header)).is_err() {
        return Ok(());
    }
    let log = wal_identity(file).map_err(io)?;
    let foreign = || Err(OpenError::ForeignLog { file: file.to_owned() });
    if header[WRITE_VERSION_AT] == 1 {
        return if log.is_none() { Ok(()) } else { foreign() };
    }
    // Without its log, a page may be half written. What is wrong with it is found once the log was read.
    let Ok(connection) = connect_immutable(file) else { return Ok(()) };
    let Ok(Some(Some(mark))) = LogMark::read(&connection).optional() else { return Ok(()) };
    match log {
        Some(log) if log == mark.log => Ok(()),
        _ if mark.is_void(&connection, file) => Ok(()),
        Some(_) => foreign(),
        // An empty log is a person's decision.
        None if !wal_path(file).exists() => Err(OpenError::MissingLog { file: file.to_owned() }),
        _ => Ok(()),
    }
}

/// Opens the file alone, without its log, whatever other processes do with it.
pub(super) fn connect_immutable(file: &Path) -> rusqlite::Result<Connection> {
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let path = percent_encoding::percent_encode(path.as_os_str().as_bytes(), URI_PATH);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("file:{path}?immutable=1"), flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_mark_is_read_back_and_checked() {
        for log in [0, 1, 0x7fff_ffff, u32::MAX, 0x8123_4567] {
            let number = LogMark { log }.to_number();
            assert_eq!(LogMark::from_number(number), Some(LogMark { log }));
            assert_ne!(number, 0);
            assert_eq!(LogMark::from_number(number ^ (1 << 40)), None);
        }
        assert_eq!(LogMark::from_number(0), None);
    }
}
