//! Metadata that the server sets.

use std::collections::HashSet;
use std::fmt::Write as _;

use bytes::Bytes;
use jiff::Timestamp;
use kubeapi::Status;
use kubeapi::field_error::BoundedText;
use kubeapi::json::{write_json, write_stored_json};
use kubeapi::object_meta::{ObjectMetaView, change_metadata, generate_object_name};
use serde_json::{Map, Value, json};

use super::target::ObjectTarget;
use crate::kinds::{RemovalRule, changes_generation, has_generation, rules};
use crate::resources::Resource;
use crate::resources::builtin::builtin_kinds;

/// Maximum size of the uids that a warning lists, in bytes.
const MAX_LISTED: usize = 4 << 10;

/// The current time in the format of `metav1.Time`: UTC, whole seconds.
pub(crate) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Sets the namespace of the path, or refuses another one (`EnsureObjectNamespaceMatchesRequestNamespace`).
///
/// # Errors
/// 400.
pub(super) fn set_namespace(target: &ObjectTarget<'_>, object: &mut Map<String, Value>) -> Result<(), Status> {
    let own = ObjectMetaView::of_map(object).namespace();
    if own == target.namespace {
        return Ok(());
    }
    if !target.kind.resource.is_namespaced {
        change_metadata(object, |metadata| metadata.remove("namespace"));
        return Ok(());
    }
    if !own.is_empty() {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    change_metadata(object, |metadata| metadata.insert("namespace".to_owned(), json!(target.namespace)));
    Ok(())
}

/// A new object of a built-in kind that the server makes, as it is stored.
///
/// # Errors
/// 500 for an unknown kind.
pub(crate) fn new_object(
    group: &str,
    version: &str,
    plural: &str,
    mut object: Map<String, Value>,
) -> Result<Bytes, Status> {
    let kind = builtin_kinds().find(group, version, plural);
    let kind = kind.ok_or_else(|| Status::internal_error(format_args!("no {plural}")))?;
    let target = ObjectTarget::new(kind, "", "", "");
    fill_new_object(&target, &mut object);
    (target.rules.prepare_new)(&target.kind, &mut object);
    Ok(write_stored_json(&object).bytes.into())
}

/// Completes the metadata of a new object (`rest.FillObjectMetaSystemFields`, `rest.BeforeCreate`).
pub(super) fn fill_new_object(target: &ObjectTarget<'_>, object: &mut Map<String, Value>) {
    let generated = {
        let meta = ObjectMetaView::of_map(object);
        let base = meta.generate_name();
        let is_generated = meta.name().is_empty() && !base.is_empty();
        is_generated.then(|| generate_object_name(base, |below| fastrand::usize(..below)))
    };
    change_metadata(object, |metadata| {
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "managedFields"]
        {
            metadata.remove(field);
        }
        if let Some(name) = generated {
            metadata.insert("name".to_owned(), json!(name));
        }
        metadata.insert("uid".to_owned(), json!(uuid::Uuid::new_v4().to_string()));
        metadata.insert("creationTimestamp".to_owned(), json!(now()));
        if has_generation(&target.kind.resource) {
            metadata.insert("generation".to_owned(), json!(1));
        }
    });
}

