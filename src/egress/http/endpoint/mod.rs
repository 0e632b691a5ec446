//! One endpoint of a backend on one worker: its connections and its liveness.

mod connection_guard;
mod lifecycle;
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

pub use self::connection_guard::ConnectionGuard;
use self::connection_guard::{ActiveStream, PendingRequest};
pub use self::lifecycle::PoolReport;
use self::lifecycle::{DialPurpose, MAX_CONNECTIONS, OpenedConnection, SharedDial};
use crate::egress::dial_result::{DialError, DialPhase, DialTiming, HttpVersion};
use crate::egress::http::error_classification;
use crate::egress::http::http1::{Http1Connection, Http1ConnectionSet, Http1Error, IdleConnections};
use crate::egress::http::http2::{Http2Connection, Http2SendError};
use crate::egress::{Address, ConnectionCounter, Dialer, EndpointKey, TransportSecurity};
use crate::message::{Body, IncomingBody};

/// Limit of pooled connections that may turn out closed before one request is sent.
const MAX_CLOSED_CONNECTIONS: usize = 5;
/// How long a request must wait on a silent connection before its cancellation marks the connection as doubtful.
const MIN_WAIT_TO_DOUBT: Duration = Duration::from_secs(1);

/// An endpoint of a backend that requests can be sent to.
pub struct Endpoint {
    key: EndpointKey,
    /// Host header and `:authority` of requests: address and port, as kube-aggregator sends. `None` only for a name
    /// that no URI can carry.
    host: Option<(HeaderValue, Authority)>,
    dialer: Dialer,
    /// Limit of open connections.
    max_connections: usize,
    /// Connections to all endpoints of the APIService, and their limit.
    connection_limit: (ConnectionCounter, usize),
    /// HTTP version of the last connection; `None` before the first.
    http_version: Cell<Option<HttpVersion>>,
    idle: IdleConnections,
    http1_connections: Http1ConnectionSet,
    http2_connections: RefCell<Vec<Rc<Http2Connection>>>,
    current_dial: RefCell<Option<SharedDial>>,
    /// Earliest time for opening the next connection ahead of need; in the future after such a dial failed.
    next_preconnect: Cell<Instant>,
    /// Whether the endpoint became unresponsive since this was last taken.
    became_unresponsive: Cell<bool>,
    /// Whether a liveness check is running.
    liveness_check_running: Cell<bool>,
    /// Why the endpoint is unreachable; a background dial that succeeds brings it back.
    failure: RefCell<Option<DialError>>,
    /// Requests in flight that are expected to end soon.
    pub(in crate::egress) short_lived: Cell<usize>,
    pub(in crate::egress) long_running: Cell<usize>,
}

/// A connection of an [`Endpoint`] that can take a request immediately.
pub struct ReadySlot(ReadyConnection);

enum ReadyConnection {
    Http1(Http1Connection),
    Http2(ActiveStream),
}

