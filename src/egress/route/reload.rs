//! Egress routes that follow their files: the configuration, certificates, credentials.

use std::path::PathBuf;
use std::sync::Arc;

use crate::egress::route::build::{build_routes, referenced_files};
use crate::egress::{EgressRoute, EgressRoutes, EgressSelectionSettings, ProxyEnvironment};
use crate::process::{Drain, FileWatcher, OnFailure, Problems, Publisher, ReloadReporter};

/// Reads the selections of the configuration file.
type LoadSelections = Box<dyn Fn() -> Result<Vec<EgressSelectionSettings>, Problems> + Send>;

/// An egress configuration file that is followed, with the files it references.
pub struct EgressConfigFile {
    path: PathBuf,
    load: LoadSelections,
    environment: Option<ProxyEnvironment>,
    expected_selections: &'static [&'static str],
    follower: FileWatcher,
    referenced_files: Vec<PathBuf>,
}

impl EgressConfigFile {
    /// Reads the file at `path` with `load`, and the files it references. `environment` is the default for destinations
    /// without a selection. Logs a warning for each of `expected` that is missing although other selections use
    /// proxies.
    ///
    /// # Errors
    /// All problems of all files.
    pub fn open(
        path: PathBuf,
        load: LoadSelections,
        environment: Option<ProxyEnvironment>,
        expected: &'static [&'static str],
    ) -> Result<(EgressConfigFile, EgressRoutes), Problems> {
        // Before the first read, so that no change is missed in between.
        let mut follower = FileWatcher::new([&path]);
        let settings = load()?;
        let named = referenced_files(&settings);
        follower.add(named.clone());
        let routes = build_egress_routes(&settings, &path.display().to_string(), environment.as_ref())?;
        for warning in routes.missing_selection_warnings(expected) {
            tracing::warn!(file = %path.display(), "{warning}");
        }
        Ok((
            EgressConfigFile {
                path,
                load,
                environment,
                expected_selections: expected,
                follower,
                referenced_files: named,
            },
            routes,
        ))
    }

    /// Follows the files until the process ends, and publishes the routes. While a file is unreadable or invalid, the
    /// last good routes stay.
    pub async fn follow(mut self, publisher: Publisher<EgressRoutes>, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "egress selections changed but are invalid; the last good ones stay in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        let file = self.path.display().to_string();
        while self.follower.changed_before_end(&mut drain).await {
            let before = publisher.reader().get();
            let Some(routes) = reporter.report(self.reload()) else { continue };
            let routes = routes.reuse_unchanged(&before);
            // Without a change nothing is published.
            if routes != *before {
                let routes = Arc::new(routes);
                publisher.publish(routes.clone());
                tracing::info!(file, routes = %routes, "egress selections reloaded");
                self.log_changes(&file, &before, &routes);
            }
        }
    }

    /// Logs removed and newly missing selections: either may be a mistake that makes calls bypass their proxy.
    fn log_changes(&self, file: &str, before: &EgressRoutes, now: &EgressRoutes) {
        for selection in now.removed_since(before) {
            let goes = match now.get(selection) {
                None => "nowhere",
                Some(EgressRoute::Direct) => "directly",
                Some(EgressRoute::Proxied(_)) => "as the environment says",
            };
            tracing::warn!(file, selection, "egress selection removed; its traffic now goes {goes}");
        }
        let earlier = before.missing_selection_warnings(self.expected_selections);
        for warning in
            now.missing_selection_warnings(self.expected_selections).iter().filter(|warning| !earlier.contains(warning))
        {
            tracing::warn!(file, "{warning}");
        }
    }

    fn reload(&mut self) -> Result<EgressRoutes, Problems> {
        let settings = (self.load)()?;
        let mut now = referenced_files(&settings);
        now.retain(|file| !self.referenced_files.contains(file));
        self.follower.add(now.clone());
        self.referenced_files.append(&mut now);
        build_egress_routes(&settings, &self.path.display().to_string(), self.environment.as_ref())
    }
}

impl EgressRoutes {
    /// Routes without a configuration file.
    ///
    /// # Errors
    /// TLS to the environment's proxy cannot be configured.
    pub fn from_environment(environment: Option<&ProxyEnvironment>) -> Result<EgressRoutes, Problems> {
        build_egress_routes(&[], "", environment)
    }
}

fn build_egress_routes(
    settings: &[EgressSelectionSettings],
    location: &str,
    environment: Option<&ProxyEnvironment>,
) -> Result<EgressRoutes, Problems> {
    let otherwise = |secure| {
        environment.map(|it| EgressRoute::from_environment(it, secure)).transpose().map(Option::unwrap_or_default)
    };
    Ok(EgressRoutes::new(build_routes(settings, location)?, otherwise(true)?).with_plaintext_default(otherwise(false)?))
}
