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

use crate::backend::{Answer, Seen};
use crate::world::World;

/// Where a server listens, or is to listen.
#[derive(Clone)]
pub(crate) enum Place {
    /// A port of this machine; 0 for any.
    Port(u16),
    Socket(PathBuf),
}

impl Place {
    pub(crate) fn socket(world: &World) -> Place {
        Place::Socket(world.path("app.sock"))
    }

    /// As `--upstream` has it.
    pub(crate) fn url(&self) -> String {
        match self {
            Place::Port(port) => format!("http://127.0.0.1:{port}"),
            Place::Socket(path) => format!("unix:{}", path.display()),
        }
    }
}

/// A connection, whatever carries it.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Carrier for T {}

/// A listening server; it stops when dropped.
pub(crate) struct Plain {
    pub(crate) place: Place,
    seen: Arc<Mutex<Vec<Seen>>>,
    tasks: tokio::task::JoinHandle<()>,
}

impl Plain {
    /// Serves `handler` over HTTP/1.1.
    pub(crate) async fn http1<F>(
        place: Place,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Plain
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        Plain::serving(place, false, handler).await
    }

    /// Serves `handler` over HTTP/2, known beforehand (h2c).
    pub(crate) async fn http2<F>(
        place: Place,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Plain
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        Plain::serving(place, true, handler).await
    }

    async fn serving<F>(
        place: Place,
        h2c: bool,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Plain
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let (handler, seen) = (Arc::new(handler), Arc::<Mutex<Vec<Seen>>>::default());
        let kept = seen.clone();
        Plain::listen(place, seen, move |carrier| {
            let (handler, seen) = (handler.clone(), kept.clone());
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                seen.lock().unwrap().push(Seen {
                    method: request.method().clone(),
                    uri: request.uri().clone(),
                    headers: request.headers().clone(),
                    peer: String::new(),
                });
                let answer = handler(request);
                async move { Ok::<_, Infallible>(answer.await) }
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
    pub(crate) async fn raw<F>(place: Place, talk: impl Fn(Said) -> F + Send + Sync + 'static) -> Plain
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Plain::listen(place, Arc::default(), move |carrier| talk(Said { carrier, rest: Vec::new() })).await
    }

    async fn listen<F>(
        place: Place,
        seen: Arc<Mutex<Vec<Seen>>>,
        serve: impl Fn(Box<dyn Carrier>) -> F + Send + Sync + 'static,
    ) -> Plain
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Dropping the set ends every connection with the server.
        let mut running = tokio::task::JoinSet::new();
        let (place, tasks) = match place {
            Place::Port(port) => {
                let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
                let port = listener.local_addr().unwrap().port();
                let tasks = tokio::spawn(async move {
                    while let Ok((carrier, _)) = listener.accept().await {
                        carrier.set_nodelay(true).unwrap();
                        running.spawn(serve(Box::new(carrier)));
                    }
                });
                (Place::Port(port), tasks)
            }
            Place::Socket(path) => {
                let listener = UnixListener::bind(&path).unwrap();
                let tasks = tokio::spawn(async move {
                    while let Ok((carrier, _)) = listener.accept().await {
                        running.spawn(serve(Box::new(carrier)));
                    }
                });
                (Place::Socket(path), tasks)
            }
        };
        Plain { place, seen, tasks }
    }

    /// As `--upstream` has it.
    pub(crate) fn url(&self) -> String {
        self.place.url()
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The latest request.
    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a request reached the server")
    }

    /// Stops listening and cuts every connection; as for a program that ends, its socket's name is gone, too.
    pub(crate) async fn stop(mut self) -> Place {
        self.tasks.abort();
        let _ = (&mut self.tasks).await;
        if let Place::Socket(path) = &self.place {
            std::fs::remove_file(path).unwrap();
        }
        self.place.clone()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

/// A connection on which a test says what it likes.
pub(crate) struct Said {
    carrier: Box<dyn Carrier>,
    /// What came and was not looked at.
    pub(crate) rest: Vec<u8>,
}

impl Said {
    /// The head of the next request; none when the sidecar closed the connection. One that is opened only to see whether
    /// that can be done brings none.
    pub(crate) async fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = self.rest.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            self.more().await?;
        }
    }

    /// Reads what is there into `rest`; none at the end.
    pub(crate) async fn more(&mut self) -> Option<()> {
        match self.carrier.read_buf(&mut self.rest).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(()),
        }
    }

    /// Writes; whether anybody still listens is not asked.
    pub(crate) async fn say(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.carrier.write_all(text.as_ref()).await;
        let _ = self.carrier.flush().await;
    }
}
