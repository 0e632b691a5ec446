//! Small values in annotations: durations as Go writes them, sizes in bytes.

use std::time::Duration;

/// A size in bytes: a whole number, with `k`, `M`, `G` (1000s) or `Ki`, `Mi`, `Gi` (1024s) after it or not.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// A duration as Go's `time.ParseDuration` reads it (`1m30s`, `1.5h`, `250ms`); no sign.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (value, after) = rest.split_at(number);
        let unit = after.len() - after.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '.').len();
        let (unit, after) = after.split_at(unit);
        let nanos: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
        if (whole.is_empty() && fraction.is_empty()) || whole.len() > 12 || fraction.contains('.') {
            return None;
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total += whole * nanos;
        let fraction = &fraction[..fraction.len().min(12)];
        if !fraction.is_empty() {
            total += fraction.parse::<u128>().ok()? * nanos / 10u128.pow(fraction.len() as u32);
        }
        rest = after;
    }
    if text.is_empty() { None } else { u64::try_from(total).ok().map(Duration::from_nanos) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("0"), Some(0));
        assert_eq!(bytes("3Mi"), Some(3 << 20));
        assert_eq!(bytes("5k"), Some(5000));
        for wrong in ["", "Mi", "-1", "1.5Mi", "1 Mi", "1T", "99999999999999999999", "99999999999999Gi"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("1.5h"), Some(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration(".5s"), Some(Duration::from_millis(500)));
        for wrong in ["", "5", "s", "-1s", "1x", "1..2s", ".s", "999999999999h", "1s2"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
