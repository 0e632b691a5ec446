//! Checks that a peer holds the key of the certificate it sent, whatever that certificate is worth.

use rustls::DigitallySignedStruct;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, Error, PeerMisbehaved};
use webpki::RawPublicKeyEntity;

use super::certificate::parse;

/// The handshake's signature under TLS 1.2.
///
/// rustls' own function refuses a certificate that webpki cannot judge (version 1, an unknown critical
/// extension) before it looks at the signature. Go looks at the signature first and judges later, and so do
/// we: the refusal then is a 401 with a reason and not a broken handshake.
pub(super) fn tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    verify(message, certificate, signed, algorithms, false)
}

/// The handshake's signature under TLS 1.3, where a scheme means exactly one algorithm.
pub(super) fn tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    verify(message, certificate, signed, algorithms, true)
}

fn verify(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
    first_only: bool,
) -> Result<HandshakeSignatureValid, Error> {
    use rustls::SignatureScheme as Scheme;
    // PKCS#1 signatures over the handshake ended with TLS 1.2.
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
            // The scheme's name fits several curves under TLS 1.2; another may be the key's.
            Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
            Err(_) => break,
        }
    }
    Err(bad(CertificateError::BadSignature))
}
