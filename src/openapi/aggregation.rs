//! Polls every backend for its OpenAPI index, keeps the last good response, and publishes the merged index.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::builtin::REGISTRATIONS;
use super::index::{self, ClaimedDocument, Hashes, Index, key, parse, parse_cached, parse_delegate};
use super::v2::convert_to_v3;
use crate::discovery::{
    ApiServiceClaim, CacheSection, ClaimChange, ClaimMap, ContentMap, DiskCache, EncodedDocument, Fetch, FetchError,
    LocalGroups, PollOutcome, PollSource, Poller, ServedBy, fetch_bounded, with_last_good,
};
use crate::process::{Published, Publisher};
use crate::registry::DELEGATE;
use crate::resources::catalog::ResourceCatalog;

/// The running OpenAPI aggregation of all backends; dropping it ends its tasks.
///
/// Lives on one thread, inside a `LocalSet`. Each backend has a task of its own.
pub struct OpenApiAggregator<F: Fetch + 'static> {
    poller: Poller<OpenApiPollSource<F>>,
    local_groups: LocalGroups,
}

struct OpenApiPollSource<F> {
    fetch: F,
    publisher: Publisher<Index>,
    cache: CacheSection,
    converted: RefCell<ConvertedDocuments>,
    /// APIServices that moved to another backend, which has not answered yet.
    moved: RefCell<BTreeSet<String>>,
    /// Errors of the last poll, by name of the APIService.
    problems: RefCell<BTreeMap<String, String>>,
}

/// Documents converted from OpenAPI v2, by name of the APIService.
type ConvertedDocuments = BTreeMap<String, Arc<EncodedDocument>>;

#[derive(Clone, Default)]
struct IndexValidators {
    /// Entity tag of the last good response.
    etag: Option<String>,
    /// Entity tag of the last good OpenAPI v2 document, if there is no v3.
    older: Option<String>,
}

impl<F: Fetch + 'static> OpenApiAggregator<F> {
    /// Starts without APIServices. The index contains the local document from the start.
    pub fn start(fetch: F, own: LocalGroups, disk_cache: &DiskCache) -> (OpenApiAggregator<F>, Published<Index>) {
        let (publisher, published) = Published::new(Index::empty(&own));
        let shelf = disk_cache.section("openapi-v3");
        (
            OpenApiAggregator {
                poller: Poller::new(OpenApiPollSource {
                    fetch,
                    publisher,
                    cache: shelf,
                    converted: RefCell::default(),
                    moved: RefCell::default(),
                    problems: RefCell::default(),
                }),
                local_groups: own,
            },
            published,
        )
    }

    /// Replaces the set of APIServices, as `Discovery::set_api_services`.
    pub fn set_api_services(&self, mut claims: Vec<ApiServiceClaim>) {
        claims.retain(|one| !self.local_groups.has_registrations() || key(one) != REGISTRATIONS);
        self.poller.set_api_services(claims);
    }

    /// As [`OpenApiAggregator::set_api_services`] when only these APIServices changed.
    pub fn apply_changes(&self, mut changes: Vec<ClaimChange>) {
        let is_own = |one: &ApiServiceClaim| self.local_groups.has_registrations() && key(one) == REGISTRATIONS;
        changes.retain(|(_, now)| !now.as_ref().is_some_and(is_own));
        self.poller.apply_changes(changes);
    }

    /// Replaces the resources of the embedded API server.
    pub fn set_catalog(&self, catalog: Arc<ResourceCatalog>) {
        let own = LocalGroups { embedded: Some(catalog), ..self.local_groups.clone() };
        self.poller.change_source(|source| {
            let index = source.publisher.reader().get().with_local_groups(&own);
            source.publisher.publish(Arc::new(index));
        });
    }

    /// Polls the backend of `apiservice` now, for example when it became available.
    pub fn refresh_now(&self, apiservice: &str) {
        self.poller.refresh_now(apiservice);
    }
}

