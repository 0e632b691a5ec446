//! The table of remote calls: API servers, webhooks, token issuers, egress proxies.

use std::time::SystemTime;

use crate::admin::{RemoteCallReport, StatusReport};

/// Column titles.
pub(super) const COLUMNS: [&str; 7] =
    ["REMOTE CALL", "SERVER", "STATE", "LAST SUCCESS", "LATENCY", "CACHE HITS", "ERROR"];

/// Rows, failing calls first.
pub(super) fn rows(report: &StatusReport, now: SystemTime) -> Vec<Vec<String>> {
    let row = |of: &RemoteCallReport| {
        vec![
            of.title(),
            of.server.clone(),
            of.state(now),
            of.last_success_age(now),
            of.latency(),
            of.cache_hits_display(),
            of.error.clone(),
        ]
    };
    report.remote_calls_in_order().map(row).collect()
}
