//! Cells of a Table of custom resources (`pkg/registry/customresource/tableconvertor/tableconvertor.go` of
//! apiextensions-apiserver).

use std::time::SystemTime;

use serde_json::Value;

use super::CustomVersion;
use crate::kubeapi::human_duration::age_of;
use crate::kubeapi::json_path::print_json_path_value;

/// The cells of an object: its name, then one for each column of the definition, or its age.
pub fn custom_cells(version: &CustomVersion, object: &Value, now: SystemTime) -> Vec<Value> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let mut cells = vec![Value::from(name)];
    for (path, column_type) in &version.column_paths {
        let value = path.as_ref().and_then(|path| path.find_first(object));
        cells.push(value.map_or(Value::Null, |value| cell(value, column_type, now)));
    }
    if version.column_paths.is_empty() {
        let created = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
        cells.push(created.and_then(|time| age_of(time, now)).unwrap_or_else(|| "<unknown>".to_owned()).into());
    }
    cells
}

/// A value as a cell of a column's type; null if it has another type.
fn cell(value: &Value, column_type: &str, now: SystemTime) -> Value {
    match (column_type, value) {
        ("string", Value::Null) => Value::Null,
        ("string", value) => print_json_path_value(value).into(),
        ("integer", Value::Number(number)) => match number.as_i64() {
            Some(whole) => whole.into(),
            // Go converts a float to an integer by cutting it off.
            #[allow(clippy::cast_possible_truncation)]
            None => (number.as_f64().unwrap_or_default() as i64).into(),
        },
        ("number", Value::Number(number)) => number.as_f64().map_or(Value::Null, Value::from),
        ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => age_of(text, now).unwrap_or_else(|| "<invalid>".to_owned()).into(),
        _ => Value::Null,
    }
}
