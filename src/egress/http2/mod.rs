//! HTTP/2 connections: many requests at a time, and a further connection before streams run out.
//!
//! They stand on h2 itself. hyper's client sends each request through a queue to one task and its answer through
//! another, made for it; that was a quarter of what relaying a small answer costs.

pub(super) mod heard;
mod upload;

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

use self::heard::{Ear, Heard};
use self::upload::Upload;
use super::dial::{DialError, DialPhase};
use super::has_payload;
use super::pushed::Pushed;
use super::silence::{Patience, Silence, Verdict};
use crate::message::{Body, Received};
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
/// What one slow client may make us hold of its answer, in bytes.
pub const STREAM_WINDOW: u32 = 256 << 10;
/// How much of that may be unacknowledged on a stream that goes on. Most answers are smaller and need no word.
const MOST_OWED: usize = 32 << 10;
/// As client-go (`HTTP2_READ_IDLE_TIMEOUT_SECONDS`, `HTTP2_PING_TIMEOUT_SECONDS`), while nobody waits for an answer:
/// watches may be quiet for hours.
const QUIET: Patience =
    Patience { ask: Duration::from_secs(30), doubt: Duration::from_secs(15), end: Duration::from_secs(15) };
/// While a request waits for its answer. One who is only slow answers a ping.
const AWAITED: Patience =
    Patience { ask: Duration::from_secs(1), doubt: Duration::from_secs(3), end: Duration::from_secs(6) };
/// An unused connection is closed after this long.
const IDLE: Duration = Duration::from_secs(300);
/// Bytes of an answer's header block.
const MAX_HEADER_BYTES: u32 = 256 << 10;

/// One HTTP/2 connection.
pub(super) struct Multiplexed {
    sender: RefCell<SendRequest<Bytes>>,
    pub(super) active: Cell<usize>,
    state: Rc<State>,
    retired: Cell<bool>,
    used: Cell<Instant>,
    touched: Cell<bool>,
    ear: Rc<Ear>,
    /// Requests that wait for the head of their answer.
    waiting: Cell<u32>,
    silence: Cell<Silence>,
    ping: RefCell<Option<PingPong>>,
    /// What [`Multiplexed::heard`] was when a request had waited in vain; usable again once it is more.
    doubted: Cell<Option<u64>>,
    /// The same when the endpoint was found unresponsive by more than that.
    unresponsive: Cell<Option<u64>>,
    task: AbortHandle,
}

/// What a connection's task says of it.
struct State {
    /// Streams it may carry at a time.
    limit: Cell<usize>,
    closed: Cell<bool>,
}

/// A request that was put onto a connection.
pub(super) struct Asked {
    answer: ResponseFuture,
    /// Stops when it is dropped before the answer has ended.
    pub(super) upload: Option<Pushed>,
}

/// Why a request was not put onto a connection.
pub(super) enum NotAsked {
    /// The connection takes no more; the request is as it was.
    Closed(Box<Request<Body>>, h2::Error),
    /// It cannot be said over HTTP/2.
    Unspeakable(h2::Error),
}

impl Asked {
    /// The answer's header, its body behind it.
    pub(super) async fn answer(&mut self) -> Result<Response<Received>, h2::Error> {
        let (parts, from) = (&mut self.answer).await?.into_parts();
        let body = Received::http2(from, &parts.headers, MOST_OWED);
        Ok(Response::from_parts(parts, body))
    }
}

