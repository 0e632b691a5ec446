//! Metadata that the server sets.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::target::ObjectTarget;
use crate::kubeapi::Status;
use crate::kubeapi::field_error::{FieldPath, invalid_fields_status};
use crate::kubeapi::object_meta::{
    ObjectMetaView, change_metadata, generate_object_name, validate_object_meta, validate_object_meta_update,
};
use crate::resources::Resource;
use crate::rest::strategy;

/// The current time in the format of `metav1.Time`: UTC, whole seconds.
pub(super) fn now() -> String {
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
    if !own.is_empty() {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    change_metadata(object, |metadata| metadata.insert("namespace".to_owned(), json!(target.namespace)));
    Ok(())
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
        match strategy::has_generation(target.resource) {
            true => metadata.insert("generation".to_owned(), json!(1)),
            false => metadata.remove("generation"),
        };
    });
}

/// Gives a replacing object what clients cannot change, and the next generation if its content changed
/// (`rest.BeforeUpdate`).
pub(super) fn fill_replacement(target: &ObjectTarget<'_>, old: &Map<String, Value>, object: &mut Map<String, Value>) {
    let old_meta = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let changes_content = strategy::has_generation(target.resource)
        && old
            .iter()
            .chain(object.iter())
            .any(|(field, _)| !matches!(&**field, "metadata" | "status") && old.get(field) != object.get(field));
    change_metadata(object, |metadata| {
        metadata.remove("selfLink");
        metadata.remove("managedFields");
        // Metadata that is left out stays; other values are refused by validation.
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            let is_unset = metadata.get(field).is_none_or(|value| value.is_null() || value == "");
            if is_unset && let Some(value) = old_meta.get(field) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
        if let Some(generation) = old_meta.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), json!(generation + i64::from(changes_content)));
        }
    });
}

/// Validates a new object.
///
/// # Errors
/// 422 for invalid metadata or fields.
pub(super) fn validate_new(target: &ObjectTarget<'_>, object: &Map<String, Value>) -> Result<(), Status> {
    let resource = target.resource;
    let meta = ObjectMetaView::of_map(object);
    let path = FieldPath::root("metadata");
    let mut errors = validate_object_meta(meta, resource.is_namespaced, strategy::name_rule(resource), &path);
    errors.extend(strategy::validate(resource, object));
    if errors.is_empty() {
        return Ok(());
    }
    Err(invalid_fields_status(resource.group, resource.kind, meta.name(), &errors))
}

/// Validates an object that replaces `old`, which has a resourceVersion.
///
/// # Errors
/// 422 for changes that are not allowed, and for invalid fields.
pub(super) fn validate_replacement(
    target: &ObjectTarget<'_>,
    old: &Map<String, Value>,
    object: &Map<String, Value>,
) -> Result<(), Status> {
    let resource = target.resource;
    let meta = ObjectMetaView::of_map(object);
    let path = FieldPath::root("metadata");
    let mut errors = validate_object_meta_update(meta, ObjectMetaView::of_map(old), &path);
    errors.extend(strategy::validate(resource, object));
    errors.extend(strategy::validate_update(resource, old, object));
    if errors.is_empty() {
        return Ok(());
    }
    Err(invalid_fields_status(resource.group, resource.kind, meta.name(), &errors))
}

/// Whether finalizers keep an object, also those in `spec` of a namespace.
pub(super) fn has_finalizers(resource: &Resource, object: &Map<String, Value>) -> bool {
    let of_namespace = resource.plural == "namespaces"
        && object.get("spec").and_then(|spec| spec["finalizers"].as_array()).is_some_and(|all| !all.is_empty());
    ObjectMetaView::of_map(object).has_finalizers() || of_namespace
}

/// Whether an object is marked for deletion and has no finalizers.
pub(super) fn is_removable(resource: &Resource, object: &Map<String, Value>) -> bool {
    ObjectMetaView::of_map(object).deletion_timestamp().is_some() && !has_finalizers(resource, object)
}
