//! Requests client certificates and verifies possession of the key: [`PossessionVerifier`]. Trust is verified later, by the
//! authenticators.
//!
//! Go servers of Kubernetes do the same (`tls.RequestClientCert`): a client with an untrusted certificate
//! gets a response (401) instead of a broken handshake, and may still authenticate by a token. A listener without
//! authenticators verifies trust in the handshake: [`TrustVerifier`].

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DistinguishedName, Error};

use crate::tls::bundle::Bundle;
use crate::tls::connection_failure::{remember_explanation, to_rustls_error};
use crate::tls::path::PeerRole;
use crate::tls::signature::signature_checks;

#[derive(Debug)]
pub(super) struct PossessionVerifier {
    hints: Vec<DistinguishedName>,
    /// Whether a certificate is requested although no authority is named.
    requests_any: bool,
}

impl PossessionVerifier {
    /// `hints` are the authorities named in the handshake. Without any, no certificate is requested, because
    /// none would be trusted, unless `requests_any`.
    pub(super) fn new(mut hints: Vec<DistinguishedName>, requests_any: bool) -> PossessionVerifier {
        hints.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
        hints.dedup_by(|a, b| a.as_ref() == b.as_ref());
        PossessionVerifier { hints, requests_any }
    }
}

impl ClientCertVerifier for PossessionVerifier {
    fn offer_client_auth(&self) -> bool {
        self.requests_any || !self.hints.is_empty()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    signature_checks!();
}

/// Requires a client certificate that a bundle trusts (`tls.RequireAndVerifyClientCert` of Go).
#[derive(Debug)]
pub(super) struct TrustVerifier {
    bundle: Bundle,
    hints: Vec<DistinguishedName>,
}

impl TrustVerifier {
    pub(super) fn new(bundle: Bundle) -> TrustVerifier {
        TrustVerifier { hints: bundle.subjects(), bundle }
    }
}

impl ClientCertVerifier for TrustVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.bundle.verify_path(end_entity, intermediates, now, PeerRole::Client).map_err(|error| {
            let text = self.bundle.describe_rejection(PeerRole::Client, end_entity, &error);
            let error = to_rustls_error(error, None, now);
            remember_explanation(&error, text, end_entity);
            Error::InvalidCertificate(error)
        })?;
        Ok(ClientCertVerified::assertion())
    }

    signature_checks!();
}
