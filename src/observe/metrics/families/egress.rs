//! Metrics of connections through egress proxies, with Kubernetes' names
//! (`k8s.io/apiserver/pkg/server/egressselector/metrics`).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::observe::metrics::counters::{EGRESS_SECONDS, Histogram};
use crate::observe::metrics::exposition::{MetricType, MetricsText};
use crate::observe::metrics::families::reviews::render_histogram;

/// Number, result and duration of dials through egress proxies. As in Kubernetes, direct connections are not counted.
#[derive(Default)]
pub struct EgressMetrics {
    dials: Mutex<BTreeMap<DialLabels, DialCounts>>,
    /// Tunnels with an agent that does not read, by selection.
    stuck: Mutex<BTreeMap<String, usize>>,
}

/// Proxy protocol and transport.
type DialLabels = (&'static str, &'static str);

struct DialCounts {
    started: u64,
    /// Dials that failed before the proxy was asked to connect, and after.
    failed: [u64; 2],
    durations: Histogram,
}

impl Default for DialCounts {
    fn default() -> DialCounts {
        DialCounts { started: 0, failed: [0; 2], durations: Histogram::new(&EGRESS_SECONDS) }
    }
}

impl EgressMetrics {
    /// Counts the start of a dial. `protocol` is `socks5`, `http_connect` or `grpc`; `transport` is `tcp` or `uds`.
    pub fn record_start(&self, protocol: &'static str, transport: &'static str) {
        self.dials.lock().entry((protocol, transport)).or_default().started += 1;
    }

    /// Counts a successful dial.
    pub fn record_success(&self, protocol: &'static str, transport: &'static str, duration: Duration) {
        self.dials.lock().entry((protocol, transport)).or_default().durations.observe_duration(duration);
    }

    /// Counts a failed dial; `was_connect_sent` if the proxy had been asked to connect.
    pub fn record_failure(&self, protocol: &'static str, transport: &'static str, was_connect_sent: bool) {
        self.dials.lock().entry((protocol, transport)).or_default().failed[usize::from(was_connect_sent)] += 1;
    }

    /// Replaces a thread's number of stuck tunnels of `selection`: `now` instead of `before`.
    pub fn update_stuck(&self, selection: &str, before: usize, now: usize) {
        let mut stuck = self.stuck.lock();
        let all = match stuck.get_mut(selection) {
            Some(all) => all,
            None => stuck.entry(selection.to_owned()).or_default(),
        };
        *all = (*all + now).saturating_sub(before);
    }

    /// Tunnels of `selection` with an agent that does not read.
    pub fn stuck_tunnels(&self, selection: &str) -> usize {
        self.stuck.lock().get(selection).copied().unwrap_or_default()
    }

    /// Family `narthex_egress_stuck_tunnels`. Empty without Konnectivity over gRPC.
    pub(in crate::observe::metrics) fn render_stuck(&self, text: &mut MetricsText) {
        let stuck = self.stuck.lock();
        if !stuck.is_empty() {
            text.family(
                "narthex_egress_stuck_tunnels",
                MetricType::Gauge,
                "Konnectivity tunnels with an agent that has not read any data for two seconds, by selection.",
            );
        }
        for (selection, all) in stuck.iter() {
            text.sample(&[("selection", selection.as_str())], *all as u64);
        }
    }

    /// Families `apiserver_egress_dialer_*`. Empty without egress proxies.
    pub(in crate::observe::metrics) fn render_dials(&self, text: &mut MetricsText) {
        let dials = self.dials.lock();
        if dials.is_empty() {
            return;
        }
        text.family(
            "apiserver_egress_dialer_dial_duration_seconds",
            MetricType::Histogram,
            "[ALPHA] Dial latency histogram in seconds, labeled by the protocol (http-connect, grpc or socks5) and \
             transport (tcp or uds).",
        );
        for ((protocol, transport), dials) in dials.iter() {
            let labels = [("protocol", *protocol), ("transport", *transport)];
            render_histogram(text, &labels, &dials.durations, EGRESS_SECONDS.printed);
        }
        text.family(
            "apiserver_egress_dialer_dial_failure_count",
            MetricType::Counter,
            "[ALPHA] Dial failure count, labeled by the protocol (http-connect, grpc or socks5), transport (tcp or \
             uds), and stage (connect or proxy). The stage indicates at which stage the dial failed.",
        );
        for ((protocol, transport), dials) in dials.iter() {
            for (stage, count) in ["connect", "proxy"].into_iter().zip(dials.failed) {
                if count > 0 {
                    text.sample(&[("protocol", *protocol), ("stage", stage), ("transport", *transport)], count);
                }
            }
        }
        text.family(
            "apiserver_egress_dialer_dial_start_total",
            MetricType::Counter,
            "[ALPHA] Dial starts, labeled by the protocol (http-connect, grpc or socks5) and transport (tcp or uds).",
        );
        for ((protocol, transport), dials) in dials.iter() {
            text.sample(&[("protocol", *protocol), ("transport", *transport)], dials.started);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    #[test]
    fn egress_metrics_render_counted_dials_only() {
        let egress = EgressMetrics::default();
        let render = |egress: &EgressMetrics| {
            let mut text = MetricsText::new(ExpositionFormat::Classic);
            egress.render_dials(&mut text);
            egress.render_stuck(&mut text);
            text.finish()
        };
        assert_eq!(render(&egress), "");
        for _ in 0..3 {
            egress.record_start("socks5", "tcp");
        }
        egress.record_success("socks5", "tcp", Duration::from_millis(30));
        egress.record_failure("socks5", "tcp", false);
        egress.record_failure("socks5", "tcp", true);
        let text = render(&egress);
        for line in [
            "apiserver_egress_dialer_dial_duration_seconds_bucket{protocol=\"socks5\",transport=\"tcp\",le=\"0.025\"} 0",
            "apiserver_egress_dialer_dial_duration_seconds_bucket{protocol=\"socks5\",transport=\"tcp\",le=\"0.1\"} 1",
            "apiserver_egress_dialer_dial_duration_seconds_count{protocol=\"socks5\",transport=\"tcp\"} 1",
            "apiserver_egress_dialer_dial_failure_count{protocol=\"socks5\",stage=\"connect\",transport=\"tcp\"} 1",
            "apiserver_egress_dialer_dial_failure_count{protocol=\"socks5\",stage=\"proxy\",transport=\"tcp\"} 1",
            "apiserver_egress_dialer_dial_start_total{protocol=\"socks5\",transport=\"tcp\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(!text.contains("stuck"));
        // Two threads; the tunnels of the first recover.
        egress.update_stuck("site-b", 0, 2);
        egress.update_stuck("site-b", 0, 1);
        egress.update_stuck("site-b", 2, 0);
        let text = render(&egress);
        assert_eq!((egress.stuck_tunnels("site-b"), egress.stuck_tunnels("other")), (1, 0));
        assert!(text.contains("\nnarthex_egress_stuck_tunnels{selection=\"site-b\"} 1\n"), "{text}");
    }
}
