//! Fields of a version besides its schema: warning of deprecation, subresources, columns.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::is_print;
use kubeapi::schema::props::go_json;

use super::hoisted::{ColumnField, ScaleField, SubresourcesField};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Maximum length of a warning in bytes.
const MAX_WARNING: usize = 256;

/// What is wrong with the text of the warning about a deprecated version.
pub(super) fn deprecation_warning_errors(
    is_deprecated: bool,
    warning: Option<&str>,
    path: &FieldPath<'_>,
) -> Vec<FieldError> {
    let Some(warning) = warning else { return Vec::new() };
    // Go prints a pointer as JSON.
    let invalid = |why: String| FieldError::invalid(path, go_json::bad_value(&warning), why);
    if !is_deprecated {
        return vec![invalid("can only be set for deprecated versions".to_owned())];
    }
    let mut errors = Vec::new();
    if warning.len() > MAX_WARNING {
        errors.push(invalid(format!("must be <= {MAX_WARNING} characters long")));
    }
    if warning.is_empty() {
        errors.push(invalid("must not be an empty string".to_owned()));
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| !is_print(*c)) {
        let what = "must only contain printable UTF-8 characters; non-printable character found";
        errors.push(invalid(format!("{what} at index {at}")));
    }
    errors
}

/// The errors of subresources. `path` is that of the field.
pub(super) fn subresource_errors(subresources: Option<&SubresourcesField>, path: &FieldPath<'_>) -> Vec<FieldError> {
    let Some(ScaleField { spec_replicas_path, status_replicas_path, label_selector_path }) =
        subresources.and_then(|subresources| subresources.scale.as_ref())
    else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    let mut check = |path: FieldPath<'_>, json_path: &str, prefixes: &[&str], why: &str| {
        if let Some(error) = json_path_error(json_path, &path) {
            errors.push(error);
        } else if !prefixes.iter().any(|prefix| json_path.starts_with(prefix)) {
            errors.push(FieldError::invalid(path, json_path, why));
        }
    };
    check(path.child("scale.specReplicasPath"), spec_replicas_path, &[".spec."], "should be a json path under .spec");
    let why = "should be a json path under .status";
    check(path.child("scale.statusReplicasPath"), status_replicas_path, &[".status."], why);
    if let Some(label_selector_path) = label_selector_path.as_deref().filter(|path| !path.is_empty()) {
        let why = "should be a json path under either .spec or .status";
        check(path.child("scale.labelSelectorPath"), label_selector_path, &[".spec.", ".status."], why);
    }
    errors
}

/// The error of a JSON path that is missing or does not begin with a dot.
fn json_path_error(json_path: &str, path: &FieldPath<'_>) -> Option<FieldError> {
    match json_path {
        "" => Some(FieldError::required(path, "")),
        text if text.starts_with('.') => None,
        text => Some(FieldError::invalid(path, text, "must be a simple json path starting with .")),
    }
}

/// The errors of columns. `path` is that of the field.
pub(super) fn column_errors(columns: &[ColumnField], path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (index, column) in columns.iter().enumerate() {
        let path = path.index(index);
        if column.name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        }
        let why = || format!("must be one of {}", COLUMN_TYPES.join(","));
        match &*column.column_type {
            "" => errors.push(FieldError::required(path.child("type"), why())),
            column_type if COLUMN_TYPES.contains(&column_type) => {}
            column_type => errors.push(FieldError::invalid(path.child("type"), column_type, why())),
        }
        if !column.format.is_empty() && !COLUMN_FORMATS.contains(&&*column.format) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(FieldError::invalid(path.child("format"), &column.format, why));
        }
        errors.extend(json_path_error(&column.json_path, &path.child("JSONPath")));
    }
    errors
}
