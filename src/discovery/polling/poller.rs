//! Polls the backends of all registered APIServices, one task per backend, and keeps the contents.
//!
//! What is fetched and how a response is applied is up to the [`PollSource`]: discovery is one, OpenAPI another.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use crate::discovery::claim::{ApiServiceClaim, ServedBy};
use crate::discovery::polling::poll_tasks::{POLL_INTERVAL, PollTasks};

/// A kind of document that is polled from all backends.
pub(crate) trait PollSource: 'static {
    /// Validators (entity tags, digests) of a backend, kept between polls as long as the same APIServices point to it.
    type Validators: Clone + Default;
    /// Content of an APIService, kept as long as it is registered.
    type Document;
    /// Response of a backend to one poll.
    type Response;

    /// Polls one backend. `claims` are the APIServices that point to it.
    async fn poll(&self, claims: &[ApiServiceClaim], memory: Self::Validators) -> Self::Response;

    /// Applies a response to the contents of `claims`.
    fn apply(
        &self,
        response: Self::Response,
        claims: &[ApiServiceClaim],
        memory: &mut Self::Validators,
        contents: &mut ContentMap<Self::Document>,
    ) -> PollOutcome;

    /// Restores the content of an APIService from the disk cache; it is sent when the disk has answered.
    fn restore(&self, _known: &ApiServiceClaim) -> Option<oneshot::Receiver<Self::Document>> {
        None
    }

    /// Merges restored content that arrives after a failed poll. Returns whether that changed anything.
    fn merge_restored(&self, _content: &mut Self::Document, _recalled: Self::Document) -> bool {
        false
    }

    /// The APIService points to another backend, which has not answered yet.
    fn backend_changed(&self, _name: &str, _content: &mut Self::Document) {}

    /// The APIService was removed.
    fn forget(&self, _name: &str) {}

    /// Publishes the contents of all APIServices. Only those in `changed` differ from the last time; some may be
    /// removed.
    fn publish(&self, claims: &ClaimMap, contents: &ContentMap<Self::Document>, changed: &BTreeSet<String>);
}

/// Contents by name of the APIService.
pub(crate) type ContentMap<C> = BTreeMap<String, C>;

/// Registered APIServices by name.
pub(crate) type ClaimMap = BTreeMap<String, ApiServiceClaim>;

/// A changed APIService; `None` if it was removed.
pub type ClaimChange = (String, Option<ApiServiceClaim>);

/// Result of a poll.
pub(crate) struct PollOutcome {
    /// Whether the poll succeeded; if not, the next one follows soon.
    pub(crate) succeeded: bool,
    /// Whether any content changed.
    pub(crate) changed: bool,
}

/// The running polls of one kind of document; dropping it ends their tasks.
///
/// Lives on one thread, inside a `LocalSet`.
pub(crate) struct Poller<S: PollSource> {
    shared: Rc<PollerShared<S>>,
    tasks: RefCell<PollTasks>,
}

struct PollerShared<S: PollSource> {
    source: S,
    state: RefCell<State<S>>,
    /// Time before which nothing is published.
    publish_not_before: Cell<Instant>,
    /// Whether a publication is scheduled for that time.
    is_publish_scheduled: Cell<bool>,
    /// APIServices changed since the last publication.
    unpublished: RefCell<BTreeSet<String>>,
}

/// Pause after a publication, as a multiple of its duration: publishing takes at most a tenth of the time. Its cost
/// grows with all contents, and each of a thousand backends that answer in the same second would trigger it.
const PUBLISH_REST_FACTOR: u32 = 9;

/// Maximum time a first poll waits for the disk cache, so that the cached content of a backend that does not answer is
/// there in time. A disk that hangs delays the first poll by at most this time.
const RESTORE_WAIT: Duration = Duration::from_secs(1);

/// A pending or finished restore from the disk cache. There is one per APIService and backend.
struct PendingRestore {
    /// [`ApiServiceClaim::backend`].
    backend: String,
    /// Whether its content is still wanted: nothing newer arrived.
    is_wanted: bool,
    /// Closed when the restore is finished; taken by the first waiter.
    done: Option<watch::Receiver<()>>,
}

