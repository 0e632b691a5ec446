//! Certificates that are generated and renewed when no flag names any.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::UnixTime;

use crate::process::replace_file;
use crate::process::{Drain, Problem, Problems, ShutdownPhase};
use crate::tls::bundle::Bundle;
use crate::tls::certificate::CertificateInfo;
use crate::tls::generate::authority::{Authority, CertificateSpec, CertificateUsage, KeyType, has_key_type};
use crate::tls::generate::certificate_store::{CertificateKind, CertificateStore};
use crate::tls::key_pair::{KeyPair, PairFiles};
use crate::tls::path::PeerRole;
use crate::tls::peer_certificate::PeerCertificate;

/// How often certificates are checked for renewal.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The common name of the generated front-proxy certificate.
pub const FRONT_PROXY: &str = "narthex-front-proxy";

/// A directory of generated certificates, which are renewed before they expire.
pub struct GeneratedCertificates {
    store: CertificateStore,
    certificates: Vec<ManagedCertificate>,
    kubeconfig: Option<(PathBuf, String)>,
}

/// A certificate that must exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedCertificate {
    /// The kind, which determines the issuing authority.
    pub kind: CertificateKind,
    /// The file name without suffix.
    pub name: String,
    /// Content of the certificate.
    pub request: CertificateSpec,
}

impl ManagedCertificate {
    /// `serving`: the gateway's serving certificate for `names`.
    pub fn serving(names: &[String]) -> ManagedCertificate {
        ManagedCertificate {
            kind: CertificateKind::Serving,
            name: "serving".to_owned(),
            request: CertificateSpec::serving(names),
        }
    }

    /// `admin`: a client certificate in the group `system:masters`.
    pub fn admin() -> ManagedCertificate {
        let request = CertificateSpec::client("admin", &["system:masters"]);
        ManagedCertificate { kind: CertificateKind::Client, name: "admin".to_owned(), request }
    }

    /// `front-proxy`: the client certificate for backends, with the common name [`FRONT_PROXY`].
    pub fn front_proxy() -> ManagedCertificate {
        let request = CertificateSpec::client(FRONT_PROXY, &[]);
        ManagedCertificate { kind: CertificateKind::RequestHeader, name: "front-proxy".to_owned(), request }
    }
}

/// The names in a generated serving certificate: localhost, the bind address, and the host name.
pub fn serving_names(bind_address: Option<IpAddr>) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    names.extend(bind_address.filter(|it| !it.is_unspecified()).map(|it| it.to_string()));
    let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    // A host name need not be a valid DNS name.
    let proper = rustls::pki_types::DnsName::try_from(host.as_str()).is_ok();
    names.extend(Some(host).filter(|_| proper));
    let mut distinct = std::collections::BTreeSet::new();
    names.retain(|name| distinct.insert(name.clone()));
    names
}

/// The names in an in-memory serving certificate: the host name first, as in kube-rbac-proxy's.
pub fn in_memory_serving_names() -> Vec<String> {
    let mut names = serving_names(None);
    names.sort_by_key(|name| name == "localhost" || name.parse::<IpAddr>().is_ok());
    names
}

/// Generates a serving certificate for `names` in memory. The key of its authority is dropped.
///
/// # Errors
/// If a name is not valid in a certificate, or the random generator fails.
pub(in crate::tls) fn generate_in_memory(names: &[String]) -> Result<KeyPair, Problem> {
    let now = SystemTime::now();
    let (authority, its) = Authority::new("narthex serving authority", now)?;
    let issued = authority.issue(&CertificateSpec::serving(names), now)?;
    let chain = format!("{}{}", issued.certificate, its.certificate);
    KeyPair::from_pem(chain.as_bytes(), issued.key.as_bytes(), "the generated certificate")
}

impl GeneratedCertificates {
    /// Keeps the certificates `certificates` and their authorities in `directory`.
    pub fn new(directory: impl Into<PathBuf>, certificates: Vec<ManagedCertificate>) -> GeneratedCertificates {
        GeneratedCertificates { store: CertificateStore::new(directory), certificates, kubeconfig: None }
    }

    /// Adds a kubeconfig at `path`, with the certificate `admin` and the server `server` (`https://127.0.0.1:6443`).
    pub fn with_kubeconfig(mut self, path: impl Into<PathBuf>, server: impl Into<String>) -> GeneratedCertificates {
        self.kubeconfig = Some((path.into(), server.into()));
        self
    }

