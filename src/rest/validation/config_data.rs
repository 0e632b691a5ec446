//! Validation of ConfigMaps and Secrets (`ValidateConfigMap`, `ValidateSecret`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{ValidationInput, invalid_for};
use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::kubeapi::json::read_json;
use crate::kubeapi::names::check_config_map_key;
use crate::rest::object_type::json_type;

/// Largest sum of the values of a ConfigMap or Secret in bytes (`MaxSecretSize`).
const MAX_DATA_BYTES: usize = 1 << 20;

const DATA: FieldPath<'static> = FieldPath::root("data");

/// Validates a ConfigMap.
pub(super) fn validate_config_map(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let mut errors = input.metadata_update_errors();
    errors.extend(immutability_errors(input, &["data", "binaryData"]));
    errors.extend(input.metadata_errors());
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

/// Validates a Secret.
pub(super) fn validate_secret(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let mut errors = input.metadata_update_errors();
    let secret_type = input.field("type").as_str().unwrap_or_default();
    if input.old.is_some() && input.old_field("type") != input.field("type") {
        errors.push(FieldError::invalid("type", secret_type, "field is immutable"));
    }
    errors.extend(immutability_errors(input, &["data"]));
    errors.extend(input.metadata_errors());
    let data = input.field("data");
    let mut bytes = 0;
    for (key, value) in data.as_object().into_iter().flatten() {
        errors.extend(invalid_for(DATA.key(key), key, check_config_map_key(key)));
        bytes += decoded_length(value);
    }
    if bytes > MAX_DATA_BYTES {
        errors.push(FieldError::too_long(DATA, MAX_DATA_BYTES));
    }
    errors.extend(secret_type_errors(input, secret_type, data));
    errors
}

/// Data and annotations that the type of a Secret requires.
fn secret_type_errors(input: &ValidationInput<'_>, secret_type: &str, data: &Value) -> Vec<FieldError> {
    let required = |key: &str| FieldError::required(DATA.key(key), "");
    let absent = |keys: &[&str]| -> Vec<FieldError> {
        keys.iter().filter(|key| data.get(key).is_none()).map(|key| required(key)).collect()
    };
    match secret_type {
        "kubernetes.io/service-account-token" => {
            const ANNOTATION: &str = "kubernetes.io/service-account.name";
            let is_missing = input.metadata().annotation(ANNOTATION).unwrap_or_default().is_empty();
            let path = FieldPath::root("metadata");
            let error = || FieldError::required(path.child("annotations").key(ANNOTATION), "");
            is_missing.then(error).into_iter().collect()
        }
        "kubernetes.io/dockercfg" => json_map_error(data, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_map_error(data, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" => match absent(&["username", "password"]) {
            missing if missing.len() == 2 => missing,
            _ => Vec::new(),
        },
        "kubernetes.io/ssh-auth" => {
            let is_missing = data["ssh-privatekey"].as_str().unwrap_or_default().is_empty();
            is_missing.then(|| required("ssh-privatekey")).into_iter().collect()
        }
        "kubernetes.io/tls" => absent(&["tls.crt", "tls.key"]),
        _ => Vec::new(),
    }
}

/// The error of a value that must be a JSON object.
fn json_map_error(data: &Value, key: &str) -> Vec<FieldError> {
    let Some(encoded) = data[key].as_str() else { return vec![FieldError::required(DATA.key(key), "")] };
    let why = match read_json(&STANDARD.decode(encoded).unwrap_or_default()) {
        Ok((Value::Object(_) | Value::Null, _)) => return Vec::new(),
        Ok((other, _)) => {
            format!("json: cannot unmarshal {} into Go value of type map[string]interface {{}}", json_type(&other))
        }
        Err(error) => error.to_string(),
    };
    vec![FieldError::invalid(DATA.key(key), "<secret contents redacted>", why)]
}

/// Errors of a change of data that is immutable.
fn immutability_errors(input: &ValidationInput<'_>, fields: &[&str]) -> Vec<FieldError> {
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
fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}
