//! Removal of objects: at once, or marked with a deletionTimestamp while finalizers remain (`rest.BeforeDelete` in
//! `k8s.io/apiserver/pkg/registry/rest/delete.go`).

use std::future::ready;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt as _};
use serde_json::{Map, Value, json};

use super::delete_options::DeleteOptions;
use super::representation::ReplyObject;
use super::target::ObjectTarget;
use super::{cache_error, definition, metadata, stored_object};
use crate::kubeapi::Status;
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::object_meta::change_metadata;
use crate::resources::ServedKind;
use crate::storage::Revision;
use crate::watch_cache::{Error, ResourceCollection, Stored};

/// Deletions of one list of objects that are in the store at a time; it writes what waits in one transaction.
const CONCURRENT_DELETIONS: usize = 16;

/// Result of a deletion.
pub(super) enum Removed {
    /// The object was deleted; with its last state, and the revision of the deletion.
    Gone(Arc<Stored>, Revision),
    /// The object was marked and finalizers remain; with its new state.
    Marked(ReplyObject),
}

/// Deletes `current`, or the state that replaced it in the meantime. It is marked if finalizers remain.
///
/// # Errors
/// 404 for an object that is gone, 409 for preconditions, and errors of the store.
pub(super) async fn remove(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    mut current: Arc<Stored>,
    options: &DeleteOptions,
) -> Result<Removed, Status> {
    let key = target.key(collection)?;
    loop {
        check_preconditions(target, &current, options)?;
        let object = match stored_object(&current).await {
            Ok(object) => Some(object),
            // A value that cannot be read has nothing that its deletion waits for.
            Err(_) if current.defect().is_some() => None,
            Err(status) => return Err(status),
        };
        let is_marked = current.metadata().deletion_timestamp.is_some();
        // The objects of a definition are deleted first.
        let is_gone = object.as_ref().is_none_or(|object| {
            !metadata::has_finalizers(&target.kind.resource, object)
                && (is_marked || !definition::is_definition(&target.kind.resource))
        });
        if is_marked && !is_gone {
            return Ok(Removed::Marked(ReplyObject::stored(current)));
        }
        if options.is_dry_run && is_gone {
            let revision = current.revision();
            return Ok(Removed::Gone(current, revision));
        }
        let result = match object.filter(|_| !is_gone) {
            None => {
                let deleted = collection.delete(&key, current.revision()).await;
                deleted.map(|revision| Removed::Gone(current.clone(), revision))
            }
            Some(mut object) => {
                mark(target, &mut object);
                if options.is_dry_run {
                    return Ok(Removed::Marked(ReplyObject::Unstored(Value::Object(object))));
                }
                let value = write_stored_json(&object).bytes;
                let stored = collection.update(&key, current.revision(), value.into(), None).await;
                stored.map(|stored| Removed::Marked(ReplyObject::stored(stored)))
            }
        };
        match result {
            Ok(removed) => return Ok(removed),
            Err(Error::Conflict { current: Some(now) }) => current = now,
            Err(error) => return Err(cache_error(target, error)),
        }
    }
}

/// Deletes objects of a collection, several at a time. The results are in the order of `objects`, as of one deletion
/// after another, without those of objects that were gone already.
pub(super) fn remove_all<'r>(
    collection: &'r ResourceCollection,
    kind: &'r ServedKind,
    objects: Vec<Arc<Stored>>,
    options: &'r DeleteOptions,
) -> impl Stream<Item = Result<(Arc<Stored>, Removed), Status>> + 'r {
    let removals = objects.into_iter().map(move |object| async move {
        let (namespace, name) = (object.namespace(), object.name().into());
        let target = ObjectTarget { kind: kind.clone(), namespace, name, subresource: "" };
        let removed = remove(collection, &target, object.clone(), options).await?;
        Ok((object.clone(), removed))
    });
    let removed = stream::iter(removals).buffered(CONCURRENT_DELETIONS);
    removed.filter(|removed| ready(!matches!(removed, Err(Status { code: 404, .. }))))
}

/// Marks an object for deletion (`rest.BeforeDelete`).
fn mark(target: &ObjectTarget<'_>, object: &mut Map<String, Value>) {
    let is_namespace = target.kind.resource.plural == "namespaces";
    let is_definition = definition::is_definition(&target.kind.resource);
    change_metadata(object, |metadata| {
        metadata.insert("deletionTimestamp".to_owned(), json!(metadata::now()));
        // `REST.Delete` in apiextensions-apiserver's `pkg/registry/customresourcedefinition/etcd.go`.
        if is_definition {
            return;
        }
        if !is_namespace {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
        }
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), json!(generation + 1));
        }
    });
    if is_definition {
        definition::mark(object, &metadata::now());
    }
    if is_namespace {
        let status = object.entry("status").or_insert_with(|| json!({}));
        status["phase"] = json!("Terminating");
    }
}

/// 409 if a precondition does not hold, with Kubernetes' text (`rest.BeforeDelete`; definitions have their own).
fn check_preconditions(target: &ObjectTarget<'_>, current: &Stored, options: &DeleteOptions) -> Result<(), Status> {
    let resource = &target.kind.resource;
    let conflict = |what: &str, wanted: &str, found: &str, then: &str| {
        if definition::is_definition(resource) {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
            return Err(Status::conflict(&resource.group, &resource.plural, &target.name, why));
        }
        let why = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might \
             have been {then}"
        );
        Err(Status::conflict(&resource.group, &resource.kind, &target.name, why))
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
