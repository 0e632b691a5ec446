//! Availability of all APIServices, readable by every thread without waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::circuit::{Circuit, Fate, Held, Pass};
use super::condition::{Condition, ConditionStatus};
use super::endpoint_map::{ConnectionSettings, EndpointMap};
use super::passage::Passage;
use super::standing::Standing;
use crate::egress::Address;
use crate::observe::metrics;
use crate::process::Lately;

/// Availability of one APIService: one object per name as long as it is in use, whatever else about the APIService
/// changes.
pub struct Availability {
    name: String,
    board: Weak<Entries>,
    /// Whether there is state to consult. Without it no lock is taken.
    remarkable: AtomicBool,
    refused: AtomicBool,
    condition: ArcSwap<Condition>,
    /// The circuit breaker, and why the last failed request got no answer.
    circuit: Mutex<(Circuit, &'static str)>,
    standings: Mutex<Vec<(Address, Arc<Standing>)>>,
    /// Notified when requests begin or cease to fail, for the APIService or an endpoint, and when a probe is requested.
    turned: Arc<Notify>,
    /// The last finished probe.
    asked: Mutex<Option<Asked>>,
    /// Whether a probe is requested.
    wanted: AtomicBool,
}

/// A finished probe of a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// When it began.
    pub(super) at: Instant,
    /// Whether it succeeded.
    pub(super) answered: bool,
}

/// Why a request is rejected.
pub enum Obstacle {
    /// The backend is known to be unavailable.
    Unavailable(Arc<Condition>),
    /// The circuit is open: recent requests got no answer.
    Open {
        /// Why the last of them failed.
        reason: &'static str,
        /// Time until the next trial.
        after: Duration,
    },
    /// The backend is recovering, and the request exceeds the recovery limit.
    Recovering,
}

/// Availability of all APIServices in use, by name: routes and probe loops hold it. Cheap to clone.
#[derive(Clone)]
pub struct Board(Arc<Entries>);

struct Entries {
    /// Locked only to look up a name, never across an await.
    by_name: Mutex<BTreeMap<String, Weak<Availability>>>,
    endpoints: EndpointMap,
    changes: watch::Sender<u64>,
    lately: Mutex<Lately<Arc<str>>>,
}

impl Availability {
    /// Whether requests may be sent. False only if the backend is known to be unavailable.
    pub fn is_available(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Admits or rejects a request of `user`, a number that few users share. Record its outcome, and keep the
    /// [`Passage`] until then. A healthy backend needs none.
    ///
    /// # Errors
    /// The [`Obstacle`].
    pub fn pass(self: &Arc<Self>, user: impl FnOnce() -> u16) -> Result<Option<Box<Passage>>, Obstacle> {
        if !self.remarkable.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if !self.is_available() {
            return Err(Obstacle::Unavailable(self.condition()));
        }
        self.with(|circuit, reason| match circuit.pass(user, Instant::now()) {
            Ok(pass) => Ok(pass.map(|pass| Box::new(Passage::new(self, pass)))),
            Err(Held::Open(after)) => Err(Obstacle::Open { reason, after }),
            Err(Held::Recovering) => Err(Obstacle::Recovering),
        })
    }

    pub(super) fn give_back(&self, pass: Pass, sent: bool) {
        self.with(|circuit, _| circuit.give_back(pass, sent, Instant::now()));
    }

    /// Records a request that got an answer.
    pub fn answered(&self) {
        if self.remarkable.load(Ordering::Relaxed) {
            self.with(|circuit, _| circuit.hear(Fate::Answered, Instant::now()));
        }
    }

    /// Records a request without an answer, for this `reason`.
    pub fn failed(&self, fate: Fate, reason: &'static str) {
        self.with(|circuit, last| {
            // While the circuit is open its first reason stays: later failures follow from it.
            if !circuit.is_against() {
                *last = reason;
            }
            circuit.hear(fate, Instant::now());
        });
    }

    /// The state of the circuit. Closed, without a lock, if there is no state to consult.
    pub fn circuit(&self) -> metrics::Circuit {
        if !self.remarkable.load(Ordering::Relaxed) {
            return metrics::Circuit::Closed;
        }
        self.circuit.lock().0.state(Instant::now())
    }

    /// The health of each of `endpoints`, in this order. It is shared by all APIServices that connect with these
    /// `settings`. Other endpoints of this APIService are dropped.
    pub fn standings(&self, settings: ConnectionSettings, endpoints: &[Address]) -> Vec<Arc<Standing>> {
        let board = self.board.upgrade();
        let map = board.as_ref().map(|board| &board.endpoints);
        let settings = Arc::new(settings);
        // If none of the endpoints existed before, none is new among others.
        let among_others = map.is_some_and(|map| endpoints.iter().any(|at| map.get(at, &settings).is_some()));
        let fresh = || Standing::new(among_others, Instant::now());
        let standing = |at: &Address| match map {
            Some(map) => map.get_or_insert(at, &settings, fresh),
            None => Arc::new(fresh()),
        };
        let now: Vec<Arc<Standing>> = endpoints.iter().map(standing).collect();
        now.iter().for_each(|standing| standing.subscribe(&self.turned));
        *self.standings.lock() = endpoints.iter().cloned().zip(now.iter().cloned()).collect();
        now
    }

    /// Records whether a connection to `endpoint` could be opened for a probe.
    pub(super) fn dialed(&self, endpoint: &Address, result: Result<(), &'static str>) {
        let known = self.standings.lock();
        if let Some((_, standing)) = known.iter().find(|(at, _)| at == endpoint) {
            standing.record_probe_dial(result);
        }
    }

    /// The backend is known to be unavailable: confirms the dial failures of its endpoints.
    pub(super) fn confirm_dial_failures(&self) {
        self.standings.lock().iter().for_each(|(_, standing)| standing.confirm_dial_failure());
    }

    /// Why requests fail, if the circuit is open.
    pub(super) fn open_circuit(&self) -> Option<&'static str> {
        let circuit = self.circuit.lock();
        circuit.0.is_against().then_some(circuit.1)
    }

