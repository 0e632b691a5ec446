//! Polls every source for its OpenAPI v2 document while clients request the merged one.
//!
//! Few clients do, and the documents are large. Nothing is fetched, kept or merged before the first request, and all of
//! it is dropped after an idle time. Merging runs on a blocking thread.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, spawn_blocking, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use super::merge::Merged;
use super::part::{GroupVersionKind, Part};
use super::serve::{Built, Demand, Version2};
use crate::discovery::{
    All, Bounds, By, Change, Contents, Fetch, FetchError, Keeper, Kept, Known, Outcome, Shelf, Subject, with_last_good,
    within,
};
use crate::kubeapi::version::compare_kube_aware;
use crate::process::{Published, Publisher};

/// Timeout of one fetch. Upstream allows a minute; a client that waits so long is better served without this part.
const TIME: Duration = Duration::from_secs(20);
/// Maximum document of the delegate. That of a kube-apiserver has 2 MiB, and some 40 KiB more for each
/// CustomResourceDefinition.
const MAX_DOCUMENT: usize = 64 << 20;
/// Maximum document of a backend, which may describe more than it is registered for.
const MAX_OF_BACKEND: usize = 16 << 20;
/// Maximum part of one APIService in the merged document.
const MAX_PART: usize = 8 << 20;
/// Maximum of all documents together.
const MAX_MERGED: usize = 128 << 20;
/// Maximum time the first merged document waits for slow sources.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// Idle time after which everything is dropped.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Minimum interval between two merges.
const PAUSE: Duration = Duration::from_secs(1);

/// Kinds in every group and version (`metav1.AddToGroupVersion`), and those of discovery and errors.
const EVERYBODY_S: [&str; 12] = [
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "CreateOptions",
    "DeleteOptions",
    "GetOptions",
    "ListOptions",
    "PatchOptions",
    "Status",
    "UpdateOptions",
    "WatchEvent",
];

/// The aggregation of OpenAPI v2; dropping it ends its tasks.
///
/// Lives on one thread, inside a `LocalSet`.
pub struct Aggregation2<F: Fetch + 'static> {
    inner: Rc<Inner<F>>,
    tasks: [AbortHandle; 2],
}

struct Inner<F: Fetch + 'static> {
    keeper: Keeper<Asking<F>>,
    shelf: Shelf,
    known: RefCell<All>,
    /// Notified when `known` changed.
    changed: Notify,
    recalled: Recalled,
    sources: watch::Sender<Option<Arc<Sources>>>,
}

/// Documents restored from the disk cache, by name of the APIService.
type Recalled = Rc<RefCell<BTreeMap<String, Arc<Part>>>>;

impl<F: Fetch + 'static> Drop for Aggregation2<F> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl<F: Fetch + 'static> Aggregation2<F> {
    /// Starts without APIServices, and idles until the first request. `kept` is the disk cache. Call it inside the
    /// `LocalSet`.
    pub fn start(fetch: F, kept: &Kept) -> (Aggregation2<F>, Version2) {
        let (publisher, built) = Published::new(None);
        let (sources, changes) = watch::channel(None);
        let demand = Arc::<Demand>::default();
        let shelf = kept.shelf("openapi-v2");
        let recalled = Recalled::default();
        let asking = Asking {
            fetch,
            sources: sources.clone(),
            reading: Semaphore::new(1),
            shelf: shelf.clone(),
            recalled: recalled.clone(),
        };
        let keeper = Keeper::new(asking);
        let inner = Inner { keeper, shelf, known: RefCell::default(), changed: Notify::new(), recalled, sources };
        let inner = Rc::new(inner);
        let waking = spawn_local(inner.clone().wake_and_sleep(demand.clone()));
        let merging = spawn_local(merge(changes, publisher));
        let tasks = [waking.abort_handle(), merging.abort_handle()];
        (Aggregation2 { inner, tasks }, Version2 { built, demand })
    }

    /// Replaces the set of APIServices, as `Discovery::follow`.
    pub fn follow(&self, known: Vec<Known>) {
        let mut changes: BTreeMap<String, Option<Known>> = BTreeMap::new();
        changes.extend(self.inner.known.borrow().keys().map(|name| (name.clone(), None)));
        changes.extend(known.into_iter().map(|one| (one.name.clone(), Some(one))));
        self.follow_changes(changes);
    }

