//! Polls the backends of all registered APIServices, one task per backend, and keeps the contents.
//!
//! What is fetched and how a response is applied is up to the [`Subject`]: discovery is one, OpenAPI another.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use super::known::{By, Known};
use super::rounds::{REFRESH, Rounds};

/// A kind of document that is polled from all backends.
pub(crate) trait Subject: 'static {
    /// Validators (entity tags, digests) of a backend, kept between polls as long as the same APIServices point to it.
    type Memory: Clone + Default;
    /// Content of an APIService, kept as long as it is registered.
    type Content;
    /// Response of a backend to one poll.
    type Heard;

    /// Polls one backend. `claims` are the APIServices that point to it.
    async fn ask(&self, claims: &[Known], memory: Self::Memory) -> Self::Heard;

    /// Applies a response to the contents of `claims`.
    fn hear(
        &self,
        heard: Self::Heard,
        claims: &[Known],
        memory: &mut Self::Memory,
        contents: &mut Contents<Self::Content>,
    ) -> Outcome;

    /// Restores the content of an APIService from the disk cache; it is sent when the disk has answered.
    fn recall(&self, _known: &Known) -> Option<oneshot::Receiver<Self::Content>> {
        None
    }

    /// Merges restored content that arrives after a failed poll. Returns whether that changed anything.
    fn supplement(&self, _content: &mut Self::Content, _recalled: Self::Content) -> bool {
        false
    }

    /// The APIService points to another backend, which has not answered yet.
    fn moves(&self, _name: &str, _content: &mut Self::Content) {}

    /// The APIService was removed.
    fn forget(&self, _name: &str) {}

    /// Publishes the contents of all APIServices. Only those in `changed` differ from the last time; some may be
    /// removed.
    fn publish(&self, known: &All, contents: &Contents<Self::Content>, changed: &BTreeSet<String>);
}

/// Contents by name of the APIService.
pub(crate) type Contents<C> = BTreeMap<String, C>;

/// Registered APIServices by name.
pub(crate) type All = BTreeMap<String, Known>;

/// A changed APIService; `None` if it was removed.
pub type Change = (String, Option<Known>);

/// Result of a poll.
pub(crate) struct Outcome {
    /// Whether the poll succeeded; if not, the next one follows soon.
    pub(crate) well: bool,
    /// Whether any content changed.
    pub(crate) changed: bool,
}

/// The running polls of one kind of document; dropping it ends their tasks.
///
/// Lives on one thread, inside a `LocalSet`.
pub(crate) struct Keeper<S: Subject> {
    shared: Rc<Shared<S>>,
    rounds: RefCell<Rounds>,
}

struct Shared<S: Subject> {
    subject: S,
    state: RefCell<State<S>>,
    /// Nothing is published before this time.
    rests_until: Cell<Instant>,
    /// Whether a publication is scheduled for that time.
    waits: Cell<bool>,
    /// APIServices changed since the last publication.
    unpublished: RefCell<BTreeSet<String>>,
}

/// Pause after a publication, as a multiple of its duration: publishing takes at most a tenth of the time. Its cost
/// grows with all contents, and each of a thousand backends that answer in the same second would trigger it.
const REST: u32 = 9;

/// Maximum time a first poll waits for the disk cache, so that the cached content of a backend that does not answer is
/// there in time. A hanging disk delays a poll no longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A pending or finished restore from the disk cache. There is one per APIService and backend.
struct Recall {
    /// [`Known::backend`].
    backend: String,
    /// Whether its content is still wanted: nothing newer arrived.
    wanted: bool,
    /// Closed when the restore is finished; taken by the first waiter.
    over: Option<watch::Receiver<()>>,
}

impl<S: Subject> Shared<S> {
    /// Publishes the contents now, or after a pause if that was just done.
    fn publish(self: &Rc<Self>, changed: impl IntoIterator<Item = String>) {
        self.unpublished.borrow_mut().extend(changed);
        let now = Instant::now();
        if now >= self.rests_until.get() {
            let state = self.state.borrow();
            self.subject.publish(&state.known, &state.contents, &self.unpublished.take());
            let done = Instant::now();
            self.rests_until.set(done + (done - now) * REST);
        } else if !self.waits.replace(true) {
            // A weak reference: the scheduled task must not keep the poller alive.
            let shared = Rc::downgrade(self);
            let until = self.rests_until.get();
            spawn_local(async move {
                tokio::time::sleep_until(until).await;
                if let Some(shared) = shared.upgrade() {
                    shared.waits.set(false);
                    shared.publish([]);
                }
            });
        }
    }
}

