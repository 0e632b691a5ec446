//! What the tunnels of one connection to a server share with each other and with its task.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::call::Line;
use super::leave::Leaving;
use super::stall::WINDOW;

/// How often tunnels are looked after.
pub(super) const SWEEP: Duration = Duration::from_secs(1);
/// A writer that waits as long as this waits for an agent that is stuck.
const STUCK: Duration = Duration::from_secs(2);

/// The common state of a connection.
pub(super) struct Shared {
    /// Why it ended, once it did.
    pub(super) ended: RefCell<Option<String>>,
    /// Streams on it.
    pub(super) streams: Cell<usize>,
    /// Streams the server takes at a time.
    pub(super) limit: Cell<usize>,
    /// How often something came from the server.
    pub(super) heard: Cell<u64>,
    /// Tunnels whose writer waits for long.
    pub(super) stuck: Cell<usize>,
    /// How long a reader may leave its window full.
    pub(super) stall: Duration,
    pub(super) lines: RefCell<Vec<Weak<Line>>>,
    leaving: RefCell<Vec<Leaving>>,
    task: RefCell<Option<Waker>>,
}

impl Shared {
    pub(super) fn new(limit: usize, stall: Duration) -> Shared {
        Shared {
            ended: RefCell::new(None),
            streams: Cell::new(0),
            limit: Cell::new(limit),
            heard: Cell::new(0),
            stuck: Cell::new(0),
            stall,
            lines: RefCell::default(),
            leaving: RefCell::default(),
            task: RefCell::new(None),
        }
    }

    /// What is to be said before a stream ends is said by the connection's task: whoever used the stream is gone.
    pub(super) fn leave(&self, leaving: Leaving) {
        if self.ended.borrow().is_none() {
            self.leaving.borrow_mut().push(leaving);
            self.wake();
        }
    }

    /// A stream that is to be looked after.
    pub(super) fn watch(&self, line: &Rc<Line>) {
        self.lines.borrow_mut().push(Rc::downgrade(line));
        self.wake();
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// The connection's task waits.
    pub(super) fn wake_later(&self, waker: &Waker) {
        let mut task = self.task.borrow_mut();
        match &mut *task {
            Some(task) => task.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// Streams that are left to the task.
    pub(super) fn leavers(&self) -> Vec<Leaving> {
        std::mem::take(&mut *self.leaving.borrow_mut())
    }

    /// Nothing goes over the connection any more.
    pub(super) fn end(&self, why: String) {
        self.ended.borrow_mut().get_or_insert(why);
        drop(self.leavers());
    }

    /// Looks after all tunnels: gives up those whose readers hold up everybody else, counts those whose writers wait.
    pub(super) fn sweep(&self, now: Instant) {
        let mut stuck = 0;
        self.lines.borrow_mut().retain(|line| {
            let Some(line) = line.upgrade() else { return false };
            let mut stall = line.stall.get();
            if stall.judge(line.held(), line.taken(), self.stall, now) {
                tracing::warn!(
                    unread = line.held(),
                    "a Konnectivity tunnel is closed: its reader left {} MiB unread for {:?} and held up others",
                    WINDOW >> 20,
                    self.stall
                );
                line.give_up();
                return false;
            }
            line.stall.set(stall);
            stuck += usize::from(line.waits.get().is_some_and(|since| now.duration_since(since) >= STUCK));
            true
        });
        self.stuck.set(stuck);
    }
}

/// A stream that counts as one of its connection's as long as this is kept.
pub(super) struct Counted(Rc<Shared>);

impl Counted {
    pub(super) fn new(shared: &Rc<Shared>) -> Counted {
        shared.streams.set(shared.streams.get() + 1);
        Counted(shared.clone())
    }

    /// Something came from the server.
    pub(super) fn heard(&self) {
        self.0.heard.set(self.0.heard.get().wrapping_add(1));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}
