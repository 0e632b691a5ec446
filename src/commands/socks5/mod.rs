//! `narthex socks5`: a SOCKS5 server with connections through an egress selection, so that SOCKS5 clients (kubectl with
//! `proxy-url`) can reach networks behind it.
//!
//! It supports CONNECT only, with or without user and password, to allowed destinations.

mod connection;
pub mod protocol;
mod server;
mod users;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use server::Socks5Server;
use users::Users;

use crate::admin::{AdminToken, AdminTokenFile};
use crate::commands::signals::install_handlers;
use crate::commands::{print_warnings, report_problems};
use crate::config::{Diagnostics, Socks5Config, egress};
use crate::egress::{EgressConfigFile, EgressRoutes, EgressSelectionSettings};
use crate::observe::log::{self, LogLevel};
use crate::process::{Problem, Problems, WatchedFile};

/// The validated files of the configuration.
pub(super) struct Socks5Files {
    users: Option<(WatchedFile<Users>, Users)>,
    /// The egress configuration, reduced to the selection in use.
    egress: Option<(EgressConfigFile, EgressRoutes)>,
    /// The bearer token of the admin listener.
    admin_token: Option<(AdminTokenFile, AdminToken)>,
}

/// Runs the SOCKS5 server until a signal ends it. Exit status: 0 after a complete drain, 1 after a failed start.
pub fn run(config: &Socks5Config, mistakes: Diagnostics) -> ExitCode {
    let (log_level, files) = match prepare(config, mistakes) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    install_handlers();
    match Socks5Server::start(config, files, log_level) {
        Ok(running) => running.run_until_signal(),
        Err(problems) => report_problems("socks5", &problems),
    }
}

/// Installs the log and reads the files. If there is any error, reports all of them and returns the exit status.
pub(super) fn prepare(config: &Socks5Config, mut mistakes: Diagnostics) -> Result<(LogLevel, Socks5Files), ExitCode> {
    print_warnings(&mistakes.warnings);
    let log_level = mistakes.problems.collect(log::install(&config.log));
    let files = read_files(config).map_err(|problems| mistakes.add_file_problems(problems)).ok();
    match (log_level, files) {
        (Some(log_level), Some(files)) if mistakes.problems.0.is_empty() => Ok((log_level, files)),
        _ => Err(report_problems("socks5", &mistakes.problems)),
    }
}

fn read_files(config: &Socks5Config) -> Result<Socks5Files, Problems> {
    let users = config.credentials_file.as_deref().map(WatchedFile::<Users>::open).transpose();
    let egress = config.egress.clone().map(|(path, name)| {
        let load = {
            let path = path.clone();
            move || load_selection(&path, &name)
        };
        EgressConfigFile::open(path, Box::new(load), None, &[])
    });
    let admin_token = config.admin_token_file.as_deref().map(AdminTokenFile::open).transpose();
    match (users, egress.transpose(), admin_token) {
        (Ok(users), Ok(egress), Ok(admin_token)) => Ok(Socks5Files { users, egress, admin_token }),
        (users, egress, admin_token) => {
            let problems = users.err().into_iter().chain(egress.err()).chain(admin_token.err());
            Err(Problems(problems.flat_map(|problems| problems.0).collect()))
        }
    }
}

/// Loads only the selection `name`; files of other selections are not needed.
fn load_selection(path: &Path, name: &str) -> Result<Vec<EgressSelectionSettings>, Problems> {
    let mut selections = egress::load(path)?;
    selections.retain(|selection| selection.name == name);
    if selections.is_empty() {
        return Err(Problem::new(path.display(), format_args!("has no selection {name:?}")).into());
    }
    Ok(selections)
}
