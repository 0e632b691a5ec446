//! Certificates that are generated and renewed when no flag names any.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::UnixTime;

use super::authority::{Authority, Purpose, Request};
use super::bundle::Bundle;
use super::certificate::Facts;
use super::judge::Role;
use super::key_pair::{KeyPair, PairFiles};
use super::peer_certificate::PeerCertificate;
use super::store::{Kind, Store};
use crate::process::replace;
use crate::process::{Drain, Phase, Problem, Problems};

/// How often certificates are checked for renewal.
const ROUND: Duration = Duration::from_secs(60 * 60);

/// The common name of the generated front-proxy certificate.
pub const FRONT_PROXY: &str = "narthex-front-proxy";

/// A directory of generated certificates, which are renewed before they expire.
pub struct SelfMade {
    store: Store,
    wanted: Vec<Wanted>,
    kubeconfig: Option<(PathBuf, String)>,
}

/// A certificate that must exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The kind, which determines the issuing authority.
    pub kind: Kind,
    /// The file name without suffix.
    pub name: String,
    /// Its content.
    pub request: Request,
}

impl Wanted {
    /// `serving`: the gateway's serving certificate for `names`.
    pub fn serving(names: &[String]) -> Wanted {
        Wanted { kind: Kind::Serving, name: "serving".to_owned(), request: Request::serving(names) }
    }

    /// `admin`: a client certificate in the group `system:masters`.
    pub fn admin() -> Wanted {
        let request = Request::client("admin", &["system:masters"]);
        Wanted { kind: Kind::Client, name: "admin".to_owned(), request }
    }

    /// `front-proxy`: the client certificate for backends, with the common name [`FRONT_PROXY`].
    pub fn front_proxy() -> Wanted {
        let request = Request::client(FRONT_PROXY, &[]);
        Wanted { kind: Kind::RequestHeader, name: "front-proxy".to_owned(), request }
    }

