//! Where to connect.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// A host: an IP address or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// IP address; not looked up.
    Ip(IpAddr),
    /// Host name; looked up for each new connection.
    Name(String),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// Address or name.
    pub host: Host,
    /// TCP port.
    pub port: u16,
}

impl Destination {
    /// Whether it is loopback, without resolving names. Loopback always bypasses proxies of the environment, and those
    /// of a selection only by its `noProxy`.
    pub(in crate::egress) fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case("localhost"),
        }
    }
}

impl fmt::Display for Destination {
    /// `10.0.0.1:443`, `[::1]:443` or `name:443`, as in a Host header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(Destination),
    /// Unix domain socket; it may not exist yet.
    Unix(PathBuf),
}

impl Address {
    /// TCP.
    pub fn tcp(host: Host, port: u16) -> Address {
        Address::Tcp(Destination { host, port })
    }

    /// Value of the metric label `transport`.
    pub fn transport(&self) -> &'static str {
        match self {
            Address::Tcp(_) => "tcp",
            Address::Unix(_) => "uds",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(destination) => write!(f, "{destination}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(host: &str) -> Destination {
        Destination { host: host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip), port: 443 }
    }

    #[test]
    fn destination_loopback_without_resolving() {
        for host in ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(destination(host).is_loopback(), "{host}");
        }
        for host in ["localhost.example", "a.localhost", "10.0.0.1", "0.0.0.0"] {
            assert!(!destination(host).is_loopback(), "{host}");
        }
    }
}
