//! Server side of TLS: serving certificates, client CAs, TLS settings, and their reload.

mod client_cert_verifier;
mod mutual;
mod published_certificates;
mod reload;
mod sni;
mod tls_parameters;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::ResolvesServerCert;

use super::bundle::Bundle;
use super::certificate_in_use::CertificateInUse;
use super::generate::generated_certs::{generate_in_memory, needs_renewal};
use super::key_pair::{KeyPair, PairFiles};
use crate::process::{Problem, Problems};

pub use mutual::{MutualTlsFiles, MutualTlsReaders, MutualTlsSettings};
pub use reload::{ServingFiles, ServingPublishers, ServingReaders};
pub use sni::NamedCertKey;

/// TLS settings of the listener, from the flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingSettings {
    /// `--tls-cert-file` and `--tls-private-key-file`. Without it, the first of `named` is the default.
    pub pair: Option<PairFiles>,
    /// Value of `--tls-sni-cert-key`.
    pub named: Vec<NamedCertKey>,
    /// Names of a certificate to generate in memory, if it is served instead of a pair.
    pub in_memory_names: Vec<String>,
    /// Value of `--client-ca-file`.
    pub client_ca: Option<PathBuf>,
    /// Value of `--requestheader-client-ca-file`.
    pub request_header_ca: Option<PathBuf>,
    /// Whether `--requestheader-allowed-names` is not empty. If it is empty, the two bundles must not share an
    /// authority: every client could then claim to be any user.
    pub request_header_names_given: bool,
    /// `--tls-min-version`, for example `VersionTLS13`; empty for the default.
    pub min_version: String,
    /// `--tls-cipher-suites`, by Go's names; empty for the default.
    pub cipher_suites: Vec<String>,
    /// Whether h2 is offered beside http/1.1: not `--disable-http2-serving`.
    pub http2: bool,
    /// Whether clients are asked for a certificate of any authority, and none is named: the path of a request decides
    /// which authorities are trusted, and their names are no business of other clients.
    pub requests_any_certificate: bool,
}

/// The trusted CAs of clients and front proxies, in one consistent snapshot.
#[derive(Clone, Debug, Default)]
pub struct ClientTrust {
    /// CA bundle that verifies client certificates.
    pub client: Option<Bundle>,
    /// CA bundle for front proxies.
    pub request_header: Option<Bundle>,
    /// Front proxies as configured by a cluster; none if files and flags configure them.
    pub front_proxies: Option<Arc<FrontProxies>>,
    /// Increases with every change; a verification result is valid for one generation.
    pub generation: u64,
}

/// CAs from a cluster, used where no file is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterTrust {
    /// CA bundle for clients.
    pub client: Option<Bundle>,
    /// Front proxies: CA bundle, allowed names and headers.
    pub front_proxies: Option<Arc<FrontProxies>>,
}

/// Front proxies as configured by a cluster. Names and CA bundle are one value, so that names of one generation are not
/// checked against certificates of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxies {
    /// CA bundle for their certificates.
    pub ca_bundle: Bundle,
    /// Allowed common names; empty allows any.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name.
    pub username_headers: Vec<String>,
    /// Headers with the user's UID.
    pub uid_headers: Vec<String>,
    /// Headers with the user's groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with the user's extra attributes.
    pub extra_prefixes: Vec<String>,
}

/// Checked TLS state, ready to publish.
struct ServingSnapshot {
    config: Arc<ServerConfig>,
    trust: ClientTrust,
    in_use: Vec<CertificateInUse>,
}

/// Loaded certificates and CAs, each in its last valid version.
#[derive(Clone, Default)]
struct ServingMaterial {
    pairs: BTreeMap<PairFiles, Arc<KeyPair>>,
    in_memory_pair: Option<Arc<KeyPair>>,
    client: Option<Bundle>,
    request_header: Option<Bundle>,
    /// Set if `request_header` comes from a cluster, not from a file.
    front_proxies: Option<Arc<FrontProxies>>,
}

impl ServingSnapshot {
    fn build(
        settings: &ServingSettings,
        parts: &ServingMaterial,
        fallback: Option<&Arc<dyn ResolvesServerCert>>,
        generation: u64,
    ) -> Result<ServingSnapshot, Problems> {
        let protocol = tls_parameters::TlsParameters::parse(settings)?;
        let first = settings.pairs().next().and_then(|files| parts.pairs.get(files));
        let resolver: Arc<dyn ResolvesServerCert> = match (first.or(parts.in_memory_pair.as_ref()), fallback) {
            (Some(default), _) => {
                let named = settings.named.iter().filter_map(|it| Some((it, parts.pairs.get(&it.files)?)));
                Arc::new(sni::SniResolver::new(default, named))
            }
            (None, Some(fallback)) => fallback.clone(),
            (None, None) => return Err(Problem::new("--tls-cert-file", "a serving certificate is required").into()),
        };
        let hints = parts.client.iter().chain(&parts.request_header).flat_map(Bundle::subjects);
        let any = settings.requests_any_certificate;
        let hints = if any { Vec::new() } else { hints.collect() };
        let verifier = client_cert_verifier::PossessionVerifier::new(hints, any);
        let config = protocol.into_config(Arc::new(verifier), resolver)?;
        let trust = ClientTrust {
            client: parts.client.clone(),
            request_header: parts.request_header.clone(),
            front_proxies: parts.front_proxies.clone(),
            generation,
        };
        Ok(ServingSnapshot { config: Arc::new(config), trust, in_use: parts.certificates_in_use(settings) })
    }
}

