//! Objects of custom resources: decoding by their schema, conversion between versions, and the rules of their strategy
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go`, `pkg/registry/customresource/strategy.go`).

mod coercion;
mod embedded;
mod scale_fields;

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Map, Value, json};

pub(super) use self::coercion::{MalformedFields, coerce_embedded};
pub(super) use self::embedded::embedded_errors;
pub(super) use self::scale_fields::read_scale_fields;

use self::coercion::{coerce_metadata, has_foreign_fields};
use self::scale_fields::{scale_spec_errors, scale_status_errors};
use super::compute::run_sized;
use crate::kubeapi::field_error::FieldError;
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::names::check_qualified_name;
use crate::kubeapi::object_meta::ObjectMetaView;
use crate::kubeapi::{GoQuoted, Status};
use crate::resources::custom::{CustomResource, CustomVersion};
use crate::resources::{Resource, ServedKind};
use crate::schema::{
    Schema, apply_defaults, drop_forbidden_nulls, prune_unknown_fields, validate, validate_list_types,
};
use crate::watch_cache::Stored;

/// Compiles the schemas that requests for a kind need, on a compute thread if they are large.
///
/// # Errors
/// 500 if a schema cannot be compiled.
pub(super) async fn compile_schemas(kind: &ServedKind) -> Result<(), Status> {
    let (Some(resource), Some(version)) = (&kind.resource.custom, kind.version.custom()) else { return Ok(()) };
    let storage = kind.resource.storage.as_ref().and_then(|(_, name)| resource.version(name));
    for version in [Some(version), storage].into_iter().flatten() {
        let work = version.schema_work();
        if work > 0 {
            let version = version.clone();
            run_sized(work, move || drop(version.schema())).await?;
        }
    }
    Ok(())
}

/// Makes a body an object of the version: metadata are those of Kubernetes, unknown fields are removed, defaults set.
/// Returns the paths of unknown fields.
///
/// # Errors
/// The metadata have a field of the wrong type; with Go's text.
pub(super) fn decode(version: &CustomVersion, value: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = coerce_metadata(value, MalformedFields::Refuse)?;
    let schema = &*version.schema();
    if !version.preserves_unknown_fields {
        unknown.extend(prune_unknown_fields(value, Some(schema), true));
        drop_forbidden_nulls(value, schema);
    }
    let embedded = coerce_embedded(schema, value, MalformedFields::Refuse).map_err(|error| error.to_string())?;
    unknown.extend(embedded);
    apply_defaults(value, schema);
    Ok(unknown)
}

/// The bytes of a stored object without the fields of its metadata whose type is wrong. None if it is no object at all.
pub(super) fn repair_metadata(stored: &Bytes) -> Option<Bytes> {
    let mut value: Value = serde_json::from_slice(stored).ok()?;
    coerce_metadata(&mut value, MalformedFields::Remove).ok()?;
    value.as_object().map(|object| write_stored_json(object).bytes.into())
}

/// Converts a stored object to the version of a kind, and gives it what the schemas of both versions add since it was
/// stored. One that is in the version already stays as it is.
pub(super) fn convert_from_stored(kind: &ServedKind, object: &mut Map<String, Value>) {
    let (Some(resource), Some(version)) = (&kind.resource.custom, kind.version.custom()) else { return };
    let mut value = Value::Object(std::mem::take(object));
    if let Some(stored) = stored_version(resource, &value) {
        refresh(stored, &mut value);
    }
    if value["apiVersion"] != *version.api_version {
        value["apiVersion"] = json!(version.api_version);
        refresh(version, &mut value);
    }
    if let Value::Object(converted) = value {
        *object = converted;
    }
}

/// As [`convert_from_stored`], for an object that was just read. Nothing is done twice if it was found to be unchanged.
pub(super) fn convert_stored(kind: &ServedKind, stored: &Stored, object: &mut Map<String, Value>) {
    let Some(version) = kind.version.custom() else { return };
    if stored.schema_checks().result(version.id()) == Some(true) {
        object.insert("apiVersion".to_owned(), json!(version.api_version));
    } else {
        convert_from_stored(kind, object);
    }
}

/// Finds out whether an object that was just stored in the version of the request can be sent as it is.
pub(super) fn check_written(kind: &ServedKind, object: Map<String, Value>, stored: &Stored) {
    let Some(version) = kind.version.custom() else { return };
    let is_storage = kind.resource.storage.as_ref().is_some_and(|(_, storage)| *storage == kind.version.version);
    if is_storage && stored.schema_checks().result(version.id()).is_none() {
        let written = Value::Object(object);
        let mut refreshed = written.clone();
        refresh(version, &mut refreshed);
        stored.schema_checks().record(version.id(), refreshed == written);
    }
}

/// The version in which an object is stored; none if the definition has it no more.
fn stored_version<'r>(resource: &'r CustomResource, value: &Value) -> Option<&'r CustomVersion> {
    let api_version = value["apiVersion"].as_str()?;
    resource.versions.iter().find(|version| version.api_version == api_version).map(|version| &**version)
}

/// Prunes a stored object of a kind by the schema of its own version, and sets its defaults. Returns whether the definition
/// has that version.
pub(super) fn refresh_stored(kind: &ServedKind, value: &mut Value) -> bool {
    let version = kind.resource.custom.as_ref().and_then(|resource| stored_version(resource, value));
    version.map(|version| refresh(version, value)).is_some()
}

/// Prunes an object that a webhook converted to the version.
pub(super) fn prune_converted(version: &CustomVersion, value: &mut Value) {
    let schema = &*version.schema();
    if !version.preserves_unknown_fields {
        prune_unknown_fields(value, Some(schema), true);
        drop_forbidden_nulls(value, schema);
    }
}

/// Prunes a stored object and sets its defaults: the schema may have changed since it was stored.
fn refresh(version: &CustomVersion, value: &mut Value) {
    prune_converted(version, value);
    let schema = &*version.schema();
    // What cannot be read is removed, so that there is no error.
    if value.get("metadata").is_some_and(has_foreign_fields) {
        let _ = coerce_metadata(value, MalformedFields::Remove);
    }
    let _ = coerce_embedded(schema, value, MalformedFields::Remove);
    apply_defaults(value, schema);
    repair_generation(value);
}

/// Counts the generations of an object that was stored without one from 1 on.
fn repair_generation(value: &mut Value) {
    if let Some(Value::Object(metadata)) = value.get_mut("metadata")
        && metadata.get("generation").and_then(Value::as_i64).unwrap_or(0) == 0
    {
        metadata.insert("generation".to_owned(), json!(1));
    }
}

/// The bytes of an object in the version in which it is stored.
pub(super) fn stored_bytes(resource: &Resource, object: &Map<String, Value>) -> Vec<u8> {
    let (Some(_), Some((group, version))) = (&resource.custom, &resource.storage) else {
        return write_stored_json(object).bytes;
    };
    let api_version = Value::String(format!("{group}/{version}"));
    if object.get("apiVersion") == Some(&api_version) {
        return write_stored_json(object).bytes;
    }
    let mut stored = object.clone();
    stored.insert("apiVersion".to_owned(), api_version);
    write_stored_json(&stored).bytes
}

/// Removes what clients cannot set in a new object.
pub(super) fn prepare_new(version: &CustomVersion, object: &mut Map<String, Value>) {
    if version.has_status {
        object.remove("status");
    }
}

/// Restores what a write to the object or to its status cannot change.
pub(super) fn prepare_replacement(
    version: &CustomVersion,
    subresource: &str,
    old: &Map<String, Value>,
    object: &mut Map<String, Value>,
) {
    let restore = |object: &mut Map<String, Value>, field: &str, from: &Map<String, Value>| match from.get(field) {
        Some(value) => drop(object.insert(field.to_owned(), value.clone())),
        None => drop(object.remove(field)),
    };
    match subresource {
        "status" => {
            let written = std::mem::replace(object, old.clone());
            restore(object, "status", &written);
        }
        _ if version.has_status => restore(object, "status", old),
        _ => {}
    }
}

/// Whether a write changes what `metadata.generation` counts: everything but metadata, and the status if that is a
/// subresource.
pub(super) fn changes_generation(version: &CustomVersion, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    let counts = |field: &str| field != "metadata" && !(version.has_status && field == "status");
    old.keys().chain(new.keys()).any(|field| counts(field) && old.get(field) != new.get(field))
}

/// The error of an object of another kind, for which nothing else of its type is checked.
pub(super) fn kind_error(kind: &ServedKind, object: &Map<String, Value>) -> Option<FieldError> {
    let (expected, found) = (&kind.resource.kind, object.get("kind").and_then(Value::as_str).unwrap_or_default());
    (found != expected).then(|| FieldError::invalid("kind", found, format!("must be {expected}")))
}

/// The errors of an object by its definition, besides those of its metadata. Those of values that a replacement leaves as
/// they are do not count.
pub(super) fn validation_errors(
    version: &CustomVersion,
    subresource: &str,
    old: Option<&Map<String, Value>>,
    object: &Map<String, Value>,
) -> Vec<FieldError> {
    let schema = &*version.schema();
    let (value, old) = (Value::Object(object.clone()), old.map(|old| Value::Object(old.clone())));
    let is_status = subresource == "status";
    let mut errors =
        if is_status { status_errors(schema, &value, old.as_ref()) } else { validate(schema, &value, old.as_ref()) };
    if let Some(paths) = &version.scale {
        if !is_status {
            errors.extend(scale_spec_errors(paths, object));
        }
        errors.extend(scale_status_errors(paths, object));
    }
    if !is_status {
        errors.extend(embedded_errors(schema, &value));
    }
    let has_old_duplicates = || old.is_some_and(|old| !validate_list_types(schema, &old).is_empty());
    let duplicates = validate_list_types(schema, &value);
    if !duplicates.is_empty() && !has_old_duplicates() {
        errors.extend(duplicates);
    }
    errors
}

/// The errors of the status, with fields below `status` and texts that begin there.
fn status_errors(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let (Some(schema), Some(status)) = (schema.properties.get("status"), value.get("status")) else {
        return Vec::new();
    };
    let mut errors = validate(schema, status, old.and_then(|old| old.get("status")));
    for error in &mut errors {
        error.field = match &*error.field {
            "<nil>" => "status".to_owned(),
            field => format!("status.{field}"),
        };
    }
    errors
}

/// Warnings about finalizers of an object that its predecessor does not have, sorted (`validateKubeFinalizerName`).
pub(super) fn finalizer_warnings(old: Option<&Map<String, Value>>, object: &Map<String, Value>) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let old = old.map(ObjectMetaView::of_map);
    let is_old = |name: &str| old.is_some_and(|old| old.finalizers().any(|other| other == name));
    let added: BTreeSet<&str> = ObjectMetaView::of_map(object).finalizers().filter(|name| !is_old(name)).collect();
    let mut warnings = Vec::new();
    for name in added {
        let quoted = GoQuoted(name);
        warnings.extend(check_qualified_name(name).iter().map(|why| format!("metadata.finalizers: {quoted}: {why}")));
        if !name.contains('/') && !STANDARD.contains(&name) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warnings.push(format!(
                "metadata.finalizers: {quoted}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts \
                 with other finalizer writers"
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
