//! Writes of the subresources that change a part of the specification: `ephemeralcontainers` and `resize`
//! (`dropNonEphemeralContainerUpdates`, `dropNonResizeUpdates`; `ValidatePodEphemeralContainersUpdate`, `ValidatePodResize`).

use std::collections::HashMap;

use kubeapi::GoQuoted;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::{Value, json};

use super::quality_of_service::quality_of_service;
use crate::kinds::validation::{items, text};
use crate::kinds::{Object, ObjectUpdate};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// The resources that a running Pod can change.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Restores all but the part that the subresource changes. The generation counts the change.
pub(super) fn keep_other_parts(update: &ObjectUpdate<'_>, object: &mut Object) {
    let null = Value::Null;
    let (old_spec, new_spec) = (update.old.get("spec").unwrap_or(&null), object.get("spec").unwrap_or(&null));
    let mut spec = old_spec.clone();
    match update.subresource {
        "ephemeralcontainers" => set_field(&mut spec, "ephemeralContainers", &new_spec["ephemeralContainers"]),
        _ => {
            let lists = ["containers", "initContainers"];
            if lists.iter().any(|list| items(old_spec, list).len() != items(new_spec, list).len()) {
                // Validation refuses it.
                spec = new_spec.clone();
            }
            set_field(&mut spec, "resources", &new_spec["resources"]);
            for list in lists {
                if let Some(containers) = spec.get_mut(list) {
                    resize_containers(containers, items(new_spec, list));
                }
            }
        }
    }
    let is_changed = spec != *old_spec;
    object.insert("spec".to_owned(), spec);
    update.keep(object, "status");
    let old_metadata = update.old.get("metadata").unwrap_or(&null);
    let Some(metadata) = object.get_mut("metadata") else { return };
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        set_field(metadata, field, &old_metadata[field]);
    }
    if let Some(generation) = old_metadata["generation"].as_i64() {
        metadata["generation"] = json!(generation.saturating_add(i64::from(is_changed)));
    }
}

/// Gives containers the resources of others of the same names.
fn resize_containers(containers: &mut Value, new: &[Value]) {
    let Some(containers) = containers.as_array_mut() else { return };
    if containers.iter().zip(new).any(|(old, new)| old["name"] != new["name"]) {
        *containers = new.to_vec();
        return;
    }
    for (container, new) in containers.iter_mut().zip(new) {
        for field in ["resources", "resizePolicy"] {
            set_field(container, field, &new[field]);
        }
    }
}

/// Sets a field, or removes it if the value is null.
fn set_field(object: &mut Value, field: &str, value: &Value) {
    let Some(object) = object.as_object_mut() else { return };
    match value {
        Value::Null => drop(object.remove(field)),
        value => drop(object.insert(field.to_owned(), value.clone())),
    }
}

/// Ephemeral containers stay as they are once they are added.
pub(super) fn check_ephemeral_changes(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let path = SPEC.child("ephemeralContainers");
    let new: HashMap<&str, &Value> =
        items(new, "ephemeralContainers").iter().map(|one| (text(one, "name"), one)).collect();
    for container in items(old, "ephemeralContainers") {
        let name = text(container, "name");
        let what = match new.get(name) {
            None => "removed",
            Some(now) if *now != container => "changed",
            Some(_) => continue,
        };
        let why = format!("existing ephemeral containers {} may not be {what}\n", GoQuoted(name));
        errors.push(FieldError::forbidden(path, why));
    }
}

/// Only amounts of cpu and memory change, and not the quality of service.
pub(super) fn check_resize(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let class = quality_of_service(new);
    if class != quality_of_service(old) {
        let why = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(SPEC, class, why));
    }
    let lists = ["containers", "initContainers"];
    let names = |spec: &Value, list: &str| -> Vec<String> {
        items(spec, list).iter().map(|container| text(container, "name").to_owned()).collect()
    };
    if let Some(list) = lists.iter().find(|list| names(new, list) != names(old, list)) {
        let why = "containers may not be added, removed, renamed or reordered on resize";
        errors.push(FieldError::forbidden(SPEC.child(list), why));
        return;
    }
    let without_amounts = |spec: &Value| {
        let mut spec = spec.clone();
        let mut structs: Vec<&mut Value> = Vec::new();
        if let Some(spec) = spec.as_object_mut() {
            for (field, value) in spec.iter_mut() {
                match field.as_str() {
                    "containers" | "initContainers" => {
                        let containers = value.as_array_mut().into_iter().flatten();
                        structs.extend(containers.filter_map(|container| container.get_mut("resources")));
                    }
                    "resources" => structs.push(value),
                    _ => {}
                }
            }
        }
        for resources in structs {
            for kind in ["requests", "limits"] {
                let Some(amounts) = resources.get_mut(kind).and_then(Value::as_object_mut) else { continue };
                RESIZABLE.iter().for_each(|name| drop(amounts.remove(*name)));
            }
        }
        spec
    };
    if without_amounts(new) != without_amounts(old) {
        errors.push(FieldError::forbidden(SPEC, "only cpu and memory resources are mutable"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ephemeral_containers_are_only_added() {
        let spec = |names: &[&str]| {
            let containers: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "i"})).collect();
            json!({ "ephemeralContainers": containers })
        };
        for (new, expected) in [(&["a", "b"][..], 0), (&["b"], 1)] {
            let mut errors = FieldErrors::new();
            check_ephemeral_changes(&spec(new), &spec(&["a"]), &mut errors);
            assert_eq!(errors.iter().count(), expected, "{new:?}");
        }
    }

    #[test]
    fn resize_changes_amounts_of_cpu_and_memory_alone() {
        let spec = |cpu: &str, storage: &str| {
            let resources = json!({"requests": {"cpu": cpu, "ephemeral-storage": storage}});
            json!({"containers": [{"name": "a", "resources": resources}]})
        };
        for (new, expected) in [(spec("2", "1Gi"), 0), (spec("1", "2Gi"), 1), (json!({"containers": []}), 2)] {
            let mut errors = FieldErrors::new();
            check_resize(&new, &spec("1", "1Gi"), &mut errors);
            assert_eq!(errors.iter().count(), expected, "{new}");
        }
    }
}