impl<F: Fetch + 'static> PollSource for OpenApiPollSource<F> {
    type Validators = IndexValidators;
    /// The hashes that the backend listed last for this APIService.
    type Document = Hashes;
    type Response = Result<IndexResponse, FetchError>;

    async fn poll(&self, claims: &[ApiServiceClaim], memory: IndexValidators) -> Result<IndexResponse, FetchError> {
        fetch_index(&self.fetch, claims, memory).await
    }

    fn apply(
        &self,
        response: Result<IndexResponse, FetchError>,
        claims: &[ApiServiceClaim],
        memory: &mut IndexValidators,
        hashes: &mut ContentMap<Hashes>,
    ) -> PollOutcome {
        let mut changed = false;
        let mut problems = self.problems.borrow_mut();
        for claim in claims {
            match &response {
                Ok(_) => changed |= problems.remove(&claim.name).is_some(),
                Err(problem) => {
                    let before = problems.insert(claim.name.clone(), problem.text.clone());
                    changed |= before.as_ref() != Some(&problem.text);
                    // A failure of the probe, too, is logged with the condition; one of the delegate by its discovery.
                    if before.is_none() && !problem.seen_by_probe {
                        let (apiservice, previous_hashes) = (&claim.name, hashes.get(&claim.name));
                        let suffix = if previous_hashes.is_some_and(|hashes| !hashes.is_empty()) {
                            "; last good answer served"
                        } else {
                            ""
                        };
                        tracing::warn!(apiservice, %problem, "OpenAPI of the backend failed{suffix}");
                    }
                }
            }
        }
        let mut found = match response {
            Err(_) => return PollOutcome { succeeded: false, changed },
            Ok(IndexResponse::Unchanged) => return PollOutcome { succeeded: true, changed },
            Ok(IndexResponse::Index { found, etag }) => {
                (memory.etag, memory.older) = (etag, None);
                self.converted.borrow_mut().retain(|name, _| !claims.iter().any(|claim| claim.name == *name));
                found
            }
            Ok(IndexResponse::Converted { made, etag }) => {
                (memory.etag, memory.older) = (None, etag);
                let hash = |document: &EncodedDocument| {
                    document.etag.to_str().unwrap_or_default().trim_matches('"').to_owned()
                };
                let its = |claim: &ApiServiceClaim| Some(Hashes::from([(key(claim), hash(made.get(&claim.name)?))]));
                let found = claims
                    .iter()
                    .filter_map(|claim| Some((claim.name.clone(), its(claim)?)))
                    .collect::<BTreeMap<_, _>>();
                let mut all = self.converted.borrow_mut();
                all.retain(|name, _| !claims.iter().any(|claim| claim.name == *name));
                all.extend(made.into_iter().filter(|(name, _)| found.contains_key(name)));
                found
            }
        };
        for claim in claims {
            let new = found.remove(&claim.name);
            let (moved, same) = (self.moved.borrow_mut().remove(&claim.name), hashes.get(&claim.name) == new.as_ref());
            if same && !moved {
                continue;
            }
            changed |= !same;
            match new {
                Some(new) => {
                    let cached = new.clone();
                    self.cache.store(claim, move || serde_json::to_vec(&cached).ok());
                    hashes.insert(claim.name.clone(), new);
                }
                None => {
                    self.cache.remove(&claim.name);
                    hashes.remove(&claim.name);
                }
            }
        }
        PollOutcome { succeeded: true, changed }
    }

    fn restore(&self, claim: &ApiServiceClaim) -> Option<oneshot::Receiver<Hashes>> {
        self.cache.restore(claim, parse_cached)
    }

    fn backend_changed(&self, name: &str, _: &mut Hashes) {
        self.moved.borrow_mut().insert(name.to_owned());
    }

    fn forget(&self, name: &str) {
        self.cache.remove(name);
        self.moved.borrow_mut().remove(name);
        self.converted.borrow_mut().remove(name);
        self.problems.borrow_mut().remove(name);
    }

    fn publish(&self, claims: &ClaimMap, hashes: &ContentMap<Hashes>, changed: &BTreeSet<String>) {
        let (made, problems) = (self.converted.borrow(), self.problems.borrow());
        let claim = |one: &ApiServiceClaim| ClaimedDocument {
            name: one.name.clone(),
            hash: hashes.get(&one.name).and_then(|hashes| hashes.get(&key(one))).cloned(),
            converted: made.get(&one.name).cloned(),
        };
        let changes = changed.iter().map(|name| {
            let claim = claims.get(name).filter(|one| one.served_by == ServedBy::Backend).map(claim);
            let keeps = hashes.get(name).is_some_and(|hashes| !hashes.is_empty());
            let problem = problems.get(name).map(|problem| with_last_good(problem, keeps).into());
            (name.clone(), index::IndexChange { claim, problem })
        });
        let offered = || claims.get(DELEGATE).and_then(|_| hashes.get(DELEGATE)).cloned().unwrap_or_default();
        let offered = changed.contains(DELEGATE).then(offered);
        let index = self.publisher.reader().get().updated(changes.collect(), offered);
        self.publisher.publish(Arc::new(index));
    }
}

