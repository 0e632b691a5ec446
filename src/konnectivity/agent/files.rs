//! The files of the agent, which are read for each connection.

use std::path::Path;
use std::sync::Arc;

use super::connect_error::ServerConnectError;
use super::settings::AgentSettings;
use super::state::AgentState;
use crate::process::{Drain, FileWatcher, Problem, Problems, Published, Publisher, ReloadReporter};
use crate::tls::client::{ClientSettings, build_config};
use crate::tls::{Bundle, CertificateInUse, KeyPair};

/// The files of the agent, with the certificates of their last valid content.
pub struct AgentFiles {
    settings: AgentSettings,
    watcher: FileWatcher,
    in_use: Publisher<Vec<CertificateInUse>>,
}

impl AgentFiles {
    /// Reads the files that the settings name, as each connection does. Also returns the certificates in use.
    ///
    /// # Errors
    /// All problems with the files.
    pub fn open(settings: AgentSettings) -> Result<(AgentFiles, Published<Vec<CertificateInUse>>), Problems> {
        let pair = settings.pair.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        // Before the first load, so that no change is missed.
        let watcher = FileWatcher::new(pair.chain(&settings.ca_file).chain(&settings.token_file));
        let (publisher, in_use) = Published::new(check(&settings)?);
        Ok((AgentFiles { settings, watcher, in_use: publisher }, in_use))
    }

    /// Checks the files whenever they changed, until the process ends. An error is in the status until it is corrected:
    /// it would otherwise be found when the last connection breaks.
    pub async fn follow(mut self, state: Arc<AgentState>, mut drain: Drain) {
        const UNUSABLE: &str = "a file of the agent changed and is invalid; further connections to servers fail";
        let mut reporter = ReloadReporter::new(UNUSABLE, state.file_errors.reporter("agent"));
        while self.watcher.changed_before_end(&mut drain).await {
            if let Some(certificates) = reporter.report(check(&self.settings)) {
                self.in_use.publish(Arc::new(certificates));
            }
        }
    }
}

/// Reads all files. The error has all problems.
fn check(settings: &AgentSettings) -> Result<Vec<CertificateInUse>, Problems> {
    let mut problems = Problems::default();
    let read = problems.collect(AgentCertificates::read(settings));
    problems.collect(read.as_ref().map(AgentCertificates::client_config).transpose());
    if let Some(path) = &settings.token_file
        && let Err(failure) = read_token(path)
    {
        problems.0.push(Problem::new("--service-account-token-path", failure));
    }
    let in_use = read.map(|certificates| certificates.in_use(settings)).unwrap_or_default();
    problems.into_result(in_use)
}

/// The content of the files of a TLS connection.
struct AgentCertificates {
    ca_bundle: Option<Bundle>,
    identity: Option<Arc<KeyPair>>,
    alpn: Vec<Vec<u8>>,
}

impl AgentCertificates {
    fn read(settings: &AgentSettings) -> Result<AgentCertificates, Problem> {
        let ca_bundle = match &settings.ca_file {
            Some(path) => {
                let pem = std::fs::read(path)
                    .map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))?;
                Some(Bundle::from_pem(&pem, path.display())?)
            }
            None => None,
        };
        let identity = settings.pair.as_ref().map(KeyPair::load).transpose()?.map(Arc::new);
        let alpn = std::iter::once(b"h2".to_vec()).chain(settings.alpn.iter().map(|name| name.clone().into_bytes()));
        Ok(AgentCertificates { ca_bundle, identity, alpn: alpn.collect() })
    }

    fn client_config(&self) -> Result<Arc<rustls::ClientConfig>, Problem> {
        let AgentCertificates { ca_bundle, identity, alpn } = self;
        let (ca_bundle, identity, alpn) = (ca_bundle.clone(), identity.clone(), alpn.clone());
        build_config(&ClientSettings { ca_bundle, insecure_skip_verify: false, identity, alpn })
    }

    fn in_use(&self, settings: &AgentSettings) -> Vec<CertificateInUse> {
        let identity = settings.pair.as_ref().zip(self.identity.as_ref());
        let identity = identity.map(|(files, pair)| CertificateInUse::from_pair(files, "--agent-cert", pair));
        let bundle = settings.ca_file.as_ref().zip(self.ca_bundle.as_ref());
        let bundle = bundle.and_then(|(file, bundle)| CertificateInUse::from_bundle(file, "--ca-cert", bundle));
        identity.into_iter().chain(bundle).collect()
    }
}

pub(super) fn client_config(settings: &AgentSettings) -> Result<Arc<rustls::ClientConfig>, Problem> {
    AgentCertificates::read(settings)?.client_config()
}

pub(super) fn read_token(path: &Path) -> Result<String, ServerConnectError> {
    let token = std::fs::read_to_string(path);
    let token =
        token.map_err(|error| ServerConnectError::new(format!("{} cannot be read: {error}", path.display())))?;
    let token = token.trim();
    if token.is_empty() {
        return Err(ServerConnectError::new(format!("{} is empty", path.display())));
    }
    Ok(token.to_owned())
}
