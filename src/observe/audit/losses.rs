//! Logs lost audit events: the first loss immediately, further ones at most once per interval.

use std::time::{Duration, Instant};

use super::queue::Queue;

/// Minimum interval between two log lines.
pub(super) const TELL: Duration = Duration::from_secs(60);

/// Losses of one sink that are not logged yet.
pub(super) struct Losses {
    /// Destination of the events.
    to: String,
    /// Number of logged events that were dropped because the queue was full.
    dropped: u64,
    /// Events that could not be written or delivered since the last log line, and the last error.
    failed: usize,
    why: String,
    told: Option<Instant>,
}

impl Losses {
    pub(super) fn new(to: impl Into<String>) -> Losses {
        Losses { to: to.into(), dropped: 0, failed: 0, why: String::new(), told: None }
    }

    /// Records that `events` could not be written or delivered.
    pub(super) fn failed(&mut self, events: usize, why: impl Into<String>) {
        self.failed += events;
        self.why = why.into();
    }

    /// Logs new losses, unless the last log line was less than [`TELL`] ago.
    pub(super) fn tell(&mut self, queue: &Queue) {
        let dropped = queue.dropped();
        if dropped == self.dropped && self.failed == 0 || self.told.is_some_and(|told| told.elapsed() < TELL) {
            return;
        }
        let to = &*self.to;
        if self.failed > 0 {
            tracing::error!(events = self.failed, to, error = self.why, "audit events lost: the sink failed");
        }
        if dropped > self.dropped {
            let events = dropped - self.dropped;
            tracing::error!(events, to, "audit events lost: the queue is full");
        }
        (self.dropped, self.failed, self.told) = (dropped, 0, Some(Instant::now()));
    }
}
