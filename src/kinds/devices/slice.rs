//! ResourceSlices: the devices of a driver, where they are, and what they share (`validateResourceSliceSpec`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{
    check_dns1123_label, check_dns1123_subdomain, check_label_value, check_qualified_name, pattern_error,
};
use serde_json::{Map, Value};

use super::capacity::request_policy_errors;
use super::{SPEC, duplicate_errors, list_errors, pool_name_errors};
use crate::kinds::cells::integer;
use crate::kinds::field_rules::{immutable_error, is_same, typed_text};
use crate::kinds::internal_json::internal_value;
use crate::kinds::node_selector::node_selector_errors;
use crate::kinds::storage::driver_name_errors;
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};
use crate::kinds::{Object, ObjectUpdate, WrittenObject};
use crate::resources::ServedKind;

const MAX_DEVICES: usize = 128;
/// Limit of devices with taints or counters.
const MAX_ADVANCED_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
const MAX_CONSUMED_COUNTER_SETS: usize = 2;
const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
const MAX_ATTRIBUTE_VALUES: usize = 48;
const MAX_ATTRIBUTE_BYTES: usize = 64;
const MAX_IDENTIFIER_BYTES: usize = 32;
/// Longest name of an attribute with its domain, in paths of errors.
const MAX_QUALIFIED_NAME_BYTES: usize = 63 + 1 + MAX_IDENTIFIER_BYTES;
const MAX_TAINTS: usize = 16;
const MAX_BINDING_CONDITIONS: usize = 4;

/// Fields of a new slice that clients cannot choose.
pub(super) fn prepare_new(_: &ServedKind, object: &mut Object) {
    drop_disabled_fields(object);
}

/// Fields that a write cannot set.
pub(super) fn prepare_replacement(_: &ObjectUpdate<'_>, object: &mut Object) {
    drop_disabled_fields(object);
}

/// Drops the fields of features that are off by default (`DRANodeAllocatableResources`, `DRAListTypeAttributes`).
fn drop_disabled_fields(object: &mut Object) {
    let devices = object.get_mut("spec").and_then(|spec| spec.get_mut("devices")).and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten().filter_map(Value::as_object_mut) {
        device.remove("nodeAllocatableResourceMappings");
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut);
        for attribute in attributes.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
            attribute.retain(|field, _| !["bools", "ints", "strings", "versions"].contains(&field.as_str()));
        }
    }
}

/// Warns of the name of a driver that is not lowercase.
pub(super) fn warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let driver = text(written.field("spec"), "driver");
    let is_lowercase = driver.to_lowercase() == driver;
    let warning = || format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters");
    (!is_lowercase).then(warning).into_iter().collect()
}