enum IndexResponse {
    Unchanged,
    Index { found: BTreeMap<String, Hashes>, etag: Option<String> },
    Converted { made: ConvertedDocuments, etag: Option<String> },
}

async fn fetch_index<F: Fetch>(
    fetch: &F,
    claims: &[ApiServiceClaim],
    memory: IndexValidators,
) -> Result<IndexResponse, FetchError> {
    let etag = memory.etag.as_deref();
    let Some(first) = claims.first() else { return Ok(IndexResponse::Unchanged) };
    let fetched = fetch_bounded(fetch, &first.name, "/openapi/v3", "application/json", etag).await?;
    match fetched.status {
        200 => Ok(IndexResponse::Index {
            found: match claims {
                [delegate] if delegate.served_by == ServedBy::DelegateItself => {
                    BTreeMap::from([(delegate.name.clone(), parse_delegate(&fetched.body)?)])
                }
                _ => {
                    let mut found = parse(&fetched.body, claims)?;
                    let mut hash = |claim: &ApiServiceClaim| found.remove(&claim.name).map(|hash| (key(claim), hash));
                    let own = claims.iter().map(|claim| (claim.name.clone(), hash(claim)));
                    own.filter_map(|(name, own)| Some((name, Hashes::from([own?])))).collect()
                }
            },
            etag: fetched.etag.filter(|etag| etag.len() <= 256),
        }),
        304 if etag.is_some() => Ok(IndexResponse::Unchanged),
        // A server without OpenAPI v3 (before Kubernetes 1.24), or without OpenAPI.
        404 if first.served_by == ServedBy::DelegateItself => {
            Ok(IndexResponse::Index { found: BTreeMap::new(), etag: None })
        }
        404 => fetch_converted(fetch, claims, memory.older.as_deref()).await,
        status => Err(FetchError::new(format!("GET /openapi/v3 is answered with {status}"))),
    }
}

