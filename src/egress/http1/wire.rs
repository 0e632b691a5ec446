//! A connection shared by the reader of a response, the writer of a request, and the body of a response.

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

/// Size of the read buffer.
const READ: usize = 64 << 10;
/// With less space left than this a new buffer is allocated.
const LEAST: usize = 16 << 10;
/// Reads up to this size are copied to a buffer of their own: a slice would keep the whole shared buffer, and a watch
/// event may wait for its client for long.
const SMALL: usize = 4 << 10;

thread_local! {
    /// Read buffer of all connections of a thread, so that idle ones hold none.
    static BUFFER: RefCell<BytesMut> = RefCell::default();
}

/// Why the gateway closed a connection.
#[derive(Clone, Copy)]
pub(super) enum Closed {
    /// The request body broke off.
    BodyBroken,
    /// The endpoint is unresponsive.
    Unanswered,
}

/// An open HTTP/1.1 connection.
pub(super) struct Wire {
    stream: RefCell<Channel>,
    /// Bytes read but not yet consumed.
    left: RefCell<Bytes>,
    /// Whether a request is still being written.
    sending: Cell<bool>,
    /// Whether the connection can be reused; false while a request is in flight.
    keeps: Cell<bool>,
    /// Whether writing failed. The backend may have responded before, so reading continues to the end.
    deaf: Cell<bool>,
    /// Number of reads that returned bytes.
    came: Cell<u64>,
    /// Number of reads on all connections to the endpoint.
    heard: Rc<Cell<u64>>,
    /// Why the gateway closed it, if it did.
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

    /// Marks that a request is being written.
    pub(super) fn begin(&self) {
        self.sending.set(true);
        self.keeps.set(false);
    }

    /// Marks that the request was written completely.
    pub(super) fn sent(&self) {
        self.sending.set(false);
    }

    /// The next bytes, those put back first; empty at the end of the stream.
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

    /// Puts back bytes that were read too far.
    pub(super) fn put_back(&self, rest: Bytes) {
        self.left.replace(rest);
    }

    /// Writes some of the `pieces`. After a failed write nothing more is written; reading reports the cause.
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

    /// Flushes what was written.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Deaf>> {
        let flushed = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx));
        Poll::Ready(flushed.map_err(|_| self.went_deaf()))
    }

    fn went_deaf(&self) -> Deaf {
        self.deaf.set(true);
        Deaf
    }

    /// Number of reads that returned bytes.
    pub(super) fn came(&self) -> u64 {
        self.came.get()
    }

    /// Marks the end of a response, which says whether the connection can be reused.
    pub(super) fn ended(&self, keeps: bool) {
        self.keeps.set(keeps);
    }

    /// Whether request and response have ended and the connection can be reused.
    pub(super) fn is_over(&self) -> bool {
        self.keeps.get()
            && !self.sending.get()
            && !self.deaf.get()
            && self.cut.get().is_none()
            && self.left.borrow().is_empty()
    }

    /// Whether the connection is open and nothing was received since. Call it only if [`Wire::is_over`].
    pub(super) fn is_silent(&self) -> bool {
        // Without tokio's cooperative budget: a task that used it up would take every connection for idle.
        let mut looking = pin!(unconstrained(std::future::poll_fn(|cx| self.poll_read(cx))));
        looking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Closes the connection in order (TLS close_notify), so that the backend does not see a truncation. Does not wait
    /// for the write.
    pub(super) fn part(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(&mut cx);
    }

    /// Aborts the connection: pending and later reads fail.
    pub(super) fn cut(&self, why: Closed) {
        self.cut.set(Some(why));
        self.reader.borrow().wake_by_ref();
    }

    /// The stream, and the bytes read but not consumed.
    pub(super) fn into_parts(self) -> (Channel, Bytes) {
        (self.stream.into_inner(), self.left.into_inner())
    }
}

/// Writing to the backend failed.
pub(super) struct Deaf;
