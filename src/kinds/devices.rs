//! Kinds of `resource.k8s.io`: claims of devices, their templates, classes and slices (`pkg/registry/resource`,
//! `pkg/apis/resource/validation`). CEL expressions are not compiled, and the devices of a slice are not validated.

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_label_value, check_qualified_name};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use super::cells::{CellPrinter, integer, items_at, text_at};
use super::field_rules::{IMMUTABLE, is_same, required_text_errors, typed_text};
use super::internal_json::internal_value;
use super::selectable_fields::{SelectableFields, unsupported_with_kind};
use super::validation::{ValidationInput, invalid_for, items, text, texts};
use super::{GenerationRule, KindRules};

/// Their rules.
pub(super) static RULES: [KindRules; 4] = [
    KindRules {
        generation: GenerationRule::SPEC,
        validate: validate_class,
        cells: |printer| vec![printer.name(), printer.age()],
        ..device_rules("deviceclasses")
    },
    KindRules {
        validate: |input| match input.subresource {
            "" => validate_claim(input),
            _ => input.metadata_update_errors(),
        },
        cells: print_claim,
        ..device_rules("resourceclaims")
    },
    KindRules {
        validate: validate_template,
        cells: |printer| vec![printer.name(), printer.age()],
        ..device_rules("resourceclaimtemplates")
    },
    KindRules {
        generation: GenerationRule::SPEC,
        selectable: SelectableFields {
            labels: &["spec.driver", "spec.nodeName"],
            unsupported: unsupported_with_kind,
            ..SelectableFields::NONE
        },
        cells: print_slice,
        ..device_rules("resourceslices")
    },
];

const fn device_rules(plural: &'static str) -> KindRules {
    KindRules { returns_deleted_object: true, ..KindRules::of("resource.k8s.io", plural) }
}

const SPEC: FieldPath<'static> = FieldPath::root("spec");

const MAX_LIST: usize = 32;
const MAX_ALTERNATIVES: usize = 8;
const MAX_EXPRESSION_BYTES: usize = 10 << 10;

/// Requests of a claim by name, with the names of their alternatives.
type RequestNames<'v> = HashMap<&'v str, HashSet<&'v str>>;

/// Errors of the items of a list of bounded length.
fn list_errors(
    list: &[Value],
    limit: usize,
    path: &FieldPath<'_>,
    mut check: impl FnMut(&Value, &FieldPath<'_>) -> FieldErrors,
) -> FieldErrors {
    if list.len() > limit {
        return FieldError::too_many(path, list.len(), limit).into();
    }
    let mut errors = FieldErrors::new();
    for (index, item) in list.iter().enumerate() {
        errors.append(check(item, &path.index(index)));
    }
    errors
}

/// Errors of items whose keys occur before.
fn duplicate_errors<'v>(keys: impl Iterator<Item = &'v str>, path: &FieldPath<'_>) -> Vec<FieldError> {
    let mut seen = HashSet::new();
    let repeated = keys.enumerate().filter(|(_, key)| !seen.insert(*key));
    repeated.map(|(index, key)| FieldError::duplicate(path.index(index), key)).collect()
}

