//! Verification of a certificate chain by a CA bundle.
//!
//! Where rustls-webpki is stricter or laxer than Go's crypto/x509, which every Kubernetes component uses,
//! this follows Go where that is safe, and the message names the difference where it is not:
//!
//! * an expired anchor is not trusted (webpki ignores an anchor's dates);
//! * the extended key usage "any" satisfies any required usage;
//! * a backend may present exactly a certificate of the bundle, whether it is an authority or not (self-signed
//!   serving certificates are), but a client may not;
//! * a version 1 certificate is refused as a peer's certificate.

use std::fmt;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, VerifiedPath};

use super::bundle::Bundle;
use super::certificate::CertificateInfo;
use super::provider;

/// A certificate chain that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedChain {
    /// Last second in which every certificate of the path is valid; verify again after it.
    pub valid_until: UnixTime,
}

impl VerifiedChain {
    /// The first second after [`VerifiedChain::valid_until`].
    pub fn recheck_at(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(self.valid_until.as_secs().saturating_add(1)))
    }
}

/// A certificate chain that was rejected. `Display` gives [`UntrustedChain::reason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrustedChain {
    /// The certificate and the reason: for the log, not for the client.
    pub reason: String,
    /// The first second in which the result may change with the same bundle: set if the
    /// certificate is not valid *yet*.
    pub retry_at: Option<UnixTime>,
}

impl fmt::Display for UntrustedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for UntrustedChain {}

/// The role of a peer, which determines the required key usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerRole {
    Client,
    Server,
}

impl Bundle {
    /// Verifies a client's chain (leaf first) for client authentication at `now`.
    ///
    /// It verifies signatures, which is expensive: call it once per connection, and again when the bundle has changed
    /// or the time in the result has come.
    pub fn verify_client(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<VerifiedChain, UntrustedChain> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(UntrustedChain { reason: "no certificate was presented".to_owned(), retry_at: None });
        };
        self.verify_path(leaf, intermediates, now, PeerRole::Client).map_err(|error| {
            let again = match &error {
                webpki::Error::CertNotValidYet { not_before, .. } => Some(*not_before),
                _ => None,
            };
            UntrustedChain { reason: self.describe_rejection(PeerRole::Client, leaf, &error), retry_at: again }
        })
    }

    /// Verifies a backend's chain and its name.
    pub(super) fn verify_server(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<VerifiedChain, webpki::Error> {
        let judged = match self.0.certificates.binary_search_by(|it| it.as_ref().cmp(leaf.as_ref())) {
            Ok(pinned) => verify_pinned_server(leaf, &self.0.certificate_infos[pinned], now)?,
            Err(_) => self.verify_path(leaf, intermediates, now, PeerRole::Server)?,
        };
        EndEntityCert::try_from(leaf)?.verify_is_valid_for_subject_name(name)?;
        Ok(judged)
    }

    /// Verifies path, dates and key usage, without a name.
    pub(super) fn verify_path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        role: PeerRole,
    ) -> Result<VerifiedChain, webpki::Error> {
        let end_entity = EndEntityCert::try_from(leaf)?;
        let in_time = |path: &VerifiedPath<'_>| self.anchor_valid_until(path.anchor(), now).map(|_| ());
        let path = end_entity.verify_for_usage(
            provider().signature_verification_algorithms.all,
            &self.0.anchors,
            intermediates,
            now,
            ExtendedKeyUsageCheck(role),
            None,
            Some(&in_time),
        )?;
        let mut until = self.anchor_valid_until(path.anchor(), now)?;
        let of_path = std::iter::once(leaf.as_ref().to_vec())
            .chain(path.intermediate_certificates().map(|it| it.der().as_ref().to_vec()));
        for der in of_path {
            let facts = CertificateInfo::parse(&der).map_err(|_| webpki::Error::BadDer)?;
            until = until.min(facts.not_after);
        }
        Ok(VerifiedChain { valid_until: until })
    }

    /// Last second in which an anchor is valid. If two certificates have the same name and key (a renewed authority),
    /// the one that expires last counts.
    fn anchor_valid_until(&self, used: &TrustAnchor<'_>, now: UnixTime) -> Result<UnixTime, webpki::Error> {
        let same = self.0.anchors.iter().zip(&self.0.certificate_infos).filter(|(anchor, _)| {
            anchor.subject == used.subject && anchor.subject_public_key_info == used.subject_public_key_info
        });
        let mut verdict = Err(webpki::Error::UnknownIssuer);
        for (_, facts) in same {
            verdict = match (check_validity(facts, now), verdict) {
                (Ok(until), Ok(known)) => Ok(until.max(known)),
                (Err(_), Ok(known)) => Ok(known),
                (it, Err(_)) => it,
            };
        }
        verdict
    }
}

