//! `narthex proxy`: a local proxy to the API server of a kubeconfig with its credentials, like `kubectl proxy`.
//!
//! One thread serves all clients, so that they share the connections to the server.

mod filter;
mod handler;
mod paths;
mod relay;
mod responses;
mod server;
mod static_files;

use std::process::ExitCode;

use server::ProxyServer;

use crate::commands::signals::install_handlers;
use crate::commands::{print_warnings, report_problems};
use crate::config::{Diagnostics, ProxyConfig};
use crate::kubeclient::Kubeconfig;
use crate::observe::log;

/// Runs the proxy until a signal ends it. Exit status: 0 after a complete drain, 1 after a failed start.
pub fn run(config: ProxyConfig, mistakes: Diagnostics) -> ExitCode {
    let kubeconfig = match prepare(&config, mistakes) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    install_handlers();
    match ProxyServer::start(config, kubeconfig) {
        Ok(running) => running.run_until_signal(),
        Err(problems) => report_problems("proxy", &problems),
    }
}

/// Installs the log and reads the kubeconfig. If there is any error, reports all of them and returns the exit status.
pub(super) fn prepare(config: &ProxyConfig, mut mistakes: Diagnostics) -> Result<Kubeconfig, ExitCode> {
    print_warnings(&mistakes.warnings);
    mistakes.problems.collect(log::install(&config.log));
    let kubeconfig = config.source.load();
    match kubeconfig {
        Ok(kubeconfig) if mistakes.problems.0.is_empty() => {
            print_warnings(kubeconfig.warning().as_slice());
            Ok(kubeconfig)
        }
        kubeconfig => {
            mistakes.add_file_problems(kubeconfig.err().unwrap_or_default());
            Err(report_problems("proxy", &mistakes.problems))
        }
    }
}
