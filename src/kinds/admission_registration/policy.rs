//! MutatingAdmissionPolicies and ValidatingAdmissionPolicies.

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::json_path::JsonPath;
use kubeapi::names::{check_dns1035_label, check_dns1123_subdomain, check_qualified_name};
use serde_json::Value;

use super::match_rules::{
    FAILURE_POLICIES, REINVOCATION_POLICIES, match_condition_errors, match_resource_errors, mutated_operation_errors,
};
use super::registration_rules;
use crate::kinds::KindRules;
use crate::kinds::cells::{CellPrinter, items_at, text_at};
use crate::kinds::field_rules::{condition_errors, enum_error, is_same, parse_group_version, typed_text};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text};

pub(super) static VALIDATING_RULES: KindRules = KindRules {
    validate: |input| match input.subresource {
        "status" => status_errors(input.field("status")),
        _ => validate_validating_policy(input),
    },
    cells: |printer| print_policy(printer, "/spec/validations"),
    ..registration_rules("validatingadmissionpolicies", &["spec"])
};

pub(super) static MUTATING_RULES: KindRules = KindRules {
    validate: validate_mutating_policy,
    cells: |printer| print_policy(printer, "/spec/mutations"),
    ..registration_rules("mutatingadmissionpolicies", &["spec"])
};

const MAX_AUDIT_ANNOTATIONS: usize = 20;
const MAX_VALUE_EXPRESSION_BYTES: usize = 5 << 10;

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Errors of the fields that both kinds have before `variables`.
fn common_errors(input: &ValidationInput<'_>, is_mutating: bool) -> FieldErrors {
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let mut errors = input.generic_metadata_errors();
    if spec["failurePolicy"].is_null() {
        errors.push(FieldError::required(SPEC.child("failurePolicy"), ""));
    }
    errors.extend(enum_error(SPEC.child("failurePolicy"), &spec["failurePolicy"], &FAILURE_POLICIES));
    if !spec["paramKind"].is_null() {
        errors.append(param_kind_errors(&spec["paramKind"], &SPEC.child("paramKind")));
    }
    let (constraints, path) = (&spec["matchConstraints"], SPEC.child("matchConstraints"));
    if constraints.is_null() {
        errors.push(FieldError::required(path, ""));
    } else {
        errors.append(match_resource_errors(constraints, &path));
        if items(constraints, "resourceRules").is_empty() {
            errors.push(FieldError::required(path.child("resourceRules"), ""));
        }
        if is_mutating {
            errors.extend(mutated_operation_errors(constraints, &path));
        }
    }
    let is_unchanged = |field: &str| is_same(&spec[field], &old_spec[field]);
    if input.old.is_none() || !is_unchanged("paramKind") || !is_unchanged("matchConditions") {
        let conditions = items(spec, "matchConditions");
        errors.append(match_condition_errors(conditions, &SPEC.child("matchConditions")));
    }
    for (index, variable) in items(spec, "variables").iter().enumerate() {
        errors.append(variable_errors(variable, &SPEC.child("variables").index(index)));
    }
    errors
}

fn param_kind_errors(kind: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (api_version, name) = (text(kind, "apiVersion"), text(kind, "kind"));
    let version_path = path.child("apiVersion");
    match parse_group_version(api_version) {
        _ if api_version.is_empty() => errors.push(FieldError::required(version_path, "")),
        Err(why) => errors.push(FieldError::invalid(version_path, api_version, why)),
        Ok((group, version)) => {
            let sentences = check_dns1123_subdomain(group);
            if !group.is_empty() && !sentences.is_empty() {
                errors.push(FieldError::invalid(version_path, group, sentences.join(",")));
            }
            let sentences = check_dns1035_label(version);
            if version.is_empty() {
                errors.push(FieldError::invalid(version_path, api_version, "version must be specified"));
            } else if !sentences.is_empty() {
                errors.push(FieldError::invalid(version_path, version, sentences.join(",")));
            }
        }
    }
    let sentences = check_dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.push(FieldError::required(path.child("kind"), ""));
    } else if !sentences.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", sentences.join(","));
        errors.push(FieldError::invalid(path.child("kind"), name, why));
    }
    errors
}

fn variable_errors(variable: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let name = text(variable, "name");
    if name.trim().is_empty() {
        errors.push(FieldError::required(path.child("name"), "name is not specified"));
    } else if !is_cel_identifier(name) {
        errors.push(FieldError::invalid(path.child("name"), name, "must be a valid CEL identifier"));
    }
    if text(variable, "expression").trim().is_empty() {
        errors.push(FieldError::required(path.child("expression"), "expression is not specified"));
    }
    errors
}

fn is_cel_identifier(name: &str) -> bool {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !RESERVED.contains(&name)
}

