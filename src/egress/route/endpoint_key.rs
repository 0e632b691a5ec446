//! An endpoint with everything that determines trust in the peer.

use std::sync::Arc;
use std::time::Duration;

use crate::egress::{Address, BackendTls, EgressRoute, HttpVersion};

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
            Address::Tcp(destination) => destination.is_loopback(),
            Address::Unix(_) => true,
        };
        here && matches!(self.security, TransportSecurity::Plaintext(_))
    }
}
