//! Watches the sources of the registry and publishes snapshots. A change takes effect within a second. Invalid objects
//! change nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::cluster::{ApiServiceStatuses, ClusterClient, ClusterFollower, ClusterState};
use super::directory::cross_check::cross_check;
use super::directory::last_good::LastGood;
use super::directory::saved_manifests::SavedManifests;
use super::directory::scan::DirectoryScan;
use super::layered_sources::{DirtySet, LayeredSources, RegistrySource};
use super::resolve::ResolveRules;
use super::settings::Settings;
use super::snapshot::{Registry, SnapshotUpdate};
use crate::egress::EgressRoutes;
use crate::process::{Drain, FileWatcher, Problem, Problems, Publisher, ShutdownPhase};

/// A registry directory. It was valid when opened, or its last valid state was restored from disk.
pub struct RegistryDirectory {
    settings: Settings,
    state: LastGood,
    saved: Option<SavedManifests>,
    follower: FileWatcher,
}

impl RegistryDirectory {
    /// Reads the directory. If it has errors, the saved last valid state is used and the registry holds the errors.
    ///
    /// # Errors
    /// All errors of the directory, if there is no saved state.
    pub fn open(settings: Settings) -> Result<(RegistryDirectory, Registry), Problems> {
        // Watched before the first read, so that no change is missed between them.
        let follower = FileWatcher::for_directory(&settings.dir);
        let saved = settings.last_good.clone().map(|path| SavedManifests::new(path, settings.dir.clone()));
        let scan = DirectoryScan::read_directory(&settings.dir);
        let texts = saved.is_some().then(|| ScannedTexts::new(&scan));
        let mut state = LastGood::new(settings.clone());
        state.update(scan);
        let problems = state.problems();
        if !problems.0.is_empty() {
            state = saved.as_ref().and_then(|saved| restore_saved(&settings, saved)).ok_or(problems)?;
        }
        // After the checks: a failed start saves nothing.
        if let (Some(saved), Some(texts)) = (&saved, texts) {
            texts.save(saved, &state);
        }
        let mut registry = Registry::from_sources(LayeredSources::single(&state));
        registry.problems = Arc::new(state.problems());
        Ok((RegistryDirectory { settings, state, saved, follower }, registry))
    }

    /// Reads the valid objects of the directory for `narthex check`.
    pub fn check(settings: Settings) -> (RegistryDirectory, Registry, Problems) {
        let follower = FileWatcher::for_directory(&settings.dir);
        let mut state = LastGood::new(settings.clone());
        state.update(DirectoryScan::read_directory(&settings.dir));
        let (registry, problems) = (Registry::from_sources(LayeredSources::single(&state)), state.problems());
        (RegistryDirectory { settings, state, saved: None, follower }, registry, problems)
    }

    /// File and document of the APIService `name`.
    pub fn location_of(&self, name: &str) -> Option<String> {
        self.state.api_service(name).map(|(location, _)| location)
    }

    /// Reports inconsistent objects of the directory, of which `registry` was built. `elsewhere`: whether Services may
    /// also come from another source.
    pub fn cross_check(
        &self,
        registry: &Registry,
        rules: ResolveRules,
        routes: Option<&EgressRoutes>,
        elsewhere: bool,
    ) -> Problems {
        cross_check(&self.state, registry, (rules, routes), elsewhere)
    }

    /// Reads changed files. Returns the objects that may have changed.
    fn update(&mut self) -> DirtySet {
        let scan = match self.follower.take_changed_paths() {
            Some(mut paths) => {
                paths.extend(self.state.files_with_references().cloned());
                DirectoryScan::read_paths(paths)
            }
            None => DirectoryScan::read_directory(&self.settings.dir),
        };
        let texts = self.saved.is_some().then(|| ScannedTexts::new(&scan));
        let touched = self.state.update(scan);
        if let (Some(saved), Some(texts)) = (&self.saved, texts) {
            texts.save(saved, &self.state);
        }
        touched
    }

