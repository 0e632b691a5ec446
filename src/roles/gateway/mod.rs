//! The gateway: in front of extension API servers, alone or before a kube-apiserver. With upstreams by path instead of
//! APIServices it is the sidecar ([`super::sidecar`]).
//!
//! Threads: `accept`; workers, each with its share of the connections and its own pools; `control`, which watches files
//! and probes backends; `registry`; `reviews`; the admin listener. They share published snapshots ([`shared::Shared`]).
//!
//! [`request`] is the path of a request. Its parts: audit ID and metric labels ([`named`]), time limits ([`patience`]),
//! limits of requests in flight ([`places`]), the response ([`answered`]), local responses ([`local`]), and differences
//! of the sidecar ([`guarding`]).

mod answered;
mod asker;
mod auditing;
mod connection;
mod control;
mod delegate_health;
mod delegation;
mod doubts;
mod endpoints;
mod expiry;
mod files;
mod findings;
mod guarding;
mod handshakes;
mod host;
mod local;
mod mistakes;
mod named;
mod patience;
mod places;
mod reached;
mod registering;
mod request;
mod running;
mod settings;
mod shared;
mod signatures;
mod start;
mod status;
mod worker;

use std::process::ExitCode;

pub use files::Files;
pub(super) use files::{Purpose, prepare};
pub(super) use mistakes::Mistakes as FileMistakes;
pub use running::Running;
pub(super) use settings::Egress;
pub use start::{Extra, start};
pub(super) use status::{egress as egress_report, remote_call};

use crate::config::{GatewayConfig, Mistakes};

/// Runs the gateway until a signal ends it. Exit status: 0 after a complete drain, 1 after a failed start. `role` is
/// the name of the command in error output: `gateway` or `sidecar`.
pub fn run(config: &GatewayConfig, mistakes: Mistakes, role: &str) -> ExitCode {
    let (log_level, files) = match prepare(config, mistakes, role, Purpose::Start) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    match start(config, files, Extra::default(), log_level) {
        Ok(running) => running.until_signal(),
        Err(problems) => super::tell(role, &problems),
    }
}
