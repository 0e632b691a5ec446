//! Runs the watches of a kube-apiserver and applies their events.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::AbortHandle;
use futures_util::future::Abortable;
use rustls_pki_types::UnixTime;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::cluster_store::ClusterStore;
use super::statuses::ApiServiceStatuses;
use super::stored_objects::StoredObjects;
use super::watched_resource::{EMBEDDED_API_SERVER, KUBE_APISERVER, WatchedResource};
use crate::egress::Dialer;
use crate::kubeclient::watch::{self, ReflectorHandler, WatchFailure};
use crate::kubeclient::{Client, Kubeconfig, KubeconfigSource};
use crate::process::{Problem, Problems, Publisher};
use crate::registry::layered_sources::{self, DirtySet};
use crate::registry::objects::api_service::ApiService;
use crate::registry::settings::Settings;

/// Wait for a namespace before a new APIService is published without it.
const NAMESPACE_WAIT: Duration = Duration::from_secs(1);
/// Timeout of the wait for a namespace.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the registry's kube-apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The server's `host:port`, from the kubeconfig.
    pub server: String,
    /// Whether all objects were listed at least once.
    pub complete: bool,
    /// Since when it cannot be watched, and the error. The last known objects stay in use.
    pub failing: Option<(SystemTime, String)>,
}

/// A kube-apiserver, with its valid kubeconfig.
pub struct ClusterSource {
    settings: Settings,
    source: KubeconfigSource,
    kubeconfig: Kubeconfig,
}

impl ClusterSource {
    /// Reads the kubeconfig.
    ///
    /// # Errors
    /// All problems in it.
    pub fn open(source: KubeconfigSource, settings: Settings) -> Result<ClusterSource, Problems> {
        let kubeconfig = source.load()?;
        Ok(ClusterSource { settings, source, kubeconfig })
    }

    /// Certificates of the kubeconfig that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        self.kubeconfig.untimely(now)
    }

    /// State of the source before the first list.
    pub fn state(&self) -> ClusterState {
        ClusterState { server: self.kubeconfig.server().to_string(), ..ClusterState::default() }
    }

    /// Creates the client on this thread's `LocalSet`, which also watches the kubeconfig.
    pub fn client(self, dialer: Dialer) -> (Rc<Client>, ClusterClient) {
        let now = self.state();
        tracing::info!(file = %self.source, server = now.server, "watching the registry of a kube-apiserver");
        let client = Client::new(self.source, self.kubeconfig, dialer);
        let following = AbortOnDrop::spawn(client.clone().follow());
        let objects = WatchedObjects::Client(client.clone());
        let watched = ClusterClient { objects, settings: self.settings, state: now, _follow_task: Some(following) };
        (client, watched)
    }
}

/// A kube-apiserver with its client, or the store of the embedded API server, before its watches start.
pub struct ClusterClient {
    objects: WatchedObjects,
    settings: Settings,
    state: ClusterState,
    _follow_task: Option<AbortOnDrop>,
}

/// Where the objects are watched.
#[derive(Clone)]
enum WatchedObjects {
    /// In a kube-apiserver.
    Client(Rc<Client>),
    /// In the store of the embedded API server.
    Store(Rc<StoredObjects>),
}

impl ClusterClient {
    /// The store of the embedded API server as a source. To be started on a `LocalSet`.
    pub fn of_store(objects: StoredObjects, settings: Settings) -> ClusterClient {
        let state = ClusterState { server: EMBEDDED_API_SERVER.to_owned(), ..ClusterState::default() };
        ClusterClient { objects: WatchedObjects::Store(Rc::new(objects)), settings, state, _follow_task: None }
    }

    /// Starts its watches.
    pub(in crate::registry) fn start(
        self,
        state: Publisher<ClusterState>,
        statuses: ApiServiceStatuses,
    ) -> ClusterFollower {
        let ClusterClient { objects, settings, state: now, _follow_task } = self;
        let shared = Rc::new(ClusterShared {
            store: RefCell::new(ClusterStore::new(objects.name(), settings, statuses)),
            failing: RefCell::default(),
            healthy_since: Cell::new(Instant::now()),
            changed: Notify::new(),
            dirty: Cell::new(false),
        });
        let mut followed =
            ClusterFollower { objects, shared, tasks: BTreeMap::new(), state, last_state: now, _follow_task };
        followed.start_watch(WatchedResource::ApiServices);
        followed
    }
}