    /// Reports the Services referenced by the directory to the follower of the kube-apiserver.
    fn report_references(&self, cluster: Option<&ClusterFollower>, touched: &DirtySet) {
        let Some(cluster) = cluster else { return };
        for name in &touched.api_services {
            cluster.set_directory_reference(name, self.state.api_service(name).as_ref().map(|(_, one)| one.as_ref()));
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
    fn new(scan: &DirectoryScan) -> ScannedTexts {
        let texts = scan.files.iter().filter_map(|file| Some((file.path.clone(), file.text.as_ref().ok()?.clone())));
        let present = || scan.files.iter().map(|file| file.path.clone()).collect();
        ScannedTexts { texts: texts.collect(), only: scan.only.clone(), present: scan.only.is_none().then(present) }
    }

    /// Saves the files that are valid in `state`, and removes deleted ones.
    fn save(self, saved: &SavedManifests, state: &LastGood) {
        let right = self.texts.into_iter().filter(|(path, _)| state.is_file_valid(path));
        let right = right.map(|(path, text)| (path, Some(text)));
        let gone = self.only.into_iter().flatten().filter(|path| !state.contains_file(path)).map(|path| (path, None));
        saved.save(right.chain(gone).collect(), self.present);
    }
}

/// Restores the saved manifests, then applies the valid files of the directory. `None` if any saved manifest is
/// invalid: a partial registry is not used.
fn restore_saved(settings: &Settings, saved: &SavedManifests) -> Option<LastGood> {
    let mut state = LastGood::new(settings.clone());
    state.update(saved.load()?);
    if !state.is_valid() {
        return None;
    }
    state.update(DirectoryScan::read_directory(&settings.dir));
    Some(state)
}

/// The sources of the registry: a directory, a kube-apiserver, both, or none.
#[derive(Default)]
pub struct RegistryFollower {
    /// The directory. It takes precedence where both have an object of the same name.
    pub directory: Option<RegistryDirectory>,
    /// The kube-apiserver, the publisher of its state, and the statuses stored there.
    pub cluster: Option<(ClusterClient, Publisher<ClusterState>, ApiServiceStatuses)>,
}

impl RegistryFollower {
    /// Publishes a snapshot at each change, until the process ends. Calls `mistake` once for each new problem. Needs a
    /// `LocalSet`.
    pub async fn run(self, publisher: Publisher<Registry>, mut drain: Drain, mut mistake: impl FnMut(&Problem)) {
        let RegistryFollower { mut directory, cluster } = self;
        let mut cluster = cluster.map(|(cluster, state, statuses)| cluster.start(state, statuses));
        let mut registry = Registry::clone(&publisher.reader().get());
        // The registry of the directory alone is published already.
        log_warnings(&registry.warnings());
        let mut problems = (Problems::default(), Problems::default());
        if let Some(directory) = &directory {
            directory.report_references(cluster.as_ref(), &directory.state.all_names());
            problems.0 = directory.state.problems();
            for problem in &problems.0.0 {
                tracing::warn!("registry: {problem}; the last good state is used, as saved in --data-dir");
                mistake(problem);
            }
        }
        loop {
            let mut touched = DirtySet::default();
            tokio::select! {
                () = directory_changed(directory.as_mut()) => {
                    if let Some(directory) = &mut directory {
                        touched = directory.update();
                        directory.report_references(cluster.as_ref(), &touched);
                        problems.0 = directory.state.problems();
                    }
                }
                () = cluster_changed(cluster.as_ref()) => {}
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            }
            let mut complete = true;
            if let Some(cluster) = &mut cluster {
                let taken = cluster.take_update();
                touched.extend(taken.dirty);
                (problems.1, complete) = (taken.problems, taken.complete);
            }
            let news = {
                let cluster_store = cluster.as_ref().map(ClusterFollower::store);
                let upper = directory.as_ref().map(|directory| &directory.state as &dyn RegistrySource);
                // An incomplete source is not used: requests would be refused for objects not listed yet.
                let layers = LayeredSources { upper, lower: cluster_store.as_deref().filter(|_| complete) };
                if complete && !registry.complete {
                    touched.extend(layers.all_names());
                }
                registry.update(&touched, layers)
            };
            let now = Problems(problems.0.0.iter().chain(&problems.1.0).cloned().collect());
            let (same_problems, same_completeness) = (*registry.problems == now, registry.complete == complete);
            if news.is_none() && same_problems && same_completeness {
                continue;
            }
            if !same_problems {
                log_problems(&registry.problems, &now, &mut mistake);
                registry.problems = Arc::new(now);
            }
            registry.complete = complete;
            registry.version += u64::from(news.is_none() && !same_completeness);
            if let Some(SnapshotUpdate { only_endpoints, new_warnings: warnings }) = news {
                if only_endpoints {
                    tracing::debug!(version = registry.version, "endpoints changed");
                } else {
                    tracing::info!(api_services = registry.len(), "registry changed");
                }
                log_warnings(&warnings);
            }
            publisher.publish(Arc::new(registry.clone()));
        }
    }
}

async fn directory_changed(directory: Option<&mut RegistryDirectory>) {
    match directory {
        Some(directory) => directory.follower.changed().await,
        None => std::future::pending().await,
    }
}

async fn cluster_changed(cluster: Option<&ClusterFollower>) {
    match cluster {
        Some(cluster) => cluster.changed().await,
        None => std::future::pending().await,
    }
}

fn log_problems(before: &Problems, now: &Problems, mistake: &mut impl FnMut(&Problem)) {
    for problem in now.0.iter().filter(|problem| !before.0.contains(problem)) {
        tracing::warn!("registry: {problem}; the last valid version stays in use");
        mistake(problem);
    }
    if now.0.is_empty() {
        tracing::info!("registry: all errors are fixed");
    }
}

fn log_warnings(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!(help = warning.help_link(), "registry: {warning}");
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
    async fn registry_directory_changes_and_errors_published() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let local =
            |priority: u32| api_service("v1.a.io", &format!("groupPriorityMinimum: {priority}, versionPriority: 1"));
        fs::write(&file, local(1)).unwrap();
        let (directory, registry) =
            RegistryDirectory::open(Settings { dir: dir.path().to_owned(), ..Settings::default() }).unwrap();
        let (publisher, mut published) = Published::new(registry);
        let (drainer, drain) = Drain::new();
        let mut mistakes = 0;
        let scenario = async {
            fs::write(&file, local(7)).unwrap();
            until(&mut published, |now| now.sorted_api_services()[0].group_priority_minimum == 7).await;
            fs::write(&file, local(0)).unwrap();
            until(&mut published, |now| now.problems.0.len() == 1).await;
            assert_eq!(published.get().sorted_api_services()[0].group_priority_minimum, 7);
            fs::write(dir.path().join("b.yaml"), api_service("v1.b.io", "groupPriorityMinimum: 1, versionPriority: 1"))
                .unwrap();
            until(&mut published, |now| now.len() == 2).await;
            fs::remove_file(&file).unwrap();
            until(&mut published, |now| now.len() == 1 && now.problems.0.is_empty()).await;
            drainer.advance(ShutdownPhase::Ending);
        };
        let following = RegistryFollower { directory: Some(directory), cluster: None };
        tokio::join!(following.run(publisher, drain, |_| mistakes += 1), scenario);
        assert_eq!(mistakes, 1);
    }

    #[test]
    fn registry_directory_invalid_at_start_reports_all_errors() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yaml"] {
            fs::write(dir.path().join(name), "kind: Pod\napiVersion: v1\nmetadata: {name: x}\n").unwrap();
        }
        let settings = Settings { dir: dir.path().to_owned(), ..Settings::default() };
        let problems = RegistryDirectory::open(settings.clone()).err().unwrap();
        assert_eq!(problems.0.len(), 2);
        assert_eq!(crate::registry::load_directory(&settings).err().unwrap(), problems);
    }
}
