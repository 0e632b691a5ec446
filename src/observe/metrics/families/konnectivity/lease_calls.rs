//! Calls for the Leases of servers, by HTTP status and reason.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use super::histogram::DurationHistogram;
use crate::observe::metrics::exposition::MetricsText;

/// Calls of one kind.
pub struct LeaseCalls {
    /// By HTTP status.
    counted: Mutex<BTreeMap<u16, (u64, DurationHistogram)>>,
    bounds: &'static [&'static str],
}

impl LeaseCalls {
    pub(super) fn new(bounds: &'static [&'static str]) -> LeaseCalls {
        LeaseCalls { counted: Mutex::default(), bounds }
    }

    /// Records a call that was answered.
    pub fn record(&self, status: u16, duration: Duration) {
        let mut counted = self.counted.lock();
        let (count, durations) = counted.entry(status).or_insert_with(|| (0, DurationHistogram::new(self.bounds)));
        *count += 1;
        durations.observe(duration);
    }

    /// Appends the samples of a counter by status, whose label has the name `status_label`, and reason.
    pub(super) fn render_counts(&self, text: &mut MetricsText, status_label: &str) {
        for (status, (count, _)) in &*self.counted.lock() {
            text.sample(&[(status_label, &status.to_string()), ("reason", &reason(*status))], *count);
        }
    }

    /// Appends the durations by status.
    pub(super) fn render_durations(&self, text: &mut MetricsText, status_label: &str) {
        for (status, (_, durations)) in &*self.counted.lock() {
            durations.render(text, &[(status_label, &status.to_string())]);
        }
    }
}

/// The reason of `metav1.Status` for an HTTP status; empty for a success.
fn reason(status: u16) -> String {
    match status {
        200..300 => String::new(),
        500 => "InternalError".to_owned(),
        504 => "Timeout".to_owned(),
        _ => StatusCode::from_u16(status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .map_or_else(|| "Unknown".to_owned(), |reason| reason.replace(' ', "")),
    }
}
