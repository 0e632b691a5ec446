//! One HTTP/2 connection to a member of etcd, for gRPC.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::client::Grpc;

use crate::LOG_TARGET;

/// Interval and time limit of pings, as kube-apiserver's (`storage/storagebackend/factory/etcd3.go`).
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for connecting, with TLS.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a connection may receive before it is read, in bytes: a list must not wait for many round trips.
const WINDOW: u32 = 4 << 20;

/// Bytes to and from a member.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ByteStream for S {}

/// A future of one thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Opens connections to members of etcd, on the thread of the store.
pub trait Dial {
    /// Connects to the host and port of `endpoint`: by TCP, and TLS with the protocol `h2` if the URL is `https`.
    fn dial(&self, endpoint: &Uri) -> LocalFuture<io::Result<Box<dyn ByteStream>>>;
}

/// Runs the tasks of HTTP/2 on the thread of the store.
#[derive(Clone)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move { drop(task.await) });
    }
}

/// A connection, shared by all calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: http2::SendRequest<Body>,
    endpoint: Uri,
    /// Different for each connection of a client.
    pub(crate) number: u64,
}

impl Connection {
    /// Connects to a member.
    pub(crate) async fn open(dial: &dyn Dial, endpoint: &Uri, number: u64) -> io::Result<Connection> {
        let connect = async {
            let stream = dial.dial(endpoint).await?;
            let mut builder = http2::Builder::new(LocalExecutor);
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(4 * WINDOW)
                .keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true);
            builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)
        };
        let timeout = || io::Error::new(io::ErrorKind::TimedOut, "no connection within 5 s");
        let (sender, connection) = tokio::time::timeout(DIAL_TIMEOUT, connect).await.map_err(|_| timeout())??;
        let address = endpoint.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(target: LOG_TARGET, endpoint = %address, %error, "connection to etcd ended");
            }
        });
        Ok(Connection { sender, endpoint: endpoint.clone(), number })
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A gRPC client on the connection.
    pub(crate) fn grpc(&self) -> Grpc<Connection> {
        Grpc::with_origin(self.clone(), self.endpoint.clone()).max_decoding_message_size(usize::MAX)
    }
}

impl tower_service::Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = LocalFuture<Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