/// A response head, and the guard of the connection its body is read from.
pub struct EndpointResponse {
    /// The response; its body is still to be read.
    pub response: Response<IncomingBody>,
    /// Keep this until the body has ended.
    pub guard: ConnectionGuard,
    /// Timing of the dial, if this request waited for one.
    pub timing: DialTiming,
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
    StaleConnection(BoxError),
    /// The request was sent, at least in part, and the response is not valid HTTP.
    InvalidResponse(BoxError),
    /// The request was sent, at least in part; whether it was processed is unknown. [`NoResponse`] if the endpoint is
    /// unresponsive.
    Broken(BoxError),
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
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Endpoint {
    pub(in crate::egress) fn new(
        key: EndpointKey,
        dialer: Dialer,
        max_connections: usize,
        connection_limit: (ConnectionCounter, usize),
    ) -> Rc<Endpoint> {
        let host = match &key.address {
            Address::Tcp(destination) => destination.to_string(),
            // As Go's HTTP clients over a Unix socket.
            Address::Unix(_) => "localhost".to_owned(),
        };
        let host = HeaderValue::from_str(&host).ok().zip(Authority::try_from(host).ok());
        Rc::new(Endpoint {
            key,
            host,
            dialer,
            max_connections,
            connection_limit,
            http_version: Cell::new(None),
            idle: IdleConnections::default(),
            http1_connections: Http1ConnectionSet::default(),
            http2_connections: RefCell::default(),
            current_dial: RefCell::default(),
            next_preconnect: Cell::new(Instant::now()),
            became_unresponsive: Cell::new(false),
            liveness_check_running: Cell::new(false),
            failure: RefCell::default(),
            short_lived: Cell::new(0),
            long_running: Cell::new(0),
        })
    }

    /// Address and trust settings.
    pub fn key(&self) -> &EndpointKey {
        &self.key
    }

    /// Requests in flight.
    pub fn pending(&self) -> usize {
        self.short_lived.get() + self.long_running.get()
    }

    /// Requests in flight that are expected to end soon; watches count only until their response begins.
    pub fn short_lived(&self) -> usize {
        self.short_lived.get()
    }

    /// Whether the endpoint is not ejected.
    pub fn is_usable(&self) -> bool {
        self.failure.borrow().is_none()
    }

    /// Whether there is an open connection that can take a request, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.idle.len() > 0 || self.http2_connections.borrow().iter().any(|connection| connection.is_usable())
    }

    /// HTTP version of the last connection.
    pub fn http_version(&self) -> Option<HttpVersion> {
        self.http_version.get()
    }

    /// Sends `request` (with its URI in origin form) and waits for the response head. A pooled connection that turns out
    /// to be closed before the request is sent is no failure of the endpoint, and is replaced.
    ///
    /// The request is boxed: it passes through many futures, each of which would hold a copy.
    ///
    /// # Errors
    /// [`SendError`] says whether the request can be sent again.
    pub async fn send(self: &Rc<Self>, mut request: Box<Request<Body>>) -> Result<EndpointResponse, SendError> {
        let mut closed_connections = 0;
        loop {
            match self.send_on_any_connection(request, false).await {
                // A failed dial ejects the endpoint.
                Err(SendError::NotSent { request: unsent, error })
                    if error.reason == "ConnectionClosed"
                        && self.is_usable()
                        && closed_connections < MAX_CLOSED_CONNECTIONS =>
                {
                    closed_connections += 1;
                    request = unsent;
                }
                sent => return sent,
            }
        }
    }

