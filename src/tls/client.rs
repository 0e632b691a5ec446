//! Client side of TLS: connections to backends.

use std::sync::Arc;

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls12Resumption,
    Tls13ClientSessionValue,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, Error, NamedGroup};

use super::bundle::Bundle;
use super::connection_failure::{remember_explanation, to_rustls_error};
use super::key_pair::KeyPair;
use super::path::PeerRole;
use super::provider;
use super::signature::signature_checks;
use crate::process::Problem;

/// Sessions that are kept for one configuration.
const MAX_SESSIONS: usize = 32;

/// All settings that bear on trust in a backend, except its name, which is an argument of each
/// connection. Connections may be shared between equal settings; compare them, do not hash them.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// CA bundle for the backend's certificate; `None` means the system's roots.
    pub ca_bundle: Option<Bundle>,
    /// Accepts any certificate (`insecureSkipTLSVerify`); possession of the key is still verified.
    pub insecure_skip_verify: bool,
    /// Client certificate, presented if the backend requests one.
    pub identity: Option<Arc<KeyPair>>,
    /// The protocols offered, in order of preference, for example `h2` and `http/1.1`; empty offers none.
    pub alpn: Vec<Vec<u8>>,
}

/// Builds the rustls configuration for `settings`. Reuse it: sessions are resumed only within
/// one configuration, and building it is expensive.
///
/// Returns a problem if the system's roots are needed and there are none.
pub fn build_config(settings: &ClientSettings) -> Result<Arc<ClientConfig>, Problem> {
    let verifier = BackendVerifier { ca_bundle: backend_ca_bundle(settings)? };
    // The provider's order of key exchanges is kept: the hybrid one first, with an X25519 share. With an X25519 share
    // alone, a Go server (from 1.24 on) requests the hybrid one by another round trip
    // (crypto/tls handshake_server_tls13.go).
    let builder = builder(provider())?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &settings.identity {
        Some(pair) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified().as_ref().clone())))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = settings.alpn.clone();
    let sessions = Arc::new(Tls13Sessions(ClientSessionMemoryCache::new(MAX_SESSIONS)));
    config.resumption = Resumption::store(sessions).tls12_resumption(Tls12Resumption::Disabled);
    Ok(Arc::new(config))
}

/// Sessions to resume, of TLS 1.3 alone.
///
/// rustls' unbuffered connection does not forget a session of TLS 1.2 whose resumption cannot be decrypted
/// (`State::handle_decrypt_error`): each later attempt would fail. [`Tls12Resumption::Disabled`] concerns tickets only.
#[derive(Debug)]
struct Tls13Sessions(ClientSessionMemoryCache);

impl ClientSessionStore for Tls13Sessions {
    fn set_kx_hint(&self, server: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(server, group);
    }

    fn kx_hint(&self, server: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(server)
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(server, ticket);
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(server)
    }
}

/// Parses a host name or IP address as the server name of a handshake.
pub fn server_name(host: &str) -> Result<ServerName<'static>, Problem> {
    let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned())
        .map_err(|_| Problem::new("server name", format!("{host:?} is neither a DNS name nor an IP address")))
}

fn builder(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Problem> {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Problem::new("TLS", error))
}

fn backend_ca_bundle(settings: &ClientSettings) -> Result<Option<Bundle>, Problem> {
    match &settings.ca_bundle {
        _ if settings.insecure_skip_verify => Ok(None),
        Some(bundle) => Ok(Some(bundle.clone())),
        None => Bundle::system().map(Some),
    }
}

/// Verifies a backend's certificate.
#[derive(Debug)]
struct BackendVerifier {
    /// `None` accepts any certificate.
    ca_bundle: Option<Bundle>,
}

impl ServerCertVerifier for BackendVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(authorities) = &self.ca_bundle {
            authorities.verify_server(end_entity, intermediates, server_name, now).map_err(|error| {
                let text = authorities.describe_rejection(PeerRole::Server, end_entity, &error);
                let error = to_rustls_error(error, Some(server_name), now);
                remember_explanation(&error, text, end_entity);
                Error::InvalidCertificate(error)
            })?;
        }
        Ok(ServerCertVerified::assertion())
    }

    signature_checks!();
}
