//! A serving certificate signed by a cluster: its key, the PKCS#10 request, and the issued pair.

use std::time::{Duration, SystemTime};

use rcgen::CertificateParams;

use super::authority::{Issued, alternative_name, failed, new_key};
use super::bundle::Bundle;
use super::judge::Role;
use super::key_pair::{KeyPair, PairFiles};
use super::self_made::same_name;
use super::store::{Kind, Store};
use crate::process::Problem;

/// The pair's name in the certificate store.
const NAME: &str = "requested";

/// A serving certificate to request, with a generated fallback until it is issued.
#[derive(Clone, Debug)]
pub struct AskedFor {
    store: Store,
    names: Vec<String>,
}

/// A key with a pending certificate request. It has no `Debug`, because it contains a key.
pub struct Asking {
    /// The request as PEM (PKCS#10).
    pub request: String,
    key: String,
    names: Vec<String>,
}

impl AskedFor {
    /// A certificate for `names` (DNS names and IP addresses), stored in `store`.
    pub fn new(store: Store, names: Vec<String>) -> AskedFor {
        AskedFor { store, names }
    }

    /// The files of the pair.
    pub fn files(&self) -> PairFiles {
        self.store.files(NAME)
    }

    /// Makes sure that a pair exists: without an earlier one, a copy of the generated one.
    ///
    /// # Errors
    /// If the generated pair cannot be read or the copy cannot be written.
    pub fn ensure(&self) -> Result<(), Problem> {
        if KeyPair::load(&self.files()).is_ok() {
            return Ok(());
        }
        let own = self.store.files("serving");
        let read =
            |path: &std::path::Path| std::fs::read_to_string(path).map_err(|error| Problem::new(path.display(), error));
        let own = Issued { certificate: read(&own.certificate)?, key: read(&own.key)? };
        self.store.replace(NAME, &own).map(|_| ())
    }

    /// When to request the certificate: after 70 % of its lifetime, or at once if the pair is generated or for other
    /// names.
    pub fn due(&self, now: SystemTime) -> SystemTime {
        let Ok(pair) = KeyPair::load(&self.files()) else { return now };
        if self.is_self_made(&pair) || !self.has_names(&pair) {
            return now;
        }
        let facts = pair.facts();
        let (from, to) = (facts.not_before.as_secs(), facts.not_after.as_secs());
        SystemTime::UNIX_EPOCH + Duration::from_secs(from + to.saturating_sub(from) / 10 * 7)
    }

    /// Whether an issued certificate for our names exists and is valid.
    pub fn is_there(&self, now: SystemTime) -> bool {
        KeyPair::load(&self.files()).is_ok_and(|pair| {
            let ends = SystemTime::UNIX_EPOCH + Duration::from_secs(pair.facts().not_after.as_secs());
            !self.is_self_made(&pair) && self.has_names(&pair) && now < ends
        })
    }

    fn is_self_made(&self, pair: &KeyPair) -> bool {
        let authority = std::fs::read(self.store.authority_files(Kind::Serving).certificate).unwrap_or_default();
        let (Ok(bundle), [leaf, ..]) = (Bundle::from_pem(&authority, "our own authority"), pair.chain()) else {
            return false;
        };
        bundle.verify(leaf, &[], pair.facts().not_before, Role::Server).is_ok()
    }

    fn has_names(&self, pair: &KeyPair) -> bool {
        self.names.iter().all(|wanted| pair.facts().names.iter().any(|name| same_name(name, wanted)))
    }

    /// Creates a key and the request for its certificate.
    ///
    /// # Errors
    /// A name that is not valid in a certificate.
    pub fn ask(&self) -> Result<Asking, Problem> {
        let key = new_key()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let common_name = self.names.first().map(String::as_str).unwrap_or_default();
        params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        params.subject_alt_names = self.names.iter().map(|name| alternative_name(name)).collect::<Result<_, _>>()?;
        let request = params.serialize_request(&key).and_then(|request| request.pem()).map_err(failed)?;
        Ok(Asking { request, key: key.serialize_pem(), names: self.names.clone() })
    }

    /// Writes the issued pair to its files, which the listener follows.
    ///
    /// # Errors
    /// If the certificate does not match the key and the names, or cannot be written.
    pub fn keep(&self, asking: &Asking, certificate: &[u8]) -> Result<(), Problem> {
        let place = "the issued certificate";
        let pair = KeyPair::from_pem(certificate, asking.key.as_bytes(), place)?;
        if !self.has_names(&pair) {
            let message = format!("it is for {} instead of {}", pair.facts().names.join(", "), asking.names.join(", "));
            return Err(Problem::new(place, message));
        }
        let certificate = String::from_utf8_lossy(certificate).into_owned();
        self.store.replace(NAME, &Issued { certificate, key: asking.key.clone() }).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Authority, Request, SelfMade, Wanted};

    fn names() -> Vec<String> {
        vec!["library.library.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn start(directory: &std::path::Path) -> AskedFor {
        let made = SelfMade::new(directory, vec![Wanted::serving(&["localhost".to_owned()])]);
        made.ensure(SystemTime::now()).unwrap();
        let asked = AskedFor::new(made.store().clone(), names());
        asked.ensure().unwrap();
        asked
    }

    #[test]
    fn a_self_made_pair_serves_until_the_certificate_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let asked = start(folder.path());
        let now = SystemTime::now();
        assert!(KeyPair::load(&asked.files()).is_ok() && !asked.is_there(now));
        assert_eq!(asked.due(now), now);

        let asking = asked.ask().unwrap();
        assert!(asking.request.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{}", asking.request);
        let request = rcgen::CertificateSigningRequestParams::from_pem(&asking.request).unwrap();
        assert_eq!(request.params.subject_alt_names.len(), 2);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "signer");
        let issuer = rcgen::Issuer::new(params, key);
        let certificate = request.signed_by(&issuer).unwrap().pem();
        asked.keep(&asking, certificate.as_bytes()).unwrap();
        assert!(asked.is_there(now));
        assert!(asked.due(now) > now);
        // The next start reuses it; another name needs a new request.
        assert!(start(folder.path()).is_there(now));
        let other = AskedFor::new(Store::new(folder.path()), vec!["other.svc".to_owned()]);
        assert!(!other.is_there(now) && other.due(now) == now);
    }

    #[test]
    fn what_is_for_another_key_or_name_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let asked = start(folder.path());
        let asking = asked.ask().unwrap();
        let other = Authority::new("other", SystemTime::now()).unwrap().0;
        let issued = other.issue(&Request::serving(&names()), SystemTime::now()).unwrap();
        let refused = asked.keep(&asking, issued.certificate.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("key does not belong"), "{refused}");
        assert!(asked.keep(&asking, b"nothing").is_err());
        assert!(!asked.is_there(SystemTime::now()));
    }
}
