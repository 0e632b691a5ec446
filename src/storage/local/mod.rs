//! The store in one SQLite file: WAL mode, each commit synchronized, one thread that writes.

mod check;
mod compact;
mod expire;
mod journal;
mod monitor;
mod recover;
mod wal;
mod writer;

use std::fmt;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::check::check_store_file;
use self::journal::Journal;
use self::monitor::MonitoredState;
pub use self::monitor::StoreMonitor;
use self::recover::recover;
use self::writer::{StoreCommand, Writer};
use super::{
    ChangeSink, CommitOutcome, Error, Expect, Key, Loaded, Mutation, Prefix, Progress, RecordPage, Revision, Store,
    StoreFuture, StoreReply, UnixMillis,
};

/// Reads the wall clock.
pub type Clock = Arc<dyn Fn() -> UnixMillis + Send + Sync>;

/// The clock of the system.
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    })
}

/// Ends the process after a failed synchronization; called with the reason. The store refuses everything if it returns.
pub type AbortHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of a [`LocalStore`].
#[derive(Clone)]
pub struct LocalStoreSettings {
    /// The database file (`--store-file`); `-wal` and `.lock` files are beside it.
    pub file: PathBuf,
    /// Whether a commit waits for the disk. False is `--unsafe-no-fsync`: a power failure loses commits.
    pub synchronizes: bool,
    /// Superseded values are kept for this long.
    pub retention: Duration,
    /// Number of the newest changes that are kept whatever their age.
    pub retained_changes: u64,
    /// Largest size of the file in bytes, for tests of a full disk; 0 is no limit.
    pub max_bytes: u64,
    /// The clock of expiry and compaction.
    pub clock: Clock,
    /// Called when the disk did not confirm a commit: what the file holds is then unknown.
    pub abort: AbortHandler,
}

impl LocalStoreSettings {
    /// Settings for `file` as the gateway uses them: the process aborts when the disk does not confirm a commit.
    pub fn new(file: impl Into<PathBuf>) -> LocalStoreSettings {
        LocalStoreSettings {
            file: file.into(),
            synchronizes: true,
            retention: Duration::from_secs(300),
            retained_changes: 1_000,
            max_bytes: 0,
            clock: system_clock(),
            abort: Arc::new(|reason| {
                tracing::error!("store failed, process ends: {reason}");
                std::process::abort();
            }),
        }
    }
}

/// Reason why a store's file was not opened. Names the file, and the key where there is one.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the file open.
    InUse {
        /// The file.
        file: PathBuf,
        /// Process id in the lock file.
        process: String,
    },
    /// The file has another format version.
    Format {
        /// The file.
        file: PathBuf,
        /// Format version of the file.
        found: i64,
        /// The version of this program.
        supported: i64,
    },
    /// The file is not a store, is cut off, or a page of it is damaged.
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The write-ahead log is damaged before its last transaction, so changes that were confirmed would be left out.
    DamagedLog {
        /// The log.
        file: PathBuf,
        /// Number of the first damaged frame, from 1; 0 is the header.
        frame: u64,
    },
    /// A row does not match its checksum, or its history is incomplete.
    DamagedRow {
        /// The file.
        file: PathBuf,
        /// Key of the row.
        key: String,
        /// Revision of the row.
        revision: Revision,
        /// What is wrong.
        reason: &'static str,
    },
    /// The file cannot be created, read or locked.
    Io {
        /// The file.
        file: PathBuf,
        /// The error of the operating system or of SQLite.
        reason: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::InUse { file, process } => {
                write!(f, "store {} is in use by process {process}", file.display())
            }
            OpenError::Format { file, found, supported } => {
                let file = file.display();
                write!(f, "store {file} has format version {found}, this program supports {supported}")
            }
            OpenError::Damaged { file, reason } => write!(f, "store {} is damaged: {reason}", file.display()),
            OpenError::DamagedLog { file, frame } => {
                let file = file.display();
                match frame {
                    0 => write!(f, "store log {file} is damaged: wrong checksum of its header")?,
                    frame => write!(f, "store log {file} is damaged: wrong checksum of frame {frame}")?,
                }
                f.write_str("; changes that were confirmed to clients follow: restore a copy of the store")
            }
            OpenError::DamagedRow { file, key, revision, reason } => {
                let file = file.display();
                write!(f, "store {file} is damaged: {reason}: key {key:?}, revision {revision}")
            }
            OpenError::Io { file, reason } => write!(f, "store {} cannot be opened: {reason}", file.display()),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    fn io(file: &Path, error: impl fmt::Display) -> OpenError {
        OpenError::Io { file: file.to_owned(), reason: error.to_string() }
    }
}

/// A store in a SQLite file. Cheap to clone; the last clone that is dropped closes the file.
#[derive(Clone)]
pub struct LocalStore(Arc<StoreHandle>);

