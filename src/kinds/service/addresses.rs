//! Validation of the addresses of a Service: cluster IPs and their families, external IPs, those of a load balancer
//! (`ValidateServiceClusterIPsRelatedFields`, `ValidateLoadBalancerStatus`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_endpoint_ip, check_ip, is_ipv6};
use kubeapi::names::check_dns1123_subdomain;
use serde_json::Value;

use crate::kinds::validation::{invalid_for, items, text, texts};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Whether the only cluster IP is `None`.
pub(super) fn is_headless(spec: &Value) -> bool {
    texts(spec, "clusterIPs") == ["None"]
}

/// Errors of `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`.
pub(super) fn cluster_ip_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    // All of them must be unset for a Service with an external name.
    if text(spec, "type") == "ExternalName" {
        return FieldErrors::new();
    }
    let (path, ips) = (SPEC.child("clusterIPs"), texts(spec, "clusterIPs"));
    let all = || BadValue::from(&spec["clusterIPs"]);
    let mut errors = FieldErrors::new();
    match (text(spec, "clusterIP"), ips.first()) {
        ("", None) => {}
        ("", Some(_)) => {
            errors.push(FieldError::invalid(path, all(), "must be empty when `clusterIP` is not specified"))
        }
        (_, None) => errors.push(FieldError::required(path, "")),
        (ip, Some(first)) if ip != *first => {
            errors.push(FieldError::invalid(path, all(), "first value must match `clusterIP`"));
        }
        _ => {}
    }
    errors.append(family_errors(spec));
    let old_ips: HashSet<&str> = texts(old_spec, "clusterIPs").into_iter().collect();
    let mut has_invalid = false;
    for (index, ip) in ips.iter().enumerate() {
        if index == 0 && *ip == "None" {
            if ips.len() > 1 {
                has_invalid = true;
                errors.push(FieldError::invalid(path, all(), "'None' must be the first and only value"));
            }
            continue;
        }
        if !old_ips.contains(ip) {
            let wrong = check_ip(&path.index(index), ip);
            has_invalid |= !wrong.is_empty();
            errors.extend(wrong);
        }
    }
    if ips.len() > 2 {
        errors.push(FieldError::invalid(path, all(), "may only hold up to 2 values"));
    }
    if has_invalid {
        return errors;
    }
    // One of each family is one at most of IPv4 and at most one of IPv6.
    let sixes = ips.iter().filter(|ip| is_ipv6(ip)).count();
    if ips.len() > 1 && (sixes == 0 || sixes == ips.len()) {
        errors.push(FieldError::invalid(path, all(), "may specify no more than one IP for each IP family"));
    }
    if !is_headless(spec) {
        for (index, (ip, family)) in ips.iter().zip(texts(spec, "ipFamilies")).enumerate() {
            if matches!((family, is_ipv6(ip)), ("IPv4", true) | ("IPv6", false)) {
                let why = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
                errors.push(FieldError::invalid(path.index(index), *ip, why));
            }
        }
    }
    errors
}

fn family_errors(spec: &Value) -> FieldErrors {
    const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
    const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    let (path, families) = (SPEC.child("ipFamilies"), texts(spec, "ipFamilies"));
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, family) in families.iter().enumerate() {
        if !FAMILIES.contains(family) {
            errors.push(FieldError::not_supported(path.index(index), *family, &FAMILIES));
        }
        if !seen.insert(*family) {
            errors.push(FieldError::duplicate(path.index(index), *family));
        }
    }
    if let Some(policy) = spec["ipFamilyPolicy"].as_str().filter(|policy| !POLICIES.contains(policy)) {
        errors.push(FieldError::not_supported(SPEC.child("ipFamilyPolicy"), policy, &POLICIES));
    }
    errors
}

/// Errors of external IPs. Those that the Service had before are not validated again.
pub(super) fn external_ip_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    let path = SPEC.child("externalIPs");
    let old: HashSet<&str> = texts(old_spec, "externalIPs").into_iter().collect();
    let mut errors = FieldErrors::new();
    for (index, ip) in texts(spec, "externalIPs").into_iter().enumerate() {
        let path = path.index(index);
        let malformed = if old.contains(&ip) { Vec::new() } else { check_ip(&path, ip) };
        errors.extend(if malformed.is_empty() { check_endpoint_ip(&path, ip) } else { malformed });
    }
    errors
}

/// Errors of the addresses of a load balancer in the status.
pub(super) fn load_balancer_errors(status: &Value, old_status: &Value, spec: &Value) -> FieldErrors {
    let root = FieldPath::root("status");
    let balancer = root.child("loadBalancer");
    let path = balancer.child("ingress");
    let ingress = items(&status["loadBalancer"], "ingress");
    if text(spec, "type") != "LoadBalancer" && !ingress.is_empty() {
        return FieldError::forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'").into();
    }
    let old: HashSet<&str> = items(&old_status["loadBalancer"], "ingress").iter().map(|one| text(one, "ip")).collect();
    let all = ingress.iter().enumerate();
    all.flat_map(|(index, one)| ingress_errors(one, &old, &path.index(index))).collect()
}

fn ingress_errors(ingress: &Value, old_ips: &HashSet<&str>, path: &FieldPath<'_>) -> Vec<FieldError> {
    let (ip, hostname) = (text(ingress, "ip"), text(ingress, "hostname"));
    let mut errors = Vec::new();
    if !ip.is_empty() && !old_ips.contains(&ip) {
        errors.extend(check_ip(&path.child("ip"), ip));
    }
    let mode_path = path.child("ipMode");
    match ingress["ipMode"].as_str() {
        None if ip.is_empty() => {}
        None => errors.push(FieldError::required(mode_path, "must be specified when `ip` is set")),
        Some(_) if ip.is_empty() => {
            errors.push(FieldError::forbidden(mode_path, "may not be specified when `ip` is not set"));
        }
        Some("VIP" | "Proxy") => {}
        Some(mode) => errors.push(FieldError::not_supported(mode_path, mode, &["Proxy", "VIP"])),
    }
    if !hostname.is_empty() {
        errors.extend(invalid_for(path.child("hostname"), hostname, check_dns1123_subdomain(hostname)));
        if check_endpoint_ip(path, hostname).iter().all(|error| error.detail != "must be a valid IP address") {
            let why = "must be a DNS name, not an IP address";
            errors.push(FieldError::invalid(path.child("hostname"), hostname, why));
        }
    }
    errors
}
