//! Serves one connection from the TLS handshake to its end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::Either;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

use super::connections::{
    CloseMode, ConnectionRegistration, ConnectionTracker, Connections, PendingHandshake, UpgradedConnection,
};
use super::handshake::{classify_handshake_error, is_plain_http, reject_plain_http};
use super::http1::serve_http1;
use super::http2::serve_http2;
use super::request_service::RequestService;
use super::tracked_stream::TrackedStream;
use super::{IncomingConnection, ServerLimits};
use crate::observe::metrics::HandshakeFailure;
use crate::tls::ServerTlsStream;

/// An accepted connection after its TLS handshake.
#[derive(Clone)]
pub struct AcceptedConnection {
    /// The client's address.
    pub remote: SocketAddr,
    /// The local address of the connection.
    pub local: Option<SocketAddr>,
    /// The client's certificate chain, leaf first; possession of the key is proved, trust is not verified.
    pub client_chain: Vec<CertificateDer<'static>>,
    /// The server name that the client named in the handshake (SNI), in lower case.
    pub server_name: Option<Box<str>>,
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

/// Selects the TLS configuration of a server name (SNI); None is that of a client that names none.
pub(super) type ServerNameSelector = Rc<dyn Fn(Option<&str>) -> Arc<rustls::ServerConfig>>;

/// The TLS configuration of a handshake.
pub enum TlsConfigSource {
    /// One for all.
    Fixed(Arc<rustls::ServerConfig>),
    /// Chosen by the server name that the client names (SNI), if it names one.
    ByServerName(ServerNameSelector),
}

impl TlsConfigSource {
    fn config(self, server_name: Option<&str>) -> Arc<rustls::ServerConfig> {
        match self {
            TlsConfigSource::Fixed(config) => config,
            TlsConfigSource::ByServerName(select) => select(server_name),
        }
    }
}

/// Serves `incoming` until the client closes it, it is closed by its handle, or a limit is exceeded. After the handshake
/// `make_service` creates the service of its requests; a handshake that fails or times out is passed to `report_failure`.
///
/// It is counted from the call on, not from the first poll, so that shutdown does not miss it.
pub fn serve<S: RequestService>(
    incoming: IncomingConnection,
    tls: TlsConfigSource,
    make_service: impl Service<AcceptedConnection, Response = S, Error = Infallible>,
    report_failure: impl FnOnce(SocketAddr, HandshakeFailure, &io::Error),
    limits: Rc<ServerLimits>,
    connections: Connections,
) -> impl Future<Output = ()> {
    let arriving = connections.begin_handshake();
    handshake_and_serve(incoming, tls, make_service, report_failure, limits, connections, arriving)
}

async fn handshake_and_serve<S: RequestService>(
    incoming: IncomingConnection,
    tls: TlsConfigSource,
    make_service: impl Service<AcceptedConnection, Response = S, Error = Infallible>,
    report_failure: impl FnOnce(SocketAddr, HandshakeFailure, &io::Error),
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
        let (stream, server_name) = ServerTlsStream::accept_by_name(socket, |name| tls.config(name)).await?;
        let (accepted, listed) = register(client, server_name, &stream, &connections);
        let Ok(service) = make_service.oneshot(accepted).await;
        Ok((stream, service, listed))
    });
    let (serving, service, listed) = match tokio::time::timeout(limits.handshake_timeout, handshake).await {
        Ok(Ok((stream, service, listed))) => (start_http(stream, &service, &limits, &listed), service, listed),
        Ok(Err(HandshakeError::PlainHttp(remote, socket))) => {
            let error = io::Error::new(io::ErrorKind::InvalidData, "client sent an HTTP request to an HTTPS server");
            report_failure(remote, HandshakeFailure::PlainHttp, &error);
            return Box::pin(reject_plain_http(socket)).await;
        }
        Ok(Err(HandshakeError::Failed(error))) => {
            return report_failure(remote, classify_handshake_error(&error), &error);
        }
        Err(_) => {
            return report_failure(remote, HandshakeFailure::Timeout, &io::ErrorKind::TimedOut.into());
        }
    };
    drop((arriving, report_failure));
    serving.await;
    // An upgraded connection keeps its place in the counts and its service, which watches the client's trust.
    listed.connection.tunnel_closed().await;
    drop(service);
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

