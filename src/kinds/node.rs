//! Nodes (`pkg/registry/core/node/strategy.go`, `ValidateNode`, `ValidateNodeUpdate`).

use std::collections::{BTreeSet, HashSet};

use kubeapi::GoQuoted;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::{check_cidr, cidr_warnings, is_ipv6_cidr};
use kubeapi::json::write_json;
use kubeapi::names::{MAX_DNS_SUBDOMAIN, check_label_value, check_qualified_name};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Value, json};

use super::cells::{CellPrinter, first_non_empty, items_at, text_at};
use super::field_rules::{internal_struct, typed_text};
use super::resource_names::{amount_errors, amounts};
use super::selectable_fields::SelectableFields;
use super::validation::{ValidationInput, invalid_for, items, text, texts};
use super::{KindRules, Object, ObjectUpdate, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    selectable: SelectableFields::of(&["spec.unschedulable"]),
    convert_body: unite_pod_ranges,
    prepare_new: |_, object| drop_config(object),
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => update_errors(input),
        _ => validate_node(input),
    },
    warnings: node_warnings,
    cells: print_node,
    ..KindRules::of("", "nodes")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");
const STATUS: FieldPath<'static> = FieldPath::root("status");
const METADATA: FieldPath<'static> = FieldPath::root("metadata");

/// Makes `podCIDR` the first of `podCIDRs`; the former counts where they differ (`Convert_v1_NodeSpec_To_core_NodeSpec`).
fn unite_pod_ranges(object: &mut Object) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let single = spec.get("podCIDR").and_then(Value::as_str).unwrap_or_default().to_owned();
    let first = spec.get("podCIDRs").and_then(|ranges| ranges[0].as_str()).map(str::to_owned);
    match first {
        Some(first) if single.is_empty() || single == first => drop(spec.insert("podCIDR".to_owned(), json!(first))),
        _ if single.is_empty() => {}
        _ => drop(spec.insert("podCIDRs".to_owned(), json!([single]))),
    }
}

/// Drops what belonged to dynamic configuration of kubelets, a feature that is gone.
fn drop_config(object: &mut Object) {
    for (part, field) in [("spec", "configSource"), ("status", "config")] {
        if let Some(part) = object.get_mut(part).and_then(Value::as_object_mut) {
            part.remove(field);
        }
    }
}

fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    let (part, field) = match update.subresource {
        "status" => ("status", "config"),
        _ => ("spec", "configSource"),
    };
    let is_in_use = update.old.get(part).is_some_and(|part| !part[field].is_null());
    if let Some(part) = object.get_mut(part).and_then(Value::as_object_mut)
        && !is_in_use
    {
        part.remove(field);
    }
}

/// Validates a Node.
fn validate_node(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, status) = (input.field("spec"), input.field("status"));
    let mut errors = input.metadata_errors();
    errors.append(taint_errors(items(spec, "taints"), &METADATA.child("taints")));
    errors.append(capacity_errors(status));
    if let Some(capacity) = status["nodeInfo"]["swap"]["capacity"].as_i64().filter(|capacity| *capacity <= 0) {
        let path = METADATA.child("nodeSwapStatus");
        errors.push(FieldError::invalid(path.child("capacity"), capacity, "must be greater than zero"));
    }
    errors.append(feature_errors(status));
    errors.append(range_errors(spec));
    if input.old.is_some() {
        errors.append(update_errors(input));
    }
    errors
}

fn range_errors(spec: &Value) -> FieldErrors {
    let (ranges, path) = (texts(spec, "podCIDRs"), SPEC.child("podCIDRs"));
    let mut errors = FieldErrors::new();
    for (index, range) in ranges.iter().enumerate() {
        errors.extend(check_cidr(&path.index(index), range));
    }
    if ranges.len() < 2 {
        return errors;
    }
    let families: Vec<Option<bool>> = ranges.iter().map(|range| is_ipv6_cidr(range)).collect();
    let wrong = ranges.iter().zip(&families).enumerate().find(|(_, (_, family))| family.is_none());
    if let Some((index, (range, _))) = wrong {
        let why = format!("invalid CIDR[{index}]: <nil> (invalid CIDR address: {range})");
        let why = format!("invalid PodCIDRs. failed to check with dual stack with error:{why}");
        errors.push(FieldError::internal(path, why));
    }
    let is_dual = families.contains(&Some(true)) && families.contains(&Some(false)) && !families.contains(&None);
    if !is_dual || ranges.len() > 2 {
        let why = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(path, BadValue::from(&spec["podCIDRs"]), why));
    }
    errors
}

