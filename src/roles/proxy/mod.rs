//! `narthex proxy`: a door on a person's own machine to the API server of their kubeconfig, with their credentials: what
//! `kubectl proxy` does.
//!
//! One thread serves all clients, so that they share their connections to the server.

mod answer;
mod door;
mod files;
mod filter;
mod paths;
mod relay;
mod running;

use std::process::ExitCode;

use running::Running;

use crate::config::{Mistakes, ProxyConfig};
use crate::kubeclient::Kubeconfig;
use crate::observe::log;
use crate::roles::{tell, warn};

/// Runs the door until a signal ends it. Ends with 0 after a finished drain, 1 after a failed start.
pub fn run(config: ProxyConfig, mistakes: Mistakes) -> ExitCode {
    let kubeconfig = match prepare(&config, mistakes) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    match Running::start(config, kubeconfig) {
        Ok(running) => running.until_signal(),
        Err(problems) => tell("proxy", &problems),
    }
}

/// Begins the log and reads the kubeconfig; if there is any mistake, tells all of them and gives the exit status.
pub(super) fn prepare(config: &ProxyConfig, mut mistakes: Mistakes) -> Result<Kubeconfig, ExitCode> {
    warn(&mistakes.warnings);
    mistakes.problems.keep(log::install(&config.log));
    let kubeconfig = config.source.load();
    match kubeconfig {
        Ok(kubeconfig) if mistakes.problems.0.is_empty() => {
            warn(kubeconfig.warning().as_slice());
            Ok(kubeconfig)
        }
        kubeconfig => {
            mistakes.of_files(kubeconfig.err().unwrap_or_default());
            Err(tell("proxy", &mistakes.problems))
        }
    }
}
