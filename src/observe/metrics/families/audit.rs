//! Metrics of audit events.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::observe::metrics::counters::StripedCounter;
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Audit level: how much of a request is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditLevel {
    /// The request is not audited.
    #[default]
    None,
    /// User, verb, resource, time and response status.
    Metadata,
    /// `Metadata` and the request object.
    Request,
    /// `Request` and the response object.
    RequestResponse,
}

impl AuditLevel {
    pub(in crate::observe) const ALL: [AuditLevel; 4] =
        [AuditLevel::None, AuditLevel::Metadata, AuditLevel::Request, AuditLevel::RequestResponse];

    /// Name of the level.
    pub fn as_str(self) -> &'static str {
        ["None", "Metadata", "Request", "RequestResponse"][self as usize]
    }
}

/// Where events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::observe) enum AuditLoss {
    /// The queue of a sink was full.
    Buffered,
    /// The log file could not be written.
    Log,
    /// The webhook did not accept the events.
    Webhook,
}

/// Counters of audit events.
#[derive(Default)]
pub(in crate::observe) struct AuditCounts {
    events: StripedCounter,
    levels: [StripedCounter; 4],
    lost: [AtomicU64; 3],
}

impl AuditLoss {
    const ALL: [&'static str; 3] = ["buffered", "log", "webhook"];
}

impl AuditCounts {
    /// Counts a request with the audit level `level`.
    pub(in crate::observe) fn record_level(&self, level: AuditLevel) {
        self.levels[level as usize].increment();
    }

    /// Counts an event.
    pub(in crate::observe) fn record_event(&self) {
        self.events.increment();
    }

    /// Counts lost events.
    pub(in crate::observe) fn record_lost(&self, by: AuditLoss, events: usize) {
        self.lost[by as usize].fetch_add(events as u64, Relaxed);
    }

    /// Families `apiserver_audit_*`, after the first request was evaluated.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        if self.levels.iter().all(|count| count.get() == 0) {
            return;
        }
        text.family(
            "apiserver_audit_error_total",
            MetricType::Counter,
            "[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected \
             by the error.",
        );
        for (plugin, count) in AuditLoss::ALL.iter().zip(&self.lost) {
            let count = count.load(Relaxed);
            if count > 0 {
                text.sample(&[("plugin", plugin)], count);
            }
        }
        text.family(
            "apiserver_audit_event_total",
            MetricType::Counter,
            "[ALPHA] Counter of audit events generated and sent to the audit backend.",
        );
        text.sample(&[], self.events.get());
        text.family(
            "apiserver_audit_level_total",
            MetricType::Counter,
            "[ALPHA] Counter of policy levels for audit events (1 per request).",
        );
        for (level, count) in AuditLevel::ALL.iter().zip(&self.levels) {
            if count.get() > 0 {
                text.sample(&[("level", level.as_str())], count.get());
            }
        }
        text.family(
            "apiserver_audit_requests_rejected_total",
            MetricType::Counter,
            "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.",
        );
        // Requests are never rejected because of the audit.
        text.sample(&[], 0_u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    #[test]
    fn audit_metrics_render_every_family() {
        let counts = AuditCounts::default();
        let render = || {
            let mut text = MetricsText::new(ExpositionFormat::Classic);
            counts.render(&mut text);
            text.finish()
        };
        assert_eq!(render(), "");
        counts.record_level(AuditLevel::None);
        counts.record_level(AuditLevel::Metadata);
        counts.record_level(AuditLevel::Metadata);
        counts.record_event();
        counts.record_lost(AuditLoss::Buffered, 3);
        let text = render();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "apiserver_audit_error_total{plugin=\"buffered\"} 3",
            "apiserver_audit_event_total 1",
            "apiserver_audit_level_total{level=\"Metadata\"} 2",
            "apiserver_audit_level_total{level=\"None\"} 1",
            "apiserver_audit_requests_rejected_total 0",
        ];
        let mut sorted = samples.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
    }
}
