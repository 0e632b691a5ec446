//! `narthex check`: reads all that a role would read and reports every mistake at once; starts nothing.

use std::process::ExitCode;

use super::{cli, print, refuse, warn};
use crate::config::{Arguments, Gateway, GatewayConfig, environment};
use crate::process::Problems;
use crate::registry;
use crate::tls::{self, KeyPair};

/// Checks the role that the command line names.
pub(super) fn run(check: &cli::Check) -> ExitCode {
    match check {
        cli::Check::Gateway(arguments) => match gateway(arguments, &environment) {
            Ok(_) => print(b"gateway: no mistakes found\n"),
            Err(status) => status,
        },
    }
}

/// The gateway's configuration, if neither it nor any file it names has a mistake; else all of them are
/// told, and the exit status returned.
pub(super) fn gateway(
    arguments: &Arguments<Gateway>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<GatewayConfig, ExitCode> {
    let (config, mut mistakes) = arguments.read(environment);
    warn(&mistakes.warnings);
    mistakes.problems.0.extend(gateway_files(&config).0);
    if mistakes.problems.0.is_empty() { Ok(config) } else { Err(refuse("gateway", &mistakes)) }
}

/// Reads every file that the gateway would read, as the gateway reads it.
pub fn gateway_files(config: &GatewayConfig) -> Problems {
    let mut problems = tls::server::check(&config.serving.tls).err().unwrap_or_default();
    if let Some(pair) = &config.behind.proxy_client {
        problems.keep(KeyPair::load(pair));
    }
    if let Some(settings) = &config.behind.registry
        && let Err(wrong) = registry::load(settings)
    {
        problems.0.extend(wrong.0);
    }
    problems
}
