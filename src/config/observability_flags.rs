//! Flags of the access log, audit, the admin listener and the log.

use super::flag::{Flag, FlagGroup, FlagKind};

const ADMIN_ADDRESS: Flag = Flag::new(
    "admin-address",
    FlagKind::Text("HOST:PORT"),
    "127.0.0.1:6480",
    "Admin listener: an address or a name, or :PORT for every address of this machine (plain HTTP: status page, metrics, health; other machines get metrics and health only); port 0 takes a free one, an empty value disables it",
);

pub(super) const ADMIN_TOKEN_FILE: Flag = Flag::new(
    "admin-token-file",
    FlagKind::File,
    "",
    "File with the token that --admin-address requires, except for metrics and health: as bearer token, or as password in a browser. Without it every process of this machine or pod has access, including a mesh's proxy. Followed on disk",
);

pub(super) const ACCESS_LOG_FORMAT: Flag =
    Flag::new("access-log-format", FlagKind::Choice(&["text", "json"]), "text", "Format of access log lines");
pub(super) const LOG_FORMAT: Flag =
    Flag::new("log-format", FlagKind::Choice(&["text", "json"]), "text", "Format of log lines");
pub(super) const LOG_LEVEL: Flag = Flag::new(
    "log-level",
    FlagKind::Text("LEVEL"),
    "info",
    "Lowest level to log: error, warn, info, debug or trace (debug including libraries). NARTHEX_LOG, a filter such as info,narthex::egress=debug, overrides it",
);
pub(super) const VERBOSITY: Flag = Flag::new(
    "v",
    FlagKind::Count,
    "0",
    "Log level as a number, as in klog: up to 2 is info, up to 5 debug, from 6 on trace",
)
// klog's short form.
.with_letter('v');

/// Access log, audit, admin listener and log.
pub(super) static OBSERVABILITY: FlagGroup = FlagGroup {
    heading: "Observability",
    flags: &[
        Flag::new(
            "access-log",
            FlagKind::Choice(&["off", "errors", "all"]),
            "errors",
            "Requests to log: none; refused, failed or slow ones; all",
        ),
        ACCESS_LOG_FORMAT,
        Flag::new(
            "audit-policy-file",
            FlagKind::File,
            "",
            "Audit policy (audit.k8s.io/v1): which requests are audited, and at which level. Followed on disk",
        ),
        Flag::new(
            "audit-log-path",
            FlagKind::File,
            "",
            "File that audit events are appended to, one per line; - for standard output. Requests do not wait for it: events that cannot be written in time are dropped and counted",
        ),
        Flag::new(
            "audit-log-format",
            FlagKind::Choice(&["json", "legacy"]),
            "json",
            "Format of audit events: JSON objects, or lines of text",
        ),
        Flag::new(
            "audit-log-maxsize",
            FlagKind::Count,
            "100",
            "Size in MiB at which the audit log is rotated; 0 for never",
        ),
        Flag::new("audit-log-maxbackup", FlagKind::Count, "100", "Rotated audit logs to keep; 0 for all"),
        Flag::new("audit-log-maxage", FlagKind::Count, "366", "Days to keep rotated audit logs; 0 for ever"),
        Flag::new(
            "audit-webhook-config-file",
            FlagKind::File,
            "",
            "kubeconfig of a webhook that audit events are sent to. Followed on disk",
        ),
        Flag::new(
            "audit-webhook-mode",
            FlagKind::Choice(&["batch"]),
            "batch",
            "Mode of sending audit events to the webhook. The blocking modes are not supported",
        ),
        Flag::new(
            "audit-webhook-batch-buffer-size",
            FlagKind::Count,
            "10000",
            "Audit events buffered for the webhook, including those being sent; further events are dropped and counted",
        ),
        Flag::new("audit-webhook-batch-max-size", FlagKind::Count, "400", "Maximum audit events in a batch"),
        Flag::new(
            "audit-webhook-batch-max-wait",
            FlagKind::Duration,
            "30s",
            "Maximum time an audit event waits for its batch to fill",
        ),
        Flag::new(
            "audit-webhook-batch-throttle-enable",
            FlagKind::Switch,
            "true",
            "Limit the rate of batches sent to the webhook",
        ),
        Flag::new("audit-webhook-batch-throttle-qps", FlagKind::Fraction, "10", "Average number of batches per second"),
        Flag::new(
            "audit-webhook-batch-throttle-burst",
            FlagKind::Count,
            "15",
            "Number of batches that may be sent at once after an idle period",
        ),
        Flag::new(
            "audit-webhook-initial-backoff",
            FlagKind::Duration,
            "10s",
            "Delay before a failed batch is sent again; 1.5 times as long each time, five times in all",
        ),
        Flag::new(
            "tracing-config-file",
            FlagKind::File,
            "",
            "TracingConfiguration (apiserver.config.k8s.io/v1): the OpenTelemetry collector that spans of requests are sent to, and how many requests are sampled. Read once",
        ),
        ADMIN_ADDRESS,
        ADMIN_TOKEN_FILE,
        LOG_FORMAT,
        LOG_LEVEL,
        VERBOSITY,
    ],
};

/// Admin listener and log of a quickstart.
pub(super) static QUICKSTART_OBSERVABILITY: FlagGroup =
    FlagGroup { heading: "Observability", flags: &[ADMIN_ADDRESS, LOG_FORMAT, LOG_LEVEL, VERBOSITY] };

/// The log flags alone, for commands that do not serve.
pub(super) static LOG: FlagGroup = FlagGroup { heading: "Log", flags: &[LOG_FORMAT, LOG_LEVEL, VERBOSITY] };