    /// As [`Endpoint::send`], on one connection; `is_repeatable` says that the request can be sent again, and had better be
    /// than wait for an unresponsive endpoint.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub async fn send_on_any_connection(
        self: &Rc<Self>,
        request: Box<Request<Body>>,
        is_repeatable: bool,
    ) -> Result<EndpointResponse, SendError> {
        let pending = PendingRequest::new(self);
        let mut timing = DialTiming::default();
        loop {
            if let Some(slot) = self.ready_slot() {
                return self.send_on_connection(slot, request, is_repeatable, (pending, timing)).await;
            }
            let opened = match self.http_version.get() {
                // Each request opens its own: an HTTP/1.1 connection carries one request at a time.
                Some(HttpVersion::Http1) => match Box::pin(self.open(DialPurpose::Immediate)).await {
                    Ok(OpenedConnection::Http1(connection, timing)) => {
                        return self.send_http1(request, connection, pending, timing).await;
                    }
                    Ok(OpenedConnection::Http2(dial_timing)) => Ok(dial_timing),
                    Err(error) => Err(error),
                },
                // Many requests may wait for one dial; all get its result.
                Some(HttpVersion::Http2) | None => self.shared_dial().await,
            };
            match opened {
                Ok(dial_timing) => timing = dial_timing,
                Err(error) => return Err(SendError::NotSent { request, error }),
            }
        }
    }

    /// A connection that can take a request immediately, which is the common case.
    pub fn ready_slot(self: &Rc<Self>) -> Option<ReadySlot> {
        match self.http_version.get()? {
            HttpVersion::Http2 => self.reserve_stream().map(ReadyConnection::Http2),
            HttpVersion::Http1 => self.idle.take().map(ReadyConnection::Http1),
        }
        .map(ReadySlot)
    }

    /// As [`Endpoint::send`], on a connection that is ready; its future is a quarter of the size.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub async fn send_on_ready_connection(
        self: &Rc<Self>,
        slot: ReadySlot,
        request: Box<Request<Body>>,
        is_repeatable: bool,
    ) -> Result<EndpointResponse, SendError> {
        self.send_on_connection(slot, request, is_repeatable, (PendingRequest::new(self), DialTiming::default())).await
    }

    async fn send_on_connection(
        self: &Rc<Self>,
        slot: ReadySlot,
        request: Box<Request<Body>>,
        is_repeatable: bool,
        (pending, timing): (PendingRequest, DialTiming),
    ) -> Result<EndpointResponse, SendError> {
        match slot.0 {
            // HTTP/1.1 liveness is probed by a new connection only, which a single-threaded server accepts late.
            ReadyConnection::Http1(connection) => self.send_http1(request, connection, pending, timing).await,
            ReadyConnection::Http2(stream) => self.send_http2(request, stream, is_repeatable, (pending, timing)).await,
        }
    }

    /// Opens an HTTP/1.1 connection for one request, which an upgrade may turn into a tunnel.
    ///
    /// # Errors
    /// When no connection could be opened.
    pub async fn open_dedicated(self: &Rc<Self>) -> Result<(Http1Connection, DialTiming), DialError> {
        let slot = self.acquire_connection_slot()?;
        let opened = async {
            let mut dialed = self.dialer.dial(&self.key, true).await?;
            dialed.attach_slot(slot);
            let timing = dialed.timing;
            Ok((Http1Connection::new(dialed.stream, &self.http1_connections), timing))
        };
        opened.await.inspect_err(|error| self.eject(error))
    }

    async fn send_http1(
        self: &Rc<Self>,
        mut request: Box<Request<Body>>,
        mut connection: Http1Connection,
        pending: PendingRequest,
        timing: DialTiming,
    ) -> Result<EndpointResponse, SendError> {
        self.set_origin_form(&mut request);
        let wait = self.http1_connections.begin_wait();
        let before = connection.read_count();
        let result = connection.send(*request).await;
        drop(wait);
        match result {
            Ok(response) => {
                Ok(EndpointResponse { response, guard: ConnectionGuard::http1(self, connection, pending), timing })
            }
            Err(Http1Error::EndpointUnresponsive) => Err(self.no_response(self.http1_connections.unresponsive_for())),
            Err(fault) => {
                // If the backend is gone, its other connections are, too: the next try opens its own.
                self.idle.clear();
                Err(match classify_send_error(fault) {
                    SendError::Broken(error)
                        if before > 0
                            && connection.read_count() == before
                            && error_classification::is_connection_closed(&*error) =>
                    {
                        SendError::StaleConnection(error)
                    }
                    lost => lost,
                })
            }
        }
    }

    async fn send_http2(
        self: &Rc<Self>,
        mut request: Box<Request<Body>>,
        stream: ActiveStream,
        is_repeatable: bool,
        (pending, timing): (PendingRequest, DialTiming),
    ) -> Result<EndpointResponse, SendError> {
        self.set_absolute_form(&mut request);
        let mut exchange = match stream.0.send(request) {
            Ok(exchange) => exchange,
            Err(Http2SendError::Closed(request, error)) => {
                stream.0.retire();
                return Err(not_sent(request, &error));
            }
            Err(Http2SendError::InvalidRequest(error)) => return Err(SendError::Broken(error.into())),
        };
        let waiting = ResponseWaiter::new(&stream.0);
        let result = {
            let mut answer = pin!(exchange.response());
            poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Pending if is_repeatable && stream.0.is_unresponsive() => Poll::Ready(None),
                polled => polled.map(Some),
            })
            .await
        };
        let since = waiting.finish();
        match result {
            None => Err(self.no_response(since.elapsed())),
            Some(Err(_)) if stream.0.is_unresponsive() => Err(self.no_response(since.elapsed())),
            Some(Ok(response)) => Ok(EndpointResponse {
                response,
                guard: ConnectionGuard::http2(stream, exchange.upload, pending),
                timing,
            }),
            Some(Err(error)) => {
                if error_classification::is_goaway(&error) {
                    stream.0.retire();
                }
                Err(classify_send_error(error))
            }
        }
    }

    fn no_response(&self, waited: Duration) -> SendError {
        SendError::Broken(Box::new(NoResponse { address: self.key.address.clone(), waited }))
    }

    /// Sets scheme and authority, which HTTP/2 sends as pseudo-headers, and removes the Host header.
    fn set_absolute_form(&self, request: &mut Request<Body>) {
        let host_header = request.headers_mut().remove(HOST).filter(|_| self.key.preserve_host);
        let host_authority = host_header.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(match self.key.security {
            TransportSecurity::Tls(_) => Scheme::HTTPS,
            TransportSecurity::Plaintext(_) => Scheme::HTTP,
        });
        parts.authority = host_authority.or_else(|| self.host.as_ref().map(|(_, authority)| authority.clone()));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
    }

    /// Sets path and Host header, as HTTP/1.1 sends them.
    pub fn set_origin_form(&self, request: &mut Request<Body>) {
        let keeps = self.key.preserve_host && request.headers().contains_key(HOST);
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
    fn reserve_stream(self: &Rc<Self>) -> Option<ActiveStream> {
        let (stream, scarce, open) = {
            let multiplexed = self.http2_connections.borrow();
            let best = multiplexed.iter().max_by_key(|connection| connection.free_streams())?;
            if best.free_streams() == 0 {
                return None;
            }
            (ActiveStream::new(best), best.is_nearly_full(), multiplexed.len())
        };
        if scarce
            && open < MAX_CONNECTIONS
            && self.current_dial.borrow().is_none()
            && self.next_preconnect.get() <= Instant::now()
        {
            drop(self.dial_in_background(DialPurpose::Preconnect));
        }
        Some(stream)
    }

    pub(in crate::egress) fn return_idle(&self, connection: Http1Connection) {
        self.idle.put(connection);
    }

    /// Why the endpoint is ejected, if it is.
    pub fn failure(&self) -> Option<DialError> {
        self.failure.borrow().clone()
    }

    /// Reason why the endpoint is ejected, if it is.
    pub fn failure_reason(&self) -> Option<&'static str> {
        self.failure.borrow().as_ref().map(|failure| failure.reason)
    }
}

