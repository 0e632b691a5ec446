//! The sources of the registry, followed into one snapshot: a change takes effect within a second, a mistake changes
//! nothing.

use std::sync::Arc;

use super::cluster::{ClusterState, Followed, Statuses, Watching};
use super::last_good::LastGood;
use super::scan::Scan;
use super::snapshot::{Contents, Registry, Settings, service_key};
use crate::process::{Drain, Follower, Phase, Problem, Problems, Publisher};

/// A registry directory that was right when it was opened.
pub struct Directory {
    settings: Settings,
    state: LastGood,
    follower: Follower,
}

impl Directory {
    /// Reads the directory. The error has every mistake in it.
    pub fn open(settings: Settings) -> Result<(Directory, Registry), Problems> {
        // Before the first reading, so that no change falls between.
        let follower = Follower::directory(&settings.dir);
        let mut state = LastGood::new(settings.clone());
        let mut registry = state.update(Scan::of(&settings.dir));
        let registry = std::mem::take(&mut registry.problems).or(registry)?;
        Ok((Directory { settings, state, follower }, registry))
    }
}

/// Where the registry comes from: a directory, a kube-apiserver, both, or nowhere.
#[derive(Default)]
pub struct Following {
    /// Counts where both have an object of the same name.
    pub directory: Option<Directory>,
    /// The kube-apiserver, whom to tell how following it goes, and what stands there as statuses.
    pub cluster: Option<(Watching, Publisher<ClusterState>, Statuses)>,
}

impl Following {
    /// Publishes what changes until the process ends. `mistake` hears of each new problem once. Needs a `LocalSet`.
    pub async fn run(self, publisher: Publisher<Registry>, mut drain: Drain, mut mistake: impl FnMut(&Problem)) {
        let Following { mut directory, cluster } = self;
        let mut cluster = cluster.map(|(cluster, state, statuses)| cluster.begin(state, statuses));
        let mut telling = Telling::of(&publisher.reader().get());
        // What a directory says alone is published already.
        let mut problems = (Problems::default(), Problems::default());
        loop {
            let mut whole = true;
            tokio::select! {
                () = changed(directory.as_mut()) => {
                    if let Some(directory) = &mut directory {
                        problems.0 = directory.state.update(Scan::of(&directory.settings.dir)).problems;
                    }
                }
                () = said(cluster.as_ref()) => whole = false,
                () = drain.reached(Phase::Ending) => return,
            }
            // What comes most often is endpoints, and that costs what they are.
            if let (false, Some((theirs, changed))) = (whole, cluster.as_mut().and_then(Followed::take_endpoints)) {
                let changed = changed.into_iter().filter(|((namespace, name), _)| {
                    !directory.as_ref().is_some_and(|directory| directory.state.has_service(namespace, name))
                });
                let changed: Vec<_> =
                    changed.map(|((namespace, name), slices)| (service_key(&namespace, &name), slices)).collect();
                if !changed.is_empty() {
                    let version = directory.as_ref().map_or(0, |directory| directory.state.version) + theirs;
                    let registry = publisher.reader().get().with_endpoints(version, changed);
                    tracing::debug!(version, "endpoints changed");
                    publisher.publish(Arc::new(registry));
                }
                continue;
            }
            let ours = directory.as_ref().map(|directory| directory.state.contents()).unwrap_or_default();
            let mut version = directory.as_ref().map_or(0, |directory| directory.state.version);
            let (contents, hidden, complete) = match &mut cluster {
                None => (ours, Vec::new(), true),
                Some(cluster) => {
                    let taken = cluster.take(ours.api_services.iter().map(|(_, one)| one.as_ref()));
                    problems.1 = taken.problems;
                    version += taken.version;
                    // Half a picture would refuse what is only not known yet.
                    let theirs = if taken.complete { taken.contents } else { Contents::default() };
                    let (contents, hidden) = ours.over(theirs);
                    (contents, hidden, taken.complete)
                }
            };
            let now = Problems(problems.0.0.iter().chain(&problems.1.0).cloned().collect());
            let before = publisher.reader().get();
            if (version, &now, complete) == (before.version, &before.problems, before.complete) {
                continue;
            }
            let mut registry = Registry::of(contents);
            registry.is_version(version);
            (registry.problems, registry.complete) = (now, complete);
            Arc::make_mut(&mut registry.warnings).extend(hidden.into_iter().map(|place| {
                Problem::new(place, "the registry directory has one of the same name, which is used instead")
            }));
            telling.tell(&registry, &mut mistake);
            publisher.publish(Arc::new(registry));
        }
    }
}

async fn changed(directory: Option<&mut Directory>) {
    match directory {
        Some(directory) => directory.follower.changed().await,
        None => std::future::pending().await,
    }
}

async fn said(cluster: Option<&Followed>) {
    match cluster {
        Some(cluster) => cluster.changed().await,
        None => std::future::pending().await,
    }
}

/// What the log was told.
struct Telling {
    problems: Problems,
    warnings: Arc<Vec<Problem>>,
    version: u64,
}

impl Telling {
    fn of(registry: &Registry) -> Telling {
        warn_of_new(&registry.warnings, &[]);
        Telling { problems: Problems::default(), warnings: registry.warnings.clone(), version: registry.version }
    }

    fn tell(&mut self, registry: &Registry, mistake: &mut impl FnMut(&Problem)) {
        for problem in registry.problems.0.iter().filter(|problem| !self.problems.0.contains(problem)) {
            tracing::warn!("registry: {problem}; what was right before stays");
            mistake(problem);
        }
        if registry.problems.0.is_empty() && !self.problems.0.is_empty() {
            tracing::info!("registry: all mistakes are mended");
        }
        if registry.version != self.version {
            tracing::info!(api_services = registry.api_services.len(), "registry changed");
        }
        warn_of_new(&registry.warnings, &self.warnings);
        self.warnings.clone_from(&registry.warnings);
        (self.problems, self.version) = (registry.problems.clone(), registry.version);
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
        let following = Following { directory: Some(directory), cluster: None };
        tokio::join!(following.run(publisher, drain, |_| mistakes += 1), scenario);
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
