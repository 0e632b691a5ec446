//! Availability of all APIServices, readable by every thread without waiting.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::circuit::{BackendOutcome, CircuitBreaker, CircuitRejection, CircuitTicket};
use super::condition::{AvailabilityCondition, ConditionStatus};
use super::endpoint_map::{ConnectionSettings, EndpointMap};
use super::outlier_detection::EndpointHealth;
use crate::egress::Address;
use crate::observe::metrics;
use crate::process::ChangeLog;

/// Availability of one APIService: one object per name as long as it is in use, whatever else about the APIService
/// changes.
pub struct Availability {
    name: String,
    map: Weak<AvailabilityMapInner>,
    /// Whether there is state to consult. Without it no lock is taken.
    has_state: AtomicBool,
    unavailable: AtomicBool,
    condition: ArcSwap<AvailabilityCondition>,
    /// The circuit breaker, and why the last failed request got no answer.
    circuit: Mutex<(CircuitBreaker, &'static str)>,
    endpoints: Mutex<Vec<(Address, Arc<EndpointHealth>)>>,
    /// Notified when requests begin or cease to fail, for the APIService or an endpoint, and when a probe is requested.
    changed: Arc<Notify>,
    /// The last finished probe.
    last_probe: Mutex<Option<ProbeRecord>>,
    /// Whether a probe is requested.
    probe_requested: AtomicBool,
}

/// A finished probe of a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeRecord {
    /// Time at which the probe began.
    pub(super) at: Instant,
    /// Whether the probe succeeded.
    pub(super) is_answered: bool,
}

/// Why a request is rejected.
pub enum Rejection {
    /// The backend is known to be unavailable.
    Unavailable(Arc<AvailabilityCondition>),
    /// The circuit is open: recent requests got no answer.
    CircuitOpen {
        /// Why the last of them failed.
        reason: &'static str,
        /// Time until the next trial.
        after: Duration,
    },
    /// The backend is recovering, and the request exceeds the recovery limit.
    Recovering,
}

/// Permit of a request admitted while the circuit is not closed. Keep it until the response head arrives or the request
/// fails. The outcome is recorded separately.
pub struct CircuitPermit {
    availability: Arc<Availability>,
    pass: CircuitTicket,
    sent: Cell<bool>,
}

impl CircuitPermit {
    fn new(availability: &Arc<Availability>, pass: CircuitTicket) -> CircuitPermit {
        CircuitPermit { availability: availability.clone(), pass, sent: Cell::new(false) }
    }

    /// The request is being sent to the backend.
    pub fn mark_sent(&self) {
        self.sent.set(true);
    }
}

impl Drop for CircuitPermit {
    fn drop(&mut self) {
        self.availability.release(self.pass, self.sent.get());
    }
}

/// Availability of all APIServices in use, by name: routes and probe loops hold it. Cheap to clone.
#[derive(Clone)]
pub struct AvailabilityMap(Arc<AvailabilityMapInner>);

struct AvailabilityMapInner {
    /// Locked only to look up a name, never across an await.
    by_name: Mutex<BTreeMap<String, Weak<Availability>>>,
    endpoints: EndpointMap,
    changes: watch::Sender<u64>,
    change_log: Mutex<ChangeLog<Arc<str>>>,
}

impl Availability {
    /// Whether requests may be sent. False only if the backend is known to be unavailable.
    pub fn is_available(&self) -> bool {
        !self.unavailable.load(Ordering::Relaxed)
    }

    /// Admits or rejects a request of `user`, a number that few users share. Record its outcome, and keep the
    /// [`CircuitPermit`] until then. A healthy backend needs none.
    ///
    /// # Errors
    /// The [`Rejection`].
    pub fn admit(self: &Arc<Self>, user: impl FnOnce() -> u16) -> Result<Option<Box<CircuitPermit>>, Rejection> {
        if !self.has_state.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if !self.is_available() {
            return Err(Rejection::Unavailable(self.condition()));
        }
        self.update_circuit(|circuit, reason| match circuit.admit(user, Instant::now()) {
            Ok(pass) => Ok(pass.map(|pass| Box::new(CircuitPermit::new(self, pass)))),
            Err(CircuitRejection::Open(after)) => Err(Rejection::CircuitOpen { reason, after }),
            Err(CircuitRejection::Recovering) => Err(Rejection::Recovering),
        })
    }

