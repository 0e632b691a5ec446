//! The state of a Konnectivity server, shared by all its connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use super::agent_token::AgentTokens;
use super::backend::TunnelDialFailure;
use super::backend_set::{BackendSet, ProxyStrategy};
use crate::decision_cache::LogThrottle;
use crate::egress::DestinationPattern;
use crate::konnectivity::MAX_ADDRESS_BYTES;
use crate::konnectivity::destinations::check_destination;
use crate::konnectivity::multiplexer::MultiplexedTunnel;
use crate::konnectivity::recent_failures::{Failure, RecentFailures};
use crate::konnectivity::report::{ConnectedAgentReport, KonnectivityServerReport, MAX_LISTED, SERVER_ROLE};
use crate::observe::metrics::{
    ExpositionFormat, KonnectivityDialFailure, KonnectivityServerGauges, KonnectivityServerMetrics,
};
use crate::observe::times::timestamp;

/// Agents that get a dial, one after the other. A stream may end at any time: also that of an agent which finds that it
/// has one to this server already.
const MAX_DIAL_AGENTS: usize = 3;

/// Settings of a Konnectivity server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// `--server-id`, unique among the servers of a cluster.
    pub server_id: String,
    /// `--server-count`.
    pub server_count: u32,
    /// `--proxy-strategies`, in order.
    pub strategies: Vec<ProxyStrategy>,
    /// `--backend-dial-timeout`; none for no limit.
    pub dial_timeout: Option<Duration>,
    /// `--keepalive-time`: interval of pings to agents.
    pub keepalive: Duration,
    /// `--allow-destinations`; empty allows all.
    pub allow: Vec<DestinationPattern>,
    /// `--frontend-keepalive-time`: interval of pings to clients in gRPC mode.
    pub frontend_keepalive: Duration,
}

/// Protocol of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrontendKind {
    Grpc,
    HttpConnect,
}

/// A Konnectivity server.
pub struct KonnectivityServer {
    pub(super) settings: ServerSettings,
    pub(super) backends: BackendSet,
    /// None if the TLS handshake authenticates agents.
    pub(super) agent_tokens: Option<AgentTokens>,
    pub(super) metrics: Arc<KonnectivityServerMetrics>,
    grpc_streams: AtomicU64,
    http_connections: AtomicU64,
    agent_streams: AtomicU64,
    agent_connections: AtomicU64,
    /// Clients with a dial and without its response.
    unanswered_clients: AtomicU64,
    /// For clients and agents that connect and say nothing.
    pub(super) silence_log: LogThrottle,
    is_draining: AtomicBool,
    started: SystemTime,
    failed_dials: RecentFailures,
    refused_connections: RecentFailures,
}

/// Counts something while it exists.
pub(super) struct OpenCount<'s>(&'s AtomicU64);

impl Drop for OpenCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Records how long a tunnel was open when it is dropped.
pub(super) struct ConnectionTimer<'s> {
    metrics: &'s KonnectivityServerMetrics,
    began: Instant,
}

impl Drop for ConnectionTimer<'_> {
    fn drop(&mut self) {
        self.metrics.record_connection(self.began.elapsed());
    }
}

/// Counts a dial whose client leaves before the response.
struct DialGuard<'s> {
    metrics: &'s KonnectivityServerMetrics,
    is_answered: bool,
}

impl Drop for DialGuard<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.metrics.record_dial_failure(KonnectivityDialFailure::FrontendClose);
        }
    }
}

fn count(counter: &AtomicU64) -> OpenCount<'_> {
    counter.fetch_add(1, Relaxed);
    OpenCount(counter)
}

impl KonnectivityServer {
    /// Creates a server without agents. Without `agent_tokens`, the TLS handshake must authenticate them.
    pub fn new(
        settings: ServerSettings,
        agent_tokens: Option<AgentTokens>,
        metrics: Arc<KonnectivityServerMetrics>,
    ) -> Arc<KonnectivityServer> {
        Arc::new(KonnectivityServer {
            settings,
            backends: BackendSet::default(),
            agent_tokens,
            metrics,
            grpc_streams: AtomicU64::new(0),
            http_connections: AtomicU64::new(0),
            agent_streams: AtomicU64::new(0),
            agent_connections: AtomicU64::new(0),
            unanswered_clients: AtomicU64::new(0),
            silence_log: LogThrottle::default(),
            is_draining: AtomicBool::new(false),
            started: SystemTime::now(),
            failed_dials: RecentFailures::default(),
            refused_connections: RecentFailures::default(),
        })
    }

