//! `narthex konnectivity-server`.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::api_server::ApiServerKubeconfig;
use super::certificate_expiry::CertificateInventory;
use super::health::{self, HealthRequest, HealthResponse};
use super::token_reviews;
use super::worker_pool::{AcceptedSocket, WorkerPool};
use crate::commands::signals::{Shutdown, install_handlers, shut_down_on_signal};
use crate::commands::threads::{join_all, spawn_thread};
use crate::commands::{print_warnings, report_problems};
use crate::config::Diagnostics;
use crate::config::konnectivity::{FrontendAddress, FrontendMode, KonnectivityServerConfig};
use crate::konnectivity::leases::publish_lease;
use crate::konnectivity::report::KonnectivityServerReport;
use crate::konnectivity::server::{
    ConnectEnd, KonnectivityServer, PeerState, serve_agent_connection, serve_connect_frontend, serve_grpc_frontend,
};
use crate::kubeclient::KubeconfigSource;
use crate::listen::{SocketFile, bind, raise_descriptor_limit, take_unix_listener};
use crate::observe::metrics::KonnectivityServerMetrics;
use crate::observe::{Metrics, log};
use crate::process::{Drain, Drainer, FileErrors, Problem, Problems, Published, ShutdownPhase, configure_socket};
use crate::tls::ServerTlsStream;
use crate::tls::server::{MutualTlsFiles, MutualTlsReaders};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for agents to close their connections after the end of their streams.
const AGENT_END_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a draining server looks whether its last tunnel has ended.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

type TlsReader = Published<Arc<rustls::ServerConfig>>;

/// Runs the server until a signal ends it. Exit status: 0 after a signal, 1 after a failed start.
pub fn run(config: KonnectivityServerConfig, mistakes: Diagnostics) -> ExitCode {
    let files = match prepare(&config, mistakes) {
        Ok(files) => files,
        Err(status) => return status,
    };
    install_handlers();
    match RunningServer::start(config, files) {
        Ok(running) => running.run_until_signal(),
        Err(problems) => report_problems(ROLE, &problems),
    }
}

const ROLE: &str = "konnectivity-server";

/// The certificates of the listeners.
pub(in crate::commands) struct ServerFiles {
    frontend: Option<(MutualTlsFiles, MutualTlsReaders)>,
    agents: (MutualTlsFiles, MutualTlsReaders),
    token_reviews: Option<ApiServerKubeconfig>,
    leases: Option<ApiServerKubeconfig>,
}

impl ServerFiles {
    /// The certificates in use: of the listeners, and of kubeconfigs.
    fn certificates(&self) -> CertificateInventory {
        let listeners = self.frontend.iter().chain([&self.agents]).map(|(_, readers)| readers.in_use.clone());
        let api_servers = self.token_reviews.iter().chain(&self.leases).map(ApiServerKubeconfig::certificates);
        CertificateInventory::new(listeners.chain(api_servers))
    }
}

/// Installs the log and reads the files. If there is any error, reports all of them and returns the exit status.
pub(in crate::commands) fn prepare(
    config: &KonnectivityServerConfig,
    mut mistakes: Diagnostics,
) -> Result<ServerFiles, ExitCode> {
    print_warnings(&mistakes.warnings);
    mistakes.problems.collect(log::install(&config.log));
    // Missing flags are reported already; there is nothing to read then.
    let mut files = None;
    if mistakes.problems.0.is_empty() {
        let frontend = match &config.frontend {
            FrontendAddress::Unix { .. } => Ok(None),
            FrontendAddress::Tcp { tls, .. } => MutualTlsFiles::open(tls.clone()).map(Some),
        };
        let load =
            |source: &KubeconfigSource| ApiServerKubeconfig::load(source.clone(), config.environment_proxies.as_ref());
        let token_reviews = config.agent_tokens.as_ref().map(|tokens| load(&tokens.kubeconfig)).transpose();
        let leases = config.leases.as_ref().map(|leases| load(&leases.kubeconfig)).transpose();
        match (frontend, MutualTlsFiles::open(config.agent_tls.clone()), token_reviews, leases) {
            (Ok(frontend), Ok(agents), Ok(token_reviews), Ok(leases)) => {
                files = Some(ServerFiles { frontend, agents, token_reviews, leases });
            }
            (frontend, agents, token_reviews, leases) => {
                let api_servers = token_reviews.err().into_iter().chain(leases.err());
                let problems = frontend.err().into_iter().chain(agents.err()).chain(api_servers);
                mistakes.add_file_problems(Problems(problems.flat_map(|problems| problems.0).collect()));
            }
        }
    }
    files.ok_or_else(|| report_problems(ROLE, &mistakes.problems))
}

/// The listening sockets.
struct KonnectivityListeners {
    agents: TcpListener,
    frontend: FrontendListener,
    socket_file: Option<SocketFile>,
    health: TcpListener,
    admin: TcpListener,
}

