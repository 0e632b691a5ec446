//! Polls every backend for its discovery documents, keeps the last good response, and publishes the merged documents.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::oneshot;

use super::claim::{ApiServiceClaim, ServedBy};
use super::disk_cache::{CacheSection, DiskCache};
use super::local_groups::LocalGroups;
use super::media::is_aggregated;
use super::merge::{self, GroupMerger};
use super::model::DiscoveryResource;
use super::parse::{self, GroupVersionListing, ResourceListing};
use super::polling::fetch::{Fetch, FetchError, fetch_bounded};
use super::polling::poller::{ClaimChange, ClaimMap, ContentMap, PollOutcome, PollSource, Poller};
use super::snapshot::{DiscoverySnapshot, LastFetched, SourceStatus};
use crate::process::{Published, Publisher};
use crate::registry::DELEGATE;
use crate::resources::catalog::ResourceCatalog;

/// `Accept` for `/apis`. Both versions are listed: backends before Kubernetes 1.30 know only the second. Kubernetes
/// sends only the first.
const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// Number of versions of one backend fetched concurrently in the legacy format.
const LEGACY_AT_A_TIME: usize = 4;
/// Number of consecutive failed polls after which the last good content is marked stale. Clients such as kubectl drop
/// stale content altogether, so one lost packet must not mark it.
const STALE_AFTER: u32 = 3;

/// The running discovery of all backends; dropping it ends its tasks.
///
/// Lives on one thread, inside a `LocalSet`. Each backend has a task of its own: no backend waits for another, and
/// publishing waits for none.
pub struct DiscoveryAggregator<F: Fetch + 'static> {
    poller: Poller<DiscoveryPollSource<F>>,
    local_groups: LocalGroups,
    aggregations: Arc<AtomicU64>,
}

struct DiscoveryPollSource<F> {
    fetch: F,
    publisher: Publisher<DiscoverySnapshot>,
    merger: RefCell<GroupMerger>,
    /// Local groups that are published next, and what to call then.
    changed_locals: RefCell<Option<(LocalGroups, PublishCallback)>>,
    aggregations: Arc<AtomicU64>,
    cache: CacheSection,
}

/// Called once resources of the embedded API server are published.
type PublishCallback = Box<dyn FnOnce()>;

/// Entity tags of a backend's last good responses, by path.
type Etags = BTreeMap<&'static str, String>;

/// Discovery content of one APIService.
#[derive(Clone, Default, PartialEq)]
pub(super) struct DiscoveryContent {
    /// Resources of the last good response, however old.
    resources: Arc<Vec<DiscoveryResource>>,
    /// The delegate's listings by root path; empty for other backends.
    delegate_versions: BTreeMap<&'static str, Arc<Vec<GroupVersionListing>>>,
    /// Why the last good response counts as stale; `None` if it is current.
    stale_reason: Option<String>,
    /// Why the last poll failed; `None` if it succeeded.
    error: Option<String>,
    /// Whether the availability probe fails for the same reason.
    seen_by_probe: bool,
    /// Number of consecutive failed polls, up to [`STALE_AFTER`].
    failures: u32,
    /// Whether a poll has ended.
    was_polled: bool,
    /// Whether any poll has succeeded.
    was_fetched: bool,
    /// Time of the last change between current and stale.
    since: Option<SystemTime>,
    /// Time of the last successful poll.
    last_fetched: LastFetched,
    /// Whether the content is in the disk cache as that of this backend.
    is_cached: bool,
}

