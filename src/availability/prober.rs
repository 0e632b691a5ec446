//! The probe loop of one backend, and where its results are published.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::availability_map::{AvailabilityMap, ProbeRecord};
use super::condition::ConditionStatus;
use super::hysteresis::{ConditionTracker, ProbeResult};
use super::probe::{Probe, ProbeFailure, probe_endpoints};
use super::probe_backoff::ProbeBackoff;
use crate::egress::Address;
use crate::registry::{ApiService, ResolveError, ResolvedBackend};

/// Observes changes of conditions, for metrics (`aggregator_unavailable_apiservice` and its `_total`).
pub trait ProbeObserver {
    /// Whether `name` is unavailable now; called whenever its condition changed in any way.
    fn set_unavailable(&self, name: &str, unavailable: bool);
    /// `name` became unavailable, or its reason changed.
    fn became_unavailable(&self, name: &str, reason: &str);
    /// `name` was removed.
    fn removed(&self, name: &str);
}

/// An APIService and what it resolves to.
pub(super) struct ProbeTarget {
    pub(super) api_service: Arc<ApiService>,
    pub(super) resolved: Result<ResolvedBackend, ResolveError>,
}

impl ProbeTarget {
    /// The index of the first endpoint that `before` did not have; 0 if endpoints were only removed, `None` if all are
    /// the same.
    fn first_new_endpoint(&self, before: &ProbeTarget) -> Option<usize> {
        let (Ok(resolved), Ok(old_resolved)) = (&self.resolved, &before.resolved) else { return None };
        let is_new = |endpoint| !old_resolved.endpoints.contains(endpoint);
        (resolved != old_resolved).then(|| resolved.endpoints.iter().position(is_new).unwrap_or(0))
    }

    /// Whether `other` is the same backend, probed in the same way; its endpoints may differ.
    pub(super) fn is_probed_alike(&self, other: &ProbeTarget) -> bool {
        let (Ok(resolved), Ok(other_resolved)) = (&self.resolved, &other.resolved) else { return false };
        if (&resolved.server_name, &resolved.prefix) != (&other_resolved.server_name, &other_resolved.prefix) {
            return false;
        }
        if Arc::ptr_eq(&self.api_service, &other.api_service) {
            return true;
        }
        fn trust(of: &ApiService) -> impl PartialEq {
            (&of.backend, &of.ca_bundle, of.insecure_skip_tls_verify, &of.client_certificate)
        }
        fn manner(of: &ApiService) -> impl PartialEq {
            let settings = &of.settings;
            let times = [settings.probe_interval, settings.probe_timeout, settings.connect_timeout];
            (times, settings.failure_threshold, settings.success_threshold)
        }
        let (one, other) = (&*self.api_service, &*other.api_service);
        trust(one) == trust(other) && manner(one) == manner(other)
    }
}

/// The tracker, shared by the old and the new probe loop when an APIService changes. Never borrowed across an await.
pub(super) type SharedTracker = Rc<std::cell::RefCell<Option<ConditionTracker>>>;

/// Publishes conditions and notifies the observer.
pub(super) struct ConditionPublisher<'r, W> {
    pub(super) map: &'r AvailabilityMap,
    pub(super) observer: &'r W,
}

impl<W: ProbeObserver> ConditionPublisher<'_, W> {
    /// Publishes the condition of `tracker` if it differs from the published one.
    fn publish(&self, name: &str, tracker: &mut ConditionTracker) {
        let availability = self.map.get_or_insert(name);
        let before = availability.condition();
        let open_circuit = availability.circuit_open_reason();
        let now = tracker.condition().with_open_circuit(open_circuit);
        if *before == now {
            return;
        }
        self.map.set_condition(name, &now);
        let unavailable = now.status == ConditionStatus::False;
        self.observer.set_unavailable(name, unavailable);
        if unavailable && (before.status != ConditionStatus::False || before.reason != now.reason) {
            self.observer.became_unavailable(name, &now.reason);
        }
        if !tracker.should_log(&before, &now, SystemTime::now()) {
            return;
        }
        let (reason, message, detail) = (now.reason.as_ref(), &now.message, &now.detail);
        match now.status {
            ConditionStatus::False => {
                let detail = (!detail.is_empty()).then_some(detail);
                tracing::warn!(apiservice = name, reason, detail, "APIService is not available: {message}");
            }
            // At start there may be many; their number is logged once.
            ConditionStatus::True if now.is_local() && before.status == ConditionStatus::Unknown => {
                tracing::debug!(apiservice = name, reason, "APIService is available");
            }
            ConditionStatus::True => match open_circuit {
                None => tracing::info!(apiservice = name, reason, "APIService is available"),
                Some(reason) => tracing::warn!(
                    apiservice = name,
                    reason,
                    "circuit open: the discovery check passed, but requests get no answer"
                ),
            },
            ConditionStatus::Unknown => {}
        }
    }

    fn start(&self, api_service: &ApiService, shared: &SharedTracker) {
        let now = SystemTime::now();
        let (failures, successes) = (api_service.settings.failure_threshold, api_service.settings.success_threshold);
        let mut tracker = shared.borrow_mut();
        if tracker.is_none() {
            self.observer.set_unavailable(&api_service.name, false);
        }
        let tracker = tracker.get_or_insert_with(|| ConditionTracker::new(failures, successes, now));
        tracker.restart(failures, successes, now);
        self.publish(&api_service.name, tracker);
    }

    /// Feeds `finding` to the tracker. Returns the status after it.
    fn observe(&self, api_service: &ApiService, shared: &SharedTracker, finding: ProbeResult) -> ConditionStatus {
        let mut tracker = shared.borrow_mut();
        let Some(tracker) = tracker.as_mut() else { return ConditionStatus::Unknown };
        tracker.observe(finding, SystemTime::now());
        self.publish(&api_service.name, tracker);
        tracker.condition().status
    }

    /// Publishes the condition again: the state of the circuit may have changed.
    fn publish_circuit_change(&self, name: &str, shared: &SharedTracker) {
        if let Some(tracker) = shared.borrow_mut().as_mut() {
            self.publish(name, tracker);
        }
    }
}

