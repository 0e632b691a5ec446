//! Throttle of log lines that every request would cause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Allows one log line in each period.
pub struct Complaint {
    began: Instant,
    /// In seconds; at least one.
    period: u64,
    /// The period of the last log line, counted from 1; 0 before the first.
    last: AtomicU64,
}

impl Default for Complaint {
    fn default() -> Complaint {
        Complaint::every(Duration::from_secs(1))
    }
}

impl Complaint {
    /// Creates a throttle of one log line in each `period`, which is a whole number of seconds.
    pub fn every(period: Duration) -> Complaint {
        Complaint { began: Instant::now(), period: period.as_secs().max(1), last: AtomicU64::new(0) }
    }

    /// Whether to log now: true for one caller in each period.
    pub fn is_due(&self) -> bool {
        self.is_due_in(self.began.elapsed().as_secs())
    }

    fn is_due_in(&self, second: u64) -> bool {
        let period = second / self.period + 1;
        self.last.swap(period, Ordering::Relaxed) != period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_second() {
        let complaint = Complaint::default();
        let due: Vec<bool> = [0, 0, 0, 1, 1, 7].into_iter().map(|second| complaint.is_due_in(second)).collect();
        assert_eq!(due, [true, false, false, true, false, true]);
        let complaint = Complaint::every(Duration::from_secs(60));
        let due: Vec<bool> = [0, 1, 59, 60, 61, 200].into_iter().map(|second| complaint.is_due_in(second)).collect();
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
