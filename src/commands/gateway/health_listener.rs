//! A second listener with the same certificate that serves only health checks, without authentication
//! (`--proxy-endpoints-port`).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::request::strip_body;
use crate::commands::threads::spawn_thread;
use crate::listen::{
    AcceptedConnection, Acceptor, Connections, Handler, HandlerFactory, HandlerFuture, ServerLimits, accept, serve,
};
use crate::message::{Body, IncomingBody};
use crate::observe::health::HealthChecks;
use crate::observe::metrics::HandshakeFailure;
use crate::process::{Drain, Problem, Published, ShutdownPhase};

/// Interval of closing idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Connection limit; a prober needs one.
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
        let ours = health.into_iter().filter(|health| health.name() != "healthz").collect();
        let door = Rc::new(HealthService(Rc::new(HealthPortHandler(ours))));
        let mut round = tokio::time::interval(SWEEP_INTERVAL);
        tokio::task::spawn_local(accept(listener, acceptor, MAX_CONNECTIONS, drain.clone()));
        // The port closes when the process drains; by then it is already unready.
        loop {
            tokio::select! {
                arrived = incoming.recv() => match arrived {
                    Some(arrived) => {
                        let tls = tls.load().as_ref().clone();
                        let serving = serve(arrived, tls, door.clone(), limits.clone(), connections.clone());
                        tokio::task::spawn_local(serving);
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

struct HealthService(Rc<HealthPortHandler>);

impl HandlerFactory for HealthService {
    type Connection = HealthPortHandler;

    fn new_handler(&self, _: AcceptedConnection) -> Rc<HealthPortHandler> {
        self.0.clone()
    }

    fn handshake_failed(&self, remote: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
        tracing::debug!(client = %remote, reason = failure.as_str(), %error, "TLS handshake failed");
    }
}

/// Serves `/healthz` as kube-rbac-proxy does, and the gateway's health checks.
struct HealthPortHandler(Vec<HealthChecks>);

impl HealthPortHandler {
    fn respond(&self, path: &str, query: Option<&str>) -> Response<Body> {
        let health = || self.0.iter().find_map(|health| health.respond(path, query)).map(|found| found.map(Body::from));
        let mut response = match path {
            // kube-rbac-proxy answers `ok` to every request as long as it runs.
            "/healthz" => Response::new(Body::from(Bytes::from_static(b"ok"))),
            _ => match health() {
                Some(response) => return response,
                None => {
                    let mut response = Response::new(Body::from(Bytes::from_static(b"404 page not found\n")));
                    *response.status_mut() = StatusCode::NOT_FOUND;
                    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                    response
                }
            },
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

impl Handler for HealthPortHandler {
    fn handle(self: Rc<Self>, request: Request<IncomingBody>) -> HandlerFuture {
        let response = self.respond(request.uri().path(), request.uri().query());
        let response = if *request.method() == Method::HEAD { strip_body(response) } else { response };
        Box::pin(std::future::ready(response))
    }
}