/// A watched kube-apiserver. Dropping it ends the watches.
pub(in crate::registry) struct ClusterFollower {
    objects: WatchedObjects,
    shared: Rc<ClusterShared>,
    tasks: BTreeMap<WatchedResource, AbortOnDrop>,
    state: Publisher<ClusterState>,
    /// The state published last.
    last_state: ClusterState,
    _follow_task: Option<AbortOnDrop>,
}

/// State that the watches write and the follower reads. Never borrowed across an await.
struct ClusterShared {
    store: RefCell<ClusterStore>,
    /// Collections that cannot be watched now, since when, and the error.
    failing: RefCell<BTreeMap<WatchedResource, (SystemTime, String)>>,
    /// Since when the server answers.
    healthy_since: Cell<Instant>,
    changed: Notify,
    dirty: Cell<bool>,
}

/// Handler of the events of one watch.
struct ClusterHandler {
    shared: Rc<ClusterShared>,
    kind: WatchedResource,
}

/// A task that ends when this is dropped.
struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    fn spawn(work: impl Future<Output = ()> + 'static) -> AbortOnDrop {
        let (handle, registration) = AbortHandle::new_pair();
        tokio::task::spawn_local(Abortable::new(work, registration));
        AbortOnDrop(handle)
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl WatchedObjects {
    /// Name of the source in messages.
    fn name(&self) -> &'static str {
        match self {
            WatchedObjects::Client(_) => KUBE_APISERVER,
            WatchedObjects::Store(_) => EMBEDDED_API_SERVER,
        }
    }
}

impl ClusterFollower {
    /// Waits for a change. Cancel safe: a dropped call loses no change.
    pub(in crate::registry) async fn changed(&self) {
        while !self.shared.dirty.get() {
            self.shared.changed.notified().await;
        }
    }

    /// Sets the APIService of this name of the registry directory (`None`: it has none). Its Service is watched too.
    pub(in crate::registry) fn set_directory_reference(&self, name: &str, one: Option<&ApiService>) {
        self.shared.store.borrow_mut().set_directory_reference(name, one);
    }

    /// Takes the changes since the last call. Starts and stops watches of referenced namespaces.
    pub(in crate::registry) fn take_update(&mut self) -> ClusterUpdate {
        self.shared.dirty.set(false);
        let plan = self.shared.store.borrow_mut().reconcile();
        for name in plan.stop {
            for kind in [WatchedResource::Services(name.clone()), WatchedResource::EndpointSlices(name.clone())] {
                self.tasks.remove(&kind);
                self.shared.failing.borrow_mut().remove(&kind);
            }
            self.shared.store.borrow_mut().remove_namespace(&name);
        }
        for kind in plan.restart {
            self.start_watch(kind);
        }
        let mut store = self.shared.store.borrow_mut();
        let taken = ClusterUpdate { dirty: store.take_dirty(), problems: store.problems(), complete: store.complete };
        drop(store);
        self.publish_state(taken.complete);
        taken
    }

    /// Known objects of the source. Must not be held across an await.
    pub(in crate::registry) fn store(&self) -> Ref<'_, dyn layered_sources::RegistrySource> {
        Ref::map(self.shared.store.borrow(), |store| store as &dyn layered_sources::RegistrySource)
    }

    /// Starts or restarts the watch of a collection.
    fn start_watch(&mut self, kind: WatchedResource) {
        let path = list_path(&kind);
        let (objects, teller) =
            (self.objects.clone(), ClusterHandler { shared: self.shared.clone(), kind: kind.clone() });
        let following = async move {
            let watching = async {
                match objects {
                    WatchedObjects::Client(client) => watch::list_and_watch(client, &path, &teller).await,
                    WatchedObjects::Store(objects) => objects.list_and_watch(&teller.kind, &teller).await,
                }
            };
            futures_util::join!(watching, teller.shared.time_out_namespace(&teller.kind));
        };
        self.tasks.insert(kind, AbortOnDrop::spawn(following));
    }

    /// Logs and publishes the state, if it changed.
    fn publish_state(&mut self, complete: bool) {
        let failing = self.shared.failing.borrow().values().min_by_key(|(since, _)| *since).cloned();
        let next = ClusterState { server: self.last_state.server.clone(), complete, failing };
        if next == self.last_state {
            return;
        }
        let source = self.objects.name();
        match (&self.last_state.failing, &next.failing) {
            (None, Some((_, why))) => {
                tracing::warn!(why, "the registry's {source} cannot be watched; its last known objects stay in use");
            }
            (Some(_), None) => tracing::info!("the registry's {source} is watched again"),
            _ => {}
        }
        if next.complete && !self.last_state.complete {
            tracing::info!("the registry of the {source} is completely listed");
        }
        self.last_state = next.clone();
        self.state.publish(Arc::new(next));
    }
}

