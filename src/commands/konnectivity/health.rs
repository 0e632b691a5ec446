//! Listener for health, metrics and status, over plain HTTP.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::admin::{ServedHost, is_same_host};
use crate::commands::threads::spawn_thread;
use crate::observe::metrics::ExpositionFormat;
use crate::process::Problem;

/// Time for a request head, and limit of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections at the same time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

/// A response of the listener.
pub(super) struct HealthResponse {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: String,
    /// Target of a redirection.
    pub(super) location: Option<String>,
}

impl HealthResponse {
    pub(super) fn text(status: StatusCode, body: impl Into<String>) -> HealthResponse {
        HealthResponse { status, content_type: "text/plain; charset=utf-8", body: body.into(), location: None }
    }

    pub(super) fn metrics(format: ExpositionFormat, body: String) -> HealthResponse {
        HealthResponse { status: StatusCode::OK, content_type: format.content_type(), body, location: None }
    }

    /// The state of the process, for a peer on the same machine.
    pub(super) fn status(request: &HealthRequest<'_>, report: &impl serde::Serialize) -> HealthResponse {
        if !request.is_local {
            let text = "The status is for requests from the same machine, with a loopback name or the address of this \
                        listener as Host.\n";
            return HealthResponse::text(StatusCode::FORBIDDEN, text);
        }
        match serde_json::to_string_pretty(report) {
            Ok(body) => HealthResponse {
                status: StatusCode::OK,
                content_type: "application/json",
                body: body + "\n",
                location: None,
            },
            Err(error) => HealthResponse::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    pub(super) fn not_found() -> HealthResponse {
        HealthResponse::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

/// A GET request.
pub(super) struct HealthRequest<'r> {
    pub(super) path: &'r str,
    pub(super) query: Option<&'r str>,
    pub(super) format: ExpositionFormat,
    /// Whether it comes from the same machine or pod, and not from a web page there (DNS rebinding).
    pub(super) is_local: bool,
}

/// Responds to requests of one listener.
pub(super) type HealthHandler = Arc<dyn Fn(&HealthRequest<'_>) -> HealthResponse + Send + Sync>;

/// Serves on a thread of its own until the process ends.
pub(super) fn spawn(name: &str, listener: TcpListener, handler: HealthHandler) -> Result<JoinHandle<()>, Problem> {
    spawn_thread(name, async move || {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept connections"),
        };
        let places = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
        while let Ok(place) = places.clone().acquire_owned().await {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let handler = handler.clone();
                    tokio::task::spawn_local(async move {
                        serve_connection(socket, handler).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
}

/// Address of a bound listener; differs from the configured one if its port was 0.
pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr, Problem> {
    listener.local_addr().map_err(|error| Problem::new("listener", error))
}

async fn serve_connection(socket: tokio::net::TcpStream, handler: HealthHandler) {
    let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return };
    let served_host = ServedHost::new(&local.to_string());
    let service = service_fn(move |request: Request<Incoming>| {
        let is_local = is_same_host(local, peer) && served_host.matches_request(&request, local);
        let response = respond(&request, is_local, &handler);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(16 << 10);
    let serving = builder.serve_connection(TokioIo::new(socket), service);
    // A prober that misbehaves only loses its connection.
    let _ = tokio::time::timeout(HEAD_TIMEOUT * 5, serving).await;
}

fn respond(request: &Request<Incoming>, is_local: bool, handler: &HealthHandler) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let response = if matches!(*request.method(), Method::GET | Method::HEAD) {
        let (path, query) = (request.uri().path(), request.uri().query());
        handler(&HealthRequest { path, query, format: ExpositionFormat::negotiate(accept), is_local })
    } else {
        HealthResponse::text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n")
    };
    let body = if request.method() == Method::HEAD { String::new() } else { response.body };
    let mut http = Response::new(Full::new(Bytes::from(body)));
    *http.status_mut() = response.status;
    http.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(response.content_type));
    if let Some(location) = response.location.and_then(|location| HeaderValue::from_str(&location).ok()) {
        http.headers_mut().insert(LOCATION, location);
    }
    http
}