/// Validates a ValidatingAdmissionPolicy.
fn validate_validating_policy(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = common_errors(input, false);
    let spec = input.field("spec");
    let (validations, annotations) = (items(spec, "validations"), items(spec, "auditAnnotations"));
    let annotations_path = SPEC.child("auditAnnotations");
    if validations.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(SPEC.child("validations"), why));
        errors.push(FieldError::required(annotations_path, why));
        return errors;
    }
    for (index, validation) in validations.iter().enumerate() {
        errors.append(validation_errors(validation, &SPEC.child("validations").index(index)));
    }
    if annotations.len() > MAX_AUDIT_ANNOTATIONS {
        let why = format!("must not have more than {MAX_AUDIT_ANNOTATIONS} auditAnnotations");
        errors.push(FieldError::invalid(annotations_path, BadValue::from(&spec["auditAnnotations"]), why));
    }
    let mut keys = HashSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let path = annotations_path.index(index);
        errors.append(audit_annotation_errors(input.metadata().name(), annotation, &path));
        let key = text(annotation, "key");
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(path.child("key"), key));
        }
    }
    errors
}

fn validation_errors(validation: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    let mut errors = FieldErrors::new();
    if text(validation, "expression").trim().is_empty() {
        errors.push(FieldError::required(path.child("expression"), "expression is not specified"));
    }
    for field in ["messageExpression", "message"] {
        let value = text(validation, field);
        if !value.is_empty() && value.trim().is_empty() {
            errors.push(FieldError::invalid(path.child(field), value, "must be non-empty if specified"));
        } else if field == "message" && value.trim().contains(['\n', '\r']) {
            errors.push(FieldError::invalid(path.child(field), value, "must not contain line breaks"));
        }
    }
    errors.extend(enum_error(path.child("reason"), &validation["reason"], &REASONS));
    errors
}

fn audit_annotation_errors(policy: &str, annotation: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let key = text(annotation, "key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(path.child("key"), key, "requires metadata.name be non-empty"));
    } else {
        let whole = format!("{policy}/{key}");
        errors.extend(invalid_for(path.child("key"), &whole, check_qualified_name(&whole)));
    }
    let value_path = path.child("valueExpression");
    match text(annotation, "valueExpression").trim().len() {
        0 => errors.push(FieldError::required(value_path, "valueExpression is not specified")),
        length if length > MAX_VALUE_EXPRESSION_BYTES => {
            let why = format!("must not exceed {MAX_VALUE_EXPRESSION_BYTES} bytes in length");
            errors.push(FieldError::required(value_path, why));
        }
        _ => {}
    }
    errors
}

/// Validates the status of a ValidatingAdmissionPolicy.
fn status_errors(status: &Value) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    let mut errors = FieldErrors::new();
    let path = STATUS.child("typeChecking");
    let path = path.child("expressionWarnings");
    for (index, warning) in items(&status["typeChecking"], "expressionWarnings").iter().enumerate() {
        let path = path.index(index);
        if text(warning, "warning").is_empty() {
            errors.push(FieldError::required(path.child("warning"), ""));
        }
        let reference = text(warning, "fieldRef").trim();
        if reference.is_empty() {
            errors.push(FieldError::required(path.child("fieldRef"), ""));
        } else if let Err(why) = JsonPath::parse(reference) {
            let why = format!("invalid JSONPath: {why}");
            errors.push(FieldError::invalid(path.child("fieldRef"), reference, why));
        }
    }
    errors.append(condition_errors(items(status, "conditions"), &STATUS.child("conditions")));
    errors
}

/// Validates a MutatingAdmissionPolicy.
fn validate_mutating_policy(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = common_errors(input, true);
    let spec = input.field("spec");
    let mutations = items(spec, "mutations");
    if mutations.is_empty() {
        errors.push(FieldError::required(SPEC.child("mutations"), "mutations must contain at least one item"));
    }
    for (index, mutation) in mutations.iter().enumerate() {
        errors.append(mutation_errors(mutation, &SPEC.child("mutations").index(index)));
    }
    let policy = text(spec, "reinvocationPolicy");
    let path = SPEC.child("reinvocationPolicy");
    if policy.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !REINVOCATION_POLICIES.contains(&policy) {
        errors.push(FieldError::not_supported(path, typed_text(policy), &REINVOCATION_POLICIES));
    }
    errors
}

fn mutation_errors(mutation: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const PATCH_TYPES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];
    let patch_type = text(mutation, "patchType");
    let (field, other) = match patch_type {
        "" => return FieldError::required(path.child("patchType"), "").into(),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        _ => {
            let path = path.child("patchType");
            return FieldError::not_supported(path, typed_text(patch_type), &PATCH_TYPES).into();
        }
    };
    let mut errors = FieldErrors::new();
    let patch_path = path.child(field);
    if mutation[field].is_null() {
        errors.push(FieldError::required(patch_path, format!("must be specified when patchType is {patch_type}")));
    } else if text(&mutation[field], "expression").trim().is_empty() {
        errors.push(FieldError::required(patch_path.child("expression"), ""));
    }
    if !mutation[other].is_null() {
        let why = format!("must not be specified when patchType is {patch_type}");
        errors.push(FieldError::invalid(path.child(other), &format!("{{{other}}}"), why));
    }
    errors
}

/// The cells of a policy with the number of what it has in a list.
fn print_policy(printer: &CellPrinter<'_>, list: &str) -> Vec<Value> {
    let object = printer.object;
    let kind = match object.pointer("/spec/paramKind") {
        Some(kind @ Value::Object(_)) => format!("{}/{}", text_at(kind, "/apiVersion"), text_at(kind, "/kind")),
        _ => "<unset>".to_owned(),
    };
    vec![printer.name(), items_at(object, list).len().into(), kind.into(), printer.age()]
}
