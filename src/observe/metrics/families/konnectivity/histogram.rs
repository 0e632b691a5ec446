//! A histogram that several threads observe.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::observe::metrics::exposition::MetricsText;

/// Bounds of `server_dial_duration_seconds` and `server_frontend_write_duration_seconds`, as printed.
pub(super) static SERVER_BOUNDS: [&str; 9] =
    ["1e-06", "1e-05", "0.0001", "0.005", "0.025", "0.1", "0.5", "2.5", "12.5"];
/// Bounds of `server_connection_duration_seconds`.
pub(super) static CONNECTION_BOUNDS: [&str; 12] =
    ["1", "5", "15", "30", "60", "300", "900", "1800", "3600", "14400", "43200", "86400"];
/// Bounds of the histograms of the agent.
pub(super) static AGENT_BOUNDS: [&str; 7] = ["0.005", "0.025", "0.1", "0.5", "2.5", "10", "30"];
/// Prometheus' default bounds.
pub(super) static DEFAULT_BOUNDS: [&str; 11] =
    ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10"];

/// Durations by upper bounds in seconds.
pub(super) struct DurationHistogram {
    printed: &'static [&'static str],
    /// The bounds in nanoseconds.
    bounds: Box<[u64]>,
    /// One more than there are bounds.
    buckets: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

impl DurationHistogram {
    pub(super) fn new(printed: &'static [&'static str]) -> DurationHistogram {
        let nanoseconds =
            |bound: &&str| bound.parse::<f64>().map_or(u64::MAX, |seconds| (seconds * 1e9).round() as u64);
        DurationHistogram {
            printed,
            bounds: printed.iter().map(nanoseconds).collect(),
            buckets: (0..=printed.len()).map(|_| AtomicU64::new(0)).collect(),
            nanoseconds: AtomicU64::new(0),
        }
    }

    pub(super) fn observe(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|bound| *bound < nanoseconds);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// Appends the histogram; nothing without observations.
    pub(super) fn render(&self, text: &mut MetricsText, labels: &[(&str, &str)]) {
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        text.histogram(labels, self.printed, &buckets, self.nanoseconds.load(Relaxed) as f64 * 1e-9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::exposition::{ExpositionFormat, MetricType};

    #[test]
    fn duration_histogram_bounds_are_inclusive() {
        let histogram = DurationHistogram::new(&SERVER_BOUNDS);
        for micros in [1, 5000, 5001, 60_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let mut text = MetricsText::new(ExpositionFormat::Classic);
        text.family("a_seconds", MetricType::Histogram, "Help.");
        histogram.render(&mut text, &[]);
        let text = text.finish();
        for line in ["le=\"1e-06\"} 1", "le=\"0.005\"} 2", "le=\"0.025\"} 3", "le=\"12.5\"} 3", "le=\"+Inf\"} 4"] {
            assert!(text.contains(&format!("a_seconds_bucket{{{line}\n")), "{line}\n{text}");
        }
    }
}
