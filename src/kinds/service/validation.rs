//! Validation of Services (`validateService`). Unlike a kube-apiserver this server allocates neither addresses nor node
//! ports, so that none is required.

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::check_cidr;
use kubeapi::json::write_json;
use kubeapi::names::{
    check_dns1123_label, check_dns1123_subdomain, check_port_name, check_port_number, check_qualified_name,
};
use kubeapi::object_meta::validate_labels;
use serde_json::{Value, json};

use super::addresses::{cluster_ip_errors, external_ip_errors, is_headless, load_balancer_errors};
use super::update::{load_balancer_class_errors, service_update_errors};
use crate::kinds::validation::{ValidationInput, invalid_for, items, protocol_error, text, texts};

const HINTS_ANNOTATION: &str = "service.kubernetes.io/topology-aware-hints";
const MODE_ANNOTATION: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Longest timeout of session affinity in seconds.
const MAX_AFFINITY_SECONDS: i64 = 86_400;

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Validates a Service.
pub(super) fn validate_service(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    if input.old.is_some() {
        errors.append(service_update_errors(spec, old_spec));
    }
    errors.extend(topology_error(input));
    errors.append(type_dependent_errors(spec));
    errors.append(port_list_errors(spec));
    let selector = spec["selector"].as_object().into_iter().flatten();
    let selector = selector.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    validate_labels(selector, &SPEC.child("selector"), &mut errors);
    errors.append(session_affinity_errors(spec));
    errors.append(cluster_ip_errors(spec, old_spec));
    errors.append(external_ip_errors(spec, old_spec));
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    errors.extend(enum_error(&SPEC.child("type"), &spec["type"], true, &types));
    errors.append(duplicate_port_errors(spec));
    errors.append(source_range_errors(input, spec, old_spec));
    let is_balancer = text(spec, "type") == "LoadBalancer";
    if !is_balancer && !spec["allocateLoadBalancerNodePorts"].is_null() {
        let why = "may only be used when `type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(SPEC.child("allocateLoadBalancerNodePorts"), why));
    }
    errors.extend(load_balancer_class_errors(spec));
    errors.append(traffic_policy_errors(spec));
    errors
}

/// Validates the status of a Service.
pub(super) fn validate_service_status(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.append(load_balancer_errors(input.field("status"), input.old_field("status"), input.field("spec")));
    errors
}

/// The error of a value that is none of the supported ones; it may be required.
fn enum_error(path: &FieldPath<'_>, value: &Value, is_required: bool, supported: &[&str]) -> Option<FieldError> {
    match value.as_str().unwrap_or_default() {
        "" if value.is_null() || is_required => is_required.then(|| FieldError::required(path, "")),
        known if supported.contains(&known) => None,
        other => Some(FieldError::not_supported(path, other, supported)),
    }
}

fn topology_error(input: &ValidationInput<'_>) -> Option<FieldError> {
    let meta = input.metadata();
    let (mode, hints) = (meta.annotation(MODE_ANNOTATION)?, meta.annotation(HINTS_ANNOTATION)?);
    let metadata = FieldPath::root("metadata");
    let why = format!("must match annotations[{HINTS_ANNOTATION}] when both are specified");
    (mode != hints).then(|| FieldError::invalid(metadata.child("annotations").key(MODE_ANNOTATION), mode, why))
}

/// Errors that depend on the type: ports, `None` as address, the name of an external Service.
fn type_dependent_errors(spec: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let service_type = text(spec, "type");
    if items(spec, "ports").is_empty() && !is_headless(spec) && service_type != "ExternalName" {
        errors.push(FieldError::required(SPEC.child("ports"), ""));
    }
    if matches!(service_type, "LoadBalancer" | "NodePort") && is_headless(spec) {
        let why = format!("may not be set to 'None' for {service_type} services");
        errors.push(FieldError::invalid(SPEC.child("clusterIPs").index(0), "None", why));
    }
    if service_type != "ExternalName" {
        return errors;
    }
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if !spec[field].is_null() && spec[field] != json!([]) {
            errors.push(FieldError::forbidden(SPEC.child(field), "may not be set for ExternalName services"));
        }
    }
    let (path, name) = (SPEC.child("externalName"), text(spec, "externalName"));
    match name.strip_suffix('.').unwrap_or(name) {
        "" => errors.push(FieldError::required(path, "")),
        name => errors.extend(invalid_for(path, name, check_dns1123_subdomain(name))),
    }
    errors
}

