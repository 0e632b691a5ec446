//! Client certificates that a proper CA would not issue.

use std::sync::Arc;

use crate::support::fixtures::{CertKeyPair, TestEnvironment};

/// A certificate authority for malformed certificates.
pub(crate) struct BadCertIssuer(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl BadCertIssuer {
    /// An authority that the file `bundle` names from now on, too.
    pub(crate) fn new_trusted(environment: &TestEnvironment, bundle: &str) -> BadCertIssuer {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "forger");
        let key = rcgen::KeyPair::generate().unwrap();
        let bad_issuer = BadCertIssuer(rcgen::CertifiedIssuer::self_signed(params, key).unwrap());
        let both = environment.read_file(bundle) + &bad_issuer.0.pem();
        std::fs::write(environment.path(bundle), both).unwrap();
        bad_issuer
    }

    /// A client certificate with this subject.
    pub(crate) fn issue(&self, name: &[(rcgen::DnType, &str)]) -> CertKeyPair {
        self.issue_with(name, |_| {})
    }

    /// A client certificate with this subject, and what `change` makes of it.
    pub(crate) fn issue_with(
        &self,
        name: &[(rcgen::DnType, &str)],
        change: impl FnOnce(&mut rcgen::CertificateParams),
    ) -> CertKeyPair {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in name {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
        CertKeyPair(Arc::new((vec![certificate.der().clone()], key)))
    }
}
