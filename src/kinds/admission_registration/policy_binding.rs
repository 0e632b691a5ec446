//! MutatingAdmissionPolicyBindings and ValidatingAdmissionPolicyBindings.

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_subdomain, check_path_segment};
use serde_json::Value;

use super::match_rules::{match_resource_errors, mutated_operation_errors};
use super::registration_rules;
use crate::kinds::KindRules;
use crate::kinds::cells::{CellPrinter, text_at};
use crate::kinds::field_rules::{label_selector_errors, required_text_errors, selector_struct_text, typed_text};
use crate::kinds::validation::{ValidationInput, invalid_for, text, texts};

pub(super) static VALIDATING_RULES: KindRules = KindRules {
    validate: |input| validate_binding(input, false),
    cells: print_binding,
    ..registration_rules("validatingadmissionpolicybindings", &["spec"])
};

pub(super) static MUTATING_RULES: KindRules = KindRules {
    validate: |input| validate_binding(input, true),
    cells: print_binding,
    ..registration_rules("mutatingadmissionpolicybindings", &["spec"])
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Validates a binding.
fn validate_binding(input: &ValidationInput<'_>, is_mutating: bool) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = input.generic_metadata_errors();
    errors.extend(required_text_errors(SPEC.child("policyName"), text(spec, "policyName"), check_dns1123_subdomain));
    if !spec["paramRef"].is_null() {
        errors.append(param_errors(&spec["paramRef"], &SPEC.child("paramRef")));
    }
    let (resources, path) = (&spec["matchResources"], SPEC.child("matchResources"));
    errors.append(match_resource_errors(resources, &path));
    if is_mutating {
        errors.extend(mutated_operation_errors(resources, &path));
    } else {
        errors.append(action_errors(spec));
    }
    errors
}

/// Errors of a reference to parameters (`validateParamRef`).
fn param_errors(reference: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const ACTIONS: [&str; 2] = ["Deny", "Allow"];
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let mut errors = FieldErrors::new();
    let (name, selector) = (text(reference, "name"), &reference["selector"]);
    let has_both = !name.is_empty() && !selector.is_null();
    errors.extend(invalid_for(path.child("name"), name, check_path_segment(name)));
    errors.extend(has_both.then(|| FieldError::forbidden(path.child("name"), EXCLUSIVE)));
    errors.append(label_selector_errors(selector, false, &path.child("selector")));
    errors.extend(has_both.then(|| FieldError::forbidden(path.child("selector"), EXCLUSIVE)));
    if name.is_empty() && selector.is_null() {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    let (action, action_path) = (text(reference, "parameterNotFoundAction"), path.child("parameterNotFoundAction"));
    if action.is_empty() {
        errors.push(FieldError::required(action_path, ""));
    } else if !ACTIONS.contains(&action) {
        errors.push(FieldError::not_supported(action_path, typed_text(action), &ACTIONS));
    }
    errors
}

/// Errors of what follows a failed validation (`validateValidationActions`).
fn action_errors(spec: &Value) -> FieldErrors {
    const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
    let path = SPEC.child("validationActions");
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, action) in texts(spec, "validationActions").into_iter().enumerate() {
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(path.index(index), typed_text(action), &ACTIONS));
        }
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(path.index(index), typed_text(action)));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                   response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, BadValue::from(&spec["validationActions"]), why));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
    errors
}

fn print_binding(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let reference = object.pointer("/spec/paramRef").unwrap_or(&Value::Null);
    let parameters = match (text(reference, "name"), text(reference, "namespace"), &reference["selector"]) {
        ("", _, selector @ Value::Object(_)) => selector_struct_text(selector),
        ("", _, _) => "<unset>".to_owned(),
        (name, "", _) => format!("*/{name}"),
        (name, namespace, _) => format!("{namespace}/{name}"),
    };
    vec![printer.name(), text_at(object, "/spec/policyName").into(), parameters.into(), printer.age()]
}
