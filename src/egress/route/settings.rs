//! Settings of egress selections, as configured. The files they reference are not read yet.

use std::path::PathBuf;
use std::time::Duration;

use crate::egress::{ConnectDialect, NoProxy, ProxyUrl};
use crate::tls::PairFiles;

/// Default dial timeout of a selection.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(8);

/// One egress selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressSelectionSettings {
    /// Name in lower case; unique.
    pub name: String,
    /// Direct or through proxies.
    pub route: EgressRouteSettings,
    /// Destinations that bypass the proxies.
    pub no_proxy: NoProxy,
    /// Time limit for connecting to the proxy and through it.
    pub dial_timeout: Duration,
}

/// How destinations are dialed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressRouteSettings {
    /// Destinations are dialed directly.
    Direct,
    /// Destinations are dialed through proxies.
    Proxy(ProxySettings),
}

/// The proxies of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Protocol of the proxies.
    pub kind: ProxyKind,
    /// Addresses in the order to try them; at least one.
    pub addresses: Vec<ProxyAddress>,
    /// TLS files for those with an https URL.
    pub tls: ProxyTlsFiles,
    /// File with one line, `user:password`, followed on disk. With it no address has credentials of its own.
    pub credentials_file: Option<PathBuf>,
}

/// Configured proxy protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyKind {
    /// SOCKS version 5 (RFC 1928).
    Socks5,
    /// HTTP/1.1 CONNECT: an ordinary proxy, or a Konnectivity server in mode `http-connect`.
    HttpConnect(ConnectDialect),
    /// Konnectivity over gRPC.
    Grpc,
}

impl ProxyKind {
    /// Value of `proxyProtocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            ProxyKind::Socks5 => "SOCKS5",
            ProxyKind::HttpConnect(_) => "HTTPConnect",
            ProxyKind::Grpc => "GRPC",
        }
    }
}

/// Address of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProxyAddress {
    /// Unix domain socket; it may not exist yet.
    Unix(PathBuf),
    /// TCP. The scheme is http or https for HTTPConnect and GRPC, and one of socks5's for SOCKS5.
    Url(ProxyUrl),
}

/// TLS files for a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTlsFiles {
    /// CA bundle; the system's roots when `None`.
    pub authorities: Option<PathBuf>,
    /// Client certificate and key.
    pub identity: Option<PairFiles>,
    /// Expected server name, if not the host of the URL.
    pub server_name: Option<String>,
}
