//! Formats one access record as a line: `key=value` text or JSON. A record is always one line of printable ASCII, and
//! values are escaped, whatever a client sends.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// Format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// `time access key=value …`.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Query parameters that are logged with their values: those of the Kubernetes API without secrets. Of all others
/// (`token`, `access_token`, `command` of an exec, parameters of extensions) only the name is logged.
const VISIBLE_PARAMETERS: &[&str] = &[
    "allowWatchBookmarks",
    "as",
    "container",
    "dryRun",
    "exclude",
    "fieldManager",
    "fieldSelector",
    "fieldValidation",
    "follow",
    "force",
    "gracePeriodSeconds",
    "hash",
    "includeObject",
    "labelSelector",
    "limit",
    "orphanDependents",
    "pretty",
    "previous",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "stderr",
    "stdin",
    "stdout",
    "tailLines",
    "timeout",
    "timeoutSeconds",
    "timestamps",
    "tty",
    "verbose",
    "watch",
];

/// A query without the values of parameters that may be secret.
pub(super) fn redacted_query(query: &str) -> String {
    let shown = |pair: &str| match hidden_parameter(pair) {
        Some(name) => format!("{name}=***"),
        None => pair.to_owned(),
    };
    query.split('&').map(shown).collect::<Vec<_>>().join("&")
}

/// The name of a parameter whose value may be secret.
fn hidden_parameter(pair: &str) -> Option<&str> {
    pair.split_once('=').map(|(name, _)| name).filter(|name| !VISIBLE_PARAMETERS.contains(name))
}

/// Writes one line.
pub(super) struct AccessLogLine<'b> {
    out: &'b mut Vec<u8>,
    form: AccessLogFormat,
}

impl<'b> AccessLogLine<'b> {
    /// Starts the record of a request that started at `time`.
    pub(super) fn begin(out: &'b mut Vec<u8>, form: AccessLogFormat, time: SystemTime) -> AccessLogLine<'b> {
        let mut line = AccessLogLine { out, form };
        match form {
            AccessLogFormat::Text => {
                line.time(time);
                line.raw(" access");
            }
            AccessLogFormat::Json => {
                line.raw("{\"kind\":\"access\",\"time\":\"");
                line.time(time);
                line.raw("\"");
            }
        }
        line
    }

    /// Appends a value that needs no escaping.
    pub(super) fn word(&mut self, key: &str, value: &str) {
        debug_assert!(value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'), "{value}");
        self.key(key);
        if self.form == AccessLogFormat::Json {
            self.raw("\"");
        }
        self.raw(value);
        if self.form == AccessLogFormat::Json {
            self.raw("\"");
        }
    }

    /// Appends a number.
    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.digits(value, 1);
    }

    /// Appends a duration in whole microseconds.
    pub(super) fn micros(&mut self, key: &str, value: Duration) {
        self.number(key, u64::try_from(value.as_micros()).unwrap_or(u64::MAX));
    }

    /// Appends arbitrary bytes: truncated to `limit` bytes, then escaped.
    pub(super) fn text(&mut self, key: &str, value: &[u8], limit: usize) {
        self.key(key);
        self.raw("\"");
        self.escaped(value, limit);
        self.raw("\"");
    }

    /// Appends a request's path and query without the values of parameters that may be secret.
    pub(super) fn path(&mut self, key: &str, path: &str, query: Option<&str>, limit: usize) {
        self.key(key);
        self.raw("\"");
        self.escaped(path.as_bytes(), limit);
        if let Some(query) = query {
            let mut left = limit;
            for (n, pair) in query.split('&').enumerate() {
                self.raw(if n == 0 { "?" } else { "&" });
                if left < pair.len() {
                    self.raw("...");
                    break;
                }
                left -= pair.len();
                match hidden_parameter(pair) {
                    Some(name) => {
                        self.escaped(name.as_bytes(), limit);
                        self.raw("=***");
                    }
                    None => self.escaped(pair.as_bytes(), limit),
                }
            }
        }
        self.raw("\"");
    }

    /// Ends the record.
    pub(super) fn finish(self) {
        self.out.extend_from_slice(if self.form == AccessLogFormat::Json { b"}\n" } else { b"\n" });
    }

    fn key(&mut self, key: &str) {
        match self.form {
            AccessLogFormat::Text => {
                self.raw(" ");
                self.raw(key);
                self.raw("=");
            }
            AccessLogFormat::Json => {
                self.raw(",\"");
                self.raw(key);
                self.raw("\":");
            }
        }
    }

    fn escaped(&mut self, value: &[u8], limit: usize) {
        let shown = &value[..value.len().min(limit)];
        // Plain text is copied; other text is escaped character by character.
        let plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
        if shown.iter().all(plain) {
            self.out.extend_from_slice(shown);
        } else {
            for chunk in shown.utf8_chunks() {
                for character in chunk.valid().chars() {
                    match character {
                        '"' => self.raw("\\\""),
                        '\\' => self.raw("\\\\"),
                        ' '..='~' => self.out.push(character as u8),
                        other => {
                            let mut units = [0; 2];
                            for unit in other.encode_utf16(&mut units) {
                                self.print(format_args!("\\u{unit:04x}"));
                            }
                        }
                    }
                }
                if !chunk.invalid().is_empty() {
                    self.raw("\\ufffd");
                }
            }
        }
        if shown.len() < value.len() {
            self.print(format_args!("...({} bytes)", value.len()));
        }
    }

    fn time(&mut self, time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (seconds, micros) = (since.as_secs(), since.subsec_micros());
        let (year, month, day) = civil_date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        for (value, width, after) in [(year, 4, "-"), (month, 2, "-"), (day, 2, "T")] {
            self.digits(value, width);
            self.raw(after);
        }
        for (value, width, after) in [(hour, 2, ":"), (minute, 2, ":"), (second, 2, "."), (u64::from(micros), 6, "Z")] {
            self.digits(value, width);
            self.raw(after);
        }
    }

    /// Appends a number with at least `width` digits. A record holds a dozen numbers, and `fmt` is slow.
    fn digits(&mut self, mut value: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let mut first = digits.len();
        while value > 0 {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
        }
        self.out.extend_from_slice(&digits[first.min(digits.len() - width)..]);
    }

    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn print(&mut self, arguments: std::fmt::Arguments<'_>) {
        let _ = ByteWriter(self.out).write_fmt(arguments);
    }
}

/// Year, month and day of a number of days since 1970 (Howard Hinnant, "chrono-compatible low-level date
/// algorithms"). A time zone library would be too slow here.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

struct ByteWriter<'b>(&'b mut Vec<u8>);

