//! Decides when a reader is too slow. No I/O; the time is an argument.
//!
//! Konnectivity has no flow control of its own: an agent of the reference sends the packets of all connections to the
//! server in order, and blocks while a single one cannot be delivered (`pkg/server/server.go`, `serveRecvBackend`).
//! A reader that leaves its stream's window full blocks all connections, so it has to read on, or its tunnel is closed.

use std::time::Duration;

use tokio::time::Instant;

/// Stream window: what the server may send of one tunnel before it is read.
pub(super) const WINDOW: usize = 4 << 20;
/// Bytes that a reader has to read within the time limit.
const MIN_PROGRESS_BYTES: u64 = WINDOW as u64 / 8;

/// Tracks how far a reader lags behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowReaderTracker {
    /// Since when the window is full, and how much had been read then.
    window_full: Option<(Instant, u64)>,
    /// Since when data is unread, and the read count at which it will have been read.
    lag_mark: Option<(Instant, u64)>,
}

impl SlowReaderTracker {
    /// Updates the state; returns whether a reader that has read `taken` bytes and leaves `held` unread is too slow.
    pub(super) fn observe(&mut self, held: usize, taken: u64, limit: Duration, now: Instant) -> bool {
        match self.lag_mark {
            _ if held == 0 => self.lag_mark = None,
            Some((_, mark)) if taken < mark => {}
            _ => self.lag_mark = Some((now, taken + held as u64)),
        }
        match self.window_full {
            _ if held < WINDOW / 2 => self.window_full = None,
            Some((since, then)) if taken - then < MIN_PROGRESS_BYTES => return now.duration_since(since) >= limit,
            _ => self.window_full = Some((now, taken)),
        }
        false
    }

    /// Minimum age of the oldest unread data at the last update. A reader that reads a byte at a time is no better than
    /// one that does not read.
    pub(super) fn lag(&self, now: Instant) -> Duration {
        self.lag_mark.map_or(Duration::ZERO, |(since, _)| now.duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reader_is_closed_when_window_stays_full() {
        let start = Instant::now();
        let limit = Duration::from_secs(30);
        let when = |held: usize, speed: u64| {
            let mut stall = SlowReaderTracker::default();
            (0..300).find(|at| stall.observe(held, speed * at, limit, start + Duration::from_secs(*at)))
        };
        assert_eq!(when(WINDOW, 0), Some(30), "a reader that does not read");
        assert_eq!(when(WINDOW, 1000), Some(30), "a reader that reads next to nothing");
        assert_eq!(when(WINDOW, MIN_PROGRESS_BYTES / 20), None, "a slow reader that makes progress");
        assert_eq!(when(WINDOW / 4, 0), None, "a reader that leaves little unread");
    }

    #[test]
    fn slow_reader_lag_grows_with_any_unread_bytes() {
        let start = Instant::now();
        let behind = |held: usize, speed: u64| {
            let mut stall = SlowReaderTracker::default();
            let judged = (0..=30).map(|at| {
                let now = start + Duration::from_secs(at);
                stall.observe(held, speed * at, Duration::MAX, now);
                stall.lag(now).as_secs()
            });
            judged.max().unwrap_or_default()
        };
        assert_eq!(behind(1000, 0), 30, "a reader that does not read");
        assert_eq!(behind(1000, 1), 30, "a reader that reads a byte at a time");
        assert_eq!(behind(1000, 1000), 0, "a reader that catches up within a second");
        assert_eq!(behind(1000, 250), 3, "a reader that catches up within four");
        assert_eq!(behind(0, 0), 0, "no data");
    }

    #[test]
    fn slow_reader_timeout_restarts_after_catching_up() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let limit = Duration::from_secs(30);
        let mut stall = SlowReaderTracker::default();
        assert!(!stall.observe(WINDOW, 0, limit, at(0)));
        assert!(!stall.observe(0, WINDOW as u64, limit, at(29)));
        assert!(!stall.observe(WINDOW, WINDOW as u64, limit, at(31)));
        assert!(!stall.observe(WINDOW, WINDOW as u64, limit, at(60)));
        assert!(stall.observe(WINDOW, WINDOW as u64, limit, at(61)));
    }
}
