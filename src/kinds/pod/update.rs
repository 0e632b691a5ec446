//! Changes of Pods: almost nothing of a specification may change (`ValidatePodUpdate`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use serde_json::{Map, Value, json};

use super::containers::check_image_whitespace;
use super::paths::is_set;
use super::scheduling::check_tolerations;
use crate::kinds::field_rules::is_same;
use crate::kinds::internal_json::internal_diff;
use crate::kinds::validation::{items, text};

const SPEC: FieldPath<'static> = FieldPath::root("spec");
const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Errors of what changed in a specification.
pub(super) fn check_spec_changes(new: &Value, old: &Value, errors: &mut FieldErrors) {
    for list in ["containers", "initContainers"] {
        let path = SPEC.child(list);
        if items(new, list).len() != items(old, list).len() {
            errors.push(FieldError::forbidden(path, "pod updates may not add or remove containers"));
            return;
        }
        for (index, container) in items(new, list).iter().enumerate() {
            let (image, path) = (text(container, "image"), path.index(index));
            if image.is_empty() {
                errors.push(FieldError::required(path.child("image"), ""));
            }
            check_image_whitespace(container, &path, errors);
        }
    }
    if !check_deadline(&new["activeDeadlineSeconds"], &old["activeDeadlineSeconds"], errors) {
        return;
    }
    check_added_tolerations(items(new, "tolerations"), items(old, "tolerations"), errors);
    check_removed_gates(items(new, "schedulingGates"), items(old, "schedulingGates"), errors);
    if new == old {
        return;
    }
    let mut comparable = with_old_updatable_fields(new, old);
    if !items(old, "schedulingGates").is_empty() {
        check_gated_changes(&mut comparable, old, errors);
    }
    if let Some(diff) = internal_diff("core.PodSpec", old, &comparable) {
        let why = format!("pod updates may not change fields other than {UPDATABLE}\n{diff}");
        errors.push(FieldError::forbidden(SPEC, why));
    }
}

/// Returns whether the other fields are examined, too.
fn check_deadline(new: &Value, old: &Value, errors: &mut FieldErrors) -> bool {
    let path = SPEC.child("activeDeadlineSeconds");
    let Some(seconds) = new.as_i64() else {
        if is_set(old) {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(path, BadValue::null(), why));
        }
        return true;
    };
    let why = if !(0..=i64::from(i32::MAX)).contains(&seconds) {
        "must be between 0 and 2147483647, inclusive"
    } else if old.as_i64().is_some_and(|old| old < seconds) {
        "must be less than or equal to previous value"
    } else {
        return true;
    };
    errors.push(FieldError::invalid(path, seconds, why));
    false
}

/// Tolerations may be added, and their time may change.
fn check_added_tolerations(new: &[Value], old: &[Value], errors: &mut FieldErrors) {
    let path = SPEC.child("tolerations");
    let without_time = |toleration: &Value| {
        let fields = ["key", "operator", "value", "effect"];
        fields.map(|field| text(toleration, field).to_owned())
    };
    let found: HashSet<[String; 4]> = new.iter().map(without_time).collect();
    if old.iter().any(|toleration| !found.contains(&without_time(toleration))) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, why));
        return;
    }
    check_tolerations(new, &path, errors);
}

fn check_removed_gates(new: &[Value], old: &[Value], errors: &mut FieldErrors) {
    let path = SPEC.child("schedulingGates");
    let known: HashSet<&str> = old.iter().map(|gate| text(gate, "name")).collect();
    for (index, gate) in new.iter().enumerate().filter(|(_, gate)| !known.contains(text(gate, "name"))) {
        let name = text(gate, "name");
        let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        errors.push(FieldError::forbidden(path.index(index).child("name"), why));
    }
}

/// The new specification with what may change as it was.
fn with_old_updatable_fields(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, old) in containers.zip(items(old, list)) {
            container["image"] = old["image"].clone();
        }
    }
    let Some(fields) = spec.as_object_mut() else { return spec };
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        copy_field(fields, old, field);
    }
    let period = "terminationGracePeriodSeconds";
    if old[period].as_i64().is_some_and(|old| old < 0) && fields.get(period) == Some(&json!(1)) {
        copy_field(fields, old, period);
    }
    spec
}

fn copy_field(fields: &mut Map<String, Value>, old: &Value, field: &str) {
    match &old[field] {
        Value::Null => drop(fields.remove(field)),
        value => drop(fields.insert(field.to_owned(), value.clone())),
    }
}

/// Selectors of nodes may become narrower as long as the Pod is not scheduled.
fn check_gated_changes(spec: &mut Value, old: &Value, errors: &mut FieldErrors) {
    let Some(fields) = spec.as_object_mut() else { return };
    let (new_selector, old_selector) = (fields.get("nodeSelector").cloned().unwrap_or_default(), &old["nodeSelector"]);
    if !is_same(&new_selector, old_selector) {
        let labels = old_selector.as_object().into_iter().flatten();
        let is_extended = labels.into_iter().all(|(key, value)| new_selector.get(key) == Some(value));
        if !is_extended {
            let path = SPEC.child("nodeSelector");
            let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(path, BadValue::from(&new_selector), why));
        }
        copy_field(fields, old, "nodeSelector");
    }
}
