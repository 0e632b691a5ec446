//! Endpoints (`ValidateEndpoints`, `pkg/registry/core/endpoint/strategy.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_endpoint_ip, check_ip, ip_warning};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_port_number, check_qualified_name};
use serde_json::Value;

use super::KindRules;
use super::cells::{MAX_LISTED, integer, items_at, text_at, with_more};
use super::validation::{ValidationInput, invalid_for, items, protocol_error, text};

pub(super) static RULES: KindRules = KindRules {
    deprecation_warning: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    creates_on_update: true,
    validate: validate_endpoints,
    warnings: |written| subset_warnings(written.field("subsets")),
    cells: |printer| vec![printer.name(), format_endpoints(printer.object).into(), printer.age()],
    ..KindRules::of("", "endpoints")
};

/// Validates Endpoints. Subsets that do not change are not validated again.
fn validate_endpoints(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.append(input.metadata_errors());
    let subsets = input.field("subsets");
    if input.old.is_some() && input.old_field("subsets") == subsets {
        return errors;
    }
    let path = FieldPath::root("subsets");
    for (index, subset) in subsets.as_array().into_iter().flatten().enumerate() {
        errors.append(subset_errors(subset, &path.index(index)));
    }
    errors
}

fn subset_errors(subset: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];
    let mut errors = FieldErrors::new();
    if ADDRESSES.iter().all(|field| items(subset, field).is_empty()) {
        errors.push(FieldError::required(path, "must specify `addresses` or `notReadyAddresses`"));
    }
    for field in ADDRESSES {
        let path = path.child(field);
        let addresses = items(subset, field).iter().enumerate();
        errors.extend(addresses.flat_map(|(index, address)| address_errors(address, &path.index(index))));
    }
    let (ports, path) = (items(subset, "ports"), path.child("ports"));
    for (index, port) in ports.iter().enumerate() {
        errors.extend(port_errors(port, ports.len() > 1, &path.index(index)));
    }
    errors
}

fn address_errors(address: &Value, path: &FieldPath<'_>) -> Vec<FieldError> {
    let (ip, hostname) = (text(address, "ip"), text(address, "hostname"));
    let mut errors = check_ip(&path.child("ip"), ip);
    if !hostname.is_empty() {
        errors.extend(invalid_for(path.child("hostname"), hostname, check_dns1123_label(hostname)));
    }
    if let Some(node) = address["nodeName"].as_str() {
        errors.extend(invalid_for(path.child("nodeName"), node, check_dns1123_subdomain(node)));
    }
    errors.extend(check_endpoint_ip(&path.child("ip"), ip));
    errors
}

fn port_errors(port: &Value, needs_name: bool, path: &FieldPath<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match text(port, "name") {
        "" if needs_name => errors.push(FieldError::required(path.child("name"), "")),
        "" => {}
        name => errors.extend(invalid_for(path.child("name"), name, check_dns1123_label(name))),
    }
    let number = port["port"].as_i64().unwrap_or_default();
    errors.extend(check_port_number(number).map(|why| FieldError::invalid(path.child("port"), number, why)));
    errors.extend(protocol_error(port, path));
    if let Some(protocol) = port["appProtocol"].as_str() {
        errors.extend(invalid_for(path.child("appProtocol"), protocol, check_qualified_name(protocol)));
    }
    errors
}

/// Warnings about addresses.
fn subset_warnings(subsets: &Value) -> Vec<String> {
    let root = FieldPath::root("subsets");
    let mut warnings = Vec::new();
    for (index, subset) in subsets.as_array().into_iter().flatten().enumerate() {
        let subset_path = root.index(index);
        for field in ["addresses", "notReadyAddresses"] {
            let path = subset_path.child(field);
            warnings.extend(
                items(subset, field)
                    .iter()
                    .enumerate()
                    .filter_map(|(index, address)| ip_warning(&path.index(index).child("ip"), address["ip"].as_str()?)),
            );
        }
    }
    warnings
}

/// The first three addresses, and how many there are beyond them (`formatEndpoints`).
fn format_endpoints(endpoints: &Value) -> String {
    let subsets = items_at(endpoints, "/subsets");
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut listed = Vec::new();
    let mut count = 0;
    for subset in subsets {
        let addresses = items_at(subset, "/addresses");
        let ips = || addresses.iter().map(|address| text_at(address, "/ip"));
        let ports = items_at(subset, "/ports");
        if ports.is_empty() {
            count += addresses.len();
            listed.extend(ips().take(MAX_LISTED - listed.len()).map(str::to_owned));
        }
        for port in ports {
            count += addresses.len();
            let port = integer(port, "port");
            listed.extend(ips().take(MAX_LISTED - listed.len()).map(|ip| join_host_port(ip, port)));
        }
    }
    with_more(&listed, count)
}

fn join_host_port(ip: &str, port: i64) -> String {
    if ip.contains([':', '%']) { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}