/// Validates a ResourceSlice.
pub(super) fn validate(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let spec = input.field("spec");
    errors.extend(driver_name_errors(SPEC.child("driver"), text(spec, "driver")));
    errors.append(pool_errors(&spec["pool"], &SPEC.child("pool")));
    if input.old.is_some() {
        let (old, pool_path) = (input.old_field("spec"), SPEC.child("pool"));
        errors.extend(immutable_error(pool_path.child("name"), &spec["pool"]["name"], &old["pool"]["name"]));
        for field in ["driver", "nodeName"] {
            errors.extend(immutable_error(SPEC.child(field), &spec[field], &old[field]));
        }
    }
    errors.append(placement_errors(spec));
    if !spec["sharedCounters"].is_null() && !spec["devices"].is_null() {
        errors.push(FieldError::invalid(SPEC, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    errors.append(devices_errors(spec, input.old_field("spec")));
    let (sets, path) = (items(spec, "sharedCounters"), SPEC.child("sharedCounters"));
    errors.append(list_errors(sets, MAX_COUNTER_SETS, &path, |set, path| {
        let mut errors = counter_name_errors(path.child("name"), text(set, "name"));
        errors.append(counters_errors(set, path));
        errors
    }));
    if sets.len() <= MAX_COUNTER_SETS {
        errors.extend(duplicate_errors(sets.iter().map(|set| text(set, "name")), &path));
    }
    errors
}

fn pool_errors(pool: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = pool_name_errors(path.child("name"), text(pool, "name"));
    let (count, generation) = (integer(pool, "resourceSliceCount"), integer(pool, "generation"));
    if count <= 0 {
        errors.push(FieldError::invalid(path.child("resourceSliceCount"), count, "must be greater than zero"));
    }
    if generation < 0 {
        let why = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(path.child("generation"), generation, why));
    }
    errors
}

/// A field that must be true if it is present: whether it is, or its error.
fn flag(of: &Value, field: &'static str, path: &FieldPath<'_>) -> Result<bool, FieldError> {
    match of[field].as_bool() {
        None => Ok(false),
        Some(true) => Ok(true),
        Some(false) => Err(FieldError::invalid(path.child(field), false, "must be either unset or set to true")),
    }
}

/// Errors of the nodes of a slice, which it names in one way.
fn placement_errors(spec: &Value) -> FieldErrors {
    let (mut errors, mut found) = (FieldErrors::new(), Vec::new());
    if let Some(name) = spec["nodeName"].as_str() {
        let path = SPEC.child("nodeName");
        if name.is_empty() {
            errors.push(FieldError::invalid(path, name, "must be either unset or set to a non-empty string"));
        } else {
            found.push("`nodeName`");
            errors.extend(invalid_for(path, name, check_dns1123_subdomain(name)));
        }
    }
    let selector = &spec["nodeSelector"];
    if !selector.is_null() {
        found.push("`nodeSelector`");
        let path = SPEC.child("nodeSelector");
        errors.append(node_selector_errors(selector, false, &path));
        if items(selector, "nodeSelectorTerms").len() != 1 {
            let terms = internal_value("[]core.NodeSelectorTerm", &selector["nodeSelectorTerms"]);
            let why = "must have exactly one node selector term";
            errors.push(FieldError::invalid(path.child("nodeSelectorTerms"), terms, why));
        }
    }
    for (field, name) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")] {
        match flag(spec, field, &SPEC) {
            Ok(is_set) => found.extend(is_set.then_some(name)),
            Err(error) => errors.push(error),
        }
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match found.len() {
        0 => errors.push(FieldError::required(SPEC, why)),
        1 => {}
        _ => {
            let why = format!("{why}, but multiple fields are set");
            errors.push(FieldError::invalid(SPEC, format!("{{{}}}", found.join(", ")).as_str(), why));
        }
    }
    errors
}

fn devices_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    let (devices, path) = (items(spec, "devices"), SPEC.child("devices"));
    let is_advanced =
        |device: &Value| !items(device, "taints").is_empty() || !items(device, "consumesCounters").is_empty();
    let limit = if devices.iter().any(is_advanced) { MAX_ADVANCED_DEVICES } else { MAX_DEVICES };
    let selects_per_device = spec["perDeviceNodeSelection"] == true;
    let old_devices = items(old_spec, "devices");
    let mut errors = list_errors(devices, limit, &path, |device, path| {
        let name = text(device, "name");
        let old = old_devices.iter().find(|old| text(old, "name") == name);
        device_errors(device, old, selects_per_device, path)
    });
    if devices.len() <= limit {
        errors.extend(duplicate_errors(devices.iter().map(|device| text(device, "name")), &path));
    }
    errors
}

/// Fields of an object by name; empty if it is none.
fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// Errors of a device (`validateDevice`).
fn device_errors(device: &Value, old: Option<&Value>, selects_nodes: bool, path: &FieldPath<'_>) -> FieldErrors {
    let name = text(device, "name");
    let mut errors: FieldErrors = invalid_for(path.child("name"), name, check_dns1123_label(name)).collect();
    let (attributes, capacity) = (&device["attributes"], &device["capacity"]);
    let attribute_count = entries(attributes).count();
    let count = attribute_count + entries(capacity).count();
    if count > MAX_ATTRIBUTES_AND_CAPACITIES {
        let why =
            format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}");
        errors.push(FieldError::invalid(path, count, why));
    }
    if attribute_count > MAX_ATTRIBUTE_VALUES {
        let why = format!("the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}");
        errors.push(FieldError::invalid(path, attribute_count, why));
    }
    for (name, attribute) in entries(attributes) {
        let path = path.child("attributes");
        errors.append(qualified_name_errors(name, &path));
        errors.append(attribute_errors(attribute, &path.key(&shortened(name, MAX_QUALIFIED_NAME_BYTES))));
    }
    for (name, one) in entries(capacity) {
        let path = path.child("capacity");
        errors.append(qualified_name_errors(name, &path));
        let name = shortened(name, MAX_QUALIFIED_NAME_BYTES);
        let path = path.key(&name);
        let path = path.child("requestPolicy");
        match (&one["requestPolicy"], device["allowMultipleAllocations"] == true) {
            (Value::Null, _) => {}
            (policy, true) => errors.append(request_policy_errors(text(one, "value"), policy, &path)),
            (_, false) => errors.push(FieldError::forbidden(path, "allowMultipleAllocations must be true")),
        }
    }
    let taints = items(device, "taints");
    if old.is_none_or(|old| !is_same(&old["taints"], &device["taints"])) {
        errors.append(list_errors(taints, MAX_TAINTS, &path.child("taints"), taint_errors));
    }
    errors.append(consumption_errors(device, path));
    errors.append(if selects_nodes {
        device_placement_errors(device, path)
    } else {
        misplacement_errors(device, path)
    });
    errors.append(binding_errors(device, path));
    errors
}