    fn release(&self, pass: CircuitTicket, sent: bool) {
        self.update_circuit(|circuit, _| circuit.release(pass, sent, Instant::now()));
    }

    /// Records a request that got an answer.
    pub fn record_answer(&self) {
        if self.has_state.load(Ordering::Relaxed) {
            self.update_circuit(|circuit, _| circuit.record(BackendOutcome::Answered, Instant::now()));
        }
    }

    /// Records a request without an answer, for this `reason`.
    pub fn record_failure(&self, outcome: BackendOutcome, reason: &'static str) {
        self.update_circuit(|circuit, last| {
            // While the circuit is open its first reason stays: later failures follow from it.
            if !circuit.is_open() {
                *last = reason;
            }
            circuit.record(outcome, Instant::now());
        });
    }

    /// The state of the circuit. Closed, without a lock, if there is no state to consult.
    pub fn circuit_state(&self) -> metrics::CircuitState {
        if !self.has_state.load(Ordering::Relaxed) {
            return metrics::CircuitState::Closed;
        }
        self.circuit.lock().0.state(Instant::now())
    }

    /// The health of each of `endpoints`, in this order. It is shared by all APIServices that connect with these
    /// `settings`. Other endpoints of this APIService are dropped.
    pub fn track_endpoints(&self, settings: ConnectionSettings, endpoints: &[Address]) -> Vec<Arc<EndpointHealth>> {
        let availability = self.map.upgrade();
        let map = availability.as_ref().map(|map| &map.endpoints);
        let settings = Arc::new(settings);
        // If none of the endpoints existed before, none is new among others.
        let among_others = map.is_some_and(|map| endpoints.iter().any(|at| map.get(at, &settings).is_some()));
        let fresh = || EndpointHealth::new(among_others, Instant::now());
        let health_of = |at: &Address| match map {
            Some(map) => map.get_or_insert(at, &settings, fresh),
            None => Arc::new(fresh()),
        };
        let now: Vec<Arc<EndpointHealth>> = endpoints.iter().map(health_of).collect();
        now.iter().for_each(|health| health.subscribe(&self.changed));
        *self.endpoints.lock() = endpoints.iter().cloned().zip(now.iter().cloned()).collect();
        now
    }

    /// Records whether a connection to `endpoint` could be opened for a probe.
    pub(super) fn record_probe_dial(&self, endpoint: &Address, result: Result<(), &'static str>) {
        let endpoints = self.endpoints.lock();
        if let Some((_, health)) = endpoints.iter().find(|(at, _)| at == endpoint) {
            health.record_probe_dial(result);
        }
    }

    /// The backend is known to be unavailable: confirms the dial failures of its endpoints.
    pub(super) fn confirm_dial_failures(&self) {
        self.endpoints.lock().iter().for_each(|(_, standing)| standing.confirm_dial_failure());
    }