impl<S: PollSource> PollerShared<S> {
    /// Publishes the contents now, or after a pause if that was just done.
    fn publish(self: &Rc<Self>, changed: impl IntoIterator<Item = String>) {
        self.unpublished.borrow_mut().extend(changed);
        if Instant::now() >= self.publish_not_before.get() {
            self.publish_now();
        } else if !self.is_publish_scheduled.replace(true) {
            // A weak reference: the scheduled task must not keep the poller alive.
            let shared = Rc::downgrade(self);
            let until = self.publish_not_before.get();
            spawn_local(async move {
                tokio::time::sleep_until(until).await;
                if let Some(shared) = shared.upgrade() {
                    shared.is_publish_scheduled.set(false);
                    shared.publish([]);
                }
            });
        }
    }

    fn publish_now(&self) {
        let began = Instant::now();
        let state = self.state.borrow();
        self.source.publish(&state.claims, &state.contents, &self.unpublished.take());
        let ended = Instant::now();
        self.publish_not_before.set(ended + (ended - began) * PUBLISH_REST_FACTOR);
    }
}

struct State<S: PollSource> {
    /// Whether the registry was read.
    is_registry_read: bool,
    claims: ClaimMap,
    /// Names of the APIServices that point to a backend, by its key.
    names_by_backend: BTreeMap<String, BTreeSet<String>>,
    backends: BTreeMap<String, PolledBackend<S::Validators>>,
    contents: ContentMap<S::Document>,
    restores: BTreeMap<String, PendingRestore>,
}

struct PolledBackend<M> {
    /// The APIServices that point to it; replaced as a whole when they change.
    claims: Rc<[ApiServiceClaim]>,
    validators: M,
}

impl<S: PollSource> Poller<S> {
    /// Starts without APIServices.
    pub(crate) fn new(subject: S) -> Poller<S> {
        let state = State {
            is_registry_read: false,
            claims: BTreeMap::new(),
            names_by_backend: BTreeMap::new(),
            backends: BTreeMap::new(),
            contents: BTreeMap::new(),
            restores: BTreeMap::new(),
        };
        let (state, rests_until) = (RefCell::new(state), Cell::new(Instant::now()));
        let (waits, unpublished) = (Cell::default(), RefCell::default());
        Poller {
            shared: Rc::new(PollerShared {
                source: subject,
                state,
                publish_not_before: rests_until,
                is_publish_scheduled: waits,
                unpublished,
            }),
            tasks: RefCell::default(),
        }
    }

    /// Changes the source, and publishes the contents again once the registry was read. At once: what is created waits for
    /// it, so that the next change comes after it.
    pub(crate) fn change_source(&self, change: impl FnOnce(&S)) {
        change(&self.shared.source);
        if self.shared.state.borrow().is_registry_read {
            self.shared.publish_now();
        }
    }

    /// Replaces the set of APIServices. New and changed ones are polled at once; removed ones are dropped.
    pub(crate) fn set_api_services(&self, claims: Vec<ApiServiceClaim>) {
        let mut changes: BTreeMap<String, Option<ApiServiceClaim>> = BTreeMap::new();
        changes.extend(self.shared.state.borrow().claims.keys().map(|name| (name.clone(), None)));
        changes.extend(claims.into_iter().map(|one| (one.name.clone(), Some(one))));
        self.apply_changes(changes);
    }

    /// As [`Poller::set_api_services`] when only these changed.
    pub(crate) fn apply_changes(&self, changes: impl IntoIterator<Item = ClaimChange>) {
        let mut state = self.shared.state.borrow_mut();
        let first = !std::mem::replace(&mut state.is_registry_read, true);
        let (mut changed, mut keys) = (Vec::new(), BTreeSet::new());
        for (name, now) in changes {
            let before = state.claims.get(&name);
            if before == now.as_ref() {
                continue;
            }
            let backend_of = |one: Option<&ApiServiceClaim>| {
                one.filter(|one| one.served_by != ServedBy::Delegate).map(|one| one.service_key.clone())
            };
            let (left, joined) = (backend_of(before), backend_of(now.as_ref()));
            if let Some(key) = left {
                if let Some(names) = state.names_by_backend.get_mut(&key) {
                    names.remove(&name);
                }
                keys.insert(key);
            }
            if let Some(key) = joined {
                state.names_by_backend.entry(key.clone()).or_default().insert(name.clone());
                keys.insert(key);
            }
            self.update_claim(&mut state, &name, now);
            changed.push(name);
        }
        if changed.is_empty() && !first {
            return;
        }
        for key in keys {
            self.update_backend(&mut state, key);
        }
        drop(state);
        self.shared.publish(changed);
    }