fn port_list_errors(spec: &Value) -> FieldErrors {
    let (ports, path) = (items(spec, "ports"), SPEC.child("ports"));
    let mut names = HashSet::new();
    let mut errors = FieldErrors::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        match text(port, "name") {
            "" if ports.len() > 1 => errors.push(FieldError::required(path.child("name"), "")),
            "" => {}
            name => {
                errors.extend(invalid_for(path.child("name"), name, check_dns1123_label(name)));
                if !names.insert(name) {
                    errors.push(FieldError::duplicate(path.child("name"), name));
                }
            }
        }
        errors.extend(number_error(path.child("port"), &port["port"]));
        errors.extend(protocol_error(port, &path));
        let target = path.child("targetPort");
        match port["targetPort"].as_str() {
            None => errors.extend(number_error(target, &port["targetPort"])),
            Some(name) => errors.extend(invalid_for(target, name, check_port_name(name))),
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            errors.extend(invalid_for(path.child("appProtocol"), protocol, check_qualified_name(protocol)));
        }
    }
    errors
}

fn number_error(path: FieldPath<'_>, value: &Value) -> Option<FieldError> {
    let number = value.as_i64().unwrap_or_default();
    check_port_number(number).map(|why| FieldError::invalid(path, number, why))
}

fn session_affinity_errors(spec: &Value) -> FieldErrors {
    let (path, config) = (SPEC.child("sessionAffinityConfig"), &spec["sessionAffinityConfig"]);
    let affinity = &spec["sessionAffinity"];
    let mut errors = FieldErrors::new();
    errors.extend(enum_error(&SPEC.child("sessionAffinity"), affinity, true, &["ClientIP", "None"]));
    let required = |path: FieldPath<'_>| FieldError::required(path, "when session affinity type is ClientIP");
    let client = path.child("clientIP");
    let timeout = client.child("timeoutSeconds");
    match affinity.as_str() {
        Some("ClientIP") if config.is_null() => errors.push(required(path)),
        Some("ClientIP") if config["clientIP"].is_null() => errors.push(required(client)),
        Some("ClientIP") => match config["clientIP"]["timeoutSeconds"].as_i64() {
            None => errors.push(required(timeout)),
            Some(1..=MAX_AFFINITY_SECONDS) => {}
            Some(seconds) => {
                let why = format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
                errors.push(FieldError::invalid(timeout, seconds, why));
            }
        },
        Some("None") if !config.is_null() => {
            errors.push(FieldError::forbidden(path, "must not be set when session affinity is None"));
        }
        _ => {}
    }
    errors
}

/// Errors of node ports of a Service without any, and of ports that occur twice.
fn duplicate_port_errors(spec: &Value) -> FieldErrors {
    let (ports, path) = (items(spec, "ports"), SPEC.child("ports"));
    let number = |port: &Value, field: &str| port[field].as_i64().unwrap_or_default();
    let mut errors = FieldErrors::new();
    if text(spec, "type") == "ClusterIP" {
        let with_node_port = ports.iter().enumerate().filter(|(_, port)| number(port, "nodePort") != 0);
        errors.extend(with_node_port.map(|(index, _)| {
            let why = "may not be used when `type` is 'ClusterIP'";
            FieldError::forbidden(path.index(index).child("nodePort"), why)
        }));
    }
    let mut node_ports = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let node_port = number(port, "nodePort");
        if node_port != 0 && !node_ports.insert((text(port, "protocol"), node_port)) {
            errors.push(FieldError::duplicate(path.index(index).child("nodePort"), node_port));
        }
    }
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let (protocol, number) = (text(port, "protocol"), number(port, "port"));
        if !seen.insert((protocol, number)) {
            // Go's internal struct with nothing else set.
            let protocol = write_json(&json!(protocol));
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\
                 \"NodePort\":0}}"
            );
            errors.push(FieldError::duplicate(path.index(index), BadValue::from_json(shown)));
        }
    }
    errors
}

