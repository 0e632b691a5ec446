//! Where to connect, and everything that bears on trusting what answers there.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::no_proxy::is_this_machine;
use super::{BackendTls, Protocol, Way};

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

/// Where somebody listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(Destination),
    /// A Unix domain socket, which need not be there yet.
    Unix(PathBuf),
}

impl Address {
    /// TCP.
    pub fn tcp(host: Host, port: u16) -> Address {
        Address::Tcp(Destination { host, port })
    }

    /// The value of a `transport` label.
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

/// What is spoken on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// TLS with whom we expect there, as whom we say we are; within it, the HTTP version that ALPN chooses.
    Tls(Arc<BackendTls>),
    /// HTTP of this version without TLS. HTTP/2 then begins with its preface (RFC 9113, section 3.3): nobody is asked.
    Plain(Protocol),
}

/// An address with all that bears on trusting what answers there: connections are shared only between upstreams that
/// are equal in all of this, compared by equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Where to connect.
    pub address: Address,
    /// What to speak there.
    pub wire: Wire,
    /// For name look-up, TCP and TLS together; where somebody else connects for us, only for TLS.
    pub connect_timeout: Duration,
    /// How to get there. There is but one way to a Unix domain socket.
    pub way: Way,
    /// Whether requests keep the Host header they come with, if any, instead of getting that of the address.
    pub keeps_host: bool,
}

impl Upstream {
    /// How long opening a connection may take in all.
    pub(super) fn patience(&self) -> Duration {
        let through = match &self.address {
            Address::Tcp(destination) => self.way.selection_for(destination),
            Address::Unix(_) => None,
        };
        through.map_or(self.connect_timeout, |selection| selection.dial_timeout + self.connect_timeout)
    }

    /// Whether a dial that fails costs next to nothing: on this machine, without TLS.
    pub(super) fn is_cheap_to_dial(&self) -> bool {
        let here = match &self.address {
            Address::Tcp(destination) => is_this_machine(destination),
            Address::Unix(_) => true,
        };
        here && matches!(self.wire, Wire::Plain(_))
    }
}
