//! Free ports on loopback.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Mutex;

static ALLOCATED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Returns a port that is free on all of loopback. No port is returned twice; all are below the kernel's range of
/// ephemeral ports, which Konnectivity servers refuse.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("0.0.0.0", port)).is_ok() && ALLOCATED.lock().unwrap().insert(port) {
            return port;
        }
    }
}
