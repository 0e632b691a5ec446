//! CA bundles: trusted certificates from PEM.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use rustls::DistinguishedName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::certificate::CertificateInfo;
use super::path::PathCertificate;
use crate::process::{HelpTopic, Problem};

/// A set of trusted certificates. Cheap to clone. Two bundles are equal if they have the same certificates,
/// regardless of order and comments.
#[derive(Clone)]
pub struct Bundle(pub(super) Arc<Inner>);

/// A certificate of a bundle, and what was parsed of it.
type BundleEntry = (CertificateDer<'static>, CertificateInfo, PathCertificate);

pub(super) struct Inner {
    /// Sorted, without duplicates: what equality compares.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Parallel to `certificates`.
    pub(super) certificate_infos: Vec<CertificateInfo>,
    /// Parallel to `certificates`.
    pub(super) roots: Vec<PathCertificate>,
    pub(super) source: String,
}

impl Bundle {
    /// Parses a bundle. Problems and log lines name `origin` (a file, a field).
    ///
    /// A certificate that is not an authority's is kept, because a peer may present exactly that one.
    pub fn from_pem(pem: &[u8], origin: impl fmt::Display) -> Result<Bundle, Problem> {
        let entries = pem_entries(pem, &origin)?.into_iter().collect::<Result<_, _>>()?;
        Ok(Bundle::from_entries(entries, origin.to_string()))
    }

    /// Like [`from_pem`](Bundle::from_pem), but leaves out certificates that cannot be parsed as long as one can:
    /// for bundles in API objects, which clients written in Go accept so (`CertPool.AppendCertsFromPEM`).
    pub fn from_partial_pem(pem: &[u8], origin: impl fmt::Display) -> Result<Bundle, Problem> {
        let (usable, unusable): (Vec<_>, Vec<_>) = pem_entries(pem, &origin)?.into_iter().partition(Result::is_ok);
        for problem in unusable.iter().filter_map(|entry| entry.as_ref().err()) {
            tracing::debug!(%problem, "certificate left out");
        }
        match unusable.into_iter().find_map(Result::err) {
            Some(problem) if usable.is_empty() => Err(problem),
            _ => Ok(Bundle::from_entries(usable.into_iter().flatten().collect(), origin.to_string())),
        }
    }

    /// The system's roots, loaded once per process. A problem if there are none.
    pub fn system() -> Result<Bundle, Problem> {
        static SYSTEM: LazyLock<Result<Bundle, Problem>> = LazyLock::new(|| {
            // Unusable roots are skipped, as other programs do.
            let entries: Vec<_> = rustls_native_certs::load_native_certs()
                .certs
                .into_iter()
                .filter_map(|it| parse_entry(it).ok())
                .collect();
            if entries.is_empty() {
                let message = "no certificate authorities found on this system; install ca-certificates, or configure a \
                               bundle";
                return Err(Problem::new("system roots", message));
            }
            Ok(Bundle::from_entries(entries, "system roots".to_owned()))
        });
        SYSTEM.clone()
    }

    fn from_entries(mut entries: Vec<BundleEntry>, origin: String) -> Bundle {
        entries.sort_by(|a, b| a.0.as_ref().cmp(b.0.as_ref()));
        entries.dedup_by(|a, b| a.0 == b.0);
        let mut inner =
            Inner { certificates: Vec::new(), certificate_infos: Vec::new(), roots: Vec::new(), source: origin };
        for (certificate, facts, root) in entries {
            inner.certificates.push(certificate);
            inner.certificate_infos.push(facts);
            inner.roots.push(root);
        }
        Bundle(Arc::new(inner))
    }

    /// The certificates as PEM.
    pub fn to_pem(&self) -> String {
        let mut pem = String::new();
        for certificate in &self.0.certificates {
            let text = base64::engine::general_purpose::STANDARD.encode(certificate);
            pem.push_str("-----BEGIN CERTIFICATE-----\n");
            for line in text.as_bytes().chunks(64) {
                pem.push_str(&String::from_utf8_lossy(line));
                pem.push('\n');
            }
            pem.push_str("-----END CERTIFICATE-----\n");
        }
        pem
    }

    /// Where the bundle came from.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Information about each certificate.
    pub fn certificate_infos(&self) -> &[CertificateInfo] {
        &self.0.certificate_infos
    }

    /// The subjects of certificates that are not authorities, and sign nothing.
    pub fn non_authority_subjects(&self) -> Vec<&str> {
        self.0
            .certificate_infos
            .iter()
            .filter(|facts| !facts.is_authority)
            .map(|facts| facts.subject.as_str())
            .collect()
    }

    /// The distinguished names of the authorities, sent in the handshake so that a client can choose
    /// its certificate.
    pub fn subjects(&self) -> Vec<DistinguishedName> {
        self.0.roots.iter().map(|root| DistinguishedName::from(root.subject.clone())).collect()
    }

    /// Problems of the certificates that are not valid at `now`.
    pub fn validity_problems(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        self.0.certificate_infos.iter().filter_map(move |facts| {
            let why = facts.validity_error(now)?;
            let message = format_args!("the certificate ({}) is not valid: {why}", facts.subject);
            Some(Problem::new(&self.0.source, message).with_help(HelpTopic::CertificateValidity))
        })
    }

    /// Whether both bundles trust a common key.
    pub fn shares_key_with(&self, other: &Bundle) -> bool {
        let keys: BTreeSet<_> = other.0.roots.iter().map(|root| &root.public_key).collect();
        self.0.roots.iter().any(|root| keys.contains(&root.public_key))
    }

    /// Some of the subjects, for a log line.
    pub(super) fn subjects_summary(&self) -> String {
        const MAX_NAMES: usize = 4;
        let mut names: Vec<_> =
            self.0.certificate_infos.iter().take(MAX_NAMES).map(|it| format!("\"{}\"", it.subject)).collect();
        if self.0.certificate_infos.len() > MAX_NAMES {
            names.push(format!("and {} more", self.0.certificate_infos.len() - MAX_NAMES));
        }
        names.join(", ")
    }
}

impl PartialEq for Bundle {
    fn eq(&self, other: &Bundle) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.certificates == other.0.certificates
    }
}

