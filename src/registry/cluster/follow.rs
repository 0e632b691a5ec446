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

use super::known::{Kind, Known};
use super::state::ClusterState;
use super::statuses::Statuses;
use crate::egress::Dialler;
use crate::kubeclient::watch::{self, Keeper, WatchFailure};
use crate::kubeclient::{Client, Kubeconfig, Source};
use crate::process::{Problem, Problems, Publisher};
use crate::registry::api_service::ApiService;
use crate::registry::snapshot::Settings;
use crate::registry::source::{self, Touched};

/// Wait for a namespace before a new APIService is published without it.
const SOON: Duration = Duration::from_secs(1);
/// Timeout of the wait for a namespace.
const PATIENCE: Duration = Duration::from_secs(10);

/// A kube-apiserver, with its valid kubeconfig.
pub struct Cluster {
    settings: Settings,
    source: Source,
    kubeconfig: Kubeconfig,
}

impl Cluster {
    /// Reads the kubeconfig.
    ///
    /// # Errors
    /// All problems in it.
    pub fn open(source: Source, settings: Settings) -> Result<Cluster, Problems> {
        let kubeconfig = source.load()?;
        Ok(Cluster { settings, source, kubeconfig })
    }

    /// Certificates of the kubeconfig that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        self.kubeconfig.untimely(now)
    }

    /// Its state before the first list.
    pub fn state(&self) -> ClusterState {
        ClusterState { server: self.kubeconfig.server().to_string(), ..ClusterState::default() }
    }

    /// Creates the client on this thread's `LocalSet`, which also watches the kubeconfig.
    pub fn client(self, dialler: Dialler) -> (Rc<Client>, Watching) {
        let now = self.state();
        tracing::info!(file = %self.source, server = now.server, "watching the registry of a kube-apiserver");
        let client = Client::new(self.source, self.kubeconfig, dialler);
        let following = Task::begin(client.clone().follow());
        (client.clone(), Watching { client, settings: self.settings, now, following })
    }
}

/// A kube-apiserver with its client, before its watches start.
pub struct Watching {
    client: Rc<Client>,
    settings: Settings,
    now: ClusterState,
    following: Task,
}

impl Watching {
    /// Starts its watches.
    pub(in crate::registry) fn begin(self, state: Publisher<ClusterState>, statuses: Statuses) -> Followed {
        let Watching { client, settings, now, following } = self;
        let shared = Rc::new(Shared {
            known: RefCell::new(Known::new(settings, statuses)),
            failing: RefCell::default(),
            well_since: Cell::new(Instant::now()),
            changed: Notify::new(),
            dirty: Cell::new(false),
        });
        let mut followed = Followed { client, shared, tasks: BTreeMap::new(), state, now, _following: following };
        followed.begin(Kind::ApiServices);
        followed
    }
}

/// A watched kube-apiserver. Dropping it ends the watches.
pub(in crate::registry) struct Followed {
    client: Rc<Client>,
    shared: Rc<Shared>,
    tasks: BTreeMap<Kind, Task>,
    state: Publisher<ClusterState>,
    /// The state published last.
    now: ClusterState,
    _following: Task,
}

/// State that the watches write and the follower reads. Never borrowed across an await.
struct Shared {
    known: RefCell<Known>,
    /// Collections that cannot be watched now, since when, and the error.
    failing: RefCell<BTreeMap<Kind, (SystemTime, String)>>,
    /// Since when the server answers.
    well_since: Cell<Instant>,
    changed: Notify,
    dirty: Cell<bool>,
}

/// Handler of the events of one watch.
struct Teller {
    shared: Rc<Shared>,
    kind: Kind,
}

/// A task that ends when this is dropped.
struct Task(AbortHandle);

