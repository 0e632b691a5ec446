//! A consistent copy of a store's files while a process writes them.
//!
//! The process locks the database for itself, so SQLite lets no second one read it. The files alone tell enough. The log
//! is begun anew only after all of it was copied into the database, and its header changes then. If the header is the
//! same before the database is copied and after the log is, every page that the process wrote into the database
//! meanwhile is also in the copied log, whole. SQLite reads such a copy as it reads the files of a killed process.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::wal::{check_wal, wal_path};
use super::{OpenError, restrict_mode};

/// Number of attempts to copy the files while a process writes them.
const MAX_ATTEMPTS: usize = 50;

/// A copy of a store in a directory of its own, which is removed when dropped.
pub(super) struct StoreSnapshot {
    folder: TempDir,
}

/// What tells whether the log was begun anew, or the store closed or opened.
#[derive(PartialEq, Eq)]
struct FileGeneration {
    database: u64,
    /// Header and inode of the log.
    log: Option<(Vec<u8>, u64)>,
    /// Size and modification time of a database without a log.
    unlogged: Option<(u64, i64, i64)>,
}

impl StoreSnapshot {
    /// Copies the store `file` into a new directory below `folder`.
    ///
    /// # Errors
    /// The files cannot be copied, are damaged, or change faster than they can be copied.
    pub(super) fn copy(file: &Path, folder: &Path) -> Result<StoreSnapshot, OpenError> {
        let io = |error: io::Error| OpenError::io(file, error);
        let folder = tempfile::Builder::new()
            .prefix(".narthex-store-")
            .tempdir_in(folder)
            .map_err(|error| OpenError::io(folder, error))?;
        let snapshot = StoreSnapshot { folder };
        let copy = snapshot.file();
        let mut damage = None;
        for _ in 0..MAX_ATTEMPTS {
            let before = FileGeneration::read(file).map_err(io)?;
            copy_private(file, &copy)?;
            match copy_private(&wal_path(file), &wal_path(&copy)) {
                Err(OpenError::Io { .. }) if !wal_path(file).exists() => drop(fs::remove_file(wal_path(&copy))),
                copied => copied?,
            }
            if FileGeneration::read(file).map_err(io)? != before {
                continue;
            }
            // The end of the log may have been written while it was read: then another copy differs.
            match check_wal(&copy) {
                Ok(()) => return Ok(snapshot),
                Err(OpenError::DamagedLog { frame, .. }) => {
                    damage = Some(OpenError::DamagedLog { file: wal_path(file), frame });
                }
                Err(error) => return Err(error),
            }
        }
        let busy = "it changes faster than it can be copied; stop the process, or copy a snapshot of the file system";
        Err(damage.unwrap_or_else(|| OpenError::io(file, busy)))
    }

    /// The copied database; its log is beside it.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }
}

impl FileGeneration {
    fn read(file: &Path) -> io::Result<FileGeneration> {
        let found = fs::metadata(file)?;
        let log = match File::open(wal_path(file)) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            opened => {
                let log = opened?;
                let mut header = Vec::new();
                (&log).take(32).read_to_end(&mut header)?;
                Some((header, log.metadata()?.ino()))
            }
        };
        let unlogged = log.is_none().then(|| (found.len(), found.mtime(), found.mtime_nsec()));
        Ok(FileGeneration { database: found.ino(), log, unlogged })
    }
}

/// Copies a file with mode 0600; the directory must be private.
fn copy_private(from: &Path, to: &Path) -> Result<(), OpenError> {
    // The kernel shares the blocks where the file system can.
    fs::copy(from, to).map_err(|error| OpenError::io(from, error))?;
    restrict_mode(to)
}
