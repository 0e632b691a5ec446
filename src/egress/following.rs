//! The ways there are, kept as the files on disk say: the configuration, certificates, credentials.

use std::path::PathBuf;
use std::sync::Arc;

use super::making::{files, make};
use super::{ProxyEnvironment, SelectionSettings, Way, Ways};
use crate::process::{Drain, Follower, OnFailure, Phase, Problems, Publisher};

/// Reads the selections that the configuration file describes.
type Load = Box<dyn Fn() -> Result<Vec<SelectionSettings>, Problems> + Send>;

/// A configuration that was right when it was opened, and the files it named.
pub struct WaysFile {
    path: PathBuf,
    load: Load,
    environment: Option<ProxyEnvironment>,
    expected: &'static [&'static str],
    follower: Follower,
    named: Vec<PathBuf>,
}

impl WaysFile {
    /// Reads the file at `path`, as `load` does, and those it names. `environment` says which way what it has no
    /// selection for goes. Where one of `expected` is not there although others go through proxies, the log warns.
    ///
    /// # Errors
    /// All mistakes in all of them.
    pub fn open(
        path: PathBuf,
        load: Load,
        environment: Option<ProxyEnvironment>,
        expected: &'static [&'static str],
    ) -> Result<(WaysFile, Ways), Problems> {
        // Before the first reading, so that no change falls between.
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

    /// Follows the files until the process ends, and publishes what became of them. While one of them cannot be read,
    /// or holds a mistake, all stays as it was.
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
                    // Equal selections are the same: nothing is to be made anew.
                    if ways != *before {
                        tracing::info!(file, %ways, "egress selections read again");
                        self.tell_changes(&file, &before, &ways);
                        publisher.publish(Arc::new(ways));
                    }
                }
                Err(problems) if told.as_ref() != Some(&problems) => {
                    problems.log("the egress selections changed and are not usable; the last good ones stay");
                    on_failure(&problems);
                    told = Some(problems);
                }
                Err(_) => {}
            }
        }
    }

    /// What went, and what is lacking that was not `before`: either may be a slip that lets calls past their proxy.
    fn tell_changes(&self, file: &str, before: &Ways, now: &Ways) {
        for selection in now.gone_since(before) {
            let goes = match now.of(selection) {
                None => "nowhere",
                Some(Way::Direct) => "directly",
                Some(Way::Through(_)) => "as the environment says",
            };
            tracing::warn!(file, selection, "an egress selection is gone; what was for it goes {goes} from now on");
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
    /// Those there are without a configuration.
    ///
    /// # Errors
    /// When TLS to the environment's proxy cannot be set up.
    pub fn of_environment(environment: Option<&ProxyEnvironment>) -> Result<Ways, Problems> {
        ways(&[], "", environment)
    }
}

fn ways(settings: &[SelectionSettings], place: &str, environment: Option<&ProxyEnvironment>) -> Result<Ways, Problems> {
    let otherwise =
        |secure| environment.map(|it| Way::of_environment(it, secure)).transpose().map(Option::unwrap_or_default);
    Ok(Ways::new(make(settings, place)?, otherwise(true)?).with_plain(otherwise(false)?))
}
