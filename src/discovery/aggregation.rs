//! Polls every backend for its discovery documents, keeps the last good response, and publishes the merged documents.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::oneshot;

use super::document::Resource;
use super::documents::{Documents, Moment, Source};
use super::fetch::{Fetch, FetchError, bounded};
use super::keeper::{All, Change, Contents, Keeper, Outcome, Subject};
use super::kept::{Kept, Shelf};
use super::known::{By, Known};
use super::media::is_aggregated;
use super::merge::{self, Merging};
use super::own::Own;
use super::parse::{self, Listed, Offered};
use crate::process::{Published, Publisher};
use crate::registry::DELEGATE;

/// `Accept` for `/apis`. Both versions are listed: backends before Kubernetes 1.30 know only the second. Upstream sends
/// only the first.
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
pub struct Discovery<F: Fetch + 'static> {
    keeper: Keeper<Aggregation<F>>,
    own: Own,
    aggregations: Arc<AtomicU64>,
}

struct Aggregation<F> {
    fetch: F,
    publisher: Publisher<Documents>,
    merging: RefCell<Merging>,
    aggregations: Arc<AtomicU64>,
    shelf: Shelf,
}

/// Entity tags of a backend's last good responses, by path.
type Etags = BTreeMap<&'static str, String>;

/// Discovery content of one APIService.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Content {
    /// Resources of the last good response, however old.
    resources: Arc<Vec<Resource>>,
    /// The delegate's listings by root path; empty for other backends.
    offered: BTreeMap<&'static str, Arc<Vec<Offered>>>,
    /// Why the last good response counts as stale; `None` if it is current.
    doubt: Option<String>,
    /// Why the last poll failed; `None` if it succeeded.
    trouble: Option<String>,
    /// Whether the availability probe fails for the same reason.
    seen_by_probe: bool,
    /// Number of consecutive failed polls, up to [`STALE_AFTER`].
    failures: u32,
    /// Whether a poll has ended.
    asked: bool,
    /// Whether any poll has succeeded.
    heard: bool,
    /// Time of the last change between current and stale.
    since: Option<SystemTime>,
    /// Time of the last successful poll.
    fetched: Moment,
    /// Whether the content is in the disk cache as that of this backend.
    kept: bool,
}

impl<F: Fetch + 'static> Discovery<F> {
    /// Starts without APIServices. The documents contain the local groups from the start. `kept` is the disk cache.
    pub fn start(fetch: F, own: Own, kept: &Kept) -> (Discovery<F>, Published<Documents>) {
        let (publisher, published) = Published::new(Documents::empty(own));
        let aggregations = Arc::<AtomicU64>::default();
        let keeper = Keeper::new(Aggregation {
            fetch,
            publisher,
            merging: RefCell::new(Merging::new(own)),
            aggregations: aggregations.clone(),
            shelf: kept.shelf("discovery"),
        });
        (Discovery { keeper, own, aggregations }, published)
    }

    /// Replaces the set of APIServices. New and changed ones are polled at once; removed ones are dropped.
    ///
    /// Call it inside the `LocalSet` whenever the registry changed; it does not block.
    pub fn follow(&self, mut known: Vec<Known>) {
        known.retain(|one| !self.own.has(&one.group));
        self.keeper.follow(known);
    }

    /// As [`Discovery::follow`] when only these APIServices changed.
    pub fn follow_changes(&self, mut changes: Vec<Change>) {
        changes.retain(|(_, now)| now.as_ref().is_none_or(|one| !self.own.has(&one.group)));
        self.keeper.follow_changes(changes);
    }

    /// Polls the backend of `apiservice` now, for example when it became available.
    pub fn nudge(&self, apiservice: &str) {
        self.keeper.nudge(apiservice);
    }

    /// Number of merges (`aggregator_discovery_aggregation_count_total`).
    pub fn aggregations(&self) -> Arc<AtomicU64> {
        self.aggregations.clone()
    }
}

