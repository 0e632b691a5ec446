//! The log of certificates that expire soon, and their number in the metrics.

use std::collections::BTreeMap;

use super::expiry_warning::{ExpiringCertificate, ExpiryWarning};
use crate::observe::metrics::CertificateMetrics;

/// Warnings logged per check; further ones are only counted.
const MAX_LOG_LINES: usize = 50;

/// The expiry warnings logged so far.
#[derive(Default)]
pub struct ExpiryLog {
    /// The most urgent warning by subject and expiry of the certificate.
    reported: BTreeMap<(String, String), ExpiryWarning>,
}

impl ExpiryLog {
    /// Logs each certificate that expires within 30, 7 or 1 days or has expired, once per threshold; counts them.
    pub fn check(&mut self, expiring: Vec<ExpiringCertificate>, metrics: &CertificateMetrics) {
        for within in ExpiryWarning::ALL {
            let count = expiring.iter().filter(|one| one.warning <= within).count();
            metrics.set_expiring(within.as_str(), count);
        }
        let lines = self.unreported(expiring);
        for line in lines.iter().take(MAX_LOG_LINES) {
            tracing::warn!("{line}; replace it");
        }
        let more = lines.len().saturating_sub(MAX_LOG_LINES);
        if more > 0 {
            tracing::warn!(more, "further certificates expire soon; see 'narthex status'");
        }
    }

    /// Sentences about certificates whose warning is new.
    fn unreported(&mut self, expiring: Vec<ExpiringCertificate>) -> Vec<String> {
        let mut current = BTreeMap::new();
        let mut lines = Vec::new();
        for ExpiringCertificate { warning, sentence, subject, not_after } in expiring {
            let key = (subject, not_after);
            // Several servers or files may have the same certificate: one line for it.
            let is_reported = self.reported.get(&key) == Some(&warning);
            if current.insert(key, warning).is_none() && !is_reported {
                lines.push(sentence);
            }
        }
        self.reported = current;
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expiring(warning: ExpiryWarning, file: &str, subject: &str) -> ExpiringCertificate {
        let (sentence, subject) = (file.to_owned(), subject.to_owned());
        ExpiringCertificate { warning, sentence, subject, not_after: "2026-11-20T00:00:00Z".to_owned() }
    }

    #[test]
    fn expiring_certificate_is_logged_once_per_threshold() {
        let mut log = ExpiryLog::default();
        let week = || {
            vec![
                expiring(ExpiryWarning::Week, "a.crt", "CN=a"),
                expiring(ExpiryWarning::Week, "copy-of-a.crt", "CN=a"),
                expiring(ExpiryWarning::Month, "b.crt", "CN=b"),
            ]
        };
        assert_eq!(log.unreported(week()), ["a.crt", "b.crt"]);
        assert!(log.unreported(week()).is_empty());
        assert_eq!(log.unreported(vec![expiring(ExpiryWarning::Day, "a.crt", "CN=a")]), ["a.crt"]);
        assert!(log.unreported(Vec::new()).is_empty());
        assert_eq!(log.unreported(vec![expiring(ExpiryWarning::Day, "a.crt", "CN=a")]), ["a.crt"]);
    }

    #[test]
    fn certificates_expiring_are_counted_within_each_time() {
        let metrics = CertificateMetrics::default();
        let found = vec![
            expiring(ExpiryWarning::Expired, "a.crt", "CN=a"),
            expiring(ExpiryWarning::Week, "b.crt", "CN=b"),
            expiring(ExpiryWarning::Month, "c.crt", "CN=c"),
        ];
        ExpiryLog::default().check(found, &metrics);
        let counts = ExpiryWarning::ALL.map(|within| metrics.expiring(within.as_str()));
        assert_eq!(counts, [Some(1), Some(1), Some(2), Some(3)]);
    }
}
