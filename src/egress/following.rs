//! Egress routes that follow their files: the configuration, certificates, credentials.

use std::path::PathBuf;
use std::sync::Arc;

use super::making::{files, make};
use super::{ProxyEnvironment, SelectionSettings, Way, Ways};
use crate::process::{Drain, Follower, OnFailure, Phase, Problems, Publisher};

/// Reads the selections of the configuration file.
type Load = Box<dyn Fn() -> Result<Vec<SelectionSettings>, Problems> + Send>;

/// An egress configuration file that is followed, with the files it references.
pub struct WaysFile {
    path: PathBuf,
    load: Load,
    environment: Option<ProxyEnvironment>,
    expected: &'static [&'static str],
    follower: Follower,
    named: Vec<PathBuf>,
}

impl WaysFile {
    /// Reads the file at `path` with `load`, and the files it references. `environment` is the default for destinations
    /// without a selection. Logs a warning for each of `expected` that is missing although other selections use
    /// proxies.
    ///
    /// # Errors
    /// All problems of all files.
    pub fn open(
        path: PathBuf,
        load: Load,
        environment: Option<ProxyEnvironment>,
        expected: &'static [&'static str],
    ) -> Result<(WaysFile, Ways), Problems> {
        // Before the first read, so that no change is missed in between.
        let mut follower = Follower::new([&path]);
        let settings = load()?;
        let named = files(&settings);
        follower.add(named.clone());
        let ways = ways(&settings, &path.display().to_string(), environment.as_ref())?;
        for warning in ways.lacking(expected) {
            tracing::warn!(file = %path.display(), "{warning}");
        }
        Ok((WaysFile { path, load, environment, expected, follower, named }, ways))
    }

    /// Follows the files until the process ends, and publishes the routes. While a file is unreadable or invalid, the
    /// last good routes stay.
    pub async fn follow(mut self, publisher: Publisher<Ways>, on_failure: OnFailure, mut drain: Drain) {
        let mut told: Option<Problems> = None;
        let file = self.path.display().to_string();
        loop {
            tokio::select! {
                () = self.follower.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            let before = publisher.reader().get();
            match self.read_again() {
                Ok(ways) => {
                    let ways = ways.kept_from(&before);
                    if told.take().is_some() {
                        on_failure(&Problems::default());
                    }
                    // Without a change nothing is published.
                    if ways != *before {
                        tracing::info!(file, %ways, "egress selections reloaded");
                        self.tell_changes(&file, &before, &ways);
                        publisher.publish(Arc::new(ways));
                    }
                }
                Err(problems) if told.as_ref() != Some(&problems) => {
                    problems.log("egress selections changed but are invalid; the last good ones stay in use");
                    on_failure(&problems);
                    told = Some(problems);
                }
                Err(_) => {}
            }
        }
    }

    /// Logs removed and newly missing selections: either may be a mistake that makes calls bypass their proxy.
    fn tell_changes(&self, file: &str, before: &Ways, now: &Ways) {
        for selection in now.gone_since(before) {
            let goes = match now.of(selection) {
                None => "nowhere",
                Some(Way::Direct) => "directly",
                Some(Way::Through(_)) => "as the environment says",
            };
            tracing::warn!(file, selection, "egress selection removed; its traffic now goes {goes}");
        }
        let known = before.lacking(self.expected);
        for warning in now.lacking(self.expected).iter().filter(|warning| !known.contains(warning)) {
            tracing::warn!(file, "{warning}");
        }
    }

    fn read_again(&mut self) -> Result<Ways, Problems> {
        let settings = (self.load)()?;
        let mut now = files(&settings);
        now.retain(|file| !self.named.contains(file));
        self.follower.add(now.clone());
        self.named.append(&mut now);
        ways(&settings, &self.path.display().to_string(), self.environment.as_ref())
    }
}

impl Ways {
    /// Routes without a configuration file.
    ///
    /// # Errors
    /// TLS to the environment's proxy cannot be configured.
    pub fn of_environment(environment: Option<&ProxyEnvironment>) -> Result<Ways, Problems> {
        ways(&[], "", environment)
    }
}

fn ways(settings: &[SelectionSettings], place: &str, environment: Option<&ProxyEnvironment>) -> Result<Ways, Problems> {
    let otherwise =
        |secure| environment.map(|it| Way::of_environment(it, secure)).transpose().map(Option::unwrap_or_default);
    Ok(Ways::new(make(settings, place)?, otherwise(true)?).with_plain(otherwise(false)?))
}
