//! The table of certificates that servers presented.

use std::time::SystemTime;

use crate::admin::{PeerCertificateReport, StatusReport};

/// Its columns.
pub(super) const COLUMNS: [&str; 5] = ["SERVER CERTIFICATE", "SERVER NAME", "USED BY", "SUBJECT", "ENDS"];

/// Its rows: those that end soon, or all of them.
pub(super) fn rows(report: &StatusReport, now: SystemTime, all: bool) -> Vec<Vec<String>> {
    let row = |of: &PeerCertificateReport| {
        vec![
            of.server.clone(),
            of.server_name.clone(),
            of.used_by.clone(),
            of.subject.clone(),
            StatusReport::expiry(&of.not_after, now),
        ]
    };
    report.peer_certificates.iter().filter(|of| all || of.warning(now).is_some()).map(row).collect()
}
