//! Warnings about certificates that expire soon.

use std::time::{Duration, SystemTime};

use super::status_report::{CertificateReport, PeerCertificateReport, StatusReport};
use super::times::human_duration;

const DAY: Duration = Duration::from_secs(86_400);
/// Earliest time before expiry at which a warning is given.
pub const EARLIEST_EXPIRY_WARNING: Duration = Duration::from_secs(30 * 86_400);

/// Urgency of an expiry warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpiryWarning {
    /// The certificate has expired.
    Expired,
    /// The certificate expires within a day.
    Day,
    /// The certificate expires within 7 days.
    Week,
    /// The certificate expires within 30 days.
    Month,
}

impl ExpiryWarning {
    /// All warnings, most urgent first.
    pub const ALL: [ExpiryWarning; 4] =
        [ExpiryWarning::Expired, ExpiryWarning::Day, ExpiryWarning::Week, ExpiryWarning::Month];

    /// The value of the label `within`.
    pub fn as_str(self) -> &'static str {
        match self {
            ExpiryWarning::Expired => "0d",
            ExpiryWarning::Day => "1d",
            ExpiryWarning::Week => "7d",
            ExpiryWarning::Month => "30d",
        }
    }

    /// The warning at `now` for a certificate with this validity. Short-lived certificates are renewed shortly before
    /// they expire, so there is no warning before the last third of the validity.
    pub fn for_validity(not_before: SystemTime, not_after: SystemTime, now: SystemTime) -> Option<ExpiryWarning> {
        let Ok(left) = not_after.duration_since(now) else { return Some(ExpiryWarning::Expired) };
        let life = not_after.duration_since(not_before).unwrap_or_default();
        match () {
            () if left > life / 3 => None,
            () if left <= DAY => Some(ExpiryWarning::Day),
            () if left <= 7 * DAY => Some(ExpiryWarning::Week),
            () if left <= EARLIEST_EXPIRY_WARNING => Some(ExpiryWarning::Month),
            () => None,
        }
    }

    fn parse_validity(not_before: &str, not_after: &str, now: SystemTime) -> Option<ExpiryWarning> {
        let time = |text: &str| Some(SystemTime::from(text.parse::<jiff::Timestamp>().ok()?));
        ExpiryWarning::for_validity(time(not_before).unwrap_or(SystemTime::UNIX_EPOCH), time(not_after)?, now)
    }
}

/// Describes `not_after` relative to `now`: `expires in 5d`, `expired 5m ago`.
fn describe_time_left(not_after: &str, now: SystemTime) -> String {
    match StatusReport::expiry(not_after, now) {
        past if past.starts_with("expired") => past,
        future => format!("expires {future}"),
    }
}

impl CertificateReport {
    /// The expiry warning of the certificate, if any.
    pub fn expiry_warning(&self, now: SystemTime) -> Option<ExpiryWarning> {
        ExpiryWarning::parse_validity(&self.not_before, &self.not_after, now)
    }

    /// A sentence about the expiry.
    pub fn describe_expiry(&self, now: SystemTime) -> String {
        format!("{} ({}) {} ({})", self.file, self.subject, describe_time_left(&self.not_after, now), self.not_after)
    }
}

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

    /// A sentence about the expiry.
    pub fn describe_expiry(&self, now: SystemTime) -> String {
        let used_by = if self.used_by.is_empty() { String::new() } else { format!(", {}", self.used_by) };
        let (server, subject) = (&self.server, &self.subject);
        format!(
            "certificate of {server}{used_by} ({subject}) {} ({})",
            describe_time_left(&self.not_after, now),
            self.not_after
        )
    }
}

impl StatusReport {
    /// Certificates with an expiry warning, most urgent first, each with a sentence.
    pub fn expiring_certificates(&self, now: SystemTime) -> Vec<(ExpiryWarning, String)> {
        let ours =
            self.certificates.iter().filter_map(|one| Some((one.expiry_warning(now)?, one.describe_expiry(now))));
        let theirs =
            self.peer_certificates.iter().filter_map(|one| Some((one.expiry_warning(now)?, one.describe_expiry(now))));
        let mut all: Vec<_> = ours.chain(theirs).collect();
        all.sort();
        all
    }

    /// Time until the first of the expiring certificates expires, for a summary.
    pub(super) fn time_to_first_expiry(&self, now: SystemTime) -> Option<String> {
        let ends = self.certificates.iter().filter(|one| one.expiry_warning(now).is_some()).map(|one| &one.not_after);
        let peers =
            self.peer_certificates.iter().filter(|one| one.expiry_warning(now).is_some()).map(|one| &one.not_after);
        let left = |end: &String| SystemTime::from(end.parse::<jiff::Timestamp>().ok()?).duration_since(now).ok();
        ends.chain(peers).filter_map(left).min().map(human_duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_warnings_come_at_30_7_and_1_days_in_the_last_third() {
        let begin = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let of = |life: u32, left: f64| {
            let end = begin + life * DAY;
            ExpiryWarning::for_validity(begin, end, end - DAY.mul_f64(left.max(0.0)) + DAY.mul_f64((-left).max(0.0)))
        };
        assert_eq!(
            [31.0, 30.0, 7.1, 7.0, 1.1, 1.0, -0.1].map(|left| of(365, left)),
            [
                None,
                Some(ExpiryWarning::Month),
                Some(ExpiryWarning::Month),
                Some(ExpiryWarning::Week),
                Some(ExpiryWarning::Week),
                Some(ExpiryWarning::Day),
                Some(ExpiryWarning::Expired),
            ]
        );
        assert_eq!([of(1, 0.9), of(1, 0.4), of(1, 0.3)], [None, None, Some(ExpiryWarning::Day)]);
        assert_eq!([of(30, 11.0), of(30, 9.0)], [None, Some(ExpiryWarning::Month)]);
    }
}
