//! The fields of an object that the subresource `scale` reads (`ValidateScaleSpec` and `ValidateScaleStatus` in
//! `k8s.io/apiextensions-apiserver/pkg/registry/customresource/validator.go`).

use kubeapi::field_error::FieldError;
use kubeapi::{format_go_value, go_type};
use serde_json::{Map, Value};

use crate::resources::custom::crd::ScalePaths;

/// The errors of the wanted number of replicas.
pub(super) fn scale_spec_errors(paths: &ScalePaths, object: &Map<String, Value>) -> Vec<FieldError> {
    replica_error(&paths.spec_replicas_path, object).into_iter().collect()
}

/// The errors of the observed number of replicas and of the selector.
pub(super) fn scale_status_errors(paths: &ScalePaths, object: &Map<String, Value>) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = replica_error(&paths.status_replicas_path, object).into_iter().collect();
    if let Some(path) = &paths.label_selector_path {
        match value_at(object, path) {
            Ok(None | Some(Value::String(_))) => {}
            Ok(Some(value)) => errors.push(FieldError::invalid(path, "", wrong_type(path, value, "string"))),
            Err(why) => errors.push(FieldError::invalid(path, "", why)),
        }
    }
    errors
}

fn replica_error(path: &str, object: &Map<String, Value>) -> Option<FieldError> {
    let replicas = match value_at(object, path) {
        Ok(None) => return None,
        Ok(Some(Value::Number(number))) if number.is_i64() => number.as_i64().unwrap_or_default(),
        Ok(Some(value)) => return Some(FieldError::invalid(path, 0i64, wrong_type(path, value, "int64"))),
        Err(why) => return Some(FieldError::invalid(path, 0i64, why)),
    };
    let why = match replicas {
        ..0 => "should be a non-negative integer".to_owned(),
        number if number > i64::from(i32::MAX) => format!("should be less than or equal to {}", i32::MAX),
        _ => return None,
    };
    Some(FieldError::invalid(path, replicas, why))
}

/// What a `Scale` says of an object.
pub struct ScaleFields {
    /// The wanted number of replicas, if the object has it.
    pub spec_replicas: Option<i64>,
    /// The observed number of replicas.
    pub status_replicas: i64,
    /// The label selector; may be empty.
    pub selector: String,
}

/// Reads the fields of a `Scale`.
///
/// # Errors
/// A field has the wrong type; with Go's text.
pub fn read_scale_fields(paths: &ScalePaths, object: &Map<String, Value>) -> Result<ScaleFields, String> {
    let integer = |path: &str| match value_at(object, path)? {
        None => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong_type(path, value, "int64")),
    };
    let selector = match paths.label_selector_path.as_deref().filter(|path| !path.is_empty()) {
        None => "",
        Some(path) => match value_at(object, path)? {
            None => "",
            Some(value) => value.as_str().ok_or_else(|| wrong_type(path, value, "string"))?,
        },
    };
    Ok(ScaleFields {
        spec_replicas: integer(&paths.spec_replicas_path)?,
        status_replicas: integer(&paths.status_replicas_path)?.unwrap_or_default(),
        selector: selector.to_owned(),
    })
}

/// The value at a path such as `.spec.replicas`, if there is one.
///
/// # Errors
/// A value on the way is no object.
fn value_at<'v>(object: &'v Map<String, Value>, path: &str) -> Result<Option<&'v Value>, String> {
    let path = path.strip_prefix('.').unwrap_or(path);
    let mut names = path.split('.');
    let first = names.next().unwrap_or_default();
    let Some(mut value) = object.get(first) else { return Ok(None) };
    let mut end = first.len();
    for name in names {
        end += 1 + name.len();
        match value {
            Value::Null => return Ok(None),
            Value::Object(fields) => match fields.get(name) {
                Some(inner) => value = inner,
                None => return Ok(None),
            },
            // The text names the path with the field that is looked for.
            other => return Err(wrong_type(&path[..end], other, "map[string]interface{}")),
        }
    }
    Ok(Some(value))
}

fn wrong_type(path: &str, value: &Value, expected: &str) -> String {
    let path = path.strip_prefix('.').unwrap_or(path);
    format!(".{path} accessor error: {} is of the type {}, expected {expected}", format_go_value(value), go_type(value))
}
