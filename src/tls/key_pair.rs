//! A certificate chain with its private key, from two PEM files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;

use super::certificate::{CertificateInfo, parse};
use super::path::PathCertificate;
use super::provider;
use crate::process::{HelpTopic, Problem};

/// The files of a key pair.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairFiles {
    /// The certificate, followed by its intermediates, as PEM.
    pub certificate: PathBuf,
    /// The private key as PEM: PKCS#8, SEC1 or PKCS#1.
    pub key: PathBuf,
}

/// A certificate chain with its private key. Equal if the chains are equal (the certificate determines the
/// key). It has no `Debug`, so that keys do not get into logs.
pub struct KeyPair {
    certified: Arc<CertifiedKey>,
    info: CertificateInfo,
    location: String,
}

impl PairFiles {
    /// The pair of these two files.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> PairFiles {
        PairFiles { certificate: certificate.into(), key: key.into() }
    }

    /// Both paths, as the place of problems.
    pub fn location(&self) -> String {
        format!("{} with {}", self.certificate.display(), self.key.display())
    }
}

impl KeyPair {
    /// Loads and checks a pair; every problem names both files. Logs a warning if the key is world-readable.
    pub fn load(files: &PairFiles) -> Result<KeyPair, Problem> {
        let location = files.location();
        let read = |path: &Path, what: &str| {
            fs::read(path)
                .map_err(|error| Problem::new(&location, format!("cannot read the {what} {}: {error}", path.display())))
        };
        let chain = read(&files.certificate, "certificate")?;
        let key = read(&files.key, "key")?;
        warn_if_others_can_read(&files.key);
        KeyPair::from_pem(&chain, &key, &location)
    }

    /// As [`KeyPair::load`], for a listener: its peers must be able to parse the certificate.
    pub fn load_serving(files: &PairFiles) -> Result<KeyPair, Problem> {
        let pair = KeyPair::load(files)?;
        let fault = match PathCertificate::parse(&pair.chain()[0]) {
            Err(why) => why,
            Ok(certificate) => match certificate.unusable_for_serving() {
                Some(why) => why,
                None => return Ok(pair),
            },
        };
        Err(Problem::new(
            &pair.location,
            format_args!("the certificate ({}) cannot be used by a listener: {fault}", pair.info.subject),
        ))
    }

    /// Parses and checks a pair in memory; problems name `location`.
    pub fn from_pem(chain: &[u8], key: &[u8], location: &str) -> Result<KeyPair, Problem> {
        let problem = |message: String| Problem::new(location, message);
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| problem(format!("the certificate is not proper PEM: {error}")))?;
        let Some(leaf) = chain.first() else {
            return Err(problem("the certificate file has no \"BEGIN CERTIFICATE\" block".to_owned()));
        };
        let facts =
            CertificateInfo::parse(leaf).map_err(|why| problem(format!("the certificate cannot be used: {why}")))?;
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|_| problem(explain_missing_key(key)))?;
        let key = provider().key_provider.load_private_key(private).map_err(|_| {
            // The library's message might contain bytes of the key.
            problem(
                "the key type is not supported; supported are RSA (2048 to 8192 bits), ECDSA on P-256, P-384 and P-521, \
                 and Ed25519"
                    .to_owned(),
            )
        })?;
        // Not `CertifiedKey::from_der`: it refuses a certificate that webpki cannot parse. Version 1, as `openssl x509 -req`
        // of OpenSSL before 3.2 makes it, serves a client of kube-apiserver.
        let leaf_key = parse(leaf).map(|certificate| certificate.public_key().raw.to_vec());
        if key.public_key().is_some_and(|public| leaf_key.as_deref() != Ok(public.as_ref())) {
            return Err(problem(format!(
                "the key does not belong to the certificate ({}); was only one of the two files replaced?",
                facts.subject
            )));
        }
        let certified = CertifiedKey::new(chain, key);
        Ok(KeyPair { certified: Arc::new(certified), info: facts, location: location.to_owned() })
    }

    /// The pair for rustls, server or client side.
    pub fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    /// The chain, our own certificate first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// Information about the leaf certificate.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// Last second in which the leaf certificate is valid.
    pub fn not_after(&self) -> UnixTime {
        self.info.not_after
    }

    /// A problem if the certificate is not valid at `now`.
    pub fn validity_problem(&self, now: UnixTime) -> Option<Problem> {
        let why = self.info.validity_error(now)?;
        let message = format_args!("the certificate ({}) is not valid: {why}", self.info.subject);
        Some(Problem::new(&self.location, message).with_help(HelpTopic::CertificateValidity))
    }

    /// The files it came from.
    pub fn location(&self) -> &str {
        &self.location
    }
}

