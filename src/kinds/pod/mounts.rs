//! Mounts and devices of volumes in containers (`ValidateVolumeMounts`, `ValidateVolumeDevices`).

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::paths::{check_descending_path, check_supported, has_backsteps, is_true};
use crate::kinds::validation::{items, text};

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIVE_READ_ONLY: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

/// Errors of the mounts and devices of a container.
pub(super) fn check_mounts(
    container: &Value,
    volumes: &HashMap<&str, &Value>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    check_volume_mounts(container, volumes, &path.child("volumeMounts"), errors);
    check_volume_devices(container, volumes, &path.child("volumeDevices"), errors);
}

/// The paths of a list by the names in it; of equal names, the last.
fn paths_by_name<'c>(container: &'c Value, list: &str, field: &str) -> (HashSet<&'c str>, HashSet<&'c str>) {
    let paths: HashMap<&str, &str> =
        items(container, list).iter().map(|item| (text(item, "name"), text(item, field))).collect();
    (paths.keys().copied().collect(), paths.values().copied().collect())
}

fn check_volume_mounts(
    container: &Value,
    volumes: &HashMap<&str, &Value>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let (device_names, device_paths) = paths_by_name(container, "volumeDevices", "devicePath");
    let mut seen = HashSet::new();
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        let item = path.index(index);
        let (name_path, target_path) = (item.child("name"), item.child("mountPath"));
        let (name, target) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(name_path, ""));
        }
        if !volumes.contains_key(name) {
            errors.push(FieldError::not_found(name_path, name));
        }
        if target.is_empty() {
            errors.push(FieldError::required(target_path, ""));
        }
        if !seen.insert(target) {
            errors.push(FieldError::invalid(target_path, target, "must be unique"));
        }
        if device_names.contains(name) {
            errors.push(FieldError::invalid(name_path, name, "must not already exist in volumeDevices"));
        }
        if device_paths.contains(target) {
            let why = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(target_path, target, why));
        }
        check_sub_paths(mount, (path, &item), errors);
        check_propagation(mount, container, path, errors);
    }
}

fn check_sub_paths(mount: &Value, (path, item): (&FieldPath<'_>, &FieldPath<'_>), errors: &mut FieldErrors) {
    let (sub_path, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    check_descending_path(sub_path, &path.child("subPath"), errors);
    if expression.is_empty() {
        return;
    }
    if !sub_path.is_empty() {
        let why = "subPathExpr and subPath are mutually exclusive";
        errors.push(FieldError::invalid(item.child("subPathExpr"), expression, why));
    }
    check_descending_path(expression, &path.child("subPathExpr"), errors);
}

fn check_propagation(mount: &Value, container: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let propagation = mount["mountPropagation"].as_str();
    let propagation_path = path.child("mountPropagation");
    if let Some(mode) = propagation {
        check_supported(mode, &PROPAGATIONS, &propagation_path, errors);
        if mode == "Bidirectional" && !is_true(&container["securityContext"]["privileged"]) {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.push(FieldError::forbidden(propagation_path, why));
        }
    }
    let path = path.child("recursiveReadOnly");
    match mount["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !is_true(&mount["readOnly"]) {
                errors.push(FieldError::forbidden(path, "may only be specified when readOnly is true"));
            }
            if propagation.is_some_and(|mode| mode != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(path, why));
            }
        }
        Some(mode) => check_supported(mode, &RECURSIVE_READ_ONLY, &path, errors),
    }
}

fn check_volume_devices(
    container: &Value,
    volumes: &HashMap<&str, &Value>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let (mount_names, mount_paths) = paths_by_name(container, "volumeMounts", "mountPath");
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        let item = path.index(index);
        let (name_path, target_path) = (item.child("name"), item.child("devicePath"));
        let (name, target) = (text(device, "name"), text(device, "devicePath"));
        if name.is_empty() {
            errors.push(FieldError::required(name_path, ""));
        }
        if names.contains(name) {
            errors.push(FieldError::invalid(name_path, name, "must be unique"));
        }
        match volumes.get(name) {
            None => errors.push(FieldError::not_found(name_path, name)),
            Some(volume) if volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null() => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(name_path, name, why));
            }
            Some(_) => {}
        }
        if target.is_empty() {
            errors.push(FieldError::required(target_path, ""));
        }
        if paths.contains(target) {
            errors.push(FieldError::invalid(target_path, target, "must be unique"));
        }
        if has_backsteps(target) {
            errors.push(FieldError::invalid(target_path, target, "can not contain backsteps ('..')"));
        } else {
            paths.insert(target);
        }
        if mount_names.contains(name) {
            errors.push(FieldError::invalid(name_path, name, "must not already exist in volumeMounts"));
        }
        if mount_paths.contains(target) {
            let why = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(target_path, target, why));
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
