//! Follows what is registered, asks each backend in a task of its own, and keeps what was heard.
//!
//! What is asked and what becomes of the answer is the [`Subject`]'s business: discovery is one, OpenAPI another.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::Instant;

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

    /// What is known of an APIService from before this process.
    fn recall(&self, _known: &Known) -> Option<Self::Content> {
        None
    }

    /// The APIService points to another backend, which has said nothing yet of what is known.
    fn moves(&self, _name: &str, _content: &mut Self::Content) {}

    /// The APIService is gone.
    fn forget(&self, _name: &str) {}

    /// Publishes what is known of the APIServices there are.
    fn publish(&self, known: &[Known], contents: &Contents<Self::Content>);
}

/// What is known, by name of the APIService.
pub(crate) type Contents<C> = BTreeMap<String, C>;

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
}

/// Publishing may take a tenth of the time. It costs what all backends together have to say, and of a thousand that
/// answer within a second each would have it done once more.
const REST: u32 = 9;

impl<S: Subject> Shared<S> {
    /// Publishes what is known: now, or after a rest if that has just been done.
    fn publish(self: &Rc<Self>) {
        let now = Instant::now();
        if now >= self.rests_until.get() {
            let state = self.state.borrow();
            self.subject.publish(state.known.as_deref().unwrap_or_default(), &state.contents);
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
                    shared.publish();
                }
            });
        }
    }
}

struct State<S: Subject> {
    /// Nothing before anybody said what is registered.
    known: Option<Vec<Known>>,
    backends: BTreeMap<String, Backend<S::Memory>>,
    contents: Contents<S::Content>,
}

struct Backend<M> {
    /// The APIServices that point to it; replaced as a whole when they change.
    claims: Rc<[Known]>,
    memory: M,
}

impl<S: Subject> Keeper<S> {
    /// Begins with no APIService.
    pub(crate) fn new(subject: S) -> Keeper<S> {
        let state = State { known: None, backends: BTreeMap::new(), contents: BTreeMap::new() };
        let (state, rests_until) = (RefCell::new(state), Cell::new(Instant::now()));
        let shared = Shared { subject, state, rests_until, waits: Cell::default() };
        Keeper { shared: Rc::new(shared), rounds: RefCell::default() }
    }

    /// Takes over what is registered now. New and changed APIServices are asked at once; what is gone, goes.
    pub(crate) fn follow(&self, mut known: Vec<Known>) {
        known.sort_by(|a, b| a.name.cmp(&b.name));
        known.dedup_by(|a, b| a.name == b.name);
        let mut by_backend: BTreeMap<&str, Vec<Known>> = BTreeMap::new();
        for one in known.iter().filter(|one| one.by != By::Delegate) {
            by_backend.entry(&one.service_key).or_default().push(one.clone());
        }

        let mut state = self.shared.state.borrow_mut();
        if state.known.as_ref() == Some(&known) {
            return;
        }
        let mut rounds = self.rounds.borrow_mut();
        rounds.retain(|key| by_backend.contains_key(key));
        state.backends.retain(|key, _| by_backend.contains_key(key.as_str()));
        for (key, claims) in &by_backend {
            let fresh = || Backend { claims: claims.as_slice().into(), memory: S::Memory::default() };
            match state.backends.get_mut(*key) {
                Some(backend) if *backend.claims == **claims => {}
                Some(backend) => {
                    // What a new claim needs was passed over when the answer was remembered, so the memory goes.
                    *backend = fresh();
                    rounds.nudge(key);
                }
                None => {
                    state.backends.insert((*key).to_owned(), fresh());
                    let (shared, its) = (self.shared.clone(), Rc::<str>::from(*key));
                    rounds.begin(key, pace(claims), move || round(shared.clone(), its.clone()));
                }
            }
        }
        // What moved to another backend keeps what the old one said until the new one speaks.
        let subject = &self.shared.subject;
        let State { known: before, contents, .. } = &mut *state;
        contents.retain(|name, _| known.binary_search_by(|one| one.name.as_str().cmp(name)).is_ok());
        for one in before.iter().flatten() {
            match known.binary_search_by(|now| now.name.cmp(&one.name)) {
                Err(_) => subject.forget(&one.name),
                Ok(now) if known[now].backend == one.backend => {}
                Ok(_) => {
                    if let Some(content) = contents.get_mut(&one.name) {
                        subject.moves(&one.name, content);
                    }
                }
            }
        }
        for one in known.iter().filter(|one| one.by != By::Delegate) {
            if !state.contents.contains_key(&one.name)
                && let Some(content) = subject.recall(one)
            {
                state.contents.insert(one.name.clone(), content);
            }
        }
        state.known = Some(known);
        drop(state);
        self.shared.publish();
    }

    /// Asks the backend of `apiservice` again now.
    pub(crate) fn nudge(&self, apiservice: &str) {
        let state = self.shared.state.borrow();
        if let Some(one) = state.known.iter().flatten().find(|one| one.name == apiservice) {
            self.rounds.borrow().nudge(&one.service_key);
        }
    }
}

/// How often those behind `claims` are asked. The delegate's APIs come and go without an APIService of their own being
/// touched (CustomResourceDefinitions do), and it answers with 304 as long as nothing did.
fn pace(claims: &[Known]) -> Duration {
    if claims.iter().any(|claim| claim.by == By::Itself) { Duration::from_secs(3) } else { REFRESH }
}

/// Asks the backend `key`; says whether all went well.
async fn round<S: Subject>(shared: Rc<Shared<S>>, key: Rc<str>) -> bool {
    let Some((asked, memory)) =
        shared.state.borrow().backends.get(&*key).map(|backend| (backend.claims.clone(), backend.memory.clone()))
    else {
        return true;
    };
    let heard = shared.subject.ask(&asked, memory).await;

    let mut state = shared.state.borrow_mut();
    let State { backends, contents, .. } = &mut *state;
    let Some(backend) = backends.get_mut(&*key) else { return true };
    // The APIServices may have changed meanwhile: what was heard is still true of those that stayed, but what is
    // remembered of it now would hide what the new ones need.
    let outcome = if Rc::ptr_eq(&backend.claims, &asked) {
        shared.subject.hear(heard, &asked, &mut backend.memory, contents)
    } else {
        let stayed: Vec<Known> =
            asked.iter().filter(|one| backend.claims.iter().any(|claim| claim.name == one.name)).cloned().collect();
        shared.subject.hear(heard, &stayed, &mut S::Memory::default(), contents)
    };
    let Outcome { well, changed } = outcome;
    drop(state);
    if changed {
        shared.publish();
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

        fn publish(&self, _: &[Known], contents: &Contents<()>) {
            std::thread::sleep(Duration::from_millis(2));
            self.published.set((self.published.get().0 + 1, contents.len()));
        }
    }

    #[tokio::test]
    async fn many_answers_at_once_are_published_together() {
        const MANY: usize = 100;
        let known = |number: usize| Known {
            name: format!("v1.g{number}"),
            group: format!("g{number}"),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: number.to_string(),
            backend: number.to_string(),
            by: By::Backend,
        };
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
}
