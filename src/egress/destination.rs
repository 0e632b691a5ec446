//! Where to connect, and everything that bears on trusting what answers there.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{BackendTls, Way};

/// A host by address or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// An address; nothing is looked up.
    Ip(IpAddr),
    /// A name, looked up when a connection is opened.
    Name(String),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// Where.
    pub host: Host,
    /// TCP port.
    pub port: u16,
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

/// A destination with the trust that goes with it: connections are shared only between upstreams that
/// are equal in all of this, compared by equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Where to connect.
    pub destination: Destination,
    /// Whom we expect there, and who we say we are.
    pub tls: Arc<BackendTls>,
    /// For name look-up, TCP and TLS together; where somebody else connects for us, only for TLS.
    pub connect_timeout: Duration,
    /// How to get there.
    pub way: Way,
}

impl Upstream {
    /// How long opening a connection may take in all.
    pub(super) fn patience(&self) -> Duration {
        let through = self.way.selection_for(&self.destination);
        through.map_or(self.connect_timeout, |selection| selection.dial_timeout + self.connect_timeout)
    }
}
