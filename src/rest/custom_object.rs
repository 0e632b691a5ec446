//! Objects of custom resources: decoding by their schema, conversion between versions, and the rules of their strategy
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go`, `pkg/registry/customresource/strategy.go`).

use serde_json::{Map, Value, json};

use crate::kubeapi::field_error::FieldError;
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::protobuf::normalize::normalize;
use crate::resources::builtin::builtin_kinds;
use crate::resources::custom::{CustomResource, CustomVersion};
use crate::resources::{Resource, ServedKind};
use crate::schema::{apply_defaults, drop_forbidden_nulls, prune_unknown_fields, validate, validate_list_types};

/// Makes a body an object of the version: metadata are those of Kubernetes, unknown fields are removed, defaults set.
/// Returns the paths of unknown fields, sorted.
///
/// # Errors
/// The metadata have a field of the wrong type; with Go's text.
pub(super) fn decode(version: &CustomVersion, value: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = coerce_metadata(value)?;
    let schema = version.schema();
    if !version.preserves_unknown_fields {
        unknown.extend(prune_unknown_fields(value, Some(schema), true));
    }
    unknown.sort_unstable();
    drop_forbidden_nulls(value, schema);
    apply_defaults(value, schema);
    Ok(unknown)
}

/// Makes `metadata` what Go's `ObjectMeta` holds.
fn coerce_metadata(value: &mut Value) -> Result<Vec<String>, String> {
    let Some(metadata) = value.get_mut("metadata") else { return Ok(Vec::new()) };
    if metadata.is_null() {
        *metadata = json!({});
    }
    let kinds = builtin_kinds();
    let Some(message) = kinds.meta_message("ObjectMeta") else { return Ok(Vec::new()) };
    let unknown = normalize(&kinds.messages, message, metadata).map_err(|error| error.to_string())?;
    Ok(unknown.iter().map(|path| format!("metadata.{path}")).collect())
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

/// The version in which an object is stored; none if the definition has it no more.
fn stored_version<'r>(resource: &'r CustomResource, value: &Value) -> Option<&'r CustomVersion> {
    let api_version = value["apiVersion"].as_str()?;
    resource.versions.iter().find(|version| version.api_version == api_version).map(|version| &**version)
}

/// Prunes a stored object and sets its defaults: the schema may have changed since it was stored.
fn refresh(version: &CustomVersion, value: &mut Value) {
    let schema = version.schema();
    if !version.preserves_unknown_fields {
        prune_unknown_fields(value, Some(schema), true);
    }
    drop_forbidden_nulls(value, schema);
    apply_defaults(value, schema);
}

/// The bytes of an object in the version in which it is stored.
pub(super) fn stored_bytes(resource: &Resource, object: &Map<String, Value>) -> Vec<u8> {
    let (Some(_), Some((group, version))) = (&resource.custom, &resource.storage) else {
        return write_stored_json(object).bytes;
    };
    let mut stored = object.clone();
    stored.insert("apiVersion".to_owned(), format!("{group}/{version}").into());
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

/// The errors of an object by its schema. Those of values that a replacement leaves as they are do not count.
pub(super) fn schema_errors(
    version: &CustomVersion,
    old: Option<&Map<String, Value>>,
    object: &Map<String, Value>,
) -> Vec<FieldError> {
    let schema = version.schema();
    let value = Value::Object(object.clone());
    let mut errors = validate(schema, &value);
    errors.extend(validate_list_types(schema, &value));
    if let Some(old) = old {
        let old = Value::Object(old.clone());
        errors.retain(|error| !is_unchanged(&error.field, &old, &value));
    }
    errors
}

/// Whether the value at a path is the same in both objects. Items of lists are told apart by their place only if the
/// list is the same.
fn is_unchanged(path: &str, old: &Value, new: &Value) -> bool {
    let path = path.split_once('[').map_or(path, |(list, _)| list);
    let at = |value: &Value| path.split('.').try_fold(value.clone(), |value, name| value.get(name).cloned());
    matches!((at(old), at(new)), (Some(old), Some(new)) if old == new)
}