/// Gives a replacing object what clients cannot change, and the next generation if its content changed
/// (`rest.BeforeUpdate`).
pub(super) fn fill_replacement(target: &ObjectTarget<'_>, old: &Map<String, Value>, object: &mut Map<String, Value>) {
    let old_meta = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let changes_content = target.subresource.is_empty() && changes_generation(&target.kind, old, object);
    change_metadata(object, |metadata| {
        metadata.remove("selfLink");
        metadata.remove("managedFields");
        for field in ["creationTimestamp", "deletionTimestamp"] {
            if let Some(time) = old_meta.get(field) {
                metadata.insert(field.to_owned(), time.clone());
            }
        }
        // Metadata that is left out stays; other values are refused by validation.
        for field in ["uid", "deletionGracePeriodSeconds"] {
            let is_unset = metadata.get(field).is_none_or(|value| value.is_null() || value == "");
            if is_unset && let Some(value) = old_meta.get(field) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
        match old_meta.get("generation").and_then(Value::as_i64) {
            None if !changes_content => metadata.remove("generation"),
            generation => {
                let next = generation.unwrap_or(0).saturating_add(i64::from(changes_content));
                metadata.insert("generation".to_owned(), json!(next))
            }
        };
    });
}

/// 400 if the name of the object is not that of the path.
///
/// # Errors
/// Kubernetes' texts (`checkName` in `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`).
pub(super) fn check_name(target: &ObjectTarget<'_>, object: &Map<String, Value>) -> Result<(), Status> {
    let (own, name) = (ObjectMetaView::of_map(object).name(), &target.name);
    if own == *name {
        return Ok(());
    }
    Err(Status::bad_request(match own {
        "" => format!("the name of the object ({name} based on URL) was undeterminable: name must be provided"),
        own => format!("the name of the object ({own}) does not match the name on the URL ({name})"),
    }))
}

/// Removes owner references that occur twice; returns a warning about them, for a patched object in other words
/// (`dedupOwnerReferencesAndAddWarning` in `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`).
pub(super) fn deduplicate_owners(object: &mut Map<String, Value>, is_patched: bool) -> Option<String> {
    let owners = object.get_mut("metadata")?.get_mut("ownerReferences")?.as_array_mut()?;
    let (mut seen, mut seen_uids, mut duplicates) = (HashSet::new(), HashSet::new(), String::new());
    let mut out = BoundedText::new(&mut duplicates, MAX_LISTED);
    owners.retain(|owner| {
        let is_new = seen.insert(write_json(owner));
        let uid = owner["uid"].as_str().unwrap_or_default();
        if !is_new && !seen_uids.contains(uid) {
            // Writing to a String cannot fail.
            let _ = write!(out, "{}{uid}", if seen_uids.is_empty() { "" } else { ", " });
            seen_uids.insert(uid.to_owned());
        }
        is_new
    });
    (!seen_uids.is_empty()).then(|| {
        let when = if is_patched { " after mutating admission happens" } else { "" };
        format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {duplicates}"
        )
    })
}

/// Whether finalizers keep an object, also those in `spec` of a namespace.
pub(super) fn has_finalizers(resource: &Resource, object: &Map<String, Value>) -> bool {
    let of_namespace = rules(resource).removal == RemovalRule::Namespace
        && object.get("spec").and_then(|spec| spec["finalizers"].as_array()).is_some_and(|all| !all.is_empty());
    ObjectMetaView::of_map(object).has_finalizers() || of_namespace
}

/// Whether an object is marked for deletion, has ended by itself, and has no finalizers (`ShouldDeleteDuringUpdate`).
pub(crate) fn is_removable(resource: &Resource, object: &Map<String, Value>) -> bool {
    let has_ended = grace_seconds(object).unwrap_or_default() <= 0;
    ObjectMetaView::of_map(object).deletion_timestamp().is_some() && has_ended && !has_finalizers(resource, object)
}

/// `deletionGracePeriodSeconds`: the seconds that an object has to end by itself.
pub(super) fn grace_seconds(object: &Map<String, Value>) -> Option<i64> {
    object.get("metadata")?.get("deletionGracePeriodSeconds")?.as_i64()
}

/// The time some seconds after `time` in the format of `metav1.Time`; `time` itself if there is no such time.
pub(super) fn seconds_after(time: &str, seconds: i64) -> String {
    let after = |time: Timestamp| Timestamp::from_second(time.as_second().checked_add(seconds)?).ok();
    time.parse().ok().and_then(after).map_or_else(|| time.to_owned(), |time| time.to_string())
}