fn check_validity(facts: &CertificateInfo, now: UnixTime) -> Result<UnixTime, webpki::Error> {
    if now.as_secs() < facts.not_before.as_secs() {
        Err(webpki::Error::CertNotValidYet { time: now, not_before: facts.not_before })
    } else if now.as_secs() > facts.not_after.as_secs() {
        Err(webpki::Error::CertExpired { time: now, not_after: facts.not_after })
    } else {
        Ok(facts.not_after)
    }
}

/// Verifies a backend that presents exactly a certificate of the bundle: no path is built, but dates and
/// key usage are checked.
fn verify_pinned_server(
    leaf: &CertificateDer<'_>,
    facts: &CertificateInfo,
    now: UnixTime,
) -> Result<VerifiedChain, webpki::Error> {
    let until = check_validity(facts, now)?;
    let usage = super::certificate::parse(leaf).map_err(|_| webpki::Error::BadDer)?;
    let usage = usage.extended_key_usage().map_err(|_| webpki::Error::ExtensionValueInvalid)?;
    if usage.is_some_and(|usage| !usage.value.any && !usage.value.server_auth) {
        return Err(webpki::Error::RequiredEkuNotFoundContext(webpki::RequiredEkuNotFoundContext {
            required: KeyUsage::server_auth(),
            present: Vec::new(),
        }));
    }
    Ok(VerifiedChain { valid_until: until })
}

/// Checks the extended key usage as Go does: absent, "any" and the required usage are accepted.
struct ExtendedKeyUsageCheck(PeerRole);

