//! The directory, followed: a change takes effect within a second, a mistake changes nothing.

use std::sync::Arc;

use super::last_good::LastGood;
use super::scan::Scan;
use super::snapshot::{Registry, Settings};
use crate::process::{Drain, Follower, Phase, Problem, Problems, Publisher};

/// A registry directory that was right when it was opened.
pub struct Directory {
    settings: Settings,
    state: LastGood,
    follower: Follower,
    /// What deserved a second look at the start.
    warnings: Vec<Problem>,
}

impl Directory {
    /// Reads the directory. The error has every mistake in it.
    pub fn open(settings: Settings) -> Result<(Directory, Registry), Problems> {
        // Before the first reading, so that no change falls between.
        let follower = Follower::directory(&settings.dir);
        let mut state = LastGood::new(settings.clone());
        let mut registry = state.update(Scan::of(&settings.dir));
        let registry = std::mem::take(&mut registry.problems).or(registry)?;
        Ok((Directory { settings, state, follower, warnings: registry.warnings.clone() }, registry))
    }

    /// Publishes what changes until the process ends. `mistake` hears of each new problem once.
    pub async fn follow(mut self, publisher: Publisher<Registry>, mut drain: Drain, mut mistake: impl FnMut(&Problem)) {
        warn_of_new(&self.warnings, &[]);
        let mut known = (self.state.version, Problems::default());
        loop {
            tokio::select! {
                () = self.follower.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            let registry = self.state.update(Scan::of(&self.settings.dir));
            for problem in registry.problems.0.iter().filter(|problem| !known.1.0.contains(problem)) {
                tracing::warn!("registry: {problem}; what was right before stays");
                mistake(problem);
            }
            if registry.problems.0.is_empty() && !known.1.0.is_empty() {
                tracing::info!("registry: all mistakes are mended");
            }
            if registry.version != known.0 {
                tracing::info!(api_services = registry.api_services.len(), "registry changed");
            }
            warn_of_new(&registry.warnings, &self.warnings);
            self.warnings.clone_from(&registry.warnings);
            known = (registry.version, registry.problems.clone());
            publisher.publish(Arc::new(registry));
        }
    }
}

fn warn_of_new(warnings: &[Problem], known: &[Problem]) {
    for warning in warnings.iter().filter(|warning| !known.contains(warning)) {
        tracing::warn!("registry: {warning}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::process::Published;
    use crate::registry::snapshot::tests::api_service;

    async fn until(published: &mut Published<Registry>, wanted: impl Fn(&Registry) -> bool) {
        let change = async {
            while !wanted(&published.get()) {
                published.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), change).await.expect("the change is published");
    }

    #[tokio::test]
    async fn changes_mistakes_and_their_mending_are_published() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let local =
            |priority: u32| api_service("v1.a.io", &format!("groupPriorityMinimum: {priority}, versionPriority: 1"));
        fs::write(&file, local(1)).unwrap();
        let (directory, registry) =
            Directory::open(Settings { dir: dir.path().to_owned(), ..Settings::default() }).unwrap();
        let (publisher, mut published) = Published::new(registry);
        let (drainer, drain) = Drain::new();
        let mut mistakes = 0;
        let scenario = async {
            fs::write(&file, local(7)).unwrap();
            until(&mut published, |now| now.api_services[0].group_priority_minimum == 7).await;
            fs::write(&file, local(0)).unwrap();
            until(&mut published, |now| now.problems.0.len() == 1).await;
            assert_eq!(published.get().api_services[0].group_priority_minimum, 7);
            fs::write(dir.path().join("b.yaml"), api_service("v1.b.io", "groupPriorityMinimum: 1, versionPriority: 1"))
                .unwrap();
            until(&mut published, |now| now.api_services.len() == 2).await;
            fs::remove_file(&file).unwrap();
            until(&mut published, |now| now.api_services.len() == 1 && now.problems.0.is_empty()).await;
            drainer.advance(Phase::Ending);
        };
        tokio::join!(directory.follow(publisher, drain, |_| mistakes += 1), scenario);
        assert_eq!(mistakes, 1);
    }

    #[test]
    fn a_wrong_start_says_all() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yaml"] {
            fs::write(dir.path().join(name), "kind: Pod\napiVersion: v1\nmetadata: {name: x}\n").unwrap();
        }
        let settings = Settings { dir: dir.path().to_owned(), ..Settings::default() };
        let problems = Directory::open(settings.clone()).err().unwrap();
        assert_eq!(problems.0.len(), 2);
        assert_eq!(crate::registry::load(&settings).err().unwrap(), problems);
    }
}
