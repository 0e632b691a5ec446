//! A load generator: many requests at once over HTTP/2 connections of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::fixtures;

/// A request of the load.
#[derive(Clone, Debug)]
pub(crate) struct ObjectRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

impl ObjectRequest {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> ObjectRequest {
        ObjectRequest { method, path: path.into(), headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> ObjectRequest {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, media_type: &str, body: impl Into<Bytes>) -> ObjectRequest {
        self.headers.push(("content-type", media_type.to_owned()));
        self.body = body.into();
        self
    }
}

/// One connection to a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ApiClient {
    sender: http2::SendRequest<Full<Bytes>>,
    tls: tokio_rustls::TlsConnector,
    port: u16,
    token: Arc<str>,
}

impl ApiClient {
    pub(crate) async fn connect(directory: &Path, port: u16, token: &str) -> ApiClient {
        let tls = tokio_rustls::TlsConnector::from(Arc::new(fixtures::client_config(directory)));
        ApiClient { sender: open_connection(&tls, port).await, tls, port, token: token.into() }
    }

    /// The same connection with another token.
    pub(crate) fn with_token(&self, token: &str) -> ApiClient {
        ApiClient { token: token.into(), ..self.clone() }
    }

    /// Sends a request; the response with its body still to come. Panics for anything but 200 and 201.
    pub(crate) async fn open(&mut self, request: &ObjectRequest) -> Incoming {
        let (status, body) = self.start(request).await;
        if !matches!(status.as_u16(), 200 | 201) {
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            panic!("{} {}: {status} {}", request.method, request.path, String::from_utf8_lossy(&body));
        }
        body
    }

    /// Sends a request; the status and the whole body, whatever they are.
    pub(crate) async fn try_send(&mut self, request: &ObjectRequest) -> (StatusCode, Bytes) {
        let (status, body) = self.start(request).await;
        (status, body.collect().await.map(|body| body.to_bytes()).unwrap_or_default())
    }

    async fn start(&mut self, request: &ObjectRequest) -> (StatusCode, Incoming) {
        let mut message = Request::builder()
            .method(request.method.clone())
            .uri(format!("https://localhost{}", request.path))
            .header("authorization", format!("Bearer {}", self.token));
        for (name, value) in &request.headers {
            message = message.header(*name, value);
        }
        let message = message.body(Full::new(request.body.clone())).expect("a request");
        // kube-apiserver closes a connection that was idle for 90 seconds.
        if self.sender.ready().await.is_err() {
            self.sender = open_connection(&self.tls, self.port).await;
        }
        let response = self.sender.send_request(message).await.expect("a response");
        let (head, body) = response.into_parts();
        (head.status, body)
    }

    /// Sends a request; the whole body.
    pub(crate) async fn send(&mut self, request: &ObjectRequest) -> Bytes {
        self.open(request).await.collect().await.expect("a body").to_bytes()
    }
}

async fn open_connection(tls: &tokio_rustls::TlsConnector, port: u16) -> http2::SendRequest<Full<Bytes>> {
    let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
    socket.set_nodelay(true).expect("a socket");
    let stream = tls.connect("localhost".try_into().expect("a name"), socket).await.expect("TLS");
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(8 << 20).initial_connection_window_size(64 << 20);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

/// Sends `count` requests, `at_once` of them at a time, made from their number.
pub(crate) async fn send_all(
    client: &ApiClient,
    count: u64,
    at_once: u64,
    request: impl Fn(u64) -> ObjectRequest + Send + Sync + 'static,
) {
    let (next, request) = (Arc::new(AtomicU64::new(0)), Arc::new(request));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let (mut client, next, request) = (client.clone(), next.clone(), request.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                client.send(&request(number)).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("the load runs");
    }
}