    /// Records the result of a probe of `endpoint`.
    pub(super) fn probed(&self, endpoint: &Address, answered: bool) {
        let (standing, others) = {
            let known = self.standings.lock();
            let found = known.iter().find(|(at, _)| at == endpoint).map(|(_, standing)| standing.clone());
            (found, known.iter().any(|(at, standing)| at != endpoint && !standing.is_out()))
        };
        match standing {
            Some(standing) if answered => standing.vouched_for(),
            Some(standing) => drop(standing.missed(|| others)),
            None => {}
        }
        if answered && self.remarkable.load(Ordering::Relaxed) {
            self.with(|circuit, _| circuit.vouched_for(Instant::now()));
        }
    }

    /// Records that a backend without probes (the delegate) answered a poll at `endpoint`; counts as a probe.
    pub fn poll_answered(&self, endpoint: &Address) {
        self.probed(endpoint, true);
    }

    /// Whether requests fail: the circuit is open, or every endpoint is failing.
    pub(super) fn is_doubted(&self) -> bool {
        if self.circuit.lock().0.is_against() {
            return true;
        }
        let known = self.standings.lock();
        !known.is_empty() && known.iter().all(|(_, standing)| standing.is_against())
    }

    /// The last finished probe.
    pub(super) fn asked(&self) -> Option<Asked> {
        *self.asked.lock()
    }

