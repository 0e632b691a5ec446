//! The gateway: in front of extension API servers, alone or before a kube-apiserver; and, with upstreams by path instead of
//! APIServices, the sidecar ([`super::sidecar`]).
//!
//! Threads and what they hold: one accepts, each worker serves its share of the connections with its own
//! pools, one follows files and asks backends how they are, one is the operator's. What crosses between
//! them are published snapshots ([`shared::Shared`]).
//!
//! The way of a request is in [`request`]. Beside it stand what the request is called ([`named`]), how long it may take
//! ([`patience`]), its places among others ([`places`]), the last of it ([`answered`]), what we answer ourselves
//! ([`local`]), and where a sidecar does otherwise ([`guarding`]).

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

/// Runs the gateway until a signal ends it. Ends with 0 after a finished drain, 1 after a failed start. `role` is what
/// to call it: a sidecar is a gateway with upstreams.
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
