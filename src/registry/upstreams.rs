//! The servers behind a sidecar (`--upstream`), each as a backend like any other, and the files their trust comes from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::api_service::ApiService;
use super::long_running::LongRunning;
use super::snapshot::Settings;
use super::upstream::{UpstreamUrl, upstream};
use crate::message::AllowedHeaders;
use crate::process::{Drain, Follower, OnFailure, Phase, Problem, Problems, Publisher, Readings};
use crate::tls::{Bundle, KeyPair, PairFiles};

/// One server, and the requests that are its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// It owns this path and all below it; `/` owns all that no other does. No slash at its end otherwise.
    pub path: String,
    /// Where it is.
    pub url: UpstreamUrl,
    /// Who may vouch for it; the system's authorities without.
    pub authorities: Option<PathBuf>,
    /// What it is shown, if anything.
    pub identity: Option<PairFiles>,
    /// Longest time for a request that is not long-running; zero for no limit.
    pub timeout: Duration,
    /// Whether it is asked for the host that the client asked for, rather than by its own name.
    pub keeps_host: bool,
    /// Claims of a reverse proxy in front about the client that it gets (`--allow-request-headers`).
    pub allowed_request_headers: AllowedHeaders,
    /// Which requests have no limit of time, besides what Kubernetes says (`--upstream-long-running`).
    pub long_running: LongRunning,
}

/// An upstream as requests are routed to it.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// As [`UpstreamSettings::path`].
    pub path: String,
    /// The backend. Its name is the path.
    pub api_service: Arc<ApiService>,
}

/// All of them.
pub type Upstreams = Vec<Upstream>;

/// Files that were right when they were opened.
pub struct UpstreamFiles {
    settings: Vec<UpstreamSettings>,
    follower: Follower,
}

impl UpstreamFiles {
    /// Reads what the upstreams name.
    ///
    /// # Errors
    /// All mistakes in these files.
    pub fn open(settings: Vec<UpstreamSettings>) -> Result<(UpstreamFiles, Upstreams), Problems> {
        let files = settings.iter().flat_map(|one| {
            let pair = one.identity.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
            one.authorities.iter().chain(pair).map(PathBuf::as_path)
        });
        // Before the first reading, so that no change falls between.
        let follower = Follower::new(files);
        let upstreams = read(&settings)?;
        Ok((UpstreamFiles { settings, follower }, upstreams))
    }

    /// Publishes what the files say until the process ends; while they cannot be used, what they said last stays.
    pub async fn follow(mut self, publisher: Publisher<Upstreams>, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "a file of an upstream changed and is not usable; what it said last stays";
        let mut readings = Readings::new(UNUSABLE, on_failure);
        loop {
            tokio::select! {
                () = self.follower.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            if let Some(upstreams) = readings.usable(read(&self.settings)) {
                tracing::info!("the files of --upstream-ca-file and --upstream-client-cert-file are read again");
                publisher.publish(Arc::new(upstreams));
            }
        }
    }
}

fn read(settings: &[UpstreamSettings]) -> Result<Upstreams, Problems> {
    let mut problems = Problems::default();
    let mut upstreams = Vec::new();
    for one in settings {
        let authorities = one.authorities.as_ref().map(|path| {
            let pem = std::fs::read(path).map_err(|error| Problem::new(path.display(), error))?;
            Bundle::from_pem(&pem, path.display())
        });
        let identity = one.identity.as_ref().map(KeyPair::load);
        let mut keep = |problem: Problem| {
            // Several upstreams name the same files.
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
        let mut api_service = upstream(&one.path, one.url.clone(), authorities, false, identity, &settings);
        let settings = &mut api_service.settings;
        settings.keeps_host = one.keeps_host;
        settings.allowed_request_headers = one.allowed_request_headers.clone();
        settings.long_running = one.long_running.clone();
        upstreams.push(Upstream { path: one.path.clone(), api_service: Arc::new(api_service) });
    }
    problems.or(upstreams)
}