struct State<S: Subject> {
    /// Whether the registry was read.
    told: bool,
    known: All,
    /// Names of the APIServices that point to a backend, by its key.
    pointing: BTreeMap<String, BTreeSet<String>>,
    backends: BTreeMap<String, Backend<S::Memory>>,
    contents: Contents<S::Content>,
    recalls: BTreeMap<String, Recall>,
}

struct Backend<M> {
    /// The APIServices that point to it; replaced as a whole when they change.
    claims: Rc<[Known]>,
    memory: M,
}

impl<S: Subject> Keeper<S> {
    /// Starts without APIServices.
    pub(crate) fn new(subject: S) -> Keeper<S> {
        let state = State {
            told: false,
            known: BTreeMap::new(),
            pointing: BTreeMap::new(),
            backends: BTreeMap::new(),
            contents: BTreeMap::new(),
            recalls: BTreeMap::new(),
        };
        let (state, rests_until) = (RefCell::new(state), Cell::new(Instant::now()));
        let (waits, unpublished) = (Cell::default(), RefCell::default());
        Keeper {
            shared: Rc::new(Shared { subject, state, rests_until, waits, unpublished }),
            rounds: RefCell::default(),
        }
    }

    /// Replaces the set of APIServices. New and changed ones are polled at once; removed ones are dropped.
    pub(crate) fn follow(&self, known: Vec<Known>) {
        let mut changes: BTreeMap<String, Option<Known>> = BTreeMap::new();
        changes.extend(self.shared.state.borrow().known.keys().map(|name| (name.clone(), None)));
        changes.extend(known.into_iter().map(|one| (one.name.clone(), Some(one))));
        self.follow_changes(changes);
    }

    /// As [`Keeper::follow`] when only these changed.
    pub(crate) fn follow_changes(&self, changes: impl IntoIterator<Item = Change>) {
        let mut state = self.shared.state.borrow_mut();
        let first = !std::mem::replace(&mut state.told, true);
        let (mut changed, mut keys) = (Vec::new(), BTreeSet::new());
        for (name, now) in changes {
            let before = state.known.get(&name);
            if before == now.as_ref() {
                continue;
            }
            let asked =
                |one: Option<&Known>| one.filter(|one| one.by != By::Delegate).map(|one| one.service_key.clone());
            let (left, joined) = (asked(before), asked(now.as_ref()));
            if let Some(key) = left {
                if let Some(names) = state.pointing.get_mut(&key) {
                    names.remove(&name);
                }
                keys.insert(key);
            }
            if let Some(key) = joined {
                state.pointing.entry(key.clone()).or_default().insert(name.clone());
                keys.insert(key);
            }
            self.turns_into(&mut state, &name, now);
            changed.push(name);
        }
        if changed.is_empty() && !first {
            return;
        }
        for key in keys {
            self.points(&mut state, key);
        }
        drop(state);
        self.shared.publish(changed);
    }

