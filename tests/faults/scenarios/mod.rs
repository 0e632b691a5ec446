//! The faults.

mod certificates;
mod clients;
mod flapping;
mod network;
mod restart;
mod soak;
mod storage;
mod tls_records;

use futures_util::future::LocalBoxFuture;

use crate::isolation::missing_namespaces;
use crate::lossy_link::missing_link;
use crate::report::FaultRow;

/// One fault under load.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What this machine lacks for it.
    pub(crate) missing: fn() -> Option<String>,
    /// Whether it takes minutes, and is left out of the short form.
    pub(crate) is_long_only: bool,
    pub(crate) run: fn() -> LocalBoxFuture<'static, FaultRow>,
}

fn nothing_missing() -> Option<String> {
    None
}

macro_rules! scenario {
    ($name:literal, $missing:expr, $run:path) => {
        scenario!($name, $missing, $run, false)
    };
    ($name:literal, $missing:expr, $run:path, $is_long_only:literal) => {
        Scenario { name: $name, missing: $missing, is_long_only: $is_long_only, run: || Box::pin($run()) }
    };
}

/// The faults that take longest are first, so that none of them is left for the end.
pub(crate) const ALL: [Scenario; 19] = [
    scenario!("flapping reviewer", nothing_missing, flapping::reviewer),
    scenario!("partition of two of three endpoints", missing_link, network::partition_of_two),
    scenario!("soak", nothing_missing, soak::soak),
    scenario!("partition of all endpoints", missing_link, network::partition_of_all),
    scenario!("rotation of every certificate", nothing_missing, certificates::rotate_all),
    scenario!("packet loss and delay", missing_link, network::loss_and_delay),
    scenario!("half-open endpoints", missing_link, network::half_open_endpoints),
    // Keep-alive takes minutes to find that a peer is gone.
    scenario!("half-open clients", missing_link, clients::vanished_clients, true),
    scenario!("full disk", missing_namespaces, storage::full_disk),
    scenario!("read-only data directory", missing_namespaces, storage::read_only_data_directory),
    scenario!("no descriptors left", nothing_missing, restart::no_descriptors),
    scenario!("clock jumps", restart::missing_faketime, restart::clock_jumps),
    scenario!("kill -9 and restart", nothing_missing, restart::kill_and_restart),
    scenario!("slow clients", nothing_missing, clients::slow_clients),
    scenario!("watches with one core taken", nothing_missing, clients::watches_with_core_taken),
    scenario!("flapping registry", nothing_missing, flapping::registry),
    scenario!("flapping endpoints", nothing_missing, flapping::endpoints),
    scenario!("malformed TLS records", nothing_missing, tls_records::malformed_records),
    scenario!("TLS records broken after the handshake", nothing_missing, tls_records::broken_sessions),
];
