//! The running SOCKS5 server: start, status report, shutdown.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::users::Users;
use super::worker::Socks5Worker;
use super::{Socks5Files, connection};
use crate::admin::{self, AdminListener, AdminSocket, AdminState, StatusReport, timestamp};
use crate::commands::gateway::{EgressSettings, egress_report, remote_call_report};
use crate::commands::signals::{Shutdown, shut_down_on_signal};
use crate::commands::threads::{join_all, spawn_thread};
use crate::config::Socks5Config;
use crate::egress::{EgressConfigFile, EgressRoutes};
use crate::listen::{Acceptor, IncomingConnection, accept, bind, proxied_connections_within, raise_descriptor_limit};
use crate::observe::access::{AccessLog, TunnelAccessLog};
use crate::observe::health::{HealthCheck, HealthChecks};
use crate::observe::log::LogLevel;
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Drainer, FileErrors, Problem, Problems, Published, ShutdownPhase, WatchedFile};

/// Time for aborted connections to write their records.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// A running SOCKS5 server.
pub(super) struct Socks5Server {
    /// The admin listener; serves until the process ends.
    _admin: Option<AdminListener>,
    drainer: Drainer,
    drain_timeout: Duration,
    threads: Vec<JoinHandle<()>>,
    running: Arc<AtomicUsize>,
    access_log: Arc<AccessLog>,
}

impl Socks5Server {
    /// Starts the server. When this returns, it listens.
    ///
    /// # Errors
    /// Start failures, for example a port in use.
    pub(super) fn start(
        config: &Socks5Config,
        files: Socks5Files,
        log_level: LogLevel,
    ) -> Result<Socks5Server, Problems> {
        let listener = bind(config.listen, "--listen")?;
        let address = listener.local_addr().map_err(|error| Problem::new(config.listen, error))?;
        let (drainer, drain) = Drain::new();
        let metrics = Metrics::new();
        metrics.socks5().enable();
        let access_log = Arc::new(AccessLog::to_standard_error(&metrics)?);
        let file_errors = FileErrors::default();
        let Socks5Files { users, egress, admin_token } = files;
        let (users, routes) = follow_files(users, egress, &file_errors, &drain)?;

        let running = Arc::new(AtomicUsize::new(0));
        let descriptors = raise_descriptor_limit();
        let workers = WorkerTemplate {
            users,
            egress: EgressSettings { resolver: config.resolver, routes: routes.clone(), metrics: metrics.clone() },
            access_log: access_log.clone(),
            running: running.clone(),
            drain: drain.clone(),
        };
        let (acceptor, mut threads) = workers.spawn(config)?;
        let max_connections = match config.max_connections {
            0 => proxied_connections_within(descriptors),
            max => max,
        };
        let accept_drain = drain.clone();
        threads.push(spawn_thread("accept", move || accept(listener, acceptor, max_connections.max(1), accept_drain))?);

        let admin = match config.admin_address {
            Some(at) => {
                let token = admin_token.map(|(file, token)| {
                    admin::AdminTokenConfig::new(file, token, file_errors.reporter("admin-token"), drain.clone())
                });
                let status = Socks5Status {
                    address,
                    drain,
                    metrics,
                    access_log: access_log.clone(),
                    file_errors,
                    egress_routes: routes,
                    log_level,
                };
                Some(admin::spawn(AdminSocket::bind(at)?, status.state(token))?)
            }
            None => None,
        };
        tracing::info!(%address, "serving");
        if let Some(admin) = &admin {
            tracing::info!(address = %admin.local_addr, "admin listener");
        }
        if let Some((path, name)) = &config.egress {
            tracing::info!(selection = name, file = %path.display(), "connections go through an egress selection");
        }
        let drain_timeout = config.drain_timeout;
        Ok(Socks5Server { _admin: admin, drainer, drain_timeout, threads, running, access_log })
    }

    /// Waits for SIGTERM or SIGINT and drains; a second signal ends the process at once.
    pub(super) fn run_until_signal(self) -> ExitCode {
        let access_log = self.access_log.clone();
        let shutdown =
            Shutdown { serving: "Serving", ending: "open connections may finish", timeout: self.drain_timeout };
        let status = shut_down_on_signal(&shutdown, self.shut_down());
        access_log.flush();
        status
    }

    async fn shut_down(self) {
        self.drainer.advance(ShutdownPhase::Draining);
        let mut rest = join_all(self.threads);
        if tokio::time::timeout(self.drain_timeout, &mut rest).await.is_err() {
            let connections = self.running.load(Ordering::Relaxed);
            tracing::warn!(connections, "drain timeout: open connections are aborted");
            self.drainer.advance(ShutdownPhase::TimedOut);
            let _ = tokio::time::timeout(CUT_GRACE, &mut rest).await;
        }
    }
}

