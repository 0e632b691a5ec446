//! `narthex socks5`: a SOCKS5 server with connections through an egress selection, so that SOCKS5 clients (kubectl with
//! `proxy-url`) can reach networks behind it.
//!
//! It supports CONNECT only, with or without user and password, to allowed destinations.

mod connection;
mod door;
mod running;
mod users;
pub mod wire;

use std::path::Path;
use std::process::ExitCode;

use running::Running;
use users::Users;

use crate::admin::{AdminToken, AdminTokenFile};
use crate::config::{Mistakes, Socks5Config, egress};
use crate::egress::{SelectionSettings, Ways, WaysFile};
use crate::observe::log::{self, LogLevel};
use crate::process::{FollowedFile, Problem, Problems};
use crate::roles::{tell, warn};

/// The validated files of the configuration.
pub(super) struct Files {
    users: Option<(FollowedFile<Users>, Users)>,
    /// The egress configuration, reduced to the selection in use.
    ways: Option<(WaysFile, Ways)>,
    /// The bearer token of the admin listener.
    admin_token: Option<(AdminTokenFile, AdminToken)>,
}

/// Runs the SOCKS5 server until a signal ends it. Exit status: 0 after a complete drain, 1 after a failed start.
pub fn run(config: &Socks5Config, mistakes: Mistakes) -> ExitCode {
    let (log_level, files) = match prepare(config, mistakes) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    match Running::start(config, files, log_level) {
        Ok(running) => running.until_signal(),
        Err(problems) => tell("socks5", &problems),
    }
}

/// Installs the log and reads the files. If there is any error, reports all of them and returns the exit status.
pub(super) fn prepare(config: &Socks5Config, mut mistakes: Mistakes) -> Result<(LogLevel, Files), ExitCode> {
    warn(&mistakes.warnings);
    let log_level = mistakes.problems.keep(log::install(&config.log));
    let files = files(config).map_err(|problems| mistakes.of_files(problems)).ok();
    match (log_level, files) {
        (Some(log_level), Some(files)) if mistakes.problems.0.is_empty() => Ok((log_level, files)),
        _ => Err(tell("socks5", &mistakes.problems)),
    }
}

fn files(config: &Socks5Config) -> Result<Files, Problems> {
    let users = config.credentials_file.as_deref().map(FollowedFile::<Users>::open).transpose();
    let ways = config.egress.clone().map(|(path, name)| {
        let load = {
            let path = path.clone();
            move || only(&path, &name)
        };
        WaysFile::open(path, Box::new(load), None, &[])
    });
    let admin_token = config.admin_token_file.as_deref().map(AdminTokenFile::open).transpose();
    match (users, ways.transpose(), admin_token) {
        (Ok(users), Ok(ways), Ok(admin_token)) => Ok(Files { users, ways, admin_token }),
        (users, ways, admin_token) => {
            let problems = users.err().into_iter().chain(ways.err()).chain(admin_token.err());
            Err(Problems(problems.flat_map(|problems| problems.0).collect()))
        }
    }
}

/// Loads only the selection `name`; files of other selections are not needed.
fn only(path: &Path, name: &str) -> Result<Vec<SelectionSettings>, Problems> {
    let mut selections = egress::load(path)?;
    selections.retain(|selection| selection.name == name);
    if selections.is_empty() {
        return Err(Problem::new(path.display(), format_args!("has no selection {name:?}")).into());
    }
    Ok(selections)
}
