//! Polls every source for its OpenAPI v2 document while clients request the merged one.
//!
//! Few clients do, and the documents are large. Nothing is fetched, kept or merged before the first request, and all of
//! it is dropped after an idle time. Merging runs on a blocking thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{AbortHandle, spawn_blocking, spawn_local};
use tokio::time::{Instant, sleep_until};

use super::local_parts::BuildLocalV2;
use super::merge_task::{MergeSources, merge_on_change, path_prefix};
use super::poll_source::{OpenApiV2PollSource, RestoredParts};
use super::serve::{DocumentDemand, OpenApiV2};
use super::source_document::SourceDocument;
use crate::discovery::{ApiServiceClaim, CacheSection, ClaimChange, ClaimMap, DiskCache, Fetch, Poller, ServedBy};
use crate::process::Published;

/// Idle time after which everything is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

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
    /// Notified when `claims` changed.
    changed: Notify,
    restored: RestoredParts,
    sources: watch::Sender<Option<Arc<MergeSources>>>,
}

impl<F: Fetch + 'static> Drop for OpenApiV2Aggregator<F> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl<F: Fetch + 'static> OpenApiV2Aggregator<F> {
    /// Starts without APIServices, and idles until the first request. `local` builds the document of what is served
    /// locally. Call it inside the `LocalSet`.
    pub fn start(fetch: F, disk_cache: &DiskCache, local: Option<BuildLocalV2>) -> (OpenApiV2Aggregator<F>, OpenApiV2) {
        let (publisher, built) = Published::new(None);
        let (sources, changes) = watch::channel(None);
        let demand = Arc::<DocumentDemand>::default();
        let shelf = disk_cache.section("openapi-v2");
        let recalled = RestoredParts::default();
        let source = OpenApiV2PollSource {
            fetch,
            sources: sources.clone(),
            reading: Semaphore::new(1),
            cache: shelf.clone(),
            restored: recalled.clone(),
        };
        let poller = Poller::new(source);
        let inner = AggregatorInner {
            poller,
            cache: shelf,
            claims: RefCell::default(),
            changed: Notify::new(),
            restored: recalled,
            sources,
        };
        let inner = Rc::new(inner);
        let waking = spawn_local(inner.clone().run(demand.clone()));
        let merging = spawn_local(merge_on_change(changes, publisher, local));
        let tasks = [waking.abort_handle(), merging.abort_handle()];
        (OpenApiV2Aggregator { inner, tasks }, OpenApiV2 { document: built, demand })
    }

    /// Replaces the set of APIServices, as `Discovery::set_api_services`.
    pub fn set_api_services(&self, claims: Vec<ApiServiceClaim>) {
        let mut changes: BTreeMap<String, Option<ApiServiceClaim>> = BTreeMap::new();
        changes.extend(self.inner.claims.borrow().keys().map(|name| (name.clone(), None)));
        changes.extend(claims.into_iter().map(|one| (one.name.clone(), Some(one))));
        self.apply_changes(changes);
    }

    /// As [`OpenApiV2Aggregator::set_api_services`] when only these changed.
    pub fn apply_changes(&self, changes: impl IntoIterator<Item = ClaimChange>) {
        let mut claims = self.inner.claims.borrow_mut();
        for (name, now) in changes {
            // The document of the delegate covers Local APIServices.
            match now.filter(|one| one.served_by != ServedBy::Delegate) {
                Some(one) => drop(claims.insert(name, one)),
                None => {
                    if claims.remove(&name).is_some() {
                        self.inner.cache.remove(&name);
                    }
                }
            }
        }
        self.inner.changed.notify_one();
    }

    /// Merges again: what is served locally has changed.
    pub fn local_changed(&self) {
        self.inner.sources.send_if_modified(|sources| sources.is_some());
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
        let claims: Vec<ApiServiceClaim> = self.claims.borrow().values().cloned().collect();
        let new: Vec<ApiServiceClaim> =
            claims.iter().filter(|one| looked_up.insert(one.name.clone())).cloned().collect();
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
        self.poller.set_api_services(claims);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use http::{HeaderMap, Method};
    use tokio::task::LocalSet;
    use tokio::time::sleep;

    use super::super::poll_source::MAX_BACKEND_DOCUMENT;
    use super::*;
    use crate::discovery::{FetchError, FetchedResponse};
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
        let response = version2.answer(&Method::GET, &HeaderMap::new(), Duration::from_secs(10)).await.unwrap();
        match response.into_body() {
            Body::Full(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        }
    }

    #[test]
    fn openapi_v2_first_request_waits_for_slow_merge() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let (finish, finished) = std::sync::mpsc::channel::<()>();
            let finished = std::sync::Mutex::new(finished);
            let started = Arc::new(Notify::new());
            let starting = started.clone();
            let local: BuildLocalV2 = Arc::new(move |_| {
                starting.notify_one();
                // Until the test goes on.
                let _ = finished.lock().unwrap().recv();
                Vec::new()
            });
            let (_aggregation, version2) =
                OpenApiV2Aggregator::start(FakeBackend::default(), &DiskCache::disabled(), Some(local));
            let limit = Duration::from_secs(60);
            let (method, headers) = (Method::GET, HeaderMap::new());
            let mut answer = Box::pin(version2.answer(&method, &headers, limit));
            tokio::select! {
                biased;
                _ = &mut answer => panic!("nothing is merged"),
                () = started.notified() => {}
            }
            tokio::time::advance(Duration::from_secs(59)).await;
            tokio::select! {
                biased;
                _ = &mut answer => panic!("nothing is merged"),
                () = tokio::task::yield_now() => {}
            }
            drop(finish);
            assert_eq!(answer.await.unwrap().status(), 200);
        });
    }

    #[test]
    fn openapi_v2_dropped_when_idle_but_cached_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let kept = DiskCache::in_directory(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let world = FakeBackend::default();
            *world.0.0.borrow_mut() = Some(document("/apis/a/v1/things"));
            let (aggregation, version2) = OpenApiV2Aggregator::start(world.clone(), &kept, None);
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
}
