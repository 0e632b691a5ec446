//! The admin listener: its thread, connections and routes.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use tokio::net::TcpStream;
use tokio::time::MissedTickBehavior;

use super::connection::serve_connection;
use super::connection_table::{ConnectionTable, ConnectionUse};
use super::host::{ServedHost, is_same_host};
use super::live_page::LivePage;
use super::response::{AdminBody, finish, json, plain_text};
use super::status_report::StatusReport;
use super::token::{AdminToken, AdminTokenConfig};
use super::traffic_report::TrafficReport;
use crate::listen::bind;
use crate::observe::metrics::{ExpositionFormat, RequestHistory, SAMPLE_INTERVAL};
use crate::observe::{HealthChecks, LogLevel, Metrics};
use crate::process::{Drain, Problem, Published, ShutdownPhase};

const FLAG: &str = "--admin-address";
/// Maximum number of concurrent connections; one more closes one that is of less use.
const MAX_CONNECTIONS: usize = 64;
/// Timeout of request headers, and of idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum request body size; a body holds a log level.
const MAX_BODY_SIZE: usize = 4096;

const LOG_LEVEL_PATH: &str = "/log-level";
/// Challenge for browsers; any user name is accepted.
const CHALLENGE: &str = "Basic realm=\"Narthex\", charset=\"UTF-8\"";

/// Sources of what the admin listener serves, evaluated for every request on the admin thread. Remote peers get only
/// metrics and health.
pub struct AdminState {
    /// Makes the report for `/status.json` and the status page.
    pub report: Arc<dyn Fn() -> StatusReport + Send + Sync>,
    /// Metrics served at `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Checks of `/livez`, `/readyz` and other health endpoints.
    pub health: Vec<HealthChecks>,
    /// Log level that `/log-level` shows and sets.
    pub log_level: LogLevel,
    /// Makes the JSON of `/debug/connections`.
    pub connections: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// Makes the JSON of `/debug/tasks`.
    pub tasks: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// With `--admin-token-file`: everything but metrics and health requires the token.
    pub token: Option<AdminTokenConfig>,
    /// Shutdown phase: event streams end when requests are no longer accepted.
    pub drain: Drain,
}

/// The admin listener; it serves until the process ends.
pub struct AdminListener {
    /// Bound address; differs from the configured one if its port was 0.
    pub local_addr: SocketAddr,
}

/// The bound socket of the admin listener.
pub struct AdminSocket {
    /// The configured address.
    address: SocketAddr,
    listener: TcpListener,
}

impl AdminSocket {
    /// Binds `address`.
    ///
    /// # Errors
    /// The address is in use.
    pub fn bind(address: SocketAddr) -> Result<AdminSocket, Problem> {
        let listener = bind(address, FLAG).map_err(|why| Problem::new(FLAG, why))?;
        Ok(AdminSocket { address, listener })
    }
}