impl<F: Fetch + 'static> DiscoveryAggregator<F> {
    /// Starts without APIServices. The documents contain the local groups from the start.
    pub fn start(
        fetch: F,
        own: LocalGroups,
        disk_cache: &DiskCache,
    ) -> (DiscoveryAggregator<F>, Published<DiscoverySnapshot>) {
        let (publisher, published) = Published::new(DiscoverySnapshot::empty(&own));
        let aggregations = Arc::<AtomicU64>::default();
        let poller = Poller::new(DiscoveryPollSource {
            fetch,
            publisher,
            merger: RefCell::new(GroupMerger::new(own.clone())),
            changed_locals: RefCell::default(),
            aggregations: aggregations.clone(),
            cache: disk_cache.section("discovery"),
        });
        (DiscoveryAggregator { poller, local_groups: own, aggregations }, published)
    }

    /// Replaces the set of APIServices. New and changed ones are polled at once; removed ones are dropped.
    ///
    /// Call it inside the `LocalSet` whenever the registry changed; it does not block.
    pub fn set_api_services(&self, mut claims: Vec<ApiServiceClaim>) {
        claims.retain(|one| !self.local_groups.is_reserved(&one.group));
        self.poller.set_api_services(claims);
    }

    /// As [`DiscoveryAggregator::set_api_services`] when only these APIServices changed.
    pub fn apply_changes(&self, mut changes: Vec<ClaimChange>) {
        changes.retain(|(_, now)| now.as_ref().is_none_or(|one| !self.local_groups.is_reserved(&one.group)));
        self.poller.apply_changes(changes);
    }

    /// Replaces the resources of the embedded API server. Calls `on_published` once the documents have them, unless others
    /// replace them before.
    pub fn set_catalog(&self, catalog: Arc<ResourceCatalog>, on_published: impl FnOnce() + 'static) {
        let own = LocalGroups { embedded: Some(catalog), ..self.local_groups.clone() };
        self.poller.change_source(|source| {
            source.merger.borrow_mut().set_local_groups(own.clone());
            *source.changed_locals.borrow_mut() = Some((own, Box::new(on_published)));
        });
    }

    /// Polls the backend of `apiservice` now, for example when it became available.
    pub fn refresh_now(&self, apiservice: &str) {
        self.poller.refresh_now(apiservice);
    }

    /// Number of merges (`aggregator_discovery_aggregation_count_total`).
    pub fn aggregations(&self) -> Arc<AtomicU64> {
        self.aggregations.clone()
    }
}

