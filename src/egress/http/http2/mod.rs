//! HTTP/2 client connections: many requests at a time, and a further connection before streams run out.
//!
//! Implemented on h2. hyper's client sends each request through a queue to one task and its response through another
//! channel; that was a quarter of the cost of relaying a small response.

mod body_writer;

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

use self::body_writer::Http2BodyWriter;
use crate::egress::connection_activity::{ActivityStream, ConnectionActivity};
use crate::egress::dial_result::{DialError, DialPhase};
use crate::egress::http::has_payload;
use crate::egress::http::liveness::{LivenessAction, LivenessTimeouts, LivenessTracker};
use crate::egress::http::upload_task::UploadTask;
use crate::message::{Body, IncomingBody};
use crate::tls::ConnectionFailure;

/// Limit of streams per connection, even if the backend allows more: they share its window and fail together.
const MAX_STREAMS: usize = 250;
/// Stream limit before the backend's SETTINGS: none, so that no request queues on a connection with a low limit or is
/// sent to a backend that never answers.
const ASSUMED_STREAMS: usize = 0;
/// Connection flow-control window. h2 measures its budget for small DATA frames against it: wide, so that one stalled
/// client of a chatty stream does not end all watches.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Stream flow-control window: bytes of a response held for a slow client.
pub const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes of that which may be read without a WINDOW_UPDATE. Most responses are smaller and need none.
const MAX_UNRELEASED_WINDOW: usize = 32 << 10;
/// Liveness timeouts while no request awaits its response head, as in client-go (`HTTP2_READ_IDLE_TIMEOUT_SECONDS`,
/// `HTTP2_PING_TIMEOUT_SECONDS`): watches may be quiet for hours.
const IDLE_LIVENESS_TIMEOUTS: LivenessTimeouts = LivenessTimeouts {
    probe: Duration::from_secs(30),
    suspect: Duration::from_secs(15),
    close: Duration::from_secs(15),
};
/// Liveness timeouts while a request awaits its response head. A backend that is only slow answers PINGs.
const AWAITED_LIVENESS_TIMEOUTS: LivenessTimeouts =
    LivenessTimeouts { probe: Duration::from_secs(1), suspect: Duration::from_secs(3), close: Duration::from_secs(6) };
/// Unused connections are closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Limit of a response's header block, in bytes.
const MAX_HEADER_BYTES: u32 = 256 << 10;

/// An HTTP/2 connection to a backend.
pub(in crate::egress) struct Http2Connection {
    sender: RefCell<SendRequest<Bytes>>,
    pub(in crate::egress) active: Cell<usize>,
    state: Rc<State>,
    retired: Cell<bool>,
    last_used: Cell<Instant>,
    was_used: Cell<bool>,
    activity: Rc<ConnectionActivity>,
    /// Requests that await their response head.
    awaited_responses: Cell<u32>,
    liveness: Cell<LivenessTracker>,
    ping: RefCell<Option<PingPong>>,
    /// [`Http2Connection::read_count`] when a request got no response in time; no new requests until the count grows.
    doubted_at: Cell<Option<u64>>,
    /// [`Http2Connection::read_count`] when the endpoint was found unresponsive.
    unresponsive_at: Cell<Option<u64>>,
    task: AbortHandle,
}

/// State of a connection, updated by its task.
struct State {
    /// Limit of concurrent streams.
    limit: Cell<usize>,
    closed: Cell<bool>,
}

/// A request that was sent on a stream.
pub(in crate::egress) struct Http2Exchange {
    response: ResponseFuture,
    /// Uploads the body; aborted if dropped before the response has ended.
    pub(in crate::egress) upload: Option<UploadTask>,
}

/// Why a request was not sent.
pub(in crate::egress) enum Http2SendError {
    /// The connection accepts no more requests; the request is unchanged.
    Closed(Box<Request<Body>>, h2::Error),
    /// The request is not valid in HTTP/2.
    InvalidRequest(h2::Error),
}

impl Http2Exchange {
    /// The response head, with its body.
    pub(in crate::egress) async fn response(&mut self) -> Result<Response<IncomingBody>, h2::Error> {
        let (parts, from) = (&mut self.response).await?.into_parts();
        let body = IncomingBody::http2(from, &parts.headers, MAX_UNRELEASED_WINDOW);
        Ok(Response::from_parts(parts, body))
    }
}

