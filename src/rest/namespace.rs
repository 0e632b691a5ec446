//! Life of a namespace: what is created needs an active one, and a deleted one is emptied before it is removed
//! (`k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle`, `pkg/controller/namespace/deletion`).

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::delete_options::DeleteOptions;
use super::metadata::is_removable;
use super::object_removal::{Removed, remove};
use super::target::ObjectTarget;
use super::{ApiServer, cache_error, stored_object};
use crate::kubeapi::Status;
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::object_meta::ObjectMetaView;
use crate::resources::builtin::builtin_kinds;
use crate::watch_cache::{Error, ListQuery, ResourceCollection};

/// Namespaces that cannot be deleted.
pub(super) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

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

/// Empties a namespace that is marked for deletion and removes it, on this thread.
pub(super) fn spawn_removal(api: ApiServer, name: String) {
    tokio::task::spawn_local(async move {
        while let Err(status) = remove_content(&api, &name).await {
            tracing::warn!(namespace = name, "namespace not removed, tried again in 5s: {}", status.message);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    });
}

fn namespaces(api: &ApiServer) -> Result<ResourceCollection, Status> {
    let resource = builtin_kinds().resource("", "namespaces").ok_or_else(|| Status::internal_error("no namespaces"))?;
    api.collection(resource)
}

/// Deletes everything in a namespace, then the namespace. Objects with finalizers are marked, so that what owns a
/// finalizer learns of the deletion.
///
/// # Errors
/// 503 while objects remain, and errors of the store.
async fn remove_content(api: &ApiServer, name: &str) -> Result<(), Status> {
    let options = DeleteOptions::default();
    let (mut remaining, mut first) = (0, None);
    let stored = api.settings.catalog.entries().iter().filter(|entry| entry.is_stored());
    for entry in stored.filter(|entry| entry.kind.resource.is_namespaced) {
        let collection = api.collection(&entry.kind.resource)?;
        let query = ListQuery { namespace: Some(name.to_owned()), ..ListQuery::default() };
        let list = collection.list(&query).await.map_err(|error| Status::service_unavailable(error.to_string()))?;
        for object in list.objects {
            let target =
                ObjectTarget { kind: entry.kind.clone(), namespace: name, name: object.name().into(), subresource: "" };
            match remove(&collection, &target, object.clone(), &options).await {
                Ok(Removed::Gone(..)) => {}
                Ok(Removed::Marked(_)) => {
                    remaining += 1;
                    first.get_or_insert_with(|| format!("{} {}", entry.kind.resource.plural, object.name()));
                }
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
    }
    match first {
        Some(first) => {
            Err(Status::service_unavailable(format!("finalizers remain on {remaining} objects, such as {first}")))
        }
        None => finalize(api, name).await,
    }
}

/// Removes the finalizer `kubernetes` of the namespace, and the namespace if no other remains.
async fn finalize(api: &ApiServer, name: &str) -> Result<(), Status> {
    let namespaces = namespaces(api)?;
    let key = namespaces.prefix().key("", name).map_err(|error| Status::bad_request(error.to_string()))?;
    let unavailable = |error: Error| Status::service_unavailable(error.to_string());
    let Some(current) = namespaces.get_latest(&key).await.map_err(unavailable)? else { return Ok(()) };
    let mut object = stored_object(&current).await?;
    let mut finalizers = object.get("spec").map(|spec| spec["finalizers"].clone()).unwrap_or_default();
    if let Some(finalizers) = finalizers.as_array_mut() {
        finalizers.retain(|finalizer| finalizer != "kubernetes");
    }
    object.insert("spec".to_owned(), json!({"finalizers": finalizers}));
    let resource = builtin_kinds().resource("", "namespaces");
    let result = match resource.is_some_and(|resource| is_removable(resource, &object)) {
        true => namespaces.delete(&key, current.revision()).await.map(drop),
        false => {
            let value = write_stored_json(&object).bytes;
            namespaces.update(&key, current.revision(), value.into(), None).await.map(drop)
        }
    };
    result.map_err(unavailable)
}
