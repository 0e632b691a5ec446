//! The files of the agent, which are read for each connection.

use std::path::Path;
use std::sync::Arc;

use super::connect_error::ServerConnectError;
use super::settings::AgentSettings;
use super::state::AgentState;
use crate::process::{Drain, FileWatcher, Problem, Problems, ReloadReporter};
use crate::tls::client::{ClientSettings, build_config};
use crate::tls::{Bundle, KeyPair};

/// Reads the files that the settings name, as each connection does.
///
/// # Errors
/// All problems with them.
pub fn check_files(settings: &AgentSettings) -> Result<(), Problems> {
    let mut problems = Problems::default();
    problems.collect(client_config(settings));
    if let Some(path) = &settings.token_file
        && let Err(failure) = read_token(path)
    {
        problems.0.push(Problem::new("--service-account-token-path", failure));
    }
    problems.into_result(())
}

/// Checks the files whenever they changed, until the process ends. An error is in the status until it is corrected: it
/// would otherwise be found when the last connection breaks.
pub async fn follow_files(settings: AgentSettings, state: Arc<AgentState>, mut drain: Drain) {
    const UNUSABLE: &str = "a file of the agent changed and is invalid; further connections to servers fail";
    let pair = settings.pair.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
    let mut watcher = FileWatcher::new(pair.chain(&settings.ca_file).chain(&settings.token_file));
    let mut reporter = ReloadReporter::new(UNUSABLE, state.file_errors.reporter("agent"));
    while watcher.changed_before_end(&mut drain).await {
        reporter.report(check_files(&settings));
    }
}

pub(super) fn client_config(settings: &AgentSettings) -> Result<Arc<rustls::ClientConfig>, Problem> {
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
    build_config(&ClientSettings { ca_bundle, insecure_skip_verify: false, identity, alpn: alpn.collect() })
}

pub(super) fn read_token(path: &Path) -> Result<String, ServerConnectError> {
    let token = std::fs::read_to_string(path);
    let token = token.map_err(|error| ServerConnectError(format!("{} cannot be read: {error}", path.display())))?;
    let token = token.trim();
    if token.is_empty() {
        return Err(ServerConnectError(format!("{} is empty", path.display())));
    }
    Ok(token.to_owned())
}
