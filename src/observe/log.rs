//! The log on standard error: text or JSON, with a level that can be changed at runtime.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Subscriber;
use tracing::field::Field;
use tracing::level_filters::STATIC_MAX_LEVEL;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::process::Problem;

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, module, message, `key=value`.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Settings of the log.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Value of `--log-format`.
    pub format: LogFormat,
    /// `--log-level`: a level, a klog verbosity, or filter directives; empty for `info`.
    pub level: String,
    /// `NARTHEX_LOG`, in tracing's filter syntax; overrides the level.
    pub filter: Option<String>,
}

/// Shows and changes the log level of the process; cheap to clone.
#[derive(Clone)]
pub struct LogLevel(Arc<Inner>);

struct Inner {
    current: Mutex<String>,
    reload: Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>,
}

/// Libraries with debug lines that are suppressed at level `debug`. Level `trace` shows them, as far as compiled
/// in (a release build contains their debug lines, but no trace lines).
const NOISY_LIBRARIES: &[&str] = &["h2", "hickory_proto", "hickory_resolver", "hyper", "hyper_util"];

/// Sends the log of this process to standard error. May be called once per process.
pub fn install(settings: &Settings) -> Result<LogLevel, Problem> {
    let (subscriber, level) = build_subscriber(settings, || StderrWriter)?;
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|_| Problem::new("--log-format", "the log of this process is already set up"))?;
    Ok(level)
}

/// The level for klog's `-v` number: `info` up to 2, `debug` up to 5, `trace` from 6.
pub fn level_for_verbosity(verbosity: u8) -> &'static str {
    match verbosity {
        0..=2 => "info",
        3..=5 => "debug",
        _ => "trace",
    }
}

fn build_subscriber<W>(settings: &Settings, writer: W) -> Result<(impl Subscriber + Send + Sync, LogLevel), Problem>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (location, text) = match &settings.filter {
        Some(filter) => ("NARTHEX_LOG", filter.as_str()),
        None => ("--log-level", settings.level.as_str()),
    };
    let filter = match &settings.filter {
        Some(filter) => parse_directives(location, filter)?,
        None => parse_filter(location, text)?,
    };
    let (filter, handle) = reload::Layer::new(filter);
    let format = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(SingleLineWriter(writer));
    let format: Box<dyn Layer<_> + Send + Sync> = match settings.format {
        LogFormat::Text => Box::new(format.fmt_fields(debug_fn(write_field).delimited(" "))),
        LogFormat::Json => Box::new(format.json().flatten_event(true)),
    };
    let level = LogLevel(Arc::new(Inner {
        current: Mutex::new(if text.is_empty() { "info".to_owned() } else { text.to_owned() }),
        reload: Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())),
    }));
    Ok((Registry::default().with(filter).with(format), level))
}

impl LogLevel {
    /// A level without a log, for a process that has not installed one.
    pub fn detached() -> LogLevel {
        LogLevel(Arc::new(Inner { current: Mutex::new("info".to_owned()), reload: Box::new(|_| Ok(())) }))
    }

    /// The level as last set.
    pub fn current(&self) -> String {
        self.0.current.lock().clone()
    }

    /// Sets the level: `error`, `warn`, `info`, `debug`, `trace`, `off`, a klog verbosity, or filter directives.
    pub fn set(&self, level: &str) -> Result<(), Problem> {
        let level = level.trim();
        let filter = parse_filter("log level", level)?;
        (self.0.reload)(filter).map_err(|error| Problem::new("log level", error))?;
        *self.0.current.lock() = level.to_owned();
        Ok(())
    }
}

fn parse_filter(location: &str, text: &str) -> Result<EnvFilter, Problem> {
    let text = if text.is_empty() { "info" } else { text };
    let level = match text.parse::<u8>() {
        Ok(verbosity) => level_for_verbosity(verbosity),
        Err(_) => text,
    };
    match level {
        "trace" | "off" | "error" => parse_directives(location, level),
        "info" | "debug" => {
            let quiet: String = NOISY_LIBRARIES.iter().map(|library| format!(",{library}=info")).collect();
            parse_directives(location, &format!("{level}{quiet}"))
        }
        "warn" | "warning" => parse_directives(location, "warn"),
        _ => parse_directives(location, level),
    }
}

/// Parses filter directives. An unknown level is an error; tracing would take it for the name of a module.
fn parse_directives(location: &str, text: &str) -> Result<EnvFilter, Problem> {
    const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace", "off"];
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.contains(['=', '['])) {
        if !LEVELS.contains(&directive.to_ascii_lowercase().as_str()) {
            return Err(Problem::new(
                location,
                format!(
                    "{directive:?} is not a log level: use one of {}, a number as for -v, or directives like \
                     narthex::egress=debug,h2=trace",
                    LEVELS.join(", ")
                ),
            ));
        }
    }
    let possible: Vec<String> = text.split(',').map(cap_at_built_level).collect();
    EnvFilter::builder().parse(possible.join(",")).map_err(|error| Problem::new(location, format!("{text:?}: {error}")))
}

/// Replaces the level `trace` of a directive by the finest level compiled into this build. Otherwise tracing would
/// print advice to rebuild.
fn cap_at_built_level(directive: &str) -> String {
    let level = directive.rsplit('=').next().unwrap_or_default();
    if !level.trim().eq_ignore_ascii_case("trace") {
        return directive.to_owned();
    }
    format!("{}{STATIC_MAX_LEVEL}", &directive[..directive.len() - level.len()])
}

