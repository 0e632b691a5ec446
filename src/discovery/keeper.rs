//! Follows what is registered, asks each backend in a task of its own, and keeps what was heard.
//!
//! What is asked and what becomes of the answer is the [`Subject`]'s business: discovery is one, OpenAPI another.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use super::known::{By, Known};
use super::rounds::{REFRESH, Rounds};

/// What all backends are asked about.
pub(crate) trait Subject: 'static {
    /// What is remembered of a backend between rounds, as long as the same APIServices point to it.
    type Memory: Clone + Default;
    /// What is known of an APIService, as long as it is registered.
    type Content;
    /// What a backend said in one round.
    type Heard;

    /// Asks one backend. `claims` are the APIServices that point to it.
    async fn ask(&self, claims: &[Known], memory: Self::Memory) -> Self::Heard;

    /// Takes in what was heard, as far as it is about `claims`.
    fn hear(
        &self,
        heard: Self::Heard,
        claims: &[Known],
        memory: &mut Self::Memory,
        contents: &mut Contents<Self::Content>,
    ) -> Outcome;

    /// What is known of an APIService from before this process; it comes when the disk gives it.
    fn recall(&self, _known: &Known) -> Option<oneshot::Receiver<Self::Content>> {
        None
    }

    /// What is known from before comes when the backend was already asked in vain. True if that changes anything.
    fn supplement(&self, _content: &mut Self::Content, _recalled: Self::Content) -> bool {
        false
    }

    /// The APIService points to another backend, which has said nothing yet of what is known.
    fn moves(&self, _name: &str, _content: &mut Self::Content) {}

    /// The APIService is gone.
    fn forget(&self, _name: &str) {}

    /// Publishes what is known of the APIServices there are. Since the last time nothing changed but what concerns those
    /// that are `changed`, some of which may be gone.
    fn publish(&self, known: &All, contents: &Contents<Self::Content>, changed: &BTreeSet<String>);
}

/// What is known, by name of the APIService.
pub(crate) type Contents<C> = BTreeMap<String, C>;

/// The APIServices there are, by name.
pub(crate) type All = BTreeMap<String, Known>;

/// What became of an APIService; nothing is left of one that is gone.
pub type Change = (String, Option<Known>);

/// What a round came to.
pub(crate) struct Outcome {
    /// Whether all went well; if not, the next round comes soon.
    pub(crate) well: bool,
    /// Whether any content is another now.
    pub(crate) changed: bool,
}

/// The running rounds about one subject; dropping it ends their tasks.
///
/// Lives on one thread, inside a `LocalSet`.
pub(crate) struct Keeper<S: Subject> {
    shared: Rc<Shared<S>>,
    rounds: RefCell<Rounds>,
}

struct Shared<S: Subject> {
    subject: S,
    state: RefCell<State<S>>,
    /// Before this, nothing is published again.
    rests_until: Cell<Instant>,
    /// Whether somebody will publish then.
    waits: Cell<bool>,
    /// The APIServices of which something changed since the last publishing.
    unpublished: RefCell<BTreeSet<String>>,
}

/// Publishing may take a tenth of the time. It costs what all backends together have to say, and of a thousand that
/// answer within a second each would have it done once more.
const REST: u32 = 9;

/// How long a backend is not asked because it is not known yet what it said before: so what is kept of one that does not
/// answer is there when that shows. Nobody waits longer for a disk.
const PATIENCE: Duration = Duration::from_secs(1);

/// One look at what is known of an APIService from before this process. There is no other for the same backend.
struct Recall {
    /// [`Known::backend`].
    backend: String,
    /// Whether nothing fresher came yet.
    wanted: bool,
    /// Closed when it is over; for the first who waits for it.
    over: Option<watch::Receiver<()>>,
}