/// Changes of a watched kube-apiserver.
pub(in crate::registry) struct ClusterUpdate {
    /// Names of objects that may have changed.
    pub(in crate::registry) dirty: DirtySet,
    /// All current errors.
    pub(in crate::registry) problems: Problems,
    /// Whether all objects were listed at least once.
    pub(in crate::registry) complete: bool,
}

impl ClusterHandler {
    fn update_store(&self, tell: impl FnOnce(&mut ClusterStore)) {
        let before = self.shared.store.borrow().change_count;
        tell(&mut self.shared.store.borrow_mut());
        if self.shared.store.borrow().change_count != before {
            self.shared.wake();
        }
    }
}

impl ClusterShared {
    fn wake(&self) {
        self.dirty.set(true);
        self.changed.notify_one();
    }

    /// Reports a namespace as late after each timeout.
    async fn time_out_namespace(&self, kind: &WatchedResource) {
        let WatchedResource::Services(namespace) = kind else { return };
        let began = Instant::now();
        for (patience, give_up) in [(NAMESPACE_WAIT, false), (NAMESPACE_TIMEOUT, true)] {
            loop {
                // While the server is unreachable, the wait for a namespace does not count.
                let is_failing = self.failing.borrow().contains_key(&WatchedResource::ApiServices);
                let waited = began.max(self.healthy_since.get()).elapsed();
                if !is_failing && waited >= patience {
                    break;
                }
                sleep(if is_failing { patience } else { patience - waited }).await;
            }
            self.store.borrow_mut().record_timeout(namespace, give_up);
            self.wake();
        }
    }
}

impl ReflectorHandler for ClusterHandler {
    fn on_list_start(&self) {
        self.update_store(|store| store.begin_list(&self.kind));
    }

    fn on_item(&self, object: &RawValue) {
        self.update_store(|store| store.apply_object(&self.kind, object, true));
    }

    fn on_synced(&self) {
        self.update_store(|store| store.finish_list(&self.kind));
    }

    fn on_apply(&self, object: &RawValue) {
        self.update_store(|store| store.apply_object(&self.kind, object, false));
    }

    fn on_delete(&self, object: &RawValue) {
        self.update_store(|store| store.delete_object(&self.kind, object));
    }

    fn on_healthy(&self, _: Duration) {
        if self.kind == WatchedResource::ApiServices && self.shared.failing.borrow().contains_key(&self.kind) {
            self.shared.healthy_since.set(Instant::now());
        }
        if self.shared.failing.borrow_mut().remove(&self.kind).is_some() {
            self.shared.wake();
        }
    }

    fn on_error(&self, failure: &WatchFailure) {
        tracing::debug!(kind = ?self.kind, why = failure.why, "a watch of the registry failed");
        let why = format!("{}: {}", list_path(&self.kind), failure.why);
        self.shared.failing.borrow_mut().entry(self.kind.clone()).or_insert((SystemTime::now(), String::new())).1 = why;
        // Clients may see this message: it contains no addresses.
        let source = self.shared.store.borrow().source;
        let why = match failure.status {
            Some(status) => format!("the {source} answered {status}"),
            None => format!("the {source} did not answer"),
        };
        self.update_store(|store| {
            store.record_failure(&self.kind, &why, failure.status.is_some_and(is_permanent_failure))
        });
        self.shared.wake();
    }
}

/// Whether a retry would get the same status. Not so for 401: a token is renewed.
fn is_permanent_failure(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 408 | 429)
}

fn list_path(kind: &WatchedResource) -> String {
    match kind {
        WatchedResource::ApiServices => "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
        WatchedResource::Services(namespace) => format!("/api/v1/namespaces/{namespace}/services"),
        WatchedResource::EndpointSlices(namespace) => {
            format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_failure_permanent_by_status() {
        for (status, refusal) in [
            (400, true),
            (401, false),
            (403, true),
            (404, true),
            (408, false),
            (429, false),
            (500, false),
            (504, false),
        ] {
            assert_eq!(is_permanent_failure(status), refusal, "{status}");
        }
    }
}
