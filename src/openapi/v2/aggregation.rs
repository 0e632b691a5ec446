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

use super::merge::DocumentMerger;
use super::serve::{DocumentDemand, MergedDocument, OpenApiV2};
use super::source_document::{GroupVersionKind, SourceDocument};
use crate::discovery::{
    ApiServiceClaim, CacheSection, ClaimChange, ClaimMap, ContentMap, DiskCache, Fetch, FetchError, FetchLimits,
    PollOutcome, PollSource, Poller, ServedBy, fetch_within, with_last_good,
};
use crate::kubeapi::version::compare_kube_aware;
use crate::process::{Published, Publisher};

/// Timeout of one fetch. Upstream allows a minute; a client that waits so long is better served without this part.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum document of the delegate. That of a kube-apiserver has 2 MiB, and some 40 KiB more for each
/// CustomResourceDefinition.
const MAX_DOCUMENT: usize = 64 << 20;
/// Maximum document of a backend, which may describe more than it is registered for.
const MAX_BACKEND_DOCUMENT: usize = 16 << 20;
/// Maximum part of one APIService in the merged document.
const MAX_PART: usize = 8 << 20;
/// Maximum of all documents together.
const MAX_TOTAL: usize = 128 << 20;
/// Maximum time the first merged document waits for slow sources.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// Idle time after which everything is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Minimum interval between two merges.
const MERGE_INTERVAL: Duration = Duration::from_secs(1);

/// Kinds in every group and version (`metav1.AddToGroupVersion`), and those of discovery and errors.
const COMMON_KINDS: [&str; 12] = [
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
pub struct OpenApiV2Aggregator<F: Fetch + 'static> {
    inner: Rc<AggregatorInner<F>>,
    tasks: [AbortHandle; 2],
}

struct AggregatorInner<F: Fetch + 'static> {
    poller: Poller<OpenApiV2PollSource<F>>,
    cache: CacheSection,
    claims: RefCell<ClaimMap>,
    /// Notified when `known` changed.
    changed: Notify,
    restored: RestoredParts,
    sources: watch::Sender<Option<Arc<MergeSources>>>,
}

/// Documents restored from the disk cache, by name of the APIService.
type RestoredParts = Rc<RefCell<BTreeMap<String, Arc<SourceDocument>>>>;

impl<F: Fetch + 'static> Drop for OpenApiV2Aggregator<F> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl<F: Fetch + 'static> OpenApiV2Aggregator<F> {
    /// Starts without APIServices, and idles until the first request. `kept` is the disk cache. Call it inside the
    /// `LocalSet`.
    pub fn start(fetch: F, kept: &DiskCache) -> (OpenApiV2Aggregator<F>, OpenApiV2) {
        let (publisher, built) = Published::new(None);
        let (sources, changes) = watch::channel(None);
        let demand = Arc::<DocumentDemand>::default();
        let shelf = kept.section("openapi-v2");
        let recalled = RestoredParts::default();
        let asking = OpenApiV2PollSource {
            fetch,
            sources: sources.clone(),
            reading: Semaphore::new(1),
            cache: shelf.clone(),
            restored: recalled.clone(),
        };
        let keeper = Poller::new(asking);
        let inner = AggregatorInner {
            poller: keeper,
            cache: shelf,
            claims: RefCell::default(),
            changed: Notify::new(),
            restored: recalled,
            sources,
        };
        let inner = Rc::new(inner);
        let waking = spawn_local(inner.clone().run(demand.clone()));
        let merging = spawn_local(merge_on_change(changes, publisher));
        let tasks = [waking.abort_handle(), merging.abort_handle()];
        (OpenApiV2Aggregator { inner, tasks }, OpenApiV2 { document: built, demand })
    }

    /// Replaces the set of APIServices, as `Discovery::set_api_services`.
    pub fn set_api_services(&self, known: Vec<ApiServiceClaim>) {
        let mut changes: BTreeMap<String, Option<ApiServiceClaim>> = BTreeMap::new();
        changes.extend(self.inner.claims.borrow().keys().map(|name| (name.clone(), None)));
        changes.extend(known.into_iter().map(|one| (one.name.clone(), Some(one))));
        self.apply_changes(changes);
    }

