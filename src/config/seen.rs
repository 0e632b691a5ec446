//! Log, access log and admin listener.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::arguments::{Arguments, Role};
use super::flag::{Flag, Group};
use super::gateway::flags;
use super::listening;
use super::reading::{Mistakes, Reading};
use crate::observe::{access, audit, log};

/// Log, access log, audit and admin listener of a command that serves.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The log.
    pub log: log::Settings,
    /// The access log.
    pub access: access::Settings,
    /// The audit log, if enabled.
    pub audit: Option<audit::Settings>,
    /// Address of the admin listener; none disables it.
    pub admin_address: Option<SocketAddr>,
    /// `--admin-token-file`: file with the token that the admin listener requires, if any.
    pub admin_token_file: Option<PathBuf>,
}

/// A command that does not serve: it has the log flags alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOnly;

impl Role for LogOnly {
    const FLAGS: &'static [&'static Group] = &[&flags::LOG];
    const LATER: &'static [Flag] = &[];
    const KIND: &'static str = "";
}

impl Arguments<LogOnly> {
    /// Reads the log settings from command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (log::Settings, Mistakes) {
        let mut reading = Reading::new(&self.written, LogOnly::FLAGS, LogOnly::LATER, LogOnly::KIND, environment);
        let settings = log_settings(&mut reading);
        (settings, reading.end())
    }
}

pub(super) fn log_settings(reading: &mut Reading<'_>) -> log::Settings {
    let format = match reading.choice("log-format").as_str() {
        "json" => log::Format::Json,
        _ => log::Format::Text,
    };
    // -v counts only without --log-level.
    let verbosity = reading.count("v", 255);
    let level = reading.text("log-level");
    let level = if reading.given("v") && !reading.given("log-level") { verbosity.to_string() } else { level };
    log::Settings { format, level, filter: reading.environment("NARTHEX_LOG") }
}

pub(super) fn access(reading: &mut Reading<'_>) -> access::Settings {
    let mode = match reading.choice("access-log").as_str() {
        "off" => access::Mode::Off,
        "all" => access::Mode::All,
        _ => access::Mode::Errors,
    };
    let form = match reading.choice("access-log-format").as_str() {
        "json" => access::Form::Json,
        _ => access::Form::Text,
    };
    access::Settings { mode, form }
}

pub(super) fn admin_address(reading: &mut Reading<'_>) -> Option<SocketAddr> {
    if reading.text("admin-address").is_empty() {
        None
    } else {
        reading.parse("admin-address", listening::listen_address)
    }
}