impl Http2Connection {
    /// Sends `request` (in absolute form) on a new stream.
    pub(in crate::egress) fn send(&self, request: Box<Request<Body>>) -> Result<Http2Exchange, Http2SendError> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut sender = self.sender.borrow_mut();
        match sender.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Err(Http2SendError::Closed(request, error)),
            // The last stream of this handle is pending; another handle may still queue one.
            Poll::Pending => *sender = sender.clone(),
        }
        let (mut parts, body) = request.into_parts();
        let ended = body.is_end_stream();
        if let Some(length) = body.size_hint().exact().filter(|length| *length > 0 || has_payload(&parts.method)) {
            parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
        parts.extensions = http::Extensions::new();
        let sent = sender.send_request(Request::from_parts(parts, ()), ended);
        let (answer, stream) = sent.map_err(Http2SendError::InvalidRequest)?;
        let upload = (!ended).then(|| UploadTask::start(Http2BodyWriter::new(body, stream)));
        Ok(Http2Exchange { response: answer, upload })
    }

    /// Streams that can still be opened.
    pub(in crate::egress) fn free_streams(&self) -> usize {
        if self.is_usable() { self.state.limit.get().saturating_sub(self.active.get()) } else { 0 }
    }

    /// Whether few enough streams are left that the next connection should be opened now.
    pub(in crate::egress) fn is_nearly_full(&self) -> bool {
        self.free_streams() <= self.state.limit.get() / 5
    }

    pub(in crate::egress) fn is_usable(&self) -> bool {
        !self.retired.get() && !self.state.closed.get() && !self.is_doubtful()
    }

    /// Number of reads from the backend.
    pub(in crate::egress) fn read_count(&self) -> u64 {
        self.activity.read_count.get()
    }

    /// Marks the connection as doubtful if nothing was read since the count was `count_at_start`, when a request
    /// began to wait in vain. A doubtful connection gets no requests until something is read: the PINGs that will close it take a while.
    pub(in crate::egress) fn mark_doubtful(&self, count_at_start: u64) {
        if self.read_count() == count_at_start {
            self.doubted_at.set(Some(count_at_start));
        }
    }

    /// Whether the connection gets no requests until something is read.
    pub(in crate::egress) fn is_doubtful(&self) -> bool {
        self.doubted_at.get().is_some_and(|count_at_start| count_at_start == self.read_count())
    }

    /// Marks the endpoint as unresponsive, also to a new connection. If nothing was read since the count was
    /// `count_at_start`, repeatable requests stop waiting.
    pub(in crate::egress) fn mark_unresponsive(&self, count_at_start: u64) {
        self.mark_doubtful(count_at_start);
        self.unresponsive_at.set(Some(count_at_start));
    }

    /// Whether the endpoint is known to be unresponsive.
    pub(in crate::egress) fn is_unresponsive(&self) -> bool {
        self.unresponsive_at.get().is_some_and(|count_at_start| count_at_start == self.read_count())
    }

    /// Sends no further requests on this connection; those in flight continue.
    pub(in crate::egress) fn retire(&self) {
        self.retired.set(true);
    }

    /// Marks the connection as used; the next sweep records the time.
    pub(in crate::egress) fn touch(&self) {
        self.was_used.set(true);
    }

    /// Whether to keep the connection: it carries requests, or can and was used recently.
    pub(in crate::egress) fn is_worth_keeping(&self, now: Instant) -> bool {
        !self.state.closed.get()
            && (self.active.get() > 0
                || (!self.retired.get() && now.duration_since(self.last_used.get()) < IDLE_TIMEOUT))
    }

    /// Counts a request that begins to await its response head.
    pub(in crate::egress) fn begin_wait(&self) {
        self.awaited_responses.set(self.awaited_responses.get() + 1);
    }

    /// Counts a request that stops waiting.
    pub(in crate::egress) fn end_wait(&self) {
        self.awaited_responses.set(self.awaited_responses.get().saturating_sub(1));
    }

    /// Checks liveness: sends a PING on a connection that is silent for long, marks it as doubtful without an ACK, and
    /// finally closes it. Call every second. Returns whether a PING was sent now while a request waits.
    pub(in crate::egress) fn check_liveness(&self, now: Instant) -> bool {
        if self.was_used.take() {
            self.last_used.set(now);
        }
        let mut silence = self.liveness.get();
        let awaited = self.awaited_responses.get() > 0;
        let patience = if awaited { AWAITED_LIVENESS_TIMEOUTS } else { IDLE_LIVENESS_TIMEOUTS };
        let verdict = silence.observe(self.read_count(), patience, now);
        self.liveness.set(silence);
        match verdict {
            LivenessAction::Healthy => {}
            LivenessAction::Probe => self.send_ping(),
            LivenessAction::Suspect => self.mark_doubtful(self.read_count()),
            LivenessAction::Close => {
                tracing::debug!("backend connection closed: PING not answered");
                self.mark_unresponsive(self.read_count());
                self.task.abort();
            }
        }
        awaited && verdict == LivenessAction::Probe
    }

    /// Sends a PING; its ACK counts as a read.
    pub(in crate::egress) fn send_ping(&self) {
        if let Some(ping) = &mut *self.ping.borrow_mut() {
            let mut cx = Context::from_waker(Waker::noop());
            // The previous ACK must be taken before the next PING.
            let _ = ping.poll_pong(&mut cx);
            let _ = ping.send_ping(Ping::opaque());
        }
    }
}

