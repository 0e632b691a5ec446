//! What the log says of events that are lost: the first time at once, and then once in a while.

use std::time::{Duration, Instant};

use super::queue::Queue;

/// How often at most.
pub(super) const TELL: Duration = Duration::from_secs(60);

/// The losses of one sink that were not told yet.
pub(super) struct Losses {
    /// Where events should have gone.
    to: String,
    /// Of those that found no room, how many were told.
    dropped: u64,
    /// Those that could not be written or delivered since it was last told, and why.
    failed: usize,
    why: String,
    told: Option<Instant>,
}

impl Losses {
    pub(super) fn new(to: impl Into<String>) -> Losses {
        Losses { to: to.into(), dropped: 0, failed: 0, why: String::new(), told: None }
    }

    /// So many could not be written or delivered.
    pub(super) fn failed(&mut self, events: usize, why: impl Into<String>) {
        self.failed += events;
        self.why = why.into();
    }

    /// Says what is to be said, unless something was said lately.
    pub(super) fn tell(&mut self, queue: &Queue) {
        let dropped = queue.dropped();
        if dropped == self.dropped && self.failed == 0 || self.told.is_some_and(|told| told.elapsed() < TELL) {
            return;
        }
        let to = &*self.to;
        if self.failed > 0 {
            tracing::error!(events = self.failed, to, error = self.why, "audit events are lost: they are not taken");
        }
        if dropped > self.dropped {
            let events = dropped - self.dropped;
            tracing::error!(events, to, "audit events are lost: they come faster than they are taken");
        }
        (self.dropped, self.failed, self.told) = (dropped, 0, Some(Instant::now()));
    }
}
