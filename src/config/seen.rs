//! What the operator sees: log, access log, the operator's own listener.

use std::net::SocketAddr;

use super::arguments::{Arguments, Role};
use super::flag::{Flag, Group};
use super::gateway::flags;
use super::reading::{Mistakes, Reading};
use super::value;

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// How lines are written.
    pub format: LogFormat,
    /// A filter as tracing writes it: a level, or `NARTHEX_LOG` as it stands.
    pub filter: String,
}

/// Which requests get a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// None.
    Off,
    /// Refusals, failures and what took long.
    Errors,
    /// Every request.
    All,
}

/// What the operator sees of a serving role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The log.
    pub log: LogSettings,
    /// Which requests get a line.
    pub access_log: AccessLog,
    /// How that line is written.
    pub access_log_format: LogFormat,
    /// Where the operator's own listener stands, unless it is turned off.
    pub admin_address: Option<SocketAddr>,
}

/// The role of a command that does one thing and ends: it has the log flags alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOnly;

impl Role for LogOnly {
    const FLAGS: &'static [&'static Group] = &[&flags::LOG];
    const LATER: &'static [Flag] = &[];
    const KIND: &'static str = "";
}

impl Arguments<LogOnly> {
    /// How this command logs.
    pub fn log(&self, environment: &dyn Fn(&str) -> Option<String>) -> Result<LogSettings, Mistakes> {
        let mut reading = Reading::new(&self.written, LogOnly::FLAGS, LogOnly::LATER, LogOnly::KIND, environment);
        let settings = log(&mut reading);
        reading.end(|_| settings)
    }
}

pub(super) fn log(reading: &mut Reading<'_>) -> LogSettings {
    let format = format(reading, "log-format");
    let level = reading.choice("log-level");
    // A level in words says more than a number; a number counts only without it.
    let by_number = match reading.count("v", 100) {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    let filter = match reading.environment("NARTHEX_LOG") {
        Some(filter) => filter,
        None if reading.given("v") && !reading.given("log-level") => by_number.to_owned(),
        None => level,
    };
    LogSettings { format, filter }
}

fn format(reading: &mut Reading<'_>, name: &str) -> LogFormat {
    match reading.choice(name).as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    }
}

pub(super) fn access_log(reading: &mut Reading<'_>) -> (AccessLog, LogFormat) {
    let which = match reading.choice("access-log").as_str() {
        "off" => AccessLog::Off,
        "all" => AccessLog::All,
        _ => AccessLog::Errors,
    };
    (which, format(reading, "access-log-format"))
}

pub(super) fn admin_address(reading: &mut Reading<'_>) -> Option<SocketAddr> {
    if reading.text("admin-address").is_empty() { None } else { reading.parse("admin-address", value::address) }
}
