//! EndpointSlices (`pkg/registry/discovery/endpointslice/strategy.go`, `pkg/apis/discovery/validation/validation.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_canonical_ip, check_endpoint_ip, check_ip, is_ipv6};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_label_value, check_qualified_name};
use serde_json::Value;

use super::cells::{CellPrinter, MAX_LISTED, items_at, list_or_unset, text_at};
use super::validation::{PROTOCOLS, ValidationInput, address_warnings, invalid_for, items, text};
use super::{GenerationRule, KindRules, Object, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule {
        metadata_field: Some("labels"),
        ..GenerationRule::of(&["addressType", "endpoints", "ports"])
    },
    prepare_new: |_, object| drop_topology(object),
    prepare_replacement: |_, object| drop_topology(object),
    validate: validate_endpoint_slice,
    warnings: slice_warnings,
    cells: print_slice,
    ..KindRules::of("discovery.k8s.io", "endpointslices")
};

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const MAX_ADDRESSES: usize = 100;
const MAX_ENDPOINTS: usize = 1000;
const MAX_HINTS: usize = 8;
const MAX_PORTS: usize = 20_000;

/// Validates an EndpointSlice. Endpoints that do not change are not validated again.
fn validate_endpoint_slice(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_errors();
    let address_type = input.field("addressType").as_str().unwrap_or_default();
    match address_type {
        "" => errors.push(FieldError::required("addressType", "")),
        known if ADDRESS_TYPES.contains(&known) => {}
        other => errors.push(FieldError::not_supported("addressType", other, &ADDRESS_TYPES)),
    }
    errors.append(ports_errors(input.field("ports"), &FieldPath::root("ports")));
    let endpoints = input.field("endpoints");
    if input.old.is_none() || input.old_field("endpoints") != endpoints {
        errors.append(endpoints_errors(endpoints, address_type, &FieldPath::root("endpoints")));
    }
    if input.old.is_some() && input.old_field("addressType") != input.field("addressType") {
        errors.push(FieldError::invalid("addressType", address_type, "field is immutable"));
    }
    errors
}

fn ports_errors(ports: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let ports = ports.as_array().map_or(&[][..], Vec::as_slice);
    if ports.len() > MAX_PORTS {
        return FieldError::too_many(path, ports.len(), MAX_PORTS).into();
    }
    let mut errors = FieldErrors::new();
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

fn endpoints_errors(endpoints: &Value, address_type: &str, path: &FieldPath<'_>) -> FieldErrors {
    let endpoints = endpoints.as_array().map_or(&[][..], Vec::as_slice);
    if endpoints.len() > MAX_ENDPOINTS {
        return FieldError::too_many(path, endpoints.len(), MAX_ENDPOINTS).into();
    }
    let mut errors = FieldErrors::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        errors.append(endpoint_errors(endpoint, address_type, &path.index(index)));
    }
    errors
}

fn endpoint_errors(endpoint: &Value, address_type: &str, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
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
    errors.append(hints_errors(&endpoint["hints"], &path.child("hints")));
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

fn hints_errors(hints: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
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

/// Drops the topology of endpoints, which cannot be written in v1 (`dropTopologyOnV1`).
fn drop_topology(object: &mut Object) {
    for endpoint in object.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(endpoint) = endpoint.as_object_mut() {
            endpoint.remove("deprecatedTopology");
        }
    }
}

fn slice_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let is_deprecated = written.old.is_none() && written.field("addressType") == "FQDN";
    let deprecated = is_deprecated.then(|| "spec.addressType: FQDN endpoints are deprecated".to_owned());
    deprecated.into_iter().chain(endpoint_warnings(written.field("endpoints"))).collect()
}

fn endpoint_warnings(endpoints: &Value) -> Vec<String> {
    let root = FieldPath::root("endpoints");
    let endpoints = endpoints.as_array().into_iter().flatten().enumerate();
    let of_endpoint = |(index, endpoint): (usize, &Value)| {
        address_warnings(endpoint, "addresses", &root.index(index).child("addresses"))
    };
    endpoints.flat_map(of_endpoint).collect()
}

fn print_slice(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    vec![
        printer.name(),
        text_at(object, "/addressType").into(),
        format_slice_ports(object).into(),
        format_slice_endpoints(object).into(),
        printer.age(),
    ]
}

/// Ports of an EndpointSlice (`formatDiscoveryPorts`).
fn format_slice_ports(slice: &Value) -> String {
    let ports = items_at(slice, "/ports");
    let format = |port: &Value| match (port.get("port").and_then(Value::as_i64), port.get("name")) {
        (Some(number), _) => number.to_string(),
        (None, Some(Value::String(name))) => name.clone(),
        (None, _) => "*".to_owned(),
    };
    list_or_unset(&ports.iter().take(MAX_LISTED).map(format).collect::<Vec<_>>(), ports.len())
}

/// Addresses of an EndpointSlice (`formatDiscoveryEndpoints`).
fn format_slice_endpoints(slice: &Value) -> String {
    let addresses = || {
        let endpoints = items_at(slice, "/endpoints").iter();
        endpoints.flat_map(|endpoint| items_at(endpoint, "/addresses")).filter_map(Value::as_str)
    };
    let listed: Vec<String> = addresses().take(MAX_LISTED).map(str::to_owned).collect();
    list_or_unset(&listed, addresses().count())
}