impl Multiplexed {
    /// Puts `request` (in absolute form) onto a stream of its own.
    pub(super) fn ask(&self, request: Box<Request<Body>>) -> Result<Asked, NotAsked> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut sender = self.sender.borrow_mut();
        match sender.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Err(NotAsked::Closed(request, error)),
            // The last stream of this handle waits to be opened; another handle may still queue one.
            Poll::Pending => *sender = sender.clone(),
        }
        let (mut parts, body) = request.into_parts();
        let ended = body.is_end_stream();
        if let Some(length) = body.size_hint().exact().filter(|length| *length > 0 || has_payload(&parts.method)) {
            parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
        parts.extensions = http::Extensions::new();
        let sent = sender.send_request(Request::from_parts(parts, ()), ended);
        let (answer, stream) = sent.map_err(NotAsked::Unspeakable)?;
        let upload = (!ended).then(|| Pushed::begin(Upload::new(body, stream)));
        Ok(Asked { answer, upload })
    }

    /// Streams that can still be opened.
    pub(super) fn free(&self) -> usize {
        if self.is_usable() { self.state.limit.get().saturating_sub(self.active.get()) } else { 0 }
    }

    /// Whether few enough streams are left that the next connection should be opened now.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.free() <= self.state.limit.get() / 5
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.retired.get() && !self.state.closed.get() && !self.is_doubted()
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

    /// Whether it gets no request until it shows life.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.get().is_some_and(|then| then == self.heard())
    }

    /// Its endpoint answers nothing, a new connection included. If nothing came since `heard` was `then`, requests that
    /// can be sent again are not to wait for it any longer.
    pub(super) fn give_up(&self, then: u64) {
        self.doubt(then);
        self.unresponsive.set(Some(then));
    }

    /// Whether its endpoint is known to answer nothing.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.unresponsive.get().is_some_and(|then| then == self.heard())
    }

    /// No further request goes onto this connection; those on it go on.
    pub(super) fn retire(&self) {
        self.retired.set(true);
    }

    /// It was of use. The next sweep says when that was.
    pub(super) fn touch(&self) {
        self.touched.set(true);
    }

    /// Whether it is worth keeping: it carries requests, or may and was used of late.
    pub(super) fn is_worth_keeping(&self, now: Instant) -> bool {
        !self.state.closed.get()
            && (self.active.get() > 0 || (!self.retired.get() && now.duration_since(self.used.get()) < IDLE))
    }

    /// A request begins to wait for its answer.
    pub(super) fn awaits(&self) {
        self.waiting.set(self.waiting.get() + 1);
    }

    /// A request waits no longer.
    pub(super) fn awaits_no_more(&self) {
        self.waiting.set(self.waiting.get().saturating_sub(1));
    }

    /// Asks a connection that is silent for long whether it still lives; when it does not say so, it gets no further
    /// request, and in the end is closed. Call it every second. True if a request waits, and the question was asked now.
    pub(super) fn listen(&self, now: Instant) -> bool {
        if self.touched.take() {
            self.used.set(now);
        }
        let mut silence = self.silence.get();
        let awaited = self.waiting.get() > 0;
        let patience = if awaited { AWAITED } else { QUIET };
        let verdict = silence.judge(self.heard(), patience, now);
        self.silence.set(silence);
        match verdict {
            Verdict::Fine => {}
            Verdict::Ask => self.ask_for_life(),
            Verdict::Doubt => self.doubt(self.heard()),
            Verdict::End => {
                tracing::debug!("a backend connection is closed: it answers no ping");
                self.give_up(self.heard());
                self.task.abort();
            }
        }
        awaited && verdict == Verdict::Ask
    }

    /// What comes back is heard like anything else.
    pub(super) fn ask_for_life(&self) {
        if let Some(ping) = &mut *self.ping.borrow_mut() {
            let mut cx = Context::from_waker(Waker::noop());
            // The last answer has to be taken before the next question.
            let _ = ping.poll_pong(&mut cx);
            let _ = ping.send_ping(Ping::opaque());
        }
    }
}

/// Says that a connection is over when its task is, however that came about.
struct Closing(Rc<State>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed.set(true);
    }
}

