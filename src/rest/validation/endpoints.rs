//! Validation of Endpoints (`ValidateEndpoints`).

use serde_json::Value;

use super::{ValidationInput, invalid_for, items, protocol_error, text};
use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::kubeapi::ip_address::{check_endpoint_ip, check_ip};
use crate::kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_port_number, check_qualified_name};

/// Validates Endpoints. Subsets that do not change are not validated again.
pub(super) fn validate_endpoints(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let mut errors = input.metadata_update_errors();
    errors.extend(input.metadata_errors());
    let subsets = input.field("subsets");
    if input.old.is_some() && input.old_field("subsets") == subsets {
        return errors;
    }
    let path = FieldPath::root("subsets");
    for (index, subset) in subsets.as_array().into_iter().flatten().enumerate() {
        errors.extend(subset_errors(subset, &path.index(index)));
    }
    errors
}

fn subset_errors(subset: &Value, path: &FieldPath<'_>) -> Vec<FieldError> {
    const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];
    let mut errors = Vec::new();
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
