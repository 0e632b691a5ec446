//! Metrics of impersonation (`filters/impersonation/metrics` in k8s.io/apiserver).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::observe::metrics::counters::{Histogram, HistogramTotal, IMPERSONATION_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Step of impersonation that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImpersonationStep {
    /// The impersonation of a request as a whole.
    Attempt,
    /// One authorization check of the impersonation.
    AuthorizationCheck,
}

/// Durations of impersonation attempts and authorization checks, by mode and decision.
#[derive(Default)]
pub struct ImpersonationMetrics([Mutex<BTreeMap<(&'static str, bool), Histogram>>; 2]);

const FAMILIES: [(&str, &str, &str, &str); 2] = [
    (
        "apiserver_impersonation_attempts_duration_seconds",
        "[ALPHA] Latency of impersonation attempts in seconds split by mode and decision.",
        "apiserver_impersonation_attempts_total",
        "[ALPHA] Total number of impersonation attempts split by mode and decision.",
    ),
    (
        "apiserver_impersonation_authorization_attempts_duration_seconds",
        "[ALPHA] Latency of authorization checks made by the impersonation handler in seconds split by mode and decision.",
        "apiserver_impersonation_authorization_attempts_total",
        "[ALPHA] Total number of authorization checks made by the impersonation handler split by mode and decision.",
    ),
];

impl ImpersonationMetrics {
    /// Counts a decision. `mode` is Kubernetes' impersonation mode; empty for an attempt that no mode allowed.
    pub fn record(&self, what: ImpersonationStep, mode: &'static str, allowed: bool, duration: Duration) {
        let mut counted = self.0[what as usize].lock();
        counted
            .entry((mode, allowed))
            .or_insert_with(|| Histogram::new(&IMPERSONATION_SECONDS))
            .observe_duration(duration);
    }

    /// Families `apiserver_impersonation_*`, after the first impersonation.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        for ((seconds, help, total, total_help), counted) in FAMILIES.into_iter().zip(&self.0) {
            let sums: Vec<_> = counted
                .lock()
                .iter()
                .map(|((mode, allowed), histogram)| {
                    let mut counted = HistogramTotal::default();
                    histogram.add_to(&mut counted);
                    ([("decision", if *allowed { "allowed" } else { "denied" }), ("mode", *mode)], counted)
                })
                .collect();
            if sums.is_empty() {
                continue;
            }
            text.family(seconds, MetricType::Histogram, help);
            for (labels, counted) in &sums {
                text.histogram(labels, IMPERSONATION_SECONDS.printed, &counted.buckets, counted.sum);
            }
            text.family(total, MetricType::Counter, total_help);
            for (labels, counted) in &sums {
                text.sample(labels, counted.buckets.iter().sum::<u64>());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    #[test]
    fn impersonation_metrics_separate_attempts_and_checks() {
        let impersonations = ImpersonationMetrics::default();
        let render = || {
            let mut text = MetricsText::new(ExpositionFormat::Classic);
            impersonations.render(&mut text);
            text.finish()
        };
        assert_eq!(render(), "");
        impersonations.record(ImpersonationStep::Attempt, "user-info", true, Duration::from_millis(3));
        impersonations.record(ImpersonationStep::Attempt, "", false, Duration::from_secs(20));
        impersonations.record(ImpersonationStep::AuthorizationCheck, "legacy", false, Duration::ZERO);
        impersonations.record(ImpersonationStep::AuthorizationCheck, "legacy", false, Duration::ZERO);
        let text = render();
        for line in [
            "apiserver_impersonation_attempts_total{decision=\"allowed\",mode=\"user-info\"} 1",
            "apiserver_impersonation_attempts_total{decision=\"denied\",mode=\"\"} 1",
            "apiserver_impersonation_attempts_duration_seconds_bucket{decision=\"allowed\",mode=\"user-info\",le=\"0.004\"} 1",
            "apiserver_impersonation_attempts_duration_seconds_bucket{decision=\"denied\",mode=\"\",le=\"16.384\"} 0",
            "apiserver_impersonation_authorization_attempts_total{decision=\"denied\",mode=\"legacy\"} 2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
