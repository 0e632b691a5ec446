//! Polls every backend for its OpenAPI index, keeps the last good response, and publishes the merged index.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::index::{self, Claim, Hashes, Index, key, parse, parse_whole, recalled};
use super::own;
use super::version2::as_version3;
use crate::discovery::{
    All, By, Change, Contents, Document, Fetch, FetchError, Keeper, Kept, Known, Outcome, Own, Shelf, Subject, bounded,
    with_last_good,
};
use crate::process::{Published, Publisher};
use crate::registry::DELEGATE;

/// The running OpenAPI aggregation of all backends; dropping it ends its tasks.
///
/// Lives on one thread, inside a `LocalSet`. Each backend has a task of its own.
pub struct OpenApi<F: Fetch + 'static> {
    keeper: Keeper<Aggregation<F>>,
    own: Own,
}

struct Aggregation<F> {
    fetch: F,
    publisher: Publisher<Index>,
    shelf: Shelf,
    made: RefCell<Made>,
    /// APIServices that moved to another backend, which has not answered yet.
    moved: RefCell<BTreeSet<String>>,
    /// Errors of the last poll, by name of the APIService.
    problems: RefCell<BTreeMap<String, String>>,
}

/// Documents converted from OpenAPI v2, by name of the APIService.
type Made = BTreeMap<String, Arc<Document>>;

#[derive(Clone, Default)]
struct Memory {
    /// Entity tag of the last good response.
    etag: Option<String>,
    /// Entity tag of the last good OpenAPI v2 document, if there is no v3.
    older: Option<String>,
}

impl<F: Fetch + 'static> OpenApi<F> {
    /// Starts without APIServices. The index contains the local document from the start. `kept` is the disk cache.
    pub fn start(fetch: F, own: Own, kept: &Kept) -> (OpenApi<F>, Published<Index>) {
        let (publisher, published) = Published::new(Index::empty(own));
        let shelf = kept.shelf("openapi-v3");
        (
            OpenApi {
                keeper: Keeper::new(Aggregation {
                    fetch,
                    publisher,
                    shelf,
                    made: RefCell::default(),
                    moved: RefCell::default(),
                    problems: RefCell::default(),
                }),
                own,
            },
            published,
        )
    }

    /// Replaces the set of APIServices, as `Discovery::follow`.
    pub fn follow(&self, mut known: Vec<Known>) {
        known.retain(|one| !self.own.has_registrations() || key(one) != own::KEY);
        self.keeper.follow(known);
    }

    /// As [`OpenApi::follow`] when only these APIServices changed.
    pub fn follow_changes(&self, mut changes: Vec<Change>) {
        let ours = |one: &Known| self.own.has_registrations() && key(one) == own::KEY;
        changes.retain(|(_, now)| !now.as_ref().is_some_and(ours));
        self.keeper.follow_changes(changes);
    }

    /// Polls the backend of `apiservice` now, for example when it became available.
    pub fn nudge(&self, apiservice: &str) {
        self.keeper.nudge(apiservice);
    }
}