/// Errors of the nodes of a device, if each device of the slice has its own.
fn device_placement_errors(device: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (mut errors, mut found) = (FieldErrors::new(), Vec::new());
    match device["nodeName"].as_str() {
        Some("") => errors.push(FieldError::invalid(path.child("nodeName"), "", "must not be empty")),
        Some(name) => {
            found.push("`nodeName`");
            errors.extend(invalid_for(path.child("nodeName"), name, check_dns1123_subdomain(name)));
        }
        None => {}
    }
    if !device["nodeSelector"].is_null() {
        found.push("`nodeSelector`");
        errors.append(node_selector_errors(&device["nodeSelector"], false, &path.child("nodeSelector")));
    }
    match flag(device, "allNodes", path) {
        Ok(is_set) => found.extend(is_set.then_some("`allNodes`")),
        Err(error) => errors.push(error),
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set \
               to true in the ResourceSlice spec";
    match found.len() {
        0 => errors.push(FieldError::required(path, why)),
        1 => {}
        _ => errors.push(FieldError::invalid(path, format!("{{{}}}", found.join(", ")).as_str(), why)),
    }
    errors
}

/// The error of a device with nodes of its own in a slice that has the nodes of all.
fn misplacement_errors(device: &Value, path: &FieldPath<'_>) -> FieldErrors {
    if ["nodeName", "nodeSelector", "allNodes"].iter().all(|field| device[field].is_null()) {
        return FieldErrors::new();
    }
    let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in \
               the ResourceSlice spec";
    FieldError::invalid(path, BadValue::null(), why).into()
}

fn attribute_errors(attribute: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let too_long = |value: &str, path: FieldPath<'_>| {
        (value.len() > MAX_ATTRIBUTE_BYTES).then(|| FieldError::too_long(path, MAX_ATTRIBUTE_BYTES))
    };
    let mut errors = FieldErrors::new();
    if let Some(value) = attribute["string"].as_str() {
        errors.extend(too_long(value, path.child("string")));
    }
    if let Some(value) = attribute["version"].as_str() {
        let path = path.child("version");
        if !is_semantic_version(value) {
            let why = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(FieldError::invalid(path, value, why));
        }
        errors.extend(too_long(value, path));
    }
    let why = "exactly one value must be specified";
    match ["bool", "int", "string", "version"].iter().filter(|field| !attribute[**field].is_null()).count() {
        0 => errors.push(FieldError::invalid(path, "", why)),
        1 => {}
        _ => errors.push(FieldError::invalid(path, internal_value("resource.DeviceAttribute", attribute), why)),
    }
    errors
}

