//! Ages as kubectl prints them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Formats a number of seconds, as `5d3h`: at most two units, the smaller one only where it matters
/// (`HumanDuration` of `k8s.io/apimachinery/pkg/util/duration`).
pub fn human_duration(seconds: i64) -> String {
    match seconds {
        i64::MIN..-1 => return "<invalid>".to_owned(),
        -1 => return "0s".to_owned(),
        _ => {}
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => two(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

/// Time since a timestamp in RFC 3339, as kubectl prints it; none if the text is no timestamp.
pub fn age_of(timestamp: &str, now: SystemTime) -> Option<String> {
    let time: Timestamp = timestamp.parse().ok()?;
    let seconds = match now.duration_since(SystemTime::from(time)) {
        Ok(past) => whole_seconds(past),
        Err(future) => -whole_seconds(future.duration()),
    };
    Some(human_duration(seconds))
}

/// The seconds of a duration that is at most as long as Go's `time.Duration` can be.
fn whole_seconds(duration: Duration) -> i64 {
    const LONGEST: i64 = i64::MAX / 1_000_000_000;
    i64::try_from(duration.as_secs()).map_or(LONGEST, |seconds| seconds.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_duration_prints_the_smaller_unit_only_where_upstream_does() {
        const DAY: i64 = 86_400;
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (659, "10m"),
            (10_799, "179m"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY + 3600, "2d1h"),
            (8 * DAY + 3600, "8d"),
            (730 * DAY - 1, "729d"),
            (731 * DAY, "2y1d"),
            (2920 * DAY, "8y"),
        ] {
            assert_eq!(human_duration(seconds), expected, "{seconds} s");
        }
    }
}