/// Publishes the users and the egress routes, and follows their files on a thread.
fn follow_files(
    users: Option<(WatchedFile<Users>, Users)>,
    egress: Option<(EgressConfigFile, EgressRoutes)>,
    file_errors: &FileErrors,
    drain: &Drain,
) -> Result<(Option<Published<Users>>, Published<EgressRoutes>), Problems> {
    let (users, users_file) = match users {
        None => (None, None),
        Some((file, users)) => {
            let (publisher, published) = Published::new(users);
            (Some(published), Some((file, publisher)))
        }
    };
    let (egress_file, routes) =
        egress.map_or_else(|| (None, EgressRoutes::default()), |(file, routes)| (Some(file), routes));
    let (routes_publisher, routes) = Published::new(routes);
    let (file_errors, drain) = (file_errors.clone(), drain.clone());
    let follow = async move || {
        let users = async {
            if let Some((file, publisher)) = users_file {
                file.publish_changes(publisher, file_errors.reporter("users"), drain.clone()).await;
            }
        };
        let egress = async {
            if let Some(file) = egress_file {
                file.follow(routes_publisher, file_errors.reporter("egress"), drain.clone()).await;
            }
        };
        tokio::join!(users, egress);
    };
    spawn_thread("files", follow)?;
    Ok((users, routes))
}

/// What all workers share.
struct WorkerTemplate {
    users: Option<Published<Users>>,
    egress: EgressSettings,
    access_log: Arc<AccessLog>,
    running: Arc<AtomicUsize>,
    drain: Drain,
}

impl WorkerTemplate {
    /// Starts a worker thread for each CPU. Returns the acceptor that hands connections to them.
    fn spawn(self, config: &Socks5Config) -> Result<(Acceptor, Vec<JoinHandle<()>>), Problems> {
        let (mut acceptor, mut threads) = (Acceptor::default(), Vec::new());
        let allow: Arc<[_]> = config.allow.clone().into();
        for number in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            let incoming = acceptor.add_worker();
            let (users, allow, running, drain) =
                (self.users.clone(), allow.clone(), self.running.clone(), self.drain.clone());
            let (access_log, egress) = (self.access_log.clone(), self.egress.clone());
            let (handshake_timeout, access) = (config.handshake_timeout, config.access);
            let selection = config.egress.as_ref().map(|(_, name)| name.clone());
            let work = async move || {
                let worker = Socks5Worker {
                    users,
                    allowed_destinations: allow,
                    handshake_timeout,
                    dialer: egress.dialer(),
                    selection,
                    metrics: egress.metrics.clone(),
                    tunnels: TunnelAccessLog::new(&access_log, access),
                };
                serve_connections(worker, incoming, running, drain).await;
            };
            threads.push(spawn_thread(&format!("worker-{number}"), work)?);
        }
        Ok((acceptor, threads))
    }
}

/// Serves the connections of `worker` until the acceptor has closed and all connections have ended.
async fn serve_connections(
    worker: Socks5Worker,
    mut incoming: mpsc::UnboundedReceiver<IncomingConnection>,
    running: Arc<AtomicUsize>,
    drain: Drain,
) {
    let worker = Rc::new(worker);
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            connection = incoming.recv() => match connection {
                Some(connection) => {
                    running.fetch_add(1, Ordering::Relaxed);
                    tasks.spawn_local(connection::serve(worker.clone(), connection, drain.clone()));
                }
                None => break,
            },
            Some(_) = tasks.join_next() => {
                running.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
    while tasks.join_next().await.is_some() {
        running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Inputs of the admin listener.
struct Socks5Status {
    address: SocketAddr,
    drain: Drain,
    metrics: Arc<Metrics>,
    access_log: Arc<AccessLog>,
    file_errors: FileErrors,
    egress_routes: Published<EgressRoutes>,
    log_level: LogLevel,
}

impl Socks5Status {
    fn state(self, token: Option<admin::AdminTokenConfig>) -> AdminState {
        let Socks5Status { address, drain, metrics, access_log, file_errors: mistakes, egress_routes: ways, log_level } =
            self;
        let leaving = drain.clone();
        let shutdown = HealthCheck::new("shutdown", move || {
            if leaving.phase() == ShutdownPhase::Serving { Ok(()) } else { Err("process is shutting down".to_owned()) }
        });
        let started = timestamp(SystemTime::now());
        let level = log_level.clone();
        let phase = drain.clone();
        let (counted, tasks, called) = (metrics.clone(), metrics.clone(), metrics.clone());
        AdminState {
            report: Arc::new(move || StatusReport {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started: started.clone(),
                phase: StatusReport::phase_name(phase.phase()).to_owned(),
                listen: vec![format!("socks5://{address}")],
                file_problems: mistakes.current(),
                egress: egress_report(&ways.get(), called.egress()),
                remote_calls: called.calls().status().iter().map(remote_call_report).collect(),
                log_level: level.current(),
                ..StatusReport::default()
            }),
            metrics,
            health: vec![
                HealthChecks::new("livez", [HealthCheck::ping()]),
                HealthChecks::new("readyz", [HealthCheck::ping(), access_log.check(), shutdown]),
                HealthChecks::new("healthz", [HealthCheck::ping()]),
            ],
            log_level,
            connections: Box::new(move || serde_json::json!({"connections": counted.socks5().connections()})),
            tasks: Box::new(move || serde_json::json!({"connections": tasks.socks5().connections()})),
            token,
            drain,
        }
    }
}