    /// Sets the APIService `name` to `now`, or removes it.
    fn update_claim(&self, state: &mut State<S>, name: &str, now: Option<ApiServiceClaim>) {
        let State { claims: known, contents, restores: recalls, .. } = state;
        let subject = &self.shared.source;
        let Some(now) = now else {
            known.remove(name);
            contents.remove(name);
            recalls.remove(name);
            return subject.forget(name);
        };
        // An APIService that moved to another backend keeps its content until the new one answers.
        if known.get(name).is_some_and(|before| before.backend != now.backend)
            && let Some(content) = contents.get_mut(name)
        {
            subject.backend_changed(name, content);
        }
        if recalls.get(name).is_some_and(|recall| recall.backend != now.backend) {
            recalls.remove(name);
        }
        if now.served_by != ServedBy::Delegate && !contents.contains_key(name) && !recalls.contains_key(name) {
            let done = subject.restore(&now).map(|comes| {
                let (reading, done) = watch::channel(());
                spawn_local(apply_restored(Rc::downgrade(&self.shared), now.clone(), comes, reading));
                done
            });
            let recall = PendingRestore { backend: now.backend.clone(), is_wanted: done.is_some(), done };
            recalls.insert(name.to_owned(), recall);
        }
        known.insert(name.to_owned(), now);
    }

    /// Updates the backend `key` after APIServices pointed to it or ceased to.
    fn update_backend(&self, state: &mut State<S>, key: String) {
        let State { claims: known, names_by_backend: pointing, backends, .. } = state;
        let mut rounds = self.tasks.borrow_mut();
        let names = pointing.get(&key).filter(|names| !names.is_empty());
        let Some(names) = names else {
            pointing.remove(&key);
            backends.remove(&key);
            return rounds.stop(&key);
        };
        let claims: Rc<[ApiServiceClaim]> = names.iter().filter_map(|name| known.get(name)).cloned().collect();
        match backends.get_mut(&key) {
            Some(backend) if backend.claims == claims => {}
            Some(backend) => {
                // The validators cover a response that skipped the new claim, so they are dropped.
                *backend = PolledBackend { claims, validators: S::Validators::default() };
                rounds.refresh_now(&key);
            }
            None => {
                let (shared, its) = (self.shared.clone(), Rc::<str>::from(&*key));
                rounds.start(&key, poll_interval(&claims), move || poll_backend(shared.clone(), its.clone()));
                backends.insert(key, PolledBackend { claims, validators: S::Validators::default() });
            }
        }
    }

    /// Polls the backend of `apiservice` now.
    pub(crate) fn refresh_now(&self, apiservice: &str) {
        let state = self.shared.state.borrow();
        if let Some(one) = state.claims.get(apiservice) {
            self.tasks.borrow().refresh_now(&one.service_key);
        }
    }
}

/// Poll interval of the backend of `claims`. The delegate's APIs change without any APIService being touched
/// (CustomResourceDefinitions do so), and it answers 304 while nothing changed.
fn poll_interval(claims: &[ApiServiceClaim]) -> Duration {
    if claims.iter().any(|claim| claim.served_by == ServedBy::DelegateItself) {
        Duration::from_secs(3)
    } else {
        POLL_INTERVAL
    }
}

/// Stores restored content, unless something newer arrived. Dropping `_reading` announces the end.
async fn apply_restored<S: PollSource>(
    shared: Weak<PollerShared<S>>,
    of: ApiServiceClaim,
    comes: oneshot::Receiver<S::Document>,
    _reading: watch::Sender<()>,
) {
    let Ok(content) = comes.await else { return };
    let Some(shared) = shared.upgrade() else { return };
    let mut state = shared.state.borrow_mut();
    let State { contents, restores: recalls, .. } = &mut *state;
    let recall = recalls.get_mut(&of.name).filter(|recall| recall.backend == of.backend);
    if !recall.is_some_and(|recall| std::mem::take(&mut recall.is_wanted)) {
        return;
    }
    let changed = match contents.get_mut(&of.name) {
        Some(claim) => shared.source.merge_restored(claim, content),
        None => contents.insert(of.name.clone(), content).is_none(),
    };
    drop(state);
    if changed {
        shared.publish([of.name]);
    }
}

