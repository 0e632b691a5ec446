//! Deletion of namespaces that are marked, with everything in them (`pkg/controller/namespace/deletion`).

mod conditions;

use std::collections::HashSet;
use std::sync::Arc;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ListQuery, ResourceCollection, Stored, WatchEvent, WatchEventKind};
use store::{CommitCondition, Prefix};

use self::conditions::RemainingContent;
use super::builtin_collection;
use super::runner::{Controller, FeedEvent};
use crate::conversion::stored_object;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;
use crate::rest::{ApiServer, is_removable, remove_objects, unavailable};
use crate::work_queue::WorkQueue;

/// Finalizer in the `spec` of a namespace, by which this server empties it first.
const OWN_FINALIZER: &str = "kubernetes";

/// Attempts to remove a namespace in which objects were created meanwhile, without a pause.
const ATTEMPTS: usize = 10;

/// The controller that empties namespaces that are marked for deletion, and removes them. What hinders that is in their
/// conditions.
pub(super) struct NamespaceController {
    api: ApiServer,
    namespaces: ResourceCollection,
}

impl NamespaceController {
    /// # Errors
    /// 500 if the server has no namespaces.
    pub(super) fn new(api: &ApiServer) -> Result<NamespaceController, Status> {
        Ok(NamespaceController { api: api.clone(), namespaces: builtin_collection(api, "", "namespaces")? })
    }

    /// The namespaces.
    pub(super) fn collection(&self) -> &ResourceCollection {
        &self.namespaces
    }

    /// Adds a terminating namespace.
    pub(super) fn observe(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(WatchEvent {
            kind: WatchEventKind::Added | WatchEventKind::Modified,
            object: Some(namespace),
            ..
        }) = event
            && namespace.metadata().deletion_timestamp.is_some()
        {
            self.queue().add(namespace.name().to_owned());
        }
    }
}

impl Controller for NamespaceController {
    type Key = String;

    const CONCURRENCY: usize = 10;

    fn queue(&self) -> &WorkQueue<String> {
        &self.api.removal_queues().namespaces
    }

    /// Deletes everything in a namespace that is marked for deletion, then the namespace. Objects with finalizers are marked,
    /// so that what owns a finalizer learns of the deletion.
    ///
    /// # Errors
    /// 503 while objects remain, and errors of the store.
    async fn reconcile(&self, name: &String) -> Result<(), Status> {
        let api = &self.api;
        for _ in 0..ATTEMPTS {
            match remove_known_content(api, &self.namespaces, name).await? {
                RemovalOutcome::Finished => return Ok(()),
                // Committed before the namespace was marked, and seen only now: another attempt finds it.
                RemovalOutcome::Filled { prefix, unserved: None } => {
                    tracing::debug!(namespace = name, prefix = prefix.as_str(), "objects found after the last look");
                }
                RemovalOutcome::Filled { prefix, unserved: Some(condition) } => {
                    let objects = api.delete_below(&prefix, &condition).await?;
                    let prefix = prefix.as_str();
                    tracing::warn!(
                        namespace = name,
                        objects,
                        prefix,
                        "objects of a resource that is not served deleted"
                    );
                }
            }
        }
        Err(Status::service_unavailable("objects are created while the namespace is being emptied"))
    }
}

/// Outcome of an attempt to remove a namespace.
enum RemovalOutcome {
    /// The namespace is gone, or what remains is for others to remove.
    Finished,
    /// There are objects below `prefix` that the attempt did not find.
    Filled {
        prefix: Prefix,
        /// Of a resource that is not served, so that no attempt finds them: that the namespace is still this one.
        unserved: Option<CommitCondition>,
    },
}