impl<F: Fetch + 'static> PollSource for DiscoveryPollSource<F> {
    type Validators = Etags;
    type Document = DiscoveryContent;
    type Response = [RootResponse; 2];

    async fn poll(&self, claims: &[ApiServiceClaim], etags: Etags) -> [RootResponse; 2] {
        if let [delegate] = claims
            && delegate.served_by == ServedBy::DelegateItself
        {
            return fetch_delegate(&self.fetch, delegate, &etags).await;
        }
        let (core, named): (Vec<_>, Vec<_>) = claims.iter().cloned().partition(|claim| claim.group.is_empty());
        let core = fetch_root(&self.fetch, "/api", &core, etags.get("/api").map(String::as_str));
        let named = fetch_root(&self.fetch, "/apis", &named, etags.get("/apis").map(String::as_str));
        futures_util::join!(core, named).into()
    }

    fn apply(
        &self,
        responses: [RootResponse; 2],
        claims: &[ApiServiceClaim],
        etags: &mut Etags,
        contents: &mut ContentMap<DiscoveryContent>,
    ) -> PollOutcome {
        let mut outcome = PollOutcome { succeeded: true, changed: false };
        for root in responses {
            if !root.unchanged {
                match root.etag {
                    Some(etag) => drop(etags.insert(root.path, etag)),
                    None => drop(etags.remove(root.path)),
                }
            }
            for (name, verdict) in root.results {
                outcome.succeeded &= !matches!(verdict, DiscoveryResult::Missing | DiscoveryResult::Failed(_));
                if let Some(claim) = claims.iter().find(|claim| claim.name == name) {
                    let content = contents.entry(name).or_default();
                    let before = content.clone();
                    content.update(verdict);
                    if !before.was_polled || content.is_current() != before.is_current() {
                        content.since = Some(SystemTime::now());
                    }
                    outcome.changed |= *content != before;
                    let same = (&content.resources, &content.delegate_versions)
                        == (&before.resources, &before.delegate_versions);
                    if content.was_fetched && !(same && content.is_cached) {
                        content.is_cached = true;
                        let (content, of) = (content.clone(), claim.clone());
                        self.cache.store(claim, move || content.to_cache(&of));
                    }
                }
            }
        }
        outcome
    }

    fn restore(&self, claim: &ApiServiceClaim) -> Option<oneshot::Receiver<DiscoveryContent>> {
        self.cache.restore(claim, DiscoveryContent::from_cache)
    }

    fn merge_restored(&self, content: &mut DiscoveryContent, recalled: DiscoveryContent) -> bool {
        let nothing = !content.was_fetched && content.resources.is_empty() && content.delegate_versions.is_empty();
        if nothing {
            let DiscoveryContent { resources, delegate_versions: offered, is_cached: kept, .. } = recalled;
            *content =
                DiscoveryContent { resources, delegate_versions: offered, is_cached: kept, ..std::mem::take(content) };
        }
        nothing
    }

    fn backend_changed(&self, _: &str, content: &mut DiscoveryContent) {
        let since = if content.is_current() { Some(SystemTime::now()) } else { content.since };
        let DiscoveryContent { resources, delegate_versions: offered, .. } = std::mem::take(content);
        *content = DiscoveryContent { resources, delegate_versions: offered, since, ..DiscoveryContent::default() };
    }

    fn forget(&self, name: &str) {
        self.cache.remove(name);
    }

    fn publish(&self, claims: &ClaimMap, contents: &ContentMap<DiscoveryContent>, changed: &BTreeSet<String>) {
        let groups = self.merger.borrow_mut().update(claims, changed, contents);
        let before = self.publisher.reader().get();
        let source = |name: &String| {
            let content = contents.get(name).cloned().unwrap_or_default();
            claims.get(name).filter(|one| one.served_by != ServedBy::Delegate).map(|one| SourceStatus {
                apiservice: one.name.clone(),
                is_polled: content.was_polled,
                current: content.is_current(),
                resources: content.resources.len() + content.listings().map(|one| one.resources.len()).sum::<usize>(),
                problem: content.error.or(content.stale_reason).unwrap_or_default(),
                seen_by_probe: content.seen_by_probe,
                since: content.since,
                fetched: content.last_fetched.clone(),
            })
        };
        let sources: BTreeMap<String, Option<SourceStatus>> =
            changed.iter().map(|name| (name.clone(), source(name))).collect();
        for source in sources.values().flatten() {
            log_transition(before.source(&source.apiservice), source);
        }
        let mut next = before.updated(groups, sources);
        let (local_groups, on_published) = self.changed_locals.take().unzip();
        if let Some(local_groups) = local_groups {
            next = next.with_local_groups(&local_groups, self.merger.borrow().served());
        }
        self.publisher.publish(Arc::new(next));
        if let Some(on_published) = on_published {
            on_published();
        }
        self.aggregations.fetch_add(1, Ordering::Relaxed);
    }
}

impl merge::ContentStore for ContentMap<DiscoveryContent> {
    fn resources_of(&self, one: &ApiServiceClaim) -> (Arc<Vec<DiscoveryResource>>, bool) {
        self.get(&one.name).map_or_else(Default::default, |content| (content.resources.clone(), content.is_current()))
    }

    fn delegate_listings(&self) -> (Vec<&GroupVersionListing>, bool) {
        self.get(DELEGATE).map_or_else(Default::default, |content| (content.listings().collect(), content.is_current()))
    }
}

impl DiscoveryContent {
    fn listings(&self) -> impl Iterator<Item = &GroupVersionListing> {
        self.delegate_versions.values().flat_map(|offered| offered.iter())
    }

    fn is_current(&self) -> bool {
        self.was_fetched && self.stale_reason.is_none() && self.failures < STALE_AFTER
    }

    fn update(&mut self, verdict: DiscoveryResult) {
        self.was_polled = true;
        if let DiscoveryResult::Failed(error) = verdict {
            (self.error, self.seen_by_probe) = (Some(error.text), error.seen_by_probe);
            self.failures = STALE_AFTER.min(self.failures + 1);
            return;
        }
        (self.error, self.seen_by_probe) = (None, false);
        self.failures = 0;
        if !matches!(verdict, DiscoveryResult::Missing) {
            self.last_fetched.record();
        }
        match verdict {
            DiscoveryResult::Unchanged | DiscoveryResult::Failed(_) => {}
            DiscoveryResult::Listing(listed) => {
                self.was_fetched = true;
                self.stale_reason = listed.stale.then(|| "the backend itself marks it Stale".into());
                // Stale and empty is how kube-aggregator reports a version it lost. The known resources stay.
                let lost = listed.stale && listed.resources.is_empty();
                if !lost && *self.resources != listed.resources {
                    self.resources = Arc::new(listed.resources);
                }
            }
            DiscoveryResult::DelegateListing(path, offered) => {
                self.was_fetched = true;
                self.stale_reason = None;
                if self.delegate_versions.get(path).is_none_or(|before| **before != offered) {
                    self.delegate_versions.insert(path, Arc::new(offered));
                }
            }
            DiscoveryResult::Missing => {
                self.stale_reason = Some("the backend does not list this group and version".into())
            }
        }
    }
}