/// Waits a bounded time for the cached contents of the backend `key`.
async fn wait_for_restores<S: PollSource>(shared: &PollerShared<S>, key: &str) {
    let recalls: Vec<_> = {
        let mut state = shared.state.borrow_mut();
        let State { backends, restores: recalls, .. } = &mut *state;
        let claims = backends.get(key).map(|backend| backend.claims.iter()).into_iter().flatten();
        claims.filter_map(|claim| recalls.get_mut(&claim.name)?.done.take()).collect()
    };
    if !recalls.is_empty() {
        let all = async {
            for mut over in recalls {
                while over.changed().await.is_ok() {}
            }
        };
        let _ = timeout(RESTORE_WAIT, all).await;
    }
}

/// Polls the backend `key`. Returns whether the poll succeeded.
async fn poll_backend<S: PollSource>(shared: Rc<PollerShared<S>>, key: Rc<str>) -> bool {
    wait_for_restores(&shared, &key).await;
    let Some((polled, memory)) =
        shared.state.borrow().backends.get(&*key).map(|backend| (backend.claims.clone(), backend.validators.clone()))
    else {
        return true;
    };
    let response = shared.source.poll(&polled, memory).await;

    let mut state = shared.state.borrow_mut();
    let State { backends, contents, restores: recalls, .. } = &mut *state;
    let Some(backend) = backends.get_mut(&*key) else { return true };
    // The APIServices may have changed meanwhile. The response holds for those that stayed, but its validators would
    // hide content that the new ones need.
    let same = Rc::ptr_eq(&backend.claims, &polled);
    let stayed = || polled.iter().filter(|one| backend.claims.iter().any(|claim| claim.name == one.name)).cloned();
    let claims = if same { polled.clone() } else { stayed().collect() };
    let mut passing = S::Validators::default();
    let memory = if same { &mut backend.validators } else { &mut passing };
    let PollOutcome { succeeded: well, changed } = shared.source.apply(response, &claims, memory, contents);
    for claim in claims.iter().filter(|_| well) {
        if let Some(recall) = recalls.get_mut(&claim.name) {
            recall.is_wanted = false;
        }
    }
    drop(state);
    if changed {
        shared.publish(claims.iter().map(|claim| claim.name.clone()));
    }
    well
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each backend has something new once; publishing is slow.
    struct Slow {
        published: Rc<Cell<(usize, usize)>>,
    }

    impl PollSource for Slow {
        type Validators = ();
        type Document = ();
        type Response = ();

        async fn poll(&self, _: &[ApiServiceClaim], (): ()) {}

        fn apply(&self, (): (), claims: &[ApiServiceClaim], (): &mut (), contents: &mut ContentMap<()>) -> PollOutcome {
            contents.extend(claims.iter().map(|claim| (claim.name.clone(), ())));
            PollOutcome { succeeded: true, changed: true }
        }

        fn publish(&self, _: &ClaimMap, contents: &ContentMap<()>, _: &BTreeSet<String>) {
            std::thread::sleep(Duration::from_millis(2));
            self.published.set((self.published.get().0 + 1, contents.len()));
        }
    }

    fn known(number: usize) -> ApiServiceClaim {
        ApiServiceClaim {
            name: format!("v1.g{number}"),
            group: format!("g{number}"),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: number.to_string(),
            backend: number.to_string(),
            served_by: ServedBy::Backend,
        }
    }

    #[tokio::test]
    async fn poller_publishes_many_answers_together() {
        const MANY: usize = 100;
        let published = Rc::<Cell<(usize, usize)>>::default();
        let said = published.clone();
        tokio::task::LocalSet::new()
            .run_until(async move {
                let keeper = Poller::new(Slow { published });
                keeper.set_api_services((0..MANY).map(known).collect());
                while said.get().1 < MANY {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert!(said.get().0 < MANY / 2, "published {} times", said.get().0);
            })
            .await;
    }

    /// The backend, and the sender of its cached content.
    type Gives = (String, oneshot::Sender<&'static str>);

    /// A disk cache that answers when the test says so, a count of polls, and whether backends answer.
    #[derive(Clone, Default)]
    struct Disk {
        gives: Rc<RefCell<Vec<Gives>>>,
        answers: Rc<Cell<bool>>,
        asked: Rc<Cell<usize>>,
        published: Rc<RefCell<Vec<(String, &'static str)>>>,
    }

    impl Disk {
        fn published(&self) -> Vec<(String, &'static str)> {
            self.published.borrow().clone()
        }

        async fn rounds(&self, count: usize) {
            let then = self.asked.get() + count;
            while self.asked.get() < then {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    impl PollSource for Disk {
        type Validators = ();
        type Document = &'static str;
        type Response = bool;

        async fn poll(&self, _: &[ApiServiceClaim], (): ()) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.answers.get()
        }

        fn apply(
            &self,
            well: bool,
            claims: &[ApiServiceClaim],
            (): &mut (),
            contents: &mut ContentMap<&'static str>,
        ) -> PollOutcome {
            if well {
                contents.extend(claims.iter().map(|claim| (claim.name.clone(), "heard")));
            }
            PollOutcome { succeeded: well, changed: well }
        }

        fn restore(&self, known: &ApiServiceClaim) -> Option<oneshot::Receiver<&'static str>> {
            let (gives, comes) = oneshot::channel();
            self.gives.borrow_mut().push((known.backend.clone(), gives));
            Some(comes)
        }

        fn publish(&self, _: &ClaimMap, contents: &ContentMap<&'static str>, _: &BTreeSet<String>) {
            *self.published.borrow_mut() = contents.clone().into_iter().collect();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn poller_hanging_disk_delays_nothing_and_late_content_used_if_newest() {
        let disk = Disk::default();
        let keeper = Poller::new(disk.clone());
        let scenario = async {
            // Backends are polled although the disk hangs. The disk is asked once per APIService and backend.
            for count in [1, 2, 3, 2, 3] {
                keeper.set_api_services((0..count).map(known).collect());
            }
            // The third was removed and added again.
            let backends = || disk.gives.borrow().iter().map(|(backend, _)| backend.clone()).collect::<Vec<_>>();
            assert_eq!(backends(), ["0", "1", "2", "2"]);
            disk.rounds(6).await;
            assert_eq!(disk.published(), []);
            let moved = ApiServiceClaim { backend: "elsewhere".into(), ..known(0) };
            keeper.set_api_services(vec![moved, known(1), known(2)]);
            assert_eq!(backends(), ["0", "1", "2", "2", "elsewhere"]);
            // Cached content of the old backend is ignored; after a failed poll it is used.
            for (_, gives) in disk.gives.borrow_mut().drain(..2) {
                gives.send("kept").unwrap();
            }
            disk.rounds(1).await;
            assert_eq!(disk.published(), [("v1.g1".to_owned(), "kept")]);
            // Content fetched meanwhile is newer.
            disk.answers.set(true);
            disk.rounds(6).await;
            for (_, gives) in disk.gives.borrow_mut().drain(..) {
                let _ = gives.send("kept");
            }
            disk.rounds(3).await;
            assert_eq!(disk.published(), [0, 1, 2].map(|number| (format!("v1.g{number}"), "heard")));
        };
        tokio::task::LocalSet::new().run_until(scenario).await;
    }

    #[tokio::test(start_paused = true)]
    async fn poller_restores_cached_content_before_first_poll() {
        let disk = Disk::default();
        let keeper = Poller::new(disk.clone());
        let scenario = async {
            keeper.set_api_services(vec![known(0)]);
            tokio::time::sleep(RESTORE_WAIT / 2).await;
            assert_eq!(disk.asked.get(), 0);
            let (_, gives) = disk.gives.borrow_mut().pop().unwrap();
            gives.send("kept").unwrap();
            disk.rounds(1).await;
            assert_eq!(disk.published(), [("v1.g0".to_owned(), "kept")]);
        };
        tokio::task::LocalSet::new().run_until(scenario).await;
    }
}
