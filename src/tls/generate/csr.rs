//! A serving certificate signed by a cluster: its key, the PKCS#10 request, and the issued pair.

use std::time::{Duration, SystemTime};

use rcgen::CertificateParams;

use crate::process::Problem;
use crate::tls::bundle::Bundle;
use crate::tls::generate::authority::{Issued, KeyType, alternative_name, failed, new_key};
use crate::tls::generate::certificate_store::{CertificateKind, CertificateStore};
use crate::tls::generate::generated_certs::same_name;
use crate::tls::key_pair::{KeyPair, PairFiles};
use crate::tls::path::PeerRole;

/// The pair's name in the certificate store.
const PAIR_NAME: &str = "requested";

/// A serving certificate to request, with a generated fallback until it is issued.
#[derive(Clone, Debug)]
pub struct RequestedCertificate {
    store: CertificateStore,
    names: Vec<String>,
}

/// A key with a pending certificate request. It has no `Debug`, because it contains a key.
pub struct PendingCertificate {
    /// The request as PEM (PKCS#10).
    pub request: String,
    key: String,
    names: Vec<String>,
}

impl RequestedCertificate {
    /// A certificate for `names` (DNS names and IP addresses), stored in `store`.
    pub fn new(store: CertificateStore, names: Vec<String>) -> RequestedCertificate {
        RequestedCertificate { store, names }
    }

    /// The files of the pair.
    pub fn files(&self) -> PairFiles {
        self.store.files(PAIR_NAME)
    }

    /// Makes sure that a pair exists: without an earlier one, a copy of the generated one.
    ///
    /// # Errors
    /// If the generated pair cannot be read or the copy cannot be written.
    pub fn ensure_fallback(&self) -> Result<(), Problem> {
        if KeyPair::load(&self.files()).is_ok() {
            return Ok(());
        }
        let own = self.store.files("serving");
        let read =
            |path: &std::path::Path| std::fs::read_to_string(path).map_err(|error| Problem::new(path.display(), error));
        let own = Issued { certificate: read(&own.certificate)?, key: read(&own.key)? };
        self.store.replace_pair(PAIR_NAME, &own).map(|_| ())
    }

    /// When to request the certificate: after 70 % of its lifetime, or at once if the pair is generated or for other
    /// names.
    pub fn renewal_due(&self, now: SystemTime) -> SystemTime {
        let Ok(pair) = KeyPair::load(&self.files()) else { return now };
        if self.is_generated(&pair) || !self.covers_names(&pair) {
            return now;
        }
        let facts = pair.info();
        let (from, to) = (facts.not_before.as_secs(), facts.not_after.as_secs());
        SystemTime::UNIX_EPOCH + Duration::from_secs(from + to.saturating_sub(from) / 10 * 7)
    }

    /// Whether an issued certificate for our names exists and is valid.
    pub fn is_issued(&self, now: SystemTime) -> bool {
        KeyPair::load(&self.files()).is_ok_and(|pair| {
            let ends = SystemTime::UNIX_EPOCH + Duration::from_secs(pair.info().not_after.as_secs());
            !self.is_generated(&pair) && self.covers_names(&pair) && now < ends
        })
    }

    fn is_generated(&self, pair: &KeyPair) -> bool {
        let authority =
            std::fs::read(self.store.authority_files(CertificateKind::Serving).certificate).unwrap_or_default();
        let (Ok(bundle), [leaf, ..]) = (Bundle::from_pem(&authority, "our own authority"), pair.chain()) else {
            return false;
        };
        bundle.verify_path(leaf, &[], pair.info().not_before, PeerRole::Server).is_ok()
    }

    fn covers_names(&self, pair: &KeyPair) -> bool {
        self.names.iter().all(|requested| pair.info().names.iter().any(|name| same_name(name, requested)))
    }

    /// Creates a key and the request for its certificate.
    ///
    /// # Errors
    /// A name that is not valid in a certificate.
    pub fn create_request(&self) -> Result<PendingCertificate, Problem> {
        let key = new_key(KeyType::default())?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let common_name = self.names.first().map(String::as_str).unwrap_or_default();
        params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        params.subject_alt_names = self.names.iter().map(|name| alternative_name(name)).collect::<Result<_, _>>()?;
        let request = params.serialize_request(&key).and_then(|request| request.pem()).map_err(failed)?;
        Ok(PendingCertificate { request, key: key.serialize_pem(), names: self.names.clone() })
    }

    /// Writes the issued pair to its files, which the listener follows.
    ///
    /// # Errors
    /// If the certificate does not match the key and the names, or cannot be written.
    pub fn install(&self, pending: &PendingCertificate, certificate: &[u8]) -> Result<(), Problem> {
        let location = "the issued certificate";
        let pair = KeyPair::from_pem(certificate, pending.key.as_bytes(), location)?;
        if !self.covers_names(&pair) {
            let message = format!("it is for {} instead of {}", pair.info().names.join(", "), pending.names.join(", "));
            return Err(Problem::new(location, message));
        }
        let certificate = String::from_utf8_lossy(certificate).into_owned();
        self.store.replace_pair(PAIR_NAME, &Issued { certificate, key: pending.key.clone() }).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Authority, CertificateSpec, GeneratedCertificates, ManagedCertificate};

    fn names() -> Vec<String> {
        vec!["library.library.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn start(directory: &std::path::Path) -> RequestedCertificate {
        let made = GeneratedCertificates::new(directory, vec![ManagedCertificate::serving(&["localhost".to_owned()])]);
        made.ensure(SystemTime::now()).unwrap();
        let asked = RequestedCertificate::new(made.store().clone(), names());
        asked.ensure_fallback().unwrap();
        asked
    }

    #[test]
    fn csr_generated_pair_until_certificate_issued() {
        let folder = tempfile::tempdir().unwrap();
        let asked = start(folder.path());
        let now = SystemTime::now();
        assert!(KeyPair::load(&asked.files()).is_ok() && !asked.is_issued(now));
        assert_eq!(asked.renewal_due(now), now);

        let asking = asked.create_request().unwrap();
        assert!(asking.request.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{}", asking.request);
        let request = rcgen::CertificateSigningRequestParams::from_pem(&asking.request).unwrap();
        assert_eq!(request.params.subject_alt_names.len(), 2);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "signer");
        let issuer = rcgen::Issuer::new(params, key);
        let certificate = request.signed_by(&issuer).unwrap().pem();
        asked.install(&asking, certificate.as_bytes()).unwrap();
        assert!(asked.is_issued(now));
        assert!(asked.renewal_due(now) > now);
        // The next start reuses it; another name needs a new request.
        assert!(start(folder.path()).is_issued(now));
        let other = RequestedCertificate::new(CertificateStore::new(folder.path()), vec!["other.svc".to_owned()]);
        assert!(!other.is_issued(now) && other.renewal_due(now) == now);
    }

    #[test]
    fn csr_certificate_for_other_key_or_name_refused() {
        let folder = tempfile::tempdir().unwrap();
        let asked = start(folder.path());
        let asking = asked.create_request().unwrap();
        let other = Authority::new("other", SystemTime::now()).unwrap().0;
        let issued = other.issue(&CertificateSpec::serving(&names()), SystemTime::now()).unwrap();
        let refused = asked.install(&asking, issued.certificate.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("key does not belong"), "{refused}");
        assert!(asked.install(&asking, b"nothing").is_err());
        assert!(!asked.is_issued(SystemTime::now()));
    }
}