    /// A backend's serving certificate for `names`.
    pub fn backend(name: &str, names: &[String]) -> Wanted {
        Wanted { kind: Kind::Backend, name: name.to_owned(), request: Request::serving(names) }
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
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The names in an in-memory serving certificate: the host name first, as in kube-rbac-proxy's.
pub fn unwritten_names() -> Vec<String> {
    let mut names = serving_names(None);
    names.sort_by_key(|name| name == "localhost" || name.parse::<IpAddr>().is_ok());
    names
}

/// Generates a serving certificate for `names` in memory. The key of its authority is dropped.
///
/// # Errors
/// If a name is not valid in a certificate, or the random generator fails.
pub(super) fn unwritten(names: &[String]) -> Result<KeyPair, Problem> {
    let now = SystemTime::now();
    let (authority, its) = Authority::new("narthex serving authority", now)?;
    let issued = authority.issue(&Request::serving(names), now)?;
    let chain = format!("{}{}", issued.certificate, its.certificate);
    KeyPair::from_pem(chain.as_bytes(), issued.key.as_bytes(), "the generated certificate")
}

impl SelfMade {
    /// Keeps the certificates `wanted` and their authorities in `directory`.
    pub fn new(directory: impl Into<PathBuf>, wanted: Vec<Wanted>) -> SelfMade {
        SelfMade { store: Store::new(directory), wanted, kubeconfig: None }
    }

    /// Also keeps a kubeconfig at `path`, with the certificate `admin` and the API server `server`
    /// (`https://127.0.0.1:6443`).
    pub fn with_kubeconfig(mut self, path: impl Into<PathBuf>, server: impl Into<String>) -> SelfMade {
        self.kubeconfig = Some((path.into(), server.into()));
        self
    }

    /// The directory of the certificates.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Generates certificates that are missing, invalid, or have less than a third of their lifetime left, and returns
    /// the files written. Call it at startup, and [`SelfMade::renew`] afterwards.
    pub fn ensure(&self, now: SystemTime) -> Result<Vec<PathBuf>, Problems> {
        if self.wanted.is_empty() {
            return Ok(Vec::new());
        }
        self.store.create_directory()?;
        let mut problems = Problems::default();
        let mut written = Vec::new();
        let mut kinds: Vec<Kind> = self.wanted.iter().map(|wanted| wanted.kind).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            let worn = |authority: &Authority| is_worn(authority.facts(), unix(now));
            let Some((authority, made)) = problems.keep(self.store.ensure_authority(kind, now, worn)) else {
                continue;
            };
            if made {
                written.push(self.store.authority_files(kind).certificate);
            }
            for wanted in self.wanted.iter().filter(|wanted| wanted.kind == kind) {
                let files = self.store.files(&wanted.name);
                if let Some(why) = why_anew(&files, &authority, &wanted.request, now) {
                    if let Some(why) = why {
                        tracing::info!(file = %files.certificate.display(), "generated certificate is replaced: {why}");
                    }
                    let made = authority
                        .issue(&wanted.request, now)
                        .and_then(|issued| self.store.replace(&wanted.name, &issued));
                    written.extend(problems.keep(made).map(|files| files.certificate));
                }
            }
        }
        if problems.0.is_empty()
            && let Some((path, server)) = &self.kubeconfig
        {
            problems.keep(write_kubeconfig(path, server, &self.store));
        }
        problems.or(written)
    }

    /// Renews the certificates until the process ends. Their users follow the files.
    pub async fn renew(self, mut drain: Drain) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                () = drain.reached(Phase::Ending) => return,
            }
            match self.ensure(SystemTime::now()) {
                Ok(written) => {
                    for file in written {
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
fn why_anew(files: &PairFiles, authority: &Authority, request: &Request, now: SystemTime) -> Option<Option<String>> {
    if !files.certificate.exists() && !files.key.exists() {
        return Some(None);
    }
    let pair = match KeyPair::load(files) {
        Ok(pair) => pair,
        Err(problem) => return Some(Some(problem.message)),
    };
    let [leaf] = pair.chain() else { return Some(Some("it is a certificate chain".to_owned())) };
    let role = match request.purpose {
        Purpose::Serving => Role::Server,
        Purpose::Client => Role::Client,
    };
    let bundle = super::der::pem("CERTIFICATE", authority.certificate());
    let trusted = Bundle::from_pem(bundle.as_bytes(), "authority").ok().map(|it| it.verify(leaf, &[], unix(now), role));
    if is_worn(pair.facts(), unix(now)) {
        return Some(Some("it expires soon".to_owned()));
    }
    if !matches!(trusted, Some(Ok(_))) {
        return Some(Some("the authority did not issue it".to_owned()));
    }
    let names = &pair.facts().names;
    if !request.names.iter().all(|wanted| names.iter().any(|name| same_name(name, wanted))) {
        return Some(Some(format!("it does not have all names of {}", request.names.join(", "))));
    }
    let peer = PeerCertificate::parse(leaf).ok();
    let same = peer.is_some_and(|peer| {
        // A serving certificate's common name is only the first of its names.
        request.purpose == Purpose::Serving
            || (peer.common_name.as_deref() == Some(&request.common_name)
                && peer.organizations == request.organizations)
    });
    if same { None } else { Some(Some("it is for another user".to_owned())) }
}

pub(super) fn same_name(name: &str, wanted: &str) -> bool {
    match (name.parse::<IpAddr>(), wanted.parse::<IpAddr>()) {
        (Ok(name), Ok(wanted)) => name == wanted,
        _ => name.eq_ignore_ascii_case(wanted),
    }
}

/// Whether less than a third of the lifetime is left.
pub(super) fn is_worn(facts: &Facts, now: UnixTime) -> bool {
    let life = facts.not_after.as_secs().saturating_sub(facts.not_before.as_secs());
    let left = facts.not_after.as_secs().saturating_sub(now.as_secs());
    left < life / 3
}

fn unix(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Writes a kubeconfig with the certificate `admin` embedded, readable by its owner only.
pub fn write_kubeconfig(path: &std::path::Path, server: &str, store: &Store) -> Result<(), Problem> {
    let read = |path: PathBuf| {
        std::fs::read(&path)
            .map(|content| STANDARD.encode(content))
            .map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))
    };
    let authority = read(store.authority_files(Kind::Serving).certificate)?;
    let admin = store.files("admin");
    let (certificate, key) = (read(admin.certificate)?, read(admin.key)?);
    // A JSON string is a valid YAML string.
    let server = serde_json::Value::from(server);
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: narthex\nclusters:\n- name: narthex\n  cluster:\n    server: \
         {server}\n    certificate-authority-data: {authority}\nusers:\n- name: admin\n  user:\n    \
         client-certificate-data: {certificate}\n    client-key-data: {key}\ncontexts:\n- name: narthex\n  context:\n    \
         cluster: narthex\n    user: admin\n"
    );
    if std::fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    replace(path, &text, 0o600)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn wanted(names: &[&str]) -> Vec<Wanted> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let backend = Wanted::backend("example", &["example.default.svc".to_owned()]);
        vec![Wanted::serving(&names), Wanted::admin(), Wanted::front_proxy(), backend]
    }

    fn names_of(written: &[PathBuf]) -> Vec<String> {
        written.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_second_start_reuses_everything() {
        let dir = tempfile::tempdir().unwrap();
        let made = SelfMade::new(dir.path(), wanted(&["localhost", "127.0.0.1"]));
        let now = SystemTime::now();
        assert_eq!(made.ensure(now).unwrap().len(), 8);
        assert_eq!(made.ensure(now).unwrap(), Vec::<PathBuf>::new());
        let front_proxy = KeyPair::load(&made.store().files("front-proxy")).unwrap();
        let vouched = |kind| {
            let pem = fs::read(made.store().authority_files(kind).certificate).unwrap();
            Bundle::from_pem(&pem, "ca").unwrap().judge_client(front_proxy.chain(), UnixTime::now()).is_ok()
        };
        assert!(vouched(Kind::RequestHeader));
        assert!(!vouched(Kind::Client) && !vouched(Kind::Serving) && !vouched(Kind::Backend));
    }

    #[test]
    fn what_ends_soon_or_no_longer_fits_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let made = SelfMade::new(dir.path(), wanted(&["localhost"]));
        made.ensure(now).unwrap();
        let leaves = ["serving.crt", "admin.crt", "front-proxy.crt", "example.crt"];
        assert_eq!(names_of(&made.ensure(now + 240 * DAY).unwrap()), Vec::<String>::new());
        assert_eq!(names_of(&made.ensure(now + 250 * DAY).unwrap()), leaves);

        let made = SelfMade::new(dir.path(), wanted(&["localhost", "10.0.0.1"]));
        assert_eq!(names_of(&made.ensure(now + 250 * DAY).unwrap()), ["serving.crt"]);

        // A pair left by an interruption between its two renames.
        fs::copy(dir.path().join("admin.key"), dir.path().join("front-proxy.key")).unwrap();
        assert_eq!(names_of(&made.ensure(now + 250 * DAY).unwrap()), ["front-proxy.crt"]);
    }

    #[test]
    fn an_authority_is_renewed_with_its_key_and_what_it_issued_stays_good() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let made = SelfMade::new(dir.path(), wanted(&["localhost"]));
        made.ensure(now).unwrap();
        let later = now + 2500 * DAY;
        let old = Wanted { request: Request { days: 3000, ..Wanted::admin().request }, ..Wanted::admin() };
        let authority = made.store().authority(Kind::Client).unwrap();
        let pair = authority.issue(&old.request, now).unwrap();
        assert_eq!(made.ensure(later).unwrap().len(), 8);
        let pem = fs::read(made.store().authority_files(Kind::Client).certificate).unwrap();
        let bundle = Bundle::from_pem(&pem, "ca").unwrap();
        assert!(bundle.judge_client(&[pair.der().unwrap()], unix(later)).is_ok());
        assert!(bundle.facts()[0].not_after.as_secs() > unix(later + 3000 * DAY).as_secs());
    }

