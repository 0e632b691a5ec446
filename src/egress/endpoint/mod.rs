//! One endpoint of a backend on one worker: its connections and its liveness.

mod opening;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version};

use self::opening::{Dialling, MOST_CONNECTIONS, Opened, Purpose};
use crate::egress::dial::{DialError, DialPhase, Protocol, Timing};
use crate::egress::http1::{Fault, Idle, Line, Open};
use crate::egress::http2::{Multiplexed, NotAsked};
use crate::egress::lease::{Lease, Pending, Stream};
use crate::egress::pool::PoolReport;
use crate::egress::{Address, Allowance, Dialler, Upstream, Wire, refusal};
use crate::message::{Body, Received};

/// How long a request must wait on a silent connection before its cancellation marks the connection as doubtful.
const SILENCE: Duration = Duration::from_secs(1);

/// An endpoint of a backend that requests can be sent to.
pub struct Endpoint {
    upstream: Upstream,
    /// Host header and `:authority` of requests: address and port, as kube-aggregator sends. `None` only for a name
    /// that no URI can carry.
    host: Option<(HeaderValue, Authority)>,
    dialler: Dialler,
    /// Limit of open connections.
    most: usize,
    /// Connections to all endpoints of the APIService, and their limit.
    allowance: (Allowance, usize),
    /// HTTP version of the last connection; `None` before the first.
    protocol: Cell<Option<Protocol>>,
    idle: Idle,
    open: Open,
    multiplexed: RefCell<Vec<Rc<Multiplexed>>>,
    dialling: RefCell<Option<Dialling>>,
    /// Earliest time for opening the next connection ahead of need; in the future after such a dial failed.
    ahead: Cell<Instant>,
    /// Whether the endpoint became unresponsive since this was last taken.
    fell_silent: Cell<bool>,
    /// Whether a liveness check is running.
    checking: Cell<bool>,
    /// Why the endpoint is ejected; a background dial that succeeds brings it back.
    failure: RefCell<Option<DialError>>,
    /// Requests in flight that are expected to end soon.
    pub(in crate::egress) brief: Cell<usize>,
    pub(in crate::egress) lasting: Cell<usize>,
}

/// A connection of an [`Endpoint`] that can take a request immediately.
pub struct Room(Held);

enum Held {
    Line(Line),
    Stream(Stream),
}

/// A response head, and the guard of the connection its body is read from.
pub struct Sent {
    /// The response; its body is still to be read.
    pub response: Response<Received>,
    /// Keep this until the body has ended.
    pub lease: Lease,
    /// Timing of the dial, if this request waited for one.
    pub timing: Timing,
}

/// Why a request got no response.
pub enum SendError {
    /// Nothing was sent; the request is unchanged.
    NotSent {
        /// The request.
        request: Box<Request<Body>>,
        /// The cause.
        error: DialError,
    },
    /// The request was sent, and the backend provably did not process it (REFUSED_STREAM, a GOAWAY that excludes it,
    /// TLS refused).
    Refused(DialError),
    /// The request was sent on a reused connection that was closed without a byte of a response: most likely the server
    /// was closing it already.
    Unheard(Cause),
    /// The request was sent, at least in part, and the response is not valid HTTP.
    Nonsense(Cause),
    /// The request was sent, at least in part; whether it was processed is unknown. [`NoResponse`] if the endpoint is
    /// unresponsive.
    Broken(Cause),
}

/// The endpoint accepted a request and does not respond at all.
#[derive(Debug)]
pub struct NoResponse {
    /// Address of the endpoint.
    pub address: Address,
    /// Time the request waited.
    pub waited: Duration,
}

impl fmt::Display for NoResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {} did not answer within {:.1}s", self.address, self.waited.as_secs_f64())
    }
}

impl std::error::Error for NoResponse {}

/// The error that ended a connection or a stream.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

