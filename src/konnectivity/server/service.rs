//! The state of a Konnectivity server, shared by all its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::agent_token::AgentTokens;
use super::backend::TunnelDialFailure;
use super::backend_set::{BackendReport, BackendSet, ProxyStrategy};
use crate::konnectivity::MAX_ADDRESS_BYTES;
use crate::konnectivity::multiplexer::MultiplexedTunnel;
use crate::observe::metrics::{
    ExpositionFormat, KonnectivityDialFailure, KonnectivityServerGauges, KonnectivityServerMetrics,
};

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
    metrics: Arc<KonnectivityServerMetrics>,
    grpc_streams: AtomicU64,
    http_connections: AtomicU64,
    agent_streams: AtomicU64,
    is_draining: AtomicBool,
}

/// Counts something while it exists.
pub(super) struct OpenCount<'s>(&'s AtomicU64);

impl Drop for OpenCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
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
            is_draining: AtomicBool::new(false),
        })
    }

    /// Opens no more tunnels.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
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

    /// Opens a tunnel to `address` (host and port) through an agent.
    pub(super) async fn dial(&self, protocol: &str, address: &str) -> Result<MultiplexedTunnel, TunnelDialFailure> {
        let began = Instant::now();
        let result = async {
            if self.is_draining.load(Relaxed) {
                return Err(TunnelDialFailure::Draining);
            }
            let length = protocol.len() + address.len();
            if length > MAX_ADDRESS_BYTES {
                tracing::warn!(length, "dial refused: its address is too long");
                return Err(TunnelDialFailure::Agent(format!("dial: an address of {length} bytes is too long")));
            }
            let Some(backend) = self.backends.select(&self.settings.strategies, address) else {
                return Err(TunnelDialFailure::NoAgent);
            };
            let dial = backend.dial(protocol, address);
            match self.settings.dial_timeout {
                Some(limit) => tokio::time::timeout(limit, dial).await.unwrap_or(Err(TunnelDialFailure::Timeout)),
                None => dial.await,
            }
        };
        let result = result.await;
        match &result {
            Ok(_) => self.metrics.record_dial(began.elapsed()),
            Err(failure) => {
                self.metrics.record_dial_failure(match failure {
                    TunnelDialFailure::NoAgent | TunnelDialFailure::Draining => KonnectivityDialFailure::NoAgent,
                    TunnelDialFailure::Agent(_) => KonnectivityDialFailure::ErrorResponse,
                    TunnelDialFailure::AgentLost => KonnectivityDialFailure::BackendClose,
                    TunnelDialFailure::Timeout => KonnectivityDialFailure::BackendDialTimeout,
                });
                tracing::debug!(address, ?failure, "dial failed");
            }
        }
        result
    }

    /// Whether an agent is connected that the first strategy may choose.
    pub fn is_ready(&self) -> bool {
        self.backends.is_ready(&self.settings.strategies)
    }

    /// The connected agents.
    pub fn agents(&self) -> Vec<BackendReport> {
        self.backends.report()
    }

    /// Number of open tunnels.
    pub fn open_tunnels(&self) -> usize {
        self.backends.all().iter().map(|backend| backend.multiplexer.count().open).sum()
    }

    /// The metrics in Prometheus text format, with the names of the reference.
    pub fn render_metrics(&self, format: ExpositionFormat) -> String {
        let backends = self.backends.all();
        let strategies = self.settings.strategies.iter();
        let gauges = KonnectivityServerGauges {
            ready_backends: strategies.map(|it| (it.as_str(), self.backends.count(*it) as u64)).collect(),
            pending_dials: backends.iter().map(|backend| backend.pending_dials() as u64).sum(),
            established_connections: self.open_tunnels() as u64,
            proxy_streams: self.grpc_streams.load(Relaxed),
            connect_streams: self.agent_streams.load(Relaxed),
            http_connections: self.http_connections.load(Relaxed),
        };
        self.metrics.render(&gauges, format)
    }
}