impl<F: Fetch + 'static> Subject for Aggregation<F> {
    type Memory = Memory;
    /// The hashes that the backend listed last for this APIService.
    type Content = Hashes;
    type Heard = Result<Heard, FetchError>;

    async fn ask(&self, claims: &[Known], memory: Memory) -> Result<Heard, FetchError> {
        ask(&self.fetch, claims, memory).await
    }

    fn hear(
        &self,
        heard: Result<Heard, FetchError>,
        claims: &[Known],
        memory: &mut Memory,
        hashes: &mut Contents<Hashes>,
    ) -> Outcome {
        let mut changed = false;
        let mut problems = self.problems.borrow_mut();
        for claim in claims {
            match &heard {
                Ok(_) => changed |= problems.remove(&claim.name).is_some(),
                Err(problem) => {
                    let before = problems.insert(claim.name.clone(), problem.text.clone());
                    changed |= before.as_ref() != Some(&problem.text);
                    // A failure of the probe, too, is logged with the condition; one of the delegate by its discovery.
                    if before.is_none() && !problem.seen_by_probe {
                        let (apiservice, known) = (&claim.name, hashes.get(&claim.name));
                        let kept =
                            if known.is_some_and(|known| !known.is_empty()) { "; last good answer served" } else { "" };
                        tracing::warn!(apiservice, %problem, "OpenAPI of the backend failed{kept}");
                    }
                }
            }
        }
        let mut found = match heard {
            Err(_) => return Outcome { well: false, changed },
            Ok(Heard::Unchanged) => return Outcome { well: true, changed },
            Ok(Heard::Index { found, etag }) => {
                (memory.etag, memory.older) = (etag, None);
                self.made.borrow_mut().retain(|name, _| !claims.iter().any(|claim| claim.name == *name));
                found
            }
            Ok(Heard::Made { made, etag }) => {
                (memory.etag, memory.older) = (None, etag);
                let hash =
                    |document: &Document| document.etag.to_str().unwrap_or_default().trim_matches('"').to_owned();
                let its = |claim: &Known| Some(Hashes::from([(key(claim), hash(made.get(&claim.name)?))]));
                let found = claims
                    .iter()
                    .filter_map(|claim| Some((claim.name.clone(), its(claim)?)))
                    .collect::<BTreeMap<_, _>>();
                let mut all = self.made.borrow_mut();
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
                    let kept = new.clone();
                    self.shelf.keep(claim, move || serde_json::to_vec(&kept).ok());
                    hashes.insert(claim.name.clone(), new);
                }
                None => {
                    self.shelf.forget(&claim.name);
                    hashes.remove(&claim.name);
                }
            }
        }
        Outcome { well: true, changed }
    }

    fn recall(&self, known: &Known) -> Option<oneshot::Receiver<Hashes>> {
        self.shelf.recall(known, recalled)
    }

    fn moves(&self, name: &str, _: &mut Hashes) {
        self.moved.borrow_mut().insert(name.to_owned());
    }

    fn forget(&self, name: &str) {
        self.shelf.forget(name);
        self.moved.borrow_mut().remove(name);
        self.made.borrow_mut().remove(name);
        self.problems.borrow_mut().remove(name);
    }

    fn publish(&self, known: &All, hashes: &Contents<Hashes>, changed: &BTreeSet<String>) {
        let (made, problems) = (self.made.borrow(), self.problems.borrow());
        let claim = |one: &Known| Claim {
            name: one.name.clone(),
            hash: hashes.get(&one.name).and_then(|hashes| hashes.get(&key(one))).cloned(),
            made: made.get(&one.name).cloned(),
        };
        let changes = changed.iter().map(|name| {
            let claim = known.get(name).filter(|one| one.by == By::Backend).map(claim);
            let keeps = hashes.get(name).is_some_and(|hashes| !hashes.is_empty());
            let problem = problems.get(name).map(|problem| with_last_good(problem, keeps).into());
            (name.clone(), index::Change { claim, problem })
        });
        let offered = || known.get(DELEGATE).and_then(|_| hashes.get(DELEGATE)).cloned().unwrap_or_default();
        let offered = changed.contains(DELEGATE).then(offered);
        let index = self.publisher.reader().get().with(changes.collect(), offered);
        self.publisher.publish(Arc::new(index));
    }
}

enum Heard {
    Unchanged,
    Index { found: BTreeMap<String, Hashes>, etag: Option<String> },
    Made { made: Made, etag: Option<String> },
}

async fn ask<F: Fetch>(fetch: &F, claims: &[Known], memory: Memory) -> Result<Heard, FetchError> {
    let etag = memory.etag.as_deref();
    let Some(first) = claims.first() else { return Ok(Heard::Unchanged) };
    let fetched = bounded(fetch, &first.name, "/openapi/v3", "application/json", etag).await?;
    match fetched.status {
        200 => Ok(Heard::Index {
            found: match claims {
                [delegate] if delegate.by == By::Itself => {
                    BTreeMap::from([(delegate.name.clone(), parse_whole(&fetched.body)?)])
                }
                _ => {
                    let mut found = parse(&fetched.body, claims)?;
                    let mut hash = |claim: &Known| found.remove(&claim.name).map(|hash| (key(claim), hash));
                    let own = claims.iter().map(|claim| (claim.name.clone(), hash(claim)));
                    own.filter_map(|(name, own)| Some((name, Hashes::from([own?])))).collect()
                }
            },
            etag: fetched.etag.filter(|etag| etag.len() <= 256),
        }),
        304 if etag.is_some() => Ok(Heard::Unchanged),
        // A server without OpenAPI v3 (before Kubernetes 1.24), or without OpenAPI.
        404 if first.by == By::Itself => Ok(Heard::Index { found: BTreeMap::new(), etag: None }),
        404 => older(fetch, claims, memory.older.as_deref()).await,
        status => Err(FetchError::new(format!("GET /openapi/v3 is answered with {status}"))),
    }
}

