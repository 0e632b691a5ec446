//! Asks clients for a certificate and checks that they hold its key; whether it is to be believed is judged
//! later, by the authenticators.
//!
//! Go servers of Kubernetes do the same (`tls.RequestClientCert`): a client whose certificate is not trusted
//! gets an answer (401) instead of a broken handshake, and may still come with a token.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::tls::{provider, signature};

#[derive(Debug)]
pub(super) struct Possession {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Possession {
    /// `hints` are the authorities named in the handshake; with none, no certificate is asked for, because
    /// nobody would believe it.
    pub(super) fn new(mut hints: Vec<DistinguishedName>) -> Possession {
        hints.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
        hints.dedup_by(|a, b| a.as_ref() == b.as_ref());
        Possession { hints, algorithms: provider().signature_verification_algorithms }
    }
}

impl ClientCertVerifier for Possession {
    fn offer_client_auth(&self) -> bool {
        !self.hints.is_empty()
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

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature::tls12(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature::tls13(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