impl<F: Fetch + 'static> Subject for Aggregation<F> {
    type Memory = Etags;
    type Content = Content;
    type Heard = [Heard; 2];

    async fn ask(&self, claims: &[Known], etags: Etags) -> [Heard; 2] {
        if let [delegate] = claims
            && delegate.by == By::Itself
        {
            return whole(&self.fetch, delegate, &etags).await;
        }
        let (core, named): (Vec<_>, Vec<_>) = claims.iter().cloned().partition(|claim| claim.group.is_empty());
        let core = ask(&self.fetch, "/api", &core, etags.get("/api").map(String::as_str));
        let named = ask(&self.fetch, "/apis", &named, etags.get("/apis").map(String::as_str));
        futures_util::join!(core, named).into()
    }

    fn hear(
        &self,
        heard: [Heard; 2],
        claims: &[Known],
        etags: &mut Etags,
        contents: &mut Contents<Content>,
    ) -> Outcome {
        let mut outcome = Outcome { well: true, changed: false };
        for root in heard {
            if !root.unchanged {
                match root.etag {
                    Some(etag) => drop(etags.insert(root.path, etag)),
                    None => drop(etags.remove(root.path)),
                }
            }
            for (name, verdict) in root.verdicts {
                outcome.well &= !matches!(verdict, Verdict::Missing | Verdict::Failed(_));
                if let Some(claim) = claims.iter().find(|claim| claim.name == name) {
                    let content = contents.entry(name).or_default();
                    let before = content.clone();
                    content.hear(verdict);
                    if !before.asked || content.is_current() != before.is_current() {
                        content.since = Some(SystemTime::now());
                    }
                    outcome.changed |= *content != before;
                    let same = (&content.resources, &content.offered) == (&before.resources, &before.offered);
                    if content.heard && !(same && content.kept) {
                        content.kept = true;
                        let (content, of) = (content.clone(), claim.clone());
                        self.shelf.keep(claim, move || content.to_keep(&of));
                    }
                }
            }
        }
        outcome
    }

    fn recall(&self, known: &Known) -> Option<oneshot::Receiver<Content>> {
        self.shelf.recall(known, Content::from_kept)
    }

    fn supplement(&self, content: &mut Content, recalled: Content) -> bool {
        let nothing = !content.heard && content.resources.is_empty() && content.offered.is_empty();
        if nothing {
            let Content { resources, offered, kept, .. } = recalled;
            *content = Content { resources, offered, kept, ..std::mem::take(content) };
        }
        nothing
    }

    fn moves(&self, _: &str, content: &mut Content) {
        let since = if content.is_current() { Some(SystemTime::now()) } else { content.since };
        let Content { resources, offered, .. } = std::mem::take(content);
        *content = Content { resources, offered, since, ..Content::default() };
    }

    fn forget(&self, name: &str) {
        self.shelf.forget(name);
    }

    fn publish(&self, known: &All, contents: &Contents<Content>, changed: &BTreeSet<String>) {
        let groups = self.merging.borrow_mut().look(known, changed, contents);
        let before = self.publisher.reader().get();
        let source = |name: &String| {
            let content = contents.get(name).cloned().unwrap_or_default();
            known.get(name).filter(|one| one.by != By::Delegate).map(|one| Source {
                apiservice: one.name.clone(),
                asked: content.asked,
                current: content.is_current(),
                resources: content.resources.len() + content.offers().map(|one| one.resources.len()).sum::<usize>(),
                problem: content.trouble.or(content.doubt).unwrap_or_default(),
                seen_by_probe: content.seen_by_probe,
                since: content.since,
                fetched: content.fetched.clone(),
            })
        };
        let sources: BTreeMap<String, Option<Source>> =
            changed.iter().map(|name| (name.clone(), source(name))).collect();
        for source in sources.values().flatten() {
            say_what_changed(before.source(&source.apiservice), source);
        }
        self.publisher.publish(Arc::new(before.with(groups, sources)));
        self.aggregations.fetch_add(1, Ordering::Relaxed);
    }
}

impl merge::Contents for Contents<Content> {
    fn of(&self, one: &Known) -> (Arc<Vec<Resource>>, bool) {
        self.get(&one.name).map_or_else(Default::default, |content| (content.resources.clone(), content.is_current()))
    }

