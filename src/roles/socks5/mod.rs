//! `narthex socks5`: a small SOCKS5 server whose connections go through an egress selection, so that what speaks SOCKS5
//! (kubectl by its `proxy-url`) reaches what only that way leads to.
//!
//! It knows CONNECT only, with or without user and password, to destinations that its operator allows.

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

/// What the operator named, read and right.
pub(super) struct Files {
    users: Option<(FollowedFile<Users>, Users)>,
    /// With the selection that is gone through, and no other.
    ways: Option<(WaysFile, Ways)>,
    /// What the admin listener asks for.
    admin_token: Option<(AdminTokenFile, AdminToken)>,
}

/// Runs the door until a signal ends it. Ends with 0 after a finished drain, 1 after a failed start.
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

/// Begins the log and reads the files; if there is any mistake, tells all of them and gives the exit status.
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

/// The one selection: what others name is not needed here.
fn only(path: &Path, name: &str) -> Result<Vec<SelectionSettings>, Problems> {
    let mut selections = egress::load(path)?;
    selections.retain(|selection| selection.name == name);
    if selections.is_empty() {
        return Err(Problem::new(path.display(), format_args!("has no selection {name:?}")).into());
    }
    Ok(selections)
}
