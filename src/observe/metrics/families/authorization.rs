//! Metrics of the authorizers of `--authorization-config`, with Kubernetes' names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use parking_lot::Mutex;

use crate::observe::metrics::counters::{CONDITION_SECONDS, Histogram, StripedCounter, TOKEN_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};
use crate::observe::metrics::families::reviews::render_histogram;

/// Metrics of authorizers, authorization webhooks and configuration reloads.
#[derive(Default)]
pub struct AuthorizationMetrics {
    decisions: Mutex<BTreeMap<(String, &'static str), Arc<DecisionCounts>>>,
    webhooks: Mutex<BTreeMap<String, Arc<WebhookMetrics>>>,
    configuration: Mutex<Option<ConfigReloads>>,
}

/// Decisions of one authorizer.
#[derive(Default)]
pub struct DecisionCounts {
    allowed: StripedCounter,
    denied: StripedCounter,
}

/// Metrics of one authorization webhook.
#[derive(Default)]
pub struct WebhookMetrics {
    round_trips: Mutex<BTreeMap<&'static str, (u64, Histogram)>>,
    failed_open: [AtomicU64; 2],
    conditions: Mutex<Option<Histogram>>,
    condition_errors: AtomicU64,
    exclusions: StripedCounter,
}

/// Result of one HTTP request to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTrip {
    /// A valid response.
    Success,
    /// No response before the timeout.
    Timeout,
    /// No response, or an invalid one.
    Error,
}

#[derive(Default)]
struct ConfigReloads {
    hash: String,
    /// Number and last time (in seconds since 1970) of successful reloads, then of failed ones.
    reloads: [(u64, f64); 2],
}

impl RoundTrip {
    fn as_str(self) -> &'static str {
        match self {
            RoundTrip::Success => "success",
            RoundTrip::Timeout => "timeout",
            RoundTrip::Error => "error",
        }
    }
}

impl DecisionCounts {
    /// Counts an allowed request.
    pub fn record_allowed(&self) {
        self.allowed.increment();
    }

    /// Counts a denied request.
    pub fn record_denied(&self) {
        self.denied.increment();
    }
}

impl WebhookMetrics {
    /// Counts an HTTP request to the webhook.
    pub fn record_request(&self, result: RoundTrip, duration: Duration) {
        let mut round_trips = self.round_trips.lock();
        let (count, histogram) =
            round_trips.entry(result.as_str()).or_insert_with(|| (0, Histogram::new(&TOKEN_SECONDS)));
        *count += 1;
        histogram.observe_duration(duration);
    }

    /// Counts a failed evaluation that was treated as NoOpinion (`failurePolicy: NoOpinion`).
    pub fn record_fail_open(&self, timed_out: bool) {
        self.failed_open[usize::from(timed_out)].fetch_add(1, Relaxed);
    }

    /// Counts an evaluation of the match conditions.
    pub fn record_conditions(&self, duration: Duration, failed: bool) {
        self.conditions.lock().get_or_insert_with(|| Histogram::new(&CONDITION_SECONDS)).observe_duration(duration);
        self.condition_errors.fetch_add(u64::from(failed), Relaxed);
    }

    /// Counts a request excluded by the match conditions.
    pub fn record_exclusion(&self) {
        self.exclusions.increment();
    }
}

impl AuthorizationMetrics {
    /// Counters of the authorizer with this type and name.
    pub fn decisions(&self, kind: &'static str, name: &str) -> Arc<DecisionCounts> {
        self.decisions.lock().entry((name.to_owned(), kind)).or_default().clone()
    }

    /// Metrics of the webhook with this name.
    pub fn webhook(&self, name: &str) -> Arc<WebhookMetrics> {
        self.webhooks.lock().entry(name.to_owned()).or_default().clone()
    }

    /// Sets the initial configuration.
    pub fn set_config(&self, text: &str) {
        self.configuration.lock().get_or_insert_default().hash = sha256(text);
    }

    /// Counts a successful reload of the configuration.
    pub fn record_reload(&self, text: &str) {
        self.set_config(text);
        self.count_reload(0);
    }

    /// Counts a failed reload of the configuration.
    pub fn record_reload_failure(&self) {
        self.count_reload(1);
    }