    /// As [`Aggregation2::follow`] when only these changed.
    pub fn follow_changes(&self, changes: impl IntoIterator<Item = Change>) {
        let mut known = self.inner.known.borrow_mut();
        for (name, now) in changes {
            // The document of the delegate covers Local APIServices.
            match now.filter(|one| one.by != By::Delegate) {
                Some(one) => drop(known.insert(name, one)),
                None => {
                    if known.remove(&name).is_some() {
                        self.inner.shelf.forget(&name);
                    }
                }
            }
        }
        self.inner.changed.notify_one();
    }

    /// Polls the backend of `apiservice` now, for example when it became available.
    pub fn nudge(&self, apiservice: &str) {
        self.inner.keeper.nudge(apiservice);
    }
}

impl<F: Fetch + 'static> Inner<F> {
    /// Starts polling on the first request, and drops everything after the idle time.
    async fn wake_and_sleep(self: Rc<Self>, demand: Arc<Demand>) {
        loop {
            demand.notify.notified().await;
            let mut asleep_at = Instant::now() + IDLE;
            let mut looked_up = BTreeSet::new();
            self.apply(&mut looked_up).await;
            loop {
                tokio::select! {
                    () = demand.notify.notified() => asleep_at = Instant::now() + IDLE,
                    () = self.changed.notified() => self.apply(&mut looked_up).await,
                    () = sleep_until(asleep_at) => break,
                }
            }
            self.keeper.follow(Vec::new());
            self.recalled.borrow_mut().clear();
            self.sources.send_replace(None);
        }
    }

    /// Polls the registered APIServices. Those not yet `looked_up` are restored from the disk cache first.
    async fn apply(&self, looked_up: &mut BTreeSet<String>) {
        let known: Vec<Known> = self.known.borrow().values().cloned().collect();
        let new: Vec<Known> = known.iter().filter(|one| looked_up.insert(one.name.clone())).cloned().collect();
        let shelf = self.shelf.clone();
        let recalled = spawn_blocking(move || {
            let recall = |one: &Known| {
                let part = Part::read(&shelf.take(one)?, prefix(one).as_deref()).ok()?;
                Some((one.name.clone(), Arc::new(part)))
            };
            new.iter().filter_map(recall).collect::<Vec<_>>()
        });
        let recalled = recalled.await.unwrap_or_default();
        self.recalled.borrow_mut().extend(recalled);
        // The keeper publishes nothing if nothing changed, but the first document waits for a publication.
        self.sources.send_if_modified(|sources| {
            let first = sources.is_none();
            sources.get_or_insert_default();
            first
        });
        self.keeper.follow(known);
    }
}

/// The last documents of all sources, in the order in which they are merged.
#[derive(Default)]
struct Sources(Vec<Source>);

struct Source {
    known: Known,
    content: Content,
}

/// Content of one APIService.
#[derive(Clone, Default)]
struct Content {
    part: Option<Arc<Part>>,
    asked: bool,
    problem: String,
    /// Whether the document is in the disk cache as that of this backend.
    kept: bool,
}

/// Merges whenever a source changed.
async fn merge(mut changes: watch::Receiver<Option<Arc<Sources>>>, publisher: Publisher<Option<Arc<Built>>>) {
    while changes.changed().await.is_ok() {
        let first_until = Instant::now() + FIRST_WAIT;
        let sources = loop {
            let sources = changes.borrow_and_update().clone();
            let complete = sources.as_ref().is_none_or(|all| all.0.iter().all(|source| source.content.asked));
            if complete || publisher.reader().load().is_some() {
                break sources;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep_until(first_until) => break sources,
            }
        };
        let Some(sources) = sources else {
            publisher.publish(Arc::new(None));
            continue;
        };
        match spawn_blocking(move || sources.build()).await {
            Ok(built) => publisher.publish(Arc::new(Some(Arc::new(built)))),
            Err(error) => tracing::error!(%error, "OpenAPI documents could not be merged; this is a bug in narthex"),
        }
        sleep(PAUSE).await;
    }
}

