//! Test server that responds with the request it received.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONNECTION, HOST, TE, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::egress::{Address, Host, HttpVersion};
use crate::message::BodyError;

/// An accepted connection.
trait TestStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> TestStream for T {}

enum TestListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A server that runs until dropped, with all its connections.
pub(super) struct EchoServer {
    pub(super) address: Address,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EchoServer {
    pub(super) async fn tcp(speaks: HttpVersion) -> EchoServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        EchoServer::start(TestListener::Tcp(listener), Address::tcp(Host::Ip(at.ip()), at.port()), speaks, None)
    }

    pub(super) fn unix(path: &Path, speaks: HttpVersion, tls: Option<TlsAcceptor>) -> EchoServer {
        EchoServer::start(
            TestListener::Unix(UnixListener::bind(path).unwrap()),
            Address::Unix(path.to_owned()),
            speaks,
            tls,
        )
    }

    fn start(door: TestListener, address: Address, speaks: HttpVersion, tls: Option<TlsAcceptor>) -> EchoServer {
        let connections = Arc::new(AtomicUsize::new(0));
        let opened = connections.clone();
        let task = tokio::spawn(async move {
            let mut all = JoinSet::new();
            loop {
                let mut stream: Box<dyn TestStream> = match &door {
                    TestListener::Tcp(listener) => Box::new(listener.accept().await.unwrap().0),
                    TestListener::Unix(listener) => Box::new(listener.accept().await.unwrap().0),
                };
                opened.fetch_add(1, SeqCst);
                if let Some(tls) = &tls {
                    stream = Box::new(tls.accept(stream).await.unwrap());
                }
                all.spawn(serve(stream, speaks));
            }
        });
        EchoServer { address, connections, task }
    }

    /// Number of accepted connections.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}

async fn serve(stream: Box<dyn TestStream>, speaks: HttpVersion) {
    let (stream, service) = (TokioIo::new(stream), service_fn(echo_request));
    // How a connection ends is up to the client.
    let _ = match speaks {
        HttpVersion::Http1 => http1::Builder::new().serve_connection(stream, service).with_upgrades().await,
        HttpVersion::Http2 => http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
    };
}

/// Responds with the request and, as gRPC does, with its trailers; an upgrade request gets an echo.
async fn echo_request(
    mut request: Request<Incoming>,
) -> Result<Response<StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, BodyError>>>>>, Infallible> {
    let body = |frames: Vec<Frame<Bytes>>| {
        StreamBody::new(stream::iter(frames.into_iter().map(Ok).collect::<Vec<Result<_, BodyError>>>()))
    };
    if request.headers().contains_key(UPGRADE) {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
            tokio::io::copy(&mut from, &mut to).await.unwrap();
            to.shutdown().await.unwrap();
        });
        let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let response = response.header(CONNECTION, "Upgrade").header(UPGRADE, "echo");
        return Ok(response.body(body(Vec::new())).unwrap());
    }
    let (parts, from) = request.into_parts();
    let header = |name| parts.headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
    let said =
        [format!("{:?}", parts.version), parts.method.to_string(), parts.uri.to_string(), header(HOST), header(TE)];
    let from = from.collect().await.unwrap();
    let trailers = from.trailers().cloned();
    let text = format!("{} {:?}", said.join(" "), from.to_bytes());
    let frames = [Some(Frame::data(text.into())), trailers.map(Frame::trailers)];
    Ok(Response::new(body(frames.into_iter().flatten().collect())))
}