enum FrontendListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl KonnectivityListeners {
    /// Binds all; returns all problems at once.
    fn bind(config: &KonnectivityServerConfig) -> Result<KonnectivityListeners, Problems> {
        let mut problems = Problems::default();
        let agents = problems.collect(bind(config.agent_address, "--agent-port"));
        let health = problems.collect(bind(config.health_address, "--health-port"));
        let admin = problems.collect(bind(config.admin_address, "--admin-port"));
        let frontend = match &config.frontend {
            FrontendAddress::Tcp { address, .. } => {
                let listener = problems.collect(bind(*address, "--server-port"));
                listener.map(|listener| (FrontendListener::Tcp(listener), None))
            }
            // A server that cannot start does not replace the socket of one that serves.
            FrontendAddress::Unix { .. } if !problems.0.is_empty() => None,
            FrontendAddress::Unix { path, delete_existing } => {
                problems.collect(bind_frontend_socket(path, *delete_existing))
            }
        };
        match (agents, health, admin, frontend) {
            (Some(agents), Some(health), Some(admin), Some((frontend, socket_file))) => {
                Ok(KonnectivityListeners { agents, frontend, socket_file, health, admin })
            }
            _ => Err(problems),
        }
    }
}

/// Takes the Unix socket that the service manager passed to this process, or binds one; then with its file.
fn bind_frontend_socket(path: &Path, delete_existing: bool) -> Result<(FrontendListener, Option<SocketFile>), Problem> {
    let problem = |error: io::Error| Problem::new(format!("--uds-name {}", path.display()), error);
    match take_unix_listener("--uds-name").map_err(problem)? {
        Some(inherited) => Ok((FrontendListener::Unix(inherited), None)),
        None => {
            let bound = bind_unix(path, delete_existing).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => {
                    let advice = "the file exists; remove it, or use --delete-existing-uds-file";
                    problem(io::Error::new(error.kind(), advice))
                }
                _ => problem(error),
            })?;
            Ok((FrontendListener::Unix(bound), Some(SocketFile::new(path).map_err(problem)?)))
        }
    }
}

