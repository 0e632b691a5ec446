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
const PROGRESS: u64 = WINDOW as u64 / 8;

/// Tracks how far a reader lags behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    /// Since when the window is full, and how much had been read then.
    full: Option<(Instant, u64)>,
    /// Since when data is unread, and the read count at which it will have been read.
    behind: Option<(Instant, u64)>,
}

impl Stall {
    /// Updates the state; returns whether a reader that has read `taken` bytes and leaves `held` unread is too slow.
    pub(super) fn judge(&mut self, held: usize, taken: u64, limit: Duration, now: Instant) -> bool {
        match self.behind {
            _ if held == 0 => self.behind = None,
            Some((_, mark)) if taken < mark => {}
            _ => self.behind = Some((now, taken + held as u64)),
        }
        match self.full {
            _ if held < WINDOW / 2 => self.full = None,
            Some((since, then)) if taken - then < PROGRESS => return now.duration_since(since) >= limit,
            _ => self.full = Some((now, taken)),
        }
        false
    }

    /// Minimum age of the oldest unread data at the last update. A reader that reads a byte at a time is no better than
    /// one that does not read.
    pub(super) fn behind(&self, now: Instant) -> Duration {
        self.behind.map_or(Duration::ZERO, |(since, _)| now.duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_leaves_the_window_full_and_hardly_reads_has_to_go() {
        let start = Instant::now();
        let limit = Duration::from_secs(30);
        let when = |held: usize, speed: u64| {
            let mut stall = Stall::default();
            (0..300).find(|at| stall.judge(held, speed * at, limit, start + Duration::from_secs(*at)))
        };
        assert_eq!(when(WINDOW, 0), Some(30), "a reader that does not read");
        assert_eq!(when(WINDOW, 1000), Some(30), "a reader that reads next to nothing");
        assert_eq!(when(WINDOW, PROGRESS / 20), None, "a slow reader that makes progress");
        assert_eq!(when(WINDOW / 4, 0), None, "a reader that leaves little unread");
    }

    #[test]
    fn who_does_not_read_what_came_is_behind_however_little_it_is() {
        let start = Instant::now();
        let behind = |held: usize, speed: u64| {
            let mut stall = Stall::default();
            let judged = (0..=30).map(|at| {
                let now = start + Duration::from_secs(at);
                stall.judge(held, speed * at, Duration::MAX, now);
                stall.behind(now).as_secs()
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
    fn who_caught_up_begins_anew() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let limit = Duration::from_secs(30);
        let mut stall = Stall::default();
        assert!(!stall.judge(WINDOW, 0, limit, at(0)));
        assert!(!stall.judge(0, WINDOW as u64, limit, at(29)));
        assert!(!stall.judge(WINDOW, WINDOW as u64, limit, at(31)));
        assert!(!stall.judge(WINDOW, WINDOW as u64, limit, at(60)));
        assert!(stall.judge(WINDOW, WINDOW as u64, limit, at(61)));
    }
}
