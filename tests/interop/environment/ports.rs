//! Free ports on loopback.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

static ALLOCATED: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Returns a port that is free on 127.0.0.1. No port is returned twice; all are below the kernel's range of ephemeral
/// ports.
pub(crate) fn free_port() -> u16 {
    let mut allocated = ALLOCATED.lock().unwrap();
    let allocated = allocated.get_or_insert_with(HashSet::new);
    loop {
        let port = fastrand::u16(20_000..32_000);
        if !allocated.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            allocated.insert(port);
            return port;
        }
    }
}
