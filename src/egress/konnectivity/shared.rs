//! What the tunnels of one connection to a server share with each other and with its task.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::call::Line;
use super::leave::Leaving;

/// How often tunnels are looked after.
pub(super) const SWEEP: Duration = Duration::from_secs(1);
/// A writer that waits as long as this waits for an agent that is stuck.
const STUCK: Duration = Duration::from_secs(2);

/// What all tunnels of a connection may leave unread together.
const MOST_HELD: usize = 256 << 20;
/// Beyond that, who has left what came unread for as long as this may be given up.
const BEHIND: Duration = SWEEP;

/// The common state of a connection. It stays on one thread; but an upgrade wants of what it holds, a tunnel in this
/// case, that it could move.
pub(super) struct Shared {
    /// Why it ended, once it did.
    pub(super) ended: Mutex<Option<String>>,
    /// Streams on it.
    pub(super) streams: AtomicUsize,
    /// Streams the server takes at a time.
    pub(super) limit: AtomicUsize,
    /// How often something came from the server.
    pub(super) heard: AtomicU64,
    /// How often bytes came from it, if only those of HTTP/2 itself.
    pub(super) sounds: AtomicU64,
    /// Tunnels whose writer waits for long.
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

    /// What is to be said before a stream ends is said by the connection's task: whoever used the stream is gone.
    pub(super) fn leave(&self, leaving: Leaving) {
        if self.ended.lock().is_none() {
            self.leaving.lock().push(leaving);
            self.wake();
        }
    }

    /// A stream that is to be looked after.
    pub(super) fn watch(&self, line: &Arc<Line>) {
        self.lines.lock().push(Arc::downgrade(line));
        self.wake();
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    /// The connection's task waits.
    pub(super) fn wake_later(&self, waker: &Waker) {
        let mut task = self.task.lock();
        match &mut *task {
            Some(task) => task.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// Streams that are left to the task.
    pub(super) fn leavers(&self) -> Vec<Leaving> {
        std::mem::take(&mut *self.leaving.lock())
    }

    /// Nothing goes over the connection any more.
    pub(super) fn end(&self, why: String) {
        self.ended.lock().get_or_insert(why);
        drop(self.leavers());
    }

    /// Looks after all tunnels: gives up those whose readers hold up everybody else, counts those whose writers wait.
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
                    "a Konnectivity tunnel is closed: its reader left {} KiB unread for {:?} and held up others",
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
                "a Konnectivity tunnel takes nothing for {STUCK:?}: if its target does not read, its agent may stop for all"
            );
        }
        make_room(all, behind);
    }
}

/// Gives up tunnels until the rest of what is unread, `all`, is within bounds: those first that hold most for longest. However
/// little each of them holds, together they would use up the connection's window, and stop everybody.
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
            "{gone} Konnectivity tunnels are closed: all readers of a connection left {} MiB unread, and theirs most",
            all >> 20
        );
    }
}

/// A stream that counts as one of its connection's as long as this is kept.
pub(super) struct Counted(Arc<Shared>);

impl Counted {
    pub(super) fn new(shared: &Arc<Shared>) -> Counted {
        shared.streams.fetch_add(1, Relaxed);
        Counted(shared.clone())
    }

    /// Something came from the server.
    pub(super) fn heard(&self) {
        self.0.heard.fetch_add(1, Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}
