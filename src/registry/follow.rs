//! Watches the sources of the registry and publishes snapshots. A change takes effect within a second. Invalid objects
//! change nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::cluster::{ClusterState, Followed, Statuses, Watching};
use super::cross_check::cross_check;
use super::last_good::LastGood;
use super::resolve::Rules;
use super::saved_manifests::SavedManifests;
use super::scan::Scan;
use super::snapshot::{News, Registry, Settings};
use super::source::{Layers, Source, Touched};
use crate::egress::Ways;
use crate::process::{Drain, Follower, Phase, Problem, Problems, Publisher};

/// A registry directory. It was valid when opened, or its last valid state was restored from disk.
pub struct Directory {
    settings: Settings,
    state: LastGood,
    saved: Option<SavedManifests>,
    follower: Follower,
}

impl Directory {
    /// Reads the directory. If it has errors, the saved last valid state is used and the registry holds the errors.
    ///
    /// # Errors
    /// All errors of the directory, if there is no saved state.
    pub fn open(settings: Settings) -> Result<(Directory, Registry), Problems> {
        // Watched before the first read, so that no change is missed between them.
        let follower = Follower::directory(&settings.dir);
        let saved = settings.last_good.clone().map(|place| SavedManifests::new(place, settings.dir.clone()));
        let scan = Scan::of(&settings.dir);
        let texts = saved.is_some().then(|| ScannedTexts::of(&scan));
        let mut state = LastGood::new(settings.clone());
        state.update(scan);
        let problems = state.problems();
        if !problems.0.is_empty() {
            state = saved.as_ref().and_then(|saved| restored(&settings, saved)).ok_or(problems)?;
        }
        // After the checks: a failed start saves nothing.
        if let (Some(saved), Some(texts)) = (&saved, texts) {
            texts.save(saved, &state);
        }
        let mut registry = Registry::of(Layers::only(&state));
        registry.problems = Arc::new(state.problems());
        Ok((Directory { settings, state, saved, follower }, registry))
    }

    /// Reads the valid objects of the directory for `narthex check`.
    pub fn check(settings: Settings) -> (Directory, Registry, Problems) {
        let follower = Follower::directory(&settings.dir);
        let mut state = LastGood::new(settings.clone());
        state.update(Scan::of(&settings.dir));
        let (registry, problems) = (Registry::of(Layers::only(&state)), state.problems());
        (Directory { settings, state, saved: None, follower }, registry, problems)
    }

    /// File and document of the APIService `name`.
    pub fn place_of(&self, name: &str) -> Option<String> {
        self.state.api_service(name).map(|(place, _)| place)
    }

    /// Reports inconsistent objects of the directory, of which `registry` was built. `elsewhere`: whether Services may
    /// also come from another source.
    pub fn cross_check(&self, registry: &Registry, rules: Rules, ways: Option<&Ways>, elsewhere: bool) -> Problems {
        cross_check(&self.state, registry, (rules, ways), elsewhere)
    }

    /// Reads changed files. Returns the objects that may have changed.
    fn update(&mut self) -> Touched {
        let scan = match self.follower.take_changed() {
            Some(mut paths) => {
                paths.extend(self.state.dependent().cloned());
                Scan::some(paths)
            }
            None => Scan::of(&self.settings.dir),
        };
        let texts = self.saved.is_some().then(|| ScannedTexts::of(&scan));
        let touched = self.state.update(scan);
        if let (Some(saved), Some(texts)) = (&self.saved, texts) {
            texts.save(saved, &self.state);
        }
        touched
    }

    /// Reports the Services referenced by the directory to the follower of the kube-apiserver.
    fn tell(&self, cluster: Option<&Followed>, touched: &Touched) {
        let Some(cluster) = cluster else { return };
        for name in &touched.api_services {
            cluster.also(name, self.state.api_service(name).as_ref().map(|(_, one)| one.as_ref()));
        }
    }
}

/// Texts of a scan of the directory, saved for the next start if they are valid.
struct ScannedTexts {
    texts: Vec<(PathBuf, String)>,
    only: Option<BTreeSet<PathBuf>>,
    present: Option<BTreeSet<PathBuf>>,
}

impl ScannedTexts {
    fn of(scan: &Scan) -> ScannedTexts {
        let texts = scan.files.iter().filter_map(|file| Some((file.path.clone(), file.text.as_ref().ok()?.clone())));
        let present = || scan.files.iter().map(|file| file.path.clone()).collect();
        ScannedTexts { texts: texts.collect(), only: scan.only.clone(), present: scan.only.is_none().then(present) }
    }

    /// Saves the files that are valid in `state`, and removes deleted ones.
    fn save(self, saved: &SavedManifests, state: &LastGood) {
        let right = self.texts.into_iter().filter(|(path, _)| state.is_right(path));
        let right = right.map(|(path, text)| (path, Some(text)));
        let gone = self.only.into_iter().flatten().filter(|path| !state.has(path)).map(|path| (path, None));
        saved.save(right.chain(gone).collect(), self.present);
    }
}

