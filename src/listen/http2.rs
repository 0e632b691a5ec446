//! HTTP/2 connections, by h2.
//!
//! It uses h2 directly, as connections to backends do. hyper's layer above h2 (a second state machine per stream,
//! with checks that are made here already) would cost a twentieth of relaying a small response, and memory per idle
//! watch.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use h2::server::{Builder, Connection, Handshake, SendResponse};
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body as _;

use super::ServerLimits;
use super::connections::{ActiveRequest, CloseMode, ConnectionTracker, deadline_with_grace};
use super::http2_headers::{ReviewedStream, review_headers};
use super::http2_request_review::{RefusedStreams, RequestReview};
use super::request_service::{RequestService, ResponseFuture, call_when_ready};
use super::tracked_stream::ClientStream;
use super::write_coalescing::CorkedStream;
use crate::message::{Body, IncomingBody, UnreadEnd};
use crate::process::Deadline;

/// Flow-control window for request bodies, of a stream and of the connection.
const WINDOW: u32 = 1 << 20;
/// Response bytes of one stream that may wait for the client's window.
const MAX_UNSENT: usize = 400 << 10;
/// Response bytes of all streams passed to h2 between two complete writes to the client. While the client does not
/// read, no stream's response is read further.
const MAX_QUEUED: usize = 256 << 10;
/// Memory of a frame in h2 besides its payload.
const FRAME_OVERHEAD: usize = 256;
/// Streams reset because of protocol errors of the client, before its connection is closed.
const MAX_RESET_STREAMS: usize = 1024;
/// How long the rest of a response that was ended for a slow reader waits for the client.
const SLOW_READER_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves an HTTP/2 client on `stream` until the connection ends.
///
/// Not an async function: its future would hold the arguments beside the connection, which costs memory for each idle
/// watch.
pub(super) fn serve_http2<S: RequestService>(
    stream: ClientStream,
    service: S,
    limits: &ServerLimits,
    lifetime: &Arc<ConnectionTracker>,
) -> impl Future<Output = ()> + use<S> {
    let refused = RefusedStreams::default();
    let max_header_bytes = limits.max_request_header_bytes as usize;
    let review = RequestReview::new(max_header_bytes, refused.clone());
    let cork = CorkedStream::new(review_headers(stream, review, max_header_bytes));
    let handshake = Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(limits.http2_max_streams)
        .max_header_list_size(limits.max_request_header_bytes)
        .max_local_error_reset_streams(Some(MAX_RESET_STREAMS))
        .max_send_buffer_size(MAX_UNSENT)
        .handshake(cork.clone());
    let mut server = Server {
        phase: Box::new(ConnectionPhase::Handshaking(handshake)),
        service,
        connection: lifetime.clone(),
        response_timeout: limits.idle_timeout,
        is_closing: false,
        gate: Rc::default(),
        refused,
    };
    let mut done = false;
    let mut writing = false;
    let mut looking: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    poll_fn(move |cx| {
        server.connection.register_waker(cx.waker());
        match server.connection.close_mode() {
            CloseMode::Immediate => return Poll::Ready(()),
            CloseMode::Graceful => server.close_gracefully(),
            CloseMode::None => {}
        }
        done = done || server.poll(cx).is_ready();
        // While other requests run, their responses may already be in backend sockets: yield once without waiting, so
        // that they join the same record and system call.
        if !done && !writing && cork.has_buffered_data() && server.connection.running_request().is_some() {
            let turn = looking.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            if turn.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        looking = None;
        let drained = cork.drain(cx);
        // While a write is pending, wait for the client only.
        writing = drained.is_pending();
        if !writing {
            server.gate.open();
        }
        match drained {
            Poll::Ready(Ok(())) if done => Poll::Ready(()),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
}

/// State of one HTTP/2 connection.
struct Server<S> {
    phase: Box<ConnectionPhase>,
    service: S,
    connection: Arc<ConnectionTracker>,
    response_timeout: Duration,
    is_closing: bool,
    gate: Rc<WriteGate>,
    refused: RefusedStreams,
}

/// Holds responses back while the client does not read.
#[derive(Default)]
struct WriteGate {
    /// Bytes passed to h2 since the last complete write to the client.
    queued: Cell<usize>,
    /// How often the gate has opened.
    times_opened: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl WriteGate {
    fn is_open(&self) -> bool {
        self.queued.get() < MAX_QUEUED
    }

    fn add_queued(&self, bytes: usize) {
        self.queued.set(self.queued.get() + bytes + FRAME_OVERHEAD);
    }

    /// Opens the gate after a complete write to the client.
    fn open(&self) {
        if self.queued.replace(0) >= MAX_QUEUED {
            self.times_opened.set(self.times_opened.get() + 1);
            self.wakers.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }
}

type ReviewedClientStream = ReviewedStream<ClientStream, RequestReview>;

enum ConnectionPhase {
    /// Waiting for the client's preface.
    Handshaking(Handshake<CorkedStream<ReviewedClientStream>, Bytes>),
    Serving(Connection<CorkedStream<ReviewedClientStream>, Bytes>),
}

impl<S: RequestService> Server<S> {
    /// Accepts requests and drives the connection; ready when it has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let ConnectionPhase::Handshaking(handshake) = &mut *self.phase {
            let Ok(mut connection) = ready!(Pin::new(handshake).poll(cx)) else { return Poll::Ready(()) };
            if self.is_closing {
                connection.graceful_shutdown();
            }
            *self.phase = ConnectionPhase::Serving(connection);
        }
        let ConnectionPhase::Serving(connection) = &mut *self.phase else { return Poll::Ready(()) };
        loop {
            match ready!(connection.poll_accept(cx)) {
                Some(Ok((request, respond))) => {
                    // Received data is released at once: all uploads share this window.
                    let (mut parts, from) = request.into_parts();
                    if let Some(malformed) = self.refused.take(respond.stream_id().as_u32()) {
                        parts.extensions.insert(malformed);
                    }
                    let body = IncomingBody::http2(from, &parts.headers, 0);
                    let answer = call_when_ready(&self.service, Request::from_parts(parts, body));
                    tokio::task::spawn_local(RequestTask {
                        phase: RequestPhase::Responding { answer, respond },
                        gate: self.gate.clone(),
                        active: self.connection.begin_request(),
                        response_timeout: self.response_timeout,
                        deadline: None,
                    });
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, client = %self.connection.remote, "HTTP/2 connection ended with an error");
                    return Poll::Ready(());
                }
                None => return Poll::Ready(()),
            }
        }
    }

    /// Sends GOAWAY; running requests are finished.
    fn close_gracefully(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true)
            && let ConnectionPhase::Serving(connection) = &mut *self.phase
        {
            connection.graceful_shutdown();
        }
    }
}

/// Task of one request. Dropped before the end of the response, it resets the stream.
struct RequestTask {
    phase: RequestPhase,
    gate: Rc<WriteGate>,
    active: ActiveRequest,
    /// Timeout for the client to read a response that is fully buffered.
    response_timeout: Duration,
    /// Deadline of the response. The body is not polled while the client has no window for it, so
    /// the body's own timeout would not fire.
    deadline: Option<Deadline>,
}

enum RequestPhase {
    Responding { answer: ResponseFuture, respond: SendResponse<Bytes> },
    Sending(ResponseSender),
}

impl Future for RequestTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let is_done = this.poll_phase(cx).is_ready();
        // Taken in any case, because it belongs to this stream.
        let at = this.active.0.take_response_deadline();
        if is_done {
            return Poll::Ready(());
        }
        if let Some(at) = at {
            this.deadline = Some(deadline_with_grace(at));
        }
        if this.deadline.as_ref().is_some_and(|bound| bound.has_elapsed(cx.waker())) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl RequestTask {
    fn poll_phase(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let RequestPhase::Responding { answer, respond } = &mut self.phase {
            let Poll::Ready(Ok(response)) = answer.as_mut().poll(cx) else {
                // Ready when the client resets the stream.
                return respond.poll_reset(cx).map(drop);
            };
            let (mut parts, body) = response.into_parts();
            add_standard_headers(&mut parts.headers, &body);
            let ended = body.is_end_stream();
            let to = match respond.send_response(Response::from_parts(parts, ()), ended) {
                Ok(to) => to,
                Err(error) => {
                    tracing::debug!(%error, "response could not be sent over HTTP/2");
                    respond.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
            };
            if ended {
                return Poll::Ready(());
            }
            if let Body::Full(_) = body {
                self.active.0.set_response_deadline(Instant::now() + self.response_timeout);
            }
            self.phase = RequestPhase::Sending(ResponseSender {
                body,
                stream: to,
                pending: None,
                queued: 0,
                gate: self.gate.clone(),
                gate_generation: None,
                slow_reader: SlowReaderState::Reading,
            });
        }
        let RequestPhase::Sending(sending) = &mut self.phase else { return Poll::Ready(()) };
        sending.poll(cx)
    }
}

/// Adds Date and Content-Length where the handler set none.
fn add_standard_headers(headers: &mut HeaderMap, body: &Body) {
    if !headers.contains_key(DATE) {
        headers.insert(DATE, http_date());
    }
    if !body.is_end_stream()
        && let Some(length) = body.size_hint().exact()
        && !headers.contains_key(CONTENT_LENGTH)
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// The current time as an HTTP date, formatted once per second.
fn http_date() -> HeaderValue {
    thread_local! {
        static LAST: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LAST.with_borrow_mut(|last| {
        if last.0 != second
            && let Ok(value) = HeaderValue::from_str(&httpdate::fmt_http_date(now))
        {
            *last = (second, value);
        }
        last.1.clone()
    })
}

/// Sends the body of a response to the client.
struct ResponseSender {
    body: Body,
    stream: SendStream<Bytes>,
    /// Data without window yet, and whether it is the last.
    pending: Option<(Bytes, bool)>,
    /// Bytes of the last piece passed to h2 for which the client had no window.
    queued: usize,
    gate: Rc<WriteGate>,
    /// The gate's counter when this stream was added to the waiting ones.
    gate_generation: Option<u64>,
    slow_reader: SlowReaderState,
}

/// State of a response that ends because its client does not read.
enum SlowReaderState {
    Reading,
    /// The rest of the body is passed to h2 without waiting. The value is held until the client has read it.
    Flushing(Box<dyn Any>),
    /// All data is passed to h2 except the end of the stream, which waits for the client to read the rest: h2 keeps
    /// data queued on a stream until the connection ends, unless the stream is reset.
    AwaitingRead(Deadline, #[expect(dead_code, reason = "held")] Box<dyn Any>),
}

/// Capacity to send more of a response.
enum SendCapacity {
    Available,
    Exhausted,
    /// The client has reset the stream.
    Closed,
}

impl ResponseSender {
    /// The capacity for a piece of the response. Without capacity, the task is woken when there is some.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> SendCapacity {
        if let SlowReaderState::Flushing(_) = self.slow_reader {
            return SendCapacity::Available;
        }
        while self.stream.capacity() == 0 {
            match self.stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return SendCapacity::Closed,
                Poll::Pending => return SendCapacity::Exhausted,
            }
        }
        if self.gate.is_open() {
            return SendCapacity::Available;
        }
        let opened = Some(self.gate.times_opened.get());
        if std::mem::replace(&mut self.gate_generation, opened) != opened {
            self.gate.wakers.borrow_mut().push(cx.waker().clone());
        }
        SendCapacity::Exhausted
    }

    /// Ready when the response has ended, or the client has reset the stream.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let SlowReaderState::AwaitingRead(..) = self.slow_reader {
                return self.poll_read(cx);
            }
            if let Some((data, last)) = self.pending.take() {
                match self.poll_capacity(cx) {
                    SendCapacity::Available => {}
                    SendCapacity::Closed => return Poll::Ready(()),
                    SendCapacity::Exhausted => match self.body.poll_unread(cx, self.queued + data.len()) {
                        Poll::Ready(UnreadEnd::Finish(held)) => self.slow_reader = SlowReaderState::Flushing(held),
                        Poll::Ready(UnreadEnd::Reset) => {
                            self.stream.send_reset(Reason::INTERNAL_ERROR);
                            return Poll::Ready(());
                        }
                        Poll::Pending => {
                            self.pending = Some((data, last));
                            return self.stream.poll_reset(cx).map(drop);
                        }
                    },
                }
                self.queued = data.len().saturating_sub(self.stream.capacity());
                let rest = matches!(self.slow_reader, SlowReaderState::Flushing(_));
                if !rest {
                    self.gate.add_queued(data.len());
                }
                if self.stream.send_data(data, last && !rest).is_err() {
                    return Poll::Ready(());
                }
                match (last, rest) {
                    (true, true) => {
                        self.await_read();
                        continue;
                    }
                    (true, false) => return Poll::Ready(()),
                    (false, _) => {}
                }
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(_))) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
                Poll::Ready(None) if matches!(self.slow_reader, SlowReaderState::Flushing(_)) => {
                    self.await_read();
                    continue;
                }
                Poll::Ready(None) => {
                    let _ = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(());
                }
                Poll::Pending => return self.stream.poll_reset(cx).map(drop),
            };
            match frame.into_data() {
                Ok(data) => {
                    let last = self.body.is_end_stream();
                    if !data.is_empty() {
                        // Reserved only when there is data to send: capacity that is reserved and not used is
                        // missing for the other streams. One byte suffices, because h2 reserves the rest when it has
                        // the data.
                        self.stream.reserve_capacity(1);
                        self.pending = Some((data, last));
                    } else if self.stream.send_data(data, last).is_err() || last {
                        return Poll::Ready(());
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let _ = self.stream.send_trailers(trailers);
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    /// Called when the rest of a slow reader's response is passed to h2 and its body has ended.
    fn await_read(&mut self) {
        self.body = Body::Empty;
        self.stream.reserve_capacity(1);
        if let SlowReaderState::Flushing(held) = std::mem::replace(&mut self.slow_reader, SlowReaderState::Reading) {
            self.slow_reader =
                SlowReaderState::AwaitingRead(deadline_with_grace(Instant::now() + SLOW_READER_TIMEOUT), held);
        }
    }

    /// Ready when the client has read the rest and gets the end of the stream, or its timeout has passed.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.poll_capacity(cx) {
            SendCapacity::Available => {
                let _ = self.stream.send_data(Bytes::new(), true);
                return Poll::Ready(());
            }
            SendCapacity::Closed => return Poll::Ready(()),
            SendCapacity::Exhausted => {}
        }
        if let SlowReaderState::AwaitingRead(until, _) = &mut self.slow_reader
            && until.has_elapsed(cx.waker())
        {
            self.stream.send_reset(Reason::INTERNAL_ERROR);
            return Poll::Ready(());
        }
        self.stream.poll_reset(cx).map(drop)
    }
}
