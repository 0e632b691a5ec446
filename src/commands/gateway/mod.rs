//! The gateway: in front of extension API servers, alone or before a kube-apiserver. With upstreams by path instead of
//! APIServices it is the sidecar ([`super::sidecar`]).
//!
//! Threads: `accept`; workers, each with its share of the connections and its own pools; `control`, which watches files
//! and probes backends; `registry`; `reviews`; the admin listener. They share published snapshots ([`state::GatewayState`]).
//!
//! [`request`] is the path of a request, [`start`] the order in which the parts are built.

mod audit_setup;
mod control;
mod control_planes;
mod etcd_connections;
mod gateway_handle;
mod handshake_log;
mod health_listener;
mod object_store;
mod otlp_client;
mod registry_thread;
mod request;
mod request_observers;
mod request_policy;
mod review_thread;
mod settings;
mod start;
mod state;
mod status;
mod trace_setup;
mod worker;
mod worker_thread;

use std::process::ExitCode;

pub use gateway_handle::GatewayHandle;
pub(super) use settings::EgressSettings;
pub use start::{GatewayFiles, start};
pub(super) use start::{ReadPurpose, prepare};
pub(super) use status::{egress_report, remote_call_report};

use crate::commands::signals::install_handlers;
use crate::config::{Diagnostics, GatewayConfig};
use crate::tls::KeyType;

/// Runs the gateway until a signal ends it. Exit status: 0 after a complete drain, 1 after a failed start. `role` is
/// the name of the command in error output: `gateway` or `sidecar`.
pub fn run(config: &GatewayConfig, mistakes: Diagnostics, role: &str) -> ExitCode {
    let (log_level, files) = match prepare(config, mistakes, role, ReadPurpose::Start) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    install_handlers();
    match start(config, files, KeyType::default(), log_level) {
        Ok(running) => running.run_until_signal(),
        Err(problems) => super::report_problems(role, &problems),
    }
}