impl ExtendedKeyUsageValidator for ExtendedKeyUsageCheck {
    fn validate(&self, iter: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        const ANY: &[usize] = &[2, 5, 29, 37, 0];
        let (required, wanted) = match self.0 {
            PeerRole::Client => (KeyUsage::client_auth(), KeyUsage::CLIENT_AUTH_REPR),
            PeerRole::Server => (KeyUsage::server_auth(), KeyUsage::SERVER_AUTH_REPR),
        };
        let mut present = Vec::new();
        for purpose in iter {
            let purpose = purpose?.to_decoded_oid();
            if purpose == ANY || purpose == wanted {
                return Ok(());
            }
            present.push(purpose);
        }
        if present.is_empty() {
            return Ok(());
        }
        Err(webpki::Error::RequiredEkuNotFoundContext(webpki::RequiredEkuNotFoundContext { required, present }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rcgen::CustomExtension;

    use super::*;
    use crate::tls::{Authority, CertificateSpec};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn jane() -> CertificateSpec {
        CertificateSpec::client("jane", &["dev"])
    }

    fn now() -> UnixTime {
        UnixTime::now()
    }

    fn rejection(bundle: &Bundle, chain: &[CertificateDer<'_>]) -> UntrustedChain {
        bundle.verify_client(chain, now()).unwrap_err()
    }

    #[test]
    fn verify_client_valid_until_expiry() {
        let (authority, other) = (Authority::generate("clients"), Authority::generate("others"));
        let pem = [other.pem(), "# a comment\n".to_owned(), authority.pem()].concat();
        let bundle = Bundle::from_pem(pem.as_bytes(), "ca.crt").unwrap();
        let pair = authority.pair(&jane());
        let judged = bundle.verify_client(pair.chain(), now()).unwrap();
        assert_eq!(judged.valid_until, pair.not_after());
        assert!(bundle.verify_client(pair.chain(), judged.valid_until).is_ok());
        assert!(bundle.verify_client(pair.chain(), judged.recheck_at()).is_err());
        assert_eq!(bundle.subjects().len(), 2);
    }

    #[test]
    fn verify_client_expired_or_not_yet_valid() {
        let authority = Authority::new("clients", SystemTime::now() - 900 * DAY).unwrap().0;
        let past = authority.pair_at(&jane(), SystemTime::now() - 800 * DAY);
        let refused = rejection(&authority.bundle(), past.chain());
        assert!(refused.reason.contains("CN=jane") && refused.reason.contains("it expired on 20"), "{refused}");
        assert_eq!(refused.retry_at, None);
        let future = authority.pair_at(&jane(), SystemTime::now() + 10 * DAY);
        let refused = rejection(&authority.bundle(), future.chain());
        assert!(refused.reason.contains("not valid before"), "{refused}");
        assert_eq!(refused.retry_at, Some(future.info().not_before));
        assert!(authority.bundle().verify_client(future.chain(), refused.retry_at.unwrap()).is_ok());
    }

    #[test]
    fn verify_client_expired_authority_unless_renewed() {
        let key = || rcgen::KeyPair::from_pem(&PEM.with(Clone::clone)).unwrap();
        thread_local!(static PEM: String = rcgen::KeyPair::generate().unwrap().serialize_pem());
        let old = Authority::with_key("clients", key(), SystemTime::now() - 4000 * DAY).unwrap().0;
        let new = Authority::with_key("clients", key(), SystemTime::now()).unwrap().0;
        let pair = new.pair(&jane());
        let refused = rejection(&old.bundle(), pair.chain());
        assert!(refused.reason.contains("a CA certificate above it in the chain expired"), "{refused}");
        let both = Bundle::from_pem((old.pem() + &new.pem()).as_bytes(), "ca.crt").unwrap();
        assert_eq!(both.verify_client(pair.chain(), now()).unwrap().valid_until, pair.not_after());
    }

    #[test]
    fn verify_client_rejection_reasons() {
        let authority = Authority::generate("clients");
        let bundle = authority.bundle();
        let names = ["jane".to_owned()];
        let impostor = Authority::generate("clients");
        for (chain, reason) in [
            (Authority::generate("others").pair(&jane()).chain().to_vec(), "no authority of the bundle signed it"),
            // Same name, other key.
            (impostor.pair(&jane()).chain().to_vec(), "its signature is not that of the authority it names"),
            (authority.pair(&CertificateSpec::serving(&names)).chain().to_vec(), "not for client authentication"),
            (vec![authority.certificate().clone()], "Go accepts that"),
            (vec![authority.version_1(&authority.issue(&jane(), SystemTime::now()).unwrap())], "version 1"),
            (vec![CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])], "cannot be read"),
            (vec![], "no certificate was presented"),
        ] {
            let refused = rejection(&bundle, &chain);
            assert!(refused.reason.contains(reason), "{reason}: {refused}");
        }
    }

    #[test]
    fn verify_client_unknown_critical_extension_refused() {
        let authority = Authority::generate("clients");
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        let issue = |extension: &CustomExtension| {
            authority.issue_with_extensions(&jane(), vec![extension.clone()], SystemTime::now()).unwrap().der().unwrap()
        };
        assert!(authority.bundle().verify_client(&[issue(&extension)], now()).is_ok());
        extension.set_criticality(true);
        let refused = rejection(&authority.bundle(), &[issue(&extension)]);
        assert!(refused.reason.contains("critical extension"), "{refused}");
    }
}
