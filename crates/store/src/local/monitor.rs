//! State of a store for status, metrics and health checks, without a call to its thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::{Error, Revision};
use super::wal::wal_path;

/// Reads the state of a store. Cheap to clone; does not keep the store open.
#[derive(Clone)]
pub struct StoreMonitor {
    pub(super) file: Arc<Path>,
    pub(super) published: watch::Receiver<Revision>,
    pub(super) shared: Arc<MonitoredState>,
}

/// What the thread of the store writes for its monitors.
#[derive(Default)]
pub(super) struct MonitoredState {
    compacted: AtomicU64,
    /// Why the last transaction was refused; none after one that was written.
    refusal: Mutex<Option<Error>>,
}

impl StoreMonitor {
    /// The file of the store.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The published revision.
    pub fn revision(&self) -> Revision {
        *self.published.borrow()
    }

    /// Revision up to which the history was discarded.
    pub fn compacted(&self) -> Revision {
        self.shared.compacted.load(Relaxed)
    }

    /// Size of the file and its log in bytes.
    pub fn size(&self) -> u64 {
        let size = |file: &Path| std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        size(&self.file) + size(&wal_path(&self.file))
    }

    /// Why the last write was refused, for example by a full disk.
    pub fn refusal(&self) -> Option<Error> {
        self.shared.refusal.lock().clone()
    }

    /// Whether the thread of the store has ended: nothing is read or written any more.
    pub fn is_closed(&self) -> bool {
        self.published.has_changed().is_err()
    }
}

impl MonitoredState {
    pub(super) fn set_compacted(&self, revision: Revision) {
        self.compacted.store(revision, Relaxed);
    }

    pub(super) fn set_refusal(&self, refusal: Option<Error>) {
        *self.refusal.lock() = refusal;
    }
}
