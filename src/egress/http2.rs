//! HTTP/2 connections: many requests at a time, and a further connection before streams run out.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::dial::{DialError, DialPhase, Dialled};
use crate::message::Body;

/// Streams we put onto one connection even if the backend would take more: they share its window and
/// its fate.
const MOST_STREAMS: usize = 250;
/// What a backend allows until its SETTINGS say otherwise (h2's own assumption).
const ASSUMED_STREAMS: usize = 100;
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
        !self.retired.get() && !self.sender.is_closed()
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

/// Begins HTTP/2 on a fresh connection.
pub(super) async fn greet(dialled: Dialled) -> Result<Multiplexed, DialError> {
    let (sender, connection) = Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(dialled.stream))
        .await
        .map_err(|error| DialError { phase: DialPhase::Http, reason: "ProtocolError", cause: error.to_string() })?;
    let limit = Rc::new(Cell::new(ASSUMED_STREAMS));
    let seen = limit.clone();
    tokio::task::spawn_local(async move {
        let mut connection = std::pin::pin!(connection);
        let ended = poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            seen.set(connection.current_max_send_streams().min(MOST_STREAMS));
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "a backend connection ended");
        }
    });
    Ok(Multiplexed { sender, active: Cell::new(0), limit, retired: Cell::new(false), used: Cell::new(Instant::now()) })
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