impl ServingSettings {
    /// All pairs, the default one first.
    fn pairs(&self) -> impl Iterator<Item = &PairFiles> {
        self.pair.iter().chain(self.named.iter().map(|it| &it.files))
    }

    fn files(&self) -> Vec<PathBuf> {
        let pairs = self.pairs().flat_map(|it| [it.certificate.clone(), it.key.clone()]);
        pairs.chain(self.client_ca.clone()).chain(self.request_header_ca.clone()).collect()
    }
}

impl ServingMaterial {
    /// Loads all parts. An invalid part is taken from `old`, and its problem is returned.
    ///
    /// CAs that no file gives are those of `announced`; without these, none is trusted.
    fn read(
        settings: &ServingSettings,
        announced: &ClusterTrust,
        old: &ServingMaterial,
        now: UnixTime,
    ) -> (ServingMaterial, Problems) {
        let mut problems = Problems::default();
        let mut parts = ServingMaterial::default();
        for files in settings.pairs() {
            if parts.pairs.contains_key(files) {
                continue;
            }
            let pair = problems.collect(KeyPair::load_serving(files)).map(Arc::new);
            if let Some(pair) = pair.or_else(|| old.pairs.get(files).cloned()) {
                warn_unusable_serving_certificate(&pair);
                parts.pairs.insert(files.clone(), pair);
            }
        }
        if !settings.in_memory_names.is_empty() {
            parts.in_memory_pair = old.in_memory_pair.clone();
            if parts.in_memory_pair.as_ref().is_none_or(|pair| needs_renewal(pair.info(), now)) {
                let made = problems.collect(generate_in_memory(&settings.in_memory_names)).map(Arc::new);
                parts.in_memory_pair = made.or(parts.in_memory_pair.take());
            }
        }
        let mut bundle = |file: &Option<PathBuf>, old: &Option<Bundle>| {
            let file = file.as_ref()?;
            problems.collect(load_ca_bundle(file)).or_else(|| old.clone())
        };
        parts.client = bundle(&settings.client_ca, &old.client);
        parts.request_header = bundle(&settings.request_header_ca, &old.request_header);
        parts.apply_cluster_trust(settings, announced);
        if let Err(problem) = parts.check_front_proxy_separation(settings) {
            problems.0.push(problem);
            parts.client = old.client.clone();
            parts.request_header = old.request_header.clone();
            parts.front_proxies = old.front_proxies.clone();
        }
        (parts, problems)
    }

    /// Takes CAs from a cluster where no file is given.
    fn apply_cluster_trust(&mut self, settings: &ServingSettings, announced: &ClusterTrust) {
        if settings.client_ca.is_none() {
            self.client = announced.client.clone();
        }
        if settings.request_header_ca.is_none() {
            self.front_proxies = announced.front_proxies.clone();
            self.request_header = announced.front_proxies.as_ref().map(|proxies| proxies.ca_bundle.clone());
        }
    }

    /// Checks that a client's certificate cannot be used as a front proxy's.
    fn check_front_proxy_separation(&self, settings: &ServingSettings) -> Result<(), Problem> {
        let names_given = self
            .front_proxies
            .as_ref()
            .map_or(settings.request_header_names_given, |proxies| !proxies.allowed_names.is_empty());
        match (&self.client, &self.request_header) {
            (Some(client), Some(request_header)) if !names_given && client.shares_key_with(request_header) => {
                let message = format!(
                    "{} shares an authority with --client-ca-file {}, and --requestheader-allowed-names is empty: every \
                     client with a certificate could claim to be any user. Use a separate authority for front \
                     proxies, or set --requestheader-allowed-names",
                    request_header.source(),
                    client.source()
                );
                Err(Problem::new("--requestheader-client-ca-file", message))
            }
            _ => Ok(()),
        }
    }

    /// Certificates that are not valid `now`.
    fn untimely(&self, now: UnixTime) -> Vec<Problem> {
        let pairs = self.pairs.values().filter_map(|pair| pair.validity_problem(now));
        let bundles = self.client.iter().chain(&self.request_header);
        pairs.chain(bundles.flat_map(|bundle| bundle.validity_problems(now))).collect()
    }

