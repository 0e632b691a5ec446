//! Validation of changes of a Service: what may not change once it is set (`ValidateServiceUpdate`).

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_qualified_name;
use serde_json::Value;

use super::addresses::is_headless;
use crate::kinds::validation::{invalid_for, text, texts};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

const UNCHANGEABLE: &str = "may not change once set";

/// Errors of a change of the specification.
pub(super) fn service_update_errors(spec: &Value, old: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if text(spec, "type") != "ExternalName" && text(old, "type") != "ExternalName" {
        errors.append(cluster_ip_change_errors(spec, old));
        errors.append(family_change_errors(spec, old));
    }
    let is_balancer = |spec: &Value| text(spec, "type") == "LoadBalancer";
    if is_balancer(spec) && is_balancer(old) {
        let class = &spec["loadBalancerClass"];
        if *class != old["loadBalancerClass"] {
            let path = SPEC.child("loadBalancerClass");
            errors.push(FieldError::invalid(path, BadValue::from(class), UNCHANGEABLE));
        }
    }
    errors.extend(load_balancer_class_errors(spec));
    let has_health_check = |spec: &Value| is_balancer(spec) && text(spec, "externalTrafficPolicy") == "Local";
    if has_health_check(spec) && has_health_check(old) && spec["healthCheckNodePort"] != old["healthCheckNodePort"] {
        errors.push(FieldError::forbidden(SPEC.child("healthCheckNodePort"), "field is immutable"));
    }
    errors
}

/// Errors of `loadBalancerClass`.
pub(super) fn load_balancer_class_errors(spec: &Value) -> Vec<FieldError> {
    let path = SPEC.child("loadBalancerClass");
    match spec["loadBalancerClass"].as_str() {
        None => Vec::new(),
        Some(class) if text(spec, "type") == "LoadBalancer" => {
            invalid_for(path, class, check_qualified_name(class)).collect()
        }
        Some(_) => vec![FieldError::forbidden(path, "may only be used when `type` is 'LoadBalancer'")],
    }
}

/// The first cluster IP stays; a second one may be added, and removed with the policy that says so.
fn cluster_ip_change_errors(spec: &Value, old: &Value) -> FieldErrors {
    if is_headless(spec) && is_headless(old) {
        return FieldErrors::new();
    }
    let (new_ips, old_ips) = (texts(spec, "clusterIPs"), texts(old, "clusterIPs"));
    let path = SPEC.child("clusterIPs");
    let all = BadValue::from(&spec["clusterIPs"]);
    let invalid = |index: usize, why: &str| FieldError::invalid(path.index(index), all.clone(), why);
    let mut errors = FieldErrors::new();
    if old_ips.len() == new_ips.len() {
        let changed = (0..old_ips.len()).filter(|index| old_ips[*index] != new_ips[*index]);
        return changed.map(|index| invalid(index, UNCHANGEABLE)).collect();
    }
    if new_ips.is_empty() {
        errors.push(invalid(0, "primary clusterIP can not be unset"));
    } else if old_ips.first().is_some_and(|first| *first != new_ips[0]) {
        errors.push(invalid(0, UNCHANGEABLE));
    }
    if new_ips.len() == 1 && old_ips.len() > 1 {
        errors.extend(release_error(spec, "clusterIP"));
    }
    errors
}

/// The first family stays, too. Headless Services may change them.
fn family_change_errors(spec: &Value, old: &Value) -> FieldErrors {
    if is_headless(spec) || is_headless(old) {
        return FieldErrors::new();
    }
    let (families, old_families) = (texts(spec, "ipFamilies"), texts(old, "ipFamilies"));
    let path = SPEC.child("ipFamilies");
    let mut errors = FieldErrors::new();
    if families.len() == old_families.len() {
        let changed = old_families.iter().zip(&families).filter(|(old, new)| old != new);
        let all = BadValue::from(&spec["ipFamilies"]);
        errors.extend(changed.map(|_| FieldError::invalid(path.index(0), all.clone(), UNCHANGEABLE)));
        return errors;
    }
    if let (Some(first), Some(old_first)) = (families.first(), old_families.first())
        && first != old_first
    {
        // With the addresses as the value, as in Kubernetes.
        errors.push(FieldError::invalid(path.index(0), BadValue::from(&spec["clusterIPs"]), UNCHANGEABLE));
    }
    if families.len() == 1 && old_families.len() > 1 {
        errors.extend(release_error(spec, "ipFamily"));
    }
    errors
}

fn release_error(spec: &Value, what: &str) -> Option<FieldError> {
    let policy = &spec["ipFamilyPolicy"];
    let why = || format!("must be set to 'SingleStack' when releasing the secondary {what}");
    (policy != "SingleStack").then(|| FieldError::invalid(SPEC.child("ipFamilyPolicy"), BadValue::from(policy), why()))
}
