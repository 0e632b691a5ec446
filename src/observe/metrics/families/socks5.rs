//! Metrics of the SOCKS5 proxy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Why a client disconnected or was rejected before the reply to its request; value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socks5HandshakeFailure {
    /// The client does not use SOCKS5.
    Version,
    /// The client offers no acceptable authentication method.
    Method,
    /// Unknown user or wrong password.
    Credentials,
    /// The handshake timed out.
    Timeout,
    /// The client disconnected.
    Closed,
}

/// Labels of the nine replies of RFC 1928, by number.
pub const REPLY_LABELS: [&str; 9] = [
    "succeeded",
    "general_failure",
    "not_allowed",
    "network_unreachable",
    "host_unreachable",
    "connection_refused",
    "ttl_expired",
    "command_not_supported",
    "address_type_not_supported",
];
const REASONS: [&str; 5] = ["version", "method", "credentials", "timeout", "closed"];

/// Counters of the SOCKS5 proxy; rendered only if it is enabled.
#[derive(Default)]
pub struct Socks5Metrics {
    enabled: AtomicBool,
    open: AtomicU64,
    replies: [AtomicU64; REPLY_LABELS.len()],
    unanswered: [AtomicU64; REASONS.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

/// Counts a connection as open until it is dropped.
pub struct OpenConnectionGuard<'d>(&'d Socks5Metrics);

impl Socks5Metrics {
    /// Enables the metrics: this process is a SOCKS5 proxy.
    pub fn enable(&self) {
        self.enabled.store(true, Relaxed);
    }

    /// Counts an accepted connection as open.
    pub fn connection_opened(&self) -> OpenConnectionGuard<'_> {
        self.open.fetch_add(1, Relaxed);
        OpenConnectionGuard(self)
    }

    /// Counts a reply by its number.
    pub fn record_reply(&self, number: u8) {
        if let Some(count) = self.replies.get(usize::from(number)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts a client without a reply.
    pub fn record_unanswered(&self, reason: Socks5HandshakeFailure) {
        self.unanswered[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts bytes received from and sent to a client.
    pub fn record_bytes(&self, received: u64, sent: u64) {
        self.received.fetch_add(received, Relaxed);
        self.sent.fetch_add(sent, Relaxed);
    }

    /// Number of open connections.
    pub fn connections(&self) -> u64 {
        self.open.load(Relaxed)
    }

    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        if !self.enabled.load(Relaxed) {
            return;
        }
        text.family(
            "narthex_socks5_bytes_total",
            MetricType::Counter,
            "Bytes relayed, by direction from the client's view.",
        );
        text.sample(&[("direction", "received")], self.sent.load(Relaxed));
        text.sample(&[("direction", "sent")], self.received.load(Relaxed));
        text.family("narthex_socks5_connections", MetricType::Gauge, "Open client connections.");
        text.sample(&[], self.open.load(Relaxed));
        text.family("narthex_socks5_replies_total", MetricType::Counter, "CONNECT requests, by reply.");
        for (reply, count) in REPLY_LABELS.into_iter().zip(&self.replies) {
            text.sample(&[("reply", reply)], count.load(Relaxed));
        }
        text.family(
            "narthex_socks5_unanswered_total",
            MetricType::Counter,
            "Clients that disconnected or were rejected before a reply, by reason.",
        );
        for (reason, count) in REASONS.into_iter().zip(&self.unanswered) {
            text.sample(&[("reason", reason)], count.load(Relaxed));
        }
    }
}

impl Socks5HandshakeFailure {
    /// Value of the label.
    pub fn as_str(self) -> &'static str {
        REASONS[self as usize]
    }
}

impl Drop for OpenConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    #[test]
    fn socks5_metrics_render_only_when_enabled() {
        let door = Socks5Metrics::default();
        let render = || {
            let mut text = MetricsText::new(ExpositionFormat::Classic);
            door.render(&mut text);
            text.finish()
        };
        let open = door.connection_opened();
        assert_eq!(render(), "");
        door.enable();
        door.record_reply(2);
        door.record_reply(200);
        door.record_unanswered(Socks5HandshakeFailure::Closed);
        door.record_bytes(3, 5);
        let text = render();
        for line in [
            "narthex_socks5_connections 1",
            "narthex_socks5_replies_total{reply=\"not_allowed\"} 1",
            "narthex_socks5_replies_total{reply=\"succeeded\"} 0",
            "narthex_socks5_unanswered_total{reason=\"closed\"} 1",
            "narthex_socks5_bytes_total{direction=\"sent\"} 3",
            "narthex_socks5_bytes_total{direction=\"received\"} 5",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        drop(open);
        assert_eq!(door.connections(), 0);
    }
}