/// Errors of taints (`validateNodeTaints`).
fn taint_errors(taints: &[Value], path: &FieldPath<'_>) -> FieldErrors {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = path.index(index);
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
        let sentences = check_label_value(value);
        if !sentences.is_empty() {
            errors.push(FieldError::invalid(path.child("value"), value, sentences.join(";")));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(path.child("effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(path.child("effect"), typed_text(effect), &EFFECTS));
        }
        if !seen.insert((effect, key)) {
            let json = |field: &str| write_json(&text(taint, field).into());
            let shown = internal_struct(&[
                ("Key", json("key")),
                ("Value", json("value")),
                ("Effect", json("effect")),
                ("TimeAdded", write_json(&taint["timeAdded"])),
            ]);
            let mut error = FieldError::duplicate(path, shown);
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
    errors
}

fn capacity_errors(status: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for field in ["capacity", "allocatable"] {
        let path = STATUS.child(field);
        for (name, amount) in amounts(&status[field]) {
            errors.extend(amount_errors(path.child(name), name, &amount));
        }
    }
    errors
}

/// Errors of the features that a kubelet declares, which are sorted.
fn feature_errors(status: &Value) -> FieldErrors {
    let (features, path) = (texts(status, "declaredFeatures"), STATUS.child("declaredFeatures"));
    let mut errors = FieldErrors::new();
    for (index, feature) in features.iter().enumerate() {
        if let Some(why) = feature_name_error(feature) {
            errors.push(FieldError::invalid(path.index(index), *feature, why));
        }
        let Some(next) = features.get(index + 1) else { continue };
        let path = path.index(index + 1);
        if feature == next {
            errors.push(FieldError::duplicate(path, *next));
        } else if feature > next {
            errors.push(FieldError::invalid(path, *next, "list must be sorted alphabetically"));
        }
    }
    errors
}

/// What is wrong with the name of a feature: words in camel case, separated by slashes; the first begins with a capital.
fn feature_name_error(name: &str) -> Option<String> {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let starts_with_letter = |word: &str| word.starts_with(|first: char| first.is_ascii_alphabetic());
    let mut words = name.split('/');
    let is_valid =
        words.next().is_some_and(|first| is_word(first) && first.starts_with(|c: char| c.is_ascii_uppercase()))
            && words.all(|word| is_word(word) && starts_with_letter(word));
    let quoted = GoQuoted(name);
    if name.len() > MAX_DNS_SUBDOMAIN {
        return Some(format!("invalid feature name {quoted}: must be no more than {MAX_DNS_SUBDOMAIN} characters"));
    }
    let rule = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or \
                MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
    (!is_valid).then(|| format!("invalid feature name {quoted}: {rule}"))
}

/// Errors of a change of a Node, or of its status.
fn update_errors(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, status, old_spec) = (input.field("spec"), input.field("status"), input.old_field("spec"));
    let mut errors = input.metadata_update_errors();
    errors.append(capacity_errors(status));
    errors.append(feature_errors(status));
    let mut addresses = HashSet::new();
    for (index, address) in items(status, "addresses").iter().enumerate() {
        let (address_type, value) = (text(address, "type"), text(address, "address"));
        if !addresses.insert((address_type, value)) {
            let json = |text: &str| write_json(&text.into());
            let shown = internal_struct(&[("Type", json(address_type)), ("Address", json(value))]);
            errors.push(FieldError::duplicate(STATUS.child("addresses").index(index), shown));
        }
    }
    let (ranges, old_ranges) = (texts(spec, "podCIDRs"), texts(old_spec, "podCIDRs"));
    if !old_ranges.is_empty() {
        let count = match ranges.len() == old_ranges.len() {
            true => ranges.iter().zip(&old_ranges).filter(|(new, old)| new != old).count(),
            false => 1,
        };
        let why = "node updates may not change podCIDR except from \"\" to valid";
        errors.extend((0..count).map(|_| FieldError::forbidden(SPEC.child("podCIDRs"), why)));
    }
    let old_provider = text(old_spec, "providerID");
    if !old_provider.is_empty() && old_provider != text(spec, "providerID") {
        let why = "node updates may not change providerID except from \"\" to valid";
        errors.push(FieldError::forbidden(SPEC.child("providerID"), why));
    }
    errors.append(taint_errors(items(spec, "taints"), &METADATA.child("taints")));
    if text(spec, "externalID") != text(old_spec, "externalID") {
        errors.push(FieldError::forbidden(SPEC.child("externalID"), "may not be updated"));
    }
    errors
}

fn node_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    if !written.subresource.is_empty() {
        return warnings;
    }
    let spec = written.field("spec");
    if !spec["configSource"].is_null() {
        warnings.push("spec.configSource: the feature is removed".to_owned());
    }
    if !text(spec, "externalID").is_empty() {
        warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    let path = SPEC.child("podCIDRs");
    for (index, range) in texts(spec, "podCIDRs").into_iter().enumerate() {
        warnings.extend(cidr_warnings(&path.index(index), range));
    }
    warnings
}

fn print_node(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    // The last of the conditions of one type counts.
    let ready = items_at(object, "/status/conditions").iter().rev().find(|condition| condition["type"] == "Ready");
    let mut status = match ready {
        None => "Unknown".to_owned(),
        Some(condition) if condition["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    let info = object.pointer("/status/nodeInfo").unwrap_or(&Value::Null);
    let of_info = |field: &str| first_non_empty(text(info, field), "<unknown>");
    let kernel = match text(info, "architecture") {
        "" => of_info("kernelVersion").to_owned(),
        architecture => format!("{} ({architecture})", of_info("kernelVersion")),
    };
    let address = |address_type: &str| {
        let mut addresses = items_at(object, "/status/addresses").iter();
        let found = addresses.find(|address| address["type"] == address_type);
        found.map_or("<none>", |address| text_at(address, "/address")).to_owned()
    };
    vec![
        printer.name(),
        status.into(),
        node_roles(object).into(),
        printer.age(),
        text(info, "kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        of_info("osImage").into(),
        kernel.into(),
        of_info("containerRuntimeVersion").into(),
    ]
}

/// The roles in the labels of a Node (`findNodeRoles`).
fn node_roles(node: &Value) -> String {
    let role = |(key, value): (&'_ str, &'_ str)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => role.to_owned(),
        None if key == "kubernetes.io/role" => value.to_owned(),
        None => String::new(),
    };
    let roles: BTreeSet<String> = ObjectMetaView::of(node).labels().map(role).filter(|role| !role.is_empty()).collect();
    match roles.into_iter().collect::<Vec<_>>().join(",") {
        none if none.is_empty() => "<none>".to_owned(),
        roles => roles,
    }
}
