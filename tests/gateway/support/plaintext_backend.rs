//! Plaintext servers on a TCP port or a Unix domain socket, as upstreams of a sidecar.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::support::backend::{BackendResponse, ReceivedRequest};
use crate::support::fixtures::TestEnvironment;

/// Where a server listens, or is to listen.
#[derive(Clone)]
pub(crate) enum ListenAddress {
    /// A port of this machine; 0 for any.
    Port(u16),
    Socket(PathBuf),
}

impl ListenAddress {
    pub(crate) fn socket(environment: &TestEnvironment) -> ListenAddress {
        ListenAddress::Socket(environment.path("app.sock"))
    }

    /// As `--upstream` has it.
    pub(crate) fn url(&self) -> String {
        match self {
            ListenAddress::Port(port) => format!("http://127.0.0.1:{port}"),
            ListenAddress::Socket(path) => format!("unix:{}", path.display()),
        }
    }
}

/// A connection, whatever carries it.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A listening server; it stops when dropped.
pub(crate) struct PlaintextServer {
    pub(crate) address: ListenAddress,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    tasks: tokio::task::JoinHandle<()>,
}

impl PlaintextServer {
    /// Serves `handler` over HTTP/1.1.
    pub(crate) async fn http1<F>(
        place: ListenAddress,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> PlaintextServer
    where
        F: Future<Output = BackendResponse> + Send + 'static,
    {
        PlaintextServer::start(place, false, handler).await
    }

    /// Serves `handler` over HTTP/2, known beforehand (h2c).
    pub(crate) async fn http2<F>(
        place: ListenAddress,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> PlaintextServer
    where
        F: Future<Output = BackendResponse> + Send + 'static,
    {
        PlaintextServer::start(place, true, handler).await
    }

    async fn start<F>(
        place: ListenAddress,
        h2c: bool,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> PlaintextServer
    where
        F: Future<Output = BackendResponse> + Send + 'static,
    {
        let (handler, seen) = (Arc::new(handler), Arc::<Mutex<Vec<ReceivedRequest>>>::default());
        let kept = seen.clone();
        PlaintextServer::listen(place, seen, move |carrier| {
            let (handler, seen) = (handler.clone(), kept.clone());
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                seen.lock().unwrap().push(ReceivedRequest {
                    method: request.method().clone(),
                    uri: request.uri().clone(),
                    headers: request.headers().clone(),
                    peer: String::new(),
                });
                let response = handler(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            async move {
                let io = TokioIo::new(carrier);
                if h2c {
                    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
                } else {
                    let _ = http1::Builder::new().serve_connection(io, service).with_upgrades().await;
                }
            }
        })
        .await
    }

    /// Hands every connection to `talk`, byte by byte.
    pub(crate) async fn start_raw<F>(
        place: ListenAddress,
        talk: impl Fn(PlaintextConnection) -> F + Send + Sync + 'static,
    ) -> PlaintextServer
    where
        F: Future<Output = ()> + Send + 'static,
    {
        PlaintextServer::listen(place, Arc::default(), move |carrier| {
            talk(PlaintextConnection { stream: carrier, buffered: Vec::new() })
        })
        .await
    }

    async fn listen<F>(
        place: ListenAddress,
        seen: Arc<Mutex<Vec<ReceivedRequest>>>,
        serve: impl Fn(Box<dyn ByteStream>) -> F + Send + Sync + 'static,
    ) -> PlaintextServer
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Dropping the set ends every connection with the server.
        let mut running = tokio::task::JoinSet::new();
        let (place, tasks) = match place {
            ListenAddress::Port(port) => {
                let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
                let port = listener.local_addr().unwrap().port();
                let tasks = tokio::spawn(async move {
                    while let Ok((carrier, _)) = listener.accept().await {
                        carrier.set_nodelay(true).unwrap();
                        running.spawn(serve(Box::new(carrier)));
                    }
                });
                (ListenAddress::Port(port), tasks)
            }
            ListenAddress::Socket(path) => {
                let listener = UnixListener::bind(&path).unwrap();
                let tasks = tokio::spawn(async move {
                    while let Ok((carrier, _)) = listener.accept().await {
                        running.spawn(serve(Box::new(carrier)));
                    }
                });
                (ListenAddress::Socket(path), tasks)
            }
        };
        PlaintextServer { address: place, received: seen, tasks }
    }

    /// As `--upstream` has it.
    pub(crate) fn url(&self) -> String {
        self.address.url()
    }

    /// The requests so far.
    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    /// The latest request.
    pub(crate) fn last_request(&self) -> ReceivedRequest {
        self.received().pop().expect("a request reached the server")
    }

    /// Stops listening and cuts every connection; as for a program that ends, its socket's name is gone, too.
    pub(crate) async fn stop(mut self) -> ListenAddress {
        self.tasks.abort();
        let _ = (&mut self.tasks).await;
        if let ListenAddress::Socket(path) = &self.address {
            std::fs::remove_file(path).unwrap();
        }
        self.address.clone()
    }
}

impl Drop for PlaintextServer {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

/// A connection on which a test says what it likes.
pub(crate) struct PlaintextConnection {
    stream: Box<dyn ByteStream>,
    /// What came and was not looked at.
    pub(crate) buffered: Vec<u8>,
}

impl PlaintextConnection {
    /// The head of the next request; none when the sidecar closed the connection. One that is opened only to see whether
    /// that can be done brings none.
    pub(crate) async fn next_head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffered.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = self.buffered.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            self.read_more().await?;
        }
    }

    /// Reads what is there into `rest`; none at the end.
    pub(crate) async fn read_more(&mut self) -> Option<()> {
        match self.stream.read_buf(&mut self.buffered).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(()),
        }
    }

    /// Writes; errors are ignored.
    pub(crate) async fn write(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(text.as_ref()).await;
        let _ = self.stream.flush().await;
    }
}
