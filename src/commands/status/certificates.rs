//! The tables of configured certificates and of certificates that servers presented.

use std::time::SystemTime;

use crate::admin::{CertificateReport, PeerCertificateReport, StatusReport};

/// Column titles of the certificates that servers presented.
pub(super) const COLUMNS: [&str; 6] = ["SERVER CERTIFICATE", "SERVER NAME", "USED BY", "SUBJECT", "ENDS", "REFUSED"];

/// Rows of configured certificates.
pub(super) fn configured_rows(report: &StatusReport, now: SystemTime, with_names: bool) -> Vec<Vec<String>> {
    let row = |certificate: &CertificateReport| {
        let mut row = vec![
            certificate.file.clone(),
            certificate.subject.clone(),
            StatusReport::expiry(&certificate.not_after, now),
        ];
        row.extend(with_names.then(|| certificate.names.join(",")));
        row
    };
    report.certificates.iter().map(row).collect()
}

/// Rows: certificates that were refused or expire soon, or all; the refused first.
pub(super) fn rows(report: &StatusReport, now: SystemTime, all: bool) -> Vec<Vec<String>> {
    let row = |of: &PeerCertificateReport| {
        vec![
            of.server.clone(),
            of.server_name.clone(),
            of.used_by.clone(),
            of.subject.clone(),
            StatusReport::expiry(&of.not_after, now),
            of.refused.clone(),
        ]
    };
    let shown = report.peer_certificates.iter().filter(|of| all || of.is_remarkable(now));
    let (refused, accepted): (Vec<_>, Vec<_>) = shown.partition(|of| !of.refused.is_empty());
    refused.into_iter().chain(accepted).map(row).collect()
}
