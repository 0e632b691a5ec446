//! Removal of objects: at once, or marked with a deletionTimestamp while finalizers remain (`rest.BeforeDelete` in
//! `k8s.io/apiserver/pkg/registry/rest/delete.go`).

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value, json};
use store::Revision;
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::delete_options::DeleteOptions;
use super::errors::cache_error;
use super::metadata;
use super::representation::ReplyObject;
use super::target::ObjectTarget;
use crate::compute::{MAX_INLINE_BYTES, run_sized};
use crate::conversion::schema_work;
use crate::conversion::stored_object;
use crate::kinds::crd::{self, is_crd};
use crate::kinds::{RemovalRule, custom_resource};
use crate::resources::ServedKind;

/// Deletions of one list of objects that are in the store at a time; it writes what waits in one transaction.
const CONCURRENT_DELETIONS: usize = 16;

/// Result of a deletion.
pub(super) enum Removed {
    /// The object was deleted; with its last state, and the revision of the deletion.
    Gone(Arc<Stored>, Revision),
    /// The object was marked and finalizers remain; with its new state.
    Marked(ReplyObject),
}

/// How a deletion changes an object that it does not delete at once.
enum Marking {
    /// Not at all.
    Unchanged,
    /// It is marked as deleted, with the seconds that it has to end by itself.
    New(i64),
    /// It has less time to end by itself.
    Shortened(i64),
}

impl Marking {
    /// The seconds that the object has to end by itself.
    fn seconds(&self) -> i64 {
        match self {
            Marking::Unchanged => 0,
            Marking::New(seconds) | Marking::Shortened(seconds) => *seconds,
        }
    }
}

