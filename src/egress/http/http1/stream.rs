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

use super::Http1Error;
use crate::egress::dial::maybe_tls_stream::MaybeTlsStream;

/// Size of the read buffer.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// With less space left than this a new buffer is allocated.
const MIN_READ_SPACE: usize = 16 << 10;
/// Reads up to this size are copied to a buffer of their own: a slice would keep the whole shared buffer, and a watch
/// event may wait for its client for long.
const MAX_COPIED_READ: usize = 4 << 10;

thread_local! {
    /// Read buffer of all connections of a thread, so that idle ones hold none.
    static BUFFER: RefCell<BytesMut> = RefCell::default();
}

/// Why the gateway closed a connection.
#[derive(Clone, Copy)]
pub(super) enum Http1CloseReason {
    /// The request body broke off.
    BodyBroken,
    /// The endpoint is unresponsive.
    EndpointUnresponsive,
}

/// An open HTTP/1.1 connection.
pub(super) struct Http1Stream {
    stream: RefCell<MaybeTlsStream>,
    /// Bytes read but not yet consumed.
    unread: RefCell<Bytes>,
    /// Whether a request is still being written.
    is_sending: Cell<bool>,
    /// Whether the connection can be reused; false while a request is in flight.
    keep_alive: Cell<bool>,
    /// Whether writing failed. The backend may have responded before, so reading continues to the end.
    is_write_closed: Cell<bool>,
    /// Number of reads that returned bytes.
    read_count: Cell<u64>,
    /// Number of reads on all connections to the endpoint.
    endpoint_activity: Rc<Cell<u64>>,
    /// Why the gateway closed it, if it did.
    close_reason: Cell<Option<Http1CloseReason>>,
    reader: RefCell<Waker>,
}

impl Http1Stream {
    pub(super) fn new(stream: MaybeTlsStream, endpoint_activity: Rc<Cell<u64>>) -> Http1Stream {
        Http1Stream {
            stream: RefCell::new(stream),
            unread: RefCell::default(),
            is_sending: Cell::new(false),
            keep_alive: Cell::new(true),
            is_write_closed: Cell::new(false),
            read_count: Cell::new(0),
            endpoint_activity,
            close_reason: Cell::new(None),
            reader: RefCell::new(Waker::noop().clone()),
        }
    }

    /// Marks that a request is being written.
    pub(super) fn begin_request(&self) {
        self.is_sending.set(true);
        self.keep_alive.set(false);
    }

    /// Marks that the request was written completely.
    pub(super) fn end_request(&self) {
        self.is_sending.set(false);
    }

    /// The next bytes, those put back first; empty at the end of the stream.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Http1Error>> {
        let left = self.unread.take();
        if !left.is_empty() {
            return Poll::Ready(Ok(left));
        }
        if let Some(closed) = self.close_reason.get() {
            return Poll::Ready(Err(match closed {
                Http1CloseReason::BodyBroken => Http1Error::RequestBodyBroken,
                Http1CloseReason::EndpointUnresponsive => Http1Error::EndpointUnresponsive,
            }));
        }
        let read = BUFFER.with_borrow_mut(|buffer| {
            if buffer.capacity() < MIN_READ_SPACE {
                *buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
            }
            let read = ready!(pin!(self.stream.borrow_mut().read_buf(buffer)).poll(cx));
            Poll::Ready(read.map(|length| {
                if length > MAX_COPIED_READ {
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
                self.endpoint_activity.set(self.endpoint_activity.get().wrapping_add(1));
                if read.as_ref().is_ok_and(|piece| !piece.is_empty()) {
                    self.read_count.set(self.read_count.get() + 1);
                }
                Poll::Ready(read.map_err(Http1Error::Io))
            }
        }
    }

    /// Puts back bytes that were read too far.
    pub(super) fn put_back(&self, rest: Bytes) {
        self.unread.replace(rest);
    }

    /// Writes some of the `pieces`. After a failed write nothing more is written; reading reports the cause.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<Result<usize, WriteClosed>> {
        if self.is_write_closed.get() || self.close_reason.get().is_some() {
            return Poll::Ready(Err(WriteClosed));
        }
        let mut stream = self.stream.borrow_mut();
        let result = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, pieces));
        Poll::Ready(match result {
            Ok(length) if length > 0 => Ok(length),
            Ok(_) | Err(_) => Err(self.close_write()),
        })
    }

    /// Flushes what was written.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), WriteClosed>> {
        let flushed = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx));
        Poll::Ready(flushed.map_err(|_| self.close_write()))
    }

    fn close_write(&self) -> WriteClosed {
        self.is_write_closed.set(true);
        WriteClosed
    }

    /// Number of reads that returned bytes.
    pub(super) fn read_count(&self) -> u64 {
        self.read_count.get()
    }

    /// Marks the end of a response, which says whether the connection can be reused.
    pub(super) fn end_response(&self, keeps: bool) {
        self.keep_alive.set(keeps);
    }

    /// Whether request and response have ended and the connection can be reused.
    pub(super) fn is_reusable(&self) -> bool {
        self.keep_alive.get()
            && !self.is_sending.get()
            && !self.is_write_closed.get()
            && self.close_reason.get().is_none()
            && self.unread.borrow().is_empty()
    }

    /// Whether the connection is open and nothing was received since. Call it only if [`Http1Stream::is_reusable`].
    pub(super) fn is_open_and_idle(&self) -> bool {
        // Without tokio's cooperative budget: a task that used it up would take every connection for idle.
        let mut looking = pin!(unconstrained(std::future::poll_fn(|cx| self.poll_read(cx))));
        looking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Closes the connection in order (TLS close_notify), so that the backend does not see a truncation. Does not wait
    /// for the write.
    pub(super) fn shutdown(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(&mut cx);
    }

    /// Aborts the connection: pending and later reads fail.
    pub(super) fn abort(&self, why: Http1CloseReason) {
        self.close_reason.set(Some(why));
        self.reader.borrow().wake_by_ref();
    }

    /// The stream, and the bytes read but not consumed.
    pub(super) fn into_parts(self) -> (MaybeTlsStream, Bytes) {
        (self.stream.into_inner(), self.unread.into_inner())
    }
}

/// Writing to the backend failed.
pub(super) struct WriteClosed;
