//! Selectors of nodes, and labels of nodes that are deprecated (`ValidateNodeSelector`, `pkg/api/node/util.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_subdomain, check_label_value, check_qualified_name};
use serde_json::Value;

use super::field_rules::typed_text;
use super::validation::{invalid_for, items, text, texts};

const DEPRECATED_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// What is said about a label of nodes that is deprecated (`GetNodeLabelDeprecatedMessage`).
pub(super) fn deprecated_label_text(key: &str) -> Option<&'static str> {
    DEPRECATED_LABELS.iter().find(|(label, _)| *label == key).map(|(_, text)| *text)
}

/// Warnings about the terms of a node selector (`GetWarningsForNodeSelectorTerm`).
pub(super) fn node_selector_warnings(terms: &[Value], path: &FieldPath<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index);
        let path = path.child("matchExpressions");
        for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
            let key = text(expression, "key");
            let warning = |text| format!("{}: {key} is {text}", path.index(index).child("key"));
            warnings.extend(deprecated_label_text(key).map(warning));
        }
    }
    warnings
}

/// Errors of a node selector (`ValidateNodeSelector`).
pub(super) fn node_selector_errors(selector: &Value, allows_any_value: bool, path: &FieldPath<'_>) -> FieldErrors {
    let (terms, path) = (items(selector, "nodeSelectorTerms"), path.child("nodeSelectorTerms"));
    if terms.is_empty() {
        return FieldError::required(path, "must have at least one node selector term").into();
    }
    let mut errors = FieldErrors::new();
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index);
        for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
            let path = path.child("matchExpressions");
            errors.append(expression_errors(expression, allows_any_value, &path.index(index)));
        }
        for (index, expression) in items(term, "matchFields").iter().enumerate() {
            let path = path.child("matchFields");
            errors.append(field_errors(expression, &path.index(index)));
        }
    }
    errors
}

/// Whether a stored selector has a value that is no label's value.
pub(super) fn has_invalid_value(selector: &Value) -> bool {
    let terms = items(selector, "nodeSelectorTerms").iter();
    let mut values =
        terms.flat_map(|term| items(term, "matchExpressions")).flat_map(|expression| texts(expression, "values"));
    values.any(|value| !check_label_value(value).is_empty())
}

fn operator_error(operator: &str, path: &FieldPath<'_>) -> FieldError {
    FieldError::invalid(path.child("operator"), typed_text(operator), "not a valid selector operator")
}

fn expression_errors(expression: &Value, allows_any_value: bool, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (values, values_path) = (texts(expression, "values"), path.child("values"));
    let (key, operator) = (text(expression, "key"), text(expression, "operator"));
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(FieldError::required(values_path, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(values_path, why));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(FieldError::required(values_path, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(operator_error(other, path)),
    }
    errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
    if !allows_any_value {
        for (index, value) in values.iter().enumerate() {
            errors.extend(invalid_for(values_path.index(index), value, check_label_value(value)));
        }
    }
    errors
}

/// Errors of an expression for a field, which can only be the name.
fn field_errors(expression: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (values, values_path) = (texts(expression, "values"), path.child("values"));
    match text(expression, "operator") {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(FieldError::required(values_path, why));
        }
        "In" | "NotIn" => {}
        other => errors.push(operator_error(other, path)),
    }
    let key = text(expression, "key");
    if key != "metadata.name" {
        errors.push(FieldError::invalid(path.child("key"), key, "not a valid field selector key"));
        return errors;
    }
    for (index, value) in values.iter().enumerate() {
        errors.extend(invalid_for(values_path.index(index), value, check_dns1123_subdomain(value)));
    }
    errors
}