/// Logs one line when an APIService became current or stale.
fn log_transition(before: Option<&SourceStatus>, now: &SourceStatus) {
    let was = before.filter(|was| was.is_polled);
    if now.is_polled && !now.current && was.is_none_or(|was| was.current) {
        let suffix = if now.resources > 0 { "; its last good answer is served and marked Stale" } else { "" };
        let (apiservice, problem) = (&now.apiservice, &now.problem);
        // A failure of the probe, too, is logged with the condition. The delegate has no condition.
        if now.seen_by_probe && apiservice != DELEGATE {
            return tracing::debug!(apiservice, problem, "discovery of the backend failed{suffix}");
        }
        tracing::warn!(apiservice, problem, "discovery of the backend failed{suffix}");
    } else if now.current && was.is_some_and(|was| !was.current) {
        tracing::info!(apiservice = now.apiservice, "discovery of the backend recovered");
    }
}

/// The response of one root path of a backend, for the APIServices below it.
struct RootResponse {
    path: &'static str,
    results: Vec<(String, DiscoveryResult)>,
    etag: Option<String>,
    unchanged: bool,
}

#[derive(Clone)]
enum DiscoveryResult {
    /// Not modified (304).
    Unchanged,
    Listing(ResourceListing),
    /// All that the delegate lists at one of its roots.
    DelegateListing(&'static str, Vec<GroupVersionListing>),
    /// The response does not list this APIService.
    Missing,
    Failed(FetchError),
}

/// Fetches one root path. The results are those of kube-aggregator's `fetchFreshDiscoveryForService`.
async fn fetch_root<F: Fetch>(
    fetch: &F,
    path: &'static str,
    claims: &[ApiServiceClaim],
    etag: Option<&str>,
) -> RootResponse {
    let all = |verdict: DiscoveryResult| claims.iter().map(|claim| (claim.name.clone(), verdict.clone())).collect();
    let failed = |error: FetchError| RootResponse {
        path,
        results: all(DiscoveryResult::Failed(error)),
        etag: None,
        unchanged: true,
    };
    let Some(first) = claims.first() else {
        return RootResponse { path, results: Vec::new(), etag: None, unchanged: true };
    };
    let fetched = match fetch_bounded(fetch, &first.name, path, ACCEPT_AGGREGATED, etag).await {
        Err(error) => return failed(error),
        Ok(fetched) => fetched,
    };
    match fetched.status {
        304 if etag.is_some() => {
            RootResponse { path, results: all(DiscoveryResult::Unchanged), etag: None, unchanged: true }
        }
        // Not ready, or overloaded: another request would only add load.
        429 | 503 => failed(FetchError::new(format!("GET {path} is answered with {}", fetched.status))),
        200 if is_aggregated(&fetched.content_type) => match parse::aggregated(&fetched.body, claims) {
            Err(error) => failed(error),
            Ok(mut found) => {
                let mut verdict = |claim: &ApiServiceClaim| {
                    found.remove(&claim.name).map_or(DiscoveryResult::Missing, DiscoveryResult::Listing)
                };
                let verdicts = claims.iter().map(|claim| (claim.name.clone(), verdict(claim))).collect();
                RootResponse {
                    path,
                    results: verdicts,
                    etag: fetched.etag.filter(|etag| etag.len() <= 256),
                    unchanged: false,
                }
            }
        },
        // A server without aggregated discovery, or one that lists nothing at its root: the legacy format.
        _ => {
            let verdicts = stream::iter(claims).map(|claim| async move {
                let verdict =
                    fetch_legacy(fetch, claim).await.map_or_else(DiscoveryResult::Failed, DiscoveryResult::Listing);
                (claim.name.clone(), verdict)
            });
            let verdicts = verdicts.buffer_unordered(LEGACY_AT_A_TIME).collect().await;
            RootResponse { path, results: verdicts, etag: None, unchanged: false }
        }
    }
}

/// Fetches all that the delegate has. Both roots must succeed: they belong to one cluster.
async fn fetch_delegate<F: Fetch>(fetch: &F, delegate: &ApiServiceClaim, etags: &Etags) -> [RootResponse; 2] {
    let root = |path: &'static str| async move {
        let known_etag = etags.get(path).map(String::as_str);
        let fetched = fetch_bounded(fetch, &delegate.name, path, ACCEPT_AGGREGATED, known_etag).await?;
        match fetched.status {
            304 if known_etag.is_some() => Ok((DiscoveryResult::Unchanged, None)),
            200 if is_aggregated(&fetched.content_type) => {
                let offered = parse::all_listings(&fetched.body)?;
                Ok((DiscoveryResult::DelegateListing(path, offered), fetched.etag.filter(|etag| etag.len() <= 256)))
            }
            200 => Ok((
                DiscoveryResult::DelegateListing(
                    path,
                    fetch_delegate_legacy(fetch, delegate, parse::group_versions(&fetched.body)?).await,
                ),
                None,
            )),
            // A server may lack a core group.
            404 if path == "/api" => Ok((DiscoveryResult::DelegateListing(path, Vec::new()), None)),
            status => Err(FetchError::new(format!("GET {path} is answered with {status}{}", explain_delegate(status)))),
        }
    };
    let response = |path, verdict, etag| {
        let unchanged = !matches!(verdict, DiscoveryResult::DelegateListing(..));
        RootResponse { path, results: vec![(delegate.name.clone(), verdict)], etag, unchanged }
    };
    match futures_util::try_join!(root("/api"), root("/apis")) {
        Ok(((core, core_tag), (named, named_tag))) => {
            [response("/api", core, core_tag), response("/apis", named, named_tag)]
        }
        Err(error) => {
            let nothing = RootResponse { path: "/apis", results: Vec::new(), etag: None, unchanged: true };
            [response("/api", DiscoveryResult::Failed(error), None), nothing]
        }
    }
}

