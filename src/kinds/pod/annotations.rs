//! Annotations of Pods that mean something (`ValidatePodSpecificAnnotations`, `ValidatePodSpecificAnnotationUpdates`).

use std::collections::HashSet;

use kubeapi::GoQuoted;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::{Map, Value};

use super::paths::{check_descending_path, visit_containers};
use super::scheduling::check_tolerations;
use crate::kinds::validation::text;

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

type Annotations = Map<String, Value>;

/// The annotations of metadata.
pub(super) fn annotations_of(metadata: &Value) -> impl Iterator<Item = (&str, &str)> {
    let annotations: Option<&Annotations> = metadata["annotations"].as_object();
    annotations.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

/// Errors of annotations that say something about the Pod.
pub(super) fn check_pod_annotations(
    metadata: &Value,
    spec: &Value,
    allows_any_cost: bool,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let annotation = |key: &str| metadata["annotations"][key].as_str();
    if let Some(value) = annotation(MIRROR)
        && text(spec, "nodeName").is_empty()
    {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(path.key(MIRROR), value, why));
    }
    if let Some(value) = annotation(TOLERATIONS).filter(|value| !value.is_empty()) {
        match serde_json::from_str::<Vec<Value>>(value) {
            Ok(tolerations) => check_tolerations(&tolerations, &path.child(TOLERATIONS), errors),
            Err(error) => errors.push(FieldError::invalid(path, TOLERATIONS, error.to_string())),
        }
    }
    if let Some(cost) = annotation(DELETION_COST).filter(|cost| !allows_any_cost && !is_deletion_cost(cost)) {
        errors.push(FieldError::invalid(path.key(DELETION_COST), cost, "must be a 32bit integer"));
    }
    for (key, profile) in annotations_of(metadata) {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            check_seccomp_name(profile, &path.child(key), errors);
        }
    }
    check_app_armor_annotations(metadata, spec, path, errors);
}

/// Whether an annotation is the cost of the deletion of a Pod (`GetDeletionCostFromPodAnnotations`).
pub(super) fn is_deletion_cost(cost: &str) -> bool {
    let digits = cost.strip_prefix('-').unwrap_or(cost);
    let is_zero_led = digits.starts_with('0') && cost != "0";
    !is_zero_led && digits.bytes().all(|byte| byte.is_ascii_digit()) && cost.parse::<i32>().is_ok()
}

fn check_seccomp_name(profile: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        profile => match profile.strip_prefix("localhost/") {
            Some(target) => check_descending_path(target, path, errors),
            None => errors.push(FieldError::invalid(path, profile, "must be a valid seccomp profile")),
        },
    }
}

fn check_app_armor_annotations(metadata: &Value, spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let profiles =
        annotations_of(metadata).filter_map(|(key, profile)| Some((key, key.strip_prefix(APP_ARMOR)?, profile)));
    let mut names = None;
    for (key, name, profile) in profiles {
        let names = names.get_or_insert_with(|| {
            let mut names = HashSet::new();
            visit_containers(spec, path, |container, _| {
                names.insert(text(container, "name").to_owned());
            });
            names
        });
        if !names.contains(name) {
            errors.push(FieldError::invalid(path.key(key), name, "container not found"));
        }
        let is_valid = matches!(profile, "" | "runtime/default" | "unconfined") || profile.starts_with("localhost/");
        if !is_valid {
            let why = format!("invalid AppArmor profile name: {}", GoQuoted(profile));
            errors.push(FieldError::invalid(path.key(key), profile, why));
        }
    }
}

/// Errors of profiles that an annotation and a field state differently (`validateSeccompAnnotationsAndFields`,
/// `validateAppArmorAnnotationsAndFieldsMatchOnCreate`).
pub(super) fn check_profile_annotations(
    metadata: &Value,
    spec: &Value,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let annotation = |key: &str| metadata["annotations"][key].as_str();
    let pod_context = &spec["securityContext"];
    if let Some(value) = annotation(SECCOMP_POD) {
        let path = path.child("securityContext");
        check_profile(value, &pod_context["seccompProfile"], "seccomp", &path.child("seccompProfile"), errors);
    }
    visit_containers(spec, path, |container, path| {
        let path = path.child("securityContext");
        if let Some(value) = annotation(&format!("{SECCOMP_CONTAINER}{}", text(container, "name"))) {
            let profile = &container["securityContext"]["seccompProfile"];
            check_profile(value, profile, "seccomp", &path.child("seccompProfile"), errors);
        }
    });
    if text(&spec["os"], "name") == "windows" {
        return;
    }
    visit_containers(spec, path, |container, path| {
        let path = path.child("securityContext");
        let own = &container["securityContext"]["appArmorProfile"];
        let profile = if own.is_null() { &pod_context["appArmorProfile"] } else { own };
        if let Some(value) = annotation(&format!("{APP_ARMOR}{}", text(container, "name"))) {
            check_profile(value, profile, "apparmor", &path.child("appArmorProfile"), errors);
        }
    });
}

fn check_profile(annotation: &str, profile: &Value, what: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let is_default = match what {
        "seccomp" => matches!(annotation, "runtime/default" | "docker/default"),
        _ => annotation == "runtime/default",
    };
    let target = annotation.strip_prefix("localhost/");
    let is_same_type = match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => is_default,
        "Localhost" => target.is_some(),
        _ => return,
    };
    if !is_same_type {
        let why = format!("{what} type in annotation and field must match");
        errors.push(FieldError::forbidden(path.child("type"), why));
    } else if text(profile, "type") == "Localhost" && target != profile["localhostProfile"].as_str() {
        let why = format!("{what} profile in annotation and field must match");
        errors.push(FieldError::forbidden(path.child("localhostProfile"), why));
    }
}

/// Errors of changed annotations.
pub(super) fn check_annotation_changes(new: &Value, old: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let value = |metadata: &Value, key: &str| metadata["annotations"][key].as_str().map(str::to_owned);
    for (key, old_value) in annotations_of(old) {
        if value(new, key).as_deref() == Some(old_value) {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            errors.push(FieldError::forbidden(path.key(key), "may not remove or update AppArmor annotations"));
        }
        if key == MIRROR {
            errors.push(FieldError::forbidden(path.key(key), "may not remove or update mirror pod annotation"));
        }
    }
    for (key, _) in annotations_of(new).filter(|(key, _)| value(old, key).is_none()) {
        if key.starts_with(APP_ARMOR) {
            errors.push(FieldError::forbidden(path.key(key), "may not add AppArmor annotations"));
        }
        if key == MIRROR {
            errors.push(FieldError::forbidden(path.key(key), "may not add mirror pod annotation"));
        }
    }
}
