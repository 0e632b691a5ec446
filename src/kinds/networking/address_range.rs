//! ServiceCIDRs and IPAddresses (`pkg/registry/networking/{servicecidr,ipaddress}/strategy.go`).

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_canonical_cidr, check_canonical_ip, is_ipv6_cidr};
use kubeapi::json::write_json;
use kubeapi::names::{NameRule, check_dns1123_subdomain, check_path_segment};
use serde_json::Value;

use crate::kinds::KindRules;
use crate::kinds::cells::{CellPrinter, items_at, text_at};
use crate::kinds::field_rules::{IMMUTABLE, internal_struct, is_same, required_text_errors, text_json};
use crate::kinds::validation::{ValidationInput, invalid_for, text, texts};

pub(super) static SERVICE_CIDR_RULES: KindRules = KindRules {
    validate: |input| match input.subresource {
        "status" => input.metadata_update_errors(),
        _ => validate_service_cidr(input),
    },
    cells: print_service_cidr,
    ..KindRules::of("networking.k8s.io", "servicecidrs")
};

pub(super) static IP_ADDRESS_RULES: KindRules = KindRules {
    name_rule: NameRule::PathSegment,
    validate: validate_ip_address,
    cells: print_ip_address,
    ..KindRules::of("networking.k8s.io", "ipaddresses")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Validates a ServiceCIDR. A second range may be added, nothing else changes.
fn validate_service_cidr(input: &ValidationInput<'_>) -> FieldErrors {
    let path = SPEC.child("cidrs");
    let spec = input.field("spec");
    if input.old.is_none() {
        let mut errors = input.metadata_errors();
        errors.append(range_errors(spec));
        return errors;
    }
    let mut errors = input.metadata_update_errors();
    let (new, old) = (texts(spec, "cidrs"), texts(input.old_field("spec"), "cidrs"));
    let mut changed = |count: usize| {
        let pairs = new.iter().zip(&old).take(count).enumerate().filter(|(_, (new, old))| new != old);
        errors.extend(pairs.map(|(index, (new, _))| FieldError::invalid(path.index(index), *new, IMMUTABLE)));
    };
    match (old.len(), new.len()) {
        (before, after) if before == after => changed(before),
        (1, 2) => {
            changed(1);
            errors.append(range_errors(spec));
        }
        _ => errors.push(FieldError::invalid(path, BadValue::from(&spec["cidrs"]), IMMUTABLE)),
    }
    errors
}

fn range_errors(spec: &Value) -> FieldErrors {
    let path = SPEC.child("cidrs");
    let ranges = texts(spec, "cidrs");
    match ranges.len() {
        0 => return FieldError::required(path, "at least one CIDR required").into(),
        1 | 2 => {}
        _ => {
            let value = internal_struct(&[("CIDRs", write_json(&spec["cidrs"]))]);
            return FieldError::invalid(path, value, "may only hold up to 2 values").into();
        }
    }
    let mut errors = FieldErrors::new();
    for (index, range) in ranges.iter().enumerate() {
        errors.extend(check_canonical_cidr(&path.index(index), range));
    }
    if let [first, second] = ranges[..]
        && let (Some(first), Some(second)) = (is_ipv6_cidr(first), is_ipv6_cidr(second))
        && first == second
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid(path, BadValue::from(&spec["cidrs"]), why));
    }
    errors
}

/// Validates an IPAddress, whose name is the address.
fn validate_ip_address(input: &ValidationInput<'_>) -> FieldErrors {
    let path = SPEC.child("parentRef");
    let reference = &input.field("spec")["parentRef"];
    let mut errors = name_errors(input);
    if reference.is_null() {
        errors.push(FieldError::required(path, ""));
    } else {
        errors.append(reference_errors(reference, &path));
    }
    errors.append(input.metadata_update_errors());
    if input.old.is_some() && !is_same(reference, &input.old_field("spec")["parentRef"]) {
        let fields = [("Group", "group"), ("Resource", "resource"), ("Namespace", "namespace"), ("Name", "name")];
        let value = match reference {
            Value::Null => BadValue::null(),
            reference => internal_struct(&fields.map(|(name, field)| (name, text_json(reference, field)))),
        };
        errors.push(FieldError::invalid(path, value, IMMUTABLE));
    }
    errors
}

/// Errors of the metadata, with the rule for addresses instead of that for names.
fn name_errors(input: &ValidationInput<'_>) -> FieldErrors {
    const NAME: &str = "metadata.name";
    let name = input.metadata().name();
    let (of_name, others) = input.metadata_errors().partition(|error| error.field == NAME);
    if name.is_empty() {
        let mut errors = of_name;
        errors.append(others);
        return errors;
    }
    let errors = check_canonical_ip(&FieldPath::root(NAME), name);
    let mut errors: FieldErrors = errors.into_iter().collect();
    errors.append(others);
    errors
}

fn reference_errors(reference: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (group, namespace) = (text(reference, "group"), text(reference, "namespace"));
    if !group.is_empty() {
        errors.extend(invalid_for(path.child("group"), group, check_dns1123_subdomain(group)));
    }
    for field in ["resource", "name"] {
        errors.extend(required_text_errors(path.child(field), text(reference, field), check_path_segment));
    }
    errors.extend(invalid_for(path.child("namespace"), namespace, check_path_segment(namespace)));
    errors
}

fn print_service_cidr(printer: &CellPrinter<'_>) -> Vec<Value> {
    let ranges: Vec<&str> = items_at(printer.object, "/spec/cidrs").iter().filter_map(Value::as_str).collect();
    vec![printer.name(), ranges.join(",").into(), printer.age()]
}

fn print_ip_address(printer: &CellPrinter<'_>) -> Vec<Value> {
    let reference = match printer.object.pointer("/spec/parentRef") {
        Some(reference @ Value::Object(_)) => {
            let (group, resource) = (text_at(reference, "/group"), text_at(reference, "/resource"));
            let resource = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            let namespace = match text_at(reference, "/namespace") {
                "" => String::new(),
                namespace => format!("/{namespace}"),
            };
            format!("{}{namespace}/{}", resource.to_lowercase(), text_at(reference, "/name"))
        }
        _ => "<none>".to_owned(),
    };
    vec![printer.name(), reference.into(), printer.age()]
}
