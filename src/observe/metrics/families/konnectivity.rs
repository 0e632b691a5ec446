//! Metrics of the Konnectivity server and agent, with the names of the reference
//! (`apiserver-network-proxy/pkg/server/metrics`, `pkg/agent/metrics`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::observe::metrics::exposition::{ExpositionFormat, MetricType, MetricsText};

/// Bounds of `dial_duration_seconds` of the server, in nanoseconds and as printed.
const SERVER_DIAL_BOUNDS: [(u64, &str); 9] = [
    (1_000, "1e-06"),
    (10_000, "1e-05"),
    (100_000, "0.0001"),
    (5_000_000, "0.005"),
    (25_000_000, "0.025"),
    (100_000_000, "0.1"),
    (500_000_000, "0.5"),
    (2_500_000_000, "2.5"),
    (12_500_000_000, "12.5"),
];

/// Why a dial of the server failed; value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KonnectivityDialFailure {
    /// No agent serves the destination.
    NoAgent,
    /// The agent could not connect.
    ErrorResponse,
    /// The agent was lost.
    BackendClose,
    /// No response within `--backend-dial-timeout`.
    BackendDialTimeout,
}

const REASONS: [&str; 4] = ["no_agent", "error_response", "backend_close", "backend_dial_timeout"];

/// Counters of the Konnectivity server.
#[derive(Default)]
pub struct KonnectivityServerMetrics {
    dial_buckets: [AtomicU64; SERVER_DIAL_BOUNDS.len() + 1],
    dial_nanoseconds: AtomicU64,
    failures: [AtomicU64; REASONS.len()],
}