    fn of_delegate(&self) -> (Vec<&Offered>, bool) {
        self.get(DELEGATE).map_or_else(Default::default, |content| (content.offers().collect(), content.is_current()))
    }
}

impl Content {
    fn offers(&self) -> impl Iterator<Item = &Offered> {
        self.offered.values().flat_map(|offered| offered.iter())
    }

    fn is_current(&self) -> bool {
        self.heard && self.doubt.is_none() && self.failures < STALE_AFTER
    }

    fn hear(&mut self, verdict: Verdict) {
        self.asked = true;
        if let Verdict::Failed(error) = verdict {
            (self.trouble, self.seen_by_probe) = (Some(error.text), error.seen_by_probe);
            self.failures = STALE_AFTER.min(self.failures + 1);
            return;
        }
        (self.trouble, self.seen_by_probe) = (None, false);
        self.failures = 0;
        if !matches!(verdict, Verdict::Missing) {
            self.fetched.is_now();
        }
        match verdict {
            Verdict::Unchanged | Verdict::Failed(_) => {}
            Verdict::Listed(listed) => {
                self.heard = true;
                self.doubt = listed.stale.then(|| "the backend itself marks it Stale".into());
                // Stale and empty is how kube-aggregator reports a version it lost. The known resources stay.
                let lost = listed.stale && listed.resources.is_empty();
                if !lost && *self.resources != listed.resources {
                    self.resources = Arc::new(listed.resources);
                }
            }
            Verdict::Offered(path, offered) => {
                self.heard = true;
                self.doubt = None;
                if self.offered.get(path).is_none_or(|before| **before != offered) {
                    self.offered.insert(path, Arc::new(offered));
                }
            }
            Verdict::Missing => self.doubt = Some("the backend does not list this group and version".into()),
        }
    }
}

/// Logs one line when an APIService became current or stale.
fn say_what_changed(before: Option<&Source>, now: &Source) {
    let was = before.filter(|was| was.asked);
    if now.asked && !now.current && was.is_none_or(|was| was.current) {
        let kept = if now.resources > 0 { "; its last good answer is served and marked Stale" } else { "" };
        let (apiservice, problem) = (&now.apiservice, &now.problem);
        // A failure of the probe, too, is logged with the condition. The delegate has no condition.
        if now.seen_by_probe && apiservice != DELEGATE {
            return tracing::debug!(apiservice, problem, "discovery of the backend failed{kept}");
        }
        tracing::warn!(apiservice, problem, "discovery of the backend failed{kept}");
    } else if now.current && was.is_some_and(|was| !was.current) {
        tracing::info!(apiservice = now.apiservice, "discovery of the backend recovered");
    }
}

/// The response of one root path of a backend, for the APIServices below it.
struct Heard {
    path: &'static str,
    verdicts: Vec<(String, Verdict)>,
    etag: Option<String>,
    unchanged: bool,
}