impl Sources {
    fn build(&self) -> Built {
        let claims: BTreeSet<(&str, &str)> = self.0.iter().map(|source| source.known.names()).collect();
        let claimed: BTreeSet<String> = self.0.iter().filter_map(|source| prefix(&source.known)).collect();
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        let mut merged = Merged::default();
        for Source { known, content } in &self.0 {
            if !content.problem.is_empty() {
                problems.insert(known.name.clone(), with_last_good(&content.problem, content.part.is_some()));
            }
            let Some(part) = &content.part else { continue };
            if is_delegate(known) {
                let part = part.keeping(|path| !is_below(&claimed, path));
                merged.take_head(&part);
                merged.add(&part, |_| true);
            } else {
                let own = known.names();
                merged.add(part, |kind: &GroupVersionKind| {
                    let of = (kind.group.as_str(), kind.version.as_str());
                    of == own || EVERYBODY_S.contains(&&*kind.kind) || !claims.contains(&of)
                });
            }
        }
        Built::new(merged.write(), problems)
    }
}

fn is_delegate(known: &Known) -> bool {
    known.by == By::Itself
}

/// Path prefix of a group and version; `None` for the delegate, which has all other paths.
fn prefix(known: &Known) -> Option<String> {
    (!is_delegate(known)).then(|| format!("{}/", known.path()))
}

/// Whether `path` begins with one of `prefixes`. These have three or four segments and end with a slash.
fn is_below(prefixes: &BTreeSet<String>, path: &str) -> bool {
    let ends = path.match_indices('/').skip(2).take(2).map(|(at, _)| &path[..=at]);
    ends.into_iter().any(|prefix| prefixes.contains(prefix))
}

struct Asking<F> {
    fetch: F,
    sources: watch::Sender<Option<Arc<Sources>>>,
    shelf: Shelf,
    recalled: Recalled,
    /// Limits parsing to one document at a time, as each may take much memory.
    reading: Semaphore,
}

/// Validators of a backend's last good response.
#[derive(Clone, Default)]
struct Memory {
    etag: Option<String>,
    /// SHA-256 of the body: not every server sends entity tags.
    digest: Option<Vec<u8>>,
}

struct Heard {
    /// Results by name of the APIService.
    said: Vec<(String, Result<Said, FetchError>)>,
    memory: Memory,
}

#[derive(Clone)]
enum Said {
    /// Not modified.
    Same,
    /// There is no document.
    Nothing,
    Part(Arc<Part>),
}

impl Heard {
    fn of_all(claims: &[Known], said: &Result<Said, FetchError>, memory: Memory) -> Heard {
        Heard { said: claims.iter().map(|claim| (claim.name.clone(), said.clone())).collect(), memory }
    }
}

