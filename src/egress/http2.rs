//! HTTP/2 connections: many requests at a time, and a further connection before streams run out.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::dial::{DialError, DialPhase, Dialled};
use crate::message::Body;
use crate::tls::Failure;

/// Streams we put onto one connection even if the backend would take more: they share its window and
/// its fate.
const MOST_STREAMS: usize = 250;
/// What a backend allows until its SETTINGS are there: nothing, so that no request waits behind others on a
/// connection that turns out to be narrow, or is sent to one that never answers.
const ASSUMED_STREAMS: usize = 0;
/// The connection's window is what h2 measures its budget for small DATA frames against: wide, so that
/// one stalled client of a chatty stream does not end everybody's watches.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// What one slow client may make us hold of its answer.
const STREAM_WINDOW: u32 = 256 << 10;
/// As client-go (`HTTP2_READ_IDLE_TIMEOUT_SECONDS`, `HTTP2_PING_TIMEOUT_SECONDS`).
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// An unused connection is closed after this long.
const IDLE: Duration = Duration::from_secs(300);
/// Bytes of an answer's header block.
const MAX_HEADER_BYTES: u32 = 256 << 10;

/// One HTTP/2 connection.
pub(super) struct Multiplexed {
    sender: SendRequest<Body>,
    pub(super) active: Cell<usize>,
    limit: Rc<Cell<usize>>,
    retired: Cell<bool>,
    used: Cell<Instant>,
    ear: Rc<Ear>,
    /// What [`Multiplexed::heard`] was when a request had waited in vain; usable again once it is more.
    doubted: Cell<Option<u64>>,
}

impl Multiplexed {
    pub(super) fn sender(&self) -> SendRequest<Body> {
        self.sender.clone()
    }

    /// Streams that can still be opened.
    pub(super) fn free(&self) -> usize {
        if self.is_usable() { self.limit.get().saturating_sub(self.active.get()) } else { 0 }
    }

    /// Whether few enough streams are left that the next connection should be opened now.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.free() <= self.limit.get() / 5
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.retired.get()
            && !self.sender.is_closed()
            && self.doubted.get().is_none_or(|then| then != self.ear.count.get())
    }

    /// How often bytes came from the backend.
    pub(super) fn heard(&self) -> u64 {
        self.ear.count.get()
    }

    /// A request waited in vain since `heard` was `then`. If not a byte came meanwhile, the connection may be
    /// dead: it gets no further request until it shows life, for the pings that will end it take a while.
    pub(super) fn doubt(&self, then: u64) {
        if self.heard() == then {
            self.doubted.set(Some(then));
        }
    }

    /// No further request goes onto this connection; those on it go on.
    pub(super) fn retire(&self) {
        self.retired.set(true);
    }

    pub(super) fn touch(&self) {
        self.used.set(Instant::now());
    }

    /// Whether it is worth keeping: it carries requests, or may and was used of late.
    pub(super) fn is_worth_keeping(&self, now: Instant) -> bool {
        !self.sender.is_closed()
            && (self.active.get() > 0 || (!self.retired.get() && now.duration_since(self.used.get()) < IDLE))
    }
}

/// Begins HTTP/2 on a fresh connection, and waits for the backend's greeting: a connection on which nothing
/// comes back is worth no request.
pub(super) async fn greet(dialled: Dialled) -> Result<Multiplexed, DialError> {
    let broken = |reason, cause| DialError { phase: DialPhase::Http, reason, cause };
    let ear = Rc::new(Ear::default());
    let stream = Heard { stream: TokioIo::new(dialled.stream), ear: ear.clone() };
    let (sender, connection) = Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_max_send_streams(ASSUMED_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(stream)
        .await
        .map_err(|error| broken(why(ear.failed.get()), cause(&error)))?;
    let mut connection = Box::pin(connection);
    poll_fn(|cx| {
        // hyper reads in a task of its own and has no word for SETTINGS that came.
        ear.waker.set(Some(cx.waker().clone()));
        match connection.as_mut().poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(broken("ConnectionClosed", "closed before SETTINGS".to_owned()))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(broken(why(ear.failed.get()), cause(&error)))),
            Poll::Pending if connection.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    })
    .await?;
    ear.waker.take();
    let limit = Rc::new(Cell::new(connection.current_max_send_streams().min(MOST_STREAMS)));
    let seen = limit.clone();
    tokio::task::spawn_local(async move {
        let ended = poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            seen.set(connection.current_max_send_streams().min(MOST_STREAMS));
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "a backend connection ended");
        }
    });
    Ok(Multiplexed {
        sender,
        active: Cell::new(0),
        limit,
        retired: Cell::new(false),
        used: Cell::new(Instant::now()),
        ear,
        doubted: Cell::new(None),
    })
}

/// Why a connection ended before it was of use: in one word what reading it said, TLS's refusal for one, which
/// may come only now (TLS 1.3 judges our certificate after our side of the handshake is done); else that it did
/// not speak HTTP/2.
fn why(failed: Option<Failure>) -> &'static str {
    failed.map_or("ProtocolError", Failure::reason)
}

fn cause(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// What is heard on a connection.
#[derive(Default)]
struct Ear {
    /// How often bytes came.
    count: Cell<u64>,
    /// Why none will come any more: h2 forgets all of an error but its text.
    failed: Cell<Option<Failure>>,
    /// Who wants to know.
    waker: Cell<Option<Waker>>,
}

/// A stream and an ear on it.
struct Heard<T> {
    stream: T,
    ear: Rc<Ear>,
}

impl<T: Read + Unpin> Read for Heard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        match &result {
            Ok(()) => self.ear.count.set(self.ear.count.get() + 1),
            Err(error) => self.ear.failed.set(Some(Failure::of(error))),
        }
        if let Some(waker) = self.ear.waker.take() {
            waker.wake();
        }
        Poll::Ready(result)
    }
}

impl<T: Read + Unpin> Heard<T> {
    /// When a write fails the backend has hung up, and may have said why just before: that is waited for, which
    /// is not long on a closed socket.
    fn written<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let Poll::Ready(Err(error)) = &written
            && self.ear.failed.get().is_none()
        {
            let mut space = [0; 64];
            let mut buffer = hyper::rt::ReadBuf::new(&mut space);
            let last_words = match ready!(Pin::new(&mut self.stream).poll_read(cx, buffer.unfilled())) {
                Err(error) => Failure::of(&error),
                Ok(()) => Failure::of(error),
            };
            self.ear.failed.set(Some(last_words));
        }
        written
    }
}

impl<T: Read + Write + Unpin> Write for Heard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Runs hyper's tasks on this thread.
#[derive(Clone)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor
where
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
