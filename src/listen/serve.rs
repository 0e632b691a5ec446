//! Serves one connection from the TLS handshake to its end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::Either;
use http::{Request, Response};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::connections::{
    CloseMode, ConnectionRegistration, ConnectionTracker, Connections, PendingHandshake, UpgradedConnection,
};
use super::handshake::{classify_handshake_error, is_plain_http, reject_plain_http};
use super::http1::serve_http1;
use super::http2::serve_http2;
use super::tracked_stream::TrackedStream;
use super::{IncomingConnection, ServerLimits};
use crate::message::{Body, IncomingBody};
use crate::observe::metrics::HandshakeFailure;
use crate::process::Deadline;

/// An accepted connection after its TLS handshake.
pub struct AcceptedConnection {
    /// The client's address.
    pub remote: SocketAddr,
    /// The local address of the connection.
    pub local: Option<SocketAddr>,
    /// The client's certificate chain, leaf first; possession of the key is proved, trust is not verified.
    pub client_chain: Vec<CertificateDer<'static>>,
    /// The protocol chosen by ALPN.
    pub protocol: HttpProtocol,
    /// Handle to close the connection.
    pub handle: ConnectionHandle,
}

/// A handle to close one connection.
#[derive(Clone)]
pub struct ConnectionHandle(Arc<ConnectionTracker>);

impl ConnectionHandle {
    /// Sends GOAWAY or `Connection: close`; running requests are finished.
    pub fn close_gracefully(&self) {
        self.0.request_close(CloseMode::Graceful);
    }

    /// Closes at once, with all running requests.
    pub fn close_now(&self) {
        self.0.request_close(CloseMode::Immediate);
    }

    /// Sets the deadline by which the client must have read the response of the current request.
    /// Without it, a response of unknown length, such as a watch, has no deadline.
    pub fn set_response_deadline(&self, at: Instant) {
        self.0.set_response_deadline(at);
    }

    /// Marks the connection as upgraded, and returns its guard.
    pub fn upgrade(&self) -> UpgradedConnection {
        UpgradedConnection::new(&self.0)
    }
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpProtocol {
    /// HTTP/1.1 (or 1.0).
    Http1,
    /// HTTP/2.
    Http2,
}

/// Handles the requests of one connection.
pub trait Handler {
    /// Handles one request.
    fn handle(self: Rc<Self>, request: Request<IncomingBody>) -> HandlerFuture;
}

/// The future of a response, boxed to save memory for open watches.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Response<Body>>>>;

/// Creates the handlers of connections; one per worker.
pub trait HandlerFactory {
    /// The handler of one connection's requests.
    type Connection: Handler + 'static;

    /// Creates the handler of a connection after its handshake.
    fn new_handler(&self, accepted: AcceptedConnection) -> Rc<Self::Connection>;

