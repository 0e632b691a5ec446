//! TLS settings of a backend: expected server name, CA bundle and client certificate.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use crate::process::Problem;
use crate::tls::KeyPair;
use crate::tls::client::{ClientSettings, build_config, server_name};

/// TLS settings of a backend. Two are equal if and only if a connection opened with one may serve requests meant for
/// the other: same server name, same CA bundle, same client certificate.
pub struct BackendTls {
    name: ServerName<'static>,
    settings: ClientSettings,
    any_version: Arc<ClientConfig>,
    http1_only: Arc<ClientConfig>,
}

impl BackendTls {
    /// Settings that expect the server name `name`; the ALPN protocols of `settings` are replaced.
    ///
    /// # Errors
    /// Not a valid server name, or settings that rustls rejects.
    pub fn new(name: &str, settings: ClientSettings) -> Result<BackendTls, Problem> {
        let with = |protocols: &[&[u8]]| {
            let alpn = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            build_config(&ClientSettings { alpn, ..settings.clone() })
        };
        let (any, http1) = (with(&[b"h2", b"http/1.1"])?, with(&[b"http/1.1"])?);
        Ok(BackendTls { name: server_name(name)?, settings, any_version: any, http1_only: http1 })
    }

    /// These settings with `identity` as the client certificate, unless they have one.
    ///
    /// # Errors
    /// A client certificate that rustls rejects.
    pub fn with_default_identity(&self, identity: &Arc<KeyPair>) -> Result<BackendTls, Problem> {
        let identity = self.settings.identity.as_ref().unwrap_or(identity).clone();
        let settings = ClientSettings { identity: Some(identity), ..self.settings.clone() };
        BackendTls::new(&self.name.to_str(), settings)
    }

    /// Server name for certificate verification and SNI.
    pub fn server_name(&self) -> &ServerName<'static> {
        &self.name
    }

    pub(in crate::egress) fn config(&self, only_http1: bool) -> Arc<ClientConfig> {
        if only_http1 { self.http1_only.clone() } else { self.any_version.clone() }
    }
}

impl PartialEq for BackendTls {
    fn eq(&self, other: &BackendTls) -> bool {
        self.name == other.name && self.settings == other.settings
    }
}

impl Eq for BackendTls {}

impl Hash for BackendTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Enough to find the few candidates; equality decides.
        self.name.hash(state);
    }
}

impl fmt::Debug for BackendTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendTls").field("name", &self.name).finish_non_exhaustive()
    }
}