    /// As [`OpenApiV2Aggregator::set_api_services`] when only these changed.
    pub fn apply_changes(&self, changes: impl IntoIterator<Item = ClaimChange>) {
        let mut known = self.inner.claims.borrow_mut();
        for (name, now) in changes {
            // The document of the delegate covers Local APIServices.
            match now.filter(|one| one.served_by != ServedBy::Delegate) {
                Some(one) => drop(known.insert(name, one)),
                None => {
                    if known.remove(&name).is_some() {
                        self.inner.cache.remove(&name);
                    }
                }
            }
        }
        self.inner.changed.notify_one();
    }

    /// Polls the backend of `apiservice` now, for example when it became available.
    pub fn refresh_now(&self, apiservice: &str) {
        self.inner.poller.refresh_now(apiservice);
    }
}

impl<F: Fetch + 'static> AggregatorInner<F> {
    /// Starts polling on the first request, and drops everything after the idle time.
    async fn run(self: Rc<Self>, demand: Arc<DocumentDemand>) {
        loop {
            demand.notify.notified().await;
            let mut asleep_at = Instant::now() + IDLE_TIMEOUT;
            let mut looked_up = BTreeSet::new();
            self.poll_registered(&mut looked_up).await;
            loop {
                tokio::select! {
                    () = demand.notify.notified() => asleep_at = Instant::now() + IDLE_TIMEOUT,
                    () = self.changed.notified() => self.poll_registered(&mut looked_up).await,
                    () = sleep_until(asleep_at) => break,
                }
            }
            self.poller.set_api_services(Vec::new());
            self.restored.borrow_mut().clear();
            self.sources.send_replace(None);
        }
    }

    /// Polls the registered APIServices. Those not yet `looked_up` are restored from the disk cache first.
    async fn poll_registered(&self, looked_up: &mut BTreeSet<String>) {
        let known: Vec<ApiServiceClaim> = self.claims.borrow().values().cloned().collect();
        let new: Vec<ApiServiceClaim> =
            known.iter().filter(|one| looked_up.insert(one.name.clone())).cloned().collect();
        let shelf = self.cache.clone();
        let recalled = spawn_blocking(move || {
            let recall = |one: &ApiServiceClaim| {
                let part = SourceDocument::parse(&shelf.read(one)?, path_prefix(one).as_deref()).ok()?;
                Some((one.name.clone(), Arc::new(part)))
            };
            new.iter().filter_map(recall).collect::<Vec<_>>()
        });
        let recalled = recalled.await.unwrap_or_default();
        self.restored.borrow_mut().extend(recalled);
        // The keeper publishes nothing if nothing changed, but the first document waits for a publication.
        self.sources.send_if_modified(|sources| {
            let first = sources.is_none();
            sources.get_or_insert_default();
            first
        });
        self.poller.set_api_services(known);
    }
}

/// The last documents of all sources, in the order in which they are merged.
#[derive(Default)]
struct MergeSources(Vec<MergeSource>);

struct MergeSource {
    claim: ApiServiceClaim,
    content: SourceContent,
}

/// Content of one APIService.
#[derive(Clone, Default)]
struct SourceContent {
    part: Option<Arc<SourceDocument>>,
    was_polled: bool,
    problem: String,
    /// Whether the document is in the disk cache as that of this backend.
    is_cached: bool,
}

