//! Whom we expect at the other end, and who we say we are.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;

/// The TLS side of a backend. Two are equal if and only if a connection opened with one may serve
/// requests meant for the other: same name expected, same roots, same client certificate.
pub struct BackendTls {
    name: ServerName<'static>,
    /// PEM of the roots, or how it is done without; and the fingerprint of our certificate.
    identity: (Roots, Option<Arc<[u8]>>),
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

/// What a backend's certificate is verified against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Roots {
    /// The authorities in this PEM bundle.
    Bundle(Arc<[u8]>),
    /// The system's authorities.
    System,
    /// Nothing at all (`insecureSkipTLSVerify`).
    Unverified,
}

impl BackendTls {
    /// `configure` builds rustls' configuration for a list of ALPN protocols; `ours` is the DER of our
    /// leaf certificate.
    pub fn new(name: ServerName<'static>, roots: Roots, ours: Option<Arc<[u8]>>, configuration: &ClientConfig) -> Self {
        let with = |protocols: &[&[u8]]| {
            let mut configuration = configuration.clone();
            configuration.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(configuration)
        };
        BackendTls { name, identity: (roots, ours), any: with(&[b"h2", b"http/1.1"]), http1: with(&[b"http/1.1"]) }
    }

    /// The name the certificate is verified against, and SNI.
    pub fn server_name(&self) -> &ServerName<'static> {
        &self.name
    }

    pub(super) fn config(&self, only_http1: bool) -> Arc<ClientConfig> {
        if only_http1 { self.http1.clone() } else { self.any.clone() }
    }
}

impl PartialEq for BackendTls {
    fn eq(&self, other: &BackendTls) -> bool {
        self.name == other.name && self.identity == other.identity
    }
}

impl Eq for BackendTls {}

impl Hash for BackendTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.identity.hash(state);
    }
}

impl fmt::Debug for BackendTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendTls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One word for a failed handshake.
pub(super) fn reason_of(error: &io::Error) -> &'static str {
    let _ = error;
    "HandshakeFailed"
}