#[derive(Clone)]
enum Verdict {
    /// Not modified (304).
    Unchanged,
    Listed(Listed),
    /// All that the delegate lists at one of its roots.
    Offered(&'static str, Vec<Offered>),
    /// The response does not list this APIService.
    Missing,
    Failed(FetchError),
}

/// Fetches one root path. The results are those of kube-aggregator's `fetchFreshDiscoveryForService`.
async fn ask<F: Fetch>(fetch: &F, path: &'static str, claims: &[Known], etag: Option<&str>) -> Heard {
    let all = |verdict: Verdict| claims.iter().map(|claim| (claim.name.clone(), verdict.clone())).collect();
    let failed = |error: FetchError| Heard { path, verdicts: all(Verdict::Failed(error)), etag: None, unchanged: true };
    let Some(first) = claims.first() else { return Heard { path, verdicts: Vec::new(), etag: None, unchanged: true } };
    let fetched = match bounded(fetch, &first.name, path, ACCEPT_AGGREGATED, etag).await {
        Err(error) => return failed(error),
        Ok(fetched) => fetched,
    };
    match fetched.status {
        304 if etag.is_some() => Heard { path, verdicts: all(Verdict::Unchanged), etag: None, unchanged: true },
        // Not ready, or overloaded: another request would only add load.
        429 | 503 => failed(FetchError::new(format!("GET {path} is answered with {}", fetched.status))),
        200 if is_aggregated(&fetched.content_type) => match parse::aggregated(&fetched.body, claims) {
            Err(error) => failed(error),
            Ok(mut found) => {
                let mut verdict = |claim: &Known| found.remove(&claim.name).map_or(Verdict::Missing, Verdict::Listed);
                let verdicts = claims.iter().map(|claim| (claim.name.clone(), verdict(claim))).collect();
                Heard { path, verdicts, etag: fetched.etag.filter(|etag| etag.len() <= 256), unchanged: false }
            }
        },
        // A server without aggregated discovery, or one that lists nothing at its root: the legacy format.
        _ => {
            let verdicts = stream::iter(claims).map(|claim| async move {
                let verdict = older_form(fetch, claim).await.map_or_else(Verdict::Failed, Verdict::Listed);
                (claim.name.clone(), verdict)
            });
            let verdicts = verdicts.buffer_unordered(LEGACY_AT_A_TIME).collect().await;
            Heard { path, verdicts, etag: None, unchanged: false }
        }
    }
}

/// Fetches all that the delegate has. Both roots must succeed: they belong to one cluster.
async fn whole<F: Fetch>(fetch: &F, delegate: &Known, etags: &Etags) -> [Heard; 2] {
    let root = |path: &'static str| async move {
        let known = etags.get(path).map(String::as_str);
        let fetched = bounded(fetch, &delegate.name, path, ACCEPT_AGGREGATED, known).await?;
        match fetched.status {
            304 if known.is_some() => Ok((Verdict::Unchanged, None)),
            200 if is_aggregated(&fetched.content_type) => {
                let offered = parse::whole(&fetched.body)?;
                Ok((Verdict::Offered(path, offered), fetched.etag.filter(|etag| etag.len() <= 256)))
            }
            200 => Ok((Verdict::Offered(path, each(fetch, delegate, parse::names(&fetched.body)?).await), None)),
            // A server may lack a core group.
            404 if path == "/api" => Ok((Verdict::Offered(path, Vec::new()), None)),
            status => Err(FetchError::new(format!("GET {path} is answered with {status}{}", explain_delegate(status)))),
        }
    };
    let heard = |path, verdict, etag| {
        let unchanged = !matches!(verdict, Verdict::Offered(..));
        Heard { path, verdicts: vec![(delegate.name.clone(), verdict)], etag, unchanged }
    };
    match futures_util::try_join!(root("/api"), root("/apis")) {
        Ok(((core, core_tag), (named, named_tag))) => [heard("/api", core, core_tag), heard("/apis", named, named_tag)],
        Err(error) => {
            let nothing = Heard { path: "/apis", verdicts: Vec::new(), etag: None, unchanged: true };
            [heard("/api", Verdict::Failed(error), None), nothing]
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
async fn each<F: Fetch>(fetch: &F, delegate: &Known, names: Vec<(String, String)>) -> Vec<Offered> {
    let asked = stream::iter(names).map(|(group, version)| async move {
        let claim = Known { group: group.clone(), version: version.clone(), ..delegate.clone() };
        let listed = older_form(fetch, &claim).await.ok();
        let (resources, current) = listed.map_or_else(Default::default, |listed| (listed.resources, true));
        Offered { group, version, resources: Arc::new(resources), current }
    });
    asked.buffered(LEGACY_AT_A_TIME).collect().await
}

async fn older_form<F: Fetch>(fetch: &F, claim: &Known) -> Result<Listed, FetchError> {
    let path = claim.path();
    let fetched = bounded(fetch, &claim.name, &path, "application/json", None).await?;
    match fetched.status {
        200 => parse::legacy(&fetched.body, claim),
        // The availability probe accepts these.
        201..=299 => Err(FetchError::new(format!("GET {path} is answered with {}", fetched.status))),
        status => Err(FetchError::seen_by_probe(format!("GET {path} is answered with {status}"))),
    }
}

mod recall;
#[cfg(test)]
mod tests;
