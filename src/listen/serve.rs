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

use super::handshake::{begins_with_http, failure_of, refuse_http};
use super::http1::serve_http1;
use super::http2::serve_http2;
use super::lifetime::{Arriving, Connections, End, Lifetime, Listed, Tunnel};
use super::observed::Observed;
use super::{Incoming, Limits};
use crate::message::{Body, Received};
use crate::observe::metrics::HandshakeFailure;
use crate::process::Deadline;

/// An accepted connection after its TLS handshake.
pub struct Accepted {
    /// The client's address.
    pub remote: SocketAddr,
    /// The local address of the connection.
    pub local: Option<SocketAddr>,
    /// The client's certificate chain, leaf first; possession of the key is proved, trust is not verified.
    pub chain: Vec<CertificateDer<'static>>,
    /// The protocol chosen by ALPN.
    pub protocol: Protocol,
    /// Handle to close the connection.
    pub closer: Closer,
}

/// A handle to close one connection.
#[derive(Clone)]
pub struct Closer(Arc<Lifetime>);

impl Closer {
    /// Sends GOAWAY or `Connection: close`; running requests are finished.
    pub fn finish(&self) {
        self.0.tell(End::Gracefully);
    }

    /// Closes at once, with all running requests.
    pub fn cut(&self) {
        self.0.tell(End::Now);
    }

    /// Sets the deadline by which the client must have read the response of the current request.
    /// Without it, a response of unknown length, such as a watch, has no deadline.
    pub fn answer_by(&self, at: Instant) {
        self.0.answer_by(at);
    }

    /// Marks the connection as upgraded, and returns its guard.
    pub fn tunnel(&self) -> Tunnel {
        Tunnel::of(&self.0)
    }
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 (or 1.0).
    Http1,
    /// HTTP/2.
    Http2,
}

/// Handles the requests of one connection.
pub trait Handler {
    /// Handles one request.
    fn handle(self: Rc<Self>, request: Request<Received>) -> Answering;
}

/// The future of a response, boxed to save memory for open watches.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>>>>;

/// Creates the handlers of connections; one per worker.
pub trait Service {
    /// The handler of one connection's requests.
    type Connection: Handler + 'static;

    /// Creates the handler of a connection after its handshake.
    fn connection(&self, accepted: Accepted) -> Rc<Self::Connection>;

    /// Called when a handshake failed or timed out.
    fn handshake_failed(&self, remote: SocketAddr, failure: HandshakeFailure, error: &io::Error);
}

/// Serves `incoming` until the client closes it, it is closed by its handle, or a limit is exceeded.
///
/// It is counted from the call on, not from the first poll, so that shutdown does not miss it.
pub fn serve<S: Service>(
    incoming: Incoming,
    tls: Arc<rustls::ServerConfig>,
    service: Rc<S>,
    limits: Rc<Limits>,
    connections: Connections,
) -> impl Future<Output = ()> {
    let arriving = connections.arrive();
    meet(incoming, tls, service, limits, connections, arriving)
}

async fn meet<S: Service>(
    incoming: Incoming,
    tls: Arc<rustls::ServerConfig>,
    service: Rc<S>,
    limits: Rc<Limits>,
    connections: Connections,
    arriving: Arriving,
) {
    let Incoming { socket, remote, place: _place } = incoming;
    // The handshake's state is large and short-lived: boxed, it does not add to the memory of an idle watch.
    let handshake = Box::pin(async {
        let mut socket = TcpStream::from_std(socket)?;
        let client = match &limits.proxy_protocol {
            Some(proxy_protocol) => proxy_protocol.client(&mut socket, remote).await?,
            None => remote,
        };
        if begins_with_http(&mut socket).await? {
            return Err(Unmet::PlainHttp(client, socket));
        }
        Ok((client, TlsAcceptor::from(tls).accept(socket).await?))
    });
    let (serving, handler, listed) = match tokio::time::timeout(limits.handshake_timeout, handshake).await {
        Ok(Ok((remote, stream))) => begin(remote, stream, &*service, &limits, &connections),
        Ok(Err(Unmet::PlainHttp(remote, socket))) => {
            let error = io::Error::new(io::ErrorKind::InvalidData, "client sent an HTTP request to an HTTPS server");
            service.handshake_failed(remote, HandshakeFailure::PlainHttp, &error);
            return Box::pin(refuse_http(socket)).await;
        }
        Ok(Err(Unmet::Failed(error))) => return service.handshake_failed(remote, failure_of(&error), &error),
        Err(_) => {
            return service.handshake_failed(remote, HandshakeFailure::Timeout, &io::ErrorKind::TimedOut.into());
        }
    };
    drop((arriving, service));
    serving.await;
    // An upgraded connection keeps its place in the counts and its handler, which watches the client's trust.
    listed.lifetime.tunnel_over().await;
    drop(handler);
}

/// Why the TLS handshake with a client failed.
enum Unmet {
    Failed(io::Error),
    /// The client sent an HTTP request without TLS.
    PlainHttp(SocketAddr, TcpStream),
}

impl From<io::Error> for Unmet {
    fn from(error: io::Error) -> Unmet {
        Unmet::Failed(error)
    }
}

/// Starts HTTP on a TLS stream. Not an async function, nor part of one: its future would hold the stream beside the
/// connection, a kilobyte for each idle watch.
fn begin<S: Service>(
    remote: SocketAddr,
    stream: tokio_rustls::server::TlsStream<TcpStream>,
    service: &S,
    limits: &Limits,
    connections: &Connections,
) -> (impl Future<Output = ()> + use<S>, Rc<S::Connection>, Listed) {
    let (socket, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let listed = connections.open(remote, http2);
    let accepted = Accepted {
        remote,
        local: socket.local_addr().ok(),
        chain: session.peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
        protocol: if http2 { Protocol::Http2 } else { Protocol::Http1 },
        closer: Closer(listed.lifetime.clone()),
    };
    let handler = service.connection(accepted);
    let stream = Observed::new(stream, listed.lifetime.clone());
    let serving = if http2 {
        Either::Left(serve_http2(stream, handler.clone(), limits, &listed.lifetime))
    } else {
        Either::Right(serve_http1(stream, handler.clone(), limits, &listed.lifetime))
    };
    (serving, handler, listed)
}

/// Serves an HTTP/1.1 client without TLS on any stream, until the client closes it, it is closed by its handle, or a
/// limit is exceeded. It is counted and has its handler from the call on.
pub fn serve_plain<T, H, M>(
    socket: T,
    remote: SocketAddr,
    meet: M,
    limits: &Limits,
    connections: &Connections,
) -> impl Future<Output = ()> + use<T, H, M>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler + 'static,
    M: FnOnce(Closer) -> H,
{
    let listed = connections.open(remote, false);
    let handler = Rc::new(meet(Closer(listed.lifetime.clone())));
    let stream = Observed::new(socket, listed.lifetime.clone());
    let serving = serve_http1(stream, handler, limits, &listed.lifetime);
    async move {
        serving.await;
        listed.lifetime.tunnel_over().await;
    }
}

/// A client's TLS connection, tracked.
pub(super) type Stream = Observed<tokio_rustls::server::TlsStream<TcpStream>>;

/// Added to a response's deadline: the body's own timeout ends it more cleanly, if the body is polled.
const GRACE: Duration = Duration::from_secs(1);

pub(super) fn until(at: Instant) -> Deadline {
    Deadline::at(at + GRACE)
}