/// A request that awaits its response head on an HTTP/2 connection. If dropped earlier (timeout, client gone), it marks
/// a silent connection as doubtful.
struct ResponseWaiter<'c> {
    connection: &'c Rc<Http2Connection>,
    read_count: u64,
    since: Instant,
}

impl<'c> ResponseWaiter<'c> {
    fn new(connection: &'c Rc<Http2Connection>) -> ResponseWaiter<'c> {
        connection.begin_wait();
        ResponseWaiter { connection, read_count: connection.read_count(), since: Instant::now() }
    }

    /// Ends the wait; returns when it began.
    fn finish(self) -> Instant {
        let since = self.since;
        self.connection.end_wait();
        std::mem::forget(self);
        since
    }
}

impl Drop for ResponseWaiter<'_> {
    fn drop(&mut self) {
        self.connection.end_wait();
        if self.since.elapsed() >= MIN_WAIT_TO_DOUBT {
            self.connection.mark_doubtful(self.read_count);
        }
    }
}

fn not_sent(request: Box<Request<Body>>, error: &dyn std::error::Error) -> SendError {
    let cause = format!("the connection closed before the request was sent: {error}");
    let error = DialError { phase: DialPhase::Http, reason: "ConnectionClosed", cause };
    SendError::NotSent { request, error }
}

fn classify_send_error(error: impl std::error::Error + Send + Sync + 'static) -> SendError {
    match error_classification::unprocessed_error(&error) {
        Some(refused) => SendError::Refused(refused),
        None if error_classification::is_invalid_http(&error) => SendError::InvalidResponse(error.into()),
        None => SendError::Broken(error.into()),
    }
}
