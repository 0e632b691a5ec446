//! Types of values (`pkg/validation/validate/type.go`).

use serde_json::Value;

use super::ValidationResult;
use super::format::supported_format;
use super::number::{GoNumber, is_whole};
use crate::schema::path::ValuePath;
use crate::schema::{Schema, ValueType};

/// Checks the type of a value. As in Kubernetes, a string with a format may be an array, too.
pub(super) fn validate_type(
    schema: &Schema,
    value: &Value,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let (types, format) = (expected_types(schema), supported_format(schema));
    if value.is_null() {
        if !types.is_empty() && !schema.is_nullable {
            result.type_invalid(path, "null", types.join(","));
        } else {
            result.matches += 1;
        }
        return;
    }
    if types.is_empty() && format.is_empty() {
        return;
    }
    // The check itself is counted, whatever it says.
    result.matches += 1;
    let (found, found_format) = found_type(value);
    let is_number = types.contains(&"number");
    let is_expected = types.contains(&found)
        || is_number && found == "integer"
        || types.contains(&"integer") && found == "number" && value.as_f64().is_some_and(is_whole);
    let is_list = matches!(value, Value::String(_) | Value::Array(_));
    if !is_list && !format.is_empty() && !is_expected && found_format != format {
        return result.type_invalid(path, found_format, format);
    }
    let is_left_to_format = is_list && !format.is_empty() && !is_number && !types.contains(&"integer");
    if !is_left_to_format && !is_expected {
        return result.type_invalid(path, found, types.join(","));
    }
    result.matches += 1;
}

fn expected_types(schema: &Schema) -> &'static [&'static str] {
    match schema.value_type {
        _ if schema.is_int_or_string => &["integer", "string"],
        None => &[],
        Some(ValueType::Object) => &["object"],
        Some(ValueType::Array) => &["array"],
        Some(ValueType::String) => &["string"],
        Some(ValueType::Integer) => &["integer"],
        Some(ValueType::Number) => &["number"],
        Some(ValueType::Boolean) => &["boolean"],
    }
}

/// Type and format of a value that is not null.
fn found_type(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::Number(number) => match GoNumber::of(number) {
            GoNumber::Integer(_) => ("integer", "int64"),
            GoNumber::Float(_) => ("number", "float64"),
        },
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}