impl Endpoint {
    pub(in crate::egress) fn new(
        upstream: Upstream,
        dialler: Dialler,
        most: usize,
        allowance: (Allowance, usize),
    ) -> Rc<Endpoint> {
        let host = match &upstream.address {
            Address::Tcp(destination) => destination.to_string(),
            // As Go's HTTP clients over a Unix socket.
            Address::Unix(_) => "localhost".to_owned(),
        };
        let host = HeaderValue::from_str(&host).ok().zip(Authority::try_from(host).ok());
        Rc::new(Endpoint {
            upstream,
            host,
            dialler,
            most,
            allowance,
            protocol: Cell::new(None),
            idle: Idle::default(),
            open: Open::default(),
            multiplexed: RefCell::default(),
            dialling: RefCell::default(),
            ahead: Cell::new(Instant::now()),
            fell_silent: Cell::new(false),
            checking: Cell::new(false),
            failure: RefCell::default(),
            brief: Cell::new(0),
            lasting: Cell::new(0),
        })
    }

    /// Address and trust settings.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Requests in flight.
    pub fn pending(&self) -> usize {
        self.brief.get() + self.lasting.get()
    }

    /// Requests in flight that are expected to end soon; watches count only until their response begins.
    pub fn brief(&self) -> usize {
        self.brief.get()
    }

    /// Whether the endpoint is not ejected.
    pub fn is_usable(&self) -> bool {
        self.failure.borrow().is_none()
    }

