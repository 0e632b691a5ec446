//! The owners of an object: which exist, which do not, and which wait for their dependents.

use std::collections::HashSet;
use std::sync::Arc;

use kubeapi::Status;
use kubeapi::object_meta::FOREGROUND_FINALIZER;
use store::Key;
use store::watch_cache::{OwnerReference, ResourceCollection, Stored};

use super::GarbageCollector;
use crate::resources::catalog::CatalogEntry;
use crate::rest::unavailable;

/// References that are examined before other tasks of the thread run.
const REFERENCES_AT_ONCE: usize = 256;

/// State of an owner that a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It exists.
    Solid,
    /// It exists and is deleted in the foreground: it waits for its dependents.
    Waiting,
    /// It does not exist, or another object has its name.
    Absent,
    /// Its kind is not served, or by another server: nothing can be said.
    Unknown,
    /// It is in a namespace and the dependent is not: upstream never deletes such an object.
    OutOfScope,
}

/// The owners of an object by their state.
#[derive(Debug, Default)]
pub(super) struct ClassifiedOwners {
    /// Whether an owner exists that stays.
    pub(super) has_solid: bool,
    /// Whether an owner waits for the object.
    pub(super) has_waiting: bool,
    /// Uids of the owners that are absent, or wait.
    pub(super) removable: HashSet<String>,
}

/// Where the owner is that a reference names.
enum OwnerPlace {
    At(ResourceCollection, Key),
    Nowhere(OwnerState),
}

impl GarbageCollector {
    /// The owners of an object by their state. None if nothing can be said of one of them (`classifyReferences`).
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn classify_owners(&self, object: &Stored) -> Result<Option<ClassifiedOwners>, Status> {
        let mut owners = ClassifiedOwners::default();
        for (number, reference) in object.metadata().owner_references.iter().enumerate() {
            match self.find_owner(object.namespace(), reference).await? {
                OwnerState::Solid => owners.has_solid = true,
                state @ (OwnerState::Waiting | OwnerState::Absent) => {
                    owners.has_waiting |= state == OwnerState::Waiting;
                    owners.removable.insert(reference.uid.to_string());
                }
                OwnerState::OutOfScope => return Ok(None),
                OwnerState::Unknown => {
                    tracing::debug!(
                        key = %object.key(), "unable to get REST mapping for {}/{}.", reference.api_version, reference.kind
                    );
                    self.has_deferred.set(true);
                    return Ok(None);
                }
            }
            if number % REFERENCES_AT_ONCE == REFERENCES_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(Some(owners))
    }

    /// The state of an owner of an object in `namespace`.
    async fn find_owner(&self, namespace: &str, reference: &OwnerReference) -> Result<OwnerState, Status> {
        match self.owner_place(namespace, reference) {
            OwnerPlace::Nowhere(state) => Ok(state),
            OwnerPlace::At(collection, key) => {
                let owner = collection.get_latest(&key).await.map_err(|error| unavailable(&error))?;
                Ok(state_of(owner.as_ref(), reference))
            }
        }
    }

    /// The state of an owner as the watch cache has it.
    pub(super) fn find_cached_owner(&self, namespace: &str, reference: &OwnerReference) -> OwnerState {
        match self.owner_place(namespace, reference) {
            OwnerPlace::Nowhere(state) => state,
            OwnerPlace::At(collection, key) => state_of(collection.get(&key).as_ref(), reference),
        }
    }

    fn owner_place(&self, namespace: &str, reference: &OwnerReference) -> OwnerPlace {
        if self.absent.borrow().contains(namespace, reference) {
            return OwnerPlace::Nowhere(OwnerState::Absent);
        }
        let (group, version) = reference.api_version.split_once('/').unwrap_or(("", &reference.api_version));
        let catalog = self.api.catalog().load();
        let is_kind = |entry: &&CatalogEntry| {
            entry.is_stored() && entry.kind.version.version == version && entry.kind.resource.kind == *reference.kind
        };
        let Some(entry) = catalog.in_group(group).find(is_kind) else {
            return OwnerPlace::Nowhere(OwnerState::Unknown);
        };
        if self.api.is_claimed(group, version) {
            return OwnerPlace::Nowhere(OwnerState::Unknown);
        }
        let resource = &entry.kind.resource;
        if resource.is_namespaced && namespace.is_empty() {
            return OwnerPlace::Nowhere(OwnerState::OutOfScope);
        }
        let Ok(collection) = self.api.collection(resource) else {
            return OwnerPlace::Nowhere(OwnerState::Unknown);
        };
        let namespace = if resource.is_namespaced { namespace } else { "" };
        match collection.prefix().key(namespace, &reference.name) {
            Ok(key) => OwnerPlace::At(collection, key),
            // No object has such a name.
            Err(_) => OwnerPlace::Nowhere(OwnerState::Absent),
        }
    }
}

/// Whether an object waits for the garbage collector because of this finalizer.
pub(super) fn is_deleted_with(object: &Stored, finalizer: &str) -> bool {
    let metadata = object.metadata();
    metadata.deletion_timestamp.is_some() && metadata.finalizers.iter().any(|one| **one == *finalizer)
}

fn state_of(owner: Option<&Arc<Stored>>, reference: &OwnerReference) -> OwnerState {
    match owner.filter(|owner| owner.metadata().uid == reference.uid) {
        None => OwnerState::Absent,
        Some(owner) if is_deleted_with(owner, FOREGROUND_FINALIZER) => OwnerState::Waiting,
        Some(_) => OwnerState::Solid,
    }
}
