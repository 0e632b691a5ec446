//! Verifies that a peer holds the key of its certificate, independent of trust in the certificate.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, SignatureScheme};
use webpki::RawPublicKeyEntity;

use super::certificate::parse;
use super::provider;

/// The signature methods of rustls' `ServerCertVerifier` and `ClientCertVerifier`, which are the same.
macro_rules! signature_checks {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            $crate::tls::signature::verify(message, certificate, signed, false)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            $crate::tls::signature::verify(message, certificate, signed, true)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            $crate::tls::signature::schemes()
        }
    };
}
pub(super) use signature_checks;

/// The supported signature schemes.
pub(super) fn schemes() -> Vec<SignatureScheme> {
    provider().signature_verification_algorithms.supported_schemes()
}

/// Verifies the signature of a handshake. `first_only` is for TLS 1.3, where a scheme means exactly one algorithm.
///
/// rustls' own function refuses a certificate that webpki cannot parse (version 1, an unknown critical
/// extension) before it verifies the signature. Like Go, this verifies only the signature, and trust is verified
/// later: the client then gets a 401 with a reason instead of a broken handshake.
pub(super) fn verify(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    first_only: bool,
) -> Result<HandshakeSignatureValid, Error> {
    use SignatureScheme as Scheme;
    let algorithms = provider().signature_verification_algorithms;
    // TLS 1.3 has no PKCS#1 signatures in handshakes.
    let old = matches!(
        signed.scheme,
        Scheme::RSA_PKCS1_SHA1
            | Scheme::RSA_PKCS1_SHA256
            | Scheme::RSA_PKCS1_SHA384
            | Scheme::RSA_PKCS1_SHA512
            | Scheme::ECDSA_SHA1_Legacy
    );
    let candidates = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme).map(|(_, list)| *list);
    let candidates = match candidates {
        Some(list) if !(first_only && old) => list,
        _ => return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()),
    };
    let bad = |error: CertificateError| Error::InvalidCertificate(error);
    let parsed = parse(certificate).map_err(|_| bad(CertificateError::BadEncoding))?;
    let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| bad(CertificateError::BadEncoding))?;
    for algorithm in candidates.iter().take(if first_only { 1 } else { usize::MAX }) {
        match key.verify_signature(*algorithm, message, signed.signature()) {
            Ok(()) => return Ok(HandshakeSignatureValid::assertion()),
            // Under TLS 1.2 a scheme covers several curves; another may match the key.
            Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
            Err(_) => break,
        }
    }
    Err(bad(CertificateError::BadSignature))
}
