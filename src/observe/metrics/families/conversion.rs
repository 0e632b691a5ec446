//! Metrics of conversion webhooks (`k8s.io/apiextensions-apiserver/pkg/apiserver/conversion/metrics.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::reviews::render_histogram;
use crate::observe::metrics::counters::{Histogram, IMPERSONATION_SECONDS, WEBHOOK_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Why a conversion by a webhook failed; value of the label `failure_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConversionFailure {
    /// There was no response, or no good one.
    Call,
    /// An object of the response is not the one that was sent, converted.
    InvalidConvertedObject,
    /// The response is no `ConversionReview` for the request, or says that the conversion failed.
    MalformedResponse,
    /// The response has another number of objects.
    PartialResponse,
}

impl ConversionFailure {
    fn as_str(self) -> &'static str {
        match self {
            ConversionFailure::Call => "conversion_webhook_call_failure",
            ConversionFailure::InvalidConvertedObject => "conversion_webhook_invalid_converted_object_failure",
            ConversionFailure::MalformedResponse => "conversion_webhook_malformed_response_failure",
            ConversionFailure::PartialResponse => "conversion_webhook_partial_response_failure",
        }
    }
}

/// Metrics of conversion webhooks.
#[derive(Default)]
pub struct ConversionMetrics {
    /// Durations by outcome.
    calls: Mutex<BTreeMap<Option<ConversionFailure>, Histogram>>,
    /// Durations by definition, version before, version after, and whether the conversion succeeded.
    conversions: Mutex<BTreeMap<(String, String, String, bool), Histogram>>,
}

impl ConversionMetrics {
    /// Records a call of the webhook of `definition`. Versions are without the group.
    pub fn record(
        &self,
        definition: &str,
        (from, to): (&str, &str),
        duration: Duration,
        outcome: Result<(), ConversionFailure>,
    ) {
        let mut calls = self.calls.lock();
        calls.entry(outcome.err()).or_insert_with(|| Histogram::new(&WEBHOOK_SECONDS)).observe_duration(duration);
        let mut conversions = self.conversions.lock();
        let key = (definition.to_owned(), from.to_owned(), to.to_owned(), outcome.is_ok());
        conversions.entry(key).or_insert_with(|| Histogram::new(&IMPERSONATION_SECONDS)).observe_duration(duration);
    }

    /// Families `apiserver_conversion_webhook_*` and `apiserver_crd_conversion_webhook_*`.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        let calls = self.calls.lock();
        let labels = |failure: Option<ConversionFailure>| {
            let result = if failure.is_some() { "failure" } else { "success" };
            [("result", result), ("failure_type", failure.map_or("", ConversionFailure::as_str))]
        };
        text.family(
            "apiserver_conversion_webhook_duration_seconds",
            MetricType::Histogram,
            "[ALPHA] Conversion webhook request latency",
        );
        let mut counts = Vec::new();
        for (failure, durations) in calls.iter() {
            counts.push((
                labels(*failure),
                render_histogram(text, &labels(*failure), durations, WEBHOOK_SECONDS.printed),
            ));
        }
        text.family(
            "apiserver_conversion_webhook_request_total",
            MetricType::Counter,
            "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type",
        );
        for (labels, count) in counts {
            text.sample(&labels, count);
        }
        text.family(
            "apiserver_crd_conversion_webhook_duration_seconds",
            MetricType::Histogram,
            "[ALPHA] CRD webhook conversion duration in seconds",
        );
        for ((definition, from, to, succeeded), durations) in self.conversions.lock().iter() {
            let succeeded = if *succeeded { "true" } else { "false" };
            let labels =
                [("crd_name", &**definition), ("from_version", from), ("to_version", to), ("succeeded", succeeded)];
            render_histogram(text, &labels, durations, IMPERSONATION_SECONDS.printed);
        }
    }
}
