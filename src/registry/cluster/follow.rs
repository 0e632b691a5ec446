//! The watches there are to be, and what they tell.

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

/// After this a new APIService is shown, although nothing is known of its namespace yet.
const SOON: Duration = Duration::from_secs(1);
/// After this nothing waits for a namespace any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// A kube-apiserver whose kubeconfig was right when it was read.
pub struct Cluster {
    settings: Settings,
    source: Source,
    kubeconfig: Kubeconfig,
}

impl Cluster {
    /// Reads the kubeconfig.
    ///
    /// # Errors
    /// Every mistake in it.
    pub fn open(source: Source, settings: Settings) -> Result<Cluster, Problems> {
        let kubeconfig = source.load()?;
        Ok(Cluster { settings, source, kubeconfig })
    }

    /// Certificates of the kubeconfig that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        self.kubeconfig.untimely(now)
    }

    /// What is known of it while nothing is.
    pub fn state(&self) -> ClusterState {
        ClusterState { server: self.kubeconfig.server().to_string(), ..ClusterState::default() }
    }

    /// Makes the client to follow it with; on this thread's `LocalSet`, which follows the kubeconfig, too.
    pub fn client(self, dialler: Dialler) -> (Rc<Client>, Watching) {
        let now = self.state();
        tracing::info!(file = %self.source, server = now.server, "the registry of a kube-apiserver is followed");
        let client = Client::new(self.source, self.kubeconfig, dialler);
        let following = Task::begin(client.clone().follow());
        (client.clone(), Watching { client, settings: self.settings, now, following })
    }
}

/// A kube-apiserver about to be followed.
pub struct Watching {
    client: Rc<Client>,
    settings: Settings,
    now: ClusterState,
    following: Task,
}

impl Watching {
    /// Begins to follow it.
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

/// A kube-apiserver that is followed until this is dropped.
pub(in crate::registry) struct Followed {
    client: Rc<Client>,
    shared: Rc<Shared>,
    tasks: BTreeMap<Kind, Task>,
    state: Publisher<ClusterState>,
    /// What was said of it last.
    now: ClusterState,
    _following: Task,
}

/// What the watches write and the follower reads; never borrowed across an await.
struct Shared {
    known: RefCell<Known>,
    /// What cannot be followed now, since when, and why.
    failing: RefCell<BTreeMap<Kind, (SystemTime, String)>>,
    /// Since when the server itself is there.
    well_since: Cell<Instant>,
    changed: Notify,
    dirty: Cell<bool>,
}

/// What one watch tells.
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
    /// Waits until something is to be looked at. May be dropped and called again without losing a change.
    pub(in crate::registry) async fn changed(&self) {
        while !self.shared.dirty.get() {
            self.shared.changed.notified().await;
        }
    }

    /// The registry directory has an APIService of this name that leads to a Service, or none that does.
    pub(in crate::registry) fn also(&self, name: &str, one: Option<&ApiService>) {
        self.shared.known.borrow_mut().also(name, one);
    }

    /// Takes what changed: begins and ends watches as the APIServices ask for it.
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

    /// What is known of it; not to be held across an await.
    pub(in crate::registry) fn known(&self) -> Ref<'_, dyn source::Source> {
        Ref::map(self.shared.known.borrow(), |known| known as &dyn source::Source)
    }

    /// Begins to follow these, or does so anew.
    fn begin(&mut self, kind: Kind) {
        let path = path(&kind);
        let (client, teller) = (self.client.clone(), Teller { shared: self.shared.clone(), kind: kind.clone() });
        let following = async move {
            futures_util::join!(watch::keep(client, &path, &teller), teller.shared.wait_for(&teller.kind));
        };
        self.tasks.insert(kind, Task::begin(following));
    }

    /// Says how it goes, if that changed.
    fn tell(&mut self, complete: bool) {
        let failing = self.shared.failing.borrow().values().min_by_key(|(since, _)| *since).cloned();
        let next = ClusterState { server: self.now.server.clone(), complete, failing };
        if next == self.now {
            return;
        }
        match (&self.now.failing, &next.failing) {
            (None, Some((_, why))) => {
                tracing::warn!(why, "the registry's kube-apiserver cannot be followed; what it said last is used");
            }
            (Some(_), None) => tracing::info!("the registry's kube-apiserver is followed again"),
            _ => {}
        }
        if next.complete && !self.now.complete {
            tracing::info!("the registry of the kube-apiserver is known");
        }
        self.now = next.clone();
        self.state.publish(Arc::new(next));
    }
}

/// What is another now.
pub(in crate::registry) struct Taken {
    /// Objects that may be.
    pub(in crate::registry) touched: Touched,
    /// All that is wrong.
    pub(in crate::registry) problems: Problems,
    /// Whether everything was there at least once.
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

    /// Waits for what is in a namespace, and for no longer than it may take.
    async fn wait_for(&self, kind: &Kind) {
        let Kind::Services(namespace) = kind else { return };
        let began = Instant::now();
        for (patience, give_up) in [(SOON, false), (PATIENCE, true)] {
            loop {
                // A server that is away says nothing about a namespace.
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
        // Clients may read this, so it names no addresses.
        let why = match failure.status {
            Some(status) => format!("the kube-apiserver answered {status}"),
            None => "the kube-apiserver did not answer".to_owned(),
        };
        self.known(|known| known.fails(&self.kind, &why, failure.status.is_some_and(is_refusal)));
        self.shared.wake();
    }
}

/// Whether the same will be said the next time. Who we are may be another by then: a token is renewed.
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
