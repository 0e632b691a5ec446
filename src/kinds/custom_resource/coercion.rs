//! Metadata of objects, and of objects in them, as Go's `ObjectMeta` holds them
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta`).

use kubeapi::field_error::{FieldError, FieldPath};
use kubeapi::go_type;
use kubeapi::object_meta::OBJECT_META_FIELDS;
use kubeapi::protobuf::normalize::{NormalizeError, normalize};
use kubeapi::schema::Schema;
use serde_json::{Map, Value, json};

use crate::resources::builtin::builtin_kinds;

/// What happens to a field of metadata whose type is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MalformedFields {
    /// The object is refused.
    Refuse,
    /// The field is removed.
    Remove,
}

/// Maximum number of unknown fields of metadata in an object that are reported.
const MAX_UNKNOWN_FIELDS: usize = 1000;

/// Whether stored metadata have what neither a kube-apiserver nor this server stores: unknown fields, null, or another
/// type. Those that the watch cache reads are not looked at: it cannot read such an object.
pub(super) fn has_foreign_fields(metadata: &Value) -> bool {
    let is_foreign = |(name, value): (&String, &Value)| match name.as_str() {
        "annotations" => value.as_object().is_none_or(|all| all.values().any(|value| !value.is_string())),
        "creationTimestamp" | "deletionTimestamp" => {
            value.as_str().is_none_or(|time| time.parse::<jiff::Timestamp>().is_err())
        }
        "deletionGracePeriodSeconds" => !value.is_i64(),
        name => value.is_null() || !OBJECT_META_FIELDS.contains(&name),
    };
    metadata.as_object().is_some_and(|fields| fields.iter().any(is_foreign))
}

/// Makes `metadata` what Go's `ObjectMeta` holds. Returns the paths of unknown fields.
///
/// # Errors
/// A field of the wrong type, with Go's text.
pub fn coerce_metadata(value: &mut Value, malformed: MalformedFields) -> Result<Vec<String>, String> {
    let Some(metadata) = value.get_mut("metadata") else { return Ok(Vec::new()) };
    if metadata.is_null() {
        *metadata = json!({});
    }
    match malformed {
        MalformedFields::Refuse => {
            let unknown = normalize_metadata(metadata).map_err(|error| error.to_string())?;
            Ok(unknown.iter().map(|path| format!("metadata.{path}")).collect())
        }
        MalformedFields::Remove => {
            let Value::Object(fields) = metadata else {
                return Err(format!("invalid metadata: expected object, got {}", go_type(metadata)));
            };
            *fields = without_malformed(std::mem::take(fields));
            Ok(Vec::new())
        }
    }
}

/// Does the same for objects in an object, and checks their types. Returns the paths of unknown fields, sorted.
///
/// # Errors
/// A field of the wrong type.
pub fn coerce_embedded(
    schema: &Schema,
    value: &mut Value,
    malformed: MalformedFields,
) -> Result<Vec<String>, FieldError> {
    let mut unknown = Vec::new();
    coerce(schema, value, None, malformed, &mut unknown)?;
    unknown.sort_unstable();
    Ok(unknown)
}

fn coerce(
    schema: &Schema,
    value: &mut Value,
    path: Option<&FieldPath<'_>>,
    malformed: MalformedFields,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    if !schema.contains_embedded_resource {
        return Ok(());
    }
    match value {
        Value::Object(fields) => {
            if schema.is_embedded_resource {
                coerce_fields(fields, path, malformed, unknown)?;
            }
            for (name, value) in fields.iter_mut() {
                if let Some(inner) = schema.properties.get(name) {
                    coerce(inner, value, Some(&Schema::child_path(path, name)), malformed, unknown)?;
                } else if let Some(inner) = schema.field(name) {
                    coerce(inner, value, Some(&Schema::key_path(path, name)), malformed, unknown)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = &schema.items else { return Ok(()) };
            for (index, item) in items.iter_mut().enumerate() {
                coerce(inner, item, Some(&Schema::item_path(path, index)), malformed, unknown)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn coerce_fields(
    fields: &mut Map<String, Value>,
    path: Option<&FieldPath<'_>>,
    malformed: MalformedFields,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    for name in ["apiVersion", "kind"] {
        match fields.get(name) {
            None | Some(Value::String(_)) => {}
            Some(_) if malformed == MalformedFields::Remove => drop(fields.remove(name)),
            Some(other) => {
                return Err(FieldError::invalid(Schema::child_path(path, name), other, "must be a string"));
            }
        }
    }
    let Some(metadata) = fields.get_mut("metadata") else { return Ok(()) };
    let path = Schema::child_path(path, "metadata");
    match (malformed, &mut *metadata) {
        (MalformedFields::Refuse, _) => {
            let given = metadata.clone();
            if metadata.is_null() {
                *metadata = json!({});
            }
            let paths =
                normalize_metadata(metadata).map_err(|error| FieldError::invalid(path, &given, error.to_string()))?;
            let room = MAX_UNKNOWN_FIELDS.saturating_sub(unknown.len());
            unknown.extend(paths.iter().take(room).map(|inner| format!("{path}.{inner}")));
        }
        (MalformedFields::Remove, Value::Object(inner)) => *inner = without_malformed(std::mem::take(inner)),
        (MalformedFields::Remove, Value::Null) => *metadata = json!({}),
        (MalformedFields::Remove, _) => {}
    }
    if let Some(metadata) = metadata.as_object_mut()
        && metadata.get("creationTimestamp").is_some_and(Value::is_null)
    {
        metadata.remove("creationTimestamp");
    }
    Ok(())
}

fn normalize_metadata(metadata: &mut Value) -> Result<Vec<String>, NormalizeError> {
    let kinds = builtin_kinds();
    let Some(message) = kinds.meta_message("ObjectMeta") else { return Ok(Vec::new()) };
    normalize(&kinds.messages, message, metadata)
}

/// The fields that can be read, one by one.
fn without_malformed(fields: Map<String, Value>) -> Map<String, Value> {
    let mut whole = Value::Object(fields.clone());
    if let (Ok(_), Value::Object(fields)) = (normalize_metadata(&mut whole), whole) {
        return fields;
    }
    let mut readable = Map::new();
    for (name, value) in fields {
        let mut single = json!({ name: value });
        if let (Ok(_), Value::Object(single)) = (normalize_metadata(&mut single), single) {
            readable.extend(single);
        }
    }
    readable
}
