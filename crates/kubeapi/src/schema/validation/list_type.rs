//! Lists that are sets or maps have no item twice (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype`).

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::field_error::{FieldError, FieldErrors, FieldPath};
use crate::json::write_json;
use crate::schema::{AdditionalProperties, ListType, Schema};

/// The items of sets and maps that occur twice, and those of maps that are no objects.
pub fn validate_list_types(schema: &Schema, value: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validate(schema, value, None, &mut errors);
    errors
}

fn validate(schema: &Schema, value: &Value, path: Option<&FieldPath<'_>>, errors: &mut FieldErrors) {
    match value {
        Value::Array(items) => {
            match schema.list_type {
                Some(ListType::Set) => report_duplicates(items.iter().cloned(), path, errors),
                Some(ListType::Map) => validate_map_items(schema, items, path, errors),
                Some(ListType::Atomic) | None => {}
            }
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    validate(inner, item, Some(&Schema::item_path(path, index)), errors);
                }
            }
        }
        Value::Object(fields) => {
            // Those of maps come first, also for named fields.
            if let Some(AdditionalProperties::Schema(inner)) = &schema.additional_properties {
                for (name, value) in fields {
                    validate(inner, value, Some(&Schema::key_path(path, name)), errors);
                }
            }
            for (name, value) in fields {
                if let Some(inner) = schema.properties.get(name) {
                    validate(inner, value, Some(&Schema::child_path(path, name)), errors);
                }
            }
        }
        _ => {}
    }
}

fn validate_map_items(schema: &Schema, items: &[Value], path: Option<&FieldPath<'_>>, errors: &mut FieldErrors) {
    if let Some((index, item)) = items.iter().enumerate().find(|(_, item)| !item.is_null() && !item.is_object()) {
        let why = "must be an object for an array of list-type map";
        return errors.push(FieldError::invalid(Schema::item_path(path, index), item, why));
    }
    let key = |item: &Value| map_key(schema, item);
    match schema.list_map_keys.as_slice() {
        [name] => {
            // The key itself is compared, and reported as an object.
            let mut counts: HashMap<Option<String>, usize> = HashMap::new();
            for (index, item) in items.iter().enumerate() {
                let count = counts.entry(item.get(name).map(identity)).or_default();
                *count += 1;
                if *count == 2 {
                    errors.push(FieldError::duplicate(Schema::item_path(path, index), &key(item)));
                }
            }
        }
        _ => report_duplicates(items.iter().map(key), path, errors),
    }
}

/// Reports values at their second place.
fn report_duplicates(values: impl Iterator<Item = Value>, path: Option<&FieldPath<'_>>, errors: &mut FieldErrors) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (index, value) in values.enumerate() {
        let count = counts.entry(identity(&value)).or_default();
        *count += 1;
        if *count == 2 {
            errors.push(FieldError::duplicate(Schema::item_path(path, index), &value));
        }
    }
}

/// A text that is the same for the same value. As in Kubernetes, 1 and 1.0 are the same only inside of objects and lists.
fn identity(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => write_json(value),
        scalar => scalar.to_string(),
    }
}

/// The fields that identify an item, without those that are absent.
fn map_key(schema: &Schema, item: &Value) -> Value {
    let keys = schema.list_map_keys.iter();
    keys.filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect::<Map<_, _>>().into()
}
