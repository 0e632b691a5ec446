//! Owner references to objects in other namespaces, which are absent owners: an Event says so
//! (`reportInvalidNamespaceOwnerRef`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use store::watch_cache::{OwnerReference, Stored};
use tokio::sync::Notify;

use super::GarbageCollector;
use crate::rest::EventReport;

/// References that wait to be looked at; more are not reported.
const MAX_SUSPECTS: usize = 1_000;

/// Pause before all uids are looked at, which a burst of references shares.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Objects that are examined before other tasks of the thread run.
const OBJECTS_AT_ONCE: usize = 1_024;

/// References to owners that are not where they should be.
#[derive(Default)]
pub(super) struct SuspectedReferences {
    suspects: RefCell<Vec<SuspectedReference>>,
    added: Notify,
}

/// A reference to an owner that is not in the namespace of the dependent.
struct SuspectedReference {
    /// The dependent, as an Event names it.
    dependent: Value,
    namespace: String,
    reference: OwnerReference,
}

impl SuspectedReference {
    /// Upstream's text.
    fn message(&self) -> String {
        let (namespace, OwnerReference { api_version, kind, name, uid, .. }) = (&self.namespace, &self.reference);
        format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace \
             \"{namespace}\""
        )
    }
}

impl GarbageCollector {
    /// Notes an owner reference of an object whose owner is not in its namespace.
    pub(super) fn suspect(&self, object: &Stored, reference: &OwnerReference) {
        let mut suspects = self.suspected.suspects.borrow_mut();
        let Some(feed) = self.feeds.of_key(object.key()).filter(|_| suspects.len() < MAX_SUSPECTS) else { return };
        let (kind, namespace) = (feed.kind(), object.namespace().to_owned());
        let dependent = json!({"apiVersion": kind.api_version(), "kind": kind.resource.kind, "namespace": namespace,
            "name": object.name(), "uid": object.metadata().uid});
        let is_same = |one: &SuspectedReference| (&one.dependent, &one.reference) == (&dependent, reference);
        // A busy server looks at an object twice before it reports.
        if suspects.iter().any(is_same) {
            return;
        }
        suspects.push(SuspectedReference { dependent, namespace, reference: reference.clone() });
        self.suspected.added.notify_one();
    }

    /// Reports the references whose owners are in other namespaces. Does not end.
    pub(super) async fn report_foreign_owners(&self) {
        loop {
            self.suspected.added.notified().await;
            tokio::time::sleep(LOOK_PAUSE).await;
            let suspects = self.suspected.suspects.take();
            for at in self.find_foreign_owners(&suspects).await {
                let suspect = &suspects[at];
                let report = EventReport {
                    component: "garbage-collector-controller",
                    event_type: "Warning",
                    reason: "OwnerRefInvalidNamespace",
                    message: suspect.message(),
                };
                if let Err(status) = self.api.record_event(suspect.dependent.clone(), report).await {
                    tracing::debug!("Event about an owner in another namespace not stored: {}", status.message);
                }
            }
        }
    }

    /// Which of the references name objects of other namespaces. Looks at all uids once.
    async fn find_foreign_owners(&self, suspects: &[SuspectedReference]) -> Vec<usize> {
        let mut by_uid: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, suspect) in suspects.iter().enumerate() {
            by_uid.entry(&suspect.reference.uid).or_default().push(at);
        }
        let mut found = Vec::new();
        for feed in self.feeds.all().into_iter().filter(|feed| feed.kind().resource.is_namespaced) {
            let snapshot = feed.collection().snapshot();
            for (number, object) in snapshot.range(feed.collection().prefix(), None).enumerate() {
                let same_uid = by_uid.get(&*object.metadata().uid).into_iter().flatten();
                found.extend(same_uid.filter(|at| suspects[**at].namespace != object.namespace()));
                if number % OBJECTS_AT_ONCE == OBJECTS_AT_ONCE - 1 {
                    tokio::task::yield_now().await;
                }
            }
        }
        found
    }
}