/// Errors of the source ranges of a load balancer, in the specification or in the annotation of old.
fn source_range_errors(input: &ValidationInput<'_>, spec: &Value, old_spec: &Value) -> FieldErrors {
    let is_balancer = text(spec, "type") == "LoadBalancer";
    let unused = |path: FieldPath<'_>| FieldError::forbidden(path, "may only be used when `type` is 'LoadBalancer'");
    let mut errors = FieldErrors::new();
    let ranges = texts(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let path = SPEC.child("LoadBalancerSourceRanges");
        if !is_balancer {
            errors.push(unused(path));
        }
        let old: HashSet<&str> =
            texts(old_spec, "loadBalancerSourceRanges").into_iter().map(|range| range.trim()).collect();
        for (index, range) in ranges.iter().map(|range| range.trim()).enumerate() {
            if !old.contains(range) {
                errors.extend(check_cidr(&path.index(index), range));
            }
        }
        return errors;
    }
    let Some(annotation) = input.metadata().annotation(SOURCE_RANGES_ANNOTATION) else { return errors };
    let metadata = FieldPath::root("metadata");
    let annotations = metadata.child("annotations");
    let path = annotations.key(SOURCE_RANGES_ANNOTATION);
    if !is_balancer {
        errors.push(unused(path));
    }
    let old =
        input.old.and_then(|old| old.get("metadata")?.get("annotations")?.get(SOURCE_RANGES_ANNOTATION)?.as_str());
    if old != Some(annotation) && !annotation.trim().is_empty() {
        errors.extend(annotation.split(',').flat_map(|range| check_cidr(&path, range.trim())));
    }
    errors
}

/// Errors of the traffic policies, the health check port, and the traffic distribution.
fn traffic_policy_errors(spec: &Value) -> FieldErrors {
    const POLICIES: [&str; 2] = ["Cluster", "Local"];
    let mut errors = FieldErrors::new();
    let service_type = text(spec, "type");
    let has_external_ips = !items(spec, "externalIPs").is_empty();
    let is_external = match service_type {
        "LoadBalancer" | "NodePort" => true,
        service_type => service_type == "ClusterIP" && has_external_ips,
    };
    let (external_path, external) = (SPEC.child("externalTrafficPolicy"), &spec["externalTrafficPolicy"]);
    let external_name = external.as_str().unwrap_or_default();
    if is_external {
        errors.extend(enum_error(&external_path, external, true, &POLICIES));
    } else if !external_name.is_empty() {
        let why = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(external_path, external_name, why));
    }
    let health_port = spec["healthCheckNodePort"].as_i64().unwrap_or_default();
    let path = SPEC.child("healthCheckNodePort");
    if service_type == "LoadBalancer" && external_name == "Local" {
        if health_port != 0 {
            errors.extend(number_error(path, &spec["healthCheckNodePort"]));
        }
    } else if health_port != 0 {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(FieldError::invalid(path, health_port, why));
    }
    let internal = &spec["internalTrafficPolicy"];
    let is_required = internal.is_null() && matches!(service_type, "ClusterIP" | "LoadBalancer" | "NodePort");
    errors.extend(enum_error(&SPEC.child("internalTrafficPolicy"), internal, is_required, &POLICIES));
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    errors.extend(enum_error(&SPEC.child("trafficDistribution"), &spec["trafficDistribution"], false, &distributions));
    errors
}
