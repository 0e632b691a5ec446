//! Lists that are sets or maps have no item twice (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype`).

use std::collections::HashSet;

use serde_json::Value;

use super::child_path;
use crate::kubeapi::field_error::FieldError;
use crate::kubeapi::json::write_json;
use crate::schema::{ListType, Schema};

/// The items of sets and maps that occur twice.
pub fn validate_list_types(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate(schema, value, "", &mut errors);
    errors
}

fn validate(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Array(items) => {
            let mut seen = HashSet::new();
            for (index, item) in items.iter().enumerate() {
                let key = match schema.list_type {
                    Some(ListType::Set) => Some(item.clone()),
                    Some(ListType::Map) => Some(map_key(schema, item)),
                    Some(ListType::Atomic) | None => None,
                };
                if let Some(key) = key
                    && !seen.insert(write_json(&key))
                {
                    errors.push(FieldError::duplicate(format!("{path}[{index}]"), &key));
                }
            }
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    validate(inner, item, &format!("{path}[{index}]"), errors);
                }
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(inner) = schema.field(name) {
                    validate(inner, value, &child_path(path, name), errors);
                }
            }
        }
        _ => {}
    }
}

/// The fields that identify an item, without those that are absent.
fn map_key(schema: &Schema, item: &Value) -> Value {
    let keys = schema.list_map_keys.iter();
    keys.filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect::<serde_json::Map<_, _>>().into()
}
