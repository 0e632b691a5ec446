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

use super::Limits;
use super::cork::Cork;
use super::lifetime::{Active, End, Lifetime};
use super::serve::{Answering, Handler, Stream, until};
use crate::message::{Body, Received, UnreadEnd};
use crate::process::Deadline;

/// Flow-control window for request bodies, of a stream and of the connection.
const WINDOW: u32 = 1 << 20;
/// Response bytes of one stream that may wait for the client's window.
const MOST_UNSENT: usize = 400 << 10;
/// Response bytes of all streams passed to h2 between two complete writes to the client. While the client does not
/// read, no stream's response is read further.
const MOST_HANDED: usize = 256 << 10;
/// Memory of a frame in h2 besides its payload.
const FRAME: usize = 256;
/// Streams reset because of protocol errors of the client, before its connection is closed.
const MOST_MISTAKES: usize = 1024;
/// How long the rest of a response that was ended for a slow reader waits for the client.
const REST_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves an HTTP/2 client on `stream` until the connection ends.
///
/// Not an async function: its future would hold the arguments beside the connection, which costs memory for each idle
/// watch.
pub(super) fn serve_http2<H: Handler + 'static>(
    stream: Stream,
    handler: Rc<H>,
    limits: &Limits,
    lifetime: &Arc<Lifetime>,
) -> impl Future<Output = ()> + use<H> {
    let cork = Cork::new(stream);
    let handshake = Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(limits.http2_max_streams)
        .max_header_list_size(limits.max_request_header_bytes)
        .max_local_error_reset_streams(Some(MOST_MISTAKES))
        .max_send_buffer_size(MOST_UNSENT)
        .handshake(cork.clone());
    let mut server = Server {
        phase: Box::new(Phase::Greeting(handshake)),
        handler,
        lifetime: lifetime.clone(),
        patience: limits.idle_timeout,
        finishing: false,
        gate: Rc::default(),
    };
    let mut done = false;
    let mut writing = false;
    let mut looking: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    poll_fn(move |cx| {
        server.lifetime.register(cx.waker());
        match server.lifetime.told() {
            End::Now => return Poll::Ready(()),
            End::Gracefully => server.finish(),
            End::No => {}
        }
        done = done || server.poll(cx).is_ready();
        // While other requests run, their responses may already be in backend sockets: yield once without waiting, so
        // that they join the same record and system call.
        if !done && !writing && cork.has_room() && server.lifetime.running().is_some() {
            let look = looking.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            if look.as_mut().poll(cx).is_pending() {
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
struct Server<H> {
    phase: Box<Phase>,
    handler: Rc<H>,
    lifetime: Arc<Lifetime>,
    patience: Duration,
    finishing: bool,
    gate: Rc<Gate>,
}

/// Holds responses back while the client does not read.
#[derive(Default)]
struct Gate {
    /// Bytes passed to h2 since the last complete write to the client.
    handed: Cell<usize>,
    /// How often the gate has opened.
    opened: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    fn is_open(&self) -> bool {
        self.handed.get() < MOST_HANDED
    }

    fn hand(&self, bytes: usize) {
        self.handed.set(self.handed.get() + bytes + FRAME);
    }

    /// Opens the gate after a complete write to the client.
    fn open(&self) {
        if self.handed.replace(0) >= MOST_HANDED {
            self.opened.set(self.opened.get() + 1);
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }
}

enum Phase {
    /// Waiting for the client's preface.
    Greeting(Handshake<Cork<Stream>, Bytes>),
    Serving(Connection<Cork<Stream>, Bytes>),
}

impl<H: Handler + 'static> Server<H> {
    /// Accepts requests and drives the connection; ready when it has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Phase::Greeting(handshake) = &mut *self.phase {
            let Ok(mut connection) = ready!(Pin::new(handshake).poll(cx)) else { return Poll::Ready(()) };
            if self.finishing {
                connection.graceful_shutdown();
            }
            *self.phase = Phase::Serving(connection);
        }
        let Phase::Serving(connection) = &mut *self.phase else { return Poll::Ready(()) };
        loop {
            match ready!(connection.poll_accept(cx)) {
                Some(Ok((request, respond))) => {
                    // Received data is released at once: all uploads share this window.
                    let (parts, from) = request.into_parts();
                    let body = Received::http2(from, &parts.headers, 0);
                    let answer = self.handler.clone().handle(Request::from_parts(parts, body));
                    tokio::task::spawn_local(Exchange {
                        turn: Turn::Answering { answer, respond },
                        gate: self.gate.clone(),
                        active: self.lifetime.begin(),
                        patience: self.patience,
                        bound: None,
                    });
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, client = %self.lifetime.remote, "HTTP/2 connection ended with an error");
                    return Poll::Ready(());
                }
                None => return Poll::Ready(()),
            }
        }
    }

    /// Sends GOAWAY; running requests are finished.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.finishing, true)
            && let Phase::Serving(connection) = &mut *self.phase
        {
            connection.graceful_shutdown();
        }
    }
}

/// Task of one request. Dropped before the end of the response, it resets the stream.
struct Exchange {
    turn: Turn,
    gate: Rc<Gate>,
    active: Active,
    /// Timeout for the client to read a response that is fully buffered.
    patience: Duration,
    /// Deadline of the response. The body is not polled while the client has no window for it, so
    /// the body's own timeout would not fire.
    bound: Option<Deadline>,
}

enum Turn {
    Answering { answer: Answering, respond: SendResponse<Bytes> },
    Sending(Sending),
}

impl Future for Exchange {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let over = this.go_on(cx).is_ready();
        // Taken in any case, because it belongs to this stream.
        let at = this.active.0.take_answer_by();
        if over {
            return Poll::Ready(());
        }
        if let Some(at) = at {
            this.bound = Some(until(at));
        }
        if this.bound.as_ref().is_some_and(|bound| bound.is_over(cx.waker())) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Exchange {
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Turn::Answering { answer, respond } = &mut self.turn {
            let Poll::Ready(response) = answer.as_mut().poll(cx) else {
                // Ready when the client resets the stream.
                return respond.poll_reset(cx).map(drop);
            };
            let (mut parts, body) = response.into_parts();
            complete(&mut parts.headers, &body);
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
                self.active.0.answer_by(Instant::now() + self.patience);
            }
            self.turn = Turn::Sending(Sending {
                body,
                to,
                waiting: None,
                queued: 0,
                gate: self.gate.clone(),
                asked: None,
                ending: Ending::No,
            });
        }
        let Turn::Sending(sending) = &mut self.turn else { return Poll::Ready(()) };
        sending.poll(cx)
    }
}