/// Deletes `current`, or the state that replaced it in the meantime. It is marked if finalizers remain, or while it has to
/// end by itself.
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
        let new_finalizers = new_finalizers(target, &current, options);
        let object = match needs_object(target, &current) || new_finalizers.is_some() {
            true => Some(stored_object(&current).await?),
            false => None,
        };
        let is_marked = current.metadata().deletion_timestamp.is_some();
        let marking = match (&object, target.rules.deletion_grace) {
            (Some(object), Some(grace)) => match (is_marked, metadata::grace_seconds(object), options.grace_seconds) {
                (false, ..) => Some(Marking::New(grace(object, options.grace_seconds))),
                // A deletion that did not come to its end, or an object that was marked because of finalizers.
                (true, Some(..=0) | None, _) => None,
                (true, Some(left), Some(wanted)) if wanted < left => Some(Marking::Shortened(wanted)),
                // Graceful deletion is pending.
                (true, Some(_), _) => return Ok(Removed::Marked(ReplyObject::stored(current))),
            },
            _ => None,
        };
        // Without time and finalizers it is deleted at once. Upstream marks it in a write of its own.
        let has_finalizers = match &new_finalizers {
            Some(finalizers) => !finalizers.is_empty(),
            None => !current.metadata().finalizers.is_empty(),
        };
        let marking = marking.filter(|marking| has_finalizers || marking.seconds() > 0);
        let changes_finalizers = new_finalizers.is_some();
        let object = object.map(|object| with_finalizers(object, new_finalizers));
        // The objects of a CRD are deleted first.
        let is_gone = marking.is_none()
            && object.as_ref().is_none_or(|object| {
                let is_empty = is_marked || !is_crd(&target.kind.resource);
                !metadata::has_finalizers(&target.kind.resource, object) && is_empty
            });
        if is_marked && marking.is_none() && !is_gone && !changes_finalizers {
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
            Some(object) => {
                let marking = marking.unwrap_or(if is_marked { Marking::Unchanged } else { Marking::New(0) });
                let (object, value) = marked_value(target, &current, object, marking).await?;
                if options.is_dry_run {
                    return Ok(Removed::Marked(ReplyObject::Unstored(Value::Object(object))));
                }
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

/// The object with other finalizers, if there are.
fn with_finalizers(mut object: Map<String, Value>, finalizers: Option<Vec<String>>) -> Map<String, Value> {
    if let Some(finalizers) = finalizers {
        change_metadata(&mut object, |metadata| match finalizers.is_empty() {
            true => metadata.remove("finalizers"),
            false => metadata.insert("finalizers".to_owned(), json!(finalizers)),
        });
    }
    object
}

/// An object that is marked, and the bytes to store.
async fn marked_value(
    target: &ObjectTarget<'_>,
    current: &Stored,
    mut object: Map<String, Value>,
    marking: Marking,
) -> Result<(Map<String, Value>, Vec<u8>), Status> {
    let owned = target.to_owned_target();
    let write = move || {
        let target = owned.target();
        custom_resource::rewrite_stored(&target.kind, &mut object);
        match marking {
            Marking::Unchanged => {}
            Marking::New(seconds) => mark(&target, &mut object, seconds),
            Marking::Shortened(seconds) => shorten(&mut object, seconds),
        }
        let value = write_stored_json(&object).bytes;
        (object, value)
    };
    // Schemas are needed, and may have to be compiled.
    let schema_work = if target.kind.version.custom().is_some() { MAX_INLINE_BYTES } else { 0 };
    run_sized(current.bytes().len() + schema_work, write).await
}

/// The finalizers that the garbage collector gets by a deletion, if they change. A value that cannot be read keeps its own.
fn new_finalizers(target: &ObjectTarget<'_>, current: &Stored, options: &DeleteOptions) -> Option<Vec<String>> {
    let policy = options.propagation.filter(|_| current.defect().is_none())?;
    let old: Vec<&str> = current.metadata().finalizers.iter().map(|finalizer| &**finalizer).collect();
    policy.new_finalizers(target.rules.dependents, &old)
}

/// Whether the deletion of an object depends on more than its metadata. A value that cannot be read has nothing that its
/// deletion waits for.
fn needs_object(target: &ObjectTarget<'_>, current: &Stored) -> bool {
    let has_rules = target.rules.removal != RemovalRule::Alone || target.rules.deletion_grace.is_some();
    current.defect().is_none() && (has_rules || !current.metadata().finalizers.is_empty())
}

/// Deletes objects of a collection, several at a time. The results are in the order of `objects`, as of one deletion
/// after another, without those of objects that were gone already.
///
/// # Errors
/// 500 if the schemas of the kind cannot be compiled.
pub(super) async fn remove_all<'r>(
    collection: &'r ResourceCollection,
    kind: &'r ServedKind,
    objects: Vec<Arc<Stored>>,
    options: &'r DeleteOptions,
) -> Result<impl Stream<Item = Result<(Arc<Stored>, Removed), Status>> + 'r, Status> {
    // Once, not by each of the deletions that are made at a time.
    let schemas = if objects.is_empty() { Vec::new() } else { schema_work::compile_schemas(kind).await? };
    let removals = objects.into_iter().map(move |object| async move {
        let (namespace, name) = (object.namespace(), object.name());
        let target = ObjectTarget::new(kind.clone(), namespace, name, "");
        let removed = remove(collection, &target, object.clone(), options).await?;
        Ok((object.clone(), removed))
    });
    let removed = stream::iter(removals).buffered(CONCURRENT_DELETIONS);
    Ok(removed.filter(move |removed| {
        let _held = &schemas;
        ready(!matches!(removed, Err(Status { code: 404, .. })))
    }))
}

/// Deletes objects of a collection. Calls `on_marked` with each that remains, because it has finalizers.
///
/// # Errors
/// As [`remove_all`], those of the store, and those of `on_marked`.
pub(crate) async fn remove_objects(
    collection: &ResourceCollection,
    kind: &ServedKind,
    objects: Vec<Arc<Stored>>,
    mut on_marked: impl AsyncFnMut(&Arc<Stored>) -> Result<(), Status>,
) -> Result<(), Status> {
    let options = DeleteOptions::default();
    let mut removals = pin!(remove_all(collection, kind, objects, &options).await?);
    while let Some((object, removed)) = removals.try_next().await? {
        if let Removed::Marked(_) = removed {
            on_marked(&object).await?;
        }
    }
    Ok(())
}

/// Gives an object that is marked less time to end by itself.
fn shorten(object: &mut Map<String, Value>, seconds: i64) {
    let left = metadata::grace_seconds(object).unwrap_or_default();
    change_metadata(object, |metadata| {
        let end = metadata.get("deletionTimestamp").and_then(Value::as_str).unwrap_or_default();
        let end = metadata::seconds_after(end, seconds.saturating_sub(left));
        metadata.insert("deletionTimestamp".to_owned(), json!(end));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(seconds));
    });
}

