//! All certificates of the status page in one list, by days left.

use std::time::SystemTime;

use super::expiry::ExpiryWarning;
use super::status_report::StatusReport;

/// One certificate: of a file, or presented by a server.
pub(super) struct CertificateRow<'r> {
    /// File, or address and name of the server.
    pub(super) place: String,
    pub(super) subject: &'r str,
    /// Subject alternative names, or the users of the connection.
    pub(super) used_by: String,
    pub(super) not_after: &'r str,
    /// Reason if the certificate was refused.
    pub(super) refused: &'r str,
    pub(super) warning: Option<ExpiryWarning>,
}

impl StatusReport {
    /// Certificates: refused ones first, then those that expire first.
    pub(super) fn certificates_in_order(&self, now: SystemTime) -> Vec<CertificateRow<'_>> {
        let files = self.certificates.iter().map(|one| CertificateRow {
            place: one.file.clone(),
            subject: &one.subject,
            used_by: one.names.join(", "),
            not_after: &one.not_after,
            refused: "",
            warning: one.expiry_warning(now),
        });
        let servers = self.peer_certificates.iter().map(|one| CertificateRow {
            place: match one.server_name.as_str() {
                "" => format!("server {}", one.server),
                name => format!("server {} ({name})", one.server),
            },
            subject: &one.subject,
            used_by: one.used_by.clone(),
            not_after: &one.not_after,
            refused: &one.refused,
            warning: one.expiry_warning(now),
        });
        let mut rows: Vec<_> = files.chain(servers).collect();
        // Times in this form sort like the text.
        rows.sort_by(|a, b| a.refused.is_empty().cmp(&b.refused.is_empty()).then(a.not_after.cmp(b.not_after)));
        rows
    }
}
