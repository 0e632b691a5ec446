//! Rules of paths in volumes, and small rules that the parts of a Pod have in common.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use crate::kinds::validation::{items, text};

/// Calls `visit` for each container with its path, in upstream's order (`VisitContainersWithPath`).
pub(super) fn visit_containers(spec: &Value, path: &FieldPath<'_>, mut visit: impl FnMut(&Value, &FieldPath<'_>)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let path = path.child(list);
        for (index, container) in items(spec, list).iter().enumerate() {
            visit(container, &path.index(index));
        }
    }
}

/// Whether a pointer of Go is set.
pub(super) fn is_set(value: &Value) -> bool {
    !value.is_null()
}

/// Whether a flag is true.
pub(super) fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}

/// Errors of a negative number (`ValidateNonnegativeField`).
pub(in crate::kinds) fn check_not_negative(
    object: &Value,
    field: &str,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if let Some(number) = object[field].as_i64().filter(|number| *number < 0) {
        errors.push(FieldError::invalid(path.child(field), number, "must be greater than or equal to 0"));
    }
}

/// Errors of a text that must be one of those supported; an empty one is missing.
pub(super) fn check_choice(value: &str, supported: &[&str], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        check_supported(value, supported, path, errors);
    }
}

/// Errors of a text that must be one of those supported.
pub(super) fn check_supported(value: &str, supported: &[&str], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if !supported.contains(&value) {
        errors.push(FieldError::not_supported(path, value, supported));
    }
}

/// Errors of fields that must not be empty.
pub(super) fn check_required(object: &Value, fields: &[&str], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    for field in fields.iter().filter(|field| text(object, field).is_empty()) {
        errors.push(FieldError::required(path.child(field), ""));
    }
}

/// Errors of permissions of files (`fileModeErrorMsg`).
pub(super) fn check_file_mode(object: &Value, field: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if let Some(mode) = object[field].as_i64().filter(|mode| !(0..=0o777).contains(mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(path.child(field), mode, why));
    }
}

/// Errors of a path that leads upwards (`validatePathNoBacksteps`).
pub(super) fn check_no_backsteps(target: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if has_backsteps(target) {
        errors.push(FieldError::invalid(path, target, "must not contain '..'"));
    }
}

/// Whether a path leads upwards.
pub(super) fn has_backsteps(target: &str) -> bool {
    target.split('/').any(|part| part == "..")
}

/// Errors of a path that is absolute or leads upwards (`validateLocalDescendingPath`).
pub(super) fn check_descending_path(target: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if target.starts_with('/') {
        errors.push(FieldError::invalid(path, target, "must be a relative path"));
    }
    check_no_backsteps(target, path, errors);
}

/// Errors of a path of a file in a volume (`ValidateLocalNonReservedPath`).
pub(super) fn check_local_path(target: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_descending_path(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.push(FieldError::invalid(path, target, "must not start with '..'"));
    }
}