    /// Sets the APIService `name` to `now`, or removes it.
    fn turns_into(&self, state: &mut State<S>, name: &str, now: Option<Known>) {
        let State { known, contents, recalls, .. } = state;
        let subject = &self.shared.subject;
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
            subject.moves(name, content);
        }
        if recalls.get(name).is_some_and(|recall| recall.backend != now.backend) {
            recalls.remove(name);
        }
        if now.by != By::Delegate && !contents.contains_key(name) && !recalls.contains_key(name) {
            let over = subject.recall(&now).map(|comes| {
                let (reading, over) = watch::channel(());
                spawn_local(recalled(Rc::downgrade(&self.shared), now.clone(), comes, reading));
                over
            });
            let recall = Recall { backend: now.backend.clone(), wanted: over.is_some(), over };
            recalls.insert(name.to_owned(), recall);
        }
        known.insert(name.to_owned(), now);
    }

    /// Updates the backend `key` after APIServices pointed to it or ceased to.
    fn points(&self, state: &mut State<S>, key: String) {
        let State { known, pointing, backends, .. } = state;
        let mut rounds = self.rounds.borrow_mut();
        let names = pointing.get(&key).filter(|names| !names.is_empty());
        let Some(names) = names else {
            pointing.remove(&key);
            backends.remove(&key);
            return rounds.end(&key);
        };
        let claims: Rc<[Known]> = names.iter().filter_map(|name| known.get(name)).cloned().collect();
        match backends.get_mut(&key) {
            Some(backend) if backend.claims == claims => {}
            Some(backend) => {
                // The validators cover a response that skipped the new claim, so they are dropped.
                *backend = Backend { claims, memory: S::Memory::default() };
                rounds.nudge(&key);
            }
            None => {
                let (shared, its) = (self.shared.clone(), Rc::<str>::from(&*key));
                rounds.begin(&key, pace(&claims), move || round(shared.clone(), its.clone()));
                backends.insert(key, Backend { claims, memory: S::Memory::default() });
            }
        }
    }

    /// Polls the backend of `apiservice` now.
    pub(crate) fn nudge(&self, apiservice: &str) {
        let state = self.shared.state.borrow();
        if let Some(one) = state.known.get(apiservice) {
            self.rounds.borrow().nudge(&one.service_key);
        }
    }
}

/// Poll interval of the backend of `claims`. The delegate's APIs change without any APIService being touched
/// (CustomResourceDefinitions do so), and it answers 304 while nothing changed.
fn pace(claims: &[Known]) -> Duration {
    if claims.iter().any(|claim| claim.by == By::Itself) { Duration::from_secs(3) } else { REFRESH }
}

/// Stores restored content, unless something newer arrived. Dropping `_reading` announces the end.
async fn recalled<S: Subject>(
    shared: Weak<Shared<S>>,
    of: Known,
    comes: oneshot::Receiver<S::Content>,
    _reading: watch::Sender<()>,
) {
    let Ok(content) = comes.await else { return };
    let Some(shared) = shared.upgrade() else { return };
    let mut state = shared.state.borrow_mut();
    let State { contents, recalls, .. } = &mut *state;
    let recall = recalls.get_mut(&of.name).filter(|recall| recall.backend == of.backend);
    if !recall.is_some_and(|recall| std::mem::take(&mut recall.wanted)) {
        return;
    }
    let changed = match contents.get_mut(&of.name) {
        Some(known) => shared.subject.supplement(known, content),
        None => contents.insert(of.name.clone(), content).is_none(),
    };
    drop(state);
    if changed {
        shared.publish([of.name]);
    }
}

/// Waits a bounded time for the cached contents of the backend `key`.
async fn remember<S: Subject>(shared: &Shared<S>, key: &str) {
    let recalls: Vec<_> = {
        let mut state = shared.state.borrow_mut();
        let State { backends, recalls, .. } = &mut *state;
        let claims = backends.get(key).map(|backend| backend.claims.iter()).into_iter().flatten();
        claims.filter_map(|claim| recalls.get_mut(&claim.name)?.over.take()).collect()
    };
    if !recalls.is_empty() {
        let all = async {
            for mut over in recalls {
                while over.changed().await.is_ok() {}
            }
        };
        let _ = timeout(PATIENCE, all).await;
    }
}

