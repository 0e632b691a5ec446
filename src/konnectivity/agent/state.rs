//! State of the agent that the admin port reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::konnectivity::multiplexer::TunnelMultiplexer;
use crate::konnectivity::recent_failures::RecentFailures;
use crate::konnectivity::report::{
    AGENT_ROLE, ConnectedServerReport, KonnectivityAgentReport, MAX_LISTED, StalledTunnelReport,
};
use crate::observe::metrics::KonnectivityAgentMetrics;
use crate::observe::times::timestamp;
use crate::process::FileErrors;

/// The connections of an agent, its counters and its last failures.
pub struct AgentState {
    agent_id: String,
    identifiers: String,
    started: SystemTime,
    /// Counters.
    pub metrics: Arc<KonnectivityAgentMetrics>,
    /// By server id.
    streams: Mutex<BTreeMap<String, ServerConnection>>,
    pub(super) failed_connections: RecentFailures,
    pub(super) failed_dials: RecentFailures,
    /// Errors of files that changed.
    pub(super) file_errors: FileErrors,
    is_failing: AtomicBool,
    is_draining: AtomicBool,
}

struct ServerConnection {
    address: SocketAddr,
    since: SystemTime,
    multiplexer: Arc<TunnelMultiplexer>,
}

impl AgentState {
    /// The state of an agent without connections.
    pub fn new(agent_id: &str, identifiers: &str) -> Arc<AgentState> {
        Arc::new(AgentState {
            agent_id: agent_id.to_owned(),
            identifiers: identifiers.to_owned(),
            started: SystemTime::now(),
            metrics: Arc::default(),
            streams: Mutex::default(),
            failed_connections: RecentFailures::default(),
            failed_dials: RecentFailures::default(),
            file_errors: FileErrors::default(),
            is_failing: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
        })
    }

    pub(super) fn add_server(&self, server_id: &str, address: SocketAddr, multiplexer: Arc<TunnelMultiplexer>) {
        let mut streams = self.streams.lock();
        let since = SystemTime::now();
        streams.insert(server_id.to_owned(), ServerConnection { address, since, multiplexer });
        self.metrics.server_connections.store(streams.len() as u64, Relaxed);
    }

    pub(super) fn remove_server(&self, server_id: &str) {
        let mut streams = self.streams.lock();
        streams.remove(server_id);
        self.metrics.server_connections.store(streams.len() as u64, Relaxed);
    }

    pub(super) fn is_connected_to(&self, server_id: &str) -> bool {
        self.streams.lock().contains_key(server_id)
    }

    pub(super) fn count_servers(&self) -> usize {
        self.streams.lock().len()
    }

    pub(super) fn multiplexers(&self) -> Vec<Arc<TunnelMultiplexer>> {
        self.streams.lock().values().map(|stream| stream.multiplexer.clone()).collect()
    }

    /// Whether the last attempt to connect to a server failed.
    pub(super) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Relaxed);
    }

    pub(super) fn set_draining(&self) {
        self.is_draining.store(true, Relaxed);
    }

    /// The state at this moment, but for its certificates.
    pub fn report(&self) -> KonnectivityAgentReport {
        let streams = self.streams.lock();
        let describe = |(server_id, stream): (&String, &ServerConnection)| {
            let (bytes_to_server, bytes_from_server) = stream.multiplexer.transferred_bytes();
            ConnectedServerReport {
                server_id: server_id.clone(),
                address: stream.address.to_string(),
                since: timestamp(stream.since),
                flow_control: stream.multiplexer.has_windows(),
                tunnels: stream.multiplexer.open_tunnels(),
                stalled_tunnels: stream.multiplexer.count_stalled(),
                bytes_to_server,
                bytes_from_server,
            }
        };
        let stalled = streams.iter().flat_map(|(server_id, stream)| stream.multiplexer.report_stalled(server_id));
        let stalled_tunnels: Vec<StalledTunnelReport> = stalled.take(MAX_LISTED).collect();
        KonnectivityAgentReport {
            role: AGENT_ROLE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: timestamp(self.started),
            phase: if self.is_draining.load(Relaxed) { "draining" } else { "serving" }.to_owned(),
            agent_id: self.agent_id.clone(),
            identifiers: self.identifiers.clone(),
            known_servers: self.metrics.known_servers.load(Relaxed),
            servers: streams.iter().map(describe).collect(),
            failing: self.is_failing.load(Relaxed),
            failed_connections: self.failed_connections.report(),
            pending_dials: self.metrics.pending_dials.load(Relaxed),
            endpoint_connections: self.metrics.endpoint_connections.load(Relaxed),
            stalled_tunnels,
            failed_dials: self.failed_dials.report(),
            certificates: Vec::new(),
            file_problems: self.file_errors.current(),
        }
    }
}
