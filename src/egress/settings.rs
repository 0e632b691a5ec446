//! What the operator wrote about egress: descriptions, from which ways are made. No file that they name was read.

use std::path::PathBuf;
use std::time::Duration;

use super::{Dialect, NoProxy, ProxyUrl};
use crate::tls::PairFiles;

/// The selection of backends, unless their APIService names another.
pub const CLUSTER: &str = "cluster";
/// The selection of calls to control planes.
pub const CONTROL_PLANE: &str = "controlplane";

/// The selections that a gateway's calls go through unless something says otherwise.
pub const STANDARD_CALLS: [&str; 2] = [CLUSTER, CONTROL_PLANE];

/// How long a dial may take, unless its selection says otherwise.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(8);

/// One egress selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectionSettings {
    /// In lower case; each is there once.
    pub name: String,
    /// How its destinations are reached.
    pub way: WaySettings,
    /// Which destinations are reached directly all the same.
    pub no_proxy: NoProxy,
    /// For the proxy and for what lies behind it, together.
    pub dial_timeout: Duration,
}

/// How destinations are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaySettings {
    /// By ourselves.
    Direct,
    /// By somebody who connects for us.
    Proxy(ProxySettings),
}

/// Who connects for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// What they are.
    pub kind: ProxyKind,
    /// Where they are: at least one, in the order to try them.
    pub addresses: Vec<ProxyAddress>,
    /// TLS to those whose URL is https.
    pub tls: ProxyTlsFiles,
    /// A file of one line, `user:password`, followed on disk. If there is one, no address has credentials of its own.
    pub credentials_file: Option<PathBuf>,
}

/// What kind of thing connects for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyKind {
    /// SOCKS version 5 (RFC 1928).
    Socks5,
    /// `CONNECT` of HTTP/1.1: an ordinary proxy, or a Konnectivity server in its mode `http-connect`.
    HttpConnect(Dialect),
    /// Konnectivity's tunnels over gRPC.
    Grpc,
}

impl ProxyKind {
    /// As `proxyProtocol` says it.
    pub fn as_str(self) -> &'static str {
        match self {
            ProxyKind::Socks5 => "SOCKS5",
            ProxyKind::HttpConnect(_) => "HTTPConnect",
            ProxyKind::Grpc => "GRPC",
        }
    }
}

/// Where a proxy is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProxyAddress {
    /// A Unix domain socket, which may appear later.
    Unix(PathBuf),
    /// TCP. For HTTPConnect and GRPC the scheme is http or https, for SOCKS5 one of socks5's.
    Url(ProxyUrl),
}

/// The files of TLS to a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTlsFiles {
    /// Who vouches for the proxy; the system's roots when `None`.
    pub authorities: Option<PathBuf>,
    /// Who we are to it.
    pub identity: Option<PairFiles>,
    /// The name its certificate must have, if not the host of its URL.
    pub server_name: Option<String>,
}
