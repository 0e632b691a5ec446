//! Warnings about certificates that expire soon.

use std::time::{Duration, SystemTime};

use crate::observe::times::{format_expiry, human_duration};

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

    /// The warning at `now` for a validity as text.
    pub(crate) fn parse_validity(not_before: &str, not_after: &str, now: SystemTime) -> Option<ExpiryWarning> {
        let time = |text: &str| Some(SystemTime::from(text.parse::<jiff::Timestamp>().ok()?));
        ExpiryWarning::for_validity(time(not_before).unwrap_or(SystemTime::UNIX_EPOCH), time(not_after)?, now)
    }
}

/// Describes `not_after` relative to `now`: `expires in 5d`, `expired 5m ago`.
pub(crate) fn describe_time_left(not_after: &str, now: SystemTime) -> String {
    match format_expiry(not_after, now) {
        past if past.starts_with("expired") => past,
        future => format!("expires {future}"),
    }
}

/// A certificate with an expiry warning. Certificates sort by urgency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpiringCertificate {
    /// The warning.
    pub warning: ExpiryWarning,
    /// A sentence about the certificate and its expiry.
    pub sentence: String,
    /// Subject of the certificate.
    pub subject: String,
    /// End of the validity.
    pub not_after: String,
}

impl ExpiringCertificate {
    /// Whether the certificate has expired.
    pub fn is_expired(&self) -> bool {
        self.warning == ExpiryWarning::Expired
    }

    /// Time until the first of `expiring` expires that has not expired yet, for a summary.
    pub fn time_to_first_expiry(expiring: &[ExpiringCertificate], now: SystemTime) -> Option<String> {
        let left = |one: &ExpiringCertificate| {
            SystemTime::from(one.not_after.parse::<jiff::Timestamp>().ok()?).duration_since(now).ok()
        };
        expiring.iter().filter_map(left).min().map(human_duration)
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