/// Merges whenever a source changed.
async fn merge_on_change(
    mut changes: watch::Receiver<Option<Arc<MergeSources>>>,
    publisher: Publisher<Option<Arc<MergedDocument>>>,
) {
    while changes.changed().await.is_ok() {
        let first_until = Instant::now() + FIRST_WAIT;
        let sources = loop {
            let sources = changes.borrow_and_update().clone();
            let complete = sources.as_ref().is_none_or(|all| all.0.iter().all(|source| source.content.was_polled));
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
        sleep(MERGE_INTERVAL).await;
    }
}

impl MergeSources {
    fn build(&self) -> MergedDocument {
        let claims: BTreeSet<(&str, &str)> = self.0.iter().map(|source| source.claim.group_and_version()).collect();
        let claimed: BTreeSet<String> = self.0.iter().filter_map(|source| path_prefix(&source.claim)).collect();
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        let mut merged = DocumentMerger::default();
        for MergeSource { claim: known, content } in &self.0 {
            if !content.problem.is_empty() {
                problems.insert(known.name.clone(), with_last_good(&content.problem, content.part.is_some()));
            }
            let Some(part) = &content.part else { continue };
            if is_delegate(known) {
                let part = part.retain_paths(|path| !is_below(&claimed, path));
                merged.set_head(&part);
                merged.add(&part, |_| true);
            } else {
                let own = known.group_and_version();
                merged.add(part, |kind: &GroupVersionKind| {
                    let of = (kind.group.as_str(), kind.version.as_str());
                    of == own || COMMON_KINDS.contains(&&*kind.kind) || !claims.contains(&of)
                });
            }
        }
        MergedDocument::new(merged.to_json(), problems)
    }
}

fn is_delegate(known: &ApiServiceClaim) -> bool {
    known.served_by == ServedBy::DelegateItself
}

/// Path prefix of a group and version; `None` for the delegate, which has all other paths.
fn path_prefix(known: &ApiServiceClaim) -> Option<String> {
    (!is_delegate(known)).then(|| format!("{}/", known.path()))
}

/// Whether `path` begins with one of `prefixes`. These have three or four segments and end with a slash.
fn is_below(prefixes: &BTreeSet<String>, path: &str) -> bool {
    let ends = path.match_indices('/').skip(2).take(2).map(|(at, _)| &path[..=at]);
    ends.into_iter().any(|prefix| prefixes.contains(prefix))
}

struct OpenApiV2PollSource<F> {
    fetch: F,
    sources: watch::Sender<Option<Arc<MergeSources>>>,
    cache: CacheSection,
    restored: RestoredParts,
    /// Limits parsing to one document at a time, as each may take much memory.
    reading: Semaphore,
}

/// Validators of a backend's last good response.
#[derive(Clone, Default)]
struct DocumentValidators {
    etag: Option<String>,
    /// SHA-256 of the body: not every server sends entity tags.
    digest: Option<Vec<u8>>,
}

struct DocumentResponse {
    /// Results by name of the APIService.
    updates: Vec<(String, Result<DocumentUpdate, FetchError>)>,
    memory: DocumentValidators,
}

#[derive(Clone)]
enum DocumentUpdate {
    /// Not modified.
    Unchanged,
    /// There is no document.
    Absent,
    Document(Arc<SourceDocument>),
}

impl DocumentResponse {
    fn same_for_all(
        claims: &[ApiServiceClaim],
        said: &Result<DocumentUpdate, FetchError>,
        memory: DocumentValidators,
    ) -> DocumentResponse {
        DocumentResponse { updates: claims.iter().map(|claim| (claim.name.clone(), said.clone())).collect(), memory }
    }
}

impl<F: Fetch + 'static> PollSource for OpenApiV2PollSource<F> {
    type Validators = DocumentValidators;
    type Document = SourceContent;
    type Response = DocumentResponse;

    async fn poll(&self, claims: &[ApiServiceClaim], memory: DocumentValidators) -> DocumentResponse {
        let before = memory.clone();
        let heard = self.fetch(claims, memory).await;
        heard.unwrap_or_else(|error| DocumentResponse::same_for_all(claims, &Err(error), before))
    }

    fn apply(
        &self,
        heard: DocumentResponse,
        claims: &[ApiServiceClaim],
        memory: &mut DocumentValidators,
        contents: &mut ContentMap<SourceContent>,
    ) -> PollOutcome {
        let mut outcome = PollOutcome { succeeded: true, changed: false };
        *memory = heard.memory;
        for (name, said) in heard.updates {
            let Some(claim) = claims.iter().find(|claim| claim.name == name) else { continue };
            let said = said.and_then(|said| match &said {
                DocumentUpdate::Document(part) if part.size() + other_documents_size(contents, &name) > MAX_TOTAL => {
                    let most = MAX_TOTAL >> 20;
                    Err(FetchError::new(format!("left out: all documents together are larger than {most} MiB")))
                }
                _ => Ok(said),
            });
            let content = contents.entry(name.clone()).or_default();
            outcome.changed |= !content.was_polled;
            content.was_polled = true;
            let (mut problem, mut seen_by_probe) = (String::new(), false);
            let heard = said.is_ok();
            let part = match said {
                Ok(DocumentUpdate::Unchanged) => content.part.clone(),
                Ok(DocumentUpdate::Absent) => None,
                Ok(DocumentUpdate::Document(part)) => Some(part),
                Err(error) => {
                    outcome.succeeded = false;
                    (problem, seen_by_probe) = (error.text, error.seen_by_probe);
                    content.part.clone()
                }
            };
            // A failure of the probe, too, is logged with the condition; one of the delegate by its discovery.
            if content.problem.is_empty() && !problem.is_empty() && !seen_by_probe {
                let kept = if content.part.is_some() { "; last good answer served" } else { "" };
                tracing::warn!(apiservice = name, problem, "OpenAPI v2 of the backend failed{kept}");
            }
            if part != content.part || (heard && !content.is_cached) {
                content.is_cached = true;
                match part.clone() {
                    Some(part) => self.cache.store(claim, move || Some(part.to_json(&part.head).into_bytes())),
                    None => self.cache.remove(&name),
                }
            }
            outcome.changed |= part != content.part || problem != content.problem;
            content.part = part;
            content.problem = problem;
        }
        outcome
    }

    fn restore(&self, known: &ApiServiceClaim) -> Option<oneshot::Receiver<SourceContent>> {
        let part = self.restored.borrow_mut().remove(&known.name)?;
        let (gives, comes) = oneshot::channel();
        // The content is available at once; the receiver exists.
        let _ = gives.send(SourceContent { part: Some(part), is_cached: true, ..SourceContent::default() });
        Some(comes)
    }

    fn backend_changed(&self, _: &str, content: &mut SourceContent) {
        content.is_cached = false;
    }

    fn publish(&self, known: &ClaimMap, contents: &ContentMap<SourceContent>, _: &BTreeSet<String>) {
        let known: Vec<ApiServiceClaim> = known.values().cloned().collect();
        let known = &*known;
        let content = |one: &ApiServiceClaim| contents.get(&one.name).cloned().unwrap_or_default();
        let mut sources: Vec<MergeSource> =
            known.iter().map(|one| MergeSource { claim: one.clone(), content: content(one) }).collect();
        let mut priorities: BTreeMap<&str, i32> = BTreeMap::new();
        for one in known {
            let priority = priorities.entry(&one.group).or_insert(one.group_priority_minimum);
            *priority = one.group_priority_minimum.max(*priority);
        }
        // As in discovery. Upstream means to compare the priorities of versions, too, but compares one with itself.
        sources.sort_by(|MergeSource { claim: a, .. }, MergeSource { claim: b, .. }| {
            let rank =
                |one: &ApiServiceClaim| (!is_delegate(one), Reverse(priorities.get(one.group.as_str()).copied()));
            rank(a)
                .cmp(&rank(b))
                .then_with(|| a.group.cmp(&b.group))
                .then_with(|| b.version_priority.cmp(&a.version_priority))
                .then_with(|| compare_kube_aware(&b.version, &a.version))
        });
        let sources = Some(Arc::new(MergeSources(sources)));
        self.sources.send_if_modified(|current| {
            let wanted = current.is_some();
            if wanted {
                *current = sources;
            }
            wanted
        });
    }
}