impl PartialEq for KeyPair {
    fn eq(&self, other: &KeyPair) -> bool {
        self.certified.cert == other.certified.cert
    }
}

impl Eq for KeyPair {}

/// Why no key was found, without quoting the file's content.
fn explain_missing_key(pem: &[u8]) -> String {
    let text = String::from_utf8_lossy(pem);
    if text.contains("ENCRYPTED") {
        "the key is encrypted with a passphrase, which is not supported; remove it with \"openssl pkey\"".to_owned()
    } else if text.contains("PRIVATE KEY-----") {
        "the key file is truncated or damaged".to_owned()
    } else if text.contains("BEGIN CERTIFICATE") {
        "the key file contains a certificate and no key; are the two files swapped?".to_owned()
    } else {
        "the key file has no \"BEGIN PRIVATE KEY\" block (nor \"EC PRIVATE KEY\" nor \"RSA PRIVATE KEY\")".to_owned()
    }
}

fn warn_if_others_can_read(path: &Path) {
    if let Ok(data) = fs::metadata(path)
        && data.permissions().mode() & 0o004 != 0
    {
        tracing::warn!(
            file = %path.display(),
            mode = format_args!("{:o}", data.permissions().mode() & 0o7777),
            "private key is world-readable; use chmod 600"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::tls::{Authority, CertificateSpec};

    #[test]
    fn key_pair_of_a_client_may_have_a_version_1_certificate() {
        let authority = Authority::generate("test");
        let issued = authority.issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
        let other = authority.issue(&CertificateSpec::client("jim", &[]), SystemTime::now()).unwrap();
        let old = crate::tls::der::pem("CERTIFICATE", &authority.version_1(&issued));
        let pair = KeyPair::from_pem(old.as_bytes(), issued.key.as_bytes(), "jane").unwrap();
        assert!(pair.info().subject.contains("jane"));
        // But no listener may.
        let dir = tempfile::tempdir().unwrap();
        let files = PairFiles::new(dir.path().join("a.crt"), dir.path().join("a.key"));
        fs::write(&files.key, &issued.key).unwrap();
        fs::write(&files.certificate, &old).unwrap();
        assert!(KeyPair::load(&files).is_ok());
        let problem = KeyPair::load_serving(&files).err().unwrap();
        assert!(problem.message.contains("version 3"), "{problem}");
        fs::write(&files.certificate, &issued.certificate).unwrap();
        assert!(KeyPair::load_serving(&files).is_ok());
        let problem = KeyPair::from_pem(old.as_bytes(), other.key.as_bytes(), "jane").err().unwrap();
        assert!(problem.message.contains("does not belong"), "{problem}");
    }

    #[test]
    fn key_pair_problems_name_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let files = PairFiles::new(dir.path().join("a.crt"), dir.path().join("a.key"));
        let authority = Authority::generate("test");
        let one = authority.issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
        let two = authority.issue(&CertificateSpec::client("jim", &[]), SystemTime::now()).unwrap();
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let odd = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for (certificate, key, expected) in [
            (None, Some(one.key.as_str()), "cannot read the certificate"),
            (Some(one.certificate.as_str()), None, "cannot read the key"),
            (Some(""), Some(&one.key), "no \"BEGIN CERTIFICATE\" block"),
            (Some(&one.certificate[..100]), Some(&one.key), "not proper PEM"),
            (Some(&one.certificate), Some(&two.key), "the key does not belong to the certificate"),
            (Some(&one.certificate), Some(&one.key[..60]), "truncated or damaged"),
            (Some(&one.certificate), Some(encrypted), "passphrase"),
            (Some(&one.certificate), Some(&one.certificate), "swapped"),
            (Some(&one.certificate), Some(odd), "not supported"),
        ] {
            for (path, content) in [(&files.certificate, certificate), (&files.key, key)] {
                let _ = fs::remove_file(path);
                if let Some(content) = content {
                    fs::write(path, content).unwrap();
                }
            }
            let problem = KeyPair::load(&files).err().unwrap();
            assert!(problem.location.contains("a.crt") && problem.location.contains("a.key"), "{problem}");
            assert!(problem.message.contains(expected), "{expected}: {problem}");
            assert!(!problem.message.contains("AAAA"), "{problem}");
        }
    }
}
