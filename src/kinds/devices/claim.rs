//! ResourceClaims and their templates (`validateDeviceClaim`).

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_label_value, check_qualified_name};
use serde_json::Value;

use super::slice::qualified_name_errors;
use super::{MAX_LIST, SPEC, duplicate_errors, list_errors, opaque_errors, selector_errors};
use crate::kinds::cells::integer;
use crate::kinds::field_rules::{IMMUTABLE, is_same, required_text_errors, typed_text};
use crate::kinds::internal_json::internal_value;
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};

const MAX_ALTERNATIVES: usize = 8;

/// Requests of a claim by name, with the names of their alternatives.
pub(super) type RequestNames<'v> = HashMap<&'v str, HashSet<&'v str>>;

/// Validates a ResourceClaim, whose specification does not change.
pub(super) fn validate_claim(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_errors();
    if input.old.is_none() {
        errors.append(claim_errors(input.field("spec"), &SPEC));
        return errors;
    }
    errors.append(input.metadata_update_errors());
    errors.extend(spec_change_error(input, "resource.ResourceClaimSpec"));
    errors
}

fn spec_change_error(input: &ValidationInput<'_>, shape: &str) -> Option<FieldError> {
    let spec = input.field("spec");
    let is_changed = input.old.is_some() && !is_same(spec, input.old_field("spec"));
    is_changed.then(|| FieldError::invalid(SPEC, internal_value(shape, spec), IMMUTABLE))
}

/// Validates a ResourceClaimTemplate. Unlike that of a claim, a new specification is validated again.
pub(super) fn validate_template(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = input.metadata_errors();
    errors.append(claim_errors(&spec["spec"], &SPEC.child("spec")));
    errors.append(input.metadata_update_errors());
    errors.extend(spec_change_error(input, "resource.ResourceClaimTemplateSpec"));
    errors
}

/// The requests of a claim.
pub(super) fn request_names(devices: &Value) -> RequestNames<'_> {
    let names = items(devices, "requests").iter().map(|request| {
        let alternatives = items(request, "firstAvailable").iter().map(|request| text(request, "name"));
        (text(request, "name"), alternatives.collect())
    });
    names.collect()
}

/// Errors of the specification of a claim (`validateDeviceClaim`).
fn claim_errors(spec: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (devices, path) = (&spec["devices"], path.child("devices"));
    let (requests, names) = (items(devices, "requests"), request_names(devices));
    let requests_path = path.child("requests");
    let mut errors = list_errors(requests, MAX_LIST, &requests_path, request_errors);
    if requests.len() <= MAX_LIST {
        errors.extend(duplicate_errors(requests.iter().map(|request| text(request, "name")), &requests_path));
    }
    let constraints = items(devices, "constraints");
    errors.append(list_errors(constraints, MAX_LIST, &path.child("constraints"), |constraint, path| {
        let mut errors = reference_errors(constraint, &names, path);
        let attribute = |field| constraint[field].as_str().map(|name| (path.child(field), name));
        match attribute("matchAttribute").or_else(|| attribute("distinctAttribute")) {
            Some((path, name)) => errors.append(full_name_errors(name, &path)),
            None => {
                let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields \
                           are set";
                errors.push(FieldError::required(path, why));
            }
        }
        errors
    }));
    errors.append(list_errors(items(devices, "config"), MAX_LIST, &path.child("config"), |config, path| {
        let mut errors = reference_errors(config, &names, path);
        errors.append(opaque_errors(config, false, path));
        errors
    }));
    errors
}

/// Errors of the name of an attribute with its domain.
fn full_name_errors(name: &str, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = qualified_name_errors(name, path);
    if !name.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(FieldError::invalid(path, typed_text(name), why));
    }
    errors
}

/// Errors of the names of requests that a constraint or configuration is about.
pub(super) fn reference_errors(of: &Value, names: &RequestNames<'_>, path: &FieldPath<'_>) -> FieldErrors {
    let path = path.child("requests");
    let references = items(of, "requests");
    let mut errors = list_errors(references, MAX_LIST, &path, |name, path| {
        request_reference_errors(name.as_str().unwrap_or_default(), names, path)
    });
    if references.len() <= MAX_LIST {
        errors.extend(duplicate_errors(texts(of, "requests").into_iter(), &path));
    }
    errors
}