impl<F: Fetch> OpenApiV2PollSource<F> {
    async fn fetch(
        &self,
        claims: &[ApiServiceClaim],
        memory: DocumentValidators,
    ) -> Result<DocumentResponse, FetchError> {
        let Some(first) = claims.first() else {
            return Ok(DocumentResponse::same_for_all(claims, &Ok(DocumentUpdate::Absent), memory));
        };
        let bounds = FetchLimits {
            time: FETCH_TIMEOUT,
            size: if is_delegate(first) { MAX_DOCUMENT } else { MAX_BACKEND_DOCUMENT },
        };
        let etag = memory.etag.as_deref();
        let fetched = fetch_within(bounds, &self.fetch, &first.name, "/openapi/v2", "application/json", etag).await?;
        match fetched.status {
            200 => {}
            304 if etag.is_some() => {
                return Ok(DocumentResponse::same_for_all(claims, &Ok(DocumentUpdate::Unchanged), memory));
            }
            404 => {
                return Ok(DocumentResponse::same_for_all(
                    claims,
                    &Ok(DocumentUpdate::Absent),
                    DocumentValidators::default(),
                ));
            }
            status => return Err(FetchError::new(format!("GET /openapi/v2 is answered with {status}"))),
        }
        let claims = claims.to_vec();
        let _turn = self.reading.acquire().await;
        let read = spawn_blocking(move || {
            let digest = Some(digest::digest(&digest::SHA256, &fetched.body).as_ref().to_vec());
            let etag = fetched.etag.filter(|etag| etag.len() <= 256);
            if digest == memory.digest {
                return DocumentResponse::same_for_all(
                    &claims,
                    &Ok(DocumentUpdate::Unchanged),
                    DocumentValidators { etag, digest },
                );
            }
            let part =
                |claim: &ApiServiceClaim| (claim.name.clone(), read(&fetched.body, path_prefix(claim).as_deref()));
            let said: Vec<_> = claims.iter().map(part).collect();
            // An invalid document is parsed again next time, so that its error is reported again.
            let good = said.iter().all(|(_, said)| said.is_ok());
            DocumentResponse {
                updates: said,
                memory: if good { DocumentValidators { etag, digest } } else { DocumentValidators::default() },
            }
        });
        read.await.map_err(|error| FetchError::new(format!("its OpenAPI v2 document could not be read: {error}")))
    }
}