    /// Has keys of this type generated. RSA also replaces those of other types, save for authorities.
    #[must_use]
    pub fn with_key_type(mut self, key_type: KeyType) -> GeneratedCertificates {
        self.store = self.store.with_key_type(key_type);
        self.certificates.iter_mut().for_each(|certificate| certificate.request.key_type = key_type);
        self
    }

    /// The directory of the certificates.
    pub fn store(&self) -> &CertificateStore {
        &self.store
    }

    /// Generates certificates that are missing, invalid, or have less than a third of their lifetime left, and returns
    /// the files written. Call it at startup, and [`GeneratedCertificates::renew`] afterwards.
    pub fn ensure(&self, now: SystemTime) -> Result<Vec<PathBuf>, Problems> {
        if self.certificates.is_empty() {
            return Ok(Vec::new());
        }
        self.store.create_directory()?;
        let mut problems = Problems::default();
        let mut paths = Vec::new();
        let mut kinds: Vec<CertificateKind> = self.certificates.iter().map(|certificate| certificate.kind).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            let worn = |authority: &Authority| needs_renewal(authority.info(), to_unix_time(now));
            let Some((authority, made)) = problems.collect(self.store.ensure_authority(kind, now, worn)) else {
                continue;
            };
            if made {
                paths.push(self.store.authority_files(kind).certificate);
            }
            for managed in self.certificates.iter().filter(|managed| managed.kind == kind) {
                let files = self.store.files(&managed.name);
                if let Some(why) = regeneration_reason(&files, &authority, &managed.request, now) {
                    if let Some(why) = why {
                        tracing::info!(file = %files.certificate.display(), "generated certificate is replaced: {why}");
                    }
                    let made = authority
                        .issue(&managed.request, now)
                        .and_then(|issued| self.store.replace_pair(&managed.name, &issued));
                    paths.extend(problems.collect(made).map(|files| files.certificate));
                }
            }
        }
        problems.into_result(paths)
    }

    /// Writes the kubeconfig, if there is one. It names the address of this process, so this comes last at startup: a
    /// process that cannot start leaves that of another one.
    pub fn write_kubeconfig(&self) -> Result<(), Problem> {
        self.kubeconfig.as_ref().map_or(Ok(()), |(path, server)| write_kubeconfig(path, server, &self.store))
    }

    /// Renews the certificates until the process ends. Their users follow the files.
    pub async fn renew(self: Arc<Self>, mut drain: Drain) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RENEWAL_INTERVAL) => {}
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            }
            let renewed = self.ensure(SystemTime::now());
            match renewed.and_then(|paths| Ok(self.write_kubeconfig().map(|()| paths)?)) {
                Ok(paths) => {
                    for file in paths {
                        tracing::info!(file = %file.display(), "generated certificate renewed");
                    }
                }
                Err(problems) => {
                    for problem in &problems.0 {
                        tracing::error!(%problem, "generated certificates could not be renewed; next attempt in an hour");
                    }
                }
            }
        }
    }
}

/// The reason to generate the pair: `None` if it is valid, `Some(None)` if it does not exist.
fn regeneration_reason(
    files: &PairFiles,
    authority: &Authority,
    request: &CertificateSpec,
    now: SystemTime,
) -> Option<Option<String>> {
    if !files.certificate.exists() && !files.key.exists() {
        return Some(None);
    }
    let pair = match KeyPair::load(files) {
        Ok(pair) => pair,
        Err(problem) => return Some(Some(problem.message)),
    };
    let [leaf] = pair.chain() else {
        return Some(Some(
            "its file contains more than one certificate; a generated file contains exactly one".to_owned(),
        ));
    };
    let role = match request.usage {
        CertificateUsage::Serving => PeerRole::Server,
        CertificateUsage::Client => PeerRole::Client,
    };
    let bundle = crate::tls::der::pem("CERTIFICATE", authority.certificate());
    let trusted = Bundle::from_pem(bundle.as_bytes(), "authority")
        .ok()
        .map(|it| it.verify_path(leaf, &[], to_unix_time(now), role));
    if needs_renewal(pair.info(), to_unix_time(now)) {
        return Some(Some("it expires soon".to_owned()));
    }
    if !matches!(trusted, Some(Ok(_))) {
        return Some(Some("the authority did not issue it".to_owned()));
    }
    if request.key_type == KeyType::Rsa
        && !std::fs::read_to_string(&files.key).is_ok_and(|pem| has_key_type(&pem, KeyType::Rsa))
    {
        return Some(Some("its key is not an RSA key".to_owned()));
    }
    let names = &pair.info().names;
    if !request.names.iter().all(|requested| names.iter().any(|name| same_name(name, requested))) {
        return Some(Some(format!("it does not have all names of {}", request.names.join(", "))));
    }
    let peer = PeerCertificate::parse(leaf).ok();
    let same = peer.is_some_and(|peer| {
        // A serving certificate's common name is only the first of its names.
        request.usage == CertificateUsage::Serving
            || (peer.common_name.as_deref() == Some(&request.common_name)
                && peer.organizations == request.organizations)
    });
    if same { None } else { Some(Some("it is for another user".to_owned())) }
}

