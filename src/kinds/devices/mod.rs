//! Kinds of `resource.k8s.io`: claims of devices, their templates, classes and slices (`pkg/registry/resource`,
//! `pkg/apis/resource/validation`). CEL expressions are not compiled.

mod capacity;
mod claim;
mod claim_status;
mod slice;

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use kubeapi::names::{NameRule, check_dns1123_subdomain};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use super::cells::{CellPrinter, items_at, text_at};
use super::field_rules::is_same;
use super::resource_names::is_extended_resource;
use super::selectable_fields::{SelectableFields, unsupported_with_kind};
use super::storage::driver_name_errors;
use super::validation::{ValidationInput, invalid_for, items, text};
use super::{GenerationRule, KindRules};

/// Their rules.
pub(super) static RULES: [KindRules; 4] = [
    KindRules {
        generation: GenerationRule::SPEC,
        name_rule: NameRule::LongName,
        validate: validate_class,
        cells: |printer| vec![printer.name(), printer.age()],
        ..device_rules("deviceclasses")
    },
    KindRules {
        prepare_replacement: claim_status::prepare_replacement,
        validate: |input| match input.subresource {
            "" => claim::validate_claim(input),
            _ => claim_status::validate(input),
        },
        cells: print_claim,
        ..device_rules("resourceclaims")
    },
    KindRules {
        validate: claim::validate_template,
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
        prepare_new: slice::prepare_new,
        prepare_replacement: slice::prepare_replacement,
        validate: slice::validate,
        warnings: slice::warnings,
        cells: print_slice,
        ..device_rules("resourceslices")
    },
];

const fn device_rules(plural: &'static str) -> KindRules {
    KindRules { returns_deleted_object: true, ..KindRules::of("resource.k8s.io", plural) }
}

const SPEC: FieldPath<'static> = FieldPath::root("spec");

const MAX_LIST: usize = 32;
const MAX_EXPRESSION_BYTES: usize = 10 << 10;
/// Longest parameters of a driver, as JSON.
const MAX_PARAMETER_BYTES: usize = 10 << 10;
const MAX_POOL_NAME_BYTES: usize = 253;

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

/// Errors of the name of a pool (`validatePoolName`).
fn pool_name_errors(path: FieldPath<'_>, name: &str) -> FieldErrors {
    if name.is_empty() {
        return FieldError::required(path, "").into();
    }
    let is_long = name.len() > MAX_POOL_NAME_BYTES;
    let too_long = is_long.then(|| FieldError::too_long(path, MAX_POOL_NAME_BYTES));
    let parts = name.split('/').flat_map(|part| invalid_for(path, part, check_dns1123_subdomain(part)));
    too_long.into_iter().chain(parts).collect()
}

/// Errors of the selector of a device.
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

/// Errors of a configuration for a driver. Parameters that were stored may be long.
fn opaque_errors(config: &Value, is_stored: bool, path: &FieldPath<'_>) -> FieldErrors {
    let (opaque, path) = (&config["opaque"], path.child("opaque"));
    if opaque.is_null() {
        return FieldError::required(path, "").into();
    }
    let mut errors: FieldErrors = driver_name_errors(path.child("driver"), text(opaque, "driver")).into();
    errors.extend(parameters_error(&opaque["parameters"], is_stored, path.child("parameters")));
    errors
}

/// The error of a driver's own data (`validateRawExtension`).
fn parameters_error(parameters: &Value, is_stored: bool, path: FieldPath<'_>) -> Option<FieldError> {
    match parameters {
        Value::Null => Some(FieldError::required(path, "")),
        parameters if !is_stored && write_json(parameters).len() > MAX_PARAMETER_BYTES => {
            Some(FieldError::too_long(path, MAX_PARAMETER_BYTES))
        }
        Value::Object(_) => None,
        _ => Some(FieldError::invalid(path, "<value omitted>", "must be a valid JSON object")),
    }
}

/// Validates a DeviceClass.
fn validate_class(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = input.metadata_errors();
    errors.append(input.metadata_update_errors());
    errors.append(list_errors(items(spec, "selectors"), MAX_LIST, &SPEC.child("selectors"), selector_errors));
    let is_stored = input.old.is_some() && is_same(&spec["config"], &input.old_field("spec")["config"]);
    errors.append(list_errors(items(spec, "config"), MAX_LIST, &SPEC.child("config"), |config, path| {
        opaque_errors(config, is_stored, path)
    }));
    let resource = spec["extendedResourceName"].as_str().filter(|name| !is_extended_resource(name));
    errors.extend(resource.map(|name| {
        let why = "must be a valid extended resource name";
        FieldError::invalid(SPEC.child("extendedResourceName"), name, why)
    }));
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