/// Errors of the name of a request, or of one of its alternatives (`validateRequestNameRef`).
pub(super) fn request_reference_errors(name: &str, names: &RequestNames<'_>, path: &FieldPath<'_>) -> FieldErrors {
    let why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let mut errors = FieldErrors::new();
    let (request, alternative) = match name.split_once('/') {
        None => (name, None),
        Some((_, rest)) if rest.contains('/') => return FieldError::invalid(path, name, why).into(),
        Some((request, alternative)) => (request, Some(alternative)),
    };
    for part in [Some(request), alternative].into_iter().flatten() {
        errors.extend(invalid_for(*path, part, check_dns1123_label(part)));
    }
    let found = names.get(request);
    let is_known = found.is_some_and(|of| alternative.is_none_or(|alternative| of.contains(alternative)));
    if !is_known {
        errors.push(FieldError::invalid(path, name, why));
    }
    errors
}

/// Errors of a request: one for devices exactly, or one of several alternatives.
fn request_errors(request: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let name = text(request, "name");
    let mut errors: FieldErrors = invalid_for(path.child("name"), name, check_dns1123_label(name)).collect();
    let alternatives = items(request, "firstAvailable");
    match (request["exactly"].is_null(), alternatives.is_empty()) {
        (true, true) => {
            errors.push(FieldError::required(path, "exactly one of `exactly` or `firstAvailable` is required"));
        }
        (false, false) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(path, BadValue::null(), why));
        }
        (false, true) => errors.append(device_request_errors(&request["exactly"], &path.child("exactly"))),
        (true, false) => {
            let path = path.child("firstAvailable");
            errors.append(list_errors(alternatives, MAX_ALTERNATIVES, &path, |request, path| {
                let name = text(request, "name");
                let mut errors: FieldErrors =
                    invalid_for(path.child("name"), name, check_dns1123_label(name)).collect();
                errors.append(device_request_errors(request, path));
                errors
            }));
            if alternatives.len() <= MAX_ALTERNATIVES {
                errors.extend(duplicate_errors(alternatives.iter().map(|request| text(request, "name")), &path));
            }
        }
    }
    errors
}

fn device_request_errors(request: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let class = text(request, "deviceClassName");
    errors.extend(required_text_errors(path.child("deviceClassName"), class, check_dns1123_subdomain));
    errors.append(list_errors(items(request, "selectors"), MAX_LIST, &path.child("selectors"), selector_errors));
    let (mode, count) = (text(request, "allocationMode"), integer(request, "count"));
    match mode {
        "All" if count != 0 => {
            let why = "must not be specified when allocationMode is 'All'";
            errors.push(FieldError::invalid(path.child("count"), count, why));
        }
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(path.child("count"), count, "must be greater than zero"));
        }
        "All" | "ExactCount" => {}
        other => {
            let supported = ["All", "ExactCount"];
            errors.push(FieldError::not_supported(path.child("allocationMode"), typed_text(other), &supported));
        }
    }
    for (index, toleration) in items(request, "tolerations").iter().enumerate() {
        errors.append(toleration_errors(toleration, &path.child("tolerations").index(index)));
    }
    errors
}

fn toleration_errors(toleration: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];
    let mut errors = FieldErrors::new();
    let (key, value, effect) = (text(toleration, "key"), text(toleration, "value"), text(toleration, "effect"));
    if !key.is_empty() {
        errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
    }
    match text(toleration, "operator") {
        "Exists" if value.is_empty() => {}
        "Exists" => {
            errors.push(FieldError::invalid(path.child("value"), value, "must be empty for operator `Exists`"));
        }
        "Equal" => errors.extend(invalid_for(path.child("value"), value, check_label_value(value))),
        "" => errors.push(FieldError::required(path.child("operator"), "")),
        other => {
            let supported = ["Equal", "Exists"];
            errors.push(FieldError::not_supported(path.child("operator"), typed_text(other), &supported));
        }
    }
    if !effect.is_empty() && !EFFECTS.contains(&effect) {
        errors.push(FieldError::not_supported(path.child("effect"), typed_text(effect), &EFFECTS));
    }
    errors
}