    /// Whether there is an open connection that can take a request, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.idle.len() > 0 || self.multiplexed.borrow().iter().any(|connection| connection.is_usable())
    }

    /// HTTP version of the last connection.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol.get()
    }

    /// Sends `request` (with its URI in origin form) and waits for the response head.
    ///
    /// The request is boxed: it passes through many futures, each of which would hold a copy.
    ///
    /// # Errors
    /// [`SendError`] says whether the request can be sent again.
    pub async fn send(self: &Rc<Self>, request: Box<Request<Body>>) -> Result<Sent, SendError> {
        self.send_with(request, false).await
    }

    /// As [`Endpoint::send`]; `repeatable` says that the request can be sent again, and had better be than wait for an
    /// unresponsive endpoint.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub async fn send_with(self: &Rc<Self>, request: Box<Request<Body>>, repeatable: bool) -> Result<Sent, SendError> {
        let pending = Pending::new(self);
        let mut timing = Timing::default();
        loop {
            if let Some(room) = self.room() {
                return self.send_in(room, request, repeatable, (pending, timing)).await;
            }
            let opened = match self.protocol.get() {
                // Each request opens its own: an HTTP/1.1 connection carries one request at a time.
                Some(Protocol::Http1) => match Box::pin(self.open(Purpose::Now)).await {
                    Ok(Opened::Http1(line, timing)) => {
                        return self.send_http1(request, line, pending, timing).await;
                    }
                    Ok(Opened::Http2(took)) => Ok(took),
                    Err(error) => Err(error),
                },
                // Many requests may wait for one dial; all get its result.
                Some(Protocol::Http2) | None => self.dialling().await,
            };
            match opened {
                Ok(took) => timing = took,
                Err(error) => return Err(SendError::NotSent { request, error }),
            }
        }
    }

    /// A connection that can take a request immediately, which is the common case.
    pub fn room(self: &Rc<Self>) -> Option<Room> {
        match self.protocol.get()? {
            Protocol::Http2 => self.stream().map(Held::Stream),
            Protocol::Http1 => self.idle.take().map(Held::Line),
        }
        .map(Room)
    }

    /// As [`Endpoint::send_with`], on a connection that is ready; its future is a quarter of the size.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub async fn send_at(
        self: &Rc<Self>,
        room: Room,
        request: Box<Request<Body>>,
        repeatable: bool,
    ) -> Result<Sent, SendError> {
        self.send_in(room, request, repeatable, (Pending::new(self), Timing::default())).await
    }

    async fn send_in(
        self: &Rc<Self>,
        room: Room,
        request: Box<Request<Body>>,
        repeatable: bool,
        (pending, timing): (Pending, Timing),
    ) -> Result<Sent, SendError> {
        match room.0 {
            // HTTP/1.1 liveness is probed by a new connection only, which a single-threaded server accepts late.
            Held::Line(line) => self.send_http1(request, line, pending, timing).await,
            Held::Stream(stream) => self.send_http2(request, stream, repeatable, (pending, timing)).await,
        }
    }

    /// Opens an HTTP/1.1 connection for one request, which an upgrade may turn into a tunnel.
    ///
    /// # Errors
    /// When no connection could be opened.
    pub async fn open_private(self: &Rc<Self>) -> Result<(Line, Timing), DialError> {
        let place = self.place()?;
        let opened = async {
            let mut dialled = self.dialler.dial(&self.upstream, true).await?;
            dialled.keep(place);
            let timing = dialled.timing;
            Ok((Line::new(dialled.channel, &self.open), timing))
        };
        opened.await.inspect_err(|error| self.eject(error))
    }

    async fn send_http1(
        self: &Rc<Self>,
        mut request: Box<Request<Body>>,
        mut line: Line,
        pending: Pending,
        timing: Timing,
    ) -> Result<Sent, SendError> {
        self.in_origin_form(&mut request);
        let awaiting = self.open.awaits();
        let before = line.came();
        let answered = line.ask(*request).await;
        drop(awaiting);
        match answered {
            Ok(response) => Ok(Sent { response, lease: Lease::http1(self, line, pending), timing }),
            Err(Fault::Unanswered) => Err(self.no_response(self.open.silent_for())),
            Err(fault) => {
                // If the backend is gone, its other connections are, too: the next try opens its own.
                self.idle.clear();
                Err(match lost(fault) {
                    SendError::Broken(error) if before > 0 && line.came() == before && refusal::is_end(&*error) => {
                        SendError::Unheard(error)
                    }
                    lost => lost,
                })
            }
        }
    }

    async fn send_http2(
        self: &Rc<Self>,
        mut request: Box<Request<Body>>,
        stream: Stream,
        repeatable: bool,
        (pending, timing): (Pending, Timing),
    ) -> Result<Sent, SendError> {
        self.in_absolute_form(&mut request);
        let mut asked = match stream.0.ask(request) {
            Ok(asked) => asked,
            Err(NotAsked::Closed(request, error)) => {
                stream.0.retire();
                return Err(not_sent(request, &error));
            }
            Err(NotAsked::Unspeakable(error)) => return Err(SendError::Broken(error.into())),
        };
        let waiting = Waiting::new(&stream.0);
        let answered = {
            let mut answer = pin!(asked.answer());
            poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Pending if repeatable && stream.0.is_unresponsive() => Poll::Ready(None),
                polled => polled.map(Some),
            })
            .await
        };
        let since = waiting.over();
        match answered {
            None => Err(self.no_response(since.elapsed())),
            Some(Err(_)) if stream.0.is_unresponsive() => Err(self.no_response(since.elapsed())),
            Some(Ok(response)) => Ok(Sent { response, lease: Lease::http2(stream, asked.upload, pending), timing }),
            Some(Err(error)) => {
                if refusal::is_farewell(&error) {
                    stream.0.retire();
                }
                Err(lost(error))
            }
        }
    }

    fn no_response(&self, waited: Duration) -> SendError {
        SendError::Broken(Box::new(NoResponse { address: self.upstream.address.clone(), waited }))
    }

    /// Sets scheme and authority, which HTTP/2 sends as pseudo-headers, and removes the Host header.
    fn in_absolute_form(&self, request: &mut Request<Body>) {
        let theirs = request.headers_mut().remove(HOST).filter(|_| self.upstream.keeps_host);
        let theirs = theirs.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(match self.upstream.wire {
            Wire::Tls(_) => Scheme::HTTPS,
            Wire::Plain(_) => Scheme::HTTP,
        });
        parts.authority = theirs.or_else(|| self.host.as_ref().map(|(_, authority)| authority.clone()));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
    }

    /// Sets path and Host header, as HTTP/1.1 sends them.
    pub fn in_origin_form(&self, request: &mut Request<Body>) {
        let keeps = self.upstream.keeps_host && request.headers().contains_key(HOST);
        if let Some((host, _)) = self.host.as_ref().filter(|_| !keeps) {
            request.headers_mut().insert(HOST, host.clone());
        }
        if request.uri().authority().is_some() {
            let mut parts = std::mem::take(request.uri_mut()).into_parts();
            parts.scheme = None;
            parts.authority = None;
            *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        }
        *request.version_mut() = Version::HTTP_11;
    }

    /// A stream of the connection with the most free streams; opens the next connection when streams get scarce.
    fn stream(self: &Rc<Self>) -> Option<Stream> {
        let (stream, scarce, open) = {
            let multiplexed = self.multiplexed.borrow();
            let best = multiplexed.iter().max_by_key(|connection| connection.free())?;
            if best.free() == 0 {
                return None;
            }
            (Stream::new(best), best.is_nearly_full(), multiplexed.len())
        };
        if scarce && open < MOST_CONNECTIONS && self.dialling.borrow().is_none() && self.ahead.get() <= Instant::now() {
            drop(self.dial_in_background(Purpose::Ahead));
        }
        Some(stream)
    }

    pub(in crate::egress) fn give_back(&self, line: Line) {
        self.idle.put(line);
    }

    /// Why the endpoint is ejected, if it is.
    pub fn failure(&self) -> Option<DialError> {
        self.failure.borrow().clone()
    }

    /// Reason why the endpoint is ejected, if it is.
    pub fn failure_reason(&self) -> Option<&'static str> {
        self.failure.borrow().as_ref().map(|failure| failure.reason)
    }

    /// State of its connections.
    pub fn report(&self) -> PoolReport {
        let multiplexed = self.multiplexed.borrow();
        let http1 = self.protocol.get() != Some(Protocol::Http2);
        PoolReport {
            address: self.upstream.address.clone(),
            protocol: self.protocol.get(),
            idle: if http1 { self.idle.len() } else { multiplexed.iter().filter(|c| c.active.get() == 0).count() },
            busy: if http1 { self.pending() } else { multiplexed.iter().filter(|c| c.active.get() > 0).count() },
            pending: self.pending(),
            failure: self.failure_reason(),
        }
    }
}

