//! Durations in Go's format: `1m`, `90s`, `1h30m`, `1.5s`.

use std::fmt::{self, Write};
use std::time::Duration;

use super::{Query, Status};

/// Error of parsing a duration. Displays as the error of Go's `time.ParseDuration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// A number is missing or too large.
    Invalid(String),
    /// A number without a unit.
    MissingUnit(String),
    /// An unknown unit.
    UnknownUnit(String, String),
    /// A negative duration where none is allowed.
    Negative(String),
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DurationError::Invalid(text) => write!(f, "time: invalid duration {}", TimeQuoted(text)),
            DurationError::MissingUnit(text) => write!(f, "time: missing unit in duration {}", TimeQuoted(text)),
            DurationError::UnknownUnit(unit, text) => {
                write!(f, "time: unknown unit {} in duration {}", TimeQuoted(unit), TimeQuoted(text))
            }
            DurationError::Negative(text) => write!(f, "the duration {} is negative", TimeQuoted(text)),
        }
    }
}

impl std::error::Error for DurationError {}

/// Quotes as Go's package `time`, which writes every byte that is not printable ASCII as `\xNN`.
struct TimeQuoted<'a>(&'a str);

impl fmt::Display for TimeQuoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'\\' => write!(f, "\\{}", char::from(byte))?,
                b' '..=0x7f => f.write_char(char::from(byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        f.write_char('"')
    }
}

/// Parses a duration of zero or more, for flags, files and annotations.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let nanoseconds = parse_signed(text)?;
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| DurationError::Negative(text.to_owned()))
}

/// Parses a signed duration into nanoseconds, exactly as Go's `time.ParseDuration`.
pub fn parse_signed(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    // Go counts in an unsigned 64 bit number and allows 1<<63 only for the most negative duration.
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        // As in Go, a number that is too large is reported before a missing unit.
        let number = if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok().filter(|n| *n <= 1 << 63) };
        let number = number.ok_or_else(invalid)?;
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let scale = nanoseconds(unit).ok_or_else(|| DurationError::UnknownUnit(unit.to_owned(), text.to_owned()))?;
        let part = number.checked_mul(scale).and_then(|part| part.checked_add(fraction_of(fraction, scale)));
        total = part.and_then(|part| total.checked_add(part)).filter(|total| *total <= 1 << 63).ok_or_else(invalid)?;
        rest = after;
    }
    if negative { Ok((total as i64).wrapping_neg()) } else { i64::try_from(total).map_err(|_| invalid()) }
}

/// The timeout of a request that is not long-running (`k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go`).
///
/// The query's `timeout` if it is above zero and below `maximum`, else `maximum`. An invalid `timeout` is a 400.
pub fn request_timeout(query: &Query<'_>, maximum: Duration) -> Result<Duration, Status> {
    let Some(text) = query.get("timeout").filter(|text| !text.is_empty()) else { return Ok(maximum) };
    match parse_signed(&text) {
        Ok(nanoseconds) => Ok(match u64::try_from(nanoseconds) {
            Ok(asked) if asked > 0 => Duration::from_nanos(asked).min(maximum),
            _ => maximum,
        }),
        Err(error) => Err(Status::bad_request(format!("invalid timeout specified in the request URL - {error}"))),
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // U+00B5 micro sign and U+03BC Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `0.<digits>` of `scale`, truncated to nanoseconds. Digits beyond 64 bit precision are ignored, as in Go.
fn fraction_of(digits: &str, scale: u64) -> u64 {
    let mut value: u64 = 0;
    let mut divisor = 1.0_f64;
    for digit in digits.bytes() {
        match value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit - b'0'))).filter(|v| *v < 1 << 63) {
            Some(next) => value = next,
            None => break,
        }
        divisor *= 10.0;
    }
    (value as f64 * (scale as f64 / divisor)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duration_parsed_as_go() {
        for (text, expected) in [
            ("0", 0),
            ("5s", 5_000_000_000),
            ("30s", 30_000_000_000),
            ("1m", 60_000_000_000),
            ("90s", 90_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("-5s", -5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-0", 0),
            ("5.0s", 5_000_000_000),
            ("5.6s", 5_600_000_000),
            ("5.s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.004s", 1_004_000_000),
            ("100.00100s", 100_001_000_000),
            ("10ns", 10),
            ("11us", 11_000),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s10ns", 12_010),
            ("13ms", 13_000_000),
            ("3h30m", 12_600_000_000_000),
            ("10.5s4m", 250_500_000_000),
            ("-2m3.4s", -123_400_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9007199254740993ns", 9_007_199_254_740_993),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.830103483285477580700h", 2_988_372_539_827),
        ] {
            assert_eq!(parse_signed(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn duration_errors_match_go() {
        for (text, expected) in [
            ("", "time: invalid duration \"\""),
            ("3", "time: missing unit in duration \"3\""),
            ("-", "time: invalid duration \"-\""),
            ("s", "time: invalid duration \"s\""),
            (".", "time: invalid duration \".\""),
            ("-.", "time: invalid duration \"-.\""),
            (".s", "time: invalid duration \".s\""),
            ("+.s", "time: invalid duration \"+.s\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("-9223372036854775809ns", "time: invalid duration \"-9223372036854775809ns\""),
            ("1é\n\"", r#"time: unknown unit "\xc3\xa9\x0a\"" in duration "1\xc3\xa9\x0a\"""#),
            ("1 m", "time: unknown unit \" m\" in duration \"1 m\""),
        ] {
            assert_eq!(parse_signed(text).unwrap_err().to_string(), expected);
        }
        assert_eq!(parse("-1s").unwrap_err().to_string(), "the duration \"-1s\" is negative");
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
    }

    #[test]
    fn request_timeout_parameter_only_shortens() {
        let minute = Duration::from_secs(60);
        for (query, expected) in [
            ("", minute),
            ("timeout=", minute),
            ("timeout=5s", Duration::from_secs(5)),
            ("timeout=0", minute),
            ("timeout=-5s", minute),
            ("timeout=2m", minute),
            ("timeoutSeconds=5", minute),
        ] {
            assert_eq!(request_timeout(&Query::parse(query), minute), Ok(expected), "{query}");
        }
        let status = request_timeout(&Query::parse("timeout=abc"), minute).unwrap_err();
        assert_eq!(status.code, 400);
        assert_eq!(status.message, "invalid timeout specified in the request URL - time: invalid duration \"abc\"");
    }

    proptest! {
        #[test]
        fn whole_units_add_up(hours in 0u64..1000, minutes in 0u64..1000, seconds in 0u64..1000, millis in 0u64..1000) {
            let text = format!("{hours}h{minutes}m{seconds}s{millis}ms");
            let expected = Duration::from_millis(((hours * 60 + minutes) * 60 + seconds) * 1000 + millis);
            prop_assert_eq!(parse(&text), Ok(expected));
        }

        #[test]
        fn any_text_is_answered(text in ".*") {
            let _ = parse(&text);
        }
    }
}
