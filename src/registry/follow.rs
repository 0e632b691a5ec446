//! The directory, followed: a change takes effect within a second, a mistake changes nothing.

use std::sync::Arc;
use std::time::Duration;

use super::last_good::LastGood;
use super::scan::{Fingerprint, Scan};
use super::snapshot::{Registry, Settings};
use crate::process::{Drain, Phase, Problem, Problems, Publisher};

/// A registry directory that was right when it was opened.
pub struct Directory {
    settings: Settings,
    state: LastGood,
    read: Fingerprint,
}

/// How often we look. A look lists the directory and reads nothing.
const LOOK: Duration = Duration::from_millis(200);
/// So many looks at most do we wait for a directory that keeps changing.
const PATIENCE: u32 = 3;

impl Directory {
    /// Reads the directory. The error has every mistake in it.
    pub fn open(settings: Settings) -> Result<(Directory, Registry), Problems> {
        let read = Scan::fingerprint(&settings.dir);
        let mut state = LastGood::new(settings.clone());
        let registry = state.update(Scan::of(&settings.dir));
        if !registry.problems.0.is_empty() {
            return Err(registry.problems);
        }
        Ok((Directory { settings, state, read }, registry))
    }

    /// Publishes what changes until the process ends. `mistake` hears of each new problem once.
    pub async fn follow(mut self, publisher: Publisher<Registry>, mut drain: Drain, mut mistake: impl FnMut(&Problem)) {
        let mut known = Registry::default();
        let mut seen = None;
        let mut looks = 0;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = drain.reached(Phase::Ending) => return,
            }
            let now = Scan::fingerprint(&self.settings.dir);
            if now == self.read {
                (seen, looks) = (None, 0);
                continue;
            }
            // Editors truncate and write, and several files may belong together: wait until it rests.
            looks += 1;
            if seen.as_ref() != Some(&now) && looks < PATIENCE {
                seen = Some(now);
                continue;
            }
            (seen, looks) = (None, 0);
            let registry = self.state.update(Scan::of(&self.settings.dir));
            self.read = now;
            for problem in registry.problems.0.iter().filter(|problem| !known.problems.0.contains(problem)) {
                tracing::warn!(place = %problem.place, field = %problem.field, "registry: {}; what was right before stays", problem.message);
                mistake(problem);
            }
            if registry.version != known.version {
                tracing::info!(
                    api_services = registry.api_services.len(),
                    version = registry.version,
                    "registry changed"
                );
            }
            known = registry.clone();
            publisher.publish(Arc::new(registry));
        }
    }
}
