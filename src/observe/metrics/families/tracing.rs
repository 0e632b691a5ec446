//! Metrics of exported spans.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Why spans were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::observe) enum SpanLoss {
    /// The queue was full.
    QueueFull,
    /// The collector was not reachable, or failed.
    ExportFailed,
    /// The collector rejected the spans.
    Rejected,
}

impl SpanLoss {
    const ALL: [&'static str; 3] = ["queue_full", "export_failed", "rejected"];
}

/// Counters of spans.
#[derive(Default)]
pub(in crate::observe) struct SpanCounts {
    enabled: AtomicBool,
    exported: AtomicU64,
    dropped: [AtomicU64; 3],
}

impl SpanCounts {
    /// Tracing is configured: the families are rendered.
    pub(in crate::observe) fn enable(&self) {
        self.enabled.store(true, Relaxed);
    }

    /// Counts spans that the collector accepted.
    pub(in crate::observe) fn record_exported(&self, spans: u64) {
        self.exported.fetch_add(spans, Relaxed);
    }

    /// Counts dropped spans.
    pub(in crate::observe) fn record_dropped(&self, by: SpanLoss, spans: u64) {
        self.dropped[by as usize].fetch_add(spans, Relaxed);
    }

    /// Families `narthex_trace_spans_*`, if tracing is configured.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        if !self.enabled.load(Relaxed) {
            return;
        }
        text.family(
            "narthex_trace_spans_dropped_total",
            MetricType::Counter,
            "Spans of traces that were not exported, by reason.",
        );
        for (reason, count) in SpanLoss::ALL.iter().zip(&self.dropped) {
            text.sample(&[("reason", reason)], count.load(Relaxed));
        }
        text.family(
            "narthex_trace_spans_exported_total",
            MetricType::Counter,
            "Spans of traces that the collector accepted.",
        );
        text.sample(&[], self.exported.load(Relaxed));
    }
}
