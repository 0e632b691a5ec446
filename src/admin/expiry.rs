//! Certificates that expire soon, in reports, summaries and lists of what needs attention.

use std::time::SystemTime;

use super::attention_report::AttentionReport;
use super::status_report::{PeerCertificateReport, StatusReport};
use crate::tls::{CertificateReport, ExpiringCertificate, ExpiryWarning, describe_time_left};

impl PeerCertificateReport {
    /// The expiry warning of the certificate, if any. A refused certificate has none: its user reports the failure.
    pub fn expiry_warning(&self, now: SystemTime) -> Option<ExpiryWarning> {
        if !self.refused.is_empty() {
            return None;
        }
        ExpiryWarning::parse_validity(&self.not_before, &self.not_after, now)
    }

    /// Whether the certificate was refused or expires soon.
    pub fn is_remarkable(&self, now: SystemTime) -> bool {
        !self.refused.is_empty() || self.expiry_warning(now).is_some()
    }

    fn expiring(&self, now: SystemTime) -> Option<ExpiringCertificate> {
        let warning = self.expiry_warning(now)?;
        let used_by = if self.used_by.is_empty() { String::new() } else { format!(", {}", self.used_by) };
        let PeerCertificateReport { server, subject, not_after, .. } = self;
        let left = describe_time_left(not_after, now);
        let sentence = format!("certificate of {server}{used_by} ({subject}) {left} ({not_after})");
        Some(ExpiringCertificate { warning, sentence, subject: subject.clone(), not_after: not_after.clone() })
    }
}

impl StatusReport {
    /// Certificates with an expiry warning, most urgent first.
    pub fn expiring_certificates(&self, now: SystemTime) -> Vec<ExpiringCertificate> {
        let mut all = expiring_certificates(&self.certificates, now);
        all.extend(self.peer_certificates.iter().filter_map(|one| one.expiring(now)));
        all.sort();
        all
    }
}

/// Those of `certificates` with an expiry warning, most urgent first.
pub fn expiring_certificates(certificates: &[CertificateReport], now: SystemTime) -> Vec<ExpiringCertificate> {
    let mut all: Vec<_> = certificates.iter().filter_map(|one| one.expiring(now)).collect();
    all.sort();
    all
}

/// Describes how many certificates have expired, for a summary; none if no certificate has.
pub(super) fn describe_expired(expiring: &[ExpiringCertificate]) -> Option<String> {
    let expired = count_expired(expiring);
    (expired > 0).then(|| format!("{} expired", certificates(expired)))
}

/// Describes how many certificates expire soon, for a summary; none if no certificate does.
pub(super) fn describe_expiring(expiring: &[ExpiringCertificate], now: SystemTime) -> Option<String> {
    let first = ExpiringCertificate::time_to_first_expiry(expiring, now)?;
    let soon = expiring.len() - count_expired(expiring);
    let verb = if soon == 1 { "expires" } else { "expire" };
    Some(format!("{} {verb} within 30 days, the first in {first}", certificates(soon)))
}

fn certificates(count: usize) -> String {
    if count == 1 { "1 certificate".to_owned() } else { format!("{count} certificates") }
}

/// Number of certificates that have expired.
pub(super) fn count_expired(expiring: &[ExpiringCertificate]) -> usize {
    expiring.iter().filter(|one| one.is_expired()).count()
}

/// What needs attention: a failure for each expired certificate, a warning for each that expires soon.
pub(super) fn certificate_attention(expiring: Vec<ExpiringCertificate>) -> impl Iterator<Item = AttentionReport> {
    expiring.into_iter().map(|one| match one.is_expired() {
        true => AttentionReport::failure("certificates", "certificate", one.sentence),
        false => AttentionReport::warning("certificates", "certificate", one.sentence),
    })
}
