//! Follows what is registered, asks each backend in a task of its own, and keeps what was heard.
//!
//! What is asked and what becomes of the answer is the [`Subject`]'s business: discovery is one, OpenAPI another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

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
        Keeper { shared: Rc::new(Shared { subject, state: RefCell::new(state) }), rounds: RefCell::default() }
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
        // What moved to another backend (a new authority will do) keeps what the old one said until the new one speaks.
        let subject = &self.shared.subject;
        state.contents.retain(|name, _| known.binary_search_by(|one| one.name.as_str().cmp(name)).is_ok());
        for one in state.known.iter().flatten() {
            if known.binary_search_by(|now| now.name.cmp(&one.name)).is_err() {
                subject.forget(&one.name);
            }
        }
        for one in known.iter().filter(|one| one.by != By::Delegate) {
            if !state.contents.contains_key(&one.name)
                && let Some(content) = subject.recall(one)
            {
                state.contents.insert(one.name.clone(), content);
            }
        }
        subject.publish(&known, &state.contents);
        state.known = Some(known);
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
    let State { known, backends, contents } = &mut *state;
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
    if outcome.changed {
        shared.subject.publish(known.as_deref().unwrap_or_default(), contents);
    }
    outcome.well
}
