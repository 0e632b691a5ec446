//! The upstreams of a sidecar (`--upstream`), each as a backend like any other, with their CA and certificate files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::objects::api_service::ApiService;
use super::objects::long_running::LongRunning;
use super::settings::Settings;
use super::static_backend::{UpstreamUrl, sidecar_upstream};
use crate::message::AllowedHeaders;
use crate::process::{Drain, FileWatcher, OnFailure, Problem, Problems, Publisher, ReloadReporter};
use crate::tls::{Bundle, KeyPair, PairFiles};

/// One upstream, and the requests that are routed to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Path prefix, without a trailing slash; `/` matches what no other upstream does.
    pub path: String,
    /// Address and protocol of the upstream.
    pub url: UpstreamUrl,
    /// File of the CA certificates that verify it; the system's when `None`.
    pub authorities: Option<PathBuf>,
    /// Files of our client certificate, if one is sent.
    pub identity: Option<PairFiles>,
    /// Timeout of a request that is not long-running; zero for no limit.
    pub timeout: Duration,
    /// Whether the client's `Host` header is forwarded, instead of the upstream's own name.
    pub keeps_host: bool,
    /// Headers of a reverse proxy in front, such as X-Forwarded-For, that are forwarded (`--allow-request-headers`).
    pub allowed_request_headers: AllowedHeaders,
    /// Requests without a timeout, besides those that Kubernetes treats as long-running (`--upstream-long-running`).
    pub long_running: LongRunning,
}

/// An upstream ready for routing.
#[derive(Clone, Debug)]
pub struct SidecarUpstream {
    /// Path, as in [`UpstreamSettings::path`].
    pub path: String,
    /// The backend. Its name is the path.
    pub api_service: Arc<ApiService>,
}

/// All upstreams of a sidecar.
pub type SidecarUpstreams = Vec<SidecarUpstream>;

/// The files of the upstreams, watched for changes. They were valid when opened.
pub struct UpstreamFiles {
    settings: Vec<UpstreamSettings>,
    follower: FileWatcher,
}

impl UpstreamFiles {
    /// Reads the files that the upstreams name.
    ///
    /// # Errors
    /// All problems in these files.
    pub fn open(settings: Vec<UpstreamSettings>) -> Result<(UpstreamFiles, SidecarUpstreams), Problems> {
        let files = settings.iter().flat_map(|one| {
            let pair = one.identity.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
            one.authorities.iter().chain(pair).map(PathBuf::as_path)
        });
        // Watched before the first read, so that no change is missed between them.
        let follower = FileWatcher::new(files);
        let upstreams = load_upstreams(&settings)?;
        Ok((UpstreamFiles { settings, follower }, upstreams))
    }

    /// Publishes the upstreams whenever a file changes, until the process ends. While a file is invalid, the last valid
    /// content stays in use.
    pub async fn follow(mut self, publisher: Publisher<SidecarUpstreams>, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "a file of an upstream changed and is invalid; the last good one stays in use";
        let mut readings = ReloadReporter::new(UNUSABLE, on_failure);
        while self.follower.changed_before_end(&mut drain).await {
            if let Some(upstreams) = readings.report(load_upstreams(&self.settings)) {
                tracing::info!("files of --upstream-ca-file and --upstream-client-cert-file reloaded");
                publisher.publish(Arc::new(upstreams));
            }
        }
    }
}

fn load_upstreams(settings: &[UpstreamSettings]) -> Result<SidecarUpstreams, Problems> {
    let mut problems = Problems::default();
    let mut upstreams = Vec::new();
    for one in settings {
        let authorities = one.authorities.as_ref().map(|path| {
            let pem = std::fs::read(path).map_err(|error| Problem::new(path.display(), error))?;
            Bundle::from_pem(&pem, path.display())
        });
        let identity = one.identity.as_ref().map(KeyPair::load);
        let mut keep = |problem: Problem| {
            // Several upstreams may name the same files.
            if !problems.0.contains(&problem) {
                problems.0.push(problem);
            }
        };
        let authorities = authorities.transpose().map_err(&mut keep);
        let identity = identity.transpose().map_err(&mut keep);
        let (Ok(authorities), Ok(identity)) = (authorities, identity) else { continue };
        let settings =
            Settings { default_request_timeout: one.timeout, default_max_inflight: 0, ..Settings::default() };
        let identity = identity.map(Arc::new);
        let mut api_service = sidecar_upstream(&one.path, one.url.clone(), authorities, false, identity, &settings);
        let settings = &mut api_service.settings;
        settings.keeps_host = one.keeps_host;
        settings.allowed_request_headers = one.allowed_request_headers.clone();
        settings.long_running = one.long_running.clone();
        upstreams.push(SidecarUpstream { path: one.path.clone(), api_service: Arc::new(api_service) });
    }
    problems.into_result(upstreams)
}
