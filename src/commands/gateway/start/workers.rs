//! The client listener, the threads that accept its connections, and the workers that serve them.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::commands::gateway::control_planes::ControlPlaneTable;
use crate::commands::gateway::health_listener::HealthListener;
use crate::commands::gateway::settings::{self, EgressSettings};
use crate::commands::gateway::state::GatewayState;
use crate::commands::gateway::worker::{ConnectionLimits, GatewayWorker, GatewayWorkers};
use crate::commands::gateway::worker_thread::serve_connections;
use crate::commands::threads::spawn_thread;
use crate::config::GatewayConfig;
use crate::listen::{
    Acceptor, Connections, ServerLimits, accept, bind, proxied_connections_within, raise_descriptor_limit,
};
use crate::observe::access::{self, AccessLog};
use crate::observe::health::HealthChecks;
use crate::observe::metrics::ClientConnections;
use crate::process::{Problem, Published};

/// Worker limit of a sidecar: each worker takes about a megabyte, every pod of a large machine has a sidecar, and four
/// workers forward more requests than one server answers.
const MAX_SIDECAR_WORKERS: usize = 4;

/// The bound listeners.
pub(super) struct Listeners {
    clients: TcpListener,
    /// The address of the client listener.
    pub(super) address: SocketAddr,
    /// Socket of the health listener, with `--proxy-endpoints-port`.
    health: Option<TcpListener>,
}

/// Running threads, and the connections of each worker.
pub(super) struct Workers {
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) connections: Vec<Connections>,
}

impl Listeners {
    /// Binds the ports.
    ///
    /// # Errors
    /// A port in use.
    pub(super) fn bind(config: &GatewayConfig) -> Result<Listeners, Problem> {
        let configured = config.serving.address;
        let clients = bind(configured, "--secure-port")?;
        let bound = clients.local_addr().map_err(|error| Problem::new(configured, error))?;
        // A dual-stack listener reports `[::]`; keep the configured address. An inherited one has its own.
        let ip = if bound.ip().is_unspecified() { configured.ip() } else { bound.ip() };
        let address = SocketAddr::new(ip, bound.port());
        let health = config.serving.health_address.map(|at| bind(at, "--proxy-endpoints-port")).transpose()?;
        Ok(Listeners { clients, address, health })
    }

    /// Starts the workers, and accepts connections.
    ///
    /// # Errors
    /// A thread cannot be spawned.
    pub(super) fn serve(
        self,
        config: &GatewayConfig,
        (shared, control_planes): (&Arc<GatewayState>, Option<Published<ControlPlaneTable>>),
        access_log: &Arc<AccessLog>,
        egress: &EgressSettings,
        health: Vec<HealthChecks>,
    ) -> Result<Workers, Problem> {
        let limits = settings::limits(config);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = if config.is_sidecar() { cores.min(MAX_SIDECAR_WORKERS) } else { cores };
        let descriptors = raise_descriptor_limit();
        let connection_limits = ConnectionLimits::new(descriptors, count);
        shared.metrics.set_connections_limit(connection_limits.total);
        let mut acceptor = Acceptor::default();
        let mut workers = Workers { threads: Vec::new(), connections: Vec::new() };
        for number in 0..count {
            let incoming = acceptor.add_worker();
            let connections = Connections::default();
            workers.connections.push(connections.clone());
            let (shared, access_log, limits) = (shared.clone(), access_log.clone(), limits.clone());
            let (recording, egress) = (config.observability.access, egress.clone());
            let control_planes = control_planes.clone();
            let work = async move || {
                let reports = access::WorkerRecorder::new(&shared.metrics, &access_log, recording);
                let worker = GatewayWorker::new(shared, reports, egress.dialer(), connection_limits);
                let workers = Rc::new(GatewayWorkers::new(worker, control_planes, egress, connection_limits));
                serve_connections(workers, incoming, limits, connections).await;
            };
            workers.threads.push(spawn_thread(&format!("worker-{number}"), work)?);
        }
        let (listener, drain) = (self.clients, shared.drain.clone());
        let max = max_connections(&limits, descriptors);
        let limit = (max < usize::MAX).then_some(max);
        shared.metrics.set_client_connections(ClientConnections { open: acceptor.open_connections(), limit });
        workers.threads.push(spawn_thread("accept", move || accept(listener, acceptor, max, drain))?);
        if let Some(listener) = self.health {
            let (tls, drain) = (shared.serving.config.clone(), shared.drain.clone());
            workers.threads.push(HealthListener { listener, tls, health, limits, drain }.start()?);
        }
        Ok(workers)
    }
}

/// The limit of client connections.
fn max_connections(limits: &ServerLimits, descriptors: Option<u64>) -> usize {
    if limits.max_connections != usize::MAX {
        return limits.max_connections;
    }
    proxied_connections_within(descriptors).max(16)
}