pub(in crate::tls) fn same_name(name: &str, other: &str) -> bool {
    match (name.parse::<IpAddr>(), other.parse::<IpAddr>()) {
        (Ok(name), Ok(wanted)) => name == wanted,
        _ => name.eq_ignore_ascii_case(other),
    }
}

/// Whether less than a third of the lifetime is left.
pub(in crate::tls) fn needs_renewal(facts: &CertificateInfo, now: UnixTime) -> bool {
    let life = facts.not_after.as_secs().saturating_sub(facts.not_before.as_secs());
    let left = facts.not_after.as_secs().saturating_sub(now.as_secs());
    left < life / 3
}

fn to_unix_time(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A kubeconfig of one user. `authority` is the CA bundle of the server as base64, `credentials` are lines of YAML.
pub fn kubeconfig_text(server: &str, authority: &str, user: &str, credentials: &str) -> String {
    // A JSON string is a valid YAML string.
    let (server, user) = (serde_json::Value::from(server), serde_json::Value::from(user));
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: narthex\nclusters:\n- name: narthex\n  cluster:\n    server: \
         {server}\n    certificate-authority-data: {authority}\nusers:\n- name: {user}\n  user:\n{credentials}contexts:\n\
         - name: narthex\n  context:\n    cluster: narthex\n    user: {user}\n"
    )
}