    /// Opens no more tunnels, and tells the agents so: they look for another server.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
        for backend in self.backends.all() {
            backend.send_drain();
        }
    }

    /// Whether the server opens no more tunnels.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Ends the streams of all agents, each after its last packet.
    pub fn finish_agent_streams(&self) {
        for backend in self.backends.all() {
            backend.multiplexer.finish();
        }
    }

    /// Number of connections of agents. They end after their streams, when the agents have got everything.
    pub fn agent_connections(&self) -> u64 {
        self.agent_connections.load(Relaxed)
    }

    pub(super) fn count_agent_connection(&self) -> OpenCount<'_> {
        count(&self.agent_connections)
    }

    pub(super) fn count_frontend(&self, kind: FrontendKind) -> OpenCount<'_> {
        count(match kind {
            FrontendKind::Grpc => &self.grpc_streams,
            FrontendKind::HttpConnect => &self.http_connections,
        })
    }

    pub(super) fn count_agent_stream(&self) -> OpenCount<'_> {
        count(&self.agent_streams)
    }

    pub(super) fn time_connection(&self) -> ConnectionTimer<'_> {
        ConnectionTimer { metrics: &self.metrics, began: Instant::now() }
    }

    /// Opens a tunnel to `address` (host and port) through an agent.
    pub(super) async fn dial(&self, protocol: &str, address: &str) -> Result<MultiplexedTunnel, TunnelDialFailure> {
        let began = Instant::now();
        let mut guard = DialGuard { metrics: &self.metrics, is_answered: false };
        let mut agent_id = String::new();
        let result = async {
            if self.is_draining() {
                return Err(TunnelDialFailure::Draining);
            }
            let length = protocol.len() + address.len();
            if length > MAX_ADDRESS_BYTES {
                tracing::warn!(length, "dial refused: its address is too long");
                return Err(TunnelDialFailure::Agent(format!("dial: an address of {length} bytes is too long")));
            }
            if !self.settings.allow.is_empty()
                && let Err(why) = check_destination(protocol, address, &self.settings.allow, "server")
            {
                // The error names the address.
                tracing::warn!("dial refused: {why}");
                return Err(TunnelDialFailure::Refused(why));
            }
            let dial = self.dial_through_agents(protocol, address, &mut agent_id);
            match self.settings.dial_timeout {
                Some(limit) => tokio::time::timeout(limit, dial).await.unwrap_or(Err(TunnelDialFailure::Timeout)),
                None => dial.await,
            }
        };
        let result = result.await;
        guard.is_answered = true;
        match &result {
            Ok(_) => self.metrics.record_dial(began.elapsed()),
            Err(failure) => {
                let reason = match failure {
                    TunnelDialFailure::NoAgent | TunnelDialFailure::Draining => KonnectivityDialFailure::NoAgent,
                    TunnelDialFailure::Refused(_) | TunnelDialFailure::Agent(_) => {
                        KonnectivityDialFailure::ErrorResponse
                    }
                    TunnelDialFailure::AgentLost => KonnectivityDialFailure::BackendClose,
                    TunnelDialFailure::Timeout => KonnectivityDialFailure::BackendDialTimeout,
                };
                self.metrics.record_dial_failure(reason);
                let is_refused = matches!(failure, TunnelDialFailure::Refused(_));
                let reason = if is_refused { "refused" } else { reason.as_str() };
                let error = failure.describe();
                self.failed_dials.record(Failure { reason, address, agent_id: &agent_id, error });
                tracing::debug!(address, ?failure, "dial failed");
            }
        }
        result
    }

    /// Sends a dial to an agent, and to another one if its stream ends before it answers. Sets `agent_id` to that of the
    /// last one.
    async fn dial_through_agents(
        &self,
        protocol: &str,
        address: &str,
        agent_id: &mut String,
    ) -> Result<MultiplexedTunnel, TunnelDialFailure> {
        let mut lost = Vec::new();
        let mut result = Err(TunnelDialFailure::NoAgent);
        while let Some(backend) = self.backends.select(&self.settings.strategies, address, &lost) {
            agent_id.clone_from(&backend.agent_id);
            result = backend.dial(protocol, address).await;
            lost.push(backend);
            if !matches!(result, Err(TunnelDialFailure::AgentLost)) || lost.len() == MAX_DIAL_AGENTS {
                break;
            }
        }
        result
    }

    /// Whether an agent is connected that the first strategy may choose.
    pub fn is_ready(&self) -> bool {
        self.backends.is_ready(&self.settings.strategies)
    }

    /// Remembers for the status that the connection of an `agent` or a `client` was refused.
    pub fn record_refused_connection(&self, peer: &str, remote: SocketAddr, error: &str) {
        // Without the port: it is another one each time.
        let address = remote.ip().to_canonical().to_string();
        self.refused_connections.record(Failure { reason: peer, address: &address, agent_id: "", error });
    }

    /// The connected agents.
    pub fn agents(&self) -> Vec<ConnectedAgentReport> {
        self.backends.all().iter().map(|backend| backend.report()).collect()
    }

    /// The state of the server, but for its listeners, certificates and files.
    pub fn report(&self) -> KonnectivityServerReport {
        let backends = self.backends.all();
        let mut pending_dials: Vec<_> = backends.iter().flat_map(|backend| backend.report_pending()).collect();
        pending_dials.sort_by(|a, b| a.since.cmp(&b.since));
        pending_dials.truncate(MAX_LISTED);
        let stalled = backends.iter().flat_map(|backend| backend.multiplexer.report_stalled(&backend.agent_id));
        KonnectivityServerReport {
            role: SERVER_ROLE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: timestamp(self.started),
            phase: if self.is_draining() { "draining" } else { "serving" }.to_owned(),
            server_id: self.settings.server_id.clone(),
            server_count: self.settings.server_count,
            listen: Vec::new(),
            strategies: self.settings.strategies.iter().map(|strategy| strategy.as_str().to_owned()).collect(),
            ready: self.is_ready(),
            agents: backends.iter().map(|backend| backend.report()).collect(),
            pending_dials,
            stalled_tunnels: stalled.take(MAX_LISTED).collect(),
            failed_dials: self.failed_dials.report(),
            refused_connections: self.refused_connections.report(),
            certificates: Vec::new(),
            file_problems: Vec::new(),
        }
    }

    /// Number of dials whose client has no response, and of tunnels whose client has not got everything.
    pub fn unfinished(&self) -> (u64, usize) {
        // In this order: a dial becomes a tunnel before its client has the response.
        let dials = self.unanswered_clients.load(Relaxed);
        (dials, self.backends.unfinished_tunnels())
    }

    /// Counts a client until it has the response to its dial.
    pub(super) fn count_unanswered_client(&self) -> OpenCount<'_> {
        count(&self.unanswered_clients)
    }

    /// Number of open tunnels.
    pub fn open_tunnels(&self) -> usize {
        self.backends.all().iter().map(|backend| backend.multiplexer.open_tunnels()).sum()
    }

    /// The metrics in Prometheus text format, with the names of the reference.
    pub fn render_metrics(&self, format: ExpositionFormat) -> String {
        let backends = self.backends.all();
        let strategies = self.settings.strategies.iter();
        let full = backends.iter().map(|backend| backend.multiplexer.count_full());
        let [from, to] = full.fold([0, 0], |sum, count| [sum[0] + count[0], sum[1] + count[1]]);
        let gauges = KonnectivityServerGauges {
            ready_backends: strategies.map(|it| (it.as_str(), self.backends.count(*it) as u64)).collect(),
            pending_dials: backends.iter().map(|backend| backend.pending_dials() as u64).sum(),
            established_connections: self.open_tunnels() as u64,
            proxy_streams: self.grpc_streams.load(Relaxed),
            connect_streams: self.agent_streams.load(Relaxed),
            http_connections: self.http_connections.load(Relaxed),
            full_from_agents: from as u64,
            full_to_agents: to as u64,
        };
        self.metrics.render(&gauges, format)
    }
}
