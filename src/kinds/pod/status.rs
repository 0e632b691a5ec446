//! Status of Pods, as kubelets and schedulers write it (`ValidatePodStatusUpdate`).

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_ip, ip_warning, is_ipv6};
use kubeapi::names::{check_dns1123_subdomain, check_qualified_name};
use serde_json::Value;

use super::annotations::{check_annotation_changes, check_pod_annotations};
use crate::kinds::internal_json::internal_value;
use crate::kinds::validation::{METADATA, ValidationInput, invalid_for, items, text};
use crate::kinds::{Object, ObjectUpdate};

const STATUS: FieldPath<'static> = FieldPath::root("status");
/// Conditions that Kubernetes itself writes.
const SYSTEM_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];

/// Keeps what a write of the status cannot change or leaves out.
pub(super) fn keep_pod_status(update: &ObjectUpdate<'_>, object: &mut Object) {
    let empty = Value::Null;
    let (old_metadata, old_status) =
        (update.old.get("metadata").unwrap_or(&empty), update.old.get("status").unwrap_or(&empty));
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        match &old_metadata["ownerReferences"] {
            Value::Null => drop(metadata.remove("ownerReferences")),
            owners => drop(metadata.insert("ownerReferences".to_owned(), owners.clone())),
        }
    }
    let Some(Value::Object(status)) = object.get_mut("status") else { return };
    for field in ["qosClass", "observedGeneration"] {
        let is_unset = status.get(field).is_none_or(|value| value.is_null() || *value == "" || *value == 0);
        if is_unset && !old_status[field].is_null() {
            status.insert(field.to_owned(), old_status[field].clone());
        }
    }
    // Of equal types, in order.
    let mut generations: HashMap<&str, Vec<&Value>> = HashMap::new();
    for condition in items(old_status, "conditions").iter().rev() {
        generations.entry(text(condition, "type")).or_default().push(&condition["observedGeneration"]);
    }
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let old = generations.get_mut(text(condition, "type")).and_then(Vec::pop).unwrap_or(&empty);
        let is_unset = condition["observedGeneration"].as_i64().unwrap_or_default() == 0;
        if is_unset && let (Value::Object(condition), false) = (condition, old.is_null()) {
            condition.insert("observedGeneration".to_owned(), old.clone());
        }
    }
}

/// Errors of a written status.
pub(super) fn check_pod_status(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    let annotations = METADATA.child("annotations");
    let (metadata, spec) = (input.field("metadata"), input.field("spec"));
    check_annotation_changes(metadata, input.old_field("metadata"), &annotations, &mut errors);
    check_pod_annotations(metadata, spec, true, &annotations, &mut errors);
    let (status, old) = (input.field("status"), input.old_field("status"));
    check_conditions(items(status, "conditions"), &mut errors);
    let (nominated, old_nominated) = (text(status, "nominatedNodeName"), text(old, "nominatedNodeName"));
    if !nominated.is_empty() && nominated != old_nominated {
        let path = STATUS.child("nominatedNodeName");
        errors.extend(invalid_for(path, nominated, check_dns1123_subdomain(nominated)));
        if !text(input.old_field("spec"), "nodeName").is_empty() {
            errors.push(FieldError::forbidden(path, "may not be set on pods that are already bound to a node"));
        }
    }
    if let Some(generation) = status["observedGeneration"].as_i64().filter(|generation| *generation < 0) {
        let why = "must be a non-negative integer";
        errors.push(FieldError::invalid(STATUS.child("observedGeneration"), generation, why));
    }
    if text(status, "qosClass") != text(old, "qosClass") {
        errors.push(FieldError::invalid(STATUS.child("qosClass"), text(status, "qosClass"), "field is immutable"));
    }
    for (field, containers) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ] {
        check_restarts((status, old), field, (spec, containers), &mut errors);
    }
    check_addresses((status, old), "podIPs", "core.PodIP", &mut errors);
    let host_addresses = items(status, "hostIPs");
    if let Some(first) = host_addresses.first()
        && text(first, "ip") != text(status, "hostIP")
    {
        let path = STATUS.child("hostIPs");
        let path = path.index(0);
        errors.push(FieldError::invalid(path.child("ip"), text(first, "ip"), "must be equal to `hostIP`"));
    }
    check_addresses((status, old), "hostIPs", "core.HostIP", &mut errors);
    errors
}

