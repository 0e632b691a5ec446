//! Metrics of the Konnectivity server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::histogram::{CONNECTION_BOUNDS, DEFAULT_BOUNDS, DurationHistogram, SERVER_BOUNDS};
use super::lease_calls::LeaseCalls;
use super::packets::StreamMetrics;
use crate::observe::metrics::exposition::{ExpositionFormat, MetricType, MetricsText};
use crate::observe::metrics::families::certificates::CertificateMetrics;
use crate::observe::metrics::procfs::ProcessStats;

/// Why a dial of the server failed; value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KonnectivityDialFailure {
    /// No agent serves the destination.
    NoAgent,
    /// The agent could not connect.
    ErrorResponse,
    /// The agent answered a dial that was canceled, or that it invented.
    UnrecognizedResponse,
    /// The client could not be told that the connection is open.
    SendResponse,
    /// The agent was lost.
    BackendClose,
    /// No response within `--backend-dial-timeout`.
    BackendDialTimeout,
    /// The client left before the response.
    FrontendClose,
}

const REASONS: [&str; 7] = [
    "no_agent",
    "error_response",
    "unrecognized_response",
    "send_rsp",
    "backend_close",
    "backend_dial_timeout",
    "frontend_close",
];

impl KonnectivityDialFailure {
    /// Value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        REASONS[self as usize]
    }
}

/// Counters of the Konnectivity server.
pub struct KonnectivityServerMetrics {
    dials: DurationHistogram,
    frontend_writes: DurationHistogram,
    connections: DurationHistogram,
    failures: [AtomicU64; REASONS.len()],
    /// Packets and errors of streams.
    pub streams: Arc<StreamMetrics>,
    /// Expiry of certificates.
    pub certificates: Arc<CertificateMetrics>,
    /// Lists of Leases.
    pub lease_lists: LeaseCalls,
    /// Deletions of expired Leases.
    pub lease_deletions: LeaseCalls,
    culled_leases: AtomicU64,
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
    /// Tunnels whose queue of data from the agent is full.
    pub full_from_agents: u64,
    /// Tunnels whose queue of data for the agent is full.
    pub full_to_agents: u64,
}

impl Default for KonnectivityServerMetrics {
    fn default() -> KonnectivityServerMetrics {
        KonnectivityServerMetrics {
            dials: DurationHistogram::new(&SERVER_BOUNDS),
            frontend_writes: DurationHistogram::new(&SERVER_BOUNDS),
            connections: DurationHistogram::new(&CONNECTION_BOUNDS),
            failures: Default::default(),
            streams: Arc::default(),
            certificates: Arc::default(),
            lease_lists: LeaseCalls::new(&DEFAULT_BOUNDS),
            lease_deletions: LeaseCalls::new(&DEFAULT_BOUNDS),
            culled_leases: AtomicU64::new(0),
        }
    }
}

impl KonnectivityServerMetrics {
    /// Records a successful dial.
    pub fn record_dial(&self, duration: Duration) {
        self.dials.observe(duration);
    }

    /// Counts a failed dial.
    pub fn record_dial_failure(&self, reason: KonnectivityDialFailure) {
        self.failures[reason as usize].fetch_add(1, Relaxed);
    }

    /// Records how long a client took to accept a packet of data.
    pub fn record_frontend_write(&self, duration: Duration) {
        self.frontend_writes.observe(duration);
    }

    /// Records how long a tunnel was open.
    pub fn record_connection(&self, duration: Duration) {
        self.connections.observe(duration);
    }

    /// Counts a Lease that was deleted because its server no longer renews it.
    pub fn record_culled_lease(&self) {
        self.culled_leases.fetch_add(1, Relaxed);
    }

    /// Renders all metrics.
    pub fn render(&self, gauges: &KonnectivityServerGauges, format: ExpositionFormat) -> String {
        let mut text = MetricsText::new(format);
        self.render_dials(&mut text);
        render_gauges(&mut text, gauges);
        let names = [
            "konnectivity_network_proxy_server_stream_packets_total",
            "konnectivity_network_proxy_server_stream_errors_total",
        ];
        self.streams.render(&mut text, names);
        self.render_leases(&mut text);
        self.certificates.render(&mut text);
        ProcessStats::read().render(&mut text);
        text.finish()
    }

    fn render_dials(&self, text: &mut MetricsText) {
        for (name, help, histogram) in [
            ("konnectivity_network_proxy_server_dial_duration_seconds", "Time of successful dials.", &self.dials),
            (
                "konnectivity_network_proxy_server_frontend_write_duration_seconds",
                "Time until a client accepts a packet of data.",
                &self.frontend_writes,
            ),
            (
                "konnectivity_network_proxy_server_connection_duration_seconds",
                "Time from the dial to the end of a tunnel.",
                &self.connections,
            ),
        ] {
            text.family(name, MetricType::Histogram, help);
            histogram.render(text, &[]);
        }
        text.family(
            "konnectivity_network_proxy_server_dial_failure_count",
            MetricType::Counter,
            "Failed dials, by reason.",
        );
        for (reason, count) in REASONS.into_iter().zip(&self.failures) {
            text.sample(&[("reason", reason)], count.load(Relaxed));
        }
    }

