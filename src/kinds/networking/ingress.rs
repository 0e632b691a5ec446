//! Ingresses (`pkg/registry/networking/ingress/strategy.go`).

use std::collections::{BTreeSet, HashSet};

use kubeapi::GoQuoted;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_ip, ip_warning, is_ip};
use kubeapi::names::{
    check_dns1123_label, check_dns1123_subdomain, check_path_segment, check_port_name, check_port_number,
    check_wildcard_subdomain,
};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use crate::kinds::cells::{CellPrinter, first_non_empty, items_at, text_at};
use crate::kinds::field_rules::{required_text_errors, typed_text};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};
use crate::kinds::{GenerationRule, KindRules, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_ingress(input),
    },
    warnings: ingress_warnings,
    cells: print_ingress,
    ..KindRules::of("networking.k8s.io", "ingresses")
};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Hosts in a cell.
const MAX_HOSTS: usize = 3;

/// What a stored Ingress has already, and may therefore have.
#[derive(Clone, Copy, Default)]
struct IngressAllowances {
    any_secret_name: bool,
    any_wildcard_rule: bool,
}

/// Validates an Ingress.
fn validate_ingress(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let allowances = allowances_of(input.old_field("spec"));
    let mut errors = input.metadata_update_errors();
    errors.append(input.metadata_errors());
    let rules = items(spec, "rules");
    if rules.is_empty() && spec["defaultBackend"].is_null() {
        let why = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(SPEC, BadValue::from(&spec["rules"]), why));
    }
    if !spec["defaultBackend"].is_null() {
        errors.append(backend_errors(&spec["defaultBackend"], &SPEC.child("defaultBackend")));
    }
    for (index, rule) in rules.iter().enumerate() {
        errors.append(rule_errors(rule, allowances, &SPEC.child("rules").index(index)));
    }
    for (index, tls) in items(spec, "tls").iter().enumerate() {
        errors.append(tls_errors(tls, allowances, &SPEC.child("tls").index(index)));
    }
    let class = spec["ingressClassName"].as_str();
    if let Some(class) = class {
        errors.extend(invalid_for(SPEC.child("ingressClassName"), class, check_dns1123_subdomain(class)));
    }
    let annotation = input.metadata().annotation(CLASS_ANNOTATION);
    if let (None, Some(annotation), Some(class)) = (input.old, annotation, class)
        && annotation != class
    {
        let why = "must match `ingressClassName` when both are specified";
        let path = FieldPath::root("annotations");
        errors.push(FieldError::invalid(path.child(CLASS_ANNOTATION), annotation, why));
    }
    errors
}

fn allowances_of(old_spec: &Value) -> IngressAllowances {
    let secrets = items(old_spec, "tls").iter().map(|tls| text(tls, "secretName"));
    let mut wildcards = items(old_spec, "rules").iter().filter(|rule| text(rule, "host").contains('*'));
    IngressAllowances {
        any_secret_name: secrets.into_iter().any(|name| !secret_name_sentences(name).is_empty()),
        any_wildcard_rule: wildcards.any(|rule| !http_errors(&rule["http"], &SPEC).is_empty()),
    }
}

fn secret_name_sentences(name: &str) -> Vec<String> {
    if name.is_empty() { Vec::new() } else { check_dns1123_subdomain(name) }
}

fn tls_errors(tls: &Value, allowances: IngressAllowances, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let hosts = path.child("hosts");
    for (index, host) in texts(tls, "hosts").into_iter().enumerate() {
        errors.extend(invalid_for(hosts.index(index), host, host_sentences(host)));
    }
    if !allowances.any_secret_name {
        let name = text(tls, "secretName");
        errors.extend(invalid_for(path.child("secretName"), name, secret_name_sentences(name)));
    }
    errors
}

/// The sentences for a host, which may begin with a wildcard.
fn host_sentences(host: &str) -> Vec<String> {
    if host.contains('*') { check_wildcard_subdomain(host) } else { check_dns1123_subdomain(host) }
}

fn rule_errors(rule: &Value, allowances: IngressAllowances, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let host = text(rule, "host");
    if !host.is_empty() {
        if is_ip(host) {
            errors.push(FieldError::invalid(path.child("host"), host, "must be a DNS name, not an IP address"));
        }
        errors.extend(invalid_for(path.child("host"), host, host_sentences(host)));
    }
    if !host.contains('*') || !allowances.any_wildcard_rule {
        errors.append(http_errors(&rule["http"], path));
    }
    errors
}

fn http_errors(http: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if http.is_null() {
        return errors;
    }
    let path = path.child("http");
    let (paths, path) = (items(http, "paths"), path.child("paths"));
    if paths.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    for (index, entry) in paths.iter().enumerate() {
        errors.append(path_errors(entry, &path.index(index)));
    }
    errors
}

fn path_errors(entry: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
    const SUFFIXES: [&str; 2] = ["/..", "/."];
    const TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
    let Some(path_type) = entry["pathType"].as_str() else {
        return FieldError::required(path.child("pathType"), "pathType must be specified").into();
    };
    let mut errors = FieldErrors::new();
    let value = text(entry, "path");
    let is_relative = !value.starts_with('/');
    let invalid = |why: String| FieldError::invalid(path.child("path"), value, why);
    match path_type {
        "Exact" | "Prefix" => {
            errors.extend(is_relative.then(|| invalid("must be an absolute path".to_owned())));
            let sequences = SEQUENCES.iter().filter(|sequence| value.contains(*sequence));
            errors.extend(sequences.map(|sequence| invalid(format!("must not contain '{sequence}'"))));
            let suffixes = SUFFIXES.iter().filter(|suffix| value.ends_with(*suffix));
            errors.extend(suffixes.map(|suffix| invalid(format!("cannot end with '{suffix}'"))));
        }
        "ImplementationSpecific" => {
            let is_wrong = is_relative && !value.is_empty();
            errors.extend(is_wrong.then(|| invalid("must be an absolute path".to_owned())));
        }
        other => errors.push(FieldError::not_supported(path.child("pathType"), typed_text(other), &TYPES)),
    }
    errors.append(backend_errors(&entry["backend"], &path.child("backend")));
    errors
}