/// Fetches the OpenAPI v2 document and converts it to v3 (upstream's `openapiv2converter`).
async fn older<F: Fetch>(fetch: &F, claims: &[Known], etag: Option<&str>) -> Result<Heard, FetchError> {
    let Some(first) = claims.first() else { return Ok(Heard::Unchanged) };
    let fetched = bounded(fetch, &first.name, "/openapi/v2", "application/json", etag).await?;
    match fetched.status {
        200 => {}
        304 if etag.is_some() => return Ok(Heard::Unchanged),
        404 => return Ok(Heard::Index { found: BTreeMap::new(), etag: None }),
        status => return Err(FetchError::new(format!("GET /openapi/v2 is answered with {status}"))),
    }
    let claims = claims.to_vec();
    let etag = fetched.etag.clone().filter(|etag| etag.len() <= 256);
    let make = move || -> Result<Made, FetchError> {
        let make = |claim: &Known| {
            let made = as_version3(&fetched.body, &format!("{}/", claim.path()))?;
            Ok(made.map(|made| (claim.name.clone(), Arc::new(made))))
        };
        claims.iter().filter_map(|claim| make(claim).transpose()).collect()
    };
    let made = spawn_blocking(make).await.map_err(|error| FetchError::new(format!("GET /openapi/v2: {error}")))??;
    Ok(Heard::Made { made, etag })
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use tokio::task::LocalSet;
    use tokio::time::sleep;

    use super::super::index::tests::known;
    use super::*;
    use crate::discovery::Fetched;

    /// Responses by APIService; without one the backend hangs.
    #[derive(Clone, Default)]
    struct World(Rc<RefCell<BTreeMap<String, Fetched>>>);

    impl World {
        fn set(&self, apiservice: &str, status: u16, hash: &str) {
            let (version, group) = apiservice.split_once('.').unwrap();
            let key = format!("apis/{group}/{version}");
            let theft = r#""apis/stolen/v1":{"serverRelativeURL":"/openapi/v3/apis/stolen/v1"}"#;
            let body =
                format!(r#"{{"paths":{{{theft},"{key}":{{"serverRelativeURL":"/openapi/v3/{key}?hash={hash}"}}}}}}"#);
            self.0.borrow_mut().insert(apiservice.into(), Fetched { status, body: body.into(), ..Fetched::default() });
        }
    }

    impl Fetch for World {
        async fn fetch(
            &self,
            apiservice: &str,
            path: &str,
            _: &str,
            _: Option<&str>,
            _: usize,
        ) -> Result<Fetched, FetchError> {
            if path == "/openapi/v2" {
                return Ok(Fetched { status: 404, ..Fetched::default() });
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
        urls.filter(|url| !url.contains(own::KEY))
            .map(|url| url.trim_start_matches("/openapi/v3/apis/").to_owned())
            .collect()
    }

    #[test]
    fn what_each_backend_said_last_is_listed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let world = World::default();
            let (openapi, index) = OpenApi::start(world.clone(), Own::default(), &Kept::nowhere());
            world.set("v1.good", 200, "A");
            openapi.follow(vec![known("good", "v1", "g"), known("slow", "v1", "s"), known("stolen", "v1", "t")]);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(listed(&index), ["good/v1?hash=A"], "slow backend delays no other; foreign key ignored");

            world.set("v1.good", 500, "B");
            sleep(Duration::from_secs(60)).await;
            assert_eq!(listed(&index), ["good/v1?hash=A"], "the last good answer stays");

            world.set("v1.good", 200, "B");
            world.set("v1.slow", 200, "C");
            openapi.nudge("v1.good");
            sleep(Duration::from_secs(120)).await;
            assert_eq!(listed(&index), ["good/v1?hash=B", "slow/v1?hash=C"]);

            world.set("v1.slow", 404, "");
            openapi.follow(vec![known("slow", "v1", "s")]);
            assert_eq!(listed(&index), ["slow/v1?hash=C"]);
            openapi.nudge("v1.slow");
            sleep(Duration::from_millis(1)).await;
            assert!(listed(&index).is_empty(), "it has none any more");
            assert_eq!(index.get().owner("/openapi/v3/apis/slow/v1"), Some("v1.slow"));
        });
    }
}
