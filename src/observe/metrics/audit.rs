//! Metrics of audit events.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cell::Striped;
use super::text::{Kind, Text};
use crate::observe::audit::Level;

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
    events: Striped,
    levels: [Striped; 4],
    lost: [AtomicU64; 3],
}

impl AuditLoss {
    const ALL: [&'static str; 3] = ["buffered", "log", "webhook"];
}

impl AuditCounts {
    /// Counts a request with the audit level `level`.
    pub(in crate::observe) fn judged(&self, level: Level) {
        self.levels[level as usize].up();
    }

    /// Counts an event.
    pub(in crate::observe) fn event(&self) {
        self.events.up();
    }

    /// Counts lost events.
    pub(in crate::observe) fn lost(&self, by: AuditLoss, events: usize) {
        self.lost[by as usize].fetch_add(events as u64, Relaxed);
    }

    /// Families `apiserver_audit_*`, after the first request was evaluated.
    pub(super) fn render(&self, text: &mut Text) {
        if self.levels.iter().all(|count| count.get() == 0) {
            return;
        }
        text.family(
            "apiserver_audit_error_total",
            Kind::Counter,
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
            Kind::Counter,
            "[ALPHA] Counter of audit events generated and sent to the audit backend.",
        );
        text.sample(&[], self.events.get());
        text.family(
            "apiserver_audit_level_total",
            Kind::Counter,
            "[ALPHA] Counter of policy levels for audit events (1 per request).",
        );
        for (level, count) in Level::ALL.iter().zip(&self.levels) {
            if count.get() > 0 {
                text.sample(&[("level", level.as_str())], count.get());
            }
        }
        text.family(
            "apiserver_audit_requests_rejected_total",
            Kind::Counter,
            "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.",
        );
        // Requests are never rejected because of the audit.
        text.sample(&[], 0_u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn what_was_judged_made_and_lost() {
        let counts = AuditCounts::default();
        let render = || {
            let mut text = Text::new(Format::Classic);
            counts.render(&mut text);
            text.finish()
        };
        assert_eq!(render(), "");
        counts.judged(Level::None);
        counts.judged(Level::Metadata);
        counts.judged(Level::Metadata);
        counts.event();
        counts.lost(AuditLoss::Buffered, 3);
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