/// A request that awaits its response head on an HTTP/2 connection. If dropped earlier (timeout, client gone), it marks
/// a silent connection as doubtful.
struct Waiting<'c> {
    connection: &'c Rc<Multiplexed>,
    heard: u64,
    since: Instant,
}

impl<'c> Waiting<'c> {
    fn new(connection: &'c Rc<Multiplexed>) -> Waiting<'c> {
        connection.awaits();
        Waiting { connection, heard: connection.heard(), since: Instant::now() }
    }

    /// Ends the wait; returns when it began.
    fn over(self) -> Instant {
        let since = self.since;
        self.connection.awaits_no_more();
        std::mem::forget(self);
        since
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.connection.awaits_no_more();
        if self.since.elapsed() >= SILENCE {
            self.connection.doubt(self.heard);
        }
    }
}

fn not_sent(request: Box<Request<Body>>, error: &dyn std::error::Error) -> SendError {
    let cause = format!("the connection closed before the request was sent: {error}");
    let error = DialError { phase: DialPhase::Http, reason: "ConnectionClosed", cause };
    SendError::NotSent { request, error }
}

fn lost(error: impl std::error::Error + Send + Sync + 'static) -> SendError {
    match refusal::unprocessed(&error) {
        Some(refused) => SendError::Refused(refused),
        None if refusal::is_nonsense(&error) => SendError::Nonsense(error.into()),
        None => SendError::Broken(error.into()),
    }
}
