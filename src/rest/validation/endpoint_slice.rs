//! Validation of EndpointSlices (`pkg/apis/discovery/validation/validation.go`).

use serde_json::Value;

use super::{PROTOCOLS, ValidationInput, invalid_for, items, text};
use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::kubeapi::ip_address::{check_canonical_ip, check_endpoint_ip, check_ip, is_ipv6};
use crate::kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_label_value, check_qualified_name};

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const MAX_ADDRESSES: usize = 100;
const MAX_ENDPOINTS: usize = 1000;
const MAX_HINTS: usize = 8;
const MAX_PORTS: usize = 20_000;

/// Validates an EndpointSlice. Endpoints that do not change are not validated again.
pub(super) fn validate_endpoint_slice(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let mut errors = input.metadata_errors();
    let address_type = input.field("addressType").as_str().unwrap_or_default();
    match address_type {
        "" => errors.push(FieldError::required("addressType", "")),
        known if ADDRESS_TYPES.contains(&known) => {}
        other => errors.push(FieldError::not_supported("addressType", other, &ADDRESS_TYPES)),
    }
    errors.extend(ports_errors(input.field("ports"), &FieldPath::root("ports")));
    let endpoints = input.field("endpoints");
    if input.old.is_none() || input.old_field("endpoints") != endpoints {
        errors.extend(endpoints_errors(endpoints, address_type, &FieldPath::root("endpoints")));
    }
    if input.old.is_some() && input.old_field("addressType") != input.field("addressType") {
        errors.push(FieldError::invalid("addressType", address_type, "field is immutable"));
    }
    errors
}

fn ports_errors(ports: &Value, path: &FieldPath<'_>) -> Vec<FieldError> {
    let ports = ports.as_array().map_or(&[][..], Vec::as_slice);
    if ports.len() > MAX_PORTS {
        return vec![FieldError::too_many(path, ports.len(), MAX_PORTS)];
    }
    let mut errors = Vec::new();
    let mut names = std::collections::HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            errors.extend(invalid_for(path.child("name"), name, check_dns1123_label(name)));
        }
        if !names.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        }
        let protocol = text(port, "protocol");
        if !PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(path.child("protocol"), protocol, &PROTOCOLS));
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            errors.extend(invalid_for(path.child("appProtocol"), protocol, check_qualified_name(protocol)));
        }
    }
    errors
}

fn endpoints_errors(endpoints: &Value, address_type: &str, path: &FieldPath<'_>) -> Vec<FieldError> {
    let endpoints = endpoints.as_array().map_or(&[][..], Vec::as_slice);
    if endpoints.len() > MAX_ENDPOINTS {
        return vec![FieldError::too_many(path, endpoints.len(), MAX_ENDPOINTS)];
    }
    let all = endpoints.iter().enumerate();
    all.flat_map(|(index, endpoint)| endpoint_errors(endpoint, address_type, &path.index(index))).collect()
}

fn endpoint_errors(endpoint: &Value, address_type: &str, path: &FieldPath<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (addresses, addresses_path) = (items(endpoint, "addresses"), path.child("addresses"));
    match addresses.len() {
        0 => errors.push(FieldError::required(addresses_path, "must contain at least 1 address")),
        MAX_ADDRESSES.. if addresses.len() > MAX_ADDRESSES => {
            errors.push(FieldError::too_many(addresses_path, addresses.len(), MAX_ADDRESSES));
        }
        _ => {}
    }
    for (index, address) in addresses.iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        errors.extend(address_errors(address, address_type, &addresses_path, index));
    }
    if let Some(node) = endpoint["nodeName"].as_str() {
        errors.extend(invalid_for(path.child("nodeName"), node, check_dns1123_subdomain(node)));
    }
    if let Some(hostname) = endpoint["hostname"].as_str() {
        errors.extend(invalid_for(path.child("hostname"), hostname, check_dns1123_label(hostname)));
    }
    errors.extend(hints_errors(&endpoint["hints"], &path.child("hints")));
    errors
}

/// Errors of the address at a place of a list.
fn address_errors(address: &str, address_type: &str, list: &FieldPath<'_>, index: usize) -> Vec<FieldError> {
    let path = list.index(index);
    let (mut errors, is_right_family, family) = match address_type {
        "IPv4" => (check_ip(&path, address), !is_ipv6(address), "must be an IPv4 address"),
        "IPv6" => (check_canonical_ip(&path, address), is_ipv6(address), "must be an IPv6 address"),
        "FQDN" => return domain_name_error(address, &path).into_iter().collect(),
        _ => return Vec::new(),
    };
    if errors.is_empty() {
        // At the list, as in Kubernetes.
        errors.extend((!is_right_family).then(|| FieldError::invalid(list, address, family)));
        errors.extend(check_endpoint_ip(&path, address));
    }
    errors
}

/// The error of a text that is no fully qualified domain name (`IsFullyQualifiedDomainName`).
fn domain_name_error(name: &str, path: &FieldPath<'_>) -> Option<FieldError> {
    if name.is_empty() {
        return Some(FieldError::required(path, ""));
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let sentences = check_dns1123_subdomain(name);
    if !sentences.is_empty() {
        return Some(FieldError::invalid(path, name, sentences.join(",")));
    }
    if !name.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        return Some(FieldError::invalid(path, name, why));
    }
    name.split('.').find_map(|label| {
        let sentences = check_dns1123_label(label);
        (!sentences.is_empty()).then(|| FieldError::invalid(path, label, sentences.join(",")))
    })
}

fn hints_errors(hints: &Value, path: &FieldPath<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rules = [("forZones", check_label_value as fn(&str) -> Vec<String>), ("forNodes", check_dns1123_subdomain)];
    for (field, check) in rules {
        let (path, entries) = (path.child(field), items(hints, field));
        if entries.len() > MAX_HINTS {
            errors.push(FieldError::too_many(path, entries.len(), MAX_HINTS));
            return errors;
        }
        let mut names = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let (path, name) = (path.index(index), text(entry, "name"));
            if names.contains(&name) {
                errors.push(FieldError::duplicate(path.child("name"), name));
            }
            names.push(name);
            errors.extend(invalid_for(path.child("name"), name, check(name)));
        }
    }
    errors
}