impl<F: Fetch + 'static> Subject for Asking<F> {
    type Memory = Memory;
    type Content = Content;
    type Heard = Heard;

    async fn ask(&self, claims: &[Known], memory: Memory) -> Heard {
        let before = memory.clone();
        let heard = self.fetch(claims, memory).await;
        heard.unwrap_or_else(|error| Heard::of_all(claims, &Err(error), before))
    }

    fn hear(&self, heard: Heard, claims: &[Known], memory: &mut Memory, contents: &mut Contents<Content>) -> Outcome {
        let mut outcome = Outcome { well: true, changed: false };
        *memory = heard.memory;
        for (name, said) in heard.said {
            let Some(claim) = claims.iter().find(|claim| claim.name == name) else { continue };
            let said = said.and_then(|said| match &said {
                Said::Part(part) if part.size() + size_of_others(contents, &name) > MAX_MERGED => {
                    let most = MAX_MERGED >> 20;
                    Err(FetchError::new(format!("left out: all documents together are larger than {most} MiB")))
                }
                _ => Ok(said),
            });
            let content = contents.entry(name.clone()).or_default();
            outcome.changed |= !content.asked;
            content.asked = true;
            let (mut problem, mut seen_by_probe) = (String::new(), false);
            let heard = said.is_ok();
            let part = match said {
                Ok(Said::Same) => content.part.clone(),
                Ok(Said::Nothing) => None,
                Ok(Said::Part(part)) => Some(part),
                Err(error) => {
                    outcome.well = false;
                    (problem, seen_by_probe) = (error.text, error.seen_by_probe);
                    content.part.clone()
                }
            };
            // A failure of the probe, too, is logged with the condition; one of the delegate by its discovery.
            if content.problem.is_empty() && !problem.is_empty() && !seen_by_probe {
                let kept = if content.part.is_some() { "; last good answer served" } else { "" };
                tracing::warn!(apiservice = name, problem, "OpenAPI v2 of the backend failed{kept}");
            }
            if part != content.part || (heard && !content.kept) {
                content.kept = true;
                match part.clone() {
                    Some(part) => self.shelf.keep(claim, move || Some(part.write(&part.head).into_bytes())),
                    None => self.shelf.forget(&name),
                }
            }
            outcome.changed |= part != content.part || problem != content.problem;
            content.part = part;
            content.problem = problem;
        }
        outcome
    }

    fn recall(&self, known: &Known) -> Option<oneshot::Receiver<Content>> {
        let part = self.recalled.borrow_mut().remove(&known.name)?;
        let (gives, comes) = oneshot::channel();
        // The content is available at once; the receiver exists.
        let _ = gives.send(Content { part: Some(part), kept: true, ..Content::default() });
        Some(comes)
    }

    fn moves(&self, _: &str, content: &mut Content) {
        content.kept = false;
    }

    fn publish(&self, known: &All, contents: &Contents<Content>, _: &BTreeSet<String>) {
        let known: Vec<Known> = known.values().cloned().collect();
        let known = &*known;
        let content = |one: &Known| contents.get(&one.name).cloned().unwrap_or_default();
        let mut sources: Vec<Source> =
            known.iter().map(|one| Source { known: one.clone(), content: content(one) }).collect();
        let mut priorities: BTreeMap<&str, i32> = BTreeMap::new();
        for one in known {
            let priority = priorities.entry(&one.group).or_insert(one.group_priority_minimum);
            *priority = one.group_priority_minimum.max(*priority);
        }
        // As in discovery. Upstream means to compare the priorities of versions, too, but compares one with itself.
        sources.sort_by(|Source { known: a, .. }, Source { known: b, .. }| {
            let rank = |one: &Known| (!is_delegate(one), Reverse(priorities.get(one.group.as_str()).copied()));
            rank(a)
                .cmp(&rank(b))
                .then_with(|| a.group.cmp(&b.group))
                .then_with(|| b.version_priority.cmp(&a.version_priority))
                .then_with(|| compare_kube_aware(&b.version, &a.version))
        });
        let sources = Some(Arc::new(Sources(sources)));
        self.sources.send_if_modified(|current| {
            let wanted = current.is_some();
            if wanted {
                *current = sources;
            }
            wanted
        });
    }
}

impl<F: Fetch> Asking<F> {
    async fn fetch(&self, claims: &[Known], memory: Memory) -> Result<Heard, FetchError> {
        let Some(first) = claims.first() else { return Ok(Heard::of_all(claims, &Ok(Said::Nothing), memory)) };
        let bounds = Bounds { time: TIME, size: if is_delegate(first) { MAX_DOCUMENT } else { MAX_OF_BACKEND } };
        let etag = memory.etag.as_deref();
        let fetched = within(bounds, &self.fetch, &first.name, "/openapi/v2", "application/json", etag).await?;
        match fetched.status {
            200 => {}
            304 if etag.is_some() => return Ok(Heard::of_all(claims, &Ok(Said::Same), memory)),
            404 => return Ok(Heard::of_all(claims, &Ok(Said::Nothing), Memory::default())),
            status => return Err(FetchError::new(format!("GET /openapi/v2 is answered with {status}"))),
        }
        let claims = claims.to_vec();
        let _turn = self.reading.acquire().await;
        let read = spawn_blocking(move || {
            let digest = Some(digest::digest(&digest::SHA256, &fetched.body).as_ref().to_vec());
            let etag = fetched.etag.filter(|etag| etag.len() <= 256);
            if digest == memory.digest {
                return Heard::of_all(&claims, &Ok(Said::Same), Memory { etag, digest });
            }
            let part = |claim: &Known| (claim.name.clone(), read(&fetched.body, prefix(claim).as_deref()));
            let said: Vec<_> = claims.iter().map(part).collect();
            // An invalid document is parsed again next time, so that its error is reported again.
            let good = said.iter().all(|(_, said)| said.is_ok());
            Heard { said, memory: if good { Memory { etag, digest } } else { Memory::default() } }
        });
        read.await.map_err(|error| FetchError::new(format!("its OpenAPI v2 document could not be read: {error}")))
    }
}

/// Total size of the documents of all other APIServices.
fn size_of_others(contents: &Contents<Content>, name: &str) -> usize {
    let others = contents.iter().filter(|(other, _)| *other != name);
    others.filter_map(|(_, content)| content.part.as_ref()).map(|part| part.size()).sum()
}

