//! NetworkPolicies (`pkg/registry/networking/networkpolicy/strategy.go`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_cidr, cidr_warnings, is_cidr, is_strict_subset};
use kubeapi::names::{check_port_name, check_port_number};
use serde_json::Value;

use crate::kinds::cells::CellPrinter;
use crate::kinds::field_rules::{
    enum_error, format_label_selector, is_invalid_selector, label_selector_errors, typed_text,
};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};
use crate::kinds::{GenerationRule, KindRules, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    validate: validate_policy,
    warnings: range_warnings,
    cells: print_policy,
    ..KindRules::of("networking.k8s.io", "networkpolicies")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// The fields of a direction: its rules, and the peers in a rule.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// What a stored policy has already, and may therefore have.
struct PolicyAllowances<'v> {
    any_label_value: bool,
    ranges: HashSet<&'v str>,
}

/// Validates a NetworkPolicy.
fn validate_policy(input: &ValidationInput<'_>) -> FieldErrors {
    const POLICY_TYPES: [&str; 2] = ["Ingress", "Egress"];
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let allowances = PolicyAllowances {
        any_label_value: is_invalid_selector(&old_spec["podSelector"]),
        ranges: ranges_of(old_spec),
    };
    let path = SPEC.child("podSelector");
    errors.append(label_selector_errors(&spec["podSelector"], allowances.any_label_value, &path));
    for (direction, peers) in DIRECTIONS {
        let path = SPEC.child(direction);
        for (index, rule) in items(spec, direction).iter().enumerate() {
            let path = path.index(index);
            for (index, port) in items(rule, "ports").iter().enumerate() {
                errors.append(port_errors(port, &path.child("ports").index(index)));
            }
            for (index, peer) in items(rule, peers).iter().enumerate() {
                errors.append(peer_errors(peer, &allowances, &path.child(peers).index(index)));
            }
        }
    }
    let (types, path) = (texts(spec, "policyTypes"), SPEC.child("policyTypes"));
    if types.len() > POLICY_TYPES.len() {
        let why = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid(path, BadValue::from(&spec["policyTypes"]), why));
        return errors;
    }
    for (index, policy_type) in types.into_iter().enumerate() {
        if !POLICY_TYPES.contains(&policy_type) {
            errors.push(FieldError::not_supported(path.index(index), typed_text(policy_type), &POLICY_TYPES));
        }
    }
    errors
}

/// The address blocks of a specification, with their paths.
fn blocks(spec: &Value) -> impl Iterator<Item = (&'static str, usize, &'static str, usize, &Value)> {
    let rules = DIRECTIONS.into_iter().flat_map(move |(direction, peers)| {
        items(spec, direction).iter().enumerate().map(move |(index, rule)| (direction, index, peers, rule))
    });
    rules.flat_map(|(direction, index, peers, rule)| {
        let peers_of_rule = items(rule, peers).iter().enumerate();
        peers_of_rule.map(move |(peer_index, peer)| (direction, index, peers, peer_index, &peer["ipBlock"]))
    })
}

fn ranges_of(spec: &Value) -> HashSet<&str> {
    let ranges = blocks(spec).flat_map(|(.., block)| block["cidr"].as_str().into_iter().chain(texts(block, "except")));
    ranges.collect()
}

fn port_errors(port: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    errors.extend(enum_error(path.child("protocol"), &port["protocol"], &["TCP", "UDP", "SCTP"]));
    let end = port["endPort"].as_i64();
    let end_path = path.child("endPort");
    match (&port["port"], end) {
        (Value::String(name), end) => {
            if let Some(end) = end {
                let why = "may not be specified when `port` is non-numeric";
                errors.push(FieldError::invalid(end_path, end, why));
            }
            errors.extend(invalid_for(path.child("port"), name, check_port_name(name)));
        }
        (Value::Null, Some(end)) => {
            errors.push(FieldError::invalid(end_path, end, "may not be specified when `port` is not specified"));
        }
        (Value::Null, None) => {}
        (number, end) => {
            let number = number.as_i64().unwrap_or_default();
            let invalid = |path: FieldPath<'_>, number: i64| {
                check_port_number(number).map(|why| FieldError::invalid(path, number, why))
            };
            errors.extend(invalid(path.child("port"), number));
            if let Some(end) = end {
                if end < number {
                    errors.push(FieldError::invalid(end_path, number, "must be greater than or equal to `port`"));
                }
                errors.extend(invalid(end_path, end));
            }
        }
    }
    errors
}

fn peer_errors(peer: &Value, allowances: &PolicyAllowances<'_>, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut count = 0;
    for field in ["podSelector", "namespaceSelector"].into_iter().filter(|field| !peer[*field].is_null()) {
        count += 1;
        errors.append(label_selector_errors(&peer[field], allowances.any_label_value, &path.child(field)));
    }
    let block = &peer["ipBlock"];
    if !block.is_null() {
        count += 1;
        errors.append(block_errors(block, allowances, &path.child("ipBlock")));
    }
    if count == 0 {
        errors.push(FieldError::required(path, "must specify a peer"));
    } else if count > 1 && !block.is_null() {
        errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
    }
    errors
}

fn block_errors(block: &Value, allowances: &PolicyAllowances<'_>, path: &FieldPath<'_>) -> FieldErrors {
    let (range, range_path) = (text(block, "cidr"), path.child("cidr"));
    if range.is_empty() {
        return FieldError::required(range_path, "").into();
    }
    let check = |path: &FieldPath<'_>, range: &str| match allowances.ranges.contains(range) {
        true => Vec::new(),
        false => check_cidr(path, range),
    };
    let mut errors: FieldErrors = check(&range_path, range).into_iter().collect();
    if !is_cidr(range) {
        return errors;
    }
    for (index, exception) in texts(block, "except").into_iter().enumerate() {
        let path = path.child("except");
        let path = path.index(index);
        errors.extend(check(&path, exception));
        if is_cidr(exception) && !is_strict_subset(exception, range) {
            errors.push(FieldError::invalid(path, exception, "must be a strict subset of `cidr`"));
        }
    }
    errors
}

fn range_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (direction, index, peers, peer_index, block) in blocks(written.field("spec")) {
        let path = SPEC.child(direction);
        let path = path.index(index);
        let path = path.child(peers);
        let path = path.index(peer_index);
        let path = path.child("ipBlock");
        warnings.extend(cidr_warnings(&path.child("cidr"), text(block, "cidr")));
        for (index, exception) in texts(block, "except").into_iter().enumerate() {
            warnings.extend(cidr_warnings(&path.child("except").index(index), exception));
        }
    }
    warnings
}

fn print_policy(printer: &CellPrinter<'_>) -> Vec<Value> {
    let selector = printer.object.pointer("/spec/podSelector").unwrap_or(&Value::Null);
    vec![printer.name(), format_label_selector(selector).into(), printer.age()]
}
