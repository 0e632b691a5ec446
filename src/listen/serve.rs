//! One connection, from its first byte to its last.

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

/// What TLS and the socket say of a client.
pub struct Accepted {
    /// The client's address.
    pub remote: SocketAddr,
    /// Our end of the connection.
    pub local: Option<SocketAddr>,
    /// The client's certificate chain, leaf first; possession of the key is proved, nothing else is judged.
    pub chain: Vec<CertificateDer<'static>>,
    /// What ALPN chose.
    pub protocol: Protocol,
    /// Ends the connection early.
    pub closer: Closer,
}

/// Ends one connection before its client does.
#[derive(Clone)]
pub struct Closer(Arc<Lifetime>);

impl Closer {
    /// GOAWAY or `Connection: close`; what runs is finished.
    pub fn finish(&self) {
        self.0.tell(End::Gracefully);
    }

    /// At once, with all that runs on it.
    pub fn cut(&self) {
        self.0.tell(End::Now);
    }

    /// The answer that is about to be given must be taken by `at`: whoever does not read it is not waited for.
    /// Without this word an answer of unknown length, such as a watch, has all the time there is.
    pub fn answer_by(&self, at: Instant) {
        self.0.answer_by(at);
    }

    /// What the connection is about to become behind an upgrade.
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

/// Answers requests of one connection.
pub trait Handler {
    /// Answers one request.
    fn handle(self: Rc<Self>, request: Request<Received>) -> Answering;
}

/// An answer on its way. It is boxed so that little is kept for an open watch.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>>>>;

/// Meets connections; one a worker.
pub trait Service {
    /// What answers the requests of one connection.
    type Connection: Handler + 'static;

    /// A connection whose handshake is done.
    fn connection(&self, accepted: Accepted) -> Rc<Self::Connection>;

    /// A handshake failed or took too long.
    fn handshake_failed(&self, remote: SocketAddr, failure: HandshakeFailure, error: &io::Error);
}

/// Serves `incoming` until it ends, by the client's will, by ours or by `limits`.
///
/// It counts as arriving from the call on, not from the first poll, so that none is overlooked at the end.
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
    // The handshake's state is large and soon gone: boxed, it is not part of what an idle watch costs.
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
    // What became of it behind an upgrade is still this client's connection, with its place and its trust.
    listed.lifetime.tunnel_over().await;
    drop(handler);
}

/// Why there is no TLS session with a client.
enum Unmet {
    Failed(io::Error),
    /// It sent an HTTP request without TLS.
    PlainHttp(SocketAddr, TcpStream),
}

impl From<io::Error> for Unmet {
    fn from(error: io::Error) -> Unmet {
        Unmet::Failed(error)
    }
}

/// From TLS to HTTP. Not an async function, nor a part of one: that would keep room for the stream beside what is made
/// of it, a kilobyte for each idle watch.
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

/// Serves a client that speaks HTTP/1.1 without TLS, on whatever its connection is, until it ends, by the client's will,
/// by ours or by `limits`. It has handler and place from the call on.
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

/// A client's connection as HTTP sees it.
pub(super) type Stream = Observed<tokio_rustls::server::TlsStream<TcpStream>>;

/// Beyond the time an answer has: its own body ends it in better order, if anybody asks it.
const GRACE: Duration = Duration::from_secs(1);

pub(super) fn until(at: Instant) -> Deadline {
    Deadline::at(at + GRACE)
}