/// Restores the saved manifests, then applies the valid files of the directory. `None` if any saved manifest is
/// invalid: a partial registry is not used.
fn restored(settings: &Settings, saved: &SavedManifests) -> Option<LastGood> {
    let mut state = LastGood::new(settings.clone());
    state.update(saved.load()?);
    if !state.is_all_right() {
        return None;
    }
    state.update(Scan::of(&settings.dir));
    Some(state)
}

/// The sources of the registry: a directory, a kube-apiserver, both, or none.
#[derive(Default)]
pub struct Following {
    /// The directory. It takes precedence where both have an object of the same name.
    pub directory: Option<Directory>,
    /// The kube-apiserver, the publisher of its state, and the statuses stored there.
    pub cluster: Option<(Watching, Publisher<ClusterState>, Statuses)>,
}

impl Following {
    /// Publishes a snapshot at each change, until the process ends. Calls `mistake` once for each new problem. Needs a
    /// `LocalSet`.
    pub async fn run(self, publisher: Publisher<Registry>, mut drain: Drain, mut mistake: impl FnMut(&Problem)) {
        let Following { mut directory, cluster } = self;
        let mut cluster = cluster.map(|(cluster, state, statuses)| cluster.begin(state, statuses));
        let mut registry = Registry::clone(&publisher.reader().get());
        // The registry of the directory alone is published already.
        tell_warnings(&registry.warnings());
        let mut problems = (Problems::default(), Problems::default());
        if let Some(directory) = &directory {
            directory.tell(cluster.as_ref(), &directory.state.all());
            problems.0 = directory.state.problems();
            for problem in &problems.0.0 {
                tracing::warn!("registry: {problem}; the last good state is used, as saved in --data-dir");
                mistake(problem);
            }
        }
        loop {
            let mut touched = Touched::default();
            tokio::select! {
                () = changed(directory.as_mut()) => {
                    if let Some(directory) = &mut directory {
                        touched = directory.update();
                        directory.tell(cluster.as_ref(), &touched);
                        problems.0 = directory.state.problems();
                    }
                }
                () = said(cluster.as_ref()) => {}
                () = drain.reached(Phase::Ending) => return,
            }
            let mut complete = true;
            if let Some(cluster) = &mut cluster {
                let taken = cluster.take();
                touched.extend(taken.touched);
                (problems.1, complete) = (taken.problems, taken.complete);
            }
            let news = {
                let known = cluster.as_ref().map(Followed::known);
                let upper = directory.as_ref().map(|directory| &directory.state as &dyn Source);
                // An incomplete source is not used: requests would be refused for objects not listed yet.
                let layers = Layers { upper, lower: known.as_deref().filter(|_| complete) };
                if complete && !registry.complete {
                    touched.extend(layers.all());
                }
                registry.look(&touched, layers)
            };
            let now = Problems(problems.0.0.iter().chain(&problems.1.0).cloned().collect());
            let (same_problems, same_completeness) = (*registry.problems == now, registry.complete == complete);
            if news.is_none() && same_problems && same_completeness {
                continue;
            }
            if !same_problems {
                tell_problems(&registry.problems, &now, &mut mistake);
                registry.problems = Arc::new(now);
            }
            registry.complete = complete;
            registry.version += u64::from(news.is_none() && !same_completeness);
            if let Some(News { only_endpoints, warnings }) = news {
                if only_endpoints {
                    tracing::debug!(version = registry.version, "endpoints changed");
                } else {
                    tracing::info!(api_services = registry.len(), "registry changed");
                }
                tell_warnings(&warnings);
            }
            publisher.publish(Arc::new(registry.clone()));
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

fn tell_problems(before: &Problems, now: &Problems, mistake: &mut impl FnMut(&Problem)) {
    for problem in now.0.iter().filter(|problem| !before.0.contains(problem)) {
        tracing::warn!("registry: {problem}; the last valid version stays in use");
        mistake(problem);
    }
    if now.0.is_empty() {
        tracing::info!("registry: all errors are fixed");
    }
}

fn tell_warnings(warnings: &[Problem]) {
    for warning in warnings {
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
            until(&mut published, |now| now.in_order()[0].group_priority_minimum == 7).await;
            fs::write(&file, local(0)).unwrap();
            until(&mut published, |now| now.problems.0.len() == 1).await;
            assert_eq!(published.get().in_order()[0].group_priority_minimum, 7);
            fs::write(dir.path().join("b.yaml"), api_service("v1.b.io", "groupPriorityMinimum: 1, versionPriority: 1"))
                .unwrap();
            until(&mut published, |now| now.len() == 2).await;
            fs::remove_file(&file).unwrap();
            until(&mut published, |now| now.len() == 1 && now.problems.0.is_empty()).await;
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
