//! Asks every backend for its OpenAPI index, keeps the last good answer, and publishes the merged one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::index::{Hash, Index, parse};
use super::own;
use crate::discovery::{Fetch, FetchError, Known, Rounds, bounded};
use crate::process::{Published, Publisher};

/// The running OpenAPI aggregation of all backends; dropping it ends their tasks.
///
/// Lives on one thread, inside a `LocalSet`; each backend has a task of its own.
pub struct OpenApi<F> {
    shared: Rc<Shared<F>>,
    rounds: RefCell<Rounds>,
}

struct Shared<F> {
    fetch: F,
    state: RefCell<State>,
    publisher: Publisher<Index>,
}

#[derive(Default)]
struct State {
    known: Vec<Known>,
    backends: BTreeMap<String, Backend>,
    /// By name of the APIService, where its backend listed a document for it when last heard.
    hashes: BTreeMap<String, Hash>,
}

struct Backend {
    claims: Rc<[Known]>,
    etag: Option<String>,
    /// Why the last round failed, if it did; so that it is said once.
    trouble: Option<String>,
}

impl<F: Fetch + 'static> OpenApi<F> {
    /// Begins with no APIService. The index holds our own document from the start.
    pub fn start(fetch: F) -> (OpenApi<F>, Published<Index>) {
        let (publisher, published) = Published::new(Index::new(&[], |_| None));
        let shared = Shared { fetch, state: RefCell::default(), publisher };
        (OpenApi { shared: Rc::new(shared), rounds: RefCell::default() }, published)
    }

    /// Takes over what is registered now; as `Discovery::follow`.
    pub fn follow(&self, mut known: Vec<Known>) {
        known.retain(|one| super::index::key(one) != own::KEY);
        known.sort_by(|a, b| a.name.cmp(&b.name));
        known.dedup_by(|a, b| a.name == b.name);
        let mut by_backend: BTreeMap<&str, Vec<Known>> = BTreeMap::new();
        for one in &known {
            by_backend.entry(&one.service_key).or_default().push(one.clone());
        }

        let mut state = self.shared.state.borrow_mut();
        if state.known == known {
            return;
        }
        let mut rounds = self.rounds.borrow_mut();
        rounds.retain(|key| by_backend.contains_key(key));
        state.backends.retain(|key, _| by_backend.contains_key(key.as_str()));
        for (key, claims) in &by_backend {
            let fresh = || Backend { claims: claims.as_slice().into(), etag: None, trouble: None };
            match state.backends.get_mut(*key) {
                Some(backend) if *backend.claims == **claims => {}
                Some(backend) => {
                    *backend = fresh();
                    rounds.nudge(key);
                }
                None => {
                    state.backends.insert((*key).to_owned(), fresh());
                    let (shared, its) = (self.shared.clone(), Rc::<str>::from(*key));
                    rounds.begin(key, move || round(shared.clone(), its.clone()));
                }
            }
        }
        state.hashes.retain(|name, _| known.binary_search_by(|one| one.name.as_str().cmp(name)).is_ok());
        state.known = known;
        self.shared.publish(&state);
    }

    /// Asks the backend of `apiservice` again now; for when it became available.
    pub fn nudge(&self, apiservice: &str) {
        let state = self.shared.state.borrow();
        if let Some(one) = state.known.iter().find(|one| one.name == apiservice) {
            self.rounds.borrow().nudge(&one.service_key);
        }
    }
}

impl<F> Shared<F> {
    fn publish(&self, state: &State) {
        self.publisher.publish(Arc::new(Index::new(&state.known, |one| state.hashes.get(&one.name))));
    }

    fn note(&self, key: &str, asked: &Rc<[Known]>, heard: Result<Heard, FetchError>) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(backend) = state.backends.get_mut(key) else { return true };
        let (mut found, etag) = match heard {
            Err(error) => {
                if backend.trouble.is_none() {
                    let apiservice = asked.first().map_or("", |claim| &claim.name);
                    tracing::warn!(apiservice, problem = %error, "OpenAPI of the backend failed; what it said last stays");
                }
                backend.trouble = Some(error.0);
                return false;
            }
            Ok(heard) => {
                backend.trouble = None;
                match heard {
                    Heard::Unchanged => return true,
                    Heard::Index { found, etag } => (found, etag),
                }
            }
        };
        // What was heard may be about APIServices that have gone or moved meanwhile.
        backend.etag = if Rc::ptr_eq(&backend.claims, asked) { etag } else { None };
        let mut changed = false;
        for claim in backend.claims.iter().filter(|claim| asked.iter().any(|one| one.name == claim.name)) {
            let new = found.remove(&claim.name);
            if state.hashes.get(&claim.name) != new.as_ref() {
                changed = true;
                match new {
                    Some(hash) => drop(state.hashes.insert(claim.name.clone(), hash)),
                    None => drop(state.hashes.remove(&claim.name)),
                }
            }
        }
        if changed {
            self.publish(state);
        }
        true
    }
}

enum Heard {
    Unchanged,
    Index { found: BTreeMap<String, Hash>, etag: Option<String> },
}

async fn round<F: Fetch>(shared: Rc<Shared<F>>, key: Rc<str>) -> bool {
    let Some((claims, etag)) =
        shared.state.borrow().backends.get(&*key).map(|backend| (backend.claims.clone(), backend.etag.clone()))
    else {
        return true;
    };
    let heard = ask(&shared.fetch, &claims, etag.as_deref()).await;
    shared.note(&key, &claims, heard)
}

async fn ask<F: Fetch>(fetch: &F, claims: &[Known], etag: Option<&str>) -> Result<Heard, FetchError> {
    let Some(first) = claims.first() else { return Ok(Heard::Unchanged) };
    let fetched = bounded(fetch, &first.name, "/openapi/v3", "application/json", etag).await?;
    match fetched.status {
        200 => Ok(Heard::Index {
            found: parse(&fetched.body, claims)?,
            etag: fetched.etag.filter(|etag| etag.len() <= 256),
        }),
        304 if etag.is_some() => Ok(Heard::Unchanged),
        // A server from before OpenAPI v3, or one without any.
        404 => Ok(Heard::Index { found: BTreeMap::new(), etag: None }),
        status => Err(FetchError(format!("GET /openapi/v3 is answered with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::LocalSet;
    use tokio::time::sleep;

    use super::super::index::tests::known;
    use super::*;
    use crate::discovery::Fetched;

    /// What each APIService's backend answers; nothing set is silence.
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
        async fn fetch(&self, apiservice: &str, path: &str, _: &str, _: Option<&str>) -> Result<Fetched, FetchError> {
            assert_eq!(path, "/openapi/v3");
            let answer = self.0.borrow().get(apiservice).cloned();
            match answer {
                Some(fetched) => Ok(fetched),
                None => std::future::pending().await,
            }
        }
    }

    fn listed(index: &Published<Index>) -> Vec<String> {
        let value: serde_json::Value = serde_json::from_slice(&index.get().document.json).unwrap();
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
            let (openapi, index) = OpenApi::start(world.clone());
            world.set("v1.good", 200, "A");
            openapi.follow(vec![known("good", "v1", "g"), known("slow", "v1", "s"), known("stolen", "v1", "t")]);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(listed(&index), ["good/v1?hash=A"], "neither waits for the slow nor believes the thief");

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
