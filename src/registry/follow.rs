//! The sources of the registry, followed into one snapshot: a change takes effect within a second, a mistake changes
//! nothing.

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

/// A registry directory that was right when it was opened, or before, as the last good state saved of it says.
pub struct Directory {
    settings: Settings,
    state: LastGood,
    saved: Option<SavedManifests>,
    follower: Follower,
}

impl Directory {
    /// Reads the directory. Where something in it is wrong, the last good state counts that was saved of it, and the
    /// registry has the mistakes; without one the error has every mistake.
    pub fn open(settings: Settings) -> Result<(Directory, Registry), Problems> {
        // Before the first reading, so that no change falls between.
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
        // Only now: of a start that fails nothing is saved.
        if let (Some(saved), Some(texts)) = (&saved, texts) {
            texts.save(saved, &state);
        }
        let mut registry = Registry::of(Layers::only(&state));
        registry.problems = Arc::new(state.problems());
        Ok((Directory { settings, state, saved, follower }, registry))
    }

    /// Reads the directory for `narthex check`: what is right in it, whatever else is wrong.
    pub fn check(settings: Settings) -> (Directory, Registry, Problems) {
        let follower = Follower::directory(&settings.dir);
        let mut state = LastGood::new(settings.clone());
        state.update(Scan::of(&settings.dir));
        let (registry, problems) = (Registry::of(Layers::only(&state)), state.problems());
        (Directory { settings, state, saved: None, follower }, registry, problems)
    }

    /// Where the APIService `name` stands: file and document.
    pub fn place_of(&self, name: &str) -> Option<String> {
        self.state.api_service(name).map(|(place, _)| place)
    }

    /// Which objects do not belong together, now that `registry` was made of the directory; `elsewhere` says whether
    /// Services may come from another source as well.
    pub fn cross_check(&self, registry: &Registry, rules: Rules, ways: Option<&Ways>, elsewhere: bool) -> Problems {
        cross_check(&self.state, registry, (rules, ways), elsewhere)
    }

    /// Reads what changed; says which objects may be others.
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

    /// Tells who follows a kube-apiserver which Services are named here.
    fn tell(&self, cluster: Option<&Followed>, touched: &Touched) {
        let Some(cluster) = cluster else { return };
        for name in &touched.api_services {
            cluster.also(name, self.state.api_service(name).as_ref().map(|(_, one)| one.as_ref()));
        }
    }
}

/// What a look at the directory read, to be saved if it is right.
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

    /// Saves the files that are right in `state`, and forgets those that are gone.
    fn save(self, saved: &SavedManifests, state: &LastGood) {
        let right = self.texts.into_iter().filter(|(path, _)| state.is_right(path));
        let right = right.map(|(path, text)| (path, Some(text)));
        let gone = self.only.into_iter().flatten().filter(|path| !state.has(path)).map(|path| (path, None));
        saved.save(right.chain(gone).collect(), self.present);
    }
}

/// The state of a process that read the saved manifests, which the directory replaces where it is right. Nothing where
/// not everything saved is right any more: half of a registry is none.
fn restored(settings: &Settings, saved: &SavedManifests) -> Option<LastGood> {
    let mut state = LastGood::new(settings.clone());
    state.update(saved.load()?);
    if !state.is_all_right() {
        return None;
    }
    state.update(Scan::of(&settings.dir));
    Some(state)
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
        let mut registry = Registry::clone(&publisher.reader().get());
        // What the directory says alone is published already.
        tell_warnings(&registry.warnings());
        let mut problems = (Problems::default(), Problems::default());
        if let Some(directory) = &directory {
            directory.tell(cluster.as_ref(), &directory.state.all());
            problems.0 = directory.state.problems();
            for problem in &problems.0.0 {
                tracing::warn!("registry: {problem}; the last good state is served, as saved in --data-dir");
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
                // Half a picture would refuse what is only not known yet.
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
        tracing::warn!("registry: {problem}; what was right before stays");
        mistake(problem);
    }
    if now.0.is_empty() {
        tracing::info!("registry: all mistakes are mended");
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
