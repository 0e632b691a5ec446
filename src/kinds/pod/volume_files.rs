//! Files that keys of a ConfigMap or Secret, and fields of the Pod, become in volumes.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::environment::{ReferencePlace, check_field_reference, check_resource_reference};
use super::paths::{check_file_mode, check_local_path, check_required};
use crate::kinds::validation::text;

/// Errors of a file that a key becomes (`validateKeyToPath`).
pub(super) fn check_key_file(file: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_required(file, &["key", "path"], path, errors);
    check_local_path(text(file, "path"), &path.child("path"), errors);
    check_file_mode(file, "mode", path, errors);
}

/// Errors of a file that a field of the Pod becomes (`validateDownwardAPIVolumeFile`).
pub(super) fn check_pod_field_file(file: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_required(file, &["path"], path, errors);
    check_local_path(text(file, "path"), &path.child("path"), errors);
    let (field, resource) = (&file["fieldRef"], &file["resourceFieldRef"]);
    if !field.is_null() {
        check_field_reference(field, ReferencePlace::Volume, &path.child("fieldRef"), errors);
        if !resource.is_null() {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", why));
        }
    } else if !resource.is_null() {
        check_resource_reference(resource, ReferencePlace::Volume, &path.child("resourceFieldRef"), errors);
    } else {
        errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
    }
    check_file_mode(file, "mode", path, errors);
}
