//! The RBAC policy of the stored objects, which authorizes requests: it follows their changes.

use std::cell::RefCell;

use kubeapi::Status;
use store::watch_cache::{ResourceCollection, Stored, WatchEventKind};

use super::builtin_collection;
use super::runner::FeedEvent;
use crate::authorize::policy::{PolicyIndex, read_binding, read_role};
use crate::rest::{ApiServer, unavailable};

/// The kinds of which a policy is made.
const KINDS: [PolicyKind; 4] = [
    PolicyKind { plural: "clusterroles", is_role: true, is_namespaced: false },
    PolicyKind { plural: "roles", is_role: true, is_namespaced: true },
    PolicyKind { plural: "clusterrolebindings", is_role: false, is_namespaced: false },
    PolicyKind { plural: "rolebindings", is_role: false, is_namespaced: true },
];

#[derive(Clone, Copy)]
struct PolicyKind {
    plural: &'static str,
    is_role: bool,
    is_namespaced: bool,
}

/// Publishes the policy of the stored roles and bindings. It has no queue: each change is applied at once.
pub(super) struct RbacPolicyFeed {
    api: ApiServer,
    collections: Vec<(PolicyKind, ResourceCollection)>,
    index: RefCell<PolicyIndex>,
}

impl RbacPolicyFeed {
    /// Publishes the policy of what is stored now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn start(api: &ApiServer) -> Result<RbacPolicyFeed, Status> {
        let mut collections = Vec::new();
        for kind in KINDS {
            let collection = builtin_collection(api, "rbac.authorization.k8s.io", kind.plural)?;
            collection.ensure_loaded().await.map_err(|error| unavailable(&error))?;
            collections.push((kind, collection));
        }
        let feed = RbacPolicyFeed { api: api.clone(), collections, index: RefCell::default() };
        {
            let mut index = feed.index.borrow_mut();
            for (kind, collection) in &feed.collections {
                let snapshot = collection.snapshot();
                snapshot.range(collection.prefix(), None).for_each(|object| kind.apply(&mut index, object));
            }
            api.publish_policy(index.policy().clone());
        }
        Ok(feed)
    }

    /// What is to be followed; [`observe`](RbacPolicyFeed::observe) gets the place of a collection.
    pub(super) fn collections(&self) -> impl ExactSizeIterator<Item = &ResourceCollection> {
        self.collections.iter().map(|(_, collection)| collection)
    }

    /// Applies an event of a collection.
    pub(super) fn observe(&self, number: usize, event: &FeedEvent<'_>) {
        let Some((kind, collection)) = self.collections.get(number) else { return };
        let mut index = self.index.borrow_mut();
        match event {
            FeedEvent::Started => {
                // What was deleted in a gap of the watch has no event; what exists has one each.
                let snapshot = collection.snapshot();
                let exists = |namespace: &str, name: &str| {
                    collection.prefix().key(namespace, name).is_ok_and(|key| snapshot.get(key.as_str()).is_some())
                };
                match kind.is_role {
                    true => index.retain_roles(kind.is_namespaced, exists),
                    false => index.retain_bindings(kind.is_namespaced, exists),
                }
            }
            FeedEvent::Object(event) => {
                let Some(object) = &event.object else { return };
                match event.kind {
                    WatchEventKind::Deleted => kind.remove(&mut index, object),
                    _ => kind.apply(&mut index, object),
                }
            }
        }
        // The rules of roles are shared with what is published.
        if !kind.is_role {
            self.api.publish_policy(index.policy().clone());
        }
    }
}

impl PolicyKind {
    /// Applies an object. One that cannot be read grants nothing.
    fn apply(self, index: &mut PolicyIndex, object: &Stored) {
        let (namespace, name, bytes) = (object.namespace(), object.name(), object.bytes());
        let outcome = match self.is_role {
            true => read_role(bytes).map(|rules| index.set_role(namespace, name, Some(rules))),
            false => read_binding(namespace, name, bytes).map(|binding| index.set_binding(binding)),
        };
        if let Err(error) = outcome {
            tracing::error!(object = %object.key(), "grants nothing, because it cannot be read: {error}");
            self.remove(index, object);
        }
    }

    fn remove(self, index: &mut PolicyIndex, object: &Stored) {
        match self.is_role {
            true => index.set_role(object.namespace(), object.name(), None),
            false => index.remove_binding(object.namespace(), object.name()),
        }
    }
}
