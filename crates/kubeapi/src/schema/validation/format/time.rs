//! Times and durations (`pkg/validation/strfmt/{date,time,duration}.go`).

use std::sync::LazyLock;

use jiff::civil::Date;
use regex::Regex;

use crate::duration::parse_signed;
use crate::schema::validation::Pattern;

static TIME: LazyLock<Pattern> =
    LazyLock::new(|| Pattern::new(r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$"));
/// A number and a unit, anywhere in a text. None if the expression is wrong, which a test excludes.
static DURATION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"([0-9]+)[\t\n\f\r ]*([A-Za-zµ]+)").ok());
/// Units of a duration, and beginnings of units.
const UNITS: [&str; 11] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"];
const UNIT_PREFIXES: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];

/// A date such as `2006-01-02`.
pub(super) fn is_date(text: &str) -> bool {
    let is_digit_or_dash =
        |(at, byte): (usize, u8)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10 && text.bytes().enumerate().all(is_digit_or_dash) && text.parse::<Date>().is_ok()
}

/// A date and time with a time zone. What follows a second `t` does not count, as upstream.
pub(super) fn is_date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    matches!((parts.next(), parts.next()), (Some(date), Some(time)) if is_date(date) && TIME.matches(time))
}

/// A duration of Go, or a text with a number and a unit such as `22 nanoseconds`.
pub(super) fn is_duration(text: &str) -> bool {
    if parse_signed(text).is_ok() {
        return true;
    }
    let Some(pattern) = &*DURATION else { return false };
    let mut has_unit = false;
    for found in pattern.captures_iter(text) {
        if found[1].parse::<i64>().is_err() {
            return false;
        }
        let unit = found[2].to_lowercase();
        has_unit |= UNITS.contains(&&*unit) || UNIT_PREFIXES.iter().any(|prefix| unit.starts_with(prefix));
    }
    has_unit
}