/// Current values of the Konnectivity server.
#[derive(Clone, Debug, Default)]
pub struct KonnectivityServerGauges {
    /// Agents by strategy.
    pub ready_backends: Vec<(&'static str, u64)>,
    /// Dials without a response.
    pub pending_dials: u64,
    /// Open tunnels.
    pub established_connections: u64,
    /// Open `/ProxyService/Proxy` calls.
    pub proxy_streams: u64,
    /// Open `/AgentService/Connect` calls.
    pub connect_streams: u64,
    /// Open connections in HTTP-CONNECT mode.
    pub http_connections: u64,
}

impl KonnectivityServerMetrics {
    /// Records a successful dial.
    pub fn record_dial(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = SERVER_DIAL_BOUNDS.iter().position(|(bound, _)| nanoseconds <= *bound);
        self.dial_buckets[bucket.unwrap_or(SERVER_DIAL_BOUNDS.len())].fetch_add(1, Relaxed);
        self.dial_nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// Counts a failed dial.
    pub fn record_dial_failure(&self, reason: KonnectivityDialFailure) {
        self.failures[reason as usize].fetch_add(1, Relaxed);
    }

    /// Renders all metrics.
    pub fn render(&self, gauges: &KonnectivityServerGauges, format: ExpositionFormat) -> String {
        let mut text = MetricsText::new(format);
        text.family(
            "konnectivity_network_proxy_server_dial_duration_seconds",
            MetricType::Histogram,
            "Time of successful dials.",
        );
        let buckets: Vec<u64> = self.dial_buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let printed = SERVER_DIAL_BOUNDS.map(|(_, printed)| printed);
        text.histogram(&[], &printed, &buckets, self.dial_nanoseconds.load(Relaxed) as f64 * 1e-9);
        text.family(
            "konnectivity_network_proxy_server_dial_failure_count",
            MetricType::Counter,
            "Failed dials, by reason.",
        );
        for (reason, count) in REASONS.into_iter().zip(&self.failures) {
            text.sample(&[("reason", reason)], count.load(Relaxed));
        }
        text.family("konnectivity_network_proxy_server_established_connections", MetricType::Gauge, "Open tunnels.");
        text.sample(&[], gauges.established_connections);
        text.family("konnectivity_network_proxy_server_grpc_connections", MetricType::Gauge, "Open calls, by method.");
        text.sample(&[("service_method", "Connect")], gauges.connect_streams);
        text.sample(&[("service_method", "Proxy")], gauges.proxy_streams);
        text.family(
            "konnectivity_network_proxy_server_http_connections",
            MetricType::Gauge,
            "Open connections in HTTP-CONNECT mode.",
        );
        text.sample(&[], gauges.http_connections);
        text.family(
            "konnectivity_network_proxy_server_pending_backend_dials",
            MetricType::Gauge,
            "Dials without a response.",
        );
        text.sample(&[], gauges.pending_dials);
        text.family(
            "konnectivity_network_proxy_server_ready_backend_connections",
            MetricType::Gauge,
            "Connected agents.",
        );
        text.sample(&[], gauges.connect_streams);
        text.family(
            "konnectivity_network_proxy_server_ready_backends",
            MetricType::Gauge,
            "Connected agents, by strategy that may choose them.",
        );
        for (strategy, count) in &gauges.ready_backends {
            text.sample(&[("proxy_strategy", strategy)], *count);
        }
        text.finish()
    }
}

/// Current values and counters of the Konnectivity agent.
#[derive(Default)]
pub struct KonnectivityAgentMetrics {
    /// Streams to servers.
    pub server_connections: AtomicU64,
    /// Servers that the agent should be connected to.
    pub known_servers: AtomicU64,
    /// Connections to targets.
    pub endpoint_connections: AtomicU64,
    /// Dials of targets that are not answered yet; not rendered.
    pub pending_dials: AtomicU64,
    /// Dials that got no answer in time.
    pub dial_timeouts: AtomicU64,
    /// Dials that failed otherwise.
    pub dial_failures: AtomicU64,
}

impl KonnectivityAgentMetrics {
    /// Renders all metrics.
    pub fn render(&self, format: ExpositionFormat) -> String {
        let mut text = MetricsText::new(format);
        text.family(
            "konnectivity_network_proxy_agent_endpoint_dial_failure_total",
            MetricType::Counter,
            "Failed dials of targets, by reason.",
        );
        text.sample(&[("reason", "timeout")], self.dial_timeouts.load(Relaxed));
        text.sample(&[("reason", "unknown")], self.dial_failures.load(Relaxed));
        for (name, help, value) in [
            ("konnectivity_network_proxy_agent_known_server_count", "Servers to connect to.", &self.known_servers),
            (
                "konnectivity_network_proxy_agent_open_endpoint_connections",
                "Open connections to targets.",
                &self.endpoint_connections,
            ),
            (
                "konnectivity_network_proxy_agent_open_server_connections",
                "Open streams to servers.",
                &self.server_connections,
            ),
        ] {
            text.family(name, MetricType::Gauge, help);
            text.sample(&[], value.load(Relaxed));
        }
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn konnectivity_metrics_have_the_names_of_the_reference() {
        let server = KonnectivityServerMetrics::default();
        server.record_dial(Duration::from_millis(3));
        server.record_dial_failure(KonnectivityDialFailure::NoAgent);
        let gauges = KonnectivityServerGauges { ready_backends: vec![("default", 2)], ..Default::default() };
        let text = server.render(&gauges, ExpositionFormat::Classic);
        for line in [
            "konnectivity_network_proxy_server_dial_duration_seconds_bucket{le=\"0.0001\"} 0",
            "konnectivity_network_proxy_server_dial_duration_seconds_bucket{le=\"0.005\"} 1",
            "konnectivity_network_proxy_server_dial_failure_count{reason=\"no_agent\"} 1",
            "konnectivity_network_proxy_server_ready_backends{proxy_strategy=\"default\"} 2",
            "konnectivity_network_proxy_server_grpc_connections{service_method=\"Connect\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        let agent = KonnectivityAgentMetrics::default();
        agent.endpoint_connections.fetch_add(3, Relaxed);
        let text = agent.render(ExpositionFormat::Classic);
        assert!(text.contains("\nkonnectivity_network_proxy_agent_open_endpoint_connections 3\n"), "{text}");
    }
}
