//! Metrics of requests rejected by inflight limits.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// The limit that was exceeded; value of the label `priority_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededLimit {
    /// The limit `--max-requests-inflight`.
    ReadOnly,
    /// The limit `--max-mutating-requests-inflight`.
    Mutating,
    /// `narthex.dev/max-inflight` of an APIService.
    ApiService,
}

/// Why a request was rejected; value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The limit is reached (`concurrency-limit`, as in Kubernetes).
    LimitReached,
    /// The user holds more than a fair share (`fair-share`).
    FairShare,
}

/// Rejected requests by limit and reason.
#[derive(Default)]
pub struct Rejections([[AtomicU64; 2]; 3]);

const LIMITS: [&str; 3] = ["readOnly", "mutating", "apiservice"];
const REASONS: [&str; 2] = ["concurrency-limit", "fair-share"];

impl Rejections {
    /// Counts a rejected request.
    pub fn record(&self, limit: ExceededLimit, turned: RejectReason) {
        self.0[limit as usize][turned as usize].fetch_add(1, Relaxed);
    }

    /// Family `apiserver_flowcontrol_rejected_requests_total`, if any request was rejected. The labels are Kubernetes'.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        let counted = self.0.each_ref().map(|reasons| reasons.each_ref().map(|count| count.load(Relaxed)));
        if counted.iter().flatten().all(|count| *count == 0) {
            return;
        }
        text.family(
            "apiserver_flowcontrol_rejected_requests_total",
            MetricType::Counter,
            "[BETA] Number of requests rejected by API Priority and Fairness subsystem",
        );
        for (limit, reasons) in LIMITS.into_iter().zip(counted) {
            for (reason, count) in REASONS.into_iter().zip(reasons).filter(|(_, count)| *count > 0) {
                text.sample(&[("flow_schema", ""), ("priority_level", limit), ("reason", reason)], count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    #[test]
    fn rejections_are_counted_by_limit_and_reason() {
        let rejections = Rejections::default();
        let render = || {
            let mut text = MetricsText::new(ExpositionFormat::Classic);
            rejections.render(&mut text);
            text.finish()
        };
        assert_eq!(render(), "");
        rejections.record(ExceededLimit::Mutating, RejectReason::LimitReached);
        rejections.record(ExceededLimit::ApiService, RejectReason::FairShare);
        rejections.record(ExceededLimit::ApiService, RejectReason::FairShare);
        let text = render();
        let name = "apiserver_flowcontrol_rejected_requests_total";
        for line in [
            "{flow_schema=\"\",priority_level=\"mutating\",reason=\"concurrency-limit\"} 1",
            "{flow_schema=\"\",priority_level=\"apiservice\",reason=\"fair-share\"} 2",
        ] {
            assert!(text.lines().any(|it| it == format!("{name}{line}")), "{line}\n{text}");
        }
    }
}
