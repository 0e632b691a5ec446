//! A second listener with the same certificate that serves only health checks, without authentication
//! (`--proxy-endpoints-port`).

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tower::service_fn;

use super::request::strip_body;
use crate::admin::{ConnectionTable, ConnectionUse};
use crate::commands::threads::spawn_thread;
use crate::listen::{Acceptor, Connections, ResponseFuture, ServerLimits, TlsConfigSource, accept, serve};
use crate::message::{Body, IncomingBody};
use crate::observe::health::HealthChecks;
use crate::observe::metrics::HandshakeFailure;
use crate::process::{Drain, Problem, Published, ShutdownPhase};

/// Interval of closing idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Connection limit; a prober needs one. One more closes one that is of less use.
const MAX_CONNECTIONS: usize = 256;

/// The health listener.
pub(super) struct HealthListener {
    pub(super) listener: TcpListener,
    pub(super) tls: Published<Arc<rustls::ServerConfig>>,
    pub(super) health: Vec<HealthChecks>,
    pub(super) limits: ServerLimits,
    pub(super) drain: Drain,
}

impl HealthListener {
    /// Serves on its own thread until the process ends.
    ///
    /// # Errors
    /// The thread cannot be spawned.
    pub(super) fn start(self) -> Result<JoinHandle<()>, Problem> {
        spawn_thread("endpoints", async move || self.run().await)
    }

    async fn run(self) {
        let HealthListener { listener, tls, health, limits, mut drain } = self;
        let mut acceptor = Acceptor::default();
        let mut incoming = acceptor.add_worker();
        let connections = Connections::default();
        // The kubelet probes a pod directly, without the load balancer's PROXY header.
        let limits = Rc::new(ServerLimits { proxy_protocol: None, ..limits });
        let checks: Rc<[_]> = health.into_iter().filter(|health| health.name() != "healthz").collect();
        let table = ConnectionTable::new(MAX_CONNECTIONS);
        let mut round = tokio::time::interval(SWEEP_INTERVAL);
        tokio::task::spawn_local(accept(listener, acceptor, 2 * MAX_CONNECTIONS, drain.clone()));
        // The port closes when the process drains; by then it is already unready.
        loop {
            tokio::select! {
                arrived = incoming.recv() => match arrived {
                    Some(arrived) => {
                        let tls = TlsConfigSource::Fixed(tls.load().as_ref().clone());
                        let (limits, connections) = (limits.clone(), connections.clone());
                        let checks = checks.clone();
                        table.spawn(arrived.remote.ip(), |usage| {
                            let service = service_fn(move |request| -> ResponseFuture {
                                usage.set(ConnectionUse::Answered);
                                Box::pin(ready(Ok(respond(&checks, &request))))
                            });
                            let make_service = service_fn(move |_| ready(Ok::<_, Infallible>(service.clone())));
                            serve(arrived, tls, make_service, log_failure, limits, connections)
                        });
                    }
                    None => break,
                },
                _ = round.tick() => connections.sweep(&limits),
            }
        }
        connections.close_gracefully();
        while !connections.is_empty() {
            tokio::select! {
                _ = round.tick() => connections.sweep(&limits),
                () = drain.wait_for(ShutdownPhase::TimedOut) => break,
            }
        }
        connections.close_now();
    }
}

fn log_failure(remote: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
    tracing::debug!(client = %remote, reason = failure.as_str(), %error, "TLS handshake failed");
}

/// Serves `/healthz` as kube-rbac-proxy does, and `checks`.
fn respond(checks: &[HealthChecks], request: &Request<IncomingBody>) -> Response<Body> {
    let (path, query) = (request.uri().path(), request.uri().query());
    let response = match path {
        // kube-rbac-proxy answers `ok` to every request as long as it runs.
        "/healthz" => plain_text(StatusCode::OK, "ok"),
        _ => match checks.iter().find_map(|health| health.respond(path, query)) {
            Some(response) => response.map(Body::from),
            None => {
                let mut response = plain_text(StatusCode::NOT_FOUND, "404 page not found\n");
                response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                response
            }
        },
    };
    if *request.method() == Method::HEAD { strip_body(response) } else { response }
}

fn plain_text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