/// Serves `state` on a dedicated thread.
pub fn spawn(socket: AdminSocket, state: AdminState) -> Result<AdminListener, Problem> {
    let AdminSocket { address, listener } = socket;
    let problem = |what: &str, error: &dyn std::fmt::Display| Problem::new(FLAG, format!("{what} {address}: {error}"));
    let local_addr = listener.local_addr().map_err(|error| problem("cannot listen on", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| problem("cannot serve", &error))?;
    thread::Builder::new()
        .name("admin".into())
        .spawn(move || {
            let server = AdminServer::new(&address.to_string(), state);
            tokio::task::LocalSet::new().block_on(&runtime, server.accept(listener));
        })
        .map_err(|error| problem("cannot start the thread for", &error))?;
    Ok(AdminListener { local_addr })
}

struct AdminServer {
    served_host: ServedHost,
    state: AdminState,
    token: Option<Published<AdminToken>>,
    history: Rc<RefCell<RequestHistory>>,
    page: LivePage<StatusReport>,
}

/// Local and peer address of a connection.
#[derive(Clone, Copy)]
struct ConnectionAddresses {
    local: SocketAddr,
    peer: SocketAddr,
}

impl AdminServer {
    fn new(address: &str, state: AdminState) -> AdminServer {
        let history = Rc::<RefCell<RequestHistory>>::default();
        let (report, requests) = (state.report.clone(), history.clone());
        let page = LivePage::new(move || add_traffic(report(), &requests.borrow()));
        AdminServer { served_host: ServedHost::new(address), state, token: None, history, page }
    }

    async fn accept(mut self, listener: TcpListener) {
        self.token = self.state.token.take().map(AdminTokenConfig::publish_token);
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "admin listener failed to start; restart the process"),
        };
        let server = Rc::new(self);
        tokio::task::spawn_local(server.clone().sample_requests());
        tokio::task::spawn_local(server.clone().publish_events());
        let connections = ConnectionTable::new(MAX_CONNECTIONS);
        loop {
            match listener.accept().await {
                // Connection errors and timeouts are not reported.
                Ok((stream, peer)) => {
                    let server = server.clone();
                    connections.spawn(peer.ip(), |usage| server.serve(stream, peer, usage));
                }
                Err(error) => {
                    // Most likely out of file descriptors, which is temporary.
                    tracing::warn!(%error, "admin listener failed to accept a connection");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Serves one connection.
    async fn serve(self: Rc<Self>, stream: TcpStream, peer: SocketAddr, usage: Rc<Cell<ConnectionUse>>) {
        let Ok(local) = stream.local_addr() else { return };
        let respond = async |request| self.respond(request, ConnectionAddresses { local, peer }).await;
        let _ = serve_connection(stream, HEAD_TIMEOUT, &usage, respond).await;
    }

    /// Takes a sample of the request counters every ten seconds.
    async fn sample_requests(self: Rc<Self>) {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            interval.tick().await;
            self.history.borrow_mut().sample(&self.state.metrics);
        }
    }

    /// Keeps the status page live until requests are no longer accepted.
    async fn publish_events(self: Rc<Self>) {
        let mut drain = self.state.drain.clone();
        self.page.publish_until(async { drain.wait_for(ShutdownPhase::Draining).await }).await;
    }

    async fn respond<B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>>(
        &self,
        request: Request<B>,
        ends: ConnectionAddresses,
    ) -> Response<AdminBody> {
        if !self.served_host.matches_request(&request, ends.local) {
            let text = "This is the admin address of a Narthex process. It answers only requests with a Host that is a \
                        loopback name or address, or its configured address.\n";
            return finish(plain_text(StatusCode::FORBIDDEN, text));
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let answer = match self.public_response(&request) {
            Some(answer) if reads => answer,
            None if !is_same_host(ends.local, ends.peer) => {
                let text = "This is the admin address of a Narthex process. To remote peers it serves only /metrics, \
                            /livez, /readyz and the like; send this request from the same machine \
                            (kubectl port-forward for a pod).\n";
                plain_text(StatusCode::FORBIDDEN, text)
            }
            None if !self.has_valid_token(&request) => {
                let text = "The token of --admin-token-file is required: as bearer token, or as password of any user. \
                            /metrics, /livez, /readyz and the like require none.\n";
                let mut response = plain_text(StatusCode::UNAUTHORIZED, text);
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
                response
            }
            None if reads => match self.page.respond(request.uri().path(), request.headers()) {
                Some(response) => return response,
                None => self.operator_response(&request),
            },
            None if request.method() == Method::PUT && request.uri().path() == LOG_LEVEL_PATH => {
                self.set_log_level(request).await
            }
            _ => {
                let allowed = if request.uri().path() == LOG_LEVEL_PATH { "GET, HEAD, PUT" } else { "GET, HEAD" };
                let mut response = plain_text(StatusCode::METHOD_NOT_ALLOWED, format!("only {allowed}\n"));
                response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                response
            }
        };
        finish(answer)
    }

    /// Responses available without authentication from any peer: health and metrics.
    fn public_response<B>(&self, request: &Request<B>) -> Option<Response<Bytes>> {
        let path = request.uri().path();
        if path != "/metrics" {
            return self.state.health.iter().find_map(|health| health.respond(path, request.uri().query()));
        }
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
        let format = ExpositionFormat::negotiate(accept);
        let mut response = Response::new(Bytes::from(self.state.metrics.render_all(format)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        Some(response)
    }

    /// Whether the request carries the admin token, if one is configured.
    fn has_valid_token<B>(&self, request: &Request<B>) -> bool {
        self.token.as_ref().is_none_or(|token| token.load().matches_request(request.headers()))
    }

    /// Responses that require a local peer and the admin token.
    fn operator_response<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let state = &self.state;
        match request.uri().path() {
            LOG_LEVEL_PATH => plain_text(StatusCode::OK, format!("{}\n", state.log_level.current())),
            "/debug/connections" => json(&(state.connections)()),
            "/debug/tasks" => json(&(state.tasks)()),
            _ => plain_text(StatusCode::NOT_FOUND, "not found\n"),
        }
    }

    async fn set_log_level<B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>>(
        &self,
        request: Request<B>,
    ) -> Response<Bytes> {
        let Ok(body) = Limited::new(request.into_body(), MAX_BODY_SIZE).collect().await else {
            return plain_text(StatusCode::BAD_REQUEST, "a log level was expected, for example debug\n");
        };
        let body = body.to_bytes();
        match self.state.log_level.set(&String::from_utf8_lossy(&body)) {
            Ok(()) => {
                let level = self.state.log_level.current();
                tracing::info!(new_level = level, "log level changed");
                plain_text(StatusCode::OK, format!("{level}\n"))
            }
            Err(problem) => plain_text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
        }
    }
}

/// Adds the recent requests.
fn add_traffic(mut report: StatusReport, history: &RequestHistory) -> StatusReport {
    for service in &mut report.apiservices {
        service.traffic = TrafficReport::from_history(history, &service.name, "");
        for endpoint in &mut service.endpoints {
            endpoint.traffic = TrafficReport::from_history(history, &service.name, &endpoint.address);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use http_body_util::Full;

    use super::*;
    use crate::observe::HealthCheck;

    fn admin() -> AdminListener {
        spawn(AdminSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap(), state()).unwrap()
    }

    fn state() -> AdminState {
        let report = || StatusReport { version: "0.0.0".into(), ..StatusReport::default() };
        AdminState {
            report: Arc::new(report),
            metrics: Metrics::new(),
            health: vec![
                HealthChecks::new("livez", [HealthCheck::ping()]),
                HealthChecks::new(
                    "readyz",
                    [HealthCheck::ping(), HealthCheck::new("registry", || Err("not read yet".into()))],
                ),
            ],
            log_level: LogLevel::detached(),
            connections: Box::new(|| serde_json::json!([])),
            tasks: Box::new(|| serde_json::json!([])),
            token: None,
            drain: Drain::new().1,
        }
    }

    /// Sends `request`, in which `{host}` is replaced by the admin address; returns status code, head and body.
    fn ask(admin: &AdminListener, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(admin.local_addr).unwrap();
        let request = request.replace("{host}", &format!("Host: {}\r\nConnection: close", admin.local_addr));
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_ascii_lowercase(), body.to_owned())
    }

    #[test]
    fn admin_every_path_answers() {
        let admin = admin();
        for (path, status, kind) in [
            ("/", 200, "text/html; charset=utf-8"),
            ("/livez", 200, "text/plain; charset=utf-8"),
            ("/readyz", 500, "text/plain; charset=utf-8"),
            ("/readyz/ping", 200, "text/plain; charset=utf-8"),
            ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
            ("/status.json", 200, "application/json"),
            ("/log-level", 200, "text/plain; charset=utf-8"),
            ("/debug/connections", 200, "application/json"),
            ("/debug/tasks", 200, "application/json"),
            ("/nothing", 404, "text/plain; charset=utf-8"),
        ] {
            let (got, head, body) = ask(&admin, &format!("GET {path} HTTP/1.1\r\n{{host}}\r\n\r\n"));
            assert_eq!(got, status, "{path}: {body}");
            assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}");
            assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
        }
        let (_, head, _) = ask(&admin, "GET / HTTP/1.1\r\n{host}\r\n\r\n");
        assert!(head.contains("content-security-policy: default-src 'none'; style-src 'sha256-"), "{head}");
    }

    #[test]
    fn admin_answers_beside_connections_without_a_request() {
        let admin = admin();
        let silent: Vec<_> = (0..2 * MAX_CONNECTIONS)
            .map(|number| {
                let mut stream = TcpStream::connect(admin.local_addr).unwrap();
                if number % 2 == 0 {
                    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: ").unwrap();
                }
                stream
            })
            .collect();
        let mut stream = TcpStream::connect(admin.local_addr).unwrap();
        // Shorter than the time after which a silent connection is closed anyway.
        stream.set_read_timeout(Some(HEAD_TIMEOUT / 2)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(silent);
    }

    #[test]
    fn admin_foreign_host_is_refused() {
        let admin = admin();
        for request in [
            "GET /status.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            "GET /status.json HTTP/1.1\r\nConnection: close\r\n\r\n",
            "PUT /log-level HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\nContent-Length: 5\r\n\r\ndebug",
        ] {
            let (status, _, body) = ask(&admin, request);
            assert_eq!(status, 403, "{request}");
            assert!(!body.contains("version"));
        }
        assert_eq!(ask(&admin, "GET /log-level HTTP/1.1\r\n{host}\r\n\r\n").2, "info\n");
    }

    #[tokio::test]
    async fn admin_remote_peers_get_only_metrics_and_health() {
        let server = AdminServer::new("0.0.0.0:6480", state());
        let local = "10.0.0.5:6480".parse().unwrap();
        let ask = async |peer: &str, method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).header("host", "10.0.0.5:6480");
            let request = request.body(Full::new(Bytes::from("debug"))).unwrap();
            let answer = server.respond(request, ConnectionAddresses { local, peer: peer.parse().unwrap() }).await;
            let status = answer.status().as_u16();
            (status, String::from_utf8_lossy(&answer.into_body().collect().await.unwrap().to_bytes()).into_owned())
        };
        let others = ["10.0.0.6:40000", "[::ffff:10.0.0.6]:40000", "[fd00::5]:40000"];
        for peer in others {
            for (path, status) in [("/metrics", 200), ("/livez", 200), ("/readyz?verbose", 500), ("/readyz/ping", 200)]
            {
                assert_eq!(ask(peer, "GET", path).await.0, status, "{peer} {path}");
            }
            for path in [
                "/",
                "/events",
                "/status.json",
                "/log-level",
                "/debug/connections",
                "/debug/tasks",
                "/nothing",
                "//metrics",
            ] {
                let (status, said) = ask(peer, "GET", path).await;
                assert!(status == 403 && said.contains("from the same machine"), "{peer} {path}: {status} {said}");
            }
            assert_eq!(
                (ask(peer, "PUT", "/log-level").await.0, ask(peer, "PUT", "/livez").await.0),
                (403, 405),
                "{peer}"
            );
        }
        for peer in ["127.0.0.1:40000", "[::1]:40000", "[::ffff:127.0.0.1]:40000", "10.0.0.5:40000"] {
            assert_eq!(ask(peer, "GET", "/log-level").await, (200, "info\n".to_owned()), "{peer}");
            assert_eq!(ask(peer, "GET", "/status.json").await.0, 200, "{peer}");
        }
        assert_eq!(ask("127.0.0.1:40000", "PUT", "/log-level").await, (200, "debug\n".to_owned()));
    }

    #[test]
    fn admin_put_changes_log_level() {
        let admin = admin();
        let put = |level: &str| {
            let length = level.len();
            ask(&admin, &format!("PUT /log-level HTTP/1.1\r\n{{host}}\r\nContent-Length: {length}\r\n\r\n{level}"))
        };
        assert_eq!((put("debug\n").0, put("debug\n").2.as_str()), (200, "debug\n"));
        assert_eq!(ask(&admin, "GET /log-level HTTP/1.1\r\n{host}\r\n\r\n").2, "debug\n");
        assert_eq!(put("loud").0, 400);
        assert_eq!(put(&"x".repeat(MAX_BODY_SIZE + 1)).0, 400);
        assert_eq!(ask(&admin, "GET /log-level HTTP/1.1\r\n{host}\r\n\r\n").2, "debug\n");
    }

    #[test]
    fn admin_other_methods_are_refused() {
        let admin = admin();
        for method in ["POST", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            let (status, head, _) = ask(&admin, &format!("{method} /status.json HTTP/1.1\r\n{{host}}\r\n\r\n"));
            assert_eq!(status, 405, "{method}");
            assert!(head.contains("allow: get, head"), "{head}");
        }
        assert_eq!(ask(&admin, "PUT /livez HTTP/1.1\r\n{host}\r\n\r\n").0, 405);
        let (status, _, body) = ask(&admin, "HEAD /status.json HTTP/1.1\r\n{host}\r\n\r\n");
        assert_eq!((status, body.as_str()), (200, ""));
    }

    #[test]
    fn admin_address_in_use_names_its_flag() {
        let admin = admin();
        let problem = AdminSocket::bind(admin.local_addr).err().unwrap();
        assert_eq!(problem.location, "--admin-address");
        assert!(problem.message.contains(&admin.local_addr.to_string()), "{problem}");
    }
}