fn check_conditions(conditions: &[Value], errors: &mut FieldErrors) {
    let path = STATUS.child("conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if let Some(generation) = condition["observedGeneration"].as_i64().filter(|generation| *generation < 0) {
            let why = "must be a non-negative integer";
            errors.push(FieldError::invalid(path.child("observedGeneration"), generation, why));
        }
        let condition_type = text(condition, "type");
        if !SYSTEM_CONDITIONS.contains(&condition_type) {
            errors.extend(invalid_for(path.child("Type"), condition_type, check_qualified_name(condition_type)));
        }
    }
}

/// Errors of containers that have ended and run again, though they may not.
fn check_restarts(
    (status, old): (&Value, &Value),
    field: &str,
    (spec, containers): (&Value, &str),
    errors: &mut FieldErrors,
) {
    let path = STATUS.child(field);
    // Of equal names, the first.
    let mut new: HashMap<&str, &Value> = HashMap::new();
    for status in items(status, field).iter().rev() {
        new.insert(text(status, "name"), status);
    }
    let specs: HashMap<&str, &Value> =
        items(spec, containers).iter().rev().map(|container| (text(container, "name"), container)).collect();
    for (index, old) in items(old, field).iter().enumerate() {
        let ended = &old["state"]["terminated"];
        let Some(new) = new.get(text(old, "name")) else { continue };
        if ended.is_null() || !new["state"]["terminated"].is_null() {
            continue;
        }
        let code = ended["exitCode"].as_i64().unwrap_or_default();
        let may_restart = specs.get(text(old, "name")).is_some_and(|container| may_restart(container, spec, code));
        if !may_restart {
            let why = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(path.index(index).child("state"), why));
        }
    }
}

/// Whether a container runs again after it ended (`ContainerShouldRestart`).
fn may_restart(container: &Value, spec: &Value, code: i64) -> bool {
    for rule in items(container, "restartPolicyRules") {
        let codes = &rule["exitCodes"];
        let has_code = items(codes, "values").iter().any(|value| value.as_i64() == Some(code));
        let is_met = match text(codes, "operator") {
            "In" => has_code,
            "NotIn" => !has_code,
            _ => false,
        };
        if is_met {
            return true;
        }
    }
    let policy = container["restartPolicy"].as_str().unwrap_or_else(|| text(spec, "restartPolicy"));
    match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

/// Errors of addresses: at most one of each family.
fn check_addresses((status, old): (&Value, &Value), field: &str, shape: &str, errors: &mut FieldErrors) {
    let path = STATUS.child(field);
    let addresses: Vec<&str> = items(status, field).iter().map(|address| text(address, "ip")).collect();
    let known: HashSet<&str> = items(old, field).iter().map(|address| text(address, "ip")).collect();
    for (index, address) in addresses.iter().enumerate().filter(|(_, address)| !known.contains(*address)) {
        errors.extend(check_ip(&path.index(index), address));
    }
    if addresses.len() < 2 {
        return;
    }
    let is_address = |address: &&&str| check_ip(&path, address).is_empty();
    let invalid = addresses.iter().enumerate().find(|(_, address)| !is_address(address));
    if let Some((index, address)) = invalid {
        let why = format!("failed to check for dual stack with error:invalid IP[{index}]: {address}");
        errors.push(FieldError::internal(path, why));
    }
    let sixes = addresses.iter().filter(|address| is_ipv6(address)).count();
    let is_dual = invalid.is_none() && sixes > 0 && sixes < addresses.len();
    if !is_dual || addresses.len() > 2 {
        let shown = internal_value(&format!("[]{shape}"), &status[field]);
        errors.push(FieldError::invalid(path, shown, "may specify no more than one IP for each IP family"));
    }
}

/// Warnings about addresses that are not canonical.
pub(super) fn pod_status_warnings(status: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for field in ["podIPs", "hostIPs"] {
        let path = STATUS.child(field);
        for (index, address) in items(status, field).iter().enumerate() {
            warnings.extend(ip_warning(&path.index(index).child("ip"), text(address, "ip")));
        }
    }
    warnings
}
