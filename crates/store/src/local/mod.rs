//! The store in one SQLite file: WAL mode, each commit synchronized, one thread that writes.

mod backup;
mod check;
mod clock;
mod commit_batch;
mod compact;
mod expire;
mod history_reads;
mod index;
mod journal;
mod lock;
mod log_mark;
mod monitor;
mod recover;
mod snapshot;
mod store_command;
mod verify;
mod wal;
mod writer;

use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::LOG_TARGET;
use crate::own_links::resolve_own_links;

pub use self::backup::{BackupError, back_up_store};
pub use self::check::check_store_file;
pub use self::clock::{monotonic_clock, system_clock};
use self::history_reads::HistoryReaders;
use self::journal::{Journal, describe};
pub use self::lock::is_store_in_use;
use self::lock::lock_file;
use self::monitor::MonitoredState;
pub use self::monitor::StoreMonitor;
use self::recover::recover;
use self::store_command::StoreCommand;
pub use self::verify::{StoreContent, StoreDamage, verify_store};
use self::writer::Writer;
use super::{
    ChangeSink, CommitCondition, CommitOutcome, Error, Expect, Key, Loaded, Mutation, Prefix, Progress, RecordPage,
    Revision, Store, StoreFuture, StoreReply, UnixMillis,
};

/// Reads a clock, in milliseconds.
pub type Clock = Arc<dyn Fn() -> UnixMillis + Send + Sync>;

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
    /// The wall clock, read when the file is made.
    pub clock: Clock,
    /// The clock of expiry and compaction, which never jumps; its beginning does not matter.
    pub monotonic: Clock,
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
            monotonic: monotonic_clock(),
            abort: Arc::new(|reason| {
                tracing::error!(target: LOG_TARGET, "store failed, process ends: {reason}");
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
        /// Process id in the lock file; empty if the process only reads the store.
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
    /// The file is a copy of a store that was in use, without the log that belongs to it.
    MissingLog {
        /// The file.
        file: PathBuf,
    },
    /// The log beside the file is of another store, or of another time of this one.
    ForeignLog {
        /// The file.
        file: PathBuf,
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
            OpenError::InUse { file, process } if process.is_empty() => {
                let file = file.display();
                write!(
                    f,
                    "store {file} is being read by another command, \"narthex store\" or \"narthex check\": start again when it is done"
                )
            }
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
            OpenError::MissingLog { file } => {
                let file = file.display();
                write!(
                    f,
                    "store {file} was copied while it was in use, without its log {file}-wal, so changes that were confirmed \
                     to clients are missing: copy both, or use a copy made by \"narthex store backup\"; to go on without \
                     these changes, create an empty file {file}-wal"
                )
            }
            OpenError::ForeignLog { file } => {
                let file = file.display();
                write!(
                    f,
                    "log {file}-wal does not belong to store {file}: if the store was restored from a backup, remove the log; \
                     else copy both files again"
                )
            }
            OpenError::Io { file, reason } => write!(f, "store {} cannot be opened: {reason}", file.display()),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    /// Whether the store is damaged or incomplete: a backup helps.
    pub fn is_damage(&self) -> bool {
        !matches!(self, OpenError::InUse { .. } | OpenError::Format { .. } | OpenError::Io { .. })
    }

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
    /// The threads that read.
    readers: Vec<ThreadId>,
}

impl LocalStore {
    /// Opens the file, creates it if it does not exist, reads all of it, and starts the thread that writes.
    /// Blocks: about a second for 100,000 objects.
    ///
    /// # Errors
    /// [`OpenError`]. A file that exists is never replaced or repaired.
    pub fn open(settings: LocalStoreSettings) -> Result<LocalStore, OpenError> {
        let file = resolve_own_links(&settings.file).map_err(|error| OpenError::io(&settings.file, error))?;
        let settings = LocalStoreSettings { file, ..settings };
        let mut lock = lock_file(&settings.file)?;
        let journal = Journal::open(&settings)?;
        let state = recover(&journal, &settings)?;
        journal.prepare(&settings).map_err(|error| describe(&settings.file, &error))?;
        journal.mark_in_use(&settings.file)?;
        lock.note_mark(&settings.file);
        let (commands, receiver) = mpsc::channel();
        let (publisher, published) = watch::channel(state.revision);
        let (file, shared) = (settings.file.clone(), Arc::new(MonitoredState::default()));
        let monitor = StoreMonitor { file: file.as_path().into(), published, shared: shared.clone() };
        let readers = HistoryReaders::start(&file).map_err(|error| OpenError::io(&file, error))?;
        let reader_ids = readers.thread_ids();
        let writer = Writer::new((journal, readers), state, settings, receiver, (publisher, shared));
        let run = move || {
            writer.run();
            drop(lock);
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run);
        let thread = thread.map_err(|error| OpenError::io(&file, error))?;
        let thread = Mutex::new(Some(thread));
        Ok(LocalStore(Arc::new(StoreHandle { commands: Some(commands), monitor, thread, readers: reader_ids })))
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
        if let Some(commands) = self.commands.take() {
            // Feeds that are being replayed have the channel, too.
            let _ = commands.send(StoreCommand::Close(StoreFuture::channel().0));
        }
        // The last handle may be dropped by a sink, on a thread of the store.
        let current = std::thread::current().id();
        let thread = self.thread.lock().take().filter(|thread| thread.thread().id() != current);
        if let Some(thread) = thread.filter(|_| !self.readers.contains(&current)) {
            let _ = thread.join();
        }
    }
}

impl Store for LocalStore {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        let prefix = prefix.clone();
        self.send(|reply| StoreCommand::Load { prefix, reply })
    }

    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome> {
        if let Err(error) = mutation.check_size() {
            return StoreFuture::ready(Err(error));
        }
        let key = key.clone();
        self.send(|reply| StoreCommand::Commit { key, expect, mutation, conditions, reply })
    }

    fn follow(&self, prefix: &Prefix, after: Revision, sink: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        let prefix = prefix.clone();
        let Some(commands) = self.0.commands.clone() else { return StoreFuture::ready(Err(Error::Closed)) };
        self.send(|reply| StoreCommand::Follow { prefix, after, sink, reply, commands })
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

/// Makes the file readable by its owner alone.
fn restrict_mode(file: &Path) -> Result<(), OpenError> {
    std::fs::set_permissions(file, Permissions::from_mode(0o600)).map_err(|error| OpenError::io(file, error))
}

#[cfg(test)]
mod tests;
