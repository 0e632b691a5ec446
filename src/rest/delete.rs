//! The verbs delete and deletecollection.

use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use serde_json::{Map, Value, json};

use super::delete_options::DeleteOptions;
use super::representation::{ReplyContent, ReplyObject};
use super::target::ObjectTarget;
use super::{ApiRequest, ApiServer, VerbReply, cache_error, metadata, namespace, read, stored_object, strategy};
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::list_options::ListOptions;
use crate::kubeapi::object_meta::change_metadata;
use crate::kubeapi::{Status, StatusDetails};
use crate::storage::Revision;
use crate::watch_cache::{Error, ResourceCollection, Stored, StoredList};

/// Deletions of one deletecollection that are in the store at a time; it writes what waits in one transaction.
const CONCURRENT_DELETIONS: usize = 16;

/// Deletes an object, or marks it if finalizers remain.
///
/// # Errors
/// 404, 409 for preconditions, 422 for options that are not supported; 403 for a namespace that stays.
pub(super) async fn delete(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<VerbReply, Status> {
    let options = DeleteOptions::parse(request).await?;
    namespace::check_deletable(target)?;
    let key = target.key(collection)?;
    let current = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let current = current.ok_or_else(|| target.not_found())?;
    let content = match remove(collection, target, current, &options).await? {
        Removed::Gone(last, revision) if strategy::returns_deleted_object(target.resource) => {
            ReplyContent::Object(ReplyObject::Stored(last, revision))
        }
        Removed::Gone(last, _) => ReplyContent::Status(deleted_status(target, &last)),
        Removed::Marked(object) => {
            if target.resource.plural == "namespaces" && !options.is_dry_run {
                namespace::spawn_removal(api.clone(), target.name.clone().into_owned());
            }
            ReplyContent::Object(object)
        }
    };
    Ok(VerbReply::ok(content))
}

/// Deletes the objects that a list selects; returns them as a list.
///
/// # Errors
/// As a list, and as [`delete`] for the first object that cannot be deleted.
pub(super) async fn delete_collection(
    _api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<VerbReply, Status> {
    let options = DeleteOptions::parse(request).await?;
    let list_options = ListOptions::parse(request.query)?;
    let query = read::list_query(collection, target, &list_options)?;
    let list = collection.list(&query).await.map_err(|error| cache_error(target, error))?;
    let mut deleted = StoredList { objects: Vec::new(), ..list.clone() };
    let options = &options;
    let removals = list.objects.into_iter().map(|object| async move {
        let one = ObjectTarget {
            namespace: object.namespace(),
            name: object.name().into(),
            resource: target.resource,
            version: target.version,
            subresource: "",
        };
        remove(collection, &one, object.clone(), options).await.map(|_| object.clone())
    });
    // In the order of the list, so that the answer is that of one deletion after another.
    let mut removals = pin!(stream::iter(removals).buffered(CONCURRENT_DELETIONS));
    while let Some(removed) = removals.next().await {
        match removed {
            Ok(object) => deleted.objects.push(object),
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(VerbReply::ok(ReplyContent::List(deleted)))
}

enum Removed {
    /// The object was deleted; with its last state, and the revision of the deletion.
    Gone(Arc<Stored>, Revision),
    /// The object was marked and finalizers remain; with its new state.
    Marked(ReplyObject),
}

/// Deletes `current`, or the state that replaced it in the meantime.
async fn remove(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    mut current: Arc<Stored>,
    options: &DeleteOptions,
) -> Result<Removed, Status> {
    let key = target.key(collection)?;
    loop {
        check_preconditions(target, &current, options)?;
        let mut object = stored_object(&current).await?;
        let is_marked = current.metadata().deletion_timestamp.is_some();
        let is_gone = !metadata::has_finalizers(target.resource, &object);
        if is_marked && !is_gone {
            return Ok(Removed::Marked(ReplyObject::stored(current)));
        }
        if options.is_dry_run && is_gone {
            let revision = current.revision();
            return Ok(Removed::Gone(current, revision));
        }
        let result = if is_gone {
            let deleted = collection.delete(&key, current.revision()).await;
            deleted.map(|revision| Removed::Gone(current.clone(), revision))
        } else {
            mark(target, &mut object);
            if options.is_dry_run {
                return Ok(Removed::Marked(ReplyObject::Unstored(Value::Object(object))));
            }
            let value = write_stored_json(&object).bytes;
            let stored = collection.update(&key, current.revision(), value.into(), None).await;
            stored.map(|stored| Removed::Marked(ReplyObject::stored(stored)))
        };
        match result {
            Ok(removed) => return Ok(removed),
            Err(Error::Conflict { current: Some(now) }) => current = now,
            Err(error) => return Err(cache_error(target, error)),
        }
    }
}

/// Marks an object for deletion (`rest.BeforeDelete`).
fn mark(target: &ObjectTarget<'_>, object: &mut Map<String, Value>) {
    let is_namespace = target.resource.plural == "namespaces";
    change_metadata(object, |metadata| {
        metadata.insert("deletionTimestamp".to_owned(), json!(metadata::now()));
        if !is_namespace {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
        }
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), json!(generation + 1));
        }
    });
    if is_namespace {
        let status = object.entry("status").or_insert_with(|| json!({}));
        status["phase"] = json!("Terminating");
    }
}

/// 409 if a precondition does not hold, with Kubernetes' text (`rest.BeforeDelete`).
fn check_preconditions(target: &ObjectTarget<'_>, current: &Stored, options: &DeleteOptions) -> Result<(), Status> {
    let conflict = |what: &str, wanted: &str, found: &str, then: &str| {
        let why = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might \
             have been {then}"
        );
        Err(Status::conflict(target.resource.group, target.resource.kind, &target.name, why))
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != &*current.metadata().uid) {
        return conflict("UID", uid, &current.metadata().uid, "deleted and then recreated");
    }
    let version = current.revision().to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| **wanted != version) {
        return conflict("ResourceVersion", wanted, &version, "modified");
    }
    Ok(())
}

/// The Status of a deletion.
fn deleted_status(target: &ObjectTarget<'_>, last: &Stored) -> Status {
    let mut details = StatusDetails::for_resource(target.resource.group, target.resource.plural, &target.name);
    details.uid = last.metadata().uid.to_string();
    Status::success(details)
}
