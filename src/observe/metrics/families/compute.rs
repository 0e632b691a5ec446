//! Metrics of the queue for compute threads, on which large objects of the embedded API server are processed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::reviews::render_histogram;
use crate::observe::metrics::counters::{Histogram, WEBHOOK_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Why work was not done; value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeRefusal {
    /// The user's queue is full (`queue-full`, as in Kubernetes).
    QueueFull,
    /// The deadline of the request was over before its turn, or while it was processed (`time-out`, as in Kubernetes).
    TimedOut,
    /// The client was gone before its turn (`client-gone`).
    Canceled,
}

const REASONS: [&str; 3] = ["queue-full", "time-out", "client-gone"];

/// Waits for a compute thread, and work that was not done.
#[derive(Default)]
pub struct ComputeMetrics {
    /// None without any work.
    waits: Mutex<Option<Histogram>>,
    refusals: [AtomicU64; 3],
}

impl ComputeMetrics {
    /// Records how long work waited for a compute thread.
    pub fn record_wait(&self, duration: Duration) {
        self.waits.lock().get_or_insert_with(|| Histogram::new(&WEBHOOK_SECONDS)).observe_duration(duration);
    }

    /// Counts work that was not done.
    pub fn record_refusal(&self, refusal: ComputeRefusal) {
        self.refusals[refusal as usize].fetch_add(1, Relaxed);
    }

    /// How much work was not done for a reason.
    pub fn refusals(&self, refusal: ComputeRefusal) -> u64 {
        self.refusals[refusal as usize].load(Relaxed)
    }

    /// Families `narthex_compute_*`, if there was any work.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        let refusals = self.refusals.each_ref().map(|count| count.load(Relaxed));
        if refusals.iter().any(|count| *count > 0) {
            text.family(
                "narthex_compute_rejected_total",
                MetricType::Counter,
                "Processing of large objects that was refused or given up, by reason.",
            );
            for (reason, count) in REASONS.into_iter().zip(refusals).filter(|(_, count)| *count > 0) {
                text.sample(&[("reason", reason)], count);
            }
        }
        if let Some(waits) = &*self.waits.lock() {
            text.family(
                "narthex_compute_wait_duration_seconds",
                MetricType::Histogram,
                "Time that processing of large objects waited for a compute thread.",
            );
            render_histogram(text, &[], waits, WEBHOOK_SECONDS.printed);
        }
    }
}