/// Probes the backend repeatedly until it no longer resolves.
pub(super) async fn probe_repeatedly<W: ProbeObserver>(
    mut following: watch::Receiver<Rc<ProbeTarget>>,
    tracker: SharedTracker,
    publisher: &ConditionPublisher<'_, W>,
    probe: &impl Probe,
) {
    let first = following.borrow().clone();
    let api_service = &first.api_service;
    match &first.resolved {
        Ok(_) => publisher.start(api_service, &tracker),
        Err(ResolveError { reason: "Local", .. }) => {
            publisher.start(api_service, &tracker);
            publisher.observe(api_service, &tracker, ProbeResult::Local);
        }
        Err(ResolveError { reason, message }) => {
            let now = SystemTime::now();
            let settings = &api_service.settings;
            tracker.borrow_mut().get_or_insert_with(|| {
                ConditionTracker::new(settings.failure_threshold, settings.success_threshold, now)
            });
            publisher.observe(api_service, &tracker, ProbeResult::Unresolved { reason, message: message.clone() });
        }
    }
    let mut pace = ProbeBackoff::new(api_service.settings.probe_interval);
    let mut turn = fastrand::usize(..);
    loop {
        let now = following.borrow_and_update().clone();
        let (api_service, Ok(resolved)) = (&now.api_service, &now.resolved) else { return };
        let availability = publisher.map.get_or_insert(&api_service.name);
        let (at, is_requested) = (std::time::Instant::now(), availability.take_probe_request());
        let contradicted = pace.expects_failure();
        let record_endpoint = |endpoint: &Address, result: Result<(), &ProbeFailure>| {
            let dialed = result.err().and_then(|failure| failure.dial_failure).map_or(Ok(()), Err);
            availability.record_probe_dial(endpoint, dialed);
            match result.is_ok() {
                // Its requests fail right now. A successful probe alone does not make the endpoint healthy.
                true if contradicted => {}
                is_answered => availability.record_probe(endpoint, is_answered),
            }
        };
        let finding = match probe_endpoints(api_service, resolved, turn, probe, record_endpoint).await {
            Ok(()) => ProbeResult::Answered,
            Err(ProbeFailure { message, detail, .. }) => ProbeResult::Failed { message, detail },
        };
        turn = turn.wrapping_add(1);
        let is_answered = finding == ProbeResult::Answered;
        let is_unavailable = publisher.observe(api_service, &tracker, finding) == ConditionStatus::False;
        if is_unavailable && !is_answered {
            availability.confirm_dial_failures();
        }
        publisher.map.finish_probe(&availability, ProbeRecord { at, is_answered }, is_requested);
        let ended = Instant::now();
        let wait = pace.next_delay(is_answered, is_unavailable, availability.is_failing());
        let mut next = pin!(sleep(wait.mul_f64(0.9 + 0.2 * fastrand::f64())));
        loop {
            tokio::select! {
                () = &mut next => break,
                Ok(()) = following.changed() => {
                    // New endpoints may answer where the old ones did not, and vice versa.
                    if let Some(first) = following.borrow_and_update().first_new_endpoint(&now) {
                        turn = first;
                        let soon = pace.endpoints_changed();
                        if is_unavailable {
                            break;
                        }
                        let until = next.deadline().min(ended + soon);
                        next.as_mut().reset(until);
                    }
                }
                () = availability.changed() => {
                    publisher.publish_circuit_change(&api_service.name, &tracker);
                    let requested_delay = availability.is_probe_requested().then(|| pace.requested_delay());
                    if let Some(soon) = pace.requests_changed(availability.is_failing()).into_iter().chain(requested_delay).min() {
                        let until = next.deadline().min(ended + soon);
                        next.as_mut().reset(until);
                    }
                }
            }
        }
    }
}
