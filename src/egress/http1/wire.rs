//! One connection, as those share it who ask on it, write a body to it, and read an answer's body from it.

use std::cell::{Cell, RefCell};
use std::future::Future as _;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::task::coop::unconstrained;

use super::Fault;
use crate::egress::channel::Channel;

/// What is read at a time.
const READ: usize = 64 << 10;
/// With less room than this a new buffer is taken.
const LEAST: usize = 16 << 10;
/// Pieces up to this size get a buffer of their own: a part of the shared one would keep all of it, and an event of a
/// watch may wait for its client for long.
const SMALL: usize = 4 << 10;

thread_local! {
    /// All connections of a thread read into one buffer: an idle one holds none.
    static BUFFER: RefCell<BytesMut> = RefCell::default();
}

/// Why we closed a connection.
#[derive(Clone, Copy)]
pub(super) enum Closed {
    /// The body of the request broke off.
    BodyBroken,
    /// The endpoint no longer answers.
    Unanswered,
}

/// An open connection.
pub(super) struct Wire {
    stream: RefCell<Channel>,
    /// What was read and is not taken yet.
    left: RefCell<Bytes>,
    /// Whether a request is still being written.
    sending: Cell<bool>,
    /// Whether another request may follow; not while one is under way.
    keeps: Cell<bool>,
    /// The backend takes no more. It may have answered before, and is read to its end.
    deaf: Cell<bool>,
    /// How often bytes came on it.
    came: Cell<u64>,
    /// How often anything came on any connection of its endpoint.
    heard: Rc<Cell<u64>>,
    /// Why we closed it, if we did.
    cut: Cell<Option<Closed>>,
    reader: RefCell<Waker>,
}

impl Wire {
    pub(super) fn new(stream: Channel, heard: Rc<Cell<u64>>) -> Wire {
        Wire {
            stream: RefCell::new(stream),
            left: RefCell::default(),
            sending: Cell::new(false),
            keeps: Cell::new(true),
            deaf: Cell::new(false),
            came: Cell::new(0),
            heard,
            cut: Cell::new(None),
            reader: RefCell::new(Waker::noop().clone()),
        }
    }

    /// A request begins to be written.
    pub(super) fn begin(&self) {
        self.sending.set(true);
        self.keeps.set(false);
    }

    /// All of it was written.
    pub(super) fn sent(&self) {
        self.sending.set(false);
    }

    /// The next bytes, those first that were put back; none at the end.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Fault>> {
        let left = self.left.take();
        if !left.is_empty() {
            return Poll::Ready(Ok(left));
        }
        if let Some(closed) = self.cut.get() {
            return Poll::Ready(Err(match closed {
                Closed::BodyBroken => Fault::Cut,
                Closed::Unanswered => Fault::Unanswered,
            }));
        }
        let read = BUFFER.with_borrow_mut(|buffer| {
            if buffer.capacity() < LEAST {
                *buffer = BytesMut::with_capacity(READ);
            }
            let read = ready!(pin!(self.stream.borrow_mut().read_buf(buffer)).poll(cx));
            Poll::Ready(read.map(|length| {
                if length > SMALL {
                    buffer.split().freeze()
                } else {
                    let piece = Bytes::copy_from_slice(buffer);
                    buffer.clear();
                    piece
                }
            }))
        });
        match read {
            Poll::Pending => {
                let mut reader = self.reader.borrow_mut();
                if !reader.will_wake(cx.waker()) {
                    reader.clone_from(cx.waker());
                }
                Poll::Pending
            }
            Poll::Ready(read) => {
                self.heard.set(self.heard.get().wrapping_add(1));
                if read.as_ref().is_ok_and(|piece| !piece.is_empty()) {
                    self.came.set(self.came.get() + 1);
                }
                Poll::Ready(read.map_err(Fault::Io))
            }
        }
    }

    /// What was read too far comes next.
    pub(super) fn put_back(&self, rest: Bytes) {
        self.left.replace(rest);
    }

    /// Writes some of the `pieces`. What cannot be written is given up: why, reading says.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<Result<usize, Deaf>> {
        if self.deaf.get() || self.cut.get().is_some() {
            return Poll::Ready(Err(Deaf));
        }
        let mut stream = self.stream.borrow_mut();
        let written = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, pieces));
        Poll::Ready(match written {
            Ok(length) if length > 0 => Ok(length),
            Ok(_) | Err(_) => Err(self.went_deaf()),
        })
    }

    /// Waits until all that was written is on its way.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Deaf>> {
        let flushed = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx));
        Poll::Ready(flushed.map_err(|_| self.went_deaf()))
    }

    fn went_deaf(&self) -> Deaf {
        self.deaf.set(true);
        Deaf
    }

    /// How often bytes came.
    pub(super) fn came(&self) -> u64 {
        self.came.get()
    }

    /// An answer came to its end; it said whether another request may follow.
    pub(super) fn ended(&self, keeps: bool) {
        self.keeps.set(keeps);
    }

    /// Whether request and answer have ended and another may follow.
    pub(super) fn is_over(&self) -> bool {
        self.keeps.get()
            && !self.sending.get()
            && !self.deaf.get()
            && self.cut.get().is_none()
            && self.left.borrow().is_empty()
    }

    /// Whether nothing has come since, not even its end. Call it when [`Wire::is_over`].
    pub(super) fn is_silent(&self) -> bool {
        // Out of turn: a task that has had its share would take every connection for silent.
        let mut looking = pin!(unconstrained(std::future::poll_fn(|cx| self.poll_read(cx))));
        looking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Says goodbye to a backend that is not needed any more, so that for it, too, this is an end and no breach. What
    /// does not go out at once is not waited for.
    pub(super) fn part(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(&mut cx);
    }

    /// Gives the connection up: who reads on it reads no more.
    pub(super) fn cut(&self, why: Closed) {
        self.cut.set(Some(why));
        self.reader.borrow().wake_by_ref();
    }

    /// The stream, and what was read of it already.
    pub(super) fn into_parts(self) -> (Channel, Bytes) {
        (self.stream.into_inner(), self.left.into_inner())
    }
}

/// A backend takes no more.
pub(super) struct Deaf;