impl Eq for Bundle {}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bundle({}: {})", self.0.source, self.subjects_summary())
    }
}

/// The certificates of a PEM text, at least one; each with what is wrong with it.
fn pem_entries(pem: &[u8], origin: &dyn fmt::Display) -> Result<Vec<Result<BundleEntry, Problem>>, Problem> {
    let problem = |message: String| Problem::new(origin, message);
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| problem(format!("not proper PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(problem(explain_empty_bundle(pem).to_owned()));
    }
    let entry = |(position, certificate)| {
        parse_entry(certificate)
            .map_err(|why| problem(format!("certificate {} of the bundle cannot be used: {why}", position + 1)))
    };
    Ok(certificates.into_iter().enumerate().map(entry).collect())
}

fn parse_entry(certificate: CertificateDer<'static>) -> Result<BundleEntry, String> {
    let facts = CertificateInfo::parse(&certificate)?;
    let root = PathCertificate::parse(&certificate)
        .map_err(|why| format!("\"{}\" cannot be trusted: {why}", facts.subject))?;
    Ok((certificate, facts, root))
}

fn explain_empty_bundle(pem: &[u8]) -> &'static str {
    if pem.iter().all(u8::is_ascii_whitespace) {
        "is empty; a bundle of PEM certificates is expected"
    } else if pem.windows(11).any(|window| window == b"PRIVATE KEY") {
        "contains a private key and no certificate; use the authority's certificate"
    } else if pem.first() == Some(&0x30) {
        "is DER, not PEM; convert it with \"openssl x509 -inform der\""
    } else {
        "has no \"BEGIN CERTIFICATE\" block; a bundle of PEM certificates is expected"
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::tls::{Authority, CertificateSpec};

    #[test]
    fn ca_bundle_invalid_pem_messages() {
        let authority = Authority::generate("clients");
        let pair = authority.issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
        let cut = &authority.pem()[..200];
        for (pem, expected) in [
            ("", "is empty"),
            ("hello", "no \"BEGIN CERTIFICATE\" block"),
            (pair.key.as_str(), "private key and no certificate"),
            (cut, "not proper PEM"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1 of the bundle"),
        ] {
            let problem = Bundle::from_pem(pem.as_bytes(), "ca.crt").unwrap_err();
            assert!(problem.message.contains(expected), "{expected}: {problem}");
            assert_eq!(problem.location, "ca.crt");
        }
        let leaf = Bundle::from_pem(pair.certificate.as_bytes(), "ca.crt").unwrap();
        assert_eq!(leaf.non_authority_subjects().len(), 1);
    }

    #[test]
    fn partial_bundle_leaves_out_what_cannot_be_parsed() {
        let good = Authority::generate("a").pem();
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let partial = |pem: &str| Bundle::from_partial_pem(pem.as_bytes(), "caBundle");
        let whole = Bundle::from_pem(good.as_bytes(), "x").unwrap();
        assert_eq!(partial(&[bad, &good, bad].concat()).unwrap(), whole);
        let problem = partial(&[bad, bad].concat()).unwrap_err();
        assert!(problem.message.starts_with("certificate 1 of the bundle"), "{problem}");
        assert!(partial("").is_err());
        assert!(Bundle::from_pem([&good, bad].concat().as_bytes(), "ca.crt").is_err());
    }

    #[test]
    fn ca_bundle_equality_ignores_order_and_comments() {
        let (a, b) = (Authority::generate("a").pem(), Authority::generate("b").pem());
        let bundle = |pem: String| Bundle::from_pem(pem.as_bytes(), "x").unwrap();
        assert_eq!(bundle([a.as_str(), &b].concat()), bundle([b.as_str(), "# and\n", &a, &b].concat()));
        assert_ne!(bundle(a.clone()), bundle([a.as_str(), &b].concat()));
        assert!(bundle(a.clone()).shares_key_with(&bundle([b.as_str(), &a].concat())));
        assert!(!bundle(a).shares_key_with(&bundle(b)));
    }
}
