//! When a reader is too slow. Pure; the time is an argument.
//!
//! Konnectivity has no flow control of its own: an agent of the reference hands its packets, of all connections, to the
//! server one after another, and waits while a single one cannot be delivered (`pkg/server/server.go`,
//! `serveRecvBackend`). A reader that leaves its stream's window full holds up everybody's connections, so it has to
//! read on or go.

use std::time::Duration;

use tokio::time::Instant;

/// What the server may send of one tunnel before it is read: the window of its stream.
pub(super) const WINDOW: usize = 4 << 20;
/// Of a window, what a reader has to read within the limit of time.
const PROGRESS: u64 = WINDOW as u64 / 8;

/// Since when a reader leaves its window full, if it does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall(Option<(Instant, u64)>);

impl Stall {
    /// Looks again: whether a reader that has read `taken` bytes and leaves `held` unread is to go.
    pub(super) fn judge(&mut self, held: usize, taken: u64, limit: Duration, now: Instant) -> bool {
        match self.0 {
            _ if held < WINDOW / 2 => self.0 = None,
            Some((since, then)) if taken - then < PROGRESS => return now.duration_since(since) >= limit,
            _ => self.0 = Some((now, taken)),
        }
        false
    }

    /// Whether the window is full.
    pub(super) fn has_begun(&self) -> bool {
        self.0.is_some()
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
        assert_eq!(when(WINDOW, 0), Some(30), "one that does not read");
        assert_eq!(when(WINDOW, 1000), Some(30), "one that reads next to nothing");
        assert_eq!(when(WINDOW, PROGRESS / 20), None, "one that reads slowly");
        assert_eq!(when(WINDOW / 4, 0), None, "one that holds up nobody");
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