struct StoreHandle {
    commands: Option<mpsc::Sender<StoreCommand>>,
    monitor: StoreMonitor,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LocalStore {
    /// Opens the file, creates it if it does not exist, reads all of it, and starts the thread that writes.
    /// Blocks: about a second for 100,000 objects.
    ///
    /// # Errors
    /// [`OpenError`]. A file that exists is never replaced or repaired.
    pub fn open(settings: LocalStoreSettings) -> Result<LocalStore, OpenError> {
        let lock = lock_file(&settings.file)?;
        let journal = Journal::open(&settings)?;
        let state = recover(&journal, &settings)?;
        let (commands, receiver) = mpsc::channel();
        let (publisher, published) = watch::channel(state.revision);
        let (file, shared) = (settings.file.clone(), Arc::new(MonitoredState::default()));
        let monitor = StoreMonitor { file: file.as_path().into(), published, shared: shared.clone() };
        let writer = Writer::new(journal, state, settings, receiver, (publisher, shared));
        let run = move || {
            writer.run();
            drop(lock);
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run);
        let thread = thread.map_err(|error| OpenError::io(&file, error))?;
        Ok(LocalStore(Arc::new(StoreHandle { commands: Some(commands), monitor, thread: Mutex::new(Some(thread)) })))
    }

    /// State of the store for status, metrics and health checks.
    pub fn monitor(&self) -> &StoreMonitor {
        &self.0.monitor
    }

    /// Expires and compacts what is due now, which otherwise happens within ten seconds.
    pub fn maintain(&self) -> StoreFuture<()> {
        self.send(StoreCommand::Maintain)
    }

    /// Ends the thread once everything sent before is written: the file is then whole without its log. What is asked
    /// later is answered with [`Error::Closed`].
    pub fn close(&self) -> StoreFuture<()> {
        self.send(StoreCommand::Close)
    }

    fn send<T>(&self, command: impl FnOnce(StoreReply<T>) -> StoreCommand) -> StoreFuture<T> {
        let (reply, future) = StoreFuture::channel();
        if let Some(commands) = &self.0.commands {
            // A writer that ended drops the reply, which answers with `Closed`.
            let _ = commands.send(command(reply));
        }
        future
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.commands = None;
        let thread = self.thread.lock().take();
        // The last handle may be dropped by a sink, on the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Store for LocalStore {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        let prefix = prefix.clone();
        self.send(|reply| StoreCommand::Load { prefix, reply })
    }

    fn commit(&self, key: &Key, expect: Expect, mutation: Mutation) -> StoreFuture<CommitOutcome> {
        if let Err(error) = mutation.check_size() {
            return StoreFuture::ready(Err(error));
        }
        let key = key.clone();
        self.send(|reply| StoreCommand::Commit { key, expect, mutation, reply })
    }

    fn follow(&self, prefix: &Prefix, after: Revision, sink: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        let prefix = prefix.clone();
        self.send(|reply| StoreCommand::Follow { prefix, after, sink, reply })
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage> {
        let (prefix, from) = (prefix.clone(), from.map(str::to_owned));
        self.send(|reply| StoreCommand::At { prefix, from, limit, revision, reply })
    }

    fn current(&self) -> StoreFuture<Revision> {
        let monitor = self.monitor();
        StoreFuture::ready(if monitor.is_closed() { Err(Error::Closed) } else { Ok(monitor.revision()) })
    }
}

/// The lock file of a store.
fn lock_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Whether a process has the store open.
fn is_locked(file: &Path) -> bool {
    File::open(lock_path(file)).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Takes the lock file beside `file` for the life of the process and writes the process id into it.
fn lock_file(file: &Path) -> Result<FileLock, OpenError> {
    let path = lock_path(file);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut lock = opened.map_err(|error| OpenError::io(&path, error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            let _ = Read::by_ref(&mut lock).take(20).read_to_string(&mut process);
            return Err(OpenError::InUse { file: file.to_owned(), process: process.trim().to_owned() });
        }
        Err(TryLockError::Error(error)) => return Err(OpenError::io(&path, error)),
    }
    let write_id = |lock: &mut File| -> io::Result<()> {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())
    };
    // A full disk must not prevent a start: the lock counts, the text in it is a hint.
    if let Err(error) = write_id(&mut lock) {
        tracing::warn!("process id not written to {}: {error}", path.display());
    }
    Ok(FileLock(lock))
}

/// The lock of a store's file. Unlocks when dropped, also while a process that is being started still has the file.
struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Makes the file readable by its owner alone.
fn restrict_mode(file: &Path) -> Result<(), OpenError> {
    std::fs::set_permissions(file, Permissions::from_mode(0o600)).map_err(|error| OpenError::io(file, error))
}

#[cfg(test)]
mod tests;