    /// Warns of what is used before its time, and of certificates in bundles that sign nothing. `narthex check` finds that itself, and ends are watched for all
    /// certificates in one place.
    fn warn_of_certificates(&self, now: UnixTime) {
        for pair in self.pairs.values() {
            if let Some(why) = pair.info().early(now) {
                let (files, subject) = (pair.location(), &pair.info().subject);
                tracing::warn!(files, subject, "clients will refuse the serving certificate: {why}");
            }
        }
        for bundle in self.client.iter().chain(&self.request_header) {
            warn_of_others(bundle);
            for (facts, why) in bundle.certificate_infos().iter().filter_map(|facts| Some((facts, facts.early(now)?))) {
                let (file, subject) = (bundle.source(), &facts.subject);
                tracing::warn!(file, subject, "client certificates of this authority will be refused: {why}");
            }
        }
    }

    fn certificates_in_use(&self, settings: &ServingSettings) -> Vec<CertificateInUse> {
        let mut list = Vec::new();
        for (position, files) in settings.pairs().enumerate() {
            let flag = if position == 0 && settings.pair.is_some() { "--tls-cert-file" } else { "--tls-sni-cert-key" };
            list.extend(self.pairs.get(files).map(|pair| CertificateInUse::from_pair(files, flag, pair)));
        }
        if let Some(pair) = &self.in_memory_pair {
            list.push(CertificateInUse::from_pair(&PairFiles::new("self-made", "self-made"), "--tls-cert-file", pair));
        }
        let bundles = [
            (&settings.client_ca, "--client-ca-file", &self.client),
            (&settings.request_header_ca, "--requestheader-client-ca-file", &self.request_header),
        ];
        for (file, purpose, bundle) in bundles {
            if let (Some(file), Some(bundle)) = (file, bundle) {
                list.extend(CertificateInUse::from_bundle(file, purpose, bundle));
            }
        }
        list
    }

    /// Whether handshakes and verification are the same with both.
    fn is_same(&self, other: &ServingMaterial) -> bool {
        self.pairs == other.pairs && self.in_memory_pair == other.in_memory_pair && self.has_same_trust(other)
    }

    fn has_same_trust(&self, other: &ServingMaterial) -> bool {
        self.client == other.client
            && self.request_header == other.request_header
            && self.front_proxies == other.front_proxies
    }
}

/// Loads a bundle of which at least one certificate is an authority's.
fn load_ca_bundle(file: &PathBuf) -> Result<Bundle, Problem> {
    let location = file.display();
    let pem = std::fs::read(file).map_err(|error| Problem::new(&location, format!("cannot be read: {error}")))?;
    let bundle = Bundle::from_pem(&pem, &location)?;
    let others = bundle.non_authority_subjects();
    if others.len() < bundle.certificate_infos().len() {
        return Ok(bundle);
    }
    let list = others.iter().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
    let message = format!(
        "a certificate authority is required, and {list} is none (no basic constraint CA, or a key usage without \
         keyCertSign); use the certificate of the authority that signed it"
    );
    Err(Problem::new(file.display(), message))
}

/// Warns of certificates that sign nothing: kube-apiserver accepts them in a bundle, too.
fn warn_of_others(bundle: &Bundle) {
    let file = bundle.source();
    for subject in bundle.non_authority_subjects() {
        tracing::warn!(
            file,
            subject,
            "a certificate of the CA bundle is no authority (no basic constraint CA, or a key usage without keyCertSign): \
             it trusts no certificate but itself; remove it, or use that of the authority"
        );
    }
}

/// Warnings about a certificate that is allowed and probably a mistake; kube-apiserver serves with it, too.
fn warn_unusable_serving_certificate(pair: &KeyPair) {
    let facts = pair.info();
    if facts.names.is_empty() {
        tracing::warn!(
            files = pair.location(),
            subject = facts.subject,
            "clients will refuse the serving certificate: it has no subject alternative name"
        );
    }
    if !facts.allows_usage("server authentication") {
        tracing::warn!(
            files = pair.location(),
            subject = facts.subject,
            "clients will refuse the serving certificate: it is not for server authentication"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn in_memory_certificate_renewed_before_expiry() {
        let names = ["pod-1".to_owned(), "127.0.0.1".to_owned()];
        let settings = ServingSettings { in_memory_names: names.to_vec(), ..ServingSettings::default() };
        let read = |old: &ServingMaterial, days: u64| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs() + days * 24 * 60 * 60));
            let (parts, problems) = ServingMaterial::read(&settings, &ClusterTrust::default(), old, now);
            assert!(problems.0.is_empty(), "{problems}");
            parts
        };
        let first = read(&ServingMaterial::default(), 0);
        assert_eq!(first.in_memory_pair.as_ref().unwrap().info().names, names);
        assert!(read(&first, 200).is_same(&first));
        assert!(!read(&first, 300).is_same(&first));
        let used = first.certificates_in_use(&settings);
        assert_eq!((used[0].file.to_str(), used[0].flag), (Some("self-made"), "--tls-cert-file"));
    }
}
