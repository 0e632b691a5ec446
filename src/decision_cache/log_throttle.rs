//! Throttle of log lines that every request would cause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Allows one log line in each period.
pub struct LogThrottle {
    began: Instant,
    /// In seconds; at least one.
    period: u64,
    /// The period of the last log line, counted from 1; 0 before the first.
    last: AtomicU64,
}

impl Default for LogThrottle {
    fn default() -> LogThrottle {
        LogThrottle::with_period(Duration::from_secs(1))
    }
}

impl LogThrottle {
    /// Creates a throttle of one log line in each `period`, which is a whole number of seconds.
    pub fn with_period(period: Duration) -> LogThrottle {
        LogThrottle { began: Instant::now(), period: period.as_secs().max(1), last: AtomicU64::new(0) }
    }

    /// Whether to log now: true for one caller in each period.
    pub fn is_due(&self) -> bool {
        self.is_due_at(self.began.elapsed().as_secs())
    }

    fn is_due_at(&self, second: u64) -> bool {
        let period = second / self.period + 1;
        self.last.swap(period, Ordering::Relaxed) != period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_throttle_allows_one_line_per_period() {
        let complaint = LogThrottle::default();
        let due: Vec<bool> = [0, 0, 0, 1, 1, 7].into_iter().map(|second| complaint.is_due_at(second)).collect();
        assert_eq!(due, [true, false, false, true, false, true]);
        let complaint = LogThrottle::with_period(Duration::from_secs(60));
        let due: Vec<bool> = [0, 1, 59, 60, 61, 200].into_iter().map(|second| complaint.is_due_at(second)).collect();
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
