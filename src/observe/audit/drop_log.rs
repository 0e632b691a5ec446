//! Logs lost audit events: the first loss immediately, further ones at most once per interval.

use std::time::{Duration, Instant};

use super::queue::AuditQueue;

/// Minimum interval between two log lines.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Losses of one sink that are not logged yet.
pub(super) struct LossReporter {
    /// Destination of the events.
    destination: String,
    /// Number of logged events that were dropped because the queue was full.
    dropped: u64,
    /// Events that could not be written or delivered since the last log line, and the last error.
    failed: usize,
    error: String,
    reported_at: Option<Instant>,
}

impl LossReporter {
    pub(super) fn new(to: impl Into<String>) -> LossReporter {
        LossReporter { destination: to.into(), dropped: 0, failed: 0, error: String::new(), reported_at: None }
    }

    /// Records that `events` could not be written or delivered.
    pub(super) fn record_failure(&mut self, events: usize, why: impl Into<String>) {
        self.failed += events;
        self.error = why.into();
    }

    /// Logs new losses, unless the last log line was less than [`REPORT_INTERVAL`] ago.
    pub(super) fn report(&mut self, queue: &AuditQueue) {
        let dropped = queue.dropped();
        if dropped == self.dropped && self.failed == 0
            || self.reported_at.is_some_and(|told| told.elapsed() < REPORT_INTERVAL)
        {
            return;
        }
        let to = &*self.destination;
        if self.failed > 0 {
            tracing::error!(events = self.failed, to, error = self.error, "audit events lost: the sink failed");
        }
        if dropped > self.dropped {
            let events = dropped - self.dropped;
            tracing::error!(events, to, "audit events lost: the queue is full");
        }
        (self.dropped, self.failed, self.reported_at) = (dropped, 0, Some(Instant::now()));
    }
}
