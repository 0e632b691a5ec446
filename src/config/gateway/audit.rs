//! Audit settings: policy, log file and webhook.

use crate::config::reading::Reading;
use crate::observe::audit::{Format, LogSettings, Settings, WebhookSettings};

const POLICY: &str = "audit-policy-file";
const LOG: &str = "audit-log-path";
const WEBHOOK: &str = "audit-webhook-config-file";

/// A policy and a log or webhook require each other. kube-apiserver starts with either alone and audits nothing.
pub(super) fn audit(reading: &mut Reading<'_>) -> Option<Settings> {
    let policy_file = reading.path(POLICY);
    let (log, webhook) = (log(reading), webhook(reading));
    if policy_file.is_some() && log.is_none() && webhook.is_none() {
        reading.problem(POLICY, format_args!("has no effect without --{LOG} or --{WEBHOOK}"));
    }
    if policy_file.is_none() {
        for (name, given) in [(LOG, log.is_some()), (WEBHOOK, webhook.is_some())] {
            if given {
                reading.problem(name, format_args!("has no effect without --{POLICY}"));
            }
        }
    }
    Some(Settings { policy_file: policy_file?, log, webhook })
}

fn log(reading: &mut Reading<'_>) -> Option<LogSettings> {
    let path = reading.text(LOG);
    let settings = LogSettings {
        path: (path != "-").then(|| reading.resolve(LOG, &path)),
        format: match &*reading.choice("audit-log-format") {
            "legacy" => Format::Legacy,
            _ => Format::Json,
        },
        max_size: reading.count("audit-log-maxsize", 1 << 20),
        max_backups: reading.size("audit-log-maxbackup"),
        max_age: reading.count("audit-log-maxage", 1 << 20),
    };
    if path.is_empty() {
        unused(reading, LOG, &["audit-log-format", "audit-log-maxsize", "audit-log-maxbackup", "audit-log-maxage"]);
        return None;
    }
    Some(settings)
}

fn webhook(reading: &mut Reading<'_>) -> Option<WebhookSettings> {
    let config_file = reading.path(WEBHOOK);
    reading.choice("audit-webhook-mode");
    let throttled = reading.switch("audit-webhook-batch-throttle-enable");
    let qps = reading.fraction("audit-webhook-batch-throttle-qps", 0.001, 1_000_000.0);
    let burst = reading.positive_size("audit-webhook-batch-throttle-burst");
    let settings = WebhookSettings {
        config_file: config_file.clone().unwrap_or_default(),
        buffer: reading.positive_size("audit-webhook-batch-buffer-size"),
        batch: reading.positive_size("audit-webhook-batch-max-size"),
        wait: reading.duration("audit-webhook-batch-max-wait"),
        throttle: throttled.then_some((qps, burst as u64)),
        backoff: reading.duration("audit-webhook-initial-backoff"),
    };
    if config_file.is_none() {
        let names = [
            "audit-webhook-mode",
            "audit-webhook-batch-buffer-size",
            "audit-webhook-batch-max-size",
            "audit-webhook-batch-max-wait",
            "audit-webhook-batch-throttle-enable",
            "audit-webhook-batch-throttle-qps",
            "audit-webhook-batch-throttle-burst",
            "audit-webhook-initial-backoff",
        ];
        unused(reading, WEBHOOK, &names);
        return None;
    }
    Some(settings)
}

fn unused(reading: &mut Reading<'_>, without: &str, names: &[&str]) {
    for name in names {
        if reading.given(name) {
            reading.problem(name, format_args!("not used without --{without}"));
        }
    }
}
