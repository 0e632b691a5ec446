//! The serving certificates of another TLS configuration, in its current version.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::process::Published;

/// Selects the certificate that this configuration would serve.
pub(super) struct PublishedCertificates(pub(super) Published<Arc<ServerConfig>>);

impl ResolvesServerCert for PublishedCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let resolver = self.0.load().cert_resolver.clone();
        resolver.resolve(hello)
    }
}

impl fmt::Debug for PublishedCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedCertificates").finish_non_exhaustive()
    }
}
