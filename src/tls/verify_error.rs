//! Messages for rejected peer certificates: the certificate presented, and the trusted authorities.

use rustls::pki_types::CertificateDer;

use super::bundle::Bundle;
use super::certificate::{CertificateInfo, format_date};
use super::verify::PeerRole;

impl Bundle {
    /// The log message for a rejected certificate. It contains no current time, so that repeated messages are equal.
    pub(super) fn describe_rejection(
        &self,
        role: PeerRole,
        leaf: &CertificateDer<'_>,
        error: &webpki::Error,
    ) -> String {
        let kind = match role {
            PeerRole::Client => "client certificate",
            PeerRole::Server => "server certificate",
        };
        let facts = match CertificateInfo::parse(leaf) {
            Ok(facts) => facts,
            Err(why) => return format!("the {kind} cannot be read: {why}"),
        };
        let why = self.rejection_reason(role, leaf, &facts, error);
        let CertificateInfo { subject, serial, issuer, .. } = &facts;
        format!(
            "{kind} \"{subject}\" (serial {serial}, issued by \"{issuer}\") is not trusted by {}: {why}",
            self.0.source
        )
    }

    fn rejection_reason(
        &self,
        role: PeerRole,
        leaf: &CertificateDer<'_>,
        facts: &CertificateInfo,
        error: &webpki::Error,
    ) -> String {
        match error {
            webpki::Error::UnknownIssuer if self.0.certificates.iter().any(|it| it == leaf) => {
                "it is in the bundle itself; Go accepts that, here only certificates signed by an authority of the bundle are"
                    .to_owned()
            }
            webpki::Error::UnknownIssuer => format!("no authority of the bundle signed it ({})", self.subjects_summary()),
            webpki::Error::CertExpired { not_after, .. } if *not_after == facts.not_after => {
                format!("it expired on {}", format_date(*not_after))
            }
            webpki::Error::CertExpired { not_after, .. } => {
                format!("a CA certificate above it in the chain expired on {}", format_date(*not_after))
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                format!("it, or an authority above it, is not valid before {}; is a clock wrong?", format_date(*not_before))
            }
            webpki::Error::RequiredEkuNotFoundContext(_) => {
                let wanted = match role {
                    PeerRole::Client => "client authentication",
                    PeerRole::Server => "server authentication",
                };
                let usages = if facts.usages.is_empty() { "nothing".to_owned() } else { facts.usages.join(", ") };
                format!("it, or an authority above it, is not for {wanted}; it is for {usages}")
            }
            webpki::Error::CertNotValidForName(_) if facts.names.is_empty() => {
                "it has no subject alternative name, and its common name does not count".to_owned()
            }
            webpki::Error::CertNotValidForName(name) => {
                format!("it is for {}, not for {}", facts.names.join(", "), name.expected.to_str())
            }
            webpki::Error::CaUsedAsEndEntity => {
                "it is an authority's own certificate; Go accepts that if the bundle contains it, here it is refused".to_owned()
            }
            webpki::Error::UnsupportedCertVersion => {
                "it is an X.509 version 1 certificate, which has no key usage; use version 3".to_owned()
            }
            webpki::Error::UnsupportedCriticalExtension => "it has an unknown critical extension".to_owned(),
            webpki::Error::InvalidSignatureForPublicKey => {
                format!("its signature is not that of the authority it names, \"{}\"", facts.issuer)
            }
            webpki::Error::UnsupportedSignatureAlgorithmContext(_)
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                "it, or an authority above it, has an insecure signature (SHA-1, a short RSA key)"
                    .to_owned()
            }
            webpki::Error::NameConstraintViolation => "an authority above it may not sign for this name".to_owned(),
            webpki::Error::PathLenConstraintViolated => "there are too many authorities above it".to_owned(),
            other => format!("{other:?}"),
        }
    }
}
