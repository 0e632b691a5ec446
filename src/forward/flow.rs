//! The body of an answer and what is held for it, which the end of its time takes away from whoever is slow.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::task::AbortHandle;

use crate::egress::{Answer, Lease};
use crate::message::BodyError;
use crate::route;

/// The places a request takes among those under way, until the last byte of its answer.
pub type Places = [Option<route::Place>; 2];

/// What is held until the answer's end.
pub(super) struct Held {
    pub(super) from: Answer,
    pub(super) lease: Lease,
    pub(super) _places: Places,
}

/// An answer that flows. Nobody asks for the next bytes while a client does not read, so the time of those that
/// take longer than one look is watched by a task of its own: it lets go of the backend and of the places.
pub(super) enum Flow {
    /// Nearly every answer is over before it needs more.
    Here(Held),
    /// Its time counts.
    Timed(Rc<Timed>, Clock),
    /// Over.
    Over,
}

/// An answer whose time counts.
#[derive(Default)]
pub(super) struct Timed {
    held: RefCell<Option<Held>>,
    waker: Cell<Option<Waker>>,
}

/// A frame, an error, or the end.
type NextFrame = Option<Result<Frame<Bytes>, BodyError>>;

/// The task that watches the time; it ends with what it watches.
pub(super) struct Clock(AbortHandle);

impl Flow {
    pub(super) fn new(held: Held) -> Flow {
        Flow::Here(held)
    }

    /// The next frame; `None` when the time ran out.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Poll<NextFrame>> {
        match self {
            Flow::Here(held) => Some(Pin::new(&mut held.from).poll_frame(cx)),
            Flow::Timed(timed, _) => {
                let polled = Pin::new(&mut timed.held.borrow_mut().as_mut()?.from).poll_frame(cx);
                timed.waker.set(polled.is_pending().then(|| cx.waker().clone()));
                Some(polled)
            }
            Flow::Over => Some(Poll::Ready(None)),
        }
    }

    /// Looks at what is held, as long as it is.
    pub(super) fn with<R>(&self, look: impl FnOnce(&Held) -> R) -> Option<R> {
        match self {
            Flow::Here(held) => Some(look(held)),
            Flow::Timed(timed, _) => timed.held.borrow().as_ref().map(look),
            Flow::Over => None,
        }
    }

    /// Lets go of everything at `at`, if that has not happened by then.
    pub(super) fn limit(&mut self, at: Instant, waker: &Waker) {
        if !matches!(self, Flow::Here(_)) {
            return;
        }
        let Flow::Here(held) = std::mem::replace(self, Flow::Over) else { return };
        let timed = Rc::new(Timed { held: RefCell::new(Some(held)), waker: Cell::new(Some(waker.clone())) });
        let late = Rc::downgrade(&timed);
        let task = tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at.into()).await;
            if let Some(timed) = late.upgrade() {
                let held = timed.held.borrow_mut().take();
                drop(held);
                if let Some(waker) = timed.waker.take() {
                    waker.wake();
                }
            }
        });
        *self = Flow::Timed(timed, Clock(task.abort_handle()));
    }

    /// Whether its time ran out.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self, Flow::Timed(timed, _) if timed.held.borrow().is_none())
    }

    /// It is over; if `whole`, the connection may carry the next request. The body stays, to be asked whether it
    /// has ended.
    pub(super) fn end(&mut self, whole: bool) {
        match self {
            Flow::Here(held) if whole => held.lease.finished(),
            Flow::Timed(timed, Clock(task)) => {
                task.abort();
                if let Some(held) = timed.held.borrow_mut().as_mut().filter(|_| whole) {
                    held.lease.finished();
                }
            }
            _ => {}
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.abort();
    }
}