/// Registers a connection whose TLS handshake is done.
fn register(
    remote: SocketAddr,
    server_name: Option<Box<str>>,
    stream: &ServerTlsStream<TcpStream>,
    connections: &Connections,
) -> (AcceptedConnection, ConnectionRegistration) {
    let http2 = stream.state().alpn_protocol() == Some(b"h2");
    let listed = connections.register(remote, http2);
    let accepted = AcceptedConnection {
        remote,
        local: stream.get_ref().local_addr().ok(),
        client_chain: stream.state().peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
        server_name,
        protocol: if http2 { HttpProtocol::Http2 } else { HttpProtocol::Http1 },
        handle: ConnectionHandle(listed.connection.clone()),
    };
    (accepted, listed)
}

/// Starts HTTP on a TLS stream. Not an async function, nor part of one: its future would hold the stream beside the
/// connection, a kilobyte for each idle watch.
fn start_http<S: RequestService>(
    stream: ServerTlsStream<TcpStream>,
    service: &S,
    limits: &ServerLimits,
    listed: &ConnectionRegistration,
) -> impl Future<Output = ()> + use<S> {
    let http2 = stream.state().alpn_protocol() == Some(b"h2");
    let stream = TrackedStream::new(stream, listed.connection.clone());
    if http2 {
        Either::Left(serve_http2(stream, service.clone(), limits, &listed.connection))
    } else {
        Either::Right(serve_http1(stream, service.clone(), limits, &listed.connection))
    }
}

/// Serves an HTTP/1.1 client without TLS on any stream, until the client closes it, it is closed by its handle, or a
/// limit is exceeded. It is counted and has its service from the call on.
pub fn serve_plain<T, S, M>(
    socket: T,
    remote: SocketAddr,
    make_service: M,
    limits: &ServerLimits,
    connections: &Connections,
) -> impl Future<Output = ()> + use<T, S, M>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: RequestService,
    M: FnOnce(ConnectionHandle) -> S,
{
    let listed = connections.register(remote, false);
    let service = make_service(ConnectionHandle(listed.connection.clone()));
    let stream = TrackedStream::new(socket, listed.connection.clone());
    let serving = serve_http1(stream, service, limits, &listed.connection);
    async move {
        serving.await;
        listed.connection.tunnel_closed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use http::Response;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tower::{ServiceBuilder, service_fn};

    use super::*;
    use crate::listen::ResponseFuture;
    use crate::message::Body;

    #[tokio::test]
    async fn tower_concurrency_limit_of_all_connections_holds_requests_back() {
        let running = Rc::new(Cell::new(0));
        let handler = service_fn(move |_| {
            let running = running.clone();
            async move {
                running.set(running.get() + 1);
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                let at_once = running.replace(running.get() - 1);
                Ok::<_, Infallible>(Response::new(Body::from(format!("{at_once} at once"))))
            }
        });
        let limited = ServiceBuilder::new().concurrency_limit(1).service(handler);
        let service = limited.map_future(|response| -> ResponseFuture { Box::pin(response) });
        let request = async || {
            let (mut client, server) = tokio::io::duplex(4096);
            let remote = SocketAddr::from(([127, 0, 0, 1], 1));
            let (limits, connections) = (ServerLimits::default(), Connections::default());
            let serving = serve_plain(server, remote, |_| service.clone(), &limits, &connections);
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut response = String::new();
            tokio::join!(serving, client.read_to_string(&mut response)).1.unwrap();
            response
        };
        let both = async { tokio::join!(request(), request()) };
        let (first, second) = tokio::task::LocalSet::new().run_until(both).await;
        for response in [first, second] {
            assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("\r\n1 at once"), "{response}");
        }
    }
}
