//! RuntimeClasses (`pkg/registry/node/runtimeclass/strategy.go`, `pkg/apis/node/validation/validation.go`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use kubeapi::names::{check_dns1123_label, check_label_value, check_qualified_name};
use kubeapi::object_meta::validate_labels;
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::cells::text_at;
use super::field_rules::{immutable_error, internal_struct, required_text_errors, text_json, typed_text};
use super::node_selector::deprecated_label_text;
use super::resource_names::{amount_errors, amounts, container_resource_errors};
use super::validation::{ValidationInput, invalid_for, items, text};
use super::{KindRules, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    creates_on_update: true,
    allows_unconditional_update: false,
    validate: validate_class,
    warnings: selector_warnings,
    cells: |printer| vec![printer.name(), text_at(printer.object, "/handler").into(), printer.age()],
    ..KindRules::of("node.k8s.io", "runtimeclasses")
};

const SCHEDULING: FieldPath<'static> = FieldPath::root("scheduling");

/// Validates a RuntimeClass.
fn validate_class(input: &ValidationInput<'_>) -> FieldErrors {
    const HANDLER: FieldPath<'static> = FieldPath::root("handler");
    let handler = input.field("handler");
    let mut errors = input.generic_metadata_errors();
    errors.extend(required_text_errors(HANDLER, handler.as_str().unwrap_or_default(), check_dns1123_label));
    errors.append(overhead_errors(input.field("overhead")));
    let scheduling = input.field("scheduling");
    let labels = scheduling["nodeSelector"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    validate_labels(labels, &SCHEDULING.child("nodeSelector"), &mut errors);
    errors.append(toleration_errors(items(scheduling, "tolerations"), &SCHEDULING.child("tolerations")));
    errors.append(input.metadata_update_errors());
    if input.old.is_some() {
        errors.extend(immutable_error(HANDLER, handler, input.old_field("handler")));
    }
    errors
}

/// Errors of the resources that a runtime uses, which are validated as limits.
fn overhead_errors(overhead: &Value) -> FieldErrors {
    const OVERHEAD: FieldPath<'static> = FieldPath::root("overhead");
    let path = OVERHEAD.child("limits");
    let mut errors = FieldErrors::new();
    let (mut has_compute, mut has_pages) = (false, false);
    for (name, amount) in amounts(&overhead["podFixed"]) {
        let path = path.key(name);
        errors.extend(container_resource_errors(path, name));
        errors.extend(amount_errors(path, name, &amount));
        if let Some(size) = name.strip_prefix("hugepages-") {
            has_pages = true;
            if !is_multiple(&amount, size) {
                let why = format!("{amount} is not positive integer multiple of {name}");
                errors.push(FieldError::invalid(path, &amount.to_string(), why));
            }
        }
        has_compute |= matches!(name, "cpu" | "memory");
    }
    if has_pages && !has_compute {
        errors.push(FieldError::forbidden(OVERHEAD, "HugePages require cpu or memory"));
    }
    errors
}

/// Whether an amount of memory is that of whole pages.
fn is_multiple(amount: &Quantity, page_size: &str) -> bool {
    let Ok(size) = Quantity::parse(page_size) else { return false };
    size.value() > 0 && size.milli_value() % 1000 == 0 && amount.value() % size.value() == 0
}

/// Errors of tolerations, which are unique (`ValidateTolerations`).
fn toleration_errors(tolerations: &[Value], path: &FieldPath<'_>) -> FieldErrors {
    const OPERATORS: [&str; 4] = ["Equal", "Exists", "Lt", "Gt"];
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let mut errors = FieldErrors::new();
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let field = |name: &str| text(toleration, name);
        let (key, operator, value, effect) = (field("key"), field("operator"), field("value"), field("effect"));
        let operator_path = path.child("operator");
        if !key.is_empty() {
            errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(operator_path, typed_text(operator), why));
        }
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(path.child("effect"), typed_text(effect), why));
        }
        match operator {
            "" | "Equal" => {
                let sentences = check_label_value(value);
                if !sentences.is_empty() {
                    errors.push(FieldError::invalid(operator_path, value, sentences.join(";")));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(operator_path, value, why));
            }
            other => {
                let count = if OPERATORS.contains(&other) { 4 } else { 2 };
                let supported = OPERATORS.get(..count).unwrap_or_default();
                errors.push(FieldError::not_supported(operator_path, typed_text(other), supported));
            }
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(path.child("effect"), typed_text(effect), &EFFECTS));
        }
    }
    let mut seen = HashSet::new();
    for (index, toleration) in tolerations.iter().enumerate() {
        let identity = ["key", "operator", "value", "effect"].map(|field| text(toleration, field));
        if !seen.insert(identity) {
            errors.push(FieldError::duplicate(path.index(index), internal_toleration(toleration)));
        }
    }
    errors
}

/// A toleration as Go shows its internal struct.
fn internal_toleration(toleration: &Value) -> BadValue {
    internal_struct(&[
        ("Key", text_json(toleration, "key")),
        ("Operator", text_json(toleration, "operator")),
        ("Value", text_json(toleration, "value")),
        ("Effect", text_json(toleration, "effect")),
        ("TolerationSeconds", write_json(&toleration["tolerationSeconds"])),
    ])
}

fn selector_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let labels = written.field("scheduling")["nodeSelector"].as_object().into_iter().flatten();
    let path = SCHEDULING.child("nodeSelector");
    labels.filter_map(|(key, _)| deprecated_label_text(key)).map(|text| format!("{path}: {text}")).collect()
}
