//! ConfigMaps (`ValidateConfigMap`), and what Secrets have in common with them.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_config_map_key;
use serde_json::Value;

use super::KindRules;
use super::cells::{CellPrinter, length_at};
use super::validation::{ValidationInput, invalid_for};

pub(super) static RULES: KindRules =
    KindRules { validate: validate_config_map, cells: print_config_map, ..KindRules::of("", "configmaps") };

/// Largest sum of the values of a ConfigMap or Secret in bytes (`MaxSecretSize`).
pub(super) const MAX_DATA_BYTES: usize = 1 << 20;

pub(super) const DATA: FieldPath<'static> = FieldPath::root("data");

/// Validates a ConfigMap.
fn validate_config_map(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.extend(immutability_errors(input, &["data", "binaryData"]));
    errors.append(input.metadata_errors());
    let mut bytes = 0;
    let binary = input.field("binaryData");
    for (key, value) in input.field("data").as_object().into_iter().flatten() {
        errors.extend(invalid_for(DATA.key(key), key, check_config_map_key(key)));
        if binary.get(key).is_some() {
            errors.push(FieldError::invalid(DATA.key(key), key, "duplicate of key present in binaryData"));
        }
        bytes += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary.as_object().into_iter().flatten() {
        errors.extend(invalid_for(FieldPath::root("binaryData").key(key), key, check_config_map_key(key)));
        bytes += decoded_length(value);
    }
    if bytes > MAX_DATA_BYTES {
        errors.push(FieldError::too_long("[]", MAX_DATA_BYTES));
    }
    errors
}

/// Errors of a change of data that is immutable.
pub(super) fn immutability_errors(input: &ValidationInput<'_>, fields: &[&str]) -> Vec<FieldError> {
    if *input.old_field("immutable") != Value::Bool(true) {
        return Vec::new();
    }
    let is_changed = |field: &str| match field {
        "immutable" => *input.field(field) != Value::Bool(true),
        field => input.field(field) != input.old_field(field),
    };
    let why = "field is immutable when `immutable` is set";
    let all = ["immutable"].into_iter().chain(fields.iter().copied());
    all.filter(|field| is_changed(field)).map(|field| FieldError::forbidden(field, why)).collect()
}

/// Number of bytes that base64 stands for.
pub(super) fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

fn print_config_map(printer: &CellPrinter<'_>) -> Vec<Value> {
    let count = length_at(printer.object, "/data") + length_at(printer.object, "/binaryData");
    vec![printer.name(), count.into(), printer.age()]
}