fn read(body: &[u8], prefix: Option<&str>) -> Result<Said, FetchError> {
    let part = Part::read(body, prefix)?;
    if prefix.is_some() && part.size() > MAX_PART {
        return Err(FetchError::new(format!("its OpenAPI v2 is larger than {} MiB", MAX_PART >> 20)));
    }
    Ok(Said::Part(Arc::new(part)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use http::{HeaderMap, Method};
    use tokio::task::LocalSet;

    use super::*;
    use crate::discovery::Fetched;
    use crate::message::Body;

    /// A backend with a request count; without a document it refuses.
    #[derive(Clone, Default)]
    struct World(Rc<(RefCell<Option<String>>, Cell<usize>)>);

    impl Fetch for World {
        async fn fetch(
            &self,
            _: &str,
            path: &str,
            _: &str,
            tag: Option<&str>,
            most: usize,
        ) -> Result<Fetched, FetchError> {
            assert_eq!(most, MAX_OF_BACKEND);
            assert_eq!(path, "/openapi/v2");
            self.0.1.set(self.0.1.get() + 1);
            let Some(body) = self.0.0.borrow().clone() else { return Err(FetchError::new("refused")) };
            let etag = format!("\"{}\"", body.len());
            match tag == Some(&*etag) {
                true => Ok(Fetched { status: 304, ..Fetched::default() }),
                false => Ok(Fetched { status: 200, body: body.into(), etag: Some(etag), ..Fetched::default() }),
            }
        }
    }

    fn known(group: &str) -> Known {
        Known {
            name: format!("v1.{group}"),
            group: group.into(),
            version: "v1".into(),
            group_priority_minimum: 1000,
            version_priority: 15,
            service_key: group.into(),
            backend: group.into(),
            by: By::Backend,
        }
    }

    fn document(path: &str) -> String {
        format!(r#"{{"swagger":"2.0","info":{{"title":"a","version":"1"}},"paths":{{"{path}":{{}}}}}}"#)
    }

    async fn read(version2: &Version2) -> String {
        let response = version2.answer(&Method::GET, &HeaderMap::new()).await.unwrap();
        match response.into_body() {
            Body::Full(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        }
    }

    #[test]
    fn when_nobody_asks_any_more_all_is_dropped_but_what_is_kept_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::within(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let world = World::default();
            *world.0.0.borrow_mut() = Some(document("/apis/a/v1/things"));
            let (aggregation, version2) = Aggregation2::start(world.clone(), &kept);
            aggregation.follow(vec![known("a")]);
            sleep(IDLE).await;
            assert_eq!(world.0.1.get(), 0);
            assert!(read(&version2).await.contains("/apis/a/v1/things"));
            assert_eq!(world.0.1.get(), 1);
            while !dir.path().join("openapi-v2/v1.a.gz").exists() {
                std::thread::yield_now();
            }
            sleep(Duration::from_secs(200)).await;
            assert!((3..=5).contains(&world.0.1.get()), "{}", world.0.1.get());
            sleep(IDLE).await;
            assert!(version2.built.load().is_none());
            let asked = world.0.1.get();
            sleep(IDLE).await;
            assert_eq!(world.0.1.get(), asked);

            // The backend refuses when the next request arrives.
            *world.0.0.borrow_mut() = None;
            assert!(read(&version2).await.contains("/apis/a/v1/things"));
            assert_eq!(
                version2.problems().into_values().collect::<Vec<_>>(),
                ["refused; its last good answer is served"]
            );
            // A document with another APIService's paths: none are kept.
            *world.0.0.borrow_mut() = Some(document("/apis/b/v1/things"));
            aggregation.nudge("v1.a");
            sleep(Duration::from_secs(2)).await;
            assert!(read(&version2).await.contains("\"paths\":{}"));
        });
    }

    #[test]
    fn paths_are_their_owner_s() {
        let claimed = BTreeSet::from(["/apis/a.io/v1/".to_owned(), "/api/v1/".to_owned()]);
        for (path, expected) in [
            ("/apis/a.io/v1/", true),
            ("/apis/a.io/v1/things/{name}", true),
            ("/apis/a.io/v1", false),
            ("/apis/a.io/v1beta1/things", false),
            ("/apis/a.io/", false),
            ("/api/v1/pods", true),
            ("/api/v2/pods", false),
            ("/version/", false),
            ("", false),
        ] {
            assert_eq!(is_below(&claimed, path), expected, "{path}");
        }
    }
}
