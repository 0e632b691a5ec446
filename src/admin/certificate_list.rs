//! All certificates of a status page in one list, by days left.

use std::time::SystemTime;

use super::status_report::{PeerCertificateReport, StatusReport};
use crate::observe::times::format_expiry;
use crate::tls::{CertificateReport, ExpiryWarning};

/// One certificate: of a file, or presented by a server.
pub(super) struct CertificateRow<'r> {
    /// File, or address and name of the server.
    pub(super) location: String,
    pub(super) subject: &'r str,
    /// Subject alternative names, or the users of the connection.
    pub(super) used_by: String,
    pub(super) not_after: &'r str,
    /// Time until the expiry.
    pub(super) expiry: String,
    /// Class of the time until the expiry.
    pub(super) class: &'static str,
    /// Reason if the certificate was refused.
    pub(super) refused: &'r str,
}

impl StatusReport {
    /// Certificates: refused ones first, then those that expire first.
    pub(super) fn certificates_in_order(&self, now: SystemTime) -> Vec<CertificateRow<'_>> {
        let servers = self.peer_certificates.iter().map(|one| CertificateRow::from_server(one, now));
        let mut rows = file_rows(&self.certificates, now);
        rows.extend(servers);
        sort(&mut rows);
        rows
    }
}

/// Names of a certificate that are shown; `/status.json` has all.
const MAX_NAMES: usize = 8;

fn list_names(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Certificates of files, those that expire first at the top.
pub(super) fn file_rows(certificates: &[CertificateReport], now: SystemTime) -> Vec<CertificateRow<'_>> {
    let mut rows: Vec<_> = certificates.iter().map(|one| CertificateRow::from_file(one, now)).collect();
    sort(&mut rows);
    rows
}

/// Times in this form sort like the text.
fn sort(rows: &mut [CertificateRow<'_>]) {
    rows.sort_by(|a, b| a.refused.is_empty().cmp(&b.refused.is_empty()).then(a.not_after.cmp(b.not_after)));
}

impl<'r> CertificateRow<'r> {
    fn from_file(one: &'r CertificateReport, now: SystemTime) -> CertificateRow<'r> {
        CertificateRow {
            location: one.file.clone(),
            subject: &one.subject,
            used_by: list_names(&one.names),
            not_after: &one.not_after,
            expiry: format_expiry(&one.not_after, now),
            class: expiry_class(one.expiry_warning(now)),
            refused: "",
        }
    }

    fn from_server(one: &'r PeerCertificateReport, now: SystemTime) -> CertificateRow<'r> {
        CertificateRow {
            location: match one.server_name.as_str() {
                "" => format!("server {}", one.server),
                name => format!("server {} ({name})", one.server),
            },
            subject: &one.subject,
            used_by: one.used_by.clone(),
            not_after: &one.not_after,
            expiry: format_expiry(&one.not_after, now),
            class: expiry_class(one.expiry_warning(now)),
            refused: &one.refused,
        }
    }
}

fn expiry_class(warning: Option<ExpiryWarning>) -> &'static str {
    match warning {
        None => "",
        Some(ExpiryWarning::Month | ExpiryWarning::Week) => "warn",
        Some(ExpiryWarning::Day | ExpiryWarning::Expired) => "bad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_with_many_names_shows_the_first() {
        let names: Vec<_> = (1..=10).map(|number| format!("10.0.0.{number}")).collect();
        assert_eq!(list_names(&names[..1]), "10.0.0.1");
        let eight = "10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5, 10.0.0.6, 10.0.0.7, 10.0.0.8";
        assert_eq!(list_names(&names[..8]), eight);
        assert_eq!(list_names(&names), format!("{eight} and 2 more"));
    }
}