    /// Why requests fail, if the circuit is open.
    pub(super) fn circuit_open_reason(&self) -> Option<&'static str> {
        let circuit = self.circuit.lock();
        circuit.0.is_open().then_some(circuit.1)
    }

    /// Records the result of a probe of `endpoint`.
    pub(super) fn record_probe(&self, endpoint: &Address, is_answered: bool) {
        let (health, others) = {
            let endpoints = self.endpoints.lock();
            let found = endpoints.iter().find(|(at, _)| at == endpoint).map(|(_, health)| health.clone());
            (found, endpoints.iter().any(|(at, health)| at != endpoint && !health.is_ejected()))
        };
        match health {
            Some(health) if is_answered => health.record_probe_success(),
            Some(health) => drop(health.record_probe_failure(|| others)),
            None => {}
        }
        if is_answered && self.has_state.load(Ordering::Relaxed) {
            self.update_circuit(|circuit, _| circuit.record_probe_success(Instant::now()));
        }
    }

    /// Records that a backend without probes (the delegate) answered a poll at `endpoint`; counts as a probe.
    pub fn poll_answered(&self, endpoint: &Address) {
        self.record_probe(endpoint, true);
    }

    /// Whether requests fail: the circuit is open, or every endpoint is failing.
    pub(super) fn is_failing(&self) -> bool {
        if self.circuit.lock().0.is_open() {
            return true;
        }
        let endpoints = self.endpoints.lock();
        !endpoints.is_empty() && endpoints.iter().all(|(_, health)| health.is_failing())
    }

    /// The last finished probe.
    pub(super) fn last_probe(&self) -> Option<ProbeRecord> {
        *self.last_probe.lock()
    }

    /// Requests a probe soon. [`AvailabilityMap::changes`] announces its end.
    pub(super) fn request_probe(&self) {
        self.probe_requested.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Whether a probe is requested.
    pub(super) fn is_probe_requested(&self) -> bool {
        self.probe_requested.load(Ordering::Relaxed)
    }

    /// Takes the probe request, if there is one, as a probe begins.
    pub(super) fn take_probe_request(&self) -> bool {
        self.probe_requested.swap(false, Ordering::Relaxed)
    }

    /// Waits until requests may have begun or ceased to fail, or a probe is requested. For one waiter; notifications
    /// without a waiter are kept.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn update_circuit<T>(&self, change: impl FnOnce(&mut CircuitBreaker, &mut &'static str) -> T) -> T {
        let (result, turned) = {
            let mut circuit = self.circuit.lock();
            let (circuit, reason) = &mut *circuit;
            let before = circuit.is_open();
            let result = change(circuit, reason);
            self.has_state.store(!circuit.is_clean() || !self.is_available(), Ordering::Relaxed);
            (result, circuit.is_open() != before)
        };
        if turned {
            self.changed.notify_one();
        }
        result
    }

    /// The current condition.
    pub fn condition(&self) -> Arc<AvailabilityCondition> {
        self.condition.load_full()
    }
}

impl Drop for Availability {
    fn drop(&mut self) {
        let Some(entries) = self.map.upgrade() else { return };
        let mut by_name = entries.by_name.lock();
        // A new entry may have the name by now.
        if by_name.get(&self.name).is_some_and(|there| there.strong_count() == 0) {
            by_name.remove(&self.name);
        }
    }
}

impl Default for AvailabilityMap {
    fn default() -> AvailabilityMap {
        AvailabilityMap(Arc::new(AvailabilityMapInner {
            by_name: Mutex::default(),
            endpoints: EndpointMap::default(),
            changes: watch::channel(0).0,
            change_log: Mutex::default(),
        }))
    }
}

impl AvailabilityMap {
    /// The availability of the APIService `name`, if it is in use.
    pub fn get(&self, name: &str) -> Option<Arc<Availability>> {
        self.0.by_name.lock().get(name).and_then(Weak::upgrade)
    }

