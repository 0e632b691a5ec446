//! Life of a namespace: what is created needs an active one, and a deleted one is emptied before it is removed
//! (`k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle`, `pkg/controller/namespace/deletion`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::TryStreamExt as _;
use serde_json::{Map, Value, json};

use super::delete_options::DeleteOptions;
use super::errors::unavailable;
use super::metadata::is_removable;
use super::namespace_conditions::RemainingContent;
use super::object_removal::{Removed, remove_all};
use super::target::ObjectTarget;
use super::{ApiServer, cache_error, stored_object};
use crate::kubeapi::Status;
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::object_meta::ObjectMetaView;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;
use crate::watch_cache::{Error, ListQuery, ResourceCollection, Stored};

/// Namespaces that cannot be deleted.
pub(super) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Finalizer in the `spec` of a namespace, by which this server empties it first.
const OWN_FINALIZER: &str = "kubernetes";

/// Pause before a removal that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Checks that `object` can be created in the namespace of `target`.
///
/// # Errors
/// 404 for a namespace that does not exist, 403 for one that is being deleted.
pub(super) async fn check_active(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    object: &Map<String, Value>,
) -> Result<(), Status> {
    if target.namespace.is_empty() {
        return Ok(());
    }
    let namespaces = namespaces(api)?;
    let key = namespaces.prefix().key("", target.namespace).map_err(|error| Status::bad_request(error.to_string()))?;
    let namespace = namespaces.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let Some(namespace) = namespace else {
        return Err(Status::object_not_found("", "namespaces", target.namespace));
    };
    if namespace.metadata().deletion_timestamp.is_none() {
        return Ok(());
    }
    let meta = ObjectMetaView::of_map(object);
    let name = if meta.name().is_empty() { meta.generate_name() } else { meta.name() };
    let (plural, namespace) = (&target.kind.resource.plural, target.namespace);
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::new(403, "Forbidden", format!("{plural} {name:?} is forbidden: {why}"));
    status = status.with_resource(&target.kind.resource.group, plural, name);
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
    if target.kind.resource.plural != "namespaces" || !IMMORTAL.contains(&&*target.name) {
        return Ok(());
    }
    let message = format!("namespaces {:?} is forbidden: this namespace may not be deleted", target.name);
    Err(Status::new(403, "Forbidden", message).with_resource("", "namespaces", &target.name))
}

/// Empties a namespace that is marked for deletion and removes it, on this thread. What hinders that is in its conditions.
pub(super) fn spawn_removal(api: ApiServer, name: String) {
    tokio::task::spawn_local(async move {
        let mut logged = String::new();
        while let Err(status) = remove_content(&api, &name).await {
            if status.message != logged {
                tracing::warn!(namespace = name, "namespace not removed, tried again every 5s: {}", status.message);
                logged = status.message;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
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
    let namespaces = namespaces(api)?;
    let key = namespaces.prefix().key("", name).map_err(|error| Status::bad_request(error.to_string()))?;
    let current = namespaces.get_latest(&key).await.map_err(|error| unavailable(&error))?;
    // Another namespace may have the name meanwhile, and the finalizer may be gone already.
    let Some(current) = current.filter(|current| current.metadata().deletion_timestamp.is_some()) else {
        return Ok(());
    };
    if !has_own_finalizer(&stored_object(&current).await?) {
        return Ok(());
    }
    let mut remaining = RemainingContent::default();
    let catalog = api.catalog.get();
    let stored = catalog.entries().iter().filter(|entry| entry.is_stored());
    for entry in stored.filter(|entry| entry.kind.resource.is_namespaced) {
        if let Err(status) = remove_objects(api, &entry.kind, name, &mut remaining).await {
            remaining.add_failure(status.message);
        }
    }
    finalize(&namespaces, &current, &remaining).await?;
    if remaining.is_empty() { Ok(()) } else { Err(Status::service_unavailable(remaining.summary())) }
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
    let mut removals = pin!(remove_all(&collection, kind, objects, &options));
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
/// namespace if no other finalizer remains.
///
/// # Errors
/// Errors of the store.
async fn finalize(
    namespaces: &ResourceCollection,
    first: &Arc<Stored>,
    remaining: &RemainingContent,
) -> Result<(), Status> {
    let kinds = builtin_kinds();
    let mut latest = Some(first.clone());
    while let Some(current) = latest.filter(|current| current.metadata().uid == first.metadata().uid) {
        let mut object = stored_object(&current).await?;
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
        let result = match kinds.resource("", "namespaces").is_some_and(|resource| is_removable(resource, &object)) {
            true => namespaces.delete(current.key(), current.revision()).await.map(|_| None),
            false => {
                let value = write_stored_json(&object).bytes;
                namespaces.update(current.key(), current.revision(), value.into(), None).await.map(Some)
            }
        };
        match result {
            Ok(updated) if remaining.is_empty() && !is_finalized => latest = updated,
            Err(Error::Conflict { current }) => latest = current,
            outcome => return outcome.map(drop).map_err(|error| unavailable(&error)),
        }
    }
    Ok(())
}
