//! The clock of a store: it counts the time that its process runs, whatever the wall clock says.

use std::time::{Duration, Instant, SystemTime};

use super::super::UnixMillis;
use super::Clock;

/// Time between two notes of the clock in the file.
const NOTE_INTERVAL: UnixMillis = 10_000;

/// Clock of expiry and compaction. It begins with the wall clock when the file is made, and then counts the time of the
/// processes that had the file open.
///
/// A wall clock that jumps can thus neither delete records nor discard history, while the process runs and across a
/// restart: a record lives as long as its time to live says, and longer by the time that the store was closed. It is
/// the same with etcd, whose leases count monotonic time and none while there is no leader (`lease/lessor.go`,
/// `Promote`); kube-apiserver keeps Events by them. The time is noted in the file with a commit every ten seconds and at
/// an orderly end, so a process that is killed loses what passed since: records live longer by that, never shorter.
pub(super) struct StoreClock {
    /// The time at which the process opened the file.
    opened: UnixMillis,
    /// The monotonic clock at that time.
    started: UnixMillis,
    monotonic: Clock,
    /// The time in the file.
    noted: Option<UnixMillis>,
}

impl StoreClock {
    /// Goes on at the time `noted` in the file; begins with the wall clock if there is none.
    pub(super) fn resume(noted: Option<UnixMillis>, wall: &Clock, monotonic: Clock) -> StoreClock {
        StoreClock { opened: noted.unwrap_or_else(|| wall()), started: monotonic(), monotonic, noted }
    }

    /// The time now; never less than before.
    pub(super) fn now(&self) -> UnixMillis {
        self.opened.saturating_add((self.monotonic)().saturating_sub(self.started))
    }

    /// The time after a duration. Fits the file, in which 0 is none.
    pub(super) fn after(&self, duration: Duration) -> UnixMillis {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.now().saturating_add(millis).clamp(1, i64::MAX as u64)
    }

    /// The time to note with the next commit, if it is due.
    pub(super) fn due_note(&self) -> Option<UnixMillis> {
        let now = self.now();
        self.noted.is_none_or(|noted| now >= noted.saturating_add(NOTE_INTERVAL)).then_some(now)
    }

    /// Records that a time is in the file.
    pub(super) fn set_noted(&mut self, noted: UnixMillis) {
        self.noted = Some(noted);
    }
}

/// The wall clock of the system, in milliseconds since 1970-01-01 UTC.
pub fn system_clock() -> Clock {
    std::sync::Arc::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    })
}

/// A clock that never jumps, in milliseconds since this call.
pub fn monotonic_clock() -> Clock {
    let began = Instant::now();
    std::sync::Arc::new(move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn clock(time: &Arc<AtomicU64>) -> Clock {
        let time = time.clone();
        Arc::new(move || time.load(Ordering::SeqCst))
    }

    #[test]
    fn store_clock_ignores_wall_clock_after_first_open() {
        let (wall, monotonic) = (Arc::new(AtomicU64::new(5_000_000)), Arc::new(AtomicU64::new(7)));
        let mut store = StoreClock::resume(None, &clock(&wall), clock(&monotonic));
        assert_eq!((store.now(), store.due_note()), (5_000_000, Some(5_000_000)));
        store.set_noted(5_000_000);
        wall.store(u64::MAX, Ordering::SeqCst);
        monotonic.store(10_006, Ordering::SeqCst);
        assert_eq!((store.now(), store.due_note()), (5_009_999, None));
        monotonic.store(10_007, Ordering::SeqCst);
        assert_eq!(store.due_note(), Some(5_010_000));
        let reopened = StoreClock::resume(Some(5_010_000), &clock(&wall), clock(&Arc::new(AtomicU64::new(0))));
        assert_eq!((reopened.now(), reopened.after(Duration::from_secs(1))), (5_010_000, 5_011_000));
        assert_eq!(reopened.after(Duration::MAX), i64::MAX as u64);
    }
}