/// Polls the backend `key`. Returns whether the poll succeeded.
async fn round<S: Subject>(shared: Rc<Shared<S>>, key: Rc<str>) -> bool {
    remember(&shared, &key).await;
    let Some((asked, memory)) =
        shared.state.borrow().backends.get(&*key).map(|backend| (backend.claims.clone(), backend.memory.clone()))
    else {
        return true;
    };
    let heard = shared.subject.ask(&asked, memory).await;

    let mut state = shared.state.borrow_mut();
    let State { backends, contents, recalls, .. } = &mut *state;
    let Some(backend) = backends.get_mut(&*key) else { return true };
    // The APIServices may have changed meanwhile. The response holds for those that stayed, but its validators would
    // hide content that the new ones need.
    let same = Rc::ptr_eq(&backend.claims, &asked);
    let stayed = || asked.iter().filter(|one| backend.claims.iter().any(|claim| claim.name == one.name)).cloned();
    let claims = if same { asked.clone() } else { stayed().collect() };
    let mut passing = S::Memory::default();
    let memory = if same { &mut backend.memory } else { &mut passing };
    let Outcome { well, changed } = shared.subject.hear(heard, &claims, memory, contents);
    for claim in claims.iter().filter(|_| well) {
        if let Some(recall) = recalls.get_mut(&claim.name) {
            recall.wanted = false;
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

    impl Subject for Slow {
        type Memory = ();
        type Content = ();
        type Heard = ();

        async fn ask(&self, _: &[Known], (): ()) {}

        fn hear(&self, (): (), claims: &[Known], (): &mut (), contents: &mut Contents<()>) -> Outcome {
            contents.extend(claims.iter().map(|claim| (claim.name.clone(), ())));
            Outcome { well: true, changed: true }
        }

        fn publish(&self, _: &All, contents: &Contents<()>, _: &BTreeSet<String>) {
            std::thread::sleep(Duration::from_millis(2));
            self.published.set((self.published.get().0 + 1, contents.len()));
        }
    }

    fn known(number: usize) -> Known {
        Known {
            name: format!("v1.g{number}"),
            group: format!("g{number}"),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: number.to_string(),
            backend: number.to_string(),
            by: By::Backend,
        }
    }

    #[tokio::test]
    async fn many_answers_at_once_are_published_together() {
        const MANY: usize = 100;
        let published = Rc::<Cell<(usize, usize)>>::default();
        let said = published.clone();
        tokio::task::LocalSet::new()
            .run_until(async move {
                let keeper = Keeper::new(Slow { published });
                keeper.follow((0..MANY).map(known).collect());
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

    impl Subject for Disk {
        type Memory = ();
        type Content = &'static str;
        type Heard = bool;

        async fn ask(&self, _: &[Known], (): ()) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.answers.get()
        }

        fn hear(&self, well: bool, claims: &[Known], (): &mut (), contents: &mut Contents<&'static str>) -> Outcome {
            if well {
                contents.extend(claims.iter().map(|claim| (claim.name.clone(), "heard")));
            }
            Outcome { well, changed: well }
        }

        fn recall(&self, known: &Known) -> Option<oneshot::Receiver<&'static str>> {
            let (gives, comes) = oneshot::channel();
            self.gives.borrow_mut().push((known.backend.clone(), gives));
            Some(comes)
        }

        fn publish(&self, _: &All, contents: &Contents<&'static str>, _: &BTreeSet<String>) {
            *self.published.borrow_mut() = contents.clone().into_iter().collect();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_disk_that_hangs_and_what_it_gives_late_is_taken_if_nothing_fresher_came() {
        let disk = Disk::default();
        let keeper = Keeper::new(disk.clone());
        let scenario = async {
            // Backends are polled although the disk hangs. The disk is asked once per APIService and backend.
            for count in [1, 2, 3, 2, 3] {
                keeper.follow((0..count).map(known).collect());
            }
            // The third was removed and added again.
            let backends = || disk.gives.borrow().iter().map(|(backend, _)| backend.clone()).collect::<Vec<_>>();
            assert_eq!(backends(), ["0", "1", "2", "2"]);
            disk.rounds(6).await;
            assert_eq!(disk.published(), []);
            let moved = Known { backend: "elsewhere".into(), ..known(0) };
            keeper.follow(vec![moved, known(1), known(2)]);
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
    async fn what_was_kept_is_there_before_the_backend_is_asked() {
        let disk = Disk::default();
        let keeper = Keeper::new(disk.clone());
        let scenario = async {
            keeper.follow(vec![known(0)]);
            tokio::time::sleep(PATIENCE / 2).await;
            assert_eq!(disk.asked.get(), 0);
            let (_, gives) = disk.gives.borrow_mut().pop().unwrap();
            gives.send("kept").unwrap();
            disk.rounds(1).await;
            assert_eq!(disk.published(), [("v1.g0".to_owned(), "kept")]);
        };
        tokio::task::LocalSet::new().run_until(scenario).await;
    }
}
