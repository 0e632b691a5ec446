//! State of one connection to a server, shared by its tunnels and its task.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::call::Line;
use super::leave::Leaving;

/// Interval between sweeps over the tunnels.
pub(super) const SWEEP: Duration = Duration::from_secs(1);
/// A tunnel counts as stuck at its agent when its writer has waited this long.
const STUCK: Duration = Duration::from_secs(2);

/// Limit of unread bytes of all tunnels of a connection together.
const MOST_HELD: usize = 256 << 20;
/// Above that limit, tunnels with a reader that lags by this much may be closed.
const BEHIND: Duration = SWEEP;

/// Shared state of a connection. It stays on one thread, but must be `Send`: an upgrade requires that of its stream,
/// here a tunnel.
pub(super) struct Shared {
    /// Why the connection ended, once it has.
    pub(super) ended: Mutex<Option<String>>,
    /// Number of open streams.
    pub(super) streams: AtomicUsize,
    /// Limit of concurrent streams.
    pub(super) limit: AtomicUsize,
    /// Number of messages from the server.
    pub(super) heard: AtomicU64,
    /// Number of reads from the server, HTTP/2's own frames included.
    pub(super) sounds: AtomicU64,
    /// Number of stuck tunnels.
    pub(super) stuck: AtomicUsize,
    /// How long a reader may leave its window full.
    pub(super) stall: Duration,
    pub(super) lines: Mutex<Vec<Weak<Line>>>,
    leaving: Mutex<Vec<Leaving>>,
    task: Mutex<Option<Waker>>,
}

impl Shared {
    pub(super) fn new(limit: usize, stall: Duration) -> Shared {
        Shared {
            ended: Mutex::default(),
            streams: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            heard: AtomicU64::new(0),
            sounds: AtomicU64::new(0),
            stuck: AtomicUsize::new(0),
            stall,
            lines: Mutex::default(),
            leaving: Mutex::default(),
            task: Mutex::default(),
        }
    }

    /// Hands a stream to the connection's task, which closes it: its user is gone.
    pub(super) fn leave(&self, leaving: Leaving) {
        if self.ended.lock().is_none() {
            self.leaving.lock().push(leaving);
            self.wake();
        }
    }

    /// Adds a stream to the sweep.
    pub(super) fn watch(&self, line: &Arc<Line>) {
        self.lines.lock().push(Arc::downgrade(line));
        self.wake();
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    /// Sets the waker of the connection's task.
    pub(super) fn wake_later(&self, waker: &Waker) {
        let mut task = self.task.lock();
        match &mut *task {
            Some(task) => task.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// Takes the streams that the task has to close.
    pub(super) fn leavers(&self) -> Vec<Leaving> {
        std::mem::take(&mut *self.leaving.lock())
    }

    /// Marks the connection as ended.
    pub(super) fn end(&self, why: String) {
        self.ended.lock().get_or_insert(why);
        drop(self.leavers());
    }

    /// Closes tunnels with slow readers that block the others, and counts those with stuck writers.
    pub(super) fn sweep(&self, now: Instant) {
        let (mut stuck, mut all) = (0, 0);
        let mut behind: Vec<(usize, Duration, Arc<Line>)> = Vec::new();
        self.lines.lock().retain(|line| {
            let Some(line) = line.upgrade() else { return false };
            let held = line.held();
            let mut watched = line.watched.lock();
            stuck += usize::from(watched.waits.is_some_and(|since| now.duration_since(since) >= STUCK));
            if watched.stall.judge(held, line.taken(), self.stall, now) {
                tracing::warn!(
                    "Konnectivity tunnel closed: its reader left {} KiB unread for {:?} and blocked others",
                    held >> 10,
                    self.stall
                );
                drop(watched);
                line.give_up();
                return false;
            }
            let waited = watched.stall.behind(now);
            drop(watched);
            all += held;
            if waited >= BEHIND {
                behind.push((held, waited, line));
            }
            true
        });
        if self.stuck.swap(stuck, Relaxed) == 0 && stuck > 0 {
            tracing::warn!(
                "Konnectivity tunnel stuck for {STUCK:?}: if its target does not read, its agent may block all tunnels"
            );
        }
        make_room(all, behind);
    }
}

/// Closes tunnels until the unread bytes, `all`, are within the limit: those first that hold most for longest. However
/// little each of them holds, together they would use up the connection's window and block all tunnels.
fn make_room(all: usize, mut behind: Vec<(usize, Duration, Arc<Line>)>) {
    if all <= MOST_HELD {
        return;
    }
    behind.sort_unstable_by_key(|(held, waited, _)| *held as u128 * waited.as_millis());
    let (mut left, mut gone) = (all, 0);
    while left > MOST_HELD
        && let Some((held, _, line)) = behind.pop()
    {
        line.give_up();
        left -= held;
        gone += 1;
    }
    if gone > 0 {
        tracing::warn!(
            "{gone} Konnectivity tunnels closed: readers of one connection left {} MiB unread, these the most",
            all >> 20
        );
    }
}

/// Counts a stream of its connection until dropped.
pub(super) struct Counted(Arc<Shared>);

impl Counted {
    pub(super) fn new(shared: &Arc<Shared>) -> Counted {
        shared.streams.fetch_add(1, Relaxed);
        Counted(shared.clone())
    }

    /// Counts a message from the server.
    pub(super) fn heard(&self) {
        self.0.heard.fetch_add(1, Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}
