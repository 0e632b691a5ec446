//! Counts the Leases of servers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::{LeaseSettings, ObservedLeases, ServerLease};
use crate::kubeclient::Client;
use crate::kubeclient::watch::{ReflectorHandler, WatchFailure, list_and_watch};

/// The Leases of servers, followed by a watch.
#[derive(Default)]
pub struct LeaseCounter {
    leases: RefCell<ObservedLeases>,
    reported: RefCell<Option<String>>,
}

impl LeaseCounter {
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
        self.leases.borrow_mut().begin_list();
    }

    fn on_item(&self, object: &RawValue) {
        self.observe(object);
    }

    fn on_synced(&self) {
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

    fn on_healthy(&self, _took: Duration) {
        self.reported.borrow_mut().take();
    }

    fn on_error(&self, why: &WatchFailure) {
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
