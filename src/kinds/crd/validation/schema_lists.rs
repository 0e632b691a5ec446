//! Lists and maps that server-side apply merges: `x-kubernetes-list-type`, `x-kubernetes-list-map-keys`,
//! `x-kubernetes-map-type`.

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::schema::props::{JsonSchemaProps, go_json};

use super::options::ValidationRules;

/// Checks the extensions of a schema.
pub(super) fn check_lists_and_maps(
    schema: &JsonSchemaProps,
    rules: &ValidationRules,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if let Some(map_type) = &schema.map_type {
        errors.extend(type_error(schema, "object", "x-kubernetes-map-type", path));
        if !matches!(&**map_type, "atomic" | "granular") {
            let path = path.child("x-kubernetes-map-type");
            errors.push(FieldError::not_supported(path, map_type, &["atomic", "granular"]));
        }
    }
    let list_path = path.child("x-kubernetes-list-type");
    if let Some(list_type) = &schema.list_type {
        match type_error(schema, "array", "x-kubernetes-list-type", path) {
            Some(error) => errors.push(error),
            None if rules.requires_atomic_sets => errors.extend(set_item_error(schema, path)),
            None => {}
        }
        if !matches!(&**list_type, "atomic" | "set" | "map") {
            errors.push(FieldError::not_supported(list_path, list_type, &["atomic", "set", "map"]));
        }
    }
    let is_map = schema.list_type.as_deref() == Some("map");
    if !schema.list_map_keys.is_empty() && !is_map {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match &schema.list_type {
            None => FieldError::required(list_path, why),
            Some(list_type) => FieldError::invalid(list_path, list_type, why),
        });
    }
    if is_map {
        check_map_list(schema, path, errors);
    }
    if rules.requires_map_list_rules {
        errors.append(map_list_errors(schema, path));
    }
}

fn type_error(schema: &JsonSchemaProps, expected: &str, extension: &str, path: &FieldPath<'_>) -> Option<FieldError> {
    let why = || format!("must be {expected} if {extension} is specified");
    match &*schema.value_type {
        found if found == expected => None,
        "" => Some(FieldError::required(path.child("type"), why())),
        found => Some(FieldError::invalid(path.child("type"), found, why())),
    }
}

fn items(schema: &JsonSchemaProps) -> Option<&JsonSchemaProps> {
    schema.items.as_ref()?.schema.as_deref()
}

/// The error of a set whose items server-side apply would not treat as a whole.
fn set_item_error(schema: &JsonSchemaProps, path: &FieldPath<'_>) -> Option<FieldError> {
    if !is_set_of_non_atomic(schema) {
        return None;
    }
    let items = items(schema)?;
    let extension = if items.value_type == "array" { "x-kubernetes-list-type" } else { "x-kubernetes-map-type" };
    // Also for maps, Kubernetes shows the type of the list.
    let value = items.list_type.as_deref().map_or(BadValue::null(), BadValue::from);
    let path = path.child("items");
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    Some(FieldError::invalid(path.child(extension), value, why))
}

/// Whether a schema is a set with items that are merged.
pub(super) fn is_set_of_non_atomic(schema: &JsonSchemaProps) -> bool {
    let Some(items) = items(schema).filter(|_| schema.list_type.as_deref() == Some("set")) else { return false };
    match &*items.value_type {
        "array" => items.list_type.as_ref().is_some_and(|list_type| list_type != "atomic"),
        "object" => items.map_type.as_deref() != Some("atomic"),
        _ => false,
    }
}

fn check_map_list(schema: &JsonSchemaProps, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (keys_path, items_path) = (path.child("x-kubernetes-list-map-keys"), path.child("items"));
    if schema.list_map_keys.is_empty() {
        errors.push(FieldError::required(keys_path, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = &schema.items else {
        errors.push(FieldError::required(items_path, "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    let Some(item) = items.schema.as_deref() else {
        let why = "must only have a single schema if x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(items_path, go_json::bad_value(items), why));
        return;
    };
    if item.value_type != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(items_path.child("type"), &item.value_type, why));
        return;
    }
    let mut seen = HashSet::new();
    let properties = items_path.child("properties");
    let keys = BadValue::from(&*schema.list_map_keys);
    for key in &schema.list_map_keys {
        match item.properties.get(key) {
            Some(property) if matches!(&*property.value_type, "array" | "object") => {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let path = properties.key(key);
                errors.push(FieldError::invalid(path.child("type"), &item.value_type, why));
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                errors.push(FieldError::invalid(keys_path, keys.clone(), why));
            }
        }
        if !seen.insert(key) {
            errors.push(FieldError::invalid(keys_path, keys.clone(), "must not contain duplicate entries"));
        }
    }
}

/// The errors of keys that an item may lack, and of items that may be null (`validateMapListKeysMapSet`).
fn map_list_errors(schema: &JsonSchemaProps, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (Some(item), Some(list_type @ ("set" | "map"))) = (items(schema), schema.list_type.as_deref()) else {
        return errors;
    };
    let path = path.child("items");
    if item.nullable {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(path.child("nullable"), why));
    }
    if list_type == "set" {
        return errors;
    }
    let path = path.child("properties");
    let required: HashSet<&String> = item.required.iter().collect();
    for key in &schema.list_map_keys {
        let Some(property) = item.properties.get(key) else { continue };
        let path = path.key(key);
        if !required.contains(key) && property.default.is_none() {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(path.child("default"), why));
        }
        if property.nullable {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(path.child("nullable"), why));
        }
    }
    errors
}

/// Whether a schema has keys that an item may lack, or items that may be null.
pub(super) fn has_map_list_errors(schema: &JsonSchemaProps) -> bool {
    !map_list_errors(schema, &FieldPath::root("")).is_empty()
}