/// Marks the connection as closed when its task ends, for whatever reason.
struct ClosedOnDrop(Rc<State>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.closed.set(true);
    }
}

/// Starts HTTP/2 on a new connection and waits for the backend's SETTINGS: a connection on which nothing is received is
/// not used.
pub(in crate::egress) async fn handshake<T: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: T,
) -> Result<Http2Connection, DialError> {
    let broken = |reason, cause| DialError { phase: DialPhase::Http, reason, cause };
    let ear = Rc::new(ConnectionActivity::default());
    let stream = ActivityStream { stream, activity: ear.clone() };
    let (sender, connection) = Builder::new()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .initial_max_send_streams(ASSUMED_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .enable_push(false)
        .handshake(stream)
        .await
        .map_err(|error| broken(handshake_failure_reason(ear.failure.get()), error.to_string()))?;
    let mut connection = Box::pin(connection);
    poll_fn(|cx| match connection.as_mut().poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err(broken("ConnectionClosed", "closed before SETTINGS".to_owned()))),
        Poll::Ready(Err(error)) => {
            Poll::Ready(Err(broken(handshake_failure_reason(ear.failure.get()), error.to_string())))
        }
        Poll::Pending if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let ping = connection.ping_pong();
    let limit = connection.max_concurrent_send_streams().min(MAX_STREAMS);
    let state = Rc::new(State { limit: Cell::new(limit), closed: Cell::new(false) });
    let closing = ClosedOnDrop(state.clone());
    let task = tokio::task::spawn_local(async move {
        let ended = poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            closing.0.limit.set(connection.max_concurrent_send_streams().min(MAX_STREAMS));
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "backend connection ended");
        }
    });
    Ok(Http2Connection {
        sender: RefCell::new(sender),
        active: Cell::new(0),
        state,
        retired: Cell::new(false),
        last_used: Cell::new(Instant::now()),
        was_used: Cell::new(false),
        awaited_responses: Cell::new(0),
        liveness: Cell::new(LivenessTracker::new(Instant::now())),
        activity: ear,
        ping: RefCell::new(ping),
        doubted_at: Cell::new(None),
        unresponsive_at: Cell::new(None),
        task: task.abort_handle(),
    })
}

/// Reason why a connection ended before use: that of the read error, for example TLS's refusal, which may come only now
/// (under TLS 1.3 a server verifies the client certificate after the client's handshake is done); otherwise
/// `ProtocolError`.
fn handshake_failure_reason(failed: Option<ConnectionFailure>) -> &'static str {
    failed.map_or("ProtocolError", ConnectionFailure::reason)
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::task::LocalSet;

    use super::*;

    /// A connection to a backend that answers while `speaks`, and afterwards reads silently.
    async fn connected(speaks: Rc<Cell<bool>>) -> Http2Connection {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::task::spawn_local(async move {
            let mut backend: h2::server::Connection<DuplexStream, Bytes> = h2::server::handshake(theirs).await.unwrap();
            poll_fn(|cx| if speaks.get() { backend.poll_accept(cx).map(drop) } else { Poll::Pending }).await;
        });
        handshake(ours).await.unwrap_or_else(|error| panic!("{}", error.cause))
    }

    /// Checks liveness as the pool does, every second for `seconds`.
    async fn sweep(connection: &Http2Connection, seconds: u32) {
        for second in 0..seconds {
            // `Instant` is not tokio's, so the paused clock does not advance it.
            connection.check_liveness(Instant::now() + Duration::from_secs(u64::from(second)));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http2_liveness_closes_connection_without_ping_ack() {
        let run = async |silent: bool, awaited: bool, seconds: u32| {
            let speaks = Rc::new(Cell::new(true));
            let connection = connected(speaks.clone()).await;
            assert!(connection.is_usable());
            speaks.set(!silent);
            if awaited {
                connection.begin_wait();
            }
            let heard = connection.read_count();
            sweep(&connection, seconds).await;
            (connection.is_usable(), connection.read_count() > heard, connection.task.is_finished())
        };
        LocalSet::new()
            .run_until(async {
                assert_eq!(run(false, false, 50).await, (true, true, false), "a backend that answers");
                assert_eq!(run(true, false, 50).await, (false, false, true), "a silent backend");
                assert_eq!(run(true, false, 28).await, (true, false, false), "no request waits");
                assert_eq!(run(false, true, 20).await, (true, true, false), "a slow backend");
                assert_eq!(run(true, true, 6).await, (false, false, false), "a request waits in vain");
                assert_eq!(run(true, true, 12).await, (false, false, true), "closed in the end");
            })
            .await;
    }
}
