//! Objects of custom resources: decoding by their schema, conversion between versions, and the rules of their strategy
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go`, `pkg/registry/customresource/strategy.go`).

mod coercion;
mod embedded;
mod scale_fields;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use serde_json::{Map, Value, json};

pub use self::coercion::{MalformedFields, coerce_embedded, coerce_metadata};
pub use self::embedded::embedded_errors;
pub use self::scale_fields::read_scale_fields;

use kubeapi::field_error::{FieldError, FieldErrors};
use kubeapi::json::write_stored_json;
use kubeapi::names::check_qualified_name;
use kubeapi::object_meta::{ObjectMetaView, validate_object_meta};
use kubeapi::schema::{
    DefaultsTooLarge, Schema, StepBudget, apply_defaults, drop_forbidden_nulls, prune_unknown_fields, validate,
    validate_list_types,
};
use kubeapi::{GoQuoted, Status};
use store::MAX_VALUE_BYTES;

use self::coercion::has_foreign_fields;
use self::scale_fields::{scale_spec_errors, scale_status_errors};
use super::validation::{METADATA, ValidationInput};
use super::{GenerationRule, KindRules};
use crate::resources::custom::{CustomResource, CustomVersion};
use crate::resources::{Resource, ServedKind};

/// The rules of all custom resources; what differs between them is in their versions.
pub(super) static RULES: KindRules = KindRules {
    allows_unconditional_update: false,
    prepare_new: |kind, object| {
        if let Some(version) = kind.version.custom() {
            prepare_new(version, object);
        }
    },
    prepare_replacement: |update, object| {
        if let Some(version) = update.kind.version.custom() {
            prepare_replacement(version, update.subresource, update.old, object);
        }
    },
    validate: validate_custom_object,
    warnings: |written| match written.subresource {
        "" => finalizer_warnings(written.old, written.object),
        _ => Vec::new(),
    },
    generation: GenerationRule { begins: true, ..GenerationRule::NONE },
    ..KindRules::PLAIN
};

/// Makes a body an object of the version: metadata are those of Kubernetes, unknown fields are removed, defaults set.
/// Returns the paths of unknown fields.
///
/// # Errors
/// The metadata have a field of the wrong type; with Go's text. The defaults are too large.
pub fn decode(version: &CustomVersion, value: &mut Value) -> Result<Vec<String>, CustomDecodeError> {
    let mut unknown = coerce_metadata(value, MalformedFields::Refuse).map_err(CustomDecodeError::Malformed)?;
    let schema = &*version.schema();
    if !version.preserves_unknown_fields {
        unknown.extend(prune_unknown_fields(value, Some(schema), true));
        drop_forbidden_nulls(value, schema);
    }
    let embedded = coerce_embedded(schema, value, MalformedFields::Refuse);
    unknown.extend(embedded.map_err(|error| CustomDecodeError::Malformed(error.to_string()))?);
    apply_defaults(value, schema, MAX_VALUE_BYTES).map_err(|_| CustomDecodeError::TooLarge)?;
    Ok(unknown)
}

/// Why a body is no object of a version.
#[derive(Debug)]
pub enum CustomDecodeError {
    /// A field has the wrong type; with Go's text.
    Malformed(String),
    /// The object with its defaults cannot be stored.
    TooLarge,
}

/// The bytes of a stored object without the fields of its metadata whose type is wrong. None if it is no object at all.
pub fn repair_metadata(stored: &Bytes) -> Option<Bytes> {
    let mut value: Value = serde_json::from_slice(stored).ok()?;
    coerce_metadata(&mut value, MalformedFields::Remove).ok()?;
    value.as_object().map(|object| write_stored_json(object).bytes.into())
}

/// Converts a stored object to the version of a kind, as a kube-apiserver decodes it: it has the defaults of the version in
/// which it is stored, and of its fields those that the other version knows.
///
/// # Errors
/// The schemas add too much; the object has a part of it.
pub fn convert_from_stored(kind: &ServedKind, object: &mut Map<String, Value>) -> Result<(), DefaultsTooLarge> {
    let (Some(resource), Some(version)) = (&kind.resource.custom, kind.version.custom()) else { return Ok(()) };
    let mut value = Value::Object(std::mem::take(object));
    let mut result = Ok(());
    let stored = stored_version(resource, &value);
    if let Some(stored) = stored {
        result = refresh(stored, &mut value);
    }
    if value["apiVersion"] != *version.api_version {
        value["apiVersion"] = json!(version.api_version);
        match stored {
            // A malformed field is removed, so that there is no error.
            Some(_) => drop(prune_converted(version, &mut value, MalformedFields::Remove)),
            // The CRD has the version of the object no more.
            None => result = result.and(refresh(version, &mut value)),
        }
    }
    if let Value::Object(converted) = value {
        *object = converted;
    }
    result
}

/// The version in which an object is stored; none if the CRD has it no more.
fn stored_version<'r>(resource: &'r CustomResource, value: &Value) -> Option<&'r CustomVersion> {
    let api_version = value["apiVersion"].as_str()?;
    resource.versions.iter().find(|version| version.api_version == api_version).map(|version| &**version)
}

/// Prunes a stored object of a kind by the schema of its own version, and sets its defaults. Returns whether the CRD
/// has that version.
///
/// # Errors
/// The schema adds too much.
pub fn refresh_stored(kind: &ServedKind, value: &mut Value) -> Result<bool, DefaultsTooLarge> {
    let version = kind.resource.custom.as_ref().and_then(|resource| stored_version(resource, value));
    Ok(version.map(|version| refresh(version, value)).transpose()?.is_some())
}

/// Prunes an object that was converted to the version (`schemaCoercingConverter`). Defaults are not set.
///
/// # Errors
/// An object in it has metadata of the wrong type, and is not to lose them.
pub fn prune_converted(
    version: &CustomVersion,
    value: &mut Value,
    malformed: MalformedFields,
) -> Result<(), FieldError> {
    let schema = &*version.schema();
    if !version.preserves_unknown_fields {
        prune_unknown_fields(value, Some(schema), true);
        drop_forbidden_nulls(value, schema);
    }
    coerce_embedded(schema, value, malformed).map(drop)
}

/// Prunes a stored object and sets its defaults: the schema may have changed since it was stored.
///
/// # Errors
/// The schema adds too much.
pub fn refresh(version: &CustomVersion, value: &mut Value) -> Result<(), DefaultsTooLarge> {
    // What cannot be read is removed, so that there is no error.
    if value.get("metadata").is_some_and(has_foreign_fields) {
        let _ = coerce_metadata(value, MalformedFields::Remove);
    }
    let _ = prune_converted(version, value, MalformedFields::Remove);
    let result = apply_defaults(value, &version.schema(), MAX_VALUE_BYTES);
    repair_generation(value);
    result
}

/// Counts the generations of an object that was stored without one from 1 on.
fn repair_generation(value: &mut Value) {
    if let Some(Value::Object(metadata)) = value.get_mut("metadata")
        && metadata.get("generation").and_then(Value::as_i64).unwrap_or(0) == 0
    {
        metadata.insert("generation".to_owned(), json!(1));
    }
}

/// An object in the version in which it is stored, without the fields that this version does not know.
///
/// # Errors
/// 500 for an object in it whose metadata this version does not allow; with upstream's text.
pub fn convert_to_stored<'o>(
    resource: &Resource,
    object: &'o Map<String, Value>,
) -> Result<Cow<'o, Map<String, Value>>, Status> {
    let storage = resource.storage.as_ref().and_then(|(_, storage)| resource.custom.as_ref()?.version(storage));
    let Some(version) = storage.filter(|version| object.get("apiVersion") != Some(&json!(version.api_version))) else {
        return Ok(Cow::Borrowed(object));
    };
    let mut value = Value::Object(object.clone());
    value["apiVersion"] = json!(version.api_version);
    prune_converted(version, &mut value, MalformedFields::Refuse)
        .map_err(|error| Status::new(500, "", error.to_string()))?;
    match value {
        Value::Object(stored) => Ok(Cow::Owned(stored)),
        _ => Ok(Cow::Borrowed(object)),
    }
}

/// Gives a stored object the content with which a kube-apiserver writes it again in a request for a version: as it is read
/// in that version, in the version in which it is stored. No webhook is called.
pub fn rewrite_stored(kind: &ServedKind, object: &mut Map<String, Value>) {
    let Some(custom) = &kind.resource.custom else { return };
    if custom.conversion.is_some() {
        let mut value = Value::Object(std::mem::take(object));
        // With a part of the defaults if they are too large: a deletion goes on.
        let _ = refresh_stored(kind, &mut value);
        if let Value::Object(refreshed) = value {
            *object = refreshed;
        }
        return;
    }
    let _ = convert_from_stored(kind, object);
    if let Ok(Cow::Owned(stored)) = convert_to_stored(&kind.resource, object) {
        *object = stored;
    }
}

/// Removes what clients cannot set in a new object.
pub fn prepare_new(version: &CustomVersion, object: &mut Map<String, Value>) {
    if version.has_status {
        object.remove("status");
    }
}

/// Restores what a write to the object or to its status cannot change.
pub fn prepare_replacement(
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
pub fn changes_generation(version: &CustomVersion, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    let counts = |field: &str| field != "metadata" && !(version.has_status && field == "status");
    old.keys().chain(new.keys()).any(|field| counts(field) && old.get(field) != new.get(field))
}

fn validate_custom_object(input: &ValidationInput<'_>) -> FieldErrors {
    let Some(version) = input.kind.version.custom() else { return FieldErrors::new() };
    if let Some(error) = kind_error(input.kind, input.object) {
        return error.into();
    }
    let mut errors = match input.old {
        Some(_) => input.metadata_change_errors(),
        None => {
            let is_namespaced = input.kind.resource.is_namespaced;
            validate_object_meta(input.metadata(), is_namespaced, RULES.name_rule, &METADATA)
        }
    };
    let values = (input.values.1, input.values.0);
    errors.append(validation_errors(version, input.subresource, values, input.budget));
    errors
}

/// The error of an object of another kind, for which nothing else of its type is checked.
pub fn kind_error(kind: &ServedKind, object: &Map<String, Value>) -> Option<FieldError> {
    let (expected, found) = (&kind.resource.kind, object.get("kind").and_then(Value::as_str).unwrap_or_default());
    (found != expected).then(|| FieldError::invalid("kind", found, format!("must be {expected}")))
}

/// The errors of an object by its CRD, besides those of its metadata. Those of values that a replacement leaves as
/// they are do not count. The budget says whether they are complete.
pub fn validation_errors(
    version: &CustomVersion,
    subresource: &str,
    (old, value): (Option<&Value>, &Value),
    budget: &dyn StepBudget,
) -> FieldErrors {
    let schema = &*version.schema();
    let is_status = subresource == "status";
    let mut errors = match is_status {
        true => status_errors(schema, value, old, budget),
        false => validate(schema, value, old, budget),
    };
    if let (Some(paths), Value::Object(object)) = (&version.scale, value) {
        if !is_status {
            errors.extend(scale_spec_errors(paths, object));
        }
        errors.extend(scale_status_errors(paths, object));
    }
    if !is_status {
        errors.append(embedded_errors(schema, value));
    }
    let has_old_duplicates = || old.is_some_and(|old| !validate_list_types(schema, old).is_empty());
    let duplicates = validate_list_types(schema, value);
    if !duplicates.is_empty() && !has_old_duplicates() {
        errors.append(duplicates);
    }
    errors
}

/// The errors of the status, with fields below `status` and texts that begin there.
fn status_errors(schema: &Schema, value: &Value, old: Option<&Value>, budget: &dyn StepBudget) -> FieldErrors {
    let (Some(schema), Some(status)) = (schema.properties.get("status"), value.get("status")) else {
        return FieldErrors::new();
    };
    let mut errors = validate(schema, status, old.and_then(|old| old.get("status")), budget);
    for error in errors.iter_mut() {
        error.field = match &*error.field {
            "<nil>" => "status".to_owned(),
            field => format!("status.{field}"),
        };
    }
    errors
}

/// Warnings about finalizers of an object that its predecessor does not have, sorted (`validateKubeFinalizerName`).
pub fn finalizer_warnings(old: Option<&Map<String, Value>>, object: &Map<String, Value>) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let old: HashSet<&str> = old.into_iter().flat_map(|old| ObjectMetaView::of_map(old).finalizers()).collect();
    let added: BTreeSet<&str> =
        ObjectMetaView::of_map(object).finalizers().filter(|name| !old.contains(name)).collect();
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
