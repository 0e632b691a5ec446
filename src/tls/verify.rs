//! Verification of a certificate chain by a CA bundle.
//!
//! Accepted is what Go's crypto/x509, which every Kubernetes component uses, accepts. A peer may also present exactly a
//! certificate of the bundle, whether it is an authority or not (self-signed serving certificates are).

use std::fmt;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::bundle::Bundle;
use super::path::{PathCertificate, PathError, PathFault, PeerRole, build_path};

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
            let again = match &error.fault {
                PathFault::NotYetValid { not_before } => Some(*not_before),
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
    ) -> Result<VerifiedChain, PathError> {
        let verified = self.verify_path(leaf, intermediates, now, PeerRole::Server)?;
        parse_leaf(leaf)?.check_host_name(name)?;
        Ok(verified)
    }

    /// Verifies path, dates and key usage, without a name.
    pub(super) fn verify_path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        role: PeerRole,
    ) -> Result<VerifiedChain, PathError> {
        let leaf = parse_leaf(leaf)?;
        // One that cannot be read is in no path.
        let intermediates: Vec<_> = intermediates.iter().filter_map(|it| PathCertificate::parse(it).ok()).collect();
        let path = build_path(&leaf, &intermediates, &self.0.roots, now, role)?;
        let valid_until = path.iter().map(|it| it.not_after).min().unwrap_or(leaf.not_after);
        Ok(VerifiedChain { valid_until })
    }
}

fn parse_leaf(leaf: &CertificateDer<'_>) -> Result<PathCertificate, PathError> {
    PathCertificate::parse(leaf).map_err(|why| PathError::of_leaf(PathFault::Malformed(why)))
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
        assert!(refused.reason.contains("the authority \"CN=clients\" above it expired on 20"), "{refused}");
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
            (vec![CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])], "cannot be read"),
            (vec![], "no certificate was presented"),
        ] {
            let refused = rejection(&bundle, &chain);
            assert!(refused.reason.contains(reason), "{reason}: {refused}");
        }
    }

    #[test]
    fn verify_client_accepts_what_go_accepts() {
        let authority = Authority::generate("clients");
        let jane = authority.issue(&jane(), SystemTime::now()).unwrap();
        // An authority's own certificate, and one of version 1 (MicroK8s).
        for leaf in [authority.certificate().clone(), authority.version_1(&jane)] {
            let judged = authority.bundle().verify_client(&[leaf], now());
            assert!(judged.is_ok(), "{judged:?}");
        }
        // A certificate of the bundle, beside one of an authority that did not sign it.
        let pem = [Authority::generate("others").pem(), jane.certificate.clone()].concat();
        let bundle = Bundle::from_pem(pem.as_bytes(), "ca.crt").unwrap();
        assert!(bundle.verify_client(&[jane.der().unwrap()], now()).is_ok());
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
        assert!(refused.reason.contains("critical extension (1.2.3.4)"), "{refused}");
    }
}
