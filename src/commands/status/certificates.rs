//! The tables of configured certificates and of certificates that servers presented.

use std::time::SystemTime;

use super::table;
use crate::admin::{PeerCertificateReport, StatusReport};
use crate::tls::CertificateReport;

/// Column titles of the certificates that servers presented.
pub(super) const COLUMNS: [&str; 6] = ["SERVER CERTIFICATE", "SERVER NAME", "USED BY", "SUBJECT", "ENDS", "REFUSED"];

/// Appends the table of configured certificates.
pub(super) fn append_configured(out: &mut String, certificates: &[CertificateReport], now: SystemTime, wide: bool) {
    let mut columns = vec!["CERTIFICATE", "SUBJECT", "ENDS"];
    columns.extend(wide.then_some("NAMES"));
    let row = |certificate: &CertificateReport| {
        let mut row = vec![
            certificate.file.clone(),
            certificate.subject.clone(),
            StatusReport::expiry(&certificate.not_after, now),
        ];
        row.extend(wide.then(|| certificate.names.join(",")));
        row
    };
    table(out, &columns, certificates.iter().map(row).collect());
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
