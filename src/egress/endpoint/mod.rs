//! One endpoint of a backend, as one worker knows it: its connections and whether it answers.

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

/// How long a request must have waited on a silent connection for that to mean something.
const SILENCE: Duration = Duration::from_secs(1);

/// One endpoint: where requests can be sent.
pub struct Endpoint {
    upstream: Upstream,
    /// The Host header and the `:authority` of requests to it: address and port, as kube-aggregator
    /// sends. `None` only for a name no URI can carry.
    host: Option<(HeaderValue, Authority)>,
    dialler: Dialler,
    /// Connections that may be open at a time.
    most: usize,
    /// Those to all endpoints of its APIService, and how many there may be.
    allowance: (Allowance, usize),
    /// What was spoken last; unknown before the first connection.
    protocol: Cell<Option<Protocol>>,
    idle: Idle,
    open: Open,
    multiplexed: RefCell<Vec<Rc<Multiplexed>>>,
    dialling: RefCell<Option<Dialling>>,
    /// When the next connection may be opened ahead of need: later than now after one failed.
    ahead: Cell<Instant>,
    /// Whether it was found silent since that was last asked.
    fell_silent: Cell<bool>,
    /// Whether a liveness check is under way.
    checking: Cell<bool>,
    /// Why the endpoint was taken out; a background dial brings it back.
    failure: RefCell<Option<DialError>>,
    /// Requests that will soon be over, as far as is known, and those that are answered for long.
    pub(in crate::egress) brief: Cell<usize>,
    pub(in crate::egress) lasting: Cell<usize>,
}

/// A connection of an [`Endpoint`] that takes a request now.
pub struct Room(Held);

enum Held {
    Line(Line),
    Stream(Stream),
}

/// An answer's head, and the hold on the connection its body comes from.
pub struct Sent {
    /// The answer; its body is still to be read.
    pub response: Response<Received>,
    /// Keep it until the body has ended.
    pub lease: Lease,
    /// What opening a connection took, if this request waited for one.
    pub timing: Timing,
}

/// Why a request got no answer.
pub enum SendError {
    /// Nothing was sent; the request is as it was.
    NotSent {
        /// Given back whole.
        request: Box<Request<Body>>,
        /// Why.
        error: DialError,
    },
    /// It was sent, and the backend provably did nothing with it (REFUSED_STREAM, a GOAWAY that leaves it out,
    /// TLS refused).
    Refused(DialError),
    /// It was sent on a connection that had served before and was closed without one byte of an answer: most likely it
    /// was being closed when the request came.
    Unheard(Cause),
    /// It was sent, or a part of it, and what came back is not HTTP.
    Nonsense(Cause),
    /// It was sent, or a part of it, and what became of it is not known; [`NoResponse`] where the endpoint answers nothing.
    Broken(Cause),
}

/// An endpoint that took a request and answers nothing.
#[derive(Debug)]
pub struct NoResponse {
    /// The endpoint.
    pub address: Address,
    /// How long the request waited.
    pub waited: Duration,
}

impl fmt::Display for NoResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {} did not answer within {:.1}s", self.address, self.waited.as_secs_f64())
    }
}

impl std::error::Error for NoResponse {}

/// What ended a connection or a stream of it.
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
            // As Go's clients that are given a socket and no more.
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

    /// Where it is, and whom we trust there.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Requests that are on their way or being answered.
    pub fn pending(&self) -> usize {
        self.brief.get() + self.lasting.get()
    }

    /// Those of them that will soon be over, as far as is known: no watches, once they are answered.
    pub fn brief(&self) -> usize {
        self.brief.get()
    }

    /// Whether the last dial succeeded, as far as is known.
    pub fn is_usable(&self) -> bool {
        self.failure.borrow().is_none()
    }

    /// Whether there is a connection on which a request could go, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.idle.len() > 0 || self.multiplexed.borrow().iter().any(|connection| connection.is_usable())
    }

    /// What was spoken last.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol.get()
    }

    /// Sends `request` (whose URI is in origin form) and waits for the head of the answer.
    ///
    /// It is boxed because it goes through many futures, each of which would keep a copy of it.
    ///
    /// # Errors
    /// [`SendError`] says whether the request can be sent again.
    pub async fn send(self: &Rc<Self>, request: Box<Request<Body>>) -> Result<Sent, SendError> {
        self.send_with(request, false).await
    }

    /// The same; `repeatable` says that the request can be sent again, and had better be than wait for an endpoint that
    /// answers nothing.
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
                // Each request opens its own: an HTTP/1.1 connection serves nobody else meanwhile.
                Some(Protocol::Http1) => match Box::pin(self.open(Purpose::Now)).await {
                    Ok(Opened::Http1(line, timing)) => {
                        return self.send_http1(request, line, pending, timing).await;
                    }
                    Ok(Opened::Http2(took)) => Ok(took),
                    Err(error) => Err(error),
                },
                // Many requests may wait for one dial; all learn what became of it.
                Some(Protocol::Http2) | None => self.dialling().await,
            };
            match opened {
                Ok(took) => timing = took,
                Err(error) => return Err(SendError::NotSent { request, error }),
            }
        }
    }

    /// Where a request can go at once, which is so nearly always.
    pub fn room(self: &Rc<Self>) -> Option<Room> {
        match self.protocol.get()? {
            Protocol::Http2 => self.stream().map(Held::Stream),
            Protocol::Http1 => self.idle.take().map(Held::Line),
        }
        .map(Room)
    }

    /// As [`Endpoint::send_with`], to where there is room; its future is a quarter of the other's.
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
            // A new connection is the only question there, and a server with one thread answers it late.
            Held::Line(line) => self.send_http1(request, line, pending, timing).await,
            Held::Stream(stream) => self.send_http2(request, stream, repeatable, (pending, timing)).await,
        }
    }

    /// Opens a connection of its own, HTTP/1.1, that an upgrade may turn into a tunnel.
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
                // A backend that went away took the other connections along: the next try opens its own.
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

    /// HTTP/2 carries scheme and authority as pseudo-headers; the Host header goes.
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

    /// HTTP/1.1 carries a path, and a Host header.
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

    /// A stream of the connection with the most room; opens the next connection when room gets scarce.
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

    /// Why the endpoint is out, if it is.
    pub fn failure(&self) -> Option<DialError> {
        self.failure.borrow().clone()
    }

    /// Why the endpoint is out, in one word, if it is.
    pub fn failure_reason(&self) -> Option<&'static str> {
        self.failure.borrow().as_ref().map(|failure| failure.reason)
    }

    /// What its connections do.
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

/// A request that waits for its answer on an HTTP/2 connection. If it is dropped before (its time ran out, its
/// client left), the connection is asked whether it still lives.
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

    /// It waits no longer; since when it did.
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