    fn count_reload(&self, result: usize) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut configuration = self.configuration.lock();
        let (count, last) = &mut configuration.get_or_insert_default().reloads[result];
        *count += 1;
        *last = now;
    }

    /// Families `apiserver_authorization_*`.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        self.configuration(text);
        text.family(
            "apiserver_authorization_decisions_total",
            MetricType::Counter,
            "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and \
             decision.",
        );
        for decision in ["allowed", "denied"] {
            for ((name, kind), decisions) in self.decisions.lock().iter() {
                let count = if decision == "allowed" { &decisions.allowed } else { &decisions.denied }.get();
                if count > 0 {
                    text.sample(&[("decision", decision), ("name", name), ("type", kind)], count);
                }
            }
        }
        self.conditions(text);
        self.webhooks(text);
    }

    fn configuration(&self, text: &mut MetricsText) {
        let configuration = self.configuration.lock();
        let names = [
            "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
            "apiserver_authorization_config_controller_automatic_reloads_total",
            "apiserver_authorization_config_controller_last_config_info",
        ];
        let Some(configuration) = &*configuration else { return };
        let id = identity();
        let results =
            || ["success", "failure"].into_iter().zip(&configuration.reloads).filter(|(_, (count, _))| *count > 0);
        text.family(
            names[0],
            MetricType::Gauge,
            "[BETA] Timestamp of the last automatic reload of authorization configuration split by status and apiserver \
             identity.",
        );
        for (status, (_, last)) in results() {
            text.sample(&[("apiserver_id_hash", &id), ("status", status)], *last);
        }
        text.family(
            names[1],
            MetricType::Counter,
            "[BETA] Total number of automatic reloads of authorization configuration split by status and apiserver \
             identity.",
        );
        for (status, (count, _)) in results() {
            text.sample(&[("apiserver_id_hash", &id), ("status", status)], *count);
        }
        text.family(
            names[2],
            MetricType::Gauge,
            "[ALPHA] Information about the last applied authorization configuration with hash as label, split by \
             apiserver identity.",
        );
        text.sample(&[("apiserver_id_hash", &id), ("hash", &configuration.hash)], 1_u64);
    }

    fn conditions(&self, text: &mut MetricsText) {
        let webhooks = self.webhooks.lock();
        let counter = |text: &mut MetricsText, name, help, count: fn(&WebhookMetrics) -> u64| {
            text.family(name, MetricType::Counter, help);
            for (name, webhook) in webhooks.iter().filter(|(_, webhook)| count(webhook) > 0) {
                text.sample(&[("name", name), ("type", "Webhook")], count(webhook));
            }
        };
        counter(
            text,
            "apiserver_authorization_match_condition_evaluation_errors_total",
            "[ALPHA] Total number of errors when an authorization webhook encounters a match condition error split by \
             authorizer type and name.",
            |webhook| webhook.condition_errors.load(Relaxed),
        );
        text.family(
            "apiserver_authorization_match_condition_evaluation_seconds",
            MetricType::Histogram,
            "[ALPHA] Authorization match condition evaluation time in seconds, split by authorizer type and name.",
        );
        for (name, webhook) in webhooks.iter() {
            if let Some(histogram) = &*webhook.conditions.lock() {
                render_histogram(text, &[("name", name), ("type", "Webhook")], histogram, CONDITION_SECONDS.printed);
            }
        }
        counter(
            text,
            "apiserver_authorization_match_condition_exclusions_total",
            "[ALPHA] Total number of exclusions when an authorization webhook is skipped because match conditions \
             exclude it.",
            |webhook| webhook.exclusions.get(),
        );
    }

    fn webhooks(&self, text: &mut MetricsText) {
        let webhooks = self.webhooks.lock();
        text.family(
            "apiserver_authorization_webhook_duration_seconds",
            MetricType::Histogram,
            "[ALPHA] Request latency in seconds.",
        );
        for (name, webhook) in webhooks.iter() {
            for (result, (_, histogram)) in webhook.round_trips.lock().iter() {
                render_histogram(text, &[("name", name), ("result", result)], histogram, TOKEN_SECONDS.printed);
            }
        }
        text.family(
            "apiserver_authorization_webhook_evaluations_fail_open_total",
            MetricType::Counter,
            "[ALPHA] NoOpinion results due to webhook timeout or error.",
        );
        for (name, webhook) in webhooks.iter() {
            for (result, count) in ["error", "timeout"].into_iter().zip(&webhook.failed_open) {
                let count = count.load(Relaxed);
                if count > 0 {
                    text.sample(&[("name", name), ("result", result)], count);
                }
            }
        }
        text.family(
            "apiserver_authorization_webhook_evaluations_total",
            MetricType::Counter,
            "[ALPHA] Round-trips to authorization webhooks.",
        );
        for (name, webhook) in webhooks.iter() {
            for (result, (count, _)) in webhook.round_trips.lock().iter() {
                text.sample(&[("name", name), ("result", result)], *count);
            }
        }
    }
}

/// Identity of this replica as in Kubernetes: a digest of the host name.
fn identity() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    sha256(&format!("narthex-{}", name.trim()))
}

fn sha256(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    let hex = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    std::iter::once("sha256:".to_owned()).chain(hex).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    fn render(authorization: &AuthorizationMetrics) -> String {
        let mut text = MetricsText::new(ExpositionFormat::Classic);
        authorization.render(&mut text);
        text.finish()
    }

    #[test]
    fn authorization_metrics_render_every_family() {
        let counted = AuthorizationMetrics::default();
        assert_eq!(render(&counted), "");
        counted.decisions("RBAC", "rbac").record_allowed();
        counted.decisions("Webhook", "a").record_denied();
        let webhook = counted.webhook("a");
        webhook.record_request(RoundTrip::Success, Duration::from_millis(7));
        webhook.record_request(RoundTrip::Timeout, Duration::from_secs(3));
        webhook.record_fail_open(true);
        webhook.record_conditions(Duration::from_micros(9), true);
        webhook.record_exclusion();
        counted.set_config("");
        counted.record_reload_failure();
        let text = render(&counted);
        let id = identity();
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for line in [
            &format!(
                "apiserver_authorization_config_controller_automatic_reloads_total{{apiserver_id_hash=\"{id}\",status=\"failure\"}} 1"
            ),
            &format!(
                "apiserver_authorization_config_controller_last_config_info{{apiserver_id_hash=\"{id}\",hash=\"{empty}\"}} 1"
            ),
            "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"rbac\",type=\"RBAC\"} 1",
            "apiserver_authorization_decisions_total{decision=\"denied\",name=\"a\",type=\"Webhook\"} 1",
            "apiserver_authorization_match_condition_evaluation_errors_total{name=\"a\",type=\"Webhook\"} 1",
            "apiserver_authorization_match_condition_evaluation_seconds_bucket{name=\"a\",type=\"Webhook\",le=\"0.001\"} 1",
            "apiserver_authorization_match_condition_exclusions_total{name=\"a\",type=\"Webhook\"} 1",
            "apiserver_authorization_webhook_duration_seconds_count{name=\"a\",result=\"success\"} 1",
            "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"a\",result=\"timeout\"} 1",
            "apiserver_authorization_webhook_evaluations_total{name=\"a\",result=\"timeout\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
