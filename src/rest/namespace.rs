//! Life of a namespace: what is created needs an active one, and a deleted one is emptied before it is removed
//! (`k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle`, `pkg/controller/namespace/deletion`).

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::TryStreamExt as _;
use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ListQuery, ResourceCollection, Stored};
use store::{CommitCondition, Key, Prefix};

use super::api_server::ApiServer;
use super::delete_options::DeleteOptions;
use super::errors::cache_error;
use super::errors::unavailable;
use super::metadata::is_removable;
use super::namespace_conditions::RemainingContent;
use super::object_removal::{Removed, remove_all};
use super::removals::RemovalTarget;
use super::target::ObjectTarget;
use crate::conversion::stored_object;
use crate::kinds::RemovalRule;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;

/// Namespaces that cannot be deleted.
pub(super) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Finalizer in the `spec` of a namespace, by which this server empties it first.
const OWN_FINALIZER: &str = "kubernetes";

/// Attempts to remove a namespace in which objects were created meanwhile, without a pause.
const ATTEMPTS: usize = 10;

/// Checks that `object` can be created in the namespace of `target`. What is created in it has to be committed with the
/// condition that is returned: that the namespace is still the one that was looked at.
///
/// # Errors
/// 404 for a namespace that does not exist, 403 for one that is being deleted.
pub(super) async fn check_active(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    object: &Map<String, Value>,
) -> Result<Option<CommitCondition>, Status> {
    if target.namespace.is_empty() {
        return Ok(None);
    }
    let namespaces = namespaces(api)?;
    let key = namespaces.prefix().key("", target.namespace).map_err(|error| Status::bad_request(error.to_string()))?;
    let namespace = namespaces.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let Some(namespace) = namespace else {
        return Err(Status::object_not_found("", "namespaces", target.namespace));
    };
    if namespace.metadata().deletion_timestamp.is_none() {
        return Ok(Some(CommitCondition::At(key, namespace.revision())));
    }
    let meta = ObjectMetaView::of_map(object);
    let names = [meta.name(), meta.generate_name(), "Unknown"];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let ((group, plural), namespace) = (target.kind.resource.group_resource(), target.namespace);
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::object_forbidden(group, plural, name, why);
    status = status.with_cause("NamespaceTerminating", format!("namespace {namespace} is being terminated"));
    let causes = status.details.iter_mut().flat_map(|details| &mut details.causes);
    causes.for_each(|cause| cause.field = "metadata.namespace".into());
    Err(status)
}

/// Refuses the deletion of a namespace that cannot be deleted ([`IMMORTAL`]).
///
/// # Errors
/// 403 for such a namespace.
pub(super) fn check_deletable(target: &ObjectTarget<'_>) -> Result<(), Status> {
    if target.rules.removal != RemovalRule::Namespace || !IMMORTAL.contains(&&*target.name) {
        return Ok(());
    }
    Err(Status::object_forbidden("", "namespaces", &target.name, "this namespace may not be deleted"))
}

/// Creates a namespace in which there is nothing: what a former namespace of this name left is deleted first.
///
/// # Errors
/// [`Error::Conflict`] if it exists, and errors of the store.
pub(super) async fn create_empty(
    api: &ApiServer,
    namespaces: &ResourceCollection,
    key: &Key,
    value: Bytes,
) -> Result<Arc<Stored>, Error> {
    let name = key.split_below(namespaces.prefix()).map_or("", |(_, name)| name);
    let conditions = api.emptiness_of(name)?;
    loop {
        match namespaces.create_if(key, value.clone(), None, conditions.clone()).await {
            Err(Error::ConditionFailed(CommitCondition::Empty(prefix))) => {
                if let Some(current) = namespaces.get_latest(key).await? {
                    return Err(Error::Conflict { current: Some(current) });
                }
                // Another client may create the namespace meanwhile: what is in that one stays.
                let absent = CommitCondition::Absent(key.clone());
                let objects = api.collections().delete_below(&prefix, &absent).await?;
                let prefix = prefix.as_str();
                tracing::warn!(namespace = name, objects, prefix, "objects of a former namespace deleted");
            }
            outcome => return outcome,
        }
    }
}

/// Empties a namespace that is marked for deletion and removes it, on this thread. What hinders that is in its conditions.
pub(super) fn start_removal(api: &ApiServer, name: String) {
    let (removals, api) = (api.removals.clone(), api.clone());
    removals.start(RemovalTarget::Namespace(name.clone()), move || {
        let (api, name) = (api.clone(), name.clone());
        async move { remove_content(&api, &name).await }
    });
}

fn namespaces(api: &ApiServer) -> Result<ResourceCollection, Status> {
    let resource = builtin_kinds().resource("", "namespaces").ok_or_else(|| Status::internal_error("no namespaces"))?;
    api.collection(resource)
}

/// Deletes everything in a namespace that is marked for deletion, then the namespace. Objects with finalizers are marked,
/// so that what owns a finalizer learns of the deletion.
///
/// # Errors
/// 503 while objects remain, and errors of the store.
async fn remove_content(api: &ApiServer, name: &str) -> Result<(), Status> {
    for _ in 0..ATTEMPTS {
        match remove_known_content(api, name).await? {
            RemovalOutcome::Finished => return Ok(()),
            // Committed before the namespace was marked, and seen only now: another attempt finds it.
            RemovalOutcome::Filled { prefix, unserved: None } => {
                tracing::debug!(namespace = name, prefix = prefix.as_str(), "objects found after the last look");
            }
            RemovalOutcome::Filled { prefix, unserved: Some(condition) } => {
                let objects = api.delete_below(&prefix, &condition).await?;
                let prefix = prefix.as_str();
                tracing::warn!(namespace = name, objects, prefix, "objects of a resource that is not served deleted");
            }
        }
    }
    Err(Status::service_unavailable("objects are created while the namespace is being emptied"))
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
async fn remove_known_content(api: &ApiServer, name: &str) -> Result<RemovalOutcome, Status> {
    let namespaces = namespaces(api)?;
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
    let catalog = api.catalog.get();
    let stored = catalog.entries().iter().filter(|entry| entry.is_stored());
    for entry in stored.filter(|entry| entry.kind.resource.is_namespaced) {
        if let Err(status) = remove_objects(api, &entry.kind, name, &mut remaining).await {
            remaining.add_failure(status.message);
        }
        let prefix = api.collection(&entry.kind.resource)?.prefix().namespace(name);
        served.insert(prefix.map_err(Status::internal_error)?);
    }
    match finalize(&namespaces, &current, &remaining, &emptiness).await {
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
async fn remove_objects(
    api: &ApiServer,
    kind: &ServedKind,
    namespace: &str,
    remaining: &mut RemainingContent,
) -> Result<(), Status> {
    let collection = api.collection(&kind.resource)?;
    let query = ListQuery { namespace: Some(namespace.to_owned()), ..ListQuery::default() };
    let objects = collection.list(&query).await.map_err(|error| unavailable(&error))?.objects;
    let options = DeleteOptions::default();
    let mut removals = pin!(remove_all(&collection, kind, objects, &options).await?);
    while let Some((object, removed)) = removals.try_next().await? {
        if let Removed::Marked(_) = removed {
            remaining.add_object(&kind.resource, ObjectMetaView::of_map(&stored_object(&object).await?));
        }
    }
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