/// Deletes what is known to be in a namespace, then the namespace if there is nothing else.
async fn remove_known_content(
    api: &ApiServer,
    namespaces: &ResourceCollection,
    name: &str,
) -> Result<RemovalOutcome, Status> {
    let key = namespaces.prefix().key("", name).map_err(|error| Status::bad_request(error.to_string()))?;
    let current = namespaces.get_latest(&key).await.map_err(|error| unavailable(&error))?;
    // Another namespace may have the name meanwhile, and the finalizer may be gone already.
    let Some(current) = current.filter(|current| current.metadata().deletion_timestamp.is_some()) else {
        return Ok(RemovalOutcome::Finished);
    };
    if !has_own_finalizer(&stored_object(&current).await?) {
        return Ok(RemovalOutcome::Finished);
    }
    let emptiness = api.emptiness_of(name).map_err(Status::internal_error)?;
    let mut served = HashSet::new();
    let mut remaining = RemainingContent::default();
    let catalog = api.catalog().get();
    let stored = catalog.entries().iter().filter(|entry| entry.is_stored());
    let (pods, others): (Vec<_>, Vec<_>) = stored
        .filter(|entry| entry.kind.resource.is_namespaced)
        .partition(|entry| entry.kind.resource.group_resource() == ("", "pods"));
    let last_pods = pods.len();
    for (number, entry) in pods.into_iter().chain(others).enumerate() {
        // What a Pod uses is there until it has ended (KEP-5080).
        if number == last_pods && !remaining.is_empty() {
            break;
        }
        if let Err(status) = remove_objects_of_kind(api, &entry.kind, name, &mut remaining).await {
            remaining.add_failure(status.message);
        }
        let prefix = api.collection(&entry.kind.resource)?.prefix().namespace(name);
        served.insert(prefix.map_err(Status::internal_error)?);
    }
    match finalize(namespaces, &current, &remaining, &emptiness).await {
        Err(Error::ConditionFailed(CommitCondition::Empty(prefix))) => {
            let current = CommitCondition::At(current.key().clone(), current.revision());
            let unserved = (!served.contains(&prefix)).then_some(current);
            Ok(RemovalOutcome::Filled { prefix, unserved })
        }
        Err(error) => Err(unavailable(&error)),
        Ok(()) if remaining.is_empty() => Ok(RemovalOutcome::Finished),
        Ok(()) => Err(Status::service_unavailable(remaining.summary())),
    }
}

/// Deletes all objects of a resource in a namespace. Those that have finalizers are added to `remaining`.
///
/// # Errors
/// Errors of the store.
async fn remove_objects_of_kind(
    api: &ApiServer,
    kind: &ServedKind,
    namespace: &str,
    remaining: &mut RemainingContent,
) -> Result<(), Status> {
    let collection = api.collection(&kind.resource)?;
    let query = ListQuery { namespace: Some(namespace.to_owned()), ..ListQuery::default() };
    let objects = collection.list(&query).await.map_err(|error| unavailable(&error))?.objects;
    // Each at once: what was marked counts even if the deletion of another fails.
    remove_objects(&collection, kind, objects, async |object| {
        remaining.add_object(&kind.resource, ObjectMetaView::of_map(&stored_object(object).await?));
        Ok(())
    })
    .await?;
    Ok(())
}

/// Whether the finalizer of this server remains.
fn has_own_finalizer(namespace: &Map<String, Value>) -> bool {
    let finalizers = namespace.get("spec").and_then(|spec| spec["finalizers"].as_array());
    finalizers.is_some_and(|all| all.iter().any(|one| one == OWN_FINALIZER))
}

/// Writes the conditions of the namespace `first`. If nothing remains in it, removes the finalizer `kubernetes`, and the
/// namespace if no other finalizer remains; the store checks by `emptiness` that there is nothing in the same step.
///
/// # Errors
/// [`Error::ConditionFailed`] if there are objects, and errors of the store.
async fn finalize(
    namespaces: &ResourceCollection,
    first: &Arc<Stored>,
    remaining: &RemainingContent,
    emptiness: &[CommitCondition],
) -> Result<(), Error> {
    let kinds = builtin_kinds();
    let mut latest = Some(first.clone());
    while let Some(current) = latest.filter(|current| current.metadata().uid == first.metadata().uid) {
        let unreadable = |status: Status| Error::Store(store::Error::Unavailable(status.message.into()));
        let mut object = stored_object(&current).await.map_err(unreadable)?;
        let status = object.entry("status").or_insert_with(|| json!({}));
        let had_conditions = status.get("conditions").is_some();
        let are_conditions_changed = remaining.set_conditions(status);
        // Watches of a namespace that hung see that nothing remains before it is removed.
        let is_finalized = remaining.is_empty() && !(had_conditions && are_conditions_changed);
        if is_finalized {
            let finalizers = object.get_mut("spec").and_then(|spec| spec.get_mut("finalizers")?.as_array_mut());
            finalizers.into_iter().for_each(|all| all.retain(|one| one != OWN_FINALIZER));
        }
        if !is_finalized && !are_conditions_changed {
            return Ok(());
        }
        let conditions = if is_finalized { emptiness.to_vec() } else { Vec::new() };
        let (key, revision) = (current.key(), current.revision());
        let result = match kinds.resource("", "namespaces").is_some_and(|resource| is_removable(resource, &object)) {
            true => namespaces.delete_if(key, revision, conditions).await.map(|_| None),
            false => {
                let value = write_stored_json(&object).bytes;
                namespaces.update_if(key, revision, value.into(), None, conditions).await.map(Some)
            }
        };
        match result {
            Ok(updated) if remaining.is_empty() && !is_finalized => latest = updated,
            Err(Error::Conflict { current }) => latest = current,
            outcome => return outcome.map(drop),
        }
    }
    Ok(())
}