/// Formats a field of a text line: the message unchanged, any other as `name=value`. A value with spaces or quotation
/// marks is quoted, so that the line can be parsed.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() == "message" {
        return write!(writer, "{value:?}");
    }
    let (name, text) = (field.name(), format!("{value:?}"));
    let plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '"');
    if plain || is_quoted(&text) { write!(writer, "{name}={text}") } else { write!(writer, "{name}={text:?}") }
}

/// Whether `text` is one quoted string, as formatted by `Debug`.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return false };
    let mut escaped = false;
    for character in inner.chars() {
        match character {
            '\\' => escaped = !escaped,
            '"' if !escaped => return false,
            _ => escaped = false,
        }
    }
    !escaped
}

/// Writes to standard error.
struct StderrWriter;

impl Write for StderrWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // In one call, so that the lines of two threads do not interleave.
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Keeps every event on one line: data from the network can neither start a new line nor control a terminal.
struct SingleLineWriter<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for SingleLineWriter<W> {
    type Writer = SingleLineWriter<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        SingleLineWriter(self.0.make_writer())
    }
}

impl<W: Write> Write for SingleLineWriter<W> {
    /// The format layer writes each event in one call, ending with the line end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let event = text.strip_suffix('\n').unwrap_or(&text);
        if !event.contains(is_unprintable) {
            self.0.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let mut line = String::with_capacity(text.len() + 16);
        for character in event.chars() {
            if is_unprintable(character) {
                // Four digits, so that the escape is valid in JSON, too.
                line.push_str(&format!("\\u{:04x}", character as u32));
            } else {
                line.push(character);
            }
        }
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a character is a control character, changes the text direction, or breaks a line.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(settings: &Settings, speak: impl FnOnce(&LogLevel)) -> String {
        let written = CapturedLog::default();
        let writer = written.clone();
        let (subscriber, level) = build_subscriber(settings, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || speak(&level));
        let text = written.0.lock().clone();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn log_level_changes_at_runtime() {
        let text = log(&Settings::default(), |level| {
            tracing::debug!("first");
            level.set("debug").unwrap();
            assert_eq!(level.current(), "debug");
            tracing::debug!("second");
            level.set("0").unwrap();
            tracing::debug!("third");
            assert!(level.set("loud").is_err());
            assert_eq!(level.current(), "0");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("DEBUG") && text.ends_with("second\n"), "{text}");
    }

    #[test]
    fn log_event_is_always_one_line() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = log(&Settings { format, ..Settings::default() }, |_| {
                tracing::info!(agent = %"a\nb\u{1b}[2J\u{9b}\u{202e}", "was\r\nhere");
            });
            assert_eq!(text.matches('\n').count(), 1, "{text}");
            assert!(!text.trim_end_matches('\n').contains(is_unprintable), "{text}");
        }
    }

    #[test]
    fn log_text_values_with_spaces_are_quoted() {
        let text = log(&Settings::default(), |_| {
            tracing::info!(
                problem = %"service/a in \"b\" is not present",
                host = %"127.0.0.1:443",
                name = "jane doe",
                both = %"\"a\" or \"b\"",
                quoted = %"\"a b\"",
                nothing = %"",
                count = 3,
                "it = was so",
            );
        });
        let expected = "it = was so problem=\"service/a in \\\"b\\\" is not present\" host=127.0.0.1:443 name=\"jane doe\" \
                        both=\"\\\"a\\\" or \\\"b\\\"\" quoted=\"a b\" nothing=\"\" count=3\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn log_json_is_flat() {
        let settings = Settings { format: LogFormat::Json, ..Settings::default() };
        let text = log(&settings, |_| tracing::info!(port = 6443, "serving"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "serving");
        assert_eq!(line["port"], 6443);
        assert_eq!(line["level"], "INFO");
        assert!(line["timestamp"].is_string());
    }

    #[test]
    fn log_filter_variable_overrides_level() {
        let settings = Settings { level: "off".into(), filter: Some("narthex=debug".into()), ..Settings::default() };
        assert!(log(&settings, |_| tracing::debug!("seen")).ends_with("seen\n"));
    }

    #[test]
    fn log_library_lines_only_at_trace() {
        let heard = |level: &str| {
            let settings = Settings { level: level.into(), ..Settings::default() };
            log(&settings, |_| tracing::debug!(target: "h2", "frame")).contains("frame")
        };
        assert!(heard("trace") && heard("6"));
        assert!(!heard("debug") && !heard("5"));
    }

    #[test]
    fn log_trace_is_capped_at_the_built_level() {
        for (asked, before) in [("trace", ""), ("h2=TRACE", "h2="), ("[span{a=b}]=trace", "[span{a=b}]=")] {
            assert_eq!(cap_at_built_level(asked), format!("{before}{STATIC_MAX_LEVEL}"));
        }
        for other in ["", "info", "h2=debug", "[span{a=trace}]=info"] {
            assert_eq!(cap_at_built_level(other), other);
        }
    }

    #[test]
    fn log_unknown_level_error_names_flag_and_known_levels() {
        let wrong = Settings { level: "verbose".into(), ..Settings::default() };
        let problem = build_subscriber(&wrong, || StderrWriter).err().unwrap();
        assert_eq!(problem.location, "--log-level");
        assert!(problem.message.contains("\"verbose\"") && problem.message.contains("debug"), "{problem}");
        let wrong = Settings { filter: Some("narthex=shout".into()), ..Settings::default() };
        assert_eq!(build_subscriber(&wrong, || StderrWriter).err().unwrap().location, "NARTHEX_LOG");
    }

    #[test]
    fn log_verbosity_matches_klog() {
        assert_eq!([0, 2, 4, 6, 10].map(level_for_verbosity), ["info", "info", "debug", "trace", "trace"]);
    }
}