    /// Called when a handshake failed or timed out.
    fn handshake_failed(&self, remote: SocketAddr, failure: HandshakeFailure, error: &io::Error);
}

/// Serves `incoming` until the client closes it, it is closed by its handle, or a limit is exceeded.
///
/// It is counted from the call on, not from the first poll, so that shutdown does not miss it.
pub fn serve<S: HandlerFactory>(
    incoming: IncomingConnection,
    tls: Arc<rustls::ServerConfig>,
    service: Rc<S>,
    limits: Rc<ServerLimits>,
    connections: Connections,
) -> impl Future<Output = ()> {
    let arriving = connections.begin_handshake();
    handshake_and_serve(incoming, tls, service, limits, connections, arriving)
}

async fn handshake_and_serve<S: HandlerFactory>(
    incoming: IncomingConnection,
    tls: Arc<rustls::ServerConfig>,
    service: Rc<S>,
    limits: Rc<ServerLimits>,
    connections: Connections,
    arriving: PendingHandshake,
) {
    let IncomingConnection { socket, remote, permit: _place } = incoming;
    // The handshake's state is large and short-lived: boxed, it does not add to the memory of an idle watch.
    let handshake = Box::pin(async {
        let mut socket = TcpStream::from_std(socket)?;
        let client = match &limits.proxy_protocol {
            Some(proxy_protocol) => proxy_protocol.client_address(&mut socket, remote).await?,
            None => remote,
        };
        if is_plain_http(&mut socket).await? {
            return Err(HandshakeError::PlainHttp(client, socket));
        }
        Ok((client, TlsAcceptor::from(tls).accept(socket).await?))
    });
    let (serving, handler, listed) = match tokio::time::timeout(limits.handshake_timeout, handshake).await {
        Ok(Ok((remote, stream))) => start_http(remote, stream, &*service, &limits, &connections),
        Ok(Err(HandshakeError::PlainHttp(remote, socket))) => {
            let error = io::Error::new(io::ErrorKind::InvalidData, "client sent an HTTP request to an HTTPS server");
            service.handshake_failed(remote, HandshakeFailure::PlainHttp, &error);
            return Box::pin(reject_plain_http(socket)).await;
        }
        Ok(Err(HandshakeError::Failed(error))) => {
            return service.handshake_failed(remote, classify_handshake_error(&error), &error);
        }
        Err(_) => {
            return service.handshake_failed(remote, HandshakeFailure::Timeout, &io::ErrorKind::TimedOut.into());
        }
    };
    drop((arriving, service));
    serving.await;
    // An upgraded connection keeps its place in the counts and its handler, which watches the client's trust.
    listed.connection.tunnel_closed().await;
    drop(handler);
}

/// Why the TLS handshake with a client failed.
enum HandshakeError {
    Failed(io::Error),
    /// The client sent an HTTP request without TLS.
    PlainHttp(SocketAddr, TcpStream),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> HandshakeError {
        HandshakeError::Failed(error)
    }
}

/// Starts HTTP on a TLS stream. Not an async function, nor part of one: its future would hold the stream beside the
/// connection, a kilobyte for each idle watch.
fn start_http<S: HandlerFactory>(
    remote: SocketAddr,
    stream: tokio_rustls::server::TlsStream<TcpStream>,
    service: &S,
    limits: &ServerLimits,
    connections: &Connections,
) -> (impl Future<Output = ()> + use<S>, Rc<S::Connection>, ConnectionRegistration) {
    let (socket, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let listed = connections.register(remote, http2);
    let accepted = AcceptedConnection {
        remote,
        local: socket.local_addr().ok(),
        client_chain: session.peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
        protocol: if http2 { HttpProtocol::Http2 } else { HttpProtocol::Http1 },
        handle: ConnectionHandle(listed.connection.clone()),
    };
    let handler = service.new_handler(accepted);
    let stream = TrackedStream::new(stream, listed.connection.clone());
    let serving = if http2 {
        Either::Left(serve_http2(stream, handler.clone(), limits, &listed.connection))
    } else {
        Either::Right(serve_http1(stream, handler.clone(), limits, &listed.connection))
    };
    (serving, handler, listed)
}

/// Serves an HTTP/1.1 client without TLS on any stream, until the client closes it, it is closed by its handle, or a
/// limit is exceeded. It is counted and has its handler from the call on.
pub fn serve_plain<T, H, M>(
    socket: T,
    remote: SocketAddr,
    meet: M,
    limits: &ServerLimits,
    connections: &Connections,
) -> impl Future<Output = ()> + use<T, H, M>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler + 'static,
    M: FnOnce(ConnectionHandle) -> H,
{
    let listed = connections.register(remote, false);
    let handler = Rc::new(meet(ConnectionHandle(listed.connection.clone())));
    let stream = TrackedStream::new(socket, listed.connection.clone());
    let serving = serve_http1(stream, handler, limits, &listed.connection);
    async move {
        serving.await;
        listed.connection.tunnel_closed().await;
    }
}

/// A client's TLS connection, tracked.
pub(super) type ClientStream = TrackedStream<tokio_rustls::server::TlsStream<TcpStream>>;

/// Added to a response's deadline: the body's own timeout ends it more cleanly, if the body is polled.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);

pub(super) fn deadline_with_grace(at: Instant) -> Deadline {
    Deadline::at(at + DEADLINE_GRACE)
}