/// Writes a kubeconfig with the certificate `admin` embedded, readable by its owner only.
pub fn write_kubeconfig(path: &std::path::Path, server: &str, store: &CertificateStore) -> Result<(), Problem> {
    let read = |path: PathBuf| {
        std::fs::read(&path)
            .map(|content| STANDARD.encode(content))
            .map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))
    };
    let authority = read(store.authority_files(CertificateKind::Serving).certificate)?;
    let admin = store.files("admin");
    let (certificate, key) = (read(admin.certificate)?, read(admin.key)?);
    let credentials = format!("    client-certificate-data: {certificate}\n    client-key-data: {key}\n");
    let text = kubeconfig_text(server, &authority, "admin", &credentials);
    if std::fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    replace_file(path, &text, 0o600)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn wanted(names: &[&str]) -> Vec<ManagedCertificate> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let backend = ManagedCertificate {
            kind: CertificateKind::Backend,
            name: "example".to_owned(),
            request: CertificateSpec::serving(&["example.default.svc".to_owned()]),
        };
        vec![
            ManagedCertificate::serving(&names),
            ManagedCertificate::admin(),
            ManagedCertificate::front_proxy(),
            backend,
        ]
    }

    fn names_of(written: &[PathBuf]) -> Vec<String> {
        written.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn generated_certificates_reused_on_restart() {
        let dir = tempfile::tempdir().unwrap();
        let made = GeneratedCertificates::new(dir.path(), wanted(&["localhost", "127.0.0.1"]));
        let now = SystemTime::now();
        assert_eq!(made.ensure(now).unwrap().len(), 8);
        assert_eq!(made.ensure(now).unwrap(), Vec::<PathBuf>::new());
        let front_proxy = KeyPair::load(&made.store().files("front-proxy")).unwrap();
        let vouched = |kind| {
            let pem = fs::read(made.store().authority_files(kind).certificate).unwrap();
            Bundle::from_pem(&pem, "ca").unwrap().verify_client(front_proxy.chain(), UnixTime::now()).is_ok()
        };
        assert!(vouched(CertificateKind::RequestHeader));
        assert!(
            !vouched(CertificateKind::Client)
                && !vouched(CertificateKind::Serving)
                && !vouched(CertificateKind::Backend)
        );
    }

    #[test]
    fn generated_certificates_replaced_when_expiring_or_mismatched() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let made = GeneratedCertificates::new(dir.path(), wanted(&["localhost"]));
        made.ensure(now).unwrap();
        let leaves = ["serving.crt", "admin.crt", "front-proxy.crt", "example.crt"];
        assert_eq!(names_of(&made.ensure(now + 240 * DAY).unwrap()), Vec::<String>::new());
        assert_eq!(names_of(&made.ensure(now + 250 * DAY).unwrap()), leaves);

        let made = GeneratedCertificates::new(dir.path(), wanted(&["localhost", "10.0.0.1"]));
        assert_eq!(names_of(&made.ensure(now + 250 * DAY).unwrap()), ["serving.crt"]);

        // A pair left by an interruption between its two renames.
        fs::copy(dir.path().join("admin.key"), dir.path().join("front-proxy.key")).unwrap();
        assert_eq!(names_of(&made.ensure(now + 250 * DAY).unwrap()), ["front-proxy.crt"]);
    }

    #[test]
    fn generated_authority_renewed_with_same_key() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let made = GeneratedCertificates::new(dir.path(), wanted(&["localhost"]));
        made.ensure(now).unwrap();
        let later = now + 2500 * DAY;
        let old = ManagedCertificate {
            request: CertificateSpec { days: 3000, ..ManagedCertificate::admin().request },
            ..ManagedCertificate::admin()
        };
        let authority = made.store().load_authority(CertificateKind::Client).unwrap();
        let pair = authority.issue(&old.request, now).unwrap();
        assert_eq!(made.ensure(later).unwrap().len(), 8);
        let pem = fs::read(made.store().authority_files(CertificateKind::Client).certificate).unwrap();
        let bundle = Bundle::from_pem(&pem, "ca").unwrap();
        assert!(bundle.verify_client(&[pair.der().unwrap()], to_unix_time(later)).is_ok());
        assert!(bundle.certificate_infos()[0].not_after.as_secs() > to_unix_time(later + 3000 * DAY).as_secs());
    }

    #[test]
    fn generated_kubeconfig_is_private_and_follows_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.kubeconfig");
        let made = GeneratedCertificates::new(dir.path().join("pki"), wanted(&["localhost"]));
        let made = made.with_kubeconfig(&path, "https://127.0.0.1:6443");
        made.ensure(SystemTime::now()).unwrap();
        assert!(!path.exists(), "it is written once the process serves");
        made.write_kubeconfig().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let parsed: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        let decoded = STANDARD.decode(parsed["users"][0]["user"]["client-certificate-data"].as_str().unwrap()).unwrap();
        assert_eq!(decoded, fs::read(dir.path().join("pki/admin.crt")).unwrap());
        made.ensure(SystemTime::now() + 300 * DAY).unwrap();
        made.write_kubeconfig().unwrap();
        assert_ne!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn generated_keys_are_rsa_if_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let (now, key) = (SystemTime::now(), |name: &str| fs::read_to_string(dir.path().join(name)).unwrap());
        let made = |key_type| {
            let wanted = vec![ManagedCertificate::admin()];
            GeneratedCertificates::new(dir.path(), wanted).with_key_type(key_type).ensure(now).unwrap().len()
        };
        assert_eq!(made(KeyType::Ecdsa), 2);
        assert!(has_key_type(&key("admin.key"), KeyType::Ecdsa));
        assert_eq!((made(KeyType::Rsa), made(KeyType::Rsa), made(KeyType::Ecdsa)), (1, 0, 0));
        assert!(has_key_type(&key("admin.key"), KeyType::Rsa));
        assert!(has_key_type(&key("client-ca.key"), KeyType::Ecdsa), "an authority stays");
    }

    #[tokio::test(start_paused = true)]
    async fn generated_certificates_renewal_ends_at_shutdown() {
        let dir = tempfile::tempdir().unwrap();
        let made = GeneratedCertificates::new(dir.path(), wanted(&["localhost"]));
        let (drainer, drain) = Drain::new();
        let certificate = made.store().files("serving").certificate;
        let renewing = tokio::spawn(Arc::new(made).renew(drain));
        tokio::time::sleep(RENEWAL_INTERVAL * 2).await;
        assert!(certificate.exists(), "the first check generates missing certificates");
        drainer.advance(ShutdownPhase::Ending);
        renewing.await.unwrap();
    }

    #[test]
    fn generated_serving_names_valid_and_unique() {
        let names = serving_names(Some("127.0.0.1".parse().unwrap()));
        assert_eq!(names.iter().filter(|name| *name == "127.0.0.1").count(), 1);
        assert!(!serving_names(Some("0.0.0.0".parse().unwrap())).contains(&"0.0.0.0".to_owned()));
        assert!(Authority::generate("x").issue(&CertificateSpec::serving(&names), SystemTime::now()).is_ok());
    }
}