impl Task {
    fn begin(work: impl Future<Output = ()> + 'static) -> Task {
        let (handle, registration) = AbortHandle::new_pair();
        tokio::task::spawn_local(Abortable::new(work, registration));
        Task(handle)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Followed {
    /// Waits for a change. Cancel safe: a dropped call loses no change.
    pub(in crate::registry) async fn changed(&self) {
        while !self.shared.dirty.get() {
            self.shared.changed.notified().await;
        }
    }

    /// Sets the APIService of this name of the registry directory (`None`: it has none). Its Service is watched too.
    pub(in crate::registry) fn also(&self, name: &str, one: Option<&ApiService>) {
        self.shared.known.borrow_mut().also(name, one);
    }

    /// Takes the changes since the last call. Starts and stops watches of referenced namespaces.
    pub(in crate::registry) fn take(&mut self) -> Taken {
        self.shared.dirty.set(false);
        let wanted = self.shared.known.borrow_mut().settle();
        for name in wanted.gone {
            for kind in [Kind::Services(name.clone()), Kind::EndpointSlices(name.clone())] {
                self.tasks.remove(&kind);
                self.shared.failing.borrow_mut().remove(&kind);
            }
            self.shared.known.borrow_mut().forget(&name);
        }
        for kind in wanted.anew {
            self.begin(kind);
        }
        let mut known = self.shared.known.borrow_mut();
        let taken = Taken { touched: known.take_touched(), problems: known.problems(), complete: known.complete };
        drop(known);
        self.tell(taken.complete);
        taken
    }

    /// Its known objects. Must not be held across an await.
    pub(in crate::registry) fn known(&self) -> Ref<'_, dyn source::Source> {
        Ref::map(self.shared.known.borrow(), |known| known as &dyn source::Source)
    }

    /// Starts or restarts the watch of a collection.
    fn begin(&mut self, kind: Kind) {
        let path = path(&kind);
        let (client, teller) = (self.client.clone(), Teller { shared: self.shared.clone(), kind: kind.clone() });
        let following = async move {
            futures_util::join!(watch::keep(client, &path, &teller), teller.shared.wait_for(&teller.kind));
        };
        self.tasks.insert(kind, Task::begin(following));
    }

    /// Logs and publishes the state, if it changed.
    fn tell(&mut self, complete: bool) {
        let failing = self.shared.failing.borrow().values().min_by_key(|(since, _)| *since).cloned();
        let next = ClusterState { server: self.now.server.clone(), complete, failing };
        if next == self.now {
            return;
        }
        match (&self.now.failing, &next.failing) {
            (None, Some((_, why))) => {
                tracing::warn!(
                    why,
                    "the registry's kube-apiserver cannot be watched; its last known objects stay in use"
                );
            }
            (Some(_), None) => tracing::info!("the registry's kube-apiserver is watched again"),
            _ => {}
        }
        if next.complete && !self.now.complete {
            tracing::info!("the registry of the kube-apiserver is completely listed");
        }
        self.now = next.clone();
        self.state.publish(Arc::new(next));
    }
}

/// Changes of a watched kube-apiserver.
pub(in crate::registry) struct Taken {
    /// Names of objects that may have changed.
    pub(in crate::registry) touched: Touched,
    /// All current errors.
    pub(in crate::registry) problems: Problems,
    /// Whether all objects were listed at least once.
    pub(in crate::registry) complete: bool,
}

impl Teller {
    fn known(&self, tell: impl FnOnce(&mut Known)) {
        let before = self.shared.known.borrow().heard;
        tell(&mut self.shared.known.borrow_mut());
        if self.shared.known.borrow().heard != before {
            self.shared.wake();
        }
    }
}

impl Shared {
    fn wake(&self) {
        self.dirty.set(true);
        self.changed.notify_one();
    }

    /// Reports a namespace as late after each timeout.
    async fn wait_for(&self, kind: &Kind) {
        let Kind::Services(namespace) = kind else { return };
        let began = Instant::now();
        for (patience, give_up) in [(SOON, false), (PATIENCE, true)] {
            loop {
                // While the server is unreachable, the wait for a namespace does not count.
                let away = self.failing.borrow().contains_key(&Kind::ApiServices);
                let waited = began.max(self.well_since.get()).elapsed();
                if !away && waited >= patience {
                    break;
                }
                sleep(if away { patience } else { patience - waited }).await;
            }
            self.known.borrow_mut().is_late(namespace, give_up);
            self.wake();
        }
    }
}

impl Keeper for Teller {
    fn begins(&self) {
        self.known(|known| known.begins(&self.kind));
    }

    fn lists(&self, object: &RawValue) {
        self.known(|known| known.has(&self.kind, object, true));
    }

    fn is_whole(&self) {
        self.known(|known| known.is_whole(&self.kind));
    }

    fn has(&self, object: &RawValue) {
        self.known(|known| known.has(&self.kind, object, false));
    }

    fn lacks(&self, object: &RawValue) {
        self.known(|known| known.lacks(&self.kind, object));
    }

    fn is_well(&self) {
        if self.kind == Kind::ApiServices && self.shared.failing.borrow().contains_key(&self.kind) {
            self.shared.well_since.set(Instant::now());
        }
        if self.shared.failing.borrow_mut().remove(&self.kind).is_some() {
            self.shared.wake();
        }
    }

    fn fails(&self, failure: &WatchFailure) {
        tracing::debug!(kind = ?self.kind, why = failure.why, "a watch of the registry failed");
        let why = format!("{}: {}", path(&self.kind), failure.why);
        self.shared.failing.borrow_mut().entry(self.kind.clone()).or_insert((SystemTime::now(), String::new())).1 = why;
        // Clients may see this message: it contains no addresses.
        let why = match failure.status {
            Some(status) => format!("the kube-apiserver answered {status}"),
            None => "the kube-apiserver did not answer".to_owned(),
        };
        self.known(|known| known.fails(&self.kind, &why, failure.status.is_some_and(is_refusal)));
        self.shared.wake();
    }
}

/// Whether a retry would get the same status. Not so for 401: a token is renewed.
fn is_refusal(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 408 | 429)
}

fn path(kind: &Kind) -> String {
    match kind {
        Kind::ApiServices => "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
        Kind::Services(namespace) => format!("/api/v1/namespaces/{namespace}/services"),
        Kind::EndpointSlices(namespace) => {
            format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_otherwise_the_next_time_is_no_refusal() {
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
            assert_eq!(is_refusal(status), refusal, "{status}");
        }
    }
}