    #[test]
    fn the_kubeconfig_is_whole_and_private_and_follows_the_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.kubeconfig");
        let made = SelfMade::new(dir.path().join("pki"), wanted(&["localhost"]));
        let made = made.with_kubeconfig(&path, "https://127.0.0.1:6443");
        made.ensure(SystemTime::now()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let parsed: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        let decoded = STANDARD.decode(parsed["users"][0]["user"]["client-certificate-data"].as_str().unwrap()).unwrap();
        assert_eq!(decoded, fs::read(dir.path().join("pki/admin.crt")).unwrap());
        made.ensure(SystemTime::now() + 300 * DAY).unwrap();
        assert_ne!(fs::read_to_string(&path).unwrap(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_ends_with_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let made = SelfMade::new(dir.path(), wanted(&["localhost"]));
        let (drainer, drain) = Drain::new();
        let certificate = made.store().files("serving").certificate;
        let renewing = tokio::spawn(made.renew(drain));
        tokio::time::sleep(ROUND * 2).await;
        assert!(certificate.exists(), "the first check generates missing certificates");
        drainer.advance(Phase::Ending);
        renewing.await.unwrap();
    }

    #[test]
    fn names_are_proper_and_once() {
        let names = serving_names(Some("127.0.0.1".parse().unwrap()));
        assert_eq!(names.iter().filter(|name| *name == "127.0.0.1").count(), 1);
        assert!(!serving_names(Some("0.0.0.0".parse().unwrap())).contains(&"0.0.0.0".to_owned()));
        assert!(Authority::made("x").issue(&Request::serving(&names), SystemTime::now()).is_ok());
    }
}
