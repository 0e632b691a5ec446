//! Metrics of the Konnectivity agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::histogram::{AGENT_BOUNDS, DurationHistogram};
use super::lease_calls::LeaseCalls;
use super::packets::{StreamMetrics, StreamSegment};
use crate::observe::metrics::exposition::{ExpositionFormat, MetricType, MetricsText};
use crate::observe::metrics::families::certificates::CertificateMetrics;
use crate::observe::metrics::procfs::ProcessStats;

/// Current values and counters of the Konnectivity agent.
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
    dials: DurationHistogram,
    /// Packets and errors of streams.
    pub streams: Arc<StreamMetrics>,
    /// Expiry of certificates.
    pub certificates: Arc<CertificateMetrics>,
    /// Lists of Leases.
    pub lease_lists: LeaseCalls,
    /// Watches of Leases.
    pub lease_watches: LeaseCalls,
}

impl Default for KonnectivityAgentMetrics {
    fn default() -> KonnectivityAgentMetrics {
        KonnectivityAgentMetrics {
            server_connections: AtomicU64::new(0),
            known_servers: AtomicU64::new(0),
            endpoint_connections: AtomicU64::new(0),
            pending_dials: AtomicU64::new(0),
            dial_timeouts: AtomicU64::new(0),
            dial_failures: AtomicU64::new(0),
            dials: DurationHistogram::new(&AGENT_BOUNDS),
            streams: Arc::default(),
            certificates: Arc::default(),
            lease_lists: LeaseCalls::new(&AGENT_BOUNDS),
            lease_watches: LeaseCalls::new(&AGENT_BOUNDS),
        }
    }
}

impl KonnectivityAgentMetrics {
    /// Records a successful dial of a target.
    pub fn record_dial(&self, duration: Duration) {
        self.dials.observe(duration);
    }

    /// Renders all metrics.
    pub fn render(&self, format: ExpositionFormat) -> String {
        let mut text = MetricsText::new(format);
        text.family(
            "konnectivity_network_proxy_agent_dial_duration_seconds",
            MetricType::Histogram,
            "Time of successful dials of targets.",
        );
        self.dials.render(&mut text, &[]);
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
        let names = [
            "konnectivity_network_proxy_agent_stream_packets_total",
            "konnectivity_network_proxy_agent_stream_errors_total",
        ];
        self.streams.render(&mut text, names);
        text.family(
            "konnectivity_network_proxy_agent_server_connection_failure_count",
            MetricType::Counter,
            "Streams to servers that broke, by direction; deprecated.",
        );
        text.sample(&[("direction", "from_server")], self.streams.errors_of(StreamSegment::ToAgent));
        text.sample(&[("direction", "to_server")], self.streams.errors_of(StreamSegment::FromAgent));
        self.render_leases(&mut text);
        self.certificates.render(&mut text);
        ProcessStats::read().render(&mut text);
        text.finish()
    }

    fn render_leases(&self, text: &mut MetricsText) {
        const STATUS: &str = "http_response_code";
        text.family(
            "konnectivity_network_proxy_agent_lease_lists_total",
            MetricType::Counter,
            "Lists of the Leases of servers.",
        );
        self.lease_lists.render_counts(text, STATUS);
        text.family(
            "konnectivity_network_proxy_agent_lease_watches_total",
            MetricType::Counter,
            "Watches of the Leases of servers.",
        );
        self.lease_watches.render_counts(text, STATUS);
        text.family(
            "konnectivity_network_proxy_agent_lease_list_latency_seconds",
            MetricType::Histogram,
            "Time of lists of the Leases of servers.",
        );
        self.lease_lists.render_durations(text, STATUS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn konnectivity_agent_metrics_have_the_names_of_the_reference() {
        let agent = KonnectivityAgentMetrics::default();
        agent.endpoint_connections.fetch_add(3, Relaxed);
        agent.record_dial(Duration::from_millis(30));
        agent.streams.record_error(StreamSegment::ToAgent, "Unavailable");
        agent.lease_lists.record(200, Duration::from_millis(3));
        let text = agent.render(ExpositionFormat::Classic);
        for line in [
            "open_endpoint_connections 3",
            "dial_duration_seconds_bucket{le=\"0.1\"} 1",
            "server_connection_failure_count{direction=\"from_server\"} 1",
            "lease_lists_total{http_response_code=\"200\",reason=\"\"} 1",
            "lease_list_latency_seconds_bucket{http_response_code=\"200\",le=\"0.005\"} 1",
        ] {
            let line = format!("konnectivity_network_proxy_agent_{line}");
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
