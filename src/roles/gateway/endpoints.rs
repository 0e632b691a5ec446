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

use super::answered::without_body;
use crate::listen::{Accepted, Acceptor, Answering, Connections, Handler, Limits, Service, accept, serve};
use crate::message::{Body, Received};
use crate::observe::health::Health;
use crate::observe::metrics::HandshakeFailure;
use crate::process::{Drain, Phase, Problem, Published};
use crate::roles::threads::thread;

/// Interval of closing idle connections.
const ROUND: Duration = Duration::from_secs(1);
/// Connection limit; a prober needs one.
const MOST: usize = 256;

/// The health listener.
pub(super) struct Endpoints {
    pub(super) listener: TcpListener,
    pub(super) tls: Published<Arc<rustls::ServerConfig>>,
    pub(super) health: Vec<Health>,
    pub(super) limits: Limits,
    pub(super) drain: Drain,
}

impl Endpoints {
    /// Serves on its own thread until the process ends.
    ///
    /// # Errors
    /// The thread cannot be spawned.
    pub(super) fn start(self) -> Result<JoinHandle<()>, Problem> {
        thread("endpoints", async move || self.run().await)
    }

    async fn run(self) {
        let Endpoints { listener, tls, health, limits, mut drain } = self;
        let mut acceptor = Acceptor::default();
        let mut incoming = acceptor.worker();
        let connections = Connections::default();
        // The kubelet probes a pod directly, without the load balancer's PROXY header.
        let limits = Rc::new(Limits { proxy_protocol: None, ..limits });
        let ours = health.into_iter().filter(|health| health.name() != "healthz").collect();
        let door = Rc::new(Door(Rc::new(Answers(ours))));
        let mut round = tokio::time::interval(ROUND);
        tokio::task::spawn_local(accept(listener, acceptor, MOST, drain.clone()));
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
        connections.finish();
        while !connections.is_empty() {
            tokio::select! {
                _ = round.tick() => connections.sweep(&limits),
                () = drain.reached(Phase::Over) => break,
            }
        }
        connections.cut();
    }
}

struct Door(Rc<Answers>);

impl Service for Door {
    type Connection = Answers;

    fn connection(&self, _: Accepted) -> Rc<Answers> {
        self.0.clone()
    }

    fn handshake_failed(&self, remote: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
        tracing::debug!(client = %remote, reason = failure.as_str(), %error, "TLS handshake failed");
    }
}

/// Serves `/healthz` as kube-rbac-proxy does, and the gateway's health checks.
struct Answers(Vec<Health>);

impl Answers {
    fn answer(&self, path: &str, query: Option<&str>) -> Response<Body> {
        let health = || self.0.iter().find_map(|health| health.answer(path, query)).map(|found| found.map(Body::from));
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

impl Handler for Answers {
    fn handle(self: Rc<Self>, request: Request<Received>) -> Answering {
        let response = self.answer(request.uri().path(), request.uri().query());
        let response = if *request.method() == Method::HEAD { without_body(response) } else { response };
        Box::pin(std::future::ready(response))
    }
}