/// A hint on why the delegate rejects the gateway's own requests, where it is known.
fn explain_delegate(status: u16) -> &'static str {
    match status {
        401 => {
            ": the delegate does not accept our front-proxy certificate; see its --requestheader-client-ca-file and \
             --requestheader-allowed-names"
        }
        403 => ": the delegate forbids system:kube-aggregator",
        300..=399 => ": redirects are not followed",
        _ => "",
    }
}

/// Fetches each group and version from a delegate without aggregated discovery (before Kubernetes 1.26).
async fn fetch_delegate_legacy<F: Fetch>(
    fetch: &F,
    delegate: &ApiServiceClaim,
    names: Vec<(String, String)>,
) -> Vec<GroupVersionListing> {
    let listings = stream::iter(names).map(|(group, version)| async move {
        let claim = ApiServiceClaim { group: group.clone(), version: version.clone(), ..delegate.clone() };
        let listed = fetch_legacy(fetch, &claim).await.ok();
        let (resources, current) = listed.map_or_else(Default::default, |listed| (listed.resources, true));
        GroupVersionListing { group, version, resources: Arc::new(resources), current }
    });
    listings.buffered(LEGACY_AT_A_TIME).collect().await
}

async fn fetch_legacy<F: Fetch>(fetch: &F, claim: &ApiServiceClaim) -> Result<ResourceListing, FetchError> {
    let path = claim.path();
    let fetched = fetch_bounded(fetch, &claim.name, &path, "application/json", None).await?;
    match fetched.status {
        200 => parse::legacy(&fetched.body, claim),
        // The availability probe accepts these.
        201..=299 => Err(FetchError::new(format!("GET {path} is answered with {}", fetched.status))),
        status => Err(FetchError::seen_by_probe(format!("GET {path} is answered with {status}"))),
    }
}

mod restore;
#[cfg(test)]
mod tests;
