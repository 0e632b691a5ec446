//! What webhooks and policies match: rules for requests, selectors, conditions.

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_path_segment, check_qualified_name};
use serde_json::Value;

use crate::kinds::field_rules::{enum_error, label_selector_errors, typed_text};
use crate::kinds::validation::{invalid_for, items, text, texts};

const MAX_MATCH_CONDITIONS: usize = 64;

pub(super) const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
pub(super) const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
pub(super) const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];

/// Errors of a rule for requests (`validateRuleWithOperations`).
pub(super) fn rule_errors(rule: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
    let mut errors = FieldErrors::new();
    let all = |field: &str| BadValue::from(&rule[field]);
    let has_wildcard_and_more = |texts: &[&str]| texts.len() > 1 && texts.contains(&"*");
    let operations = texts(rule, "operations");
    let operations_path = path.child("operations");
    if operations.is_empty() {
        errors.push(FieldError::required(operations_path, ""));
    }
    if has_wildcard_and_more(&operations) {
        let why = "if '*' is present, must not specify other operations";
        errors.push(FieldError::invalid(operations_path, all("operations"), why));
    }
    for (index, operation) in operations.iter().enumerate() {
        if !OPERATIONS.contains(operation) {
            let path = operations_path.index(index);
            errors.push(FieldError::not_supported(path, typed_text(operation), &OPERATIONS));
        }
    }
    for (field, what) in [("apiGroups", "groups"), ("apiVersions", "versions")] {
        let values = texts(rule, field);
        let path = path.child(field);
        if values.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
        if has_wildcard_and_more(&values) {
            let why = format!("if '*' is present, must not specify other API {what}");
            errors.push(FieldError::invalid(path, all(field), why));
        }
        // The core group has an empty name.
        let unnamed = values.iter().enumerate().filter(|(_, value)| field == "apiVersions" && value.is_empty());
        errors.extend(unnamed.map(|(index, _)| FieldError::required(path.index(index), "")));
    }
    errors.append(resource_errors(&rule["resources"], &path.child("resources")));
    errors.extend(enum_error(path.child("scope"), &rule["scope"], &SCOPES));
    errors
}

/// Errors of resources and subresources (`validateResources`).
fn resource_errors(resources: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let names: Vec<&str> = resources.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut errors = FieldErrors::new();
    if names.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut with_all_subresources, mut of_all_resources) = (HashSet::new(), HashSet::new());
    let mut is_last_plain = false;
    for (index, name) in names.iter().enumerate() {
        let path = path.index(index);
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let Some((resource, subresource)) = name.split_once('/') else {
            is_last_plain = *name != "*";
            continue;
        };
        if with_all_subresources.contains(resource) {
            let why = format!("if '{resource}/*' is present, must not specify {name}");
            errors.push(FieldError::invalid(path, *name, why));
        }
        if of_all_resources.contains(subresource) {
            let why = format!("if '*/{subresource}' is present, must not specify {name}");
            errors.push(FieldError::invalid(path, *name, why));
        }
        if subresource == "*" {
            with_all_subresources.insert(resource);
        }
        if resource == "*" {
            of_all_resources.insert(subresource);
        }
    }
    if names.len() > 1 && names.contains(&"*/*") {
        let why = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(path, BadValue::from(resources), why));
    }
    if names.contains(&"*") && is_last_plain {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, BadValue::from(resources), why));
    }
    errors
}

/// Errors of the requests that a policy matches (`validateMatchResources`); none if it has no such field.
pub(super) fn match_resource_errors(resources: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if resources.is_null() {
        return errors;
    }
    if resources["matchPolicy"].is_null() {
        errors.push(FieldError::required(path.child("matchPolicy"), ""));
    }
    errors.extend(enum_error(path.child("matchPolicy"), &resources["matchPolicy"], &MATCH_POLICIES));
    for field in ["namespaceSelector", "objectSelector"] {
        match &resources[field] {
            Value::Null => errors.push(FieldError::required(path.child(field), "")),
            selector => errors.append(label_selector_errors(selector, false, &path.child(field))),
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        let path = path.child(field);
        for (index, rule) in items(resources, field).iter().enumerate() {
            let path = path.index(index);
            errors.append(resource_name_errors(rule, &path.child("resourceNames")));
            errors.append(rule_errors(rule, &path));
        }
    }
    errors
}

fn resource_name_errors(rule: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, name) in texts(rule, "resourceNames").into_iter().enumerate() {
        let path = path.index(index);
        errors.extend(invalid_for(path, name, check_path_segment(name)));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path, name));
        }
    }
    errors
}

/// Errors of operations that cannot be mutated, in the rules of a policy that mutates.
pub(super) fn mutated_operation_errors(resources: &Value, path: &FieldPath<'_>) -> Vec<FieldError> {
    const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    let path = path.child("resourceRules");
    let operations = items(resources, "resourceRules").iter().flat_map(|rule| texts(rule, "operations"));
    let wrong = operations.filter(|operation| !OPERATIONS.contains(operation));
    wrong
        .map(|operation| FieldError::not_supported(path.child("operations"), typed_text(operation), &OPERATIONS))
        .collect()
}

/// Errors of match conditions (`validateMatchConditions`).
pub(super) fn match_condition_errors(conditions: &[Value], path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if conditions.len() > MAX_MATCH_CONDITIONS {
        errors.push(FieldError::too_many(path, conditions.len(), MAX_MATCH_CONDITIONS));
    }
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if text(condition, "expression").trim().is_empty() {
            errors.push(FieldError::required(path.child("expression"), ""));
        }
        let name = text(condition, "name");
        if name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
            continue;
        }
        errors.extend(invalid_for(path.child("name"), name, check_qualified_name(name)));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        }
    }
    errors
}