/// Fetches the OpenAPI v2 document and converts it to v3 (Kubernetes' `openapiv2converter`).
async fn fetch_converted<F: Fetch>(
    fetch: &F,
    claims: &[ApiServiceClaim],
    etag: Option<&str>,
) -> Result<IndexResponse, FetchError> {
    let Some(first) = claims.first() else { return Ok(IndexResponse::Unchanged) };
    let fetched = fetch_bounded(fetch, &first.name, "/openapi/v2", "application/json", etag).await?;
    match fetched.status {
        200 => {}
        304 if etag.is_some() => return Ok(IndexResponse::Unchanged),
        404 => return Ok(IndexResponse::Index { found: BTreeMap::new(), etag: None }),
        status => return Err(FetchError::new(format!("GET /openapi/v2 is answered with {status}"))),
    }
    let claims = claims.to_vec();
    let etag = fetched.etag.clone().filter(|etag| etag.len() <= 256);
    let make = move || -> Result<ConvertedDocuments, FetchError> {
        let make = |claim: &ApiServiceClaim| {
            let made = convert_to_v3(&fetched.body, &format!("{}/", claim.path()))?;
            Ok(made.map(|made| (claim.name.clone(), Arc::new(made))))
        };
        claims.iter().filter_map(|claim| make(claim).transpose()).collect()
    };
    let made = spawn_blocking(make).await.map_err(|error| FetchError::new(format!("GET /openapi/v2: {error}")))??;
    Ok(IndexResponse::Converted { made, etag })
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use tokio::task::LocalSet;
    use tokio::time::sleep;

    use super::super::index::tests::known;
    use super::*;
    use crate::discovery::FetchedResponse;

    /// Responses by APIService; without one the backend hangs.
    #[derive(Clone, Default)]
    struct FakeIndexes(Rc<RefCell<BTreeMap<String, FetchedResponse>>>);

    impl FakeIndexes {
        fn set(&self, apiservice: &str, status: u16, hash: &str) {
            let (version, group) = apiservice.split_once('.').unwrap();
            let key = format!("apis/{group}/{version}");
            let theft = r#""apis/stolen/v1":{"serverRelativeURL":"/openapi/v3/apis/stolen/v1"}"#;
            let body =
                format!(r#"{{"paths":{{{theft},"{key}":{{"serverRelativeURL":"/openapi/v3/{key}?hash={hash}"}}}}}}"#);
            self.0
                .borrow_mut()
                .insert(apiservice.into(), FetchedResponse { status, body: body.into(), ..FetchedResponse::default() });
        }
    }

    impl Fetch for FakeIndexes {
        async fn fetch(
            &self,
            apiservice: &str,
            path: &str,
            _: &str,
            _: Option<&str>,
            _: usize,
        ) -> Result<FetchedResponse, FetchError> {
            if path == "/openapi/v2" {
                return Ok(FetchedResponse { status: 404, ..FetchedResponse::default() });
            }
            assert_eq!(path, "/openapi/v3");
            let answer = self.0.borrow().get(apiservice).cloned();
            match answer {
                Some(fetched) => Ok(fetched),
                None => std::future::pending().await,
            }
        }
    }

    fn listed(index: &Published<Index>) -> Vec<String> {
        let value: serde_json::Value = serde_json::from_slice(&index.get().document().json).unwrap();
        let urls = value["paths"].as_object().unwrap().values().map(|it| it["serverRelativeURL"].as_str().unwrap());
        urls.filter(|url| !url.contains(REGISTRATIONS))
            .map(|url| url.trim_start_matches("/openapi/v3/apis/").to_owned())
            .collect()
    }

    #[test]
    fn openapi_index_lists_last_good_answers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let world = FakeIndexes::default();
            let (openapi, index) =
                OpenApiAggregator::start(world.clone(), LocalGroups::default(), &DiskCache::disabled());
            world.set("v1.good", 200, "A");
            openapi.set_api_services(vec![
                known("good", "v1", "g"),
                known("slow", "v1", "s"),
                known("stolen", "v1", "t"),
            ]);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(listed(&index), ["good/v1?hash=A"], "slow backend delays no other; foreign key ignored");

            world.set("v1.good", 500, "B");
            sleep(Duration::from_secs(60)).await;
            assert_eq!(listed(&index), ["good/v1?hash=A"], "the last good answer stays");

            world.set("v1.good", 200, "B");
            world.set("v1.slow", 200, "C");
            openapi.refresh_now("v1.good");
            sleep(Duration::from_secs(120)).await;
            assert_eq!(listed(&index), ["good/v1?hash=B", "slow/v1?hash=C"]);

            world.set("v1.slow", 404, "");
            openapi.set_api_services(vec![known("slow", "v1", "s")]);
            assert_eq!(listed(&index), ["slow/v1?hash=C"]);
            openapi.refresh_now("v1.slow");
            sleep(Duration::from_millis(1)).await;
            assert!(listed(&index).is_empty(), "it has none any more");
            assert_eq!(index.get().owner("/openapi/v3/apis/slow/v1"), Some("v1.slow"));
        });
    }
}