/// Marks an object for deletion, with the seconds that it has to end by itself (`rest.BeforeDelete`).
pub(super) fn mark(target: &ObjectTarget<'_>, object: &mut Map<String, Value>, seconds: i64) {
    let removal = target.rules.removal;
    let (is_namespace, is_crd) = (removal == RemovalRule::Namespace, removal == RemovalRule::CustomResourceDefinition);
    change_metadata(object, |metadata| {
        metadata.insert("deletionTimestamp".to_owned(), json!(metadata::seconds_after(&metadata::now(), seconds)));
        // `REST.Delete` in apiextensions-apiserver's `pkg/registry/customresourcedefinition/etcd.go`.
        if is_crd {
            return;
        }
        if !is_namespace {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(seconds));
        }
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), json!(generation + 1));
        }
    });
    if is_crd {
        crd::mark(object, &metadata::now());
    }
    if is_namespace {
        let status = object.entry("status").or_insert_with(|| json!({}));
        status["phase"] = json!("Terminating");
    }
}

/// 409 if a precondition does not hold, with Kubernetes' text (`rest.BeforeDelete`; CRDs have their own).
pub(super) fn check_preconditions(
    target: &ObjectTarget<'_>,
    current: &Stored,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let resource = &target.kind.resource;
    let conflict = |what: &str, wanted: &str, found: &str, then: &str| {
        if is_crd(resource) {
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use store::watch_cache::{CollectionSettings, Collections, HistoryLimits, ListQuery};
    use store::{Expect, MemoryStore, Mutation, Prefix, Store as _};

    use super::*;
    use crate::resources::custom::testing::served_kind;

    #[tokio::test]
    async fn removal_of_custom_objects_compiles_schemas_once_and_before() {
        let names = json!({"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"});
        let version = |name: &str| {
            let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
            json!({"name": name, "served": true, "storage": name == "v2", "schema": schema})
        };
        let kind = served_kind(&json!({
            "metadata": {"name": "as.b.io"},
            "spec": {"group": "b.io", "names": names, "scope": "Cluster", "versions": [version("v1"), version("v2")]},
            "status": {"acceptedNames": names},
        }));
        let (store, prefix) = (MemoryStore::new(), Prefix::parse("/registry/b.io/as/").unwrap());
        for name in ["c", "d"] {
            let object =
                json!({"apiVersion": "b.io/v1", "kind": "A", "metadata": {"name": name, "finalizers": ["a.io/b"]}});
            let put = Mutation::put(object.to_string());
            store.commit(&prefix.key("", name).unwrap(), Expect::Absent, put).await.unwrap();
        }
        let collections = Collections::new(Arc::new(store), HistoryLimits::default(), Arc::new(|| 0));
        let settings = CollectionSettings { prefix, fields: Arc::new([]), upgrade: None, repair: None };
        let collection = collections.collection(&settings);
        let objects = collection.list(&ListQuery::default()).await.unwrap().objects;
        let compiled = || -> Vec<bool> {
            let versions = &kind.resource.custom.as_ref().unwrap().versions;
            versions.iter().map(|version| version.compiled_schema().is_some()).collect()
        };
        let options = DeleteOptions::default();
        assert_eq!(compiled(), [false, false]);
        let removals = remove_all(&collection, &kind, Vec::new(), &options).await.unwrap();
        assert_eq!(removals.count().await, 0);
        assert_eq!(compiled(), [false, false], "not without objects");
        let mut removals = pin!(remove_all(&collection, &kind, objects, &options).await.unwrap());
        assert_eq!(compiled(), [false, true]);
        let mut marked = Vec::new();
        while let Some((object, removed)) = removals.try_next().await.unwrap() {
            assert!(matches!(removed, Removed::Marked(_)));
            marked.push(object.name().to_owned());
        }
        assert_eq!(marked, ["c", "d"]);
        // That of the version in which they were stored, on a compute thread.
        assert_eq!(compiled(), [true, true]);
    }
}