fn backend_errors(backend: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    match (resource.is_null(), service.is_null()) {
        (false, false) => FieldError::invalid(path, "", "cannot set both resource and service backends").into(),
        (false, true) => reference_errors(resource, &path.child("resource")),
        (true, false) => service_errors(service, path),
        (true, true) => FieldError::invalid(path, "", "resource or service backend is required").into(),
    }
}

/// Errors of a reference to an object in the same namespace.
fn reference_errors(reference: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if let Some(group) = reference["apiGroup"].as_str() {
        errors.extend(invalid_for(path.child("apiGroup"), group, check_dns1123_subdomain(group)));
    }
    for field in ["kind", "name"] {
        errors.extend(required_text_errors(path.child(field), text(reference, field), check_path_segment));
    }
    errors
}

fn service_errors(service: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let service_path = path.child("service");
    let port_path = service_path.child("port");
    let mut errors = FieldErrors::new();
    errors.extend(required_text_errors(service_path.child("name"), text(service, "name"), check_dns1123_label));
    let (name, number) = (text(&service["port"], "name"), service["port"]["number"].as_i64().unwrap_or_default());
    match (name, number) {
        ("", 0) => errors.push(FieldError::required(path, "port name or number is required")),
        ("", number) => {
            let error = |why| FieldError::invalid(port_path.child("number"), number, why);
            errors.extend(check_port_number(number).map(error));
        }
        (name, 0) => errors.extend(invalid_for(port_path.child("name"), name, check_port_name(name))),
        _ => errors.push(FieldError::invalid(path, "", "cannot set both port name & port number")),
    }
    errors
}

/// Validates the status of an Ingress.
fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    let balancer = STATUS.child("loadBalancer");
    let path = balancer.child("ingress");
    let addresses = |status: &'_ Value| items(&status["loadBalancer"], "ingress").to_vec();
    let old_addresses = addresses(input.old_field("status"));
    let old_ips: HashSet<&str> = old_addresses.iter().map(|address| text(address, "ip")).collect();
    let mut errors = input.metadata_update_errors();
    for (index, address) in items(&input.field("status")["loadBalancer"], "ingress").iter().enumerate() {
        let path = path.index(index);
        let (ip, hostname) = (text(address, "ip"), text(address, "hostname"));
        if !ip.is_empty() && !old_ips.contains(ip) {
            errors.extend(check_ip(&path.child("ip"), ip));
        }
        if !hostname.is_empty() {
            errors.extend(invalid_for(path.child("hostname"), hostname, check_dns1123_subdomain(hostname)));
            if is_ip(hostname) {
                let why = "must be a DNS name, not an IP address";
                errors.push(FieldError::invalid(path.child("hostname"), hostname, why));
            }
        }
    }
    errors
}

fn ingress_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    if written.subresource == "status" {
        let balancer = STATUS.child("loadBalancer");
        let path = balancer.child("ingress");
        let addresses = items(&written.field("status")["loadBalancer"], "ingress").iter().enumerate();
        let warnings = addresses.map(|(index, address)| ip_warning(&path.index(index), text(address, "ip")));
        return warnings.flatten().collect();
    }
    let has_annotation = ObjectMetaView::of_map(written.object).annotation(CLASS_ANNOTATION).is_some();
    let is_deprecated = written.old.is_none() && has_annotation && written.field("spec")["ingressClassName"].is_null();
    let quoted = GoQuoted(CLASS_ANNOTATION);
    let warning = || format!("annotation {quoted} is deprecated, please use 'spec.ingressClassName' instead");
    is_deprecated.then(warning).into_iter().collect()
}

fn print_ingress(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let class = object.pointer("/spec/ingressClassName").and_then(Value::as_str);
    let addresses: BTreeSet<&str> = items_at(object, "/status/loadBalancer/ingress")
        .iter()
        .map(|address| first_non_empty(text_at(address, "/ip"), text_at(address, "/hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    let ports = if items_at(object, "/spec/tls").is_empty() { "80" } else { "80, 443" };
    vec![
        printer.name(),
        class.unwrap_or("<none>").into(),
        format_hosts(items_at(object, "/spec/rules")).into(),
        addresses.into_iter().collect::<Vec<_>>().join(",").into(),
        ports.into(),
        printer.age(),
    ]
}

/// The first hosts, and the number of further rules (`formatHosts`).
fn format_hosts(rules: &[Value]) -> String {
    let mut hosts = Vec::new();
    let mut has_more = false;
    for rule in rules {
        has_more |= hosts.len() == MAX_HOSTS;
        let host = text(rule, "host");
        if !has_more && !host.is_empty() {
            hosts.push(host);
        }
    }
    let listed = hosts.join(",");
    match has_more {
        _ if hosts.is_empty() => "*".to_owned(),
        true => format!("{listed} + {} more...", rules.len().saturating_sub(MAX_HOSTS)),
        false => listed,
    }
}