/// Total size of the documents of all other APIServices.
fn other_documents_size(contents: &ContentMap<SourceContent>, name: &str) -> usize {
    let others = contents.iter().filter(|(other, _)| *other != name);
    others.filter_map(|(_, content)| content.part.as_ref()).map(|part| part.size()).sum()
}

fn read(body: &[u8], prefix: Option<&str>) -> Result<DocumentUpdate, FetchError> {
    let part = SourceDocument::parse(body, prefix)?;
    if prefix.is_some() && part.size() > MAX_PART {
        return Err(FetchError::new(format!("its OpenAPI v2 is larger than {} MiB", MAX_PART >> 20)));
    }
    Ok(DocumentUpdate::Document(Arc::new(part)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use http::{HeaderMap, Method};
    use tokio::task::LocalSet;

    use super::*;
    use crate::discovery::FetchedResponse;
    use crate::message::Body;

    /// A backend with a request count; without a document it refuses.
    #[derive(Clone, Default)]
    struct FakeBackend(Rc<(RefCell<Option<String>>, Cell<usize>)>);

    impl Fetch for FakeBackend {
        async fn fetch(
            &self,
            _: &str,
            path: &str,
            _: &str,
            tag: Option<&str>,
            most: usize,
        ) -> Result<FetchedResponse, FetchError> {
            assert_eq!(most, MAX_BACKEND_DOCUMENT);
            assert_eq!(path, "/openapi/v2");
            self.0.1.set(self.0.1.get() + 1);
            let Some(body) = self.0.0.borrow().clone() else { return Err(FetchError::new("refused")) };
            let etag = format!("\"{}\"", body.len());
            match tag == Some(&*etag) {
                true => Ok(FetchedResponse { status: 304, ..FetchedResponse::default() }),
                false => Ok(FetchedResponse {
                    status: 200,
                    body: body.into(),
                    etag: Some(etag),
                    ..FetchedResponse::default()
                }),
            }
        }
    }

    fn known(group: &str) -> ApiServiceClaim {
        ApiServiceClaim {
            name: format!("v1.{group}"),
            group: group.into(),
            version: "v1".into(),
            group_priority_minimum: 1000,
            version_priority: 15,
            service_key: group.into(),
            backend: group.into(),
            served_by: ServedBy::Backend,
        }
    }

    fn document(path: &str) -> String {
        format!(r#"{{"swagger":"2.0","info":{{"title":"a","version":"1"}},"paths":{{"{path}":{{}}}}}}"#)
    }

    async fn read(version2: &OpenApiV2) -> String {
        let response = version2.answer(&Method::GET, &HeaderMap::new()).await.unwrap();
        match response.into_body() {
            Body::Full(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        }
    }

    #[test]
    fn openapi_v2_dropped_when_idle_but_cached_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let kept = DiskCache::in_directory(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let world = FakeBackend::default();
            *world.0.0.borrow_mut() = Some(document("/apis/a/v1/things"));
            let (aggregation, version2) = OpenApiV2Aggregator::start(world.clone(), &kept);
            aggregation.set_api_services(vec![known("a")]);
            sleep(IDLE_TIMEOUT).await;
            assert_eq!(world.0.1.get(), 0);
            assert!(read(&version2).await.contains("/apis/a/v1/things"));
            assert_eq!(world.0.1.get(), 1);
            while !dir.path().join("openapi-v2/v1.a.gz").exists() {
                std::thread::yield_now();
            }
            sleep(Duration::from_secs(200)).await;
            assert!((3..=5).contains(&world.0.1.get()), "{}", world.0.1.get());
            sleep(IDLE_TIMEOUT).await;
            assert!(version2.document.load().is_none());
            let asked = world.0.1.get();
            sleep(IDLE_TIMEOUT).await;
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
            aggregation.refresh_now("v1.a");
            sleep(Duration::from_secs(2)).await;
            assert!(read(&version2).await.contains("\"paths\":{}"));
        });
    }

    #[test]
    fn openapi_v2_paths_belong_to_claims() {
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
