//! Listener for health, metrics and status, over plain HTTP.

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::admin::{
    AdminBody, ConnectionTable, ConnectionUse, LivePage, PageReport, ServedHost, complete, is_same_host,
    serve_connection,
};
use crate::commands::threads::spawn_thread;
use crate::observe::metrics::ExpositionFormat;
use crate::process::Problem;

/// Time for a request head, and limit of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections at the same time; one more closes one that is of less use.
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

    pub(super) fn not_found() -> HealthResponse {
        HealthResponse::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }

    fn into_response(self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(location) = self.location.and_then(|location| HeaderValue::from_str(&location).ok()) {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}

/// A GET request.
pub(super) struct HealthRequest<'r> {
    pub(super) path: &'r str,
    pub(super) query: Option<&'r str>,
    /// Host of the client's request, without the port.
    pub(super) host: Option<&'r str>,
    pub(super) format: ExpositionFormat,
}

/// Responds to requests of one listener.
pub(super) type HealthHandler = Arc<dyn Fn(&HealthRequest<'_>) -> HealthResponse + Send + Sync>;

/// Responds to a request; the boolean is whether it is local.
type Responder = Rc<dyn Fn(&Request<Incoming>, bool) -> Response<AdminBody>>;

/// Serves on a thread of its own until the process ends.
pub(super) fn spawn(name: &str, listener: TcpListener, handler: HealthHandler) -> Result<JoinHandle<()>, Problem> {
    spawn_thread(name, async move || accept(listener, Rc::new(move |request, _| respond(request, &handler))).await)
}

/// The same, and to processes of the same machine or pod the status page of what `make_report` returns.
pub(super) fn spawn_admin<R: PageReport + 'static>(
    listener: TcpListener,
    make_report: impl Fn() -> R + Send + 'static,
    handler: HealthHandler,
) -> Result<JoinHandle<()>, Problem> {
    spawn_thread("admin", async move || {
        let page = Rc::new(LivePage::new(make_report));
        let published = page.clone();
        // The page stays live while the process drains: until it ends.
        tokio::task::spawn_local(async move { published.publish_until(std::future::pending()).await });
        let respond = move |request: &Request<Incoming>, is_local: bool| {
            let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
            match is_read && LivePage::<R>::PATHS.contains(&request.uri().path()) {
                true if !is_local => complete(remote_refusal().into_response()),
                true => {
                    page.respond(request.uri().path(), request.headers()).unwrap_or_else(|| respond(request, &handler))
                }
                false => respond(request, &handler),
            }
        };
        accept(listener, Rc::new(respond)).await;
    })
}

/// The status has addresses of targets: it is for the operator of this machine, and not for web pages there (DNS
/// rebinding).
fn remote_refusal() -> HealthResponse {
    let text = "forbidden: only local connections with Host localhost, a loopback address or this listener's address; use \
                ssh -L\n";
    HealthResponse::text(StatusCode::FORBIDDEN, text)
}

async fn accept(listener: TcpListener, respond: Responder) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections"),
    };
    let connections = ConnectionTable::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                let respond = respond.clone();
                connections.spawn(peer.ip(), |usage| serve(socket, usage, respond));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Address of a bound listener; differs from the configured one if its port was 0.
pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr, Problem> {
    listener.local_addr().map_err(|error| Problem::new("listener", error))
}

async fn serve(socket: tokio::net::TcpStream, usage: Rc<Cell<ConnectionUse>>, respond: Responder) {
    let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return };
    let served_host = ServedHost::new(&local.to_string());
    let respond = async |request: Request<Incoming>| {
        let is_local = is_same_host(local, peer) && served_host.matches_request(&request, local);
        respond(&request, is_local)
    };
    // A prober that misbehaves only loses its connection.
    let _ = serve_connection(socket, HEAD_TIMEOUT, &usage, respond).await;
}

fn respond(request: &Request<Incoming>, handler: &HealthHandler) -> Response<AdminBody> {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let response = if matches!(*request.method(), Method::GET | Method::HEAD) {
        let (path, query) = (request.uri().path(), request.uri().query());
        let authority = request.headers().get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
        let host = authority.as_ref().map(Authority::host);
        handler(&HealthRequest { path, query, host, format: ExpositionFormat::negotiate(accept) })
    } else {
        HealthResponse::text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n")
    };
    let body = if request.method() == Method::HEAD { String::new() } else { response.body };
    complete(HealthResponse { body, ..response }.into_response())
}