/// Binds a Unix socket that the user and the group of the process may use, as the reference does.
fn bind_unix(path: &Path, delete_existing: bool) -> io::Result<UnixListener> {
    if delete_existing {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // No other thread creates files yet.
    let mask = rustix::process::umask(rustix::fs::Mode::RWXO);
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A server that serves.
struct RunningServer {
    server: Arc<KonnectivityServer>,
    drainer: Drainer,
    drain_timeout: Duration,
    socket_file: Option<SocketFile>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl RunningServer {
    fn start(config: KonnectivityServerConfig, files: ServerFiles) -> Result<RunningServer, Problems> {
        raise_descriptor_limit();
        let listeners = KonnectivityListeners::bind(&config)?;
        let (drainer, drain) = Drain::new();
        let certificates = files.certificates();
        if let Some(environment) = &config.environment_proxies
            && (files.token_reviews.is_some() || files.leases.is_some())
        {
            environment.log_use();
        }
        let ServerFiles { frontend: frontend_files, agents: (agent_files, agent_tls), token_reviews, leases } = files;
        let agent_tokens = match token_reviews.zip(config.agent_tokens) {
            Some((api_server, tokens)) => Some(token_reviews::start(api_server, &tokens)?),
            None => None,
        };
        let server_id = config.settings.server_id.clone();
        let metrics = Arc::<KonnectivityServerMetrics>::default();
        let server = KonnectivityServer::new(config.settings, agent_tokens, metrics.clone());
        let (health_address, admin_address) =
            (health::local_address(&listeners.health)?, health::local_address(&listeners.admin)?);
        let agent_address = health::local_address(&listeners.agents)?;

        let (frontend_files, frontend_tls) = frontend_files.unzip();
        let frontend_tls = frontend_tls.map(|readers| readers.config);
        let agent_tls = agent_tls.config;
        let service = ListenerService { server: server.clone(), mode: config.mode, agent_tls, frontend_tls };
        let (pool, mut threads) = WorkerPool::spawn(move |socket| service.clone().serve(socket), &drain)?;
        let accept_drain = drain.clone();
        let (agents, frontend) = (listeners.agents, listeners.frontend);
        spawn_thread("accept", async move || accept_all(pool, agents, frontend, accept_drain).await)?;
        let (files_drain, file_errors) = (drain.clone(), FileErrors::default());
        let reporters = ["agents", "frontend"].map(|listener| file_errors.reporter(listener));
        let (expiry, certificate_metrics) = (certificates.clone(), metrics.certificates.clone());
        spawn_thread("files", async move || {
            let [on_agent_failure, on_frontend_failure] = reporters;
            let frontend = async {
                if let Some(files) = frontend_files {
                    files.follow(on_frontend_failure, files_drain.clone()).await;
                }
            };
            let agents = agent_files.follow(on_agent_failure, files_drain.clone());
            tokio::join!(frontend, agents, expiry.watch_expiry(certificate_metrics, files_drain.clone()));
        })?;
        if let Some((api_server, config)) = leases.zip(config.leases) {
            threads.push(spawn_thread("leases", async move || {
                let client = api_server.client(Metrics::new());
                publish_lease(client, config.settings, server_id, metrics, drain).await;
            })?);
        }
        let (by_health, by_admin) = (server.clone(), server.clone());
        health::spawn("health", listeners.health, Arc::new(move |request| respond(&by_health, request)))?;
        let (mode, frontend) = (config.mode, &config.frontend);
        let listen = [describe_frontend(mode, frontend), format!("{agent_address} (agents)")];
        let by_page = server.clone();
        let report = move || KonnectivityServerReport {
            listen: listen.to_vec(),
            certificates: certificates.reports(),
            file_problems: file_errors.current(),
            ..by_page.report()
        };
        health::spawn_admin(listeners.admin, report, Arc::new(move |request| respond_admin(&by_admin, request)))?;
        tracing::info!(?mode, ?frontend, agents = %agent_address, "serving");
        tracing::info!(health = %health_address, admin = %admin_address, "health and metrics");
        let (drain_timeout, socket_file) = (config.drain_timeout, listeners.socket_file);
        Ok(RunningServer { server, drainer, drain_timeout, socket_file, threads })
    }

    fn run_until_signal(self) -> ExitCode {
        let shutdown = Shutdown { serving: "Serving", ending: "open tunnels may finish", timeout: self.drain_timeout };
        shut_down_on_signal(&shutdown, self.shut_down())
    }

    async fn shut_down(self) {
        self.server.drain();
        self.drainer.advance(ShutdownPhase::Draining);
        drop(self.socket_file);
        let deadline = Instant::now() + self.drain_timeout;
        while self.server.unfinished() != (0, 0) && Instant::now() < deadline {
            sleep(DRAIN_POLL_INTERVAL).await;
        }
        let (dials, tunnels) = self.server.unfinished();
        if (dials, tunnels) != (0, 0) {
            tracing::warn!(tunnels, dials, "graceful shutdown timeout: open tunnels are aborted");
        } else {
            // The agents get what HTTP/2 and TLS still hold: each closes its connection after it.
            let deadline = deadline.min(Instant::now() + AGENT_END_TIMEOUT);
            while self.server.agent_connections() > 0 && Instant::now() < deadline {
                // Also those whose token was reviewed meanwhile.
                self.server.finish_agent_streams();
                sleep(DRAIN_POLL_INTERVAL).await;
            }
        }
        self.drainer.advance(ShutdownPhase::TimedOut);
        let _ = timeout(Duration::from_secs(1), join_all(self.threads)).await;
    }
}

async fn accept_all(pool: WorkerPool, agents: TcpListener, frontend: FrontendListener, drain: Drain) {
    let listeners = (tokio::net::TcpListener::from_std(agents), frontend.into_tokio());
    let (agents, frontend) = match listeners {
        (Ok(agents), Ok(frontend)) => (agents, frontend),
        (agents, frontend) => {
            for error in [agents.err(), frontend.err()].into_iter().flatten() {
                tracing::error!(%error, "cannot accept connections");
            }
            return;
        }
    };
    let from_agents = async || {
        let socket = agents.accept().await?.0;
        configure_socket(&socket)?;
        Ok(AcceptedSocket::Agent(socket.into_std()?))
    };
    let from_clients = async || match &frontend {
        TokioFrontend::Tcp(listener) => {
            let socket = listener.accept().await?.0;
            configure_socket(&socket)?;
            Ok(AcceptedSocket::ClientTcp(socket.into_std()?))
        }
        TokioFrontend::Unix(listener) => Ok(AcceptedSocket::ClientUnix(listener.accept().await?.0.into_std()?)),
    };
    tokio::join!(pool.accept_all(from_agents, drain.clone()), pool.accept_all(from_clients, drain.clone()));
}

enum TokioFrontend {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl FrontendListener {
    fn into_tokio(self) -> io::Result<TokioFrontend> {
        Ok(match self {
            FrontendListener::Tcp(listener) => TokioFrontend::Tcp(tokio::net::TcpListener::from_std(listener)?),
            FrontendListener::Unix(listener) => TokioFrontend::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }
}

/// Serves connections on the workers.
#[derive(Clone)]
struct ListenerService {
    server: Arc<KonnectivityServer>,
    mode: FrontendMode,
    agent_tls: TlsReader,
    frontend_tls: Option<TlsReader>,
}

impl ListenerService {
    async fn serve(self, socket: AcceptedSocket) -> io::Result<()> {
        // Boxed: a connection of one kind does not hold the memory of another.
        match socket {
            AcceptedSocket::Agent(socket) => Box::pin(self.serve_agent(socket)).await,
            AcceptedSocket::ClientTcp(socket) => {
                let Some(tls) = &self.frontend_tls else { return Ok(()) };
                let remote = socket.peer_addr()?;
                let stream = Box::pin(handshake(socket, tls)).await.inspect_err(|error| {
                    let error = format!("TLS handshake failed: {}", crate::tls::describe_error(error));
                    tracing::warn!(%remote, error, "connection of a client refused");
                    self.server.record_refused_connection("client", remote, &error);
                })?;
                let Some(stream) = stream else { return Ok(()) };
                Box::pin(self.serve_client(stream, |stream| reset(stream.get_ref()))).await;
                Ok(())
            }
            AcceptedSocket::ClientUnix(socket) => {
                // A Unix socket has no reset.
                Box::pin(self.serve_client(UnixStream::from_std(socket)?, |_| {})).await;
                Ok(())
            }
        }
    }

    async fn serve_agent(self, socket: std::net::TcpStream) -> io::Result<()> {
        let remote = socket.peer_addr()?;
        match handshake(socket, &self.agent_tls).await {
            Ok(None) => {}
            Ok(Some(stream)) => Box::pin(serve_agent_connection(self.server, stream, remote)).await,
            Err(error) => {
                let error = crate::tls::describe_error(&error);
                tracing::warn!(%remote, error, "TLS handshake with an agent failed");
                self.server.record_refused_connection("agent", remote, &format!("TLS handshake failed: {error}"));
            }
        }
        Ok(())
    }

    async fn serve_client<S>(self, mut stream: S, reset: impl FnOnce(&mut S))
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + PeerState + Unpin + 'static,
    {
        match self.mode {
            FrontendMode::Grpc => Box::pin(serve_grpc_frontend(self.server, stream)).await,
            FrontendMode::HttpConnect => {
                let serving = Box::pin(serve_connect_frontend(self.server, &mut stream));
                if serving.await == ConnectEnd::Broken {
                    reset(&mut stream);
                }
            }
        }
    }
}

/// Lets the client see that its connection did not end in order.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// `None` if the peer closes the connection before its first byte, as TCP probes of load balancers do.
///
/// Boxed, because the task of each connection has room for whatever is moved through it, also tasks without TLS.
async fn handshake(
    socket: std::net::TcpStream,
    tls: &TlsReader,
) -> io::Result<Option<Box<ServerTlsStream<TcpStream>>>> {
    let socket = TcpStream::from_std(socket)?;
    let shake_hands = async {
        match socket.peek(&mut [0]).await {
            Ok(0) => return Ok(None),
            // Some probes end with a reset.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            _ => {}
        }
        let config = tls.load().as_ref().clone();
        let stream = ServerTlsStream::accept(config, socket).await?;
        Ok(Some(Box::new(stream)))
    };
    timeout(HANDSHAKE_TIMEOUT, shake_hands).await?
}

fn describe_frontend(mode: FrontendMode, frontend: &FrontendAddress) -> String {
    let mode = match mode {
        FrontendMode::Grpc => "grpc",
        FrontendMode::HttpConnect => "http-connect",
    };
    match frontend {
        FrontendAddress::Unix { path, .. } => format!("{} ({mode})", path.display()),
        FrontendAddress::Tcp { address, .. } => format!("{address} ({mode})"),
    }
}

/// The health port of the reference.
fn respond(server: &KonnectivityServer, request: &HealthRequest<'_>) -> HealthResponse {
    match request.path {
        "/healthz" => HealthResponse::text(StatusCode::OK, "ok"),
        "/ready" | "/readyz" if server.is_draining() => {
            HealthResponse::text(StatusCode::INTERNAL_SERVER_ERROR, "the server is shutting down")
        }
        "/ready" | "/readyz" => match server.is_ready() {
            true => HealthResponse::text(StatusCode::OK, "ok"),
            false => HealthResponse::text(StatusCode::INTERNAL_SERVER_ERROR, "no connection to any proxy agent"),
        },
        "/metrics" => HealthResponse::metrics(request.format, server.render_metrics(request.format)),
        _ => HealthResponse::not_found(),
    }
}

/// The admin port of the reference, which also has a status page here.
fn respond_admin(server: &KonnectivityServer, request: &HealthRequest<'_>) -> HealthResponse {
    match request.path {
        "/metrics" => HealthResponse::metrics(request.format, server.render_metrics(request.format)),
        path if path.starts_with("/debug/pprof") => {
            HealthResponse::text(StatusCode::NOT_FOUND, "there are no profiles: this is not a Go program\n")
        }
        _ => HealthResponse::not_found(),
    }
}