/// Adds Date and Content-Length where the handler set none.
fn complete(headers: &mut HeaderMap, body: &Body) {
    if !headers.contains_key(DATE) {
        headers.insert(DATE, date());
    }
    if !body.is_end_stream()
        && let Some(length) = body.size_hint().exact()
        && !headers.contains_key(CONTENT_LENGTH)
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// The current time as an HTTP date, formatted once per second.
fn date() -> HeaderValue {
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
struct Sending {
    body: Body,
    to: SendStream<Bytes>,
    /// Data without window yet, and whether it is the last.
    waiting: Option<(Bytes, bool)>,
    /// Bytes of the last piece passed to h2 for which the client had no window.
    queued: usize,
    gate: Rc<Gate>,
    /// The gate's counter when this stream was added to the waiting ones.
    asked: Option<u64>,
    ending: Ending,
}

/// State of a response that ends because its client does not read.
enum Ending {
    No,
    /// The rest of the body is passed to h2 without waiting. The value is held until the client has read it.
    Rest(Box<dyn Any>),
    /// All data is passed to h2 except the end of the stream, which waits for the client to read the rest: h2 keeps
    /// data queued on a stream until the connection ends, unless the stream is reset.
    Untaken(Deadline, #[expect(dead_code, reason = "held")] Box<dyn Any>),
}

/// Capacity to send more of a response.
enum Room {
    Some,
    None,
    /// The client has reset the stream.
    Gone,
}

impl Sending {
    /// The capacity for a piece of the response. Without capacity, the task is woken when there is some.
    fn room(&mut self, cx: &mut Context<'_>) -> Room {
        if let Ending::Rest(_) = self.ending {
            return Room::Some;
        }
        while self.to.capacity() == 0 {
            match self.to.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return Room::Gone,
                Poll::Pending => return Room::None,
            }
        }
        if self.gate.is_open() {
            return Room::Some;
        }
        let opened = Some(self.gate.opened.get());
        if std::mem::replace(&mut self.asked, opened) != opened {
            self.gate.waiting.borrow_mut().push(cx.waker().clone());
        }
        Room::None
    }

    /// Ready when the response has ended, or the client has reset the stream.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Ending::Untaken(..) = self.ending {
                return self.poll_taken(cx);
            }
            if let Some((data, last)) = self.waiting.take() {
                match self.room(cx) {
                    Room::Some => {}
                    Room::Gone => return Poll::Ready(()),
                    Room::None => match self.body.poll_unread(cx, self.queued + data.len()) {
                        Poll::Ready(UnreadEnd::Finish(held)) => self.ending = Ending::Rest(held),
                        Poll::Ready(UnreadEnd::Reset) => {
                            self.to.send_reset(Reason::INTERNAL_ERROR);
                            return Poll::Ready(());
                        }
                        Poll::Pending => {
                            self.waiting = Some((data, last));
                            return self.to.poll_reset(cx).map(drop);
                        }
                    },
                }
                self.queued = data.len().saturating_sub(self.to.capacity());
                let rest = matches!(self.ending, Ending::Rest(_));
                if !rest {
                    self.gate.hand(data.len());
                }
                if self.to.send_data(data, last && !rest).is_err() {
                    return Poll::Ready(());
                }
                match (last, rest) {
                    (true, true) => {
                        self.await_taken();
                        continue;
                    }
                    (true, false) => return Poll::Ready(()),
                    (false, _) => {}
                }
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(_))) => {
                    self.to.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
                Poll::Ready(None) if matches!(self.ending, Ending::Rest(_)) => {
                    self.await_taken();
                    continue;
                }
                Poll::Ready(None) => {
                    let _ = self.to.send_data(Bytes::new(), true);
                    return Poll::Ready(());
                }
                Poll::Pending => return self.to.poll_reset(cx).map(drop),
            };
            match frame.into_data() {
                Ok(data) => {
                    let last = self.body.is_end_stream();
                    if !data.is_empty() {
                        // Reserved only when there is data to send: capacity that is reserved and not used is
                        // missing for the other streams. One byte suffices, because h2 reserves the rest when it has
                        // the data.
                        self.to.reserve_capacity(1);
                        self.waiting = Some((data, last));
                    } else if self.to.send_data(data, last).is_err() || last {
                        return Poll::Ready(());
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let _ = self.to.send_trailers(trailers);
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    /// Called when the rest of a slow reader's response is passed to h2 and its body has ended.
    fn await_taken(&mut self) {
        self.body = Body::Empty;
        self.to.reserve_capacity(1);
        if let Ending::Rest(held) = std::mem::replace(&mut self.ending, Ending::No) {
            self.ending = Ending::Untaken(until(Instant::now() + REST_TIMEOUT), held);
        }
    }

    /// Ready when the client has read the rest and gets the end of the stream, or its timeout has passed.
    fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.room(cx) {
            Room::Some => {
                let _ = self.to.send_data(Bytes::new(), true);
                return Poll::Ready(());
            }
            Room::Gone => return Poll::Ready(()),
            Room::None => {}
        }
        if let Ending::Untaken(until, _) = &mut self.ending
            && until.is_over(cx.waker())
        {
            self.to.send_reset(Reason::INTERNAL_ERROR);
            return Poll::Ready(());
        }
        self.to.poll_reset(cx).map(drop)
    }
}
