//! The running proxy: listen, accept, shut down.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};

use super::handler::{ProxyConnection, ProxyContext};
use super::paths::Prefixes;
use crate::commands::signals::{Shutdown, shut_down_on_signal};
use crate::commands::threads::{join_all, spawn_thread};
use crate::config::ProxyConfig;
use crate::config::proxy::ProxyListenAddress;
use crate::egress::{Dialer, EgressRoutes, Resolver};
use crate::kubeclient::{Client, Kubeconfig};
use crate::listen::{Connections, ServerLimits, SocketFile, bind, serve_plain};
use crate::observe::Metrics;
use crate::observe::access::{AccessLog, ProxyAccessLog};
use crate::process::{self, Drain, Drainer, Problem, Problems, Published, ShutdownPhase};

/// Interval of closing idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Time for running requests to finish at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle timeout of a client connection; long, because people pause.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A running proxy.
pub(super) struct ProxyServer {
    drainer: Drainer,
    thread: JoinHandle<()>,
    _socket: Option<SocketFile>,
}

enum BoundListener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl ProxyServer {
    /// Starts the proxy. When this returns, it listens, and its address is on standard output.
    ///
    /// # Errors
    /// Start failures, for example a port in use.
    pub(super) fn start(config: ProxyConfig, kubeconfig: Kubeconfig) -> Result<ProxyServer, Problems> {
        if !kubeconfig.path().is_empty() && !config.append_server_path {
            // kubectl's text.
            tracing::warn!(
                "Your kube context contains a server path {}, use --append-server-path to automatically append the path \
                 to each request",
                kubeconfig.path()
            );
        }
        let (listening, socket, place) = match &config.listen {
            ProxyListenAddress::Tcp(address) => {
                let listener = bind(*address, "--port")?;
                let address = listener.local_addr().map_err(|error| Problem::new(address, error))?;
                tracing::info!(%address, server = %kubeconfig.server(), "serving");
                (BoundListener::Tcp(listener), None, address.to_string())
            }
            ProxyListenAddress::Unix(path) => {
                let listener = bind_socket(path)?;
                let socket_file = SocketFile::new(path).map_err(|error| Problem::new(path.display(), error))?;
                tracing::info!(path = %path.display(), server = %kubeconfig.server(), "serving");
                (BoundListener::Unix(listener), Some(socket_file), path.display().to_string())
            }
        };
        let (drainer, drain) = Drain::new();
        let metrics = Metrics::new();
        let access_log = AccessLog::to_standard_error(&metrics)?;
        let routes = EgressRoutes::from_environment(config.environment_proxies.as_ref())?;
        if let Some(environment) = &config.environment_proxies {
            environment.log_use();
        }
        // One thread: all clients share its connections to the server.
        let thread = spawn_thread("proxy", move || {
            let dialer = Dialer::new(Resolver::System, Published::fixed(routes), &metrics);
            run(config, kubeconfig, dialer, listening, access_log, drain)
        })?;
        // kubectl's text, which scripts wait for. A failed write has no reader.
        let _ = writeln!(io::stdout(), "Starting to serve on {place}");
        Ok(ProxyServer { drainer, thread, _socket: socket })
    }

    /// Waits for SIGTERM or SIGINT and drains; a second signal ends the process at once.
    pub(super) fn run_until_signal(self) -> ExitCode {
        let ProxyServer { drainer, thread, _socket } = self;
        let shutdown = Shutdown { serving: "Serving", ending: "running requests may finish", timeout: Duration::ZERO };
        shut_down_on_signal(&shutdown, async {
            drainer.advance(ShutdownPhase::Draining);
            let _ = join_all([thread]).await;
        })
    }
}

/// Binds a unix socket that only its owner can use, without a window of wider permissions.
fn bind_socket(path: &Path) -> Result<std::os::unix::net::UnixListener, Problem> {
    let problem = |error: io::Error| Problem::new(path.display(), format_args!("cannot listen: {error}"));
    // Remove the socket of a killed process; never any other kind of file.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path).map_err(problem)?;
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = std::os::unix::net::UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(problem)?;
    listener.set_nonblocking(true).map_err(problem)?;
    Ok(listener)
}

/// Serves until the process ends.
async fn run(
    config: ProxyConfig,
    kubeconfig: Kubeconfig,
    dialer: Dialer,
    listening: BoundListener,
    access_log: AccessLog,
    drain: Drain,
) {
    let client = Client::new(config.source, kubeconfig, dialer);
    tokio::task::spawn_local(client.clone().follow());
    let (files, files_prefix) = config.files.unzip();
    let context = Rc::new(ProxyContext {
        prefixes: Prefixes { api: config.api_prefix, files: files_prefix },
        files,
        filter: config.filter,
        append_server_path: config.append_server_path,
        keep_alive: config.keep_alive,
        client,
        access_log: ProxyAccessLog::new(&access_log, config.access),
    });
    let limits = ServerLimits { idle_timeout: IDLE_TIMEOUT, ..ServerLimits::default() };
    let connections = Connections::default();
    let served = match listening {
        BoundListener::Tcp(listener) => TcpListener::from_std(listener).map(Listener::Tcp),
        BoundListener::Unix(listener) => UnixListener::from_std(listener).map(Listener::Unix),
    };
    match served {
        Ok(listener) => accept(listener, &context, &limits, &connections, drain).await,
        Err(error) => tracing::error!(%error, "cannot accept connections"),
    }
    connections.close_gracefully();
    let until = tokio::time::Instant::now() + DRAIN_TIMEOUT;
    while !connections.is_empty() && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
        connections.sweep(&limits);
    }
    if !connections.is_empty() {
        tracing::warn!(connections = connections.len(), "drain timeout: open connections are aborted");
        connections.close_now();
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

async fn accept(
    listener: Listener,
    context: &Rc<ProxyContext>,
    limits: &ServerLimits,
    connections: &Connections,
    mut drain: Drain,
) {
    let mut round = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        let accepted = tokio::select! {
            biased;
            () = drain.wait_for(ShutdownPhase::Draining) => return,
            accepted = accept_one(&listener, context, limits, connections) => accepted,
            _ = round.tick() => {
                connections.sweep(limits);
                continue;
            }
        };
        if let Err(error) = accepted {
            // EMFILE and the like do not resolve by retrying at once.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Accepts one connection and serves it in its own task.
async fn accept_one(
    listener: &Listener,
    context: &Rc<ProxyContext>,
    limits: &ServerLimits,
    connections: &Connections,
) -> io::Result<()> {
    let context = context.clone();
    match listener {
        Listener::Tcp(listener) => {
            let (socket, remote) = listener.accept().await?;
            // On failure the client has already disconnected.
            if process::configure_socket_with_keep_alive(&socket, context.keep_alive).is_ok() {
                let make_service =
                    move |handle| ProxyConnection { context, remote: Some(remote.ip()), handle }.into_service();
                tokio::task::spawn_local(serve_plain(socket, remote, make_service, limits, connections));
            }
        }
        Listener::Unix(listener) => {
            let (socket, _) = listener.accept().await?;
            let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            let make_service = move |handle| ProxyConnection { context, remote: None, handle }.into_service();
            tokio::task::spawn_local(serve_plain(socket, nowhere, make_service, limits, connections));
        }
    }
    Ok(())
}