    /// Requests a probe soon. [`Board::changes`] announces its end.
    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        self.turned.notify_one();
    }

    /// Whether a probe is requested.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Takes the probe request, if there is one, as a probe begins.
    pub(super) fn begin(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Waits until requests may have begun or ceased to fail, or a probe is requested. For one waiter; notifications
    /// without a waiter are kept.
    pub(super) async fn turns(&self) {
        self.turned.notified().await;
    }

    fn with<T>(&self, change: impl FnOnce(&mut Circuit, &mut &'static str) -> T) -> T {
        let (result, turned) = {
            let mut circuit = self.circuit.lock();
            let (circuit, reason) = &mut *circuit;
            let before = circuit.is_against();
            let result = change(circuit, reason);
            self.remarkable.store(!circuit.is_plain() || !self.is_available(), Ordering::Relaxed);
            (result, circuit.is_against() != before)
        };
        if turned {
            self.turned.notify_one();
        }
        result
    }

    /// The current condition.
    pub fn condition(&self) -> Arc<Condition> {
        self.condition.load_full()
    }
}

impl Drop for Availability {
    fn drop(&mut self) {
        let Some(entries) = self.board.upgrade() else { return };
        let mut by_name = entries.by_name.lock();
        // A new entry may have the name by now.
        if by_name.get(&self.name).is_some_and(|there| there.strong_count() == 0) {
            by_name.remove(&self.name);
        }
    }
}

impl Default for Board {
    fn default() -> Board {
        Board(Arc::new(Entries {
            by_name: Mutex::default(),
            endpoints: EndpointMap::default(),
            changes: watch::channel(0).0,
            lately: Mutex::default(),
        }))
    }
}

impl Board {
    /// The availability of the APIService `name`; a new `Unknown` one if none is in use.
    pub fn of(&self, name: &str) -> Arc<Availability> {
        let mut by_name = self.0.by_name.lock();
        if let Some(known) = by_name.get(name).and_then(Weak::upgrade) {
            return known;
        }
        let condition = ArcSwap::from_pointee(Condition::unknown(SystemTime::now()));
        let fresh = Arc::new(Availability {
            name: name.to_owned(),
            board: Arc::downgrade(&self.0),
            remarkable: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            condition,
            circuit: Mutex::new((Circuit::default(), "")),
            standings: Mutex::default(),
            turned: Arc::default(),
            asked: Mutex::default(),
            wanted: AtomicBool::new(false),
        });
        by_name.insert(name.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// A receiver that changes when a condition changes or a requested probe ends.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Names with a changed condition, or with a requested probe that ended, since `version` of [`Board::changes`],
    /// with the current version. `None` if `version` is too old: then all may have changed.
    pub fn changed_since(&self, version: u64) -> (u64, Option<BTreeSet<Arc<str>>>) {
        let lately = self.0.lately.lock();
        (*self.0.changes.borrow(), lately.since(version).map(|names| names.cloned().collect()))
    }

    fn tell(&self, name: &str) {
        let mut lately = self.0.lately.lock();
        self.0.changes.send_modify(|version| {
            *version += 1;
            lately.note(*version, name.into());
        });
    }

    /// Records a finished probe of `availability`, and announces it if it was `wanted`.
    pub(super) fn asked(&self, availability: &Availability, asked: Asked, wanted: bool) {
        *availability.asked.lock() = Some(asked);
        if wanted {
            self.tell(&availability.name);
        }
    }

    /// Sets the condition of `name`.
    pub(super) fn put(&self, name: &str, condition: &Condition) {
        let availability = self.of(name);
        availability.condition.store(Arc::new(condition.clone()));
        let refused = condition.status == ConditionStatus::False;
        let before = availability.refused.swap(refused, Ordering::Relaxed);
        availability.with(|circuit, _| {
            if before && !refused {
                circuit.recover(Instant::now());
            }
        });
        self.tell(name);
    }

    /// Resets the availability of `name`. The object stays while it is in use: an APIService that came back under the
    /// same name may have a route to it.
    pub(super) fn forget(&self, name: &str) {
        self.put(name, &Condition::unknown(SystemTime::now()));
        let availability = self.of(name);
        availability.with(|circuit, _| *circuit = Circuit::default());
        *availability.asked.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(availability: &Arc<Availability>) -> bool {
        availability.pass(|| 0).is_ok()
    }

    #[test]
    fn a_backend_that_is_back_gets_no_more_than_it_answers() {
        let board = Board::default();
        let one = board.of("v1.a.io");
        assert!(one.pass(|| unreachable!("nothing is counted for a healthy backend")).is_ok());
        let condition = |status| Condition { status, ..Condition::unknown(SystemTime::now()) };
        board.put("v1.a.io", &condition(ConditionStatus::False));
        assert!(matches!(one.pass(|| 0), Err(Obstacle::Unavailable(_))));
        board.put("v1.a.io", &condition(ConditionStatus::True));
        let passed: Vec<_> = std::iter::from_fn(|| one.pass(|| 0).ok().flatten()).collect();
        assert!(!passed.is_empty() && matches!(one.pass(|| 0), Err(Obstacle::Recovering)));
        drop(passed);
        assert!(passes(&one));
        (0..1000).for_each(|_| one.answered());
        assert!(matches!(one.pass(|| 0), Ok(None)));
        assert_eq!(one.circuit(), metrics::Circuit::Closed);
    }

    #[test]
    fn circuit_reason_kept_while_open() {
        let one = Board::default().of("v1.a.io");
        one.failed(Fate::Unreachable, "ConnectTimeout");
        one.failed(Fate::Unreachable, "NoEndpoints");
        assert_eq!(one.open_circuit(), Some("ConnectTimeout"));
        one.answered();
        one.failed(Fate::Unreachable, "ConnectionRefused");
        assert_eq!(one.open_circuit(), Some("ConnectionRefused"));
    }

    #[test]
    fn a_passage_that_was_not_used_is_the_next_ones() {
        let one = Board::default().of("v1.a.io");
        one.circuit.lock().0 = Circuit::opened_before(Instant::now());
        one.remarkable.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            let passage = one.pass(|| 0).ok().flatten();
            assert!(passage.is_some() && matches!(one.pass(|| 0), Err(Obstacle::Open { .. })));
        }
        let passage = one.pass(|| 0).ok().flatten().unwrap();
        passage.sent();
        drop(passage);
        assert!(matches!(one.pass(|| 0), Err(Obstacle::Open { .. })));
    }

    #[test]
    fn endpoint_state_is_one_for_all_apiservices_that_have_it() {
        let at = [Address::tcp(crate::egress::Host::Name("a".to_owned()), 1)];
        let board = Board::default();
        let (one, two) = (board.of("v1.a.io"), board.of("v2.a.io"));
        let settings = ConnectionSettings::default;
        let (first, second) = (one.standings(settings(), &at), two.standings(settings(), &at));
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        one.dialed(&at[0], Err("ConnectionRefused"));
        assert!(!one.is_doubted() && !two.is_doubted(), "one probe does not decide");
        assert_eq!(second[0].dial_failure(), Some("ConnectionRefused"));
        one.confirm_dial_failures();
        assert!(one.is_doubted() && two.is_doubted());
        two.dialed(&at[0], Ok(()));
        assert!(!one.is_doubted() && first[0].dial_failure().is_none());
    }

    #[test]
    fn an_endpoint_keeps_its_standing_as_long_as_it_is_there() {
        let at = |port| Address::tcp(crate::egress::Host::Name("a".to_owned()), port);
        let board = Board::default();
        let one = board.of("v1.a.io");
        let first = one.standings(ConnectionSettings::default(), &[at(1), at(2)]);
        assert!(first.iter().all(|standing| standing.is_plain()), "the first know no others");
        let second = one.standings(ConnectionSettings::default(), &[at(2), at(3)]);
        assert!(Arc::ptr_eq(&first[1], &second[0]) && !second[1].is_plain());
        (0..10).for_each(|_| one.probed(&at(2), false));
        assert!(second[0].is_out());
        (0..10).for_each(|_| one.probed(&at(3), false));
        assert!(!second[1].is_out(), "never all");
    }

    #[test]
    fn unknown_is_let_through_and_false_is_not() {
        let board = Board::default();
        let changes = board.changes();
        let one = board.of("v1.a.io");
        assert!(one.is_available());
        let refused = Condition { status: ConditionStatus::False, ..Condition::unknown(SystemTime::now()) };
        board.put("v1.a.io", &refused);
        assert!(!one.is_available() && *one.condition() == refused);
        assert!(changes.has_changed().unwrap());
        assert_eq!(board.changed_since(0), (1, Some(BTreeSet::from(["v1.a.io".into()]))));
        assert_eq!(board.changed_since(1), (1, Some(BTreeSet::new())));
        assert!(Arc::ptr_eq(&one, &board.of("v1.a.io")));
        one.failed(Fate::Unreachable, "ConnectionRefused");
        board.forget("v1.a.io");
        assert!(one.is_available() && !one.is_doubted() && Arc::ptr_eq(&one, &board.of("v1.a.io")));
    }

    #[test]
    fn a_name_is_forgotten_when_nobody_holds_it() {
        let board = Board::default();
        let known = || board.0.by_name.lock().len();
        let one = board.of("v1.a.io");
        board.put("v1.a.io", &Condition { status: ConditionStatus::False, ..Condition::unknown(SystemTime::now()) });
        let route = one.clone();
        drop(one);
        assert!(!board.of("v1.a.io").is_available());
        board.forget("v1.a.io");
        drop(route);
        assert_eq!(known(), 0);
        // A lookup alone leaves no entry, and a name that comes back gets a new object.
        assert!(board.of("v1.a.io").is_available());
        board.forget("v1.b.io");
        assert_eq!(known(), 0);
        let back = board.of("v1.a.io");
        assert_eq!((back.condition().status, known()), (ConditionStatus::Unknown, 1));
        drop((board, back));
    }
}
