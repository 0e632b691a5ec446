//! Where to connect, with everything that determines trust in the peer.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::egress::route::no_proxy::is_loopback;
use crate::egress::{BackendTls, EgressRoute, HttpVersion};

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

/// Whether a connection uses TLS, and which HTTP version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransportSecurity {
    /// TLS with this server name, CA bundle and client certificate; ALPN selects the HTTP version.
    Tls(Arc<BackendTls>),
    /// HTTP of this version without TLS. HTTP/2 then uses prior knowledge (RFC 9113, section 3.3).
    Plaintext(HttpVersion),
}

/// An address with everything that determines trust in the peer. Connections are shared only between equal keys;
/// compared by equality, never by hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointKey {
    /// Address to connect to.
    pub address: Address,
    /// TLS settings, or the HTTP version without TLS.
    pub security: TransportSecurity,
    /// Limit for name lookup, TCP and TLS together; through a proxy, for TLS only.
    pub connect_timeout: Duration,
    /// Direct or through a proxy. Unix domain sockets are always direct.
    pub egress_route: EgressRoute,
    /// Whether requests keep the client's Host header, if any, instead of getting that of the address.
    pub preserve_host: bool,
}

impl EndpointKey {
    /// Time limit for opening a connection in total, proxy included.
    pub(in crate::egress) fn dial_timeout(&self) -> Duration {
        let through = match &self.address {
            Address::Tcp(destination) => self.egress_route.selection_for(destination),
            Address::Unix(_) => None,
        };
        through.map_or(self.connect_timeout, |selection| selection.dial_timeout + self.connect_timeout)
    }

    /// Whether a failed dial is cheap: on this machine and without TLS.
    pub(in crate::egress) fn is_cheap_to_dial(&self) -> bool {
        let here = match &self.address {
            Address::Tcp(destination) => is_loopback(destination),
            Address::Unix(_) => true,
        };
        here && matches!(self.security, TransportSecurity::Plaintext(_))
    }
}