/// Begins HTTP/2 on a fresh connection, and waits for the backend's greeting: a connection on which nothing
/// comes back is worth no request.
pub(super) async fn greet<T: AsyncRead + AsyncWrite + Unpin + 'static>(stream: T) -> Result<Multiplexed, DialError> {
    let broken = |reason, cause| DialError { phase: DialPhase::Http, reason, cause };
    let ear = Rc::new(Ear::default());
    let stream = Heard { stream, ear: ear.clone() };
    let (sender, connection) = Builder::new()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .initial_max_send_streams(ASSUMED_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .enable_push(false)
        .handshake(stream)
        .await
        .map_err(|error| broken(why(ear.failed.get()), error.to_string()))?;
    let mut connection = Box::pin(connection);
    poll_fn(|cx| match connection.as_mut().poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err(broken("ConnectionClosed", "closed before SETTINGS".to_owned()))),
        Poll::Ready(Err(error)) => Poll::Ready(Err(broken(why(ear.failed.get()), error.to_string()))),
        Poll::Pending if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let ping = connection.ping_pong();
    let limit = connection.max_concurrent_send_streams().min(MOST_STREAMS);
    let state = Rc::new(State { limit: Cell::new(limit), closed: Cell::new(false) });
    let closing = Closing(state.clone());
    let task = tokio::task::spawn_local(async move {
        let ended = poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            closing.0.limit.set(connection.max_concurrent_send_streams().min(MOST_STREAMS));
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "a backend connection ended");
        }
    });
    Ok(Multiplexed {
        sender: RefCell::new(sender),
        active: Cell::new(0),
        state,
        retired: Cell::new(false),
        used: Cell::new(Instant::now()),
        touched: Cell::new(false),
        waiting: Cell::new(0),
        silence: Cell::new(Silence::new(Instant::now())),
        ear,
        ping: RefCell::new(ping),
        doubted: Cell::new(None),
        unresponsive: Cell::new(None),
        task: task.abort_handle(),
    })
}

/// Why a connection ended before it was of use: in one word what reading it said, TLS's refusal for one, which
/// may come only now (TLS 1.3 judges our certificate after our side of the handshake is done); else that it did
/// not speak HTTP/2.
fn why(failed: Option<Failure>) -> &'static str {
    failed.map_or("ProtocolError", Failure::reason)
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::task::LocalSet;

    use super::*;

    /// A connection to a backend that answers as long as `speaks`, and from then on takes what comes in silence.
    async fn connected(speaks: Rc<Cell<bool>>) -> Multiplexed {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::task::spawn_local(async move {
            let mut backend: h2::server::Connection<DuplexStream, Bytes> = h2::server::handshake(theirs).await.unwrap();
            poll_fn(|cx| if speaks.get() { backend.poll_accept(cx).map(drop) } else { Poll::Pending }).await;
        });
        greet(ours).await.unwrap_or_else(|error| panic!("{}", error.cause))
    }

    /// As the pool does every second, for `seconds` from now on.
    async fn sweep(connection: &Multiplexed, seconds: u32) {
        for second in 0..seconds {
            // Time stands still for all but this.
            connection.listen(Instant::now() + Duration::from_secs(u64::from(second)));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_answers_no_ping_is_given_up_and_one_that_answers_is_not() {
        let run = async |silent: bool, awaited: bool, seconds: u32| {
            let speaks = Rc::new(Cell::new(true));
            let connection = connected(speaks.clone()).await;
            assert!(connection.is_usable());
            speaks.set(!silent);
            if awaited {
                connection.awaits();
            }
            let heard = connection.heard();
            sweep(&connection, seconds).await;
            (connection.is_usable(), connection.heard() > heard, connection.task.is_finished())
        };
        LocalSet::new()
            .run_until(async {
                assert_eq!(run(false, false, 50).await, (true, true, false), "one that answers");
                assert_eq!(run(true, false, 50).await, (false, false, true), "one that is silent");
                assert_eq!(run(true, false, 28).await, (true, false, false), "one that nobody waits for");
                assert_eq!(run(false, true, 20).await, (true, true, false), "one that is only slow");
                assert_eq!(run(true, true, 6).await, (false, false, false), "one that is waited for in vain");
                assert_eq!(run(true, true, 12).await, (false, false, true), "not for ever");
            })
            .await;
    }
}