impl Write for ByteWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(form: AccessLogFormat, write: impl FnOnce(&mut AccessLogLine<'_>)) -> String {
        let mut out = Vec::new();
        let mut line =
            AccessLogLine::begin(&mut out, form, SystemTime::UNIX_EPOCH + Duration::from_micros(1_795_132_800_000_042));
        write(&mut line);
        line.finish();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn access_log_time_is_formatted_correctly() {
        assert_eq!(line(AccessLogFormat::Text, |_| ()), "2026-11-20T00:00:00.000042Z access\n");
        for days in (0..80_000).step_by(97) {
            let (year, month, day) = civil_date(days);
            let date = jiff::civil::date(1970, 1, 1) + jiff::Span::new().days(days as i64);
            assert_eq!((year, month, day), (date.year() as u64, date.month() as u64, date.day() as u64));
        }
    }

    #[test]
    fn access_log_values_are_escaped() {
        let hostile = "a\" end=\"complete\\\n\r\t\u{1b}[2J\u{9b}\u{202e}\u{2028}ü\u{1f600}\u{0}".as_bytes();
        let mut hostile = hostile.to_vec();
        hostile.extend_from_slice(b"\xff\xfe");
        for form in [AccessLogFormat::Text, AccessLogFormat::Json] {
            let written = line(form, |line| line.text("agent", &hostile, 1000));
            assert_eq!(written.matches('\n').count(), 1, "{written}");
            assert!(written.trim_end().bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{written}");
        }
        let written = line(AccessLogFormat::Json, |line| line.text("agent", &hostile, 1000));
        let value: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(value["agent"].as_str().unwrap(), String::from_utf8_lossy(&hostile));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_one_line_and_come_back(bytes: Vec<u8>, path: String, query: String) {
            let text = line(AccessLogFormat::Text, |line| {
                line.text("agent", &bytes, 1000);
                line.path("path", &path, Some(&query), 1000);
            });
            assert!(text.strip_suffix('\n').unwrap().bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{text}");
            let json = line(AccessLogFormat::Json, |line| {
                line.text("agent", &bytes, 1000);
                line.path("path", &path, Some(&query), 1000);
            });
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(value["agent"].as_str().unwrap(), String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn access_log_numbers_are_complete() {
        let written = line(AccessLogFormat::Json, |line| {
            for (key, value) in [("none", 0), ("ten", 10), ("most", u64::MAX)] {
                line.number(key, value);
            }
        });
        assert!(written.ends_with(",\"none\":0,\"ten\":10,\"most\":18446744073709551615}\n"), "{written}");
    }

    #[test]
    fn access_log_long_values_are_truncated() {
        let text = line(AccessLogFormat::Text, |line| line.text("agent", &[b'x'; 300], 4));
        assert!(text.ends_with(" agent=\"xxxx...(300 bytes)\"\n"), "{text}");
    }

    #[test]
    fn access_log_hides_query_secrets() {
        let query = "watch=true&token=s3cret&access_token=s3cret&fieldSelector=metadata.name%3Dx&follow&command=s3cret";
        let text = line(AccessLogFormat::Text, |line| line.path("path", "/apis/a\"b", Some(query), 1000));
        assert_eq!(
            text,
            "2026-11-20T00:00:00.000042Z access path=\"/apis/a\\\"b?watch=true&token=***&access_token=***\
             &fieldSelector=metadata.name%3Dx&follow&command=***\"\n"
        );
    }

    #[test]
    fn access_log_long_query_is_truncated_between_parameters() {
        let text = line(AccessLogFormat::Text, |line| line.path("path", "/", Some("limit=1&limit=2&limit=3"), 14));
        assert!(text.ends_with("path=\"/?limit=1&limit=2&...\"\n"), "{text}");
    }
}