    fn render_leases(&self, text: &mut MetricsText) {
        const STATUS: &str = "http_status_code";
        text.family(
            "konnectivity_network_proxy_server_culled_leases_count",
            MetricType::Counter,
            "Leases deleted because their server no longer renews them.",
        );
        text.sample(&[], self.culled_leases.load(Relaxed));
        let lists = [
            "konnectivity_network_proxy_server_lease_list_total",
            "konnectivity_network_proxy_server_lease_list_latency_seconds",
        ];
        let deletions = [
            "konnectivity_network_proxy_server_lease_delete_total",
            "konnectivity_network_proxy_server_lease_delete_latency_seconds",
        ];
        for ([counter, latency], what, calls) in [
            (lists, ["Lists of Leases.", "Time of lists of Leases."], &self.lease_lists),
            (
                deletions,
                ["Deletions of expired Leases.", "Time of deletions of expired Leases."],
                &self.lease_deletions,
            ),
        ] {
            text.family(counter, MetricType::Counter, what[0]);
            calls.render_counts(text, STATUS);
            text.family(latency, MetricType::Histogram, what[1]);
            calls.render_durations(text, STATUS);
        }
    }
}

fn render_gauges(text: &mut MetricsText, gauges: &KonnectivityServerGauges) {
    for (name, help, value) in [
        ("konnectivity_network_proxy_server_established_connections", "Open tunnels.", gauges.established_connections),
        (
            "konnectivity_network_proxy_server_http_connections",
            "Open connections in HTTP-CONNECT mode.",
            gauges.http_connections,
        ),
        ("konnectivity_network_proxy_server_pending_backend_dials", "Dials without a response.", gauges.pending_dials),
        (
            "konnectivity_network_proxy_server_ready_backend_connections",
            "Connected agents; deprecated.",
            gauges.connect_streams,
        ),
    ] {
        text.family(name, MetricType::Gauge, help);
        text.sample(&[], value);
    }
    for (name, help, [connect, proxy]) in [
        (
            "konnectivity_network_proxy_server_grpc_connections",
            "Open calls, by method.",
            [gauges.connect_streams, gauges.proxy_streams],
        ),
        (
            "konnectivity_network_proxy_server_full_receive_channels",
            "Tunnels whose queue is full, by the method that the data comes from.",
            [gauges.full_from_agents, gauges.full_to_agents],
        ),
    ] {
        text.family(name, MetricType::Gauge, help);
        text.sample(&[("service_method", "Connect")], connect);
        text.sample(&[("service_method", "Proxy")], proxy);
    }
    text.family(
        "konnectivity_network_proxy_server_ready_backends",
        MetricType::Gauge,
        "Connected agents, by strategy that may choose them.",
    );
    for (strategy, count) in &gauges.ready_backends {
        text.sample(&[("proxy_strategy", strategy)], *count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::packets::{StreamPacketType, StreamSegment};
    use super::*;

    #[test]
    fn konnectivity_server_metrics_have_the_names_of_the_reference() {
        let server = KonnectivityServerMetrics::default();
        server.record_dial(Duration::from_millis(3));
        server.record_connection(Duration::from_secs(70));
        server.record_dial_failure(KonnectivityDialFailure::NoAgent);
        server.streams.record_packet(StreamSegment::FromAgent, StreamPacketType::DialResponse);
        server.streams.record_packet(StreamSegment::ToAgent, StreamPacketType::Unknown);
        server.streams.record_error(StreamSegment::FromAgent, "Canceled");
        server.lease_lists.record(403, Duration::from_millis(3));
        let gauges = KonnectivityServerGauges { ready_backends: vec![("default", 2)], ..Default::default() };
        let text = server.render(&gauges, ExpositionFormat::Classic);
        for line in [
            "dial_duration_seconds_bucket{le=\"0.0001\"} 0",
            "dial_duration_seconds_bucket{le=\"0.005\"} 1",
            "connection_duration_seconds_bucket{le=\"60\"} 0",
            "connection_duration_seconds_bucket{le=\"300\"} 1",
            "dial_failure_count{reason=\"no_agent\"} 1",
            "ready_backends{proxy_strategy=\"default\"} 2",
            "grpc_connections{service_method=\"Connect\"} 0",
            "stream_packets_total{segment=\"from_agent\",packet_type=\"DIAL_RSP\"} 1",
            "stream_packets_total{segment=\"to_agent\",packet_type=\"UNKNOWN\"} 1",
            "stream_errors_total{segment=\"from_agent\",code=\"Canceled\",packet_type=\"Unknown\"} 1",
            "lease_list_total{http_status_code=\"403\",reason=\"Forbidden\"} 1",
            "lease_list_latency_seconds_bucket{http_status_code=\"403\",le=\"0.005\"} 1",
        ] {
            let line = format!("konnectivity_network_proxy_server_{line}");
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
