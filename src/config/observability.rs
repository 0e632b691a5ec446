//! Log, access log and admin listener.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::arguments::{Arguments, CommandFlags};
use super::flag::FlagGroup;
use super::host_port;
use super::observability_flags::LOG;
use super::parser::{Diagnostics, FlagParser};
use crate::observe::{access, audit, log};

/// Log, access log, audit and admin listener of a command that serves.
#[derive(Clone, Debug)]
pub struct ObservabilityConfig {
    /// The log.
    pub log: log::Settings,
    /// The access log.
    pub access: access::Settings,
    /// The audit log, if enabled.
    pub audit: Option<audit::Settings>,
    /// Address of the admin listener; none disables it.
    pub admin_address: Option<SocketAddr>,
    /// `--tracing-config-file`: a `TracingConfiguration`.
    pub tracing_config_file: Option<PathBuf>,
    /// `--admin-token-file`: file with the token that the admin listener requires, if any.
    pub admin_token_file: Option<PathBuf>,
}

/// A command that does not serve: it has the log flags alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOnly;

impl CommandFlags for LogOnly {
    const FLAGS: &'static [&'static FlagGroup] = &[&LOG];
    const KIND: &'static str = "";
}

impl Arguments<LogOnly> {
    /// Reads the log settings from command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (log::Settings, Diagnostics) {
        let mut parser = FlagParser::new(&self.raw, LogOnly::FLAGS, LogOnly::KIND, environment);
        let settings = log_settings(&mut parser);
        (settings, parser.finish())
    }
}

pub(super) fn log_settings(parser: &mut FlagParser<'_>) -> log::Settings {
    let format = match parser.choice("log-format").as_str() {
        "json" => log::LogFormat::Json,
        _ => log::LogFormat::Text,
    };
    // -v counts only without --log-level.
    let verbosity = parser.count("v", 255);
    let level = parser.text("log-level");
    let level = if parser.is_given("v") && !parser.is_given("log-level") { verbosity.to_string() } else { level };
    log::Settings { format, level, filter: parser.environment("NARTHEX_LOG") }
}

pub(super) fn access_log_settings(parser: &mut FlagParser<'_>) -> access::Settings {
    let mode = match parser.choice("access-log").as_str() {
        "off" => access::AccessLogMode::Off,
        "all" => access::AccessLogMode::All,
        _ => access::AccessLogMode::Errors,
    };
    let form = match parser.choice("access-log-format").as_str() {
        "json" => access::AccessLogFormat::Json,
        _ => access::AccessLogFormat::Text,
    };
    access::Settings { mode, form }
}

pub(super) fn admin_address(parser: &mut FlagParser<'_>) -> Option<SocketAddr> {
    if parser.text("admin-address").is_empty() {
        None
    } else {
        parser.parse("admin-address", host_port::listen_address)
    }
}
