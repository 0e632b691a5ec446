//! Notifications to the service manager, in the protocol of `sd_notify(3)`: ready, stopping, status text, watchdog.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Socket of the service manager that started this process.
pub struct SdNotify {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl SdNotify {
    /// Opens the socket in `NOTIFY_SOCKET`. `None` if the process was not started by a service manager that waits for
    /// notifications, or if they cannot be sent, which is logged.
    pub fn from_environment() -> Option<SdNotify> {
        let address = std::env::var("NOTIFY_SOCKET").ok().filter(|address| !address.is_empty())?;
        SdNotify::open(&address)
            .inspect_err(|error| tracing::warn!(%error, address, "cannot notify the service manager (NOTIFY_SOCKET)"))
            .ok()
    }

    fn open(address: &str) -> io::Result<SdNotify> {
        Ok(SdNotify { socket: UnixDatagram::unbound()?, address: parse_address(address)? })
    }

    /// Sends `fields`, for example `READY=1`, in one datagram. A failure is logged.
    pub fn send(&self, fields: &[(&str, &str)]) {
        if let Err(error) = self.socket.send_to_addr(message(fields).as_bytes(), &self.address) {
            tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
        }
    }
}

/// One field on a line; a line break in a value would begin another.
fn message(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}\n", value.replace('\n', " "))).collect()
}

/// A path, or after `@` an abstract name.
fn parse_address(address: &str) -> io::Result<SocketAddr> {
    match address.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None if address.starts_with('/') => SocketAddr::from_pathname(address),
        None => Err(io::Error::new(io::ErrorKind::Unsupported, "neither an absolute path nor an abstract name")),
    }
}

/// Time within which the service manager wants a `WATCHDOG=1` of this process (`WATCHDOG_USEC`, `WATCHDOG_PID`).
pub fn watchdog_timeout() -> Option<Duration> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    watchdog_timeout_of(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref(), std::process::id())
}

fn watchdog_timeout_of(timeout: Option<&str>, process: Option<&str>, own: u32) -> Option<Duration> {
    // A child inherits the variables, too.
    if process.is_some_and(|process| process.parse() != Ok(own)) {
        return None;
    }
    timeout?.parse().ok().filter(|timeout| *timeout > 0).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sd_notify_sends_fields_to_path_and_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let mut receivers = vec![(by_path, path.to_str().unwrap().to_owned())];
        #[cfg(target_os = "linux")]
        {
            let name = format!("@narthex-test-{}", std::process::id());
            receivers.push((UnixDatagram::bind_addr(&parse_address(&name).unwrap()).unwrap(), name));
        }
        for (receiver, address) in receivers {
            SdNotify::open(&address).unwrap().send(&[("READY", "1"), ("STATUS", "two\nlines")]);
            let mut datagram = [0; 100];
            let length = receiver.recv(&mut datagram).unwrap();
            assert_eq!(std::str::from_utf8(&datagram[..length]).unwrap(), "READY=1\nSTATUS=two lines\n", "{address}");
        }
    }

    #[test]
    fn sd_notify_address_without_socket_is_error() {
        assert!(SdNotify::open("vsock:2:1").is_err());
        let nobody = SdNotify::open("/nonexistent/notify").unwrap();
        nobody.send(&[("READY", "1")]);
    }

    #[test]
    fn watchdog_timeout_only_for_own_process() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog_timeout_of(Some("1000000"), None, 7), second);
        assert_eq!(watchdog_timeout_of(Some("1000000"), Some("7"), 7), second);
        for (timeout, process) in
            [(None, None), (Some("0"), None), (Some("x"), None), (Some("1000000"), Some("8")), (Some("1"), Some("x"))]
        {
            assert_eq!(watchdog_timeout_of(timeout, process, 7), None, "{timeout:?} {process:?}");
        }
    }
}
