//! Counts the Leases of servers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::{LeaseSettings, ObservedLeases, ServerLease};
use crate::kubeclient::Client;
use crate::kubeclient::watch::{ReflectorHandler, WatchFailure, list_and_watch};
use crate::observe::metrics::KonnectivityAgentMetrics;

/// The Leases of servers, followed by a watch.
pub struct LeaseCounter {
    leases: RefCell<ObservedLeases>,
    reported: RefCell<Option<String>>,
    metrics: Arc<KonnectivityAgentMetrics>,
    /// Whether the next response is that of a watch.
    is_watching: Cell<bool>,
    /// Whether a list is complete, whose duration follows.
    is_listed: Cell<bool>,
}

impl LeaseCounter {
    /// A counter that has seen no Lease.
    pub fn new(metrics: Arc<KonnectivityAgentMetrics>) -> LeaseCounter {
        LeaseCounter {
            leases: RefCell::default(),
            reported: RefCell::default(),
            metrics,
            is_watching: Cell::new(false),
            is_listed: Cell::new(false),
        }
    }

    /// Follows the Leases until the future is dropped. Needs a `LocalSet`.
    pub async fn follow(&self, client: Rc<Client>, settings: &LeaseSettings) {
        list_and_watch(client, &settings.list_path(), self).await;
    }

    /// The number of valid Leases, at least 1.
    pub fn count(&self) -> usize {
        self.leases.borrow().count_valid().max(1)
    }

    fn observe(&self, object: &RawValue) {
        match serde_json::from_str::<ServerLease>(object.get()) {
            Ok(lease) => self.leases.borrow_mut().observe(lease),
            Err(error) => tracing::warn!(%error, "a Lease of a server cannot be read"),
        }
    }
}

impl ReflectorHandler for LeaseCounter {
    fn on_list_start(&self) {
        self.is_watching.set(false);
        self.leases.borrow_mut().begin_list();
    }

    fn on_item(&self, object: &RawValue) {
        self.observe(object);
    }

    fn on_synced(&self) {
        self.is_listed.set(true);
        self.leases.borrow_mut().end_list();
        tracing::debug!(servers = self.count(), "Leases of servers were counted");
    }

    fn on_apply(&self, object: &RawValue) {
        self.observe(object);
    }

    fn on_delete(&self, object: &RawValue) {
        if let Ok(lease) = serde_json::from_str::<ServerLease>(object.get()) {
            self.leases.borrow_mut().remove(&lease.metadata.name);
        }
    }

    fn on_healthy(&self, duration: Duration) {
        if self.is_listed.replace(false) {
            self.metrics.lease_lists.record(200, duration);
            self.is_watching.set(true);
        } else {
            self.metrics.lease_watches.record(200, duration);
        }
        self.reported.borrow_mut().take();
    }

    fn on_error(&self, why: &WatchFailure) {
        if let Some(status) = why.status {
            let calls = if self.is_watching.get() { &self.metrics.lease_watches } else { &self.metrics.lease_lists };
            calls.record(status, Duration::ZERO);
        }
        let why = why.why.clone();
        if self.reported.borrow().as_ref() != Some(&why) {
            tracing::warn!(
                error = why,
                "cannot follow the Leases of servers; the last known ones count until they expire"
            );
            self.reported.replace(Some(why));
        }
    }
}
