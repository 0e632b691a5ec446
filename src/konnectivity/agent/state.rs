//! State of the agent that the admin port reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::Notify;

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
    streams: Mutex<BTreeMap<StreamNumber, ServerConnection>>,
    /// Notified when a server drains: its successor may be there.
    pub(super) server_drain: Notify,
    pub(super) failed_connections: RecentFailures,
    pub(super) failed_dials: RecentFailures,
    /// Errors of files that changed.
    pub(super) file_errors: FileErrors,
    is_failing: AtomicBool,
    is_draining: AtomicBool,
}

/// Number of a stream. A server that drains and its successor may have the same id.
pub(super) type StreamNumber = u64;

struct ServerConnection {
    server_id: String,
    address: String,
    since: SystemTime,
    multiplexer: Arc<TunnelMultiplexer>,
    is_draining: bool,
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
            server_drain: Notify::new(),
            failed_connections: RecentFailures::default(),
            failed_dials: RecentFailures::default(),
            file_errors: FileErrors::default(),
            is_failing: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
        })
    }

    pub(super) fn add_server(
        &self,
        server_id: &str,
        address: String,
        multiplexer: Arc<TunnelMultiplexer>,
    ) -> StreamNumber {
        let mut streams = self.streams.lock();
        let number = streams.last_key_value().map_or(0, |(last, _)| last + 1);
        let (server_id, since) = (server_id.to_owned(), SystemTime::now());
        streams.insert(number, ServerConnection { server_id, address, since, multiplexer, is_draining: false });
        self.metrics.server_connections.store(streams.len() as u64, Relaxed);
        number
    }

    /// Removes a stream; returns the id of its server.
    pub(super) fn remove_server(&self, number: StreamNumber) -> Option<String> {
        let mut streams = self.streams.lock();
        let removed = streams.remove(&number);
        self.metrics.server_connections.store(streams.len() as u64, Relaxed);
        removed.map(|stream| stream.server_id)
    }

    /// The server opens no more tunnels; those of its stream go on.
    pub(super) fn set_server_draining(&self, multiplexer: &Arc<TunnelMultiplexer>) {
        let mut streams = self.streams.lock();
        let stream = streams.values_mut().find(|stream| Arc::ptr_eq(&stream.multiplexer, multiplexer));
        if let Some(stream) = stream.filter(|stream| !stream.is_draining) {
            stream.is_draining = true;
            tracing::info!(server = stream.server_id, "server drains; connecting to its successor");
            self.server_drain.notify_one();
        }
    }

    /// Whether there is a stream to a server of this id that does not drain.
    pub(super) fn is_connected_to(&self, server_id: &str) -> bool {
        self.streams.lock().values().any(|stream| stream.server_id == server_id && !stream.is_draining)
    }

    /// Number of servers that do not drain.
    pub(super) fn count_servers(&self) -> usize {
        self.streams.lock().values().filter(|stream| !stream.is_draining).count()
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
        let describe = |stream: &ServerConnection| {
            let (bytes_to_server, bytes_from_server) = stream.multiplexer.transferred_bytes();
            ConnectedServerReport {
                server_id: stream.server_id.clone(),
                address: stream.address.clone(),
                since: timestamp(stream.since),
                draining: stream.is_draining,
                flow_control: stream.multiplexer.has_windows(),
                tunnels: stream.multiplexer.open_tunnels(),
                stalled_tunnels: stream.multiplexer.count_stalled(),
                bytes_to_server,
                bytes_from_server,
            }
        };
        let stalled = streams.values().flat_map(|stream| stream.multiplexer.report_stalled(&stream.server_id));
        let stalled_tunnels: Vec<StalledTunnelReport> = stalled.take(MAX_LISTED).collect();
        KonnectivityAgentReport {
            role: AGENT_ROLE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: timestamp(self.started),
            phase: if self.is_draining.load(Relaxed) { "draining" } else { "serving" }.to_owned(),
            agent_id: self.agent_id.clone(),
            identifiers: self.identifiers.clone(),
            known_servers: self.metrics.known_servers.load(Relaxed),
            servers: streams.values().map(describe).collect(),
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
