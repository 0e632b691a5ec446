//! Schedules of CronJobs, and time zones (`github.com/robfig/cron/v3`, `validateTimeZone`).

use std::collections::HashSet;
use std::sync::LazyLock;

use kubeapi::GoQuoted;
use kubeapi::duration::parse_signed;

/// The time zones that Go knows: the names of its `zoneinfo.zip`.
static TIME_ZONES: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("time_zones.txt").lines().collect());

const DESCRIPTORS: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MAX_ZONE_PART: usize = 14;

/// The values of a field of a schedule.
struct FieldBounds {
    first: i64,
    last: i64,
    /// Names of the values from the first one on.
    names: &'static [&'static str],
}

const FIELDS: [FieldBounds; 5] = [
    FieldBounds { first: 0, last: 59, names: &[] },
    FieldBounds { first: 0, last: 23, names: &[] },
    FieldBounds { first: 1, last: 31, names: &[] },
    FieldBounds { first: 1, last: 12, names: &MONTHS },
    FieldBounds { first: 0, last: 6, names: &DAYS },
];

/// Checks a schedule.
///
/// # Errors
/// Upstream's text.
pub(super) fn check_schedule(schedule: &str) -> Result<(), String> {
    let mut fields = schedule;
    if let Some(rest) = schedule.strip_prefix("CRON_TZ=").or_else(|| schedule.strip_prefix("TZ=")) {
        // Go's code panics without a space.
        let panic = || "invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned();
        let (zone, rest) = rest.split_once(' ').ok_or_else(panic)?;
        if let Err(why) = load_time_zone(zone) {
            return Err(format!("provided bad location {zone}: {why}"));
        }
        fields = rest.trim();
    }
    if fields.starts_with('@') {
        return check_descriptor(fields);
    }
    let fields: Vec<&str> = fields.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let count = fields.len();
        return Err(format!("expected exactly {} fields, found {count}: [{}]", FIELDS.len(), fields.join(" ")));
    }
    for (field, bounds) in fields.into_iter().zip(&FIELDS) {
        field.split(',').filter(|range| !range.is_empty()).try_for_each(|range| check_range(range, bounds))?;
    }
    Ok(())
}

fn check_descriptor(descriptor: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&descriptor) {
        return Ok(());
    }
    let Some(duration) = descriptor.strip_prefix("@every ") else {
        return Err(format!("unrecognized descriptor: {descriptor}"));
    };
    match parse_signed(duration) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("failed to parse duration {descriptor}: {error}")),
    }
}

/// Checks a range such as `*`, `1-5` or `0/10`.
fn check_range(range: &str, bounds: &FieldBounds) -> Result<(), String> {
    let (values, steps): (&str, Vec<&str>) = match range.split_once('/') {
        Some((values, steps)) => (values, steps.split('/').collect()),
        None => (range, Vec::new()),
    };
    let parts: Vec<&str> = values.split('-').collect();
    let (first, mut last) = match parts.as_slice() {
        ["*" | "?", ..] => (bounds.first, bounds.last),
        [one] => {
            let one = parse_value(one, bounds)?;
            (one, one)
        }
        [first, rest @ ..] => {
            let first = parse_value(first, bounds)?;
            match rest {
                [last] => (first, parse_value(last, bounds)?),
                _ => return Err(format!("too many hyphens: {range}")),
            }
        }
        [] => return Ok(()),
    };
    let step = match steps.as_slice() {
        [] => 1,
        [step] => {
            let step = parse_number(step)?;
            if parts.len() == 1 {
                last = bounds.last;
            }
            step
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    if first < bounds.first {
        return Err(format!("beginning of range ({first}) below minimum ({}): {range}", bounds.first));
    }
    if last > bounds.last {
        return Err(format!("end of range ({last}) above maximum ({}): {range}", bounds.last));
    }
    if first > last {
        return Err(format!("beginning of range ({first}) beyond end of range ({last}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    Ok(())
}

fn parse_value(text: &str, bounds: &FieldBounds) -> Result<i64, String> {
    let name = text.to_lowercase();
    match bounds.names.iter().position(|known| *known == name) {
        Some(index) => Ok(bounds.first + i64::try_from(index).unwrap_or_default()),
        None => parse_number(text),
    }
}

fn parse_number(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    let error = || format!("failed to parse int from {text}: strconv.Atoi: parsing {}: {why}", GoQuoted(text));
    let number: i64 = if is_number { text.parse().map_err(|_| error())? } else { return Err(error()) };
    match number {
        0.. => Ok(number),
        _ => Err(format!("negative number ({number}) not allowed: {text}")),
    }
}

/// Checks that Go finds a time zone (`time.LoadLocation`).
///
/// # Errors
/// Go's text.
fn load_time_zone(name: &str) -> Result<(), String> {
    let is_known = matches!(name, "" | "UTC" | "Local") || TIME_ZONES.contains(name);
    if is_known { Ok(()) } else { Err(format!("unknown time zone {name}")) }
}

/// Sentences for the time zone of a CronJob.
pub(super) fn check_time_zone(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte);
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.starts_with('-')
            && part.len() <= MAX_ZONE_PART
            && part.bytes().all(is_allowed)
    };
    if !name.split('/').all(is_part) {
        return vec![format!("unknown time zone {name}")];
    }
    let mut sentences = Vec::new();
    if name.eq_ignore_ascii_case("local") {
        let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        sentences.push(why.to_owned());
    }
    sentences.extend(load_time_zone(name).err());
    sentences
}