/// Whether a text is a version of semver.org 2.0.0 (`semverRe`).
fn is_semantic_version(version: &str) -> bool {
    let is_number = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let is_word =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_numeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (version, build) = version.split_once('+').map_or((version, None), |(version, build)| (version, Some(build)));
    let (core, release) = version.split_once('-').map_or((version, None), |(core, release)| (core, Some(release)));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && release.is_none_or(|of| of.split('.').all(|part| is_word(part) && (!is_numeric(part) || is_number(part))))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

/// Errors of the name of an attribute or capacity, with or without a domain (`validateQualifiedName`).
pub(super) fn qualified_name_errors(name: &str, path: &FieldPath<'_>) -> FieldErrors {
    let parts: Vec<&str> = name.split('/').collect();
    let mut errors = FieldErrors::new();
    match parts[..] {
        [name] => errors.append(identifier_errors(name, path)),
        [domain, name] => {
            match domain {
                "" => errors.push(FieldError::invalid(path, "", "the domain must not be empty")),
                domain => errors.extend(driver_name_errors(*path, domain)),
            }
            match name {
                "" => errors.push(FieldError::invalid(path, "", "the name must not be empty")),
                name => errors.append(identifier_errors(name, path)),
            }
        }
        // kube-apiserver accepts it.
        _ => {}
    }
    errors
}

fn identifier_errors(identifier: &str, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if identifier.len() > MAX_IDENTIFIER_BYTES {
        errors.push(FieldError::too_long(path, MAX_IDENTIFIER_BYTES));
    }
    let is_valid = !identifier.is_empty()
        && !identifier.starts_with(|first: char| first.is_ascii_digit())
        && identifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_valid {
        let rule = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
                    alphanumeric characters or '_'";
        let why = pattern_error(rule, "[A-Za-z_][A-Za-z0-9_]*", &["my_name", "MY_NAME", "MyName"]);
        errors.push(FieldError::invalid(path, identifier, why));
    }
    errors
}

/// A key in a path, with its middle left out if it is long (`truncateIfTooLong`).
fn shortened(key: &str, limit: usize) -> String {
    if key.len() <= limit {
        return key.to_owned();
    }
    let kept_bytes = limit - 3;
    let (start, end) = (kept_bytes.div_ceil(2), key.len() - kept_bytes / 2);
    let (start, end) = (key.floor_char_boundary(start), key.ceil_char_boundary(end));
    format!("{}...{}", &key[..start], &key[end..])
}

fn counter_name_errors(path: FieldPath<'_>, name: &str) -> FieldErrors {
    if name.is_empty() {
        return FieldError::required(path, "").into();
    }
    invalid_for(path, name, check_dns1123_label(name)).collect()
}

fn counters_errors(of: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (counters, path) = (&of["counters"], path.child("counters"));
    match entries(counters).count() {
        0 => FieldError::required(path, "").into(),
        count if count > MAX_COUNTERS => FieldError::too_many(path, count, MAX_COUNTERS).into(),
        _ => entries(counters).flat_map(|(name, _)| invalid_for(path, name, check_dns1123_label(name))).collect(),
    }
}

fn consumption_errors(device: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (consumed, path) = (items(device, "consumesCounters"), path.child("consumesCounters"));
    let mut errors = list_errors(consumed, MAX_CONSUMED_COUNTER_SETS, &path, |set, path| {
        let mut errors = counter_name_errors(path.child("counterSet"), text(set, "counterSet"));
        errors.append(counters_errors(set, path));
        errors
    });
    if consumed.len() <= MAX_CONSUMED_COUNTER_SETS {
        errors.extend(duplicate_errors(consumed.iter().map(|set| text(set, "counterSet")), &path));
    }
    errors
}

fn taint_errors(taint: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];
    let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
    let mut errors: FieldErrors = invalid_for(path.child("key"), key, check_qualified_name(key)).collect();
    if !value.is_empty() {
        errors.extend(invalid_for(path.child("value"), value, check_label_value(value)));
    }
    match effect {
        "" => errors.push(FieldError::required(path.child("effect"), "")),
        effect if EFFECTS.contains(&effect) => {}
        other => errors.push(FieldError::not_supported(path.child("effect"), typed_text(other), &EFFECTS)),
    }
    errors
}

/// Errors of the conditions of a binding (`validateDeviceBindingParameters`).
pub(super) fn binding_errors(of: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const FIELDS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    let mut errors = FieldErrors::new();
    for field in FIELDS {
        errors.append(list_errors(items(of, field), MAX_BINDING_CONDITIONS, &path.child(field), |name, path| {
            let name = name.as_str().unwrap_or_default();
            invalid_for(*path, name, check_qualified_name(name)).collect()
        }));
    }
    let [conditions, failures] = FIELDS.map(|field| texts(of, field));
    let [path, failure_path] = FIELDS.map(|field| path.child(field));
    errors.extend(duplicate_errors(conditions.iter().copied(), &path));
    let mut seen = HashSet::new();
    for (index, name) in failures.iter().enumerate() {
        let path = failure_path.index(index);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path, *name));
        }
        if conditions.contains(name) {
            let why = "bindingFailureConditions must not overlap with bindingConditions";
            errors.push(FieldError::invalid(path, *name, why));
        }
    }
    match (conditions.is_empty(), failures.is_empty()) {
        (true, false) => {
            let why = "bindingConditions are required to use bindingFailureConditions";
            errors.push(FieldError::invalid(path, BadValue::from(&of[FIELDS[0]]), why));
        }
        (false, true) => {
            let why = "bindingFailureConditions are required to use bindingConditions";
            errors.push(FieldError::invalid(failure_path, BadValue::from(&of[FIELDS[1]]), why));
        }
        _ => {}
    }
    errors
}
