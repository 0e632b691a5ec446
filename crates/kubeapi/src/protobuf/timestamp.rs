//! Times in JSON and in protobuf (`k8s.io/apimachinery/pkg/apis/meta/v1/time.go`, `micro_time.go`).

use std::fmt::Write;

use jiff::{Timestamp, tz::Offset};

/// Seconds of Go's zero time, 1 January of the year 1, which JSON has as `null`.
pub(super) const ZERO_SECONDS: i64 = -62_135_596_800;

/// How a time is written in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeFormat {
    /// `2006-01-02T15:04:05Z`; a fraction is read and dropped.
    Seconds,
    /// `2006-01-02T15:04:05.000000Z`; six digits or more are needed.
    Microseconds,
}

impl TimeFormat {
    fn layout(self) -> &'static str {
        match self {
            TimeFormat::Seconds => "2006-01-02T15:04:05Z07:00",
            TimeFormat::Microseconds => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// Parses a time into seconds and nanoseconds.
///
/// # Errors
/// The error of Go's `time.Parse`.
pub(super) fn parse_time(text: &str, format: TimeFormat) -> Result<(i64, i32), String> {
    let failure = |rest: &str, element: &str| {
        format!("parsing time {text:?} as {:?}: cannot parse {rest:?} as {element:?}", format.layout())
    };
    let out_of_range = |what: &str| format!("parsing time {text:?}: {what} out of range");
    let mut rest = text;
    let mut numbers = [0_i16; 6];
    let elements = [("2006", 4, "-"), ("01", 2, "-"), ("02", 2, "T"), ("15", 2, ":"), ("04", 2, ":"), ("05", 2, "")];
    for (number, (element, digits, separator)) in numbers.iter_mut().zip(elements) {
        let head = rest.get(..digits).filter(|head| head.bytes().all(|byte| byte.is_ascii_digit()));
        *number = head.and_then(|head| head.parse().ok()).ok_or_else(|| failure(rest, element))?;
        rest = &rest[digits..];
        match element {
            "01" if !(1..=12).contains(number) => return Err(out_of_range("month")),
            "15" if *number > 23 => return Err(out_of_range("hour")),
            "04" if *number > 59 => return Err(out_of_range("minute")),
            "05" if *number > 59 => return Err(out_of_range("second")),
            _ => {}
        }
        rest = rest.strip_prefix(separator).ok_or_else(|| failure(rest, separator))?;
    }
    let nanoseconds = read_fraction(&mut rest, format).map_err(|rest| failure(rest, ".000000"))?;
    let offset = read_offset(&mut rest).ok_or_else(|| failure(rest, "Z07:00"))?;
    if !rest.is_empty() {
        return Err(format!("parsing time {text:?}: extra text: {rest:?}"));
    }
    let [year, month, day, hour, minute, second] = numbers;
    let small = |number: i16| i8::try_from(number).unwrap_or(i8::MAX);
    let date = jiff::civil::Date::new(year, small(month), small(day)).map_err(|_| out_of_range("day"))?;
    let time = date.at(small(hour), small(minute), small(second), 0);
    let utc = Offset::UTC.to_timestamp(time).map_err(|_| out_of_range("year"))?;
    Ok((utc.as_second() - offset, nanoseconds))
}

fn read_fraction<'t>(rest: &mut &'t str, format: TimeFormat) -> Result<i32, &'t str> {
    let fraction = rest.strip_prefix(['.', ',']).unwrap_or_default();
    let digits = fraction.len() - fraction.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    // Go's parser takes exactly the digits of the layout.
    let exact = format == TimeFormat::Microseconds;
    if exact && digits != 6 {
        return Err(rest);
    }
    if digits == 0 {
        return Ok(0);
    }
    *rest = &fraction[digits..];
    let nine = fraction[..digits].chars().chain(std::iter::repeat('0')).take(9);
    Ok(nine.fold(0, |sum, digit| sum * 10 + digit.to_digit(10).unwrap_or_default().cast_signed()))
}

/// Seconds east of UTC.
fn read_offset(rest: &mut &str) -> Option<i64> {
    if let Some(after) = rest.strip_prefix('Z') {
        *rest = after;
        return Some(0);
    }
    let sign = match rest.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (rest.get(1..3)?, rest.get(4..6)?);
    if rest.as_bytes()[3] != b':' {
        return None;
    }
    let number = |text: &str| text.parse::<u8>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (hours, minutes) = (number(hours).filter(|h| *h <= 24)?, number(minutes).filter(|m| *m < 60)?);
    *rest = &rest[6..];
    Some(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

/// Writes a time as JSON has it; none for a year that RFC 3339 cannot write.
pub(super) fn format_time(seconds: i64, nanoseconds: i32, format: TimeFormat) -> Option<String> {
    let time = Offset::UTC.to_datetime(Timestamp::from_second(seconds).ok()?);
    if time.year() < 0 {
        return None;
    }
    let mut text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        time.year(),
        time.month(),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    );
    if format == TimeFormat::Microseconds {
        write!(text, ".{:06}", nanoseconds.clamp(0, 999_999_999) / 1000).ok()?;
    }
    text.push('Z');
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_round_trips_and_offset_becomes_utc() {
        for (text, format, expected) in [
            ("2026-01-02T03:04:05Z", TimeFormat::Seconds, "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05.999+01:30", TimeFormat::Seconds, "2026-01-02T01:34:05Z"),
            ("1969-12-31T23:59:59-00:01", TimeFormat::Seconds, "1970-01-01T00:00:59Z"),
            ("2024-02-29T23:59:59.123456Z", TimeFormat::Microseconds, "2024-02-29T23:59:59.123456Z"),
        ] {
            let (seconds, nanoseconds) = parse_time(text, format).unwrap();
            assert_eq!(format_time(seconds, nanoseconds, format).as_deref(), Some(expected));
        }
        assert_eq!(parse_time("0001-01-01T00:00:00Z", TimeFormat::Seconds), Ok((ZERO_SECONDS, 0)));
        assert_eq!(format_time(i64::MAX, 0, TimeFormat::Seconds), None);
    }

    #[test]
    fn time_errors_are_those_of_go() {
        for (text, expected) in [
            ("", r#"parsing time "" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006""#),
            ("2026-01-02", r#"parsing time "2026-01-02" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#),
            ("2026-13-02T03:04:05Z", r#"parsing time "2026-13-02T03:04:05Z": month out of range"#),
            ("2026-02-30T03:04:05Z", r#"parsing time "2026-02-30T03:04:05Z": day out of range"#),
            ("2026-02-03T03:04:05Zx", r#"parsing time "2026-02-03T03:04:05Zx": extra text: "x""#),
            (
                "2026-02-03T03:04:05",
                r#"parsing time "2026-02-03T03:04:05" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00""#,
            ),
        ] {
            assert_eq!(parse_time(text, TimeFormat::Seconds).unwrap_err(), expected);
        }
        for text in ["ü026-01-02T03:04:05Z", "2026-01-02T03:04:05+é1:00", "2026-01-02T03:04:05+01é00", "202ü"] {
            assert!(parse_time(text, TimeFormat::Seconds).is_err());
        }
    }
}
