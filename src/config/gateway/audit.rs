//! Audit settings: policy, log file and webhook.

use crate::config::parser::FlagParser;
use crate::observe::audit::{AuditLogFormat, AuditLogSettings, AuditWebhookSettings, Settings};

const POLICY: &str = "audit-policy-file";
const LOG: &str = "audit-log-path";
const WEBHOOK: &str = "audit-webhook-config-file";

/// A policy and a log or webhook require each other. kube-apiserver starts with either alone and audits nothing.
pub(super) fn audit_settings(parser: &mut FlagParser<'_>) -> Option<Settings> {
    let policy_file = parser.path(POLICY);
    let (log, webhook) = (log_settings(parser), webhook_settings(parser));
    if policy_file.is_some() && log.is_none() && webhook.is_none() {
        parser.add_problem(POLICY, format_args!("has no effect without --{LOG} or --{WEBHOOK}"));
    }
    if policy_file.is_none() {
        for (name, given) in [(LOG, log.is_some()), (WEBHOOK, webhook.is_some())] {
            if given {
                parser.add_problem(name, format_args!("has no effect without --{POLICY}"));
            }
        }
    }
    Some(Settings { policy_file: policy_file?, log, webhook })
}

fn log_settings(parser: &mut FlagParser<'_>) -> Option<AuditLogSettings> {
    let path = parser.text(LOG);
    let settings = AuditLogSettings {
        path: (path != "-").then(|| parser.resolve_path(LOG, &path)),
        format: match &*parser.choice("audit-log-format") {
            "legacy" => AuditLogFormat::Legacy,
            _ => AuditLogFormat::Json,
        },
        max_size: parser.count("audit-log-maxsize", 1 << 20),
        max_backups: parser.memory_count("audit-log-maxbackup"),
        max_age: parser.count("audit-log-maxage", 1 << 20),
    };
    if path.is_empty() {
        reject_without(
            parser,
            LOG,
            &["audit-log-format", "audit-log-maxsize", "audit-log-maxbackup", "audit-log-maxage"],
        );
        return None;
    }
    Some(settings)
}

fn webhook_settings(parser: &mut FlagParser<'_>) -> Option<AuditWebhookSettings> {
    let config_file = parser.path(WEBHOOK);
    parser.choice("audit-webhook-mode");
    let throttled = parser.switch("audit-webhook-batch-throttle-enable");
    let qps = parser.fraction("audit-webhook-batch-throttle-qps", 0.001, 1_000_000.0);
    let burst = parser.positive_count("audit-webhook-batch-throttle-burst");
    let settings = AuditWebhookSettings {
        config_file: config_file.clone().unwrap_or_default(),
        buffer: parser.positive_count("audit-webhook-batch-buffer-size"),
        batch: parser.positive_count("audit-webhook-batch-max-size"),
        wait: parser.duration("audit-webhook-batch-max-wait"),
        throttle: throttled.then_some((qps, burst as u64)),
        backoff: parser.duration("audit-webhook-initial-backoff"),
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
        reject_without(parser, WEBHOOK, &names);
        return None;
    }
    Some(settings)
}

fn reject_without(parser: &mut FlagParser<'_>, without: &str, names: &[&str]) {
    for name in names {
        if parser.is_given(name) {
            parser.add_problem(name, format_args!("not used without --{without}"));
        }
    }
}
