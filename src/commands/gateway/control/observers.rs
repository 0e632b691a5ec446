//! Availability and circuit states of APIServices, recorded in the metrics when they change.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use crate::availability::{AvailabilityCondition, ConditionStatus};
use crate::discovery::DiscoverySnapshot;
use crate::observe::metrics::{CircuitState, Metrics};
use crate::process::Published;
use crate::registry::{ApiServiceBackend, DELEGATE};
use crate::route::{Route, RouteTable};

/// Availability of the delegate, for the metric `aggregator_unavailable_apiservice`.
pub(super) struct DelegateAvailability {
    documents: Published<DiscoverySnapshot>,
    /// The last recorded value.
    available: Option<bool>,
}

impl DelegateAvailability {
    pub(super) fn new(documents: Published<DiscoverySnapshot>) -> DelegateAvailability {
        DelegateAvailability { documents, available: None }
    }

    /// Records a change. Nothing is recorded before the first fetch from the delegate.
    pub(super) fn observe(&mut self, metrics: &Metrics) {
        let condition = delegate_condition(&self.documents.load());
        let available = match condition.status {
            ConditionStatus::True => true,
            ConditionStatus::False => false,
            ConditionStatus::Unknown => return,
        };
        if self.available.replace(available) != Some(available) {
            metrics.set_apiservice_availability(DELEGATE, (!available).then_some(&*condition.reason));
        }
    }
}

/// The condition of the delegate. It is not probed; its condition follows from fetching its discovery.
pub(in crate::commands::gateway) fn delegate_condition(documents: &DiscoverySnapshot) -> Arc<AvailabilityCondition> {
    let unknown = || AvailabilityCondition::unknown(SystemTime::now());
    let source = documents.source(DELEGATE).filter(|source| source.is_polled);
    let since = source.and_then(|source| source.since).unwrap_or_else(SystemTime::now);
    Arc::new(match source {
        None => unknown(),
        Some(source) if source.problem.is_empty() => {
            let (reason, message) = ("Delegate".into(), "serves all paths that no APIService claims".into());
            AvailabilityCondition { status: ConditionStatus::True, reason, message, since, ..unknown() }
        }
        Some(source) => {
            let (reason, message) = ("DiscoveryFailed".into(), "its discovery cannot be fetched".into());
            let detail = source.problem.clone();
            AvailabilityCondition { status: ConditionStatus::False, reason, message, detail, since }
        }
    })
}

/// The last observed availability and circuit state of APIServices, by name.
#[derive(Default)]
pub(super) struct ApiServiceObserver {
    available: HashMap<String, bool>,
    circuits: HashMap<String, CircuitState>,
}

impl ApiServiceObserver {
    /// The names of all observed APIServices.
    pub(super) fn names(&self) -> Vec<String> {
        self.available.keys().cloned().collect()
    }

    /// Forgets the circuit states: they are recorded again, in case a series was removed.
    pub(super) fn forget_circuits(&mut self) {
        self.circuits.clear();
    }

    /// Observes the APIServices `names`. Returns those that changed their availability.
    pub(super) fn observe_availability(
        &mut self,
        names: BTreeSet<String>,
        table: &RouteTable,
        metrics: &Metrics,
    ) -> Vec<String> {
        let mut turned = Vec::new();
        for name in names {
            // The series of a re-created APIService was removed.
            self.circuits.remove(&name);
            let Some(route) = table.by_name(&name).filter(|_| name != DELEGATE) else {
                self.available.remove(&name);
                continue;
            };
            self.observe_circuit(route, metrics);
            let is = route.availability.is_available();
            if self.available.insert(name.clone(), is).is_some_and(|was| was != is) {
                turned.push(name);
            }
        }
        turned
    }

    /// Observes the circuits of all routes. A closed circuit, as nearly all are, costs one load, so that an idle second
    /// stays cheap with many APIServices. Names are looked up only if a circuit was not closed or none is recorded.
    pub(super) fn observe_circuits<'r>(&mut self, routes: impl Iterator<Item = &'r Arc<Route>>, metrics: &Metrics) {
        let all = self.circuits.is_empty() || self.circuits.values().any(|state| *state != CircuitState::Closed);
        for route in routes {
            if all || route.availability.circuit_state() != CircuitState::Closed {
                self.observe_circuit(route, metrics);
            }
        }
    }

    fn observe_circuit(&mut self, route: &Route, metrics: &Metrics) {
        let (name, now) = (&route.api_service.name, route.availability.circuit_state());
        if !matches!(route.api_service.backend, ApiServiceBackend::Local) && self.circuits.get(name) != Some(&now) {
            self.circuits.insert(name.clone(), now);
            metrics.set_circuit_state(name, now);
        }
    }
}