impl<S: Subject> Shared<S> {
    /// Publishes what is known: now, or after a rest if that has just been done.
    fn publish(self: &Rc<Self>, changed: impl IntoIterator<Item = String>) {
        self.unpublished.borrow_mut().extend(changed);
        let now = Instant::now();
        if now >= self.rests_until.get() {
            let state = self.state.borrow();
            self.subject.publish(&state.known, &state.contents, &self.unpublished.take());
            let done = Instant::now();
            self.rests_until.set(done + (done - now) * REST);
        } else if !self.waits.replace(true) {
            // As long as somebody keeps the documents, and no longer.
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
    /// Whether anybody said what is registered.
    told: bool,
    known: All,
    /// The names of those that point to a backend, by its key.
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
    /// Begins with no APIService.
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

    /// Takes over what is registered now. New and changed APIServices are asked at once; what is gone, goes.
    pub(crate) fn follow(&self, known: Vec<Known>) {
        let mut changes: BTreeMap<String, Option<Known>> = BTreeMap::new();
        changes.extend(self.shared.state.borrow().known.keys().map(|name| (name.clone(), None)));
        changes.extend(known.into_iter().map(|one| (one.name.clone(), Some(one))));
        self.follow_changes(changes);
    }

    /// The same when nothing else changed than these.
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

    /// The APIService `name` is `now` this, or gone.
    fn turns_into(&self, state: &mut State<S>, name: &str, now: Option<Known>) {
        let State { known, contents, recalls, .. } = state;
        let subject = &self.shared.subject;
        let Some(now) = now else {
            known.remove(name);
            contents.remove(name);
            recalls.remove(name);
            return subject.forget(name);
        };
        // What moved to another backend keeps what the old one said until the new one speaks.
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

    /// Others may point to the backend `key` than before.
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
                // What a new claim needs was passed over when the answer was remembered, so the memory goes.
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

    /// Asks the backend of `apiservice` again now.
    pub(crate) fn nudge(&self, apiservice: &str) {
        let state = self.shared.state.borrow();
        if let Some(one) = state.known.get(apiservice) {
            self.rounds.borrow().nudge(&one.service_key);
        }
    }
}

/// How often those behind `claims` are asked. The delegate's APIs come and go without an APIService of their own being
/// touched (CustomResourceDefinitions do), and it answers with 304 as long as nothing did.
fn pace(claims: &[Known]) -> Duration {
    if claims.iter().any(|claim| claim.by == By::Itself) { Duration::from_secs(3) } else { REFRESH }
}

/// Takes in what `comes` from before this process, unless something fresher did. `_reading` is closed when that is done.
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

/// Waits, but not for long, until it is known what those behind `key` said before.
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

/// Asks the backend `key`; says whether all went well.
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
    // The APIServices may have changed meanwhile: what was heard is still true of those that stayed, but what is
    // remembered of it now would hide what the new ones need.
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

    /// Everybody has something new to say once; publishing is slow.
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

    /// The backend, and what waits for what is kept of it.
    type Gives = (String, oneshot::Sender<&'static str>);

    /// What the disk gives of each APIService, when the test says so; how often it was asked; and whether backends answer.
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
            // Backends are asked although the disk hangs, and it is asked once for each of theirs.
            for count in [1, 2, 3, 2, 3] {
                keeper.follow((0..count).map(known).collect());
            }
            // The third went, and came again.
            let backends = || disk.gives.borrow().iter().map(|(backend, _)| backend.clone()).collect::<Vec<_>>();
            assert_eq!(backends(), ["0", "1", "2", "2"]);
            disk.rounds(6).await;
            assert_eq!(disk.published(), []);
            let moved = Known { backend: "elsewhere".into(), ..known(0) };
            keeper.follow(vec![moved, known(1), known(2)]);
            assert_eq!(backends(), ["0", "1", "2", "2", "elsewhere"]);
            // Of the old backend it is not taken; of one that was asked in vain it is.
            for (_, gives) in disk.gives.borrow_mut().drain(..2) {
                gives.send("kept").unwrap();
            }
            disk.rounds(1).await;
            assert_eq!(disk.published(), [("v1.g1".to_owned(), "kept")]);
            // What was heard meanwhile is fresher.
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
