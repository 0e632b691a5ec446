//! `narthex proxy`: a local proxy to the API server of a kubeconfig with its credentials, like `kubectl proxy`.
//!
//! One thread serves all clients, so that they share the connections to the server.

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

/// Runs the proxy until a signal ends it. Exit status: 0 after a complete drain, 1 after a failed start.
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

/// Installs the log and reads the kubeconfig. If there is any error, reports all of them and returns the exit status.
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
