//! Ports on loopback that nobody else takes between choosing and binding.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port free on 127.0.0.1, never given twice, below the range the kernel picks client ports from.
pub(crate) fn free_port() -> u16 {
    let mut given = GIVEN.lock().unwrap();
    let given = given.get_or_insert_with(HashSet::new);
    loop {
        let port = fastrand::u16(20_000..32_000);
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
}