/// Validates a ResourceClaim, whose specification does not change.
fn validate_claim(input: &ValidationInput<'_>) -> FieldErrors {
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
fn validate_template(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = input.metadata_errors();
    errors.append(claim_errors(&spec["spec"], &SPEC.child("spec")));
    errors.append(input.metadata_update_errors());
    errors.extend(spec_change_error(input, "resource.ResourceClaimTemplateSpec"));
    errors
}

/// Errors of the specification of a claim (`validateDeviceClaim`).
fn claim_errors(spec: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (devices, path) = (&spec["devices"], path.child("devices"));
    let requests = items(devices, "requests");
    let names: RequestNames<'_> = requests
        .iter()
        .map(|request| {
            let alternatives = items(request, "firstAvailable").iter().map(|request| text(request, "name"));
            (text(request, "name"), alternatives.collect())
        })
        .collect();
    let requests_path = path.child("requests");
    let mut errors = list_errors(requests, MAX_LIST, &requests_path, request_errors);
    if requests.len() <= MAX_LIST {
        errors.extend(duplicate_errors(requests.iter().map(|request| text(request, "name")), &requests_path));
    }
    let constraints = items(devices, "constraints");
    errors.append(list_errors(constraints, MAX_LIST, &path.child("constraints"), |constraint, path| {
        let mut errors = reference_errors(constraint, &names, path);
        if ["matchAttribute", "distinctAttribute"].into_iter().all(|field| constraint[field].is_null()) {
            let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are \
                       set";
            errors.push(FieldError::required(path, why));
        }
        errors
    }));
    errors.append(list_errors(items(devices, "config"), MAX_LIST, &path.child("config"), |config, path| {
        let mut errors = reference_errors(config, &names, path);
        errors.append(opaque_errors(config, path));
        errors
    }));
    errors
}

/// Errors of the names of requests that a constraint or configuration is about.
fn reference_errors(of: &Value, names: &RequestNames<'_>, path: &FieldPath<'_>) -> FieldErrors {
    let path = path.child("requests");
    let mut errors = list_errors(items(of, "requests"), MAX_LIST, &path, |name, path| {
        let why =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        let name = name.as_str().unwrap_or_default();
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
    });
    errors.extend(duplicate_errors(texts(of, "requests").into_iter(), &path));
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

fn selector_errors(selector: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let path = path.child("cel");
    match &selector["cel"] {
        Value::Null => FieldError::required(path, "").into(),
        cel if text(cel, "expression").len() > MAX_EXPRESSION_BYTES => {
            FieldError::too_long(path.child("expression"), MAX_EXPRESSION_BYTES).into()
        }
        _ => FieldErrors::new(),
    }
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

/// Errors of a configuration for a driver.
fn opaque_errors(config: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (opaque, path) = (&config["opaque"], path.child("opaque"));
    if opaque.is_null() {
        return FieldError::required(path, "").into();
    }
    let (driver, driver_path) = (text(opaque, "driver"), path.child("driver"));
    let mut errors = FieldErrors::new();
    if driver.len() > 63 {
        errors.push(FieldError::too_long(driver_path, 63));
    }
    let lower = |driver: &str| check_dns1123_subdomain(&driver.to_lowercase());
    errors.extend(required_text_errors(driver_path, driver, lower));
    if opaque["parameters"].is_null() {
        errors.push(FieldError::required(path.child("parameters"), ""));
    }
    errors
}

/// Validates a DeviceClass.
fn validate_class(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = input.metadata_errors();
    errors.append(input.metadata_update_errors());
    errors.append(list_errors(items(spec, "selectors"), MAX_LIST, &SPEC.child("selectors"), selector_errors));
    errors.append(list_errors(items(spec, "config"), MAX_LIST, &SPEC.child("config"), opaque_errors));
    errors
}

fn print_claim(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let is_deleted = ObjectMetaView::of(object).deletion_timestamp().is_some();
    let is_allocated = object.pointer("/status/allocation").is_some_and(|allocation| !allocation.is_null());
    let is_reserved = is_allocated && !items_at(object, "/status/reservedFor").is_empty();
    let states = [
        (is_deleted, "deleted"),
        (!is_allocated && !is_deleted, "pending"),
        (is_allocated, "allocated"),
        (is_reserved, "reserved"),
    ];
    let states: Vec<&str> = states.into_iter().filter(|(holds, _)| *holds).map(|(_, state)| state).collect();
    vec![printer.name(), states.join(",").into(), printer.age()]
}

fn print_slice(printer: &CellPrinter<'_>) -> Vec<Value> {
    let cell = |pointer: &str| text_at(printer.object, pointer).into();
    vec![printer.name(), cell("/spec/nodeName"), cell("/spec/driver"), cell("/spec/pool/name"), printer.age()]
}
