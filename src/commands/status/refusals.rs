//! `narthex status refusals`: the last requests that were refused or failed, and failed handshakes.

use std::time::SystemTime;

use crate::admin::{RefusalReport, StatusReport};

/// Column titles of the table of refused requests.
pub(super) const REFUSAL_COLUMNS: [&str; 9] =
    ["AGE", "USER", "VERB", "PATH", "STATUS", "REASON", "COUNT", "CAUSE", "AUDIT ID"];
/// Column titles of the table of failed handshakes.
pub(super) const HANDSHAKE_COLUMNS: [&str; 2] = ["FAILED HANDSHAKES", "COUNT"];

/// Rows of refused requests, newest first.
pub(super) fn refusal_rows(report: &StatusReport, now: SystemTime) -> Vec<Vec<String>> {
    let row = |of: &RefusalReport| {
        vec![
            StatusReport::age(&of.time, now),
            of.user_display(),
            of.verb.clone(),
            of.path.clone(),
            of.status.to_string(),
            of.reason.clone(),
            of.count.to_string(),
            of.cause.clone(),
            of.audit_id.clone(),
        ]
    };
    report.refusals.iter().map(row).collect()
}

/// Rows of failed handshakes, by reason.
pub(super) fn handshake_rows(report: &StatusReport) -> Vec<Vec<String>> {
    report.handshake_failures.iter().map(|(reason, count)| vec![reason.clone(), count.to_string()]).collect()
}
