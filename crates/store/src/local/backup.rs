//! Backup of a store, also while a process uses it: one file, verified before it has its name.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempPath;

use super::OpenError;
use super::check::check_store_header;
use super::journal::describe;
use super::lock::{is_store_in_use, lock_for_reading, lock_path};
use super::log_mark::{LogMark, check_log};
use super::snapshot::StoreSnapshot;
use super::verify::{StoreContent, StoreDamage, verify_files};
use super::wal::wal_path;
use crate::own_links::resolve_own_links;

/// Why there is no backup.
#[derive(Debug)]
pub enum BackupError {
    /// The file of the backup exists already.
    Exists(PathBuf),
    /// The backup would replace a file of the store.
    Itself {
        /// The file of the backup.
        backup: PathBuf,
        /// The store's file.
        of_store: PathBuf,
    },
    /// The backup would replace a store that a process uses.
    InUse(PathBuf),
    /// The store is damaged.
    Damage(StoreDamage),
    /// The backup cannot be written.
    Io(PathBuf, std::io::Error),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Exists(file) => {
                write!(
                    f,
                    "{} exists already and is not overwritten; choose another name, or use --overwrite",
                    file.display()
                )
            }
            BackupError::Itself { backup, of_store } => {
                let (backup, of_store) = (backup.display(), of_store.display());
                write!(f, "{backup} is not overwritten: it is {of_store}, a file of the store; choose another name")
            }
            BackupError::InUse(file) => {
                write!(
                    f,
                    "{} is not overwritten: it is a store that a process uses; choose another name",
                    file.display()
                )
            }
            BackupError::Damage(damage) => damage.fmt(f),
            BackupError::Io(file, error) => write!(f, "{} cannot be written: {error}", file.display()),
        }
    }
}

impl std::error::Error for BackupError {}

impl From<OpenError> for BackupError {
    fn from(error: OpenError) -> BackupError {
        BackupError::Damage(error.into())
    }
}

/// Writes the store `file` as one file `backup`, with every change that was confirmed before the call. The store is only
/// read, and a process that uses it is not disturbed. The backup needs no log, and is verified.
///
/// # Errors
/// [`BackupError`]; there is no new file then.
pub fn back_up_store(
    file: &Path,
    backup: &Path,
    overwrites: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<StoreContent, BackupError> {
    let file = &*resolve_own_links(file).map_err(|error| OpenError::io(file, error))?;
    check_target(file, backup)?;
    if !overwrites && backup.symlink_metadata().is_ok() {
        return Err(BackupError::Exists(backup.to_owned()));
    }
    check_store_header(file)?;
    if let Ok(lock) = lock_for_reading(file) {
        check_log(file)?;
        drop(lock);
    }
    let folder = backup.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let snapshot = StoreSnapshot::copy(file, folder)?;
    let copy = snapshot.file();
    close_copy(&copy).map_err(|error| describe(file, &error))?;
    let content = verify_files(&copy, file, progress).map_err(BackupError::Damage)?;
    let io = |error| BackupError::Io(backup.to_owned(), error);
    File::open(&copy).and_then(|copy| copy.sync_all()).map_err(io)?;
    let named = TempPath::try_from_path(&copy).map_err(io)?;
    let moved = if overwrites { named.persist(backup) } else { named.persist_noclobber(backup) };
    moved.map_err(|error| match error.error.kind() {
        ErrorKind::AlreadyExists => BackupError::Exists(backup.to_owned()),
        _ => io(error.error),
    })?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
    Ok(content)
}

/// Refuses a backup in the place of a store that is in use, or of a file of the store `file`: the process that uses it would
/// go on with a file without a name.
fn check_target(file: &Path, backup: &Path) -> Result<(), BackupError> {
    let beside = |suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    for of_store in [file.to_owned(), wal_path(file), beside("-shm"), beside("-journal"), lock_path(file)] {
        if is_same_file(&of_store, backup) {
            return Err(BackupError::Itself { backup: backup.to_owned(), of_store });
        }
    }
    if is_store_in_use(backup) { Err(BackupError::InUse(backup.to_owned())) } else { Ok(()) }
}

/// Whether two paths are of one file, also through links, and also if it does not exist.
fn is_same_file(one: &Path, other: &Path) -> bool {
    if let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) {
        return (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    let resolve = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some((folder.canonicalize().ok()?, path.file_name()?.to_owned()))
    };
    resolve(one).is_some_and(|one| resolve(other) == Some(one))
}

/// Copies the log of a copied store into it, as when the store is closed.
fn close_copy(copy: &Path) -> rusqlite::Result<()> {
    let connection = Connection::open(copy)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    LogMark::write(&connection, None)?;
    connection.pragma_update(None, "journal_mode", "DELETE")
}
