//! Counters of the streams of one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Counters of the streams of one connection, shared by these.
#[derive(Default)]
pub(super) struct StreamCounters {
    open: AtomicUsize,
    messages: AtomicU64,
}

impl StreamCounters {
    /// Number of open streams.
    pub(super) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Number of messages from the server.
    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Relaxed)
    }
}

/// Counts a stream of its connection until dropped.
pub(super) struct StreamCountGuard(Arc<StreamCounters>);

impl StreamCountGuard {
    pub(super) fn new(counters: &Arc<StreamCounters>) -> StreamCountGuard {
        counters.open.fetch_add(1, Relaxed);
        StreamCountGuard(counters.clone())
    }

    /// Counts a message from the server.
    pub(super) fn record_message(&self) {
        self.0.messages.fetch_add(1, Relaxed);
    }
}

impl Drop for StreamCountGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
