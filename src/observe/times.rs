//! Times and durations of the status report, as text.

use std::time::{Duration, SystemTime};

use kubeapi::human_duration;

/// Formats a time as RFC 3339 with whole seconds, like `metav1.Time`.
pub fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map(|time| time.strftime("%FT%TZ").to_string()).unwrap_or_default()
}

/// The offset of `timestamp` from `now`; `None` if it cannot be parsed.
pub fn time_offset(timestamp: &str, now: SystemTime) -> Option<TimeOffset> {
    let time = SystemTime::from(timestamp.parse::<jiff::Timestamp>().ok()?);
    Some(match now.duration_since(time) {
        Ok(past) => TimeOffset::Past(past),
        Err(future) => TimeOffset::Future(future.duration()),
    })
}

/// Offset of a time from now.
pub enum TimeOffset {
    /// How long ago it was.
    Past(Duration),
    /// In how long it will be.
    Future(Duration),
}

/// Age of `timestamp`, for a column AGE; `<unknown>` if it cannot be parsed.
pub fn format_age(timestamp: &str, now: SystemTime) -> String {
    match time_offset(timestamp, now) {
        Some(TimeOffset::Past(past)) => human_duration(past),
        Some(TimeOffset::Future(_)) => human_duration(Duration::ZERO),
        None => "<unknown>".to_owned(),
    }
}

/// Time until `timestamp`: `in 89d`, `expired 5m ago`.
pub fn format_expiry(timestamp: &str, now: SystemTime) -> String {
    match time_offset(timestamp, now) {
        Some(TimeOffset::Past(past)) => format!("expired {} ago", human_duration(past)),
        Some(TimeOffset::Future(left)) => format!("in {}", human_duration(left)),
        None => "<unknown>".to_owned(),
    }
}

/// Formats a duration as kubectl's tables do (apimachinery's `HumanDuration`).
pub fn human_duration(duration: Duration) -> String {
    human_duration::human_duration(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

/// Formats a latency as `0.7ms`, `12ms` or `3.4s`; empty when there is none.
pub fn format_latency(micros: Option<u64>) -> String {
    match micros.map(|micros| micros as f64 / 1000.0) {
        None => String::new(),
        Some(millis) if millis < 10.0 => format!("{millis:.1}ms"),
        Some(millis) if millis < 1000.0 => format!("{millis:.0}ms"),
        Some(millis) => format!("{:.1}s", millis / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_duration_matches_kubectl() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
        ] {
            assert_eq!(human_duration(Duration::from_secs(seconds)), expected);
        }
    }
}