    /// The availability of the APIService `name`; a new `Unknown` one if none is in use.
    pub fn get_or_insert(&self, name: &str) -> Arc<Availability> {
        let mut by_name = self.0.by_name.lock();
        if let Some(known) = by_name.get(name).and_then(Weak::upgrade) {
            return known;
        }
        let condition = ArcSwap::from_pointee(AvailabilityCondition::unknown(SystemTime::now()));
        let fresh = Arc::new(Availability {
            name: name.to_owned(),
            map: Arc::downgrade(&self.0),
            has_state: AtomicBool::new(false),
            unavailable: AtomicBool::new(false),
            condition,
            circuit: Mutex::new((CircuitBreaker::default(), "")),
            endpoints: Mutex::default(),
            changed: Arc::default(),
            last_probe: Mutex::default(),
            probe_requested: AtomicBool::new(false),
        });
        by_name.insert(name.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// A receiver that changes when a condition changes or a requested probe ends.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Names with a changed condition, or with a requested probe that ended, since `version` of
    /// [`AvailabilityMap::changes`], with the current version. `None` if `version` is too old: then all may have
    /// changed.
    pub fn changed_since(&self, version: u64) -> (u64, Option<BTreeSet<Arc<str>>>) {
        let log = self.0.change_log.lock();
        (*self.0.changes.borrow(), log.changes_since(version).map(|names| names.cloned().collect()))
    }

    fn notify(&self, name: &str) {
        let mut log = self.0.change_log.lock();
        self.0.changes.send_modify(|version| {
            *version += 1;
            log.record(*version, name.into());
        });
    }

    /// Records a finished probe of `availability`, and announces it if it was `is_requested`.
    pub(super) fn finish_probe(&self, availability: &Availability, record: ProbeRecord, is_requested: bool) {
        *availability.last_probe.lock() = Some(record);
        if is_requested {
            self.notify(&availability.name);
        }
    }

    /// Sets the condition of `name`.
    pub(super) fn set_condition(&self, name: &str, condition: &AvailabilityCondition) {
        let availability = self.get_or_insert(name);
        availability.condition.store(Arc::new(condition.clone()));
        let refused = condition.status == ConditionStatus::False;
        let before = availability.unavailable.swap(refused, Ordering::Relaxed);
        availability.update_circuit(|circuit, _| {
            if before && !refused {
                circuit.start_recovery(Instant::now());
            }
        });
        self.notify(name);
    }

    /// Resets the availability of `name`. The object stays while it is in use: an APIService that came back under the
    /// same name may have a route to it.
    pub(super) fn forget(&self, name: &str) {
        self.set_condition(name, &AvailabilityCondition::unknown(SystemTime::now()));
        let availability = self.get_or_insert(name);
        availability.update_circuit(|circuit, _| *circuit = CircuitBreaker::default());
        *availability.last_probe.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_admitted(availability: &Arc<Availability>) -> bool {
        availability.admit(|| 0).is_ok()
    }

    #[test]
    fn recovering_backend_limits_requests_to_answers() {
        let board = AvailabilityMap::default();
        let one = board.get_or_insert("v1.a.io");
        assert!(one.admit(|| unreachable!("nothing is counted for a healthy backend")).is_ok());
        let condition = |status| AvailabilityCondition { status, ..AvailabilityCondition::unknown(SystemTime::now()) };
        board.set_condition("v1.a.io", &condition(ConditionStatus::False));
        assert!(matches!(one.admit(|| 0), Err(Rejection::Unavailable(_))));
        board.set_condition("v1.a.io", &condition(ConditionStatus::True));
        let passed: Vec<_> = std::iter::from_fn(|| one.admit(|| 0).ok().flatten()).collect();
        assert!(!passed.is_empty() && matches!(one.admit(|| 0), Err(Rejection::Recovering)));
        drop(passed);
        assert!(is_admitted(&one));
        (0..1000).for_each(|_| one.record_answer());
        assert!(matches!(one.admit(|| 0), Ok(None)));
        assert_eq!(one.circuit_state(), metrics::CircuitState::Closed);
    }

    #[test]
    fn circuit_reason_kept_while_open() {
        let one = AvailabilityMap::default().get_or_insert("v1.a.io");
        one.record_failure(BackendOutcome::Unreachable, "ConnectTimeout");
        one.record_failure(BackendOutcome::Unreachable, "NoEndpoints");
        assert_eq!(one.circuit_open_reason(), Some("ConnectTimeout"));
        one.record_answer();
        one.record_failure(BackendOutcome::Unreachable, "ConnectionRefused");
        assert_eq!(one.circuit_open_reason(), Some("ConnectionRefused"));
    }

    #[test]
    fn circuit_permit_unused_trial_given_to_next() {
        let one = AvailabilityMap::default().get_or_insert("v1.a.io");
        one.circuit.lock().0 = CircuitBreaker::open_with_trial_due(Instant::now());
        one.has_state.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            let circuit_permit = one.admit(|| 0).ok().flatten();
            assert!(circuit_permit.is_some() && matches!(one.admit(|| 0), Err(Rejection::CircuitOpen { .. })));
        }
        let circuit_permit = one.admit(|| 0).ok().flatten().unwrap();
        circuit_permit.mark_sent();
        drop(circuit_permit);
        assert!(matches!(one.admit(|| 0), Err(Rejection::CircuitOpen { .. })));
    }

    #[test]
    fn endpoint_health_shared_by_apiservices() {
        let at = [Address::tcp(crate::egress::Host::Name("a".to_owned()), 1)];
        let board = AvailabilityMap::default();
        let (one, two) = (board.get_or_insert("v1.a.io"), board.get_or_insert("v2.a.io"));
        let settings = ConnectionSettings::default;
        let (first, second) = (one.track_endpoints(settings(), &at), two.track_endpoints(settings(), &at));
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        one.record_probe_dial(&at[0], Err("ConnectionRefused"));
        assert!(!one.is_failing() && !two.is_failing(), "one probe does not decide");
        assert_eq!(second[0].dial_failure(), Some("ConnectionRefused"));
        one.confirm_dial_failures();
        assert!(one.is_failing() && two.is_failing());
        two.record_probe_dial(&at[0], Ok(()));
        assert!(!one.is_failing() && first[0].dial_failure().is_none());
    }

    #[test]
    fn endpoint_health_kept_while_endpoint_exists() {
        let at = |port| Address::tcp(crate::egress::Host::Name("a".to_owned()), port);
        let board = AvailabilityMap::default();
        let one = board.get_or_insert("v1.a.io");
        let first = one.track_endpoints(ConnectionSettings::default(), &[at(1), at(2)]);
        assert!(first.iter().all(|standing| standing.is_clean()), "the first know no others");
        let second = one.track_endpoints(ConnectionSettings::default(), &[at(2), at(3)]);
        assert!(Arc::ptr_eq(&first[1], &second[0]) && !second[1].is_clean());
        (0..10).for_each(|_| one.record_probe(&at(2), false));
        assert!(second[0].is_ejected());
        (0..10).for_each(|_| one.record_probe(&at(3), false));
        assert!(!second[1].is_ejected(), "never all");
    }

    #[test]
    fn availability_unknown_admitted_and_false_rejected() {
        let board = AvailabilityMap::default();
        let changes = board.changes();
        let one = board.get_or_insert("v1.a.io");
        assert!(one.is_available());
        let refused = AvailabilityCondition {
            status: ConditionStatus::False,
            ..AvailabilityCondition::unknown(SystemTime::now())
        };
        board.set_condition("v1.a.io", &refused);
        assert!(!one.is_available() && *one.condition() == refused);
        assert!(changes.has_changed().unwrap());
        assert_eq!(board.changed_since(0), (1, Some(BTreeSet::from(["v1.a.io".into()]))));
        assert_eq!(board.changed_since(1), (1, Some(BTreeSet::new())));
        assert!(Arc::ptr_eq(&one, &board.get_or_insert("v1.a.io")));
        one.record_failure(BackendOutcome::Unreachable, "ConnectionRefused");
        board.forget("v1.a.io");
        assert!(one.is_available() && !one.is_failing() && Arc::ptr_eq(&one, &board.get_or_insert("v1.a.io")));
    }

    #[test]
    fn availability_removed_when_last_holder_drops() {
        let board = AvailabilityMap::default();
        let known = || board.0.by_name.lock().len();
        let one = board.get_or_insert("v1.a.io");
        board.set_condition(
            "v1.a.io",
            &AvailabilityCondition {
                status: ConditionStatus::False,
                ..AvailabilityCondition::unknown(SystemTime::now())
            },
        );
        let route = one.clone();
        drop(one);
        assert!(!board.get_or_insert("v1.a.io").is_available());
        board.forget("v1.a.io");
        drop(route);
        assert_eq!(known(), 0);
        // A lookup alone leaves no entry, and a name that comes back gets a new object.
        assert!(board.get_or_insert("v1.a.io").is_available());
        board.forget("v1.b.io");
        assert_eq!(known(), 0);
        let back = board.get_or_insert("v1.a.io");
        assert_eq!((back.condition().status, known()), (ConditionStatus::Unknown, 1));
        drop((board, back));
    }
}
