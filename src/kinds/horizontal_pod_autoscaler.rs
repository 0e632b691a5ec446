//! HorizontalPodAutoscalers (`pkg/registry/autoscaling/horizontalpodautoscaler/strategy.go`,
//! `pkg/apis/autoscaling/validation/validation.go`).

use std::cmp::Ordering;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_path_segment};
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::KindRules;
use super::cells::{CellPrinter, integer, items_at, text_at};
use super::field_rules::{enum_error, negative_error, parse_group_version, required_text_errors, typed_text};
use super::resource_names::container_resource_errors;
use super::validation::{ValidationInput, invalid_for, items, text};
use crate::resources::builtin::autoscaler_conversion::drop_conversion_annotations;

pub(super) static RULES: KindRules = KindRules {
    // Those of `autoscaling/v1` are converted, with what is in their annotations.
    convert_body: |object| match object.get("apiVersion").and_then(Value::as_str) {
        Some("autoscaling/v1") => {}
        _ => drop_conversion_annotations(object),
    },
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_autoscaler(input),
    },
    cells: print_autoscaler,
    ..KindRules::of("autoscaling", "horizontalpodautoscalers")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

const MAX_PERIOD_SECONDS: i64 = 1800;
const MAX_WINDOW_SECONDS: i64 = 3600;

/// Metrics in a cell.
const MAX_METRICS: usize = 2;

/// The types of metrics with the fields that have their sources, in the order in which Kubernetes looks at them.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// What a reference to an object may lack.
#[derive(Clone, Copy)]
struct ReferenceAllowances {
    any_version: bool,
    no_group: bool,
}

/// Validates a HorizontalPodAutoscaler.
fn validate_autoscaler(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let least = if old_spec["minReplicas"] == 0 { 0 } else { 1 };
    let (min, max) = (spec["minReplicas"].as_i64(), integer(spec, "maxReplicas"));
    if let Some(min) = min.filter(|min| *min < least) {
        let why = format!("must be greater than or equal to {least}");
        errors.push(FieldError::invalid(SPEC.child("minReplicas"), min, why));
    }
    let max_path = SPEC.child("maxReplicas");
    match max {
        0 => errors.push(FieldError::required(max_path, "must be set and greater than 0")),
        1.. => {}
        _ => errors.push(FieldError::invalid(max_path, max, "must be greater than or equal to 1")),
    }
    if min.is_some_and(|min| max < min) {
        errors.push(FieldError::invalid(max_path, max, "must be greater than or equal to `minReplicas`"));
    }
    let target = &spec["scaleTargetRef"];
    let old_target = &old_spec["scaleTargetRef"];
    let is_same_kind = input.old.is_some()
        && ["apiVersion", "kind"].into_iter().all(|field| text(target, field) == text(old_target, field));
    let allowances = ReferenceAllowances {
        any_version: is_same_kind,
        no_group: !is_same_kind && text(target, "kind") == "ReplicationController",
    };
    errors.append(reference_errors(target, allowances, &SPEC.child("scaleTargetRef")));
    errors.append(metrics_errors(spec, old_spec));
    let behavior = SPEC.child("behavior");
    for field in ["scaleUp", "scaleDown"] {
        let rules = &spec["behavior"][field];
        if !rules.is_null() {
            errors.append(scaling_errors(rules, &behavior.child(field)));
        }
    }
    errors
}

/// Errors of a reference to an object of any kind (`ValidateCrossVersionObjectReference`).
fn reference_errors(reference: &Value, allowances: ReferenceAllowances, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for field in ["kind", "name"] {
        errors.extend(required_text_errors(path.child(field), text(reference, field), check_path_segment));
    }
    if let Err(why) = check_api_version(reference, allowances) {
        errors.push(FieldError::invalid(path.child("apiVersion"), text(reference, "apiVersion"), why));
    }
    errors
}

fn check_api_version(reference: &Value, allowances: ReferenceAllowances) -> Result<(), String> {
    if allowances.any_version {
        return Ok(());
    }
    match parse_group_version(text(reference, "apiVersion"))? {
        ("", _) if !allowances.no_group => Err("apiVersion must specify API group".to_owned()),
        _ => Ok(()),
    }
}

fn metrics_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    let path = SPEC.child("metrics");
    let metrics = items(spec, "metrics");
    let mut allowances = ReferenceAllowances { any_version: false, no_group: true };
    allowances.any_version = items(old_spec, "metrics").iter().any(|metric| {
        let object = &metric["object"];
        metric["type"] == "Object"
            && !object.is_null()
            && check_api_version(&object["describedObject"], allowances).is_err()
    });
    let mut errors = FieldErrors::new();
    for (index, metric) in metrics.iter().enumerate() {
        errors.append(metric_errors(metric, allowances, &path.index(index)));
    }
    let is_of_no_pod = |metric: &Value| matches!(text(metric, "type"), "Object" | "External");
    if spec["minReplicas"] == 0 && !metrics.iter().any(is_of_no_pod) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden(path, why));
    }
    errors
}

fn metric_errors(metric: &Value, allowances: ReferenceAllowances, path: &FieldPath<'_>) -> FieldErrors {
    const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    let mut errors = FieldErrors::new();
    let metric_type = text(metric, "type");
    let unsupported = || {
        let is_wrong = !TYPES.contains(&metric_type);
        is_wrong.then(|| FieldError::not_supported(path.child("type"), typed_text(metric_type), &TYPES))
    };
    if metric_type.is_empty() {
        errors.push(FieldError::required(path.child("type"), "must specify a metric source type"));
    }
    errors.extend(unsupported());
    let present: Vec<&str> =
        SOURCES.into_iter().map(|(_, field)| field).filter(|field| !metric[*field].is_null()).collect();
    if let Some(field) = present.first() {
        errors.append(source_errors(field, &metric[*field], allowances, &path.child(field)));
    }
    let expected = SOURCES.into_iter().find(|(name, _)| *name == metric_type).map(|(_, field)| field);
    match expected {
        None => errors.extend(unsupported()),
        Some(field) if metric[field].is_null() => {
            let why = "must populate information for the given metric source";
            errors.push(FieldError::required(path.child(field), why));
        }
        Some(_) => {}
    }
    if present.len() != 1 {
        let others = present.into_iter().filter(|field| Some(*field) != expected);
        let why = "must populate the given metric source only";
        errors.extend(others.map(|field| FieldError::forbidden(path.child(field), why)));
    }
    errors
}

/// Errors of the source in a field of a metric.
fn source_errors(field: &str, source: &Value, allowances: ReferenceAllowances, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if field == "object" {
        let path = path.child("describedObject");
        errors.append(reference_errors(&source["describedObject"], allowances, &path));
    }
    match field {
        "resource" | "containerResource" => errors.append(resource_errors(field, source, path)),
        _ => {
            let (name, metric) = (text(&source["metric"], "name"), path.child("metric"));
            if name.is_empty() {
                errors.push(FieldError::required(metric.child("name"), "must specify a metric name"));
            }
            errors.extend(invalid_for(metric.child("name"), name, check_path_segment(name)));
        }
    }
    let (target, path) = (&source["target"], path.child("target"));
    errors.append(target_errors(target, &path));
    let is_set = |field: &str| !target[field].is_null();
    let mut check = |is_wrong: bool, error: FieldError| {
        if is_wrong {
            errors.push(error);
        }
    };
    let (average, utilization) = (path.child("averageValue"), path.child("averageUtilization"));
    let has_value = is_set("value") || is_set("averageValue");
    match field {
        "object" => {
            check(!has_value, FieldError::required(average, "must set either a target value or averageValue"));
        }
        "external" => {
            let why = "must set either a target value for metric or a per-pod target";
            check(!has_value, FieldError::required(average, why));
            let why = "may not set both a target value for metric and a per-pod target";
            check(is_set("value") && is_set("averageValue"), FieldError::forbidden(path.child("value"), why));
        }
        "pods" => {
            let why = "must specify a positive target averageValue";
            check(!is_set("averageValue"), FieldError::required(average, why));
        }
        _ => {
            let (has_average, has_utilization) = (is_set("averageValue"), is_set("averageUtilization"));
            let why = "must set either a target raw value or a target utilization";
            check(!has_average && !has_utilization, FieldError::required(utilization, why));
            let why = "may not set both a target raw value and a target utilization";
            check(has_average && has_utilization, FieldError::forbidden(average, why));
        }
    }
    errors
}

/// Errors of the names in the source of a resource's metric.
fn resource_errors(field: &str, source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let name = text(source, "name");
    if name.is_empty() {
        errors.push(FieldError::required(path.child("name"), "must specify a resource name"));
    }
    if field == "resource" {
        return errors;
    }
    if !name.is_empty() {
        errors.extend(container_resource_errors(path.child("name"), name));
    }
    let container = text(source, "container");
    if container.is_empty() {
        errors.push(FieldError::required(path.child("container"), "must specify a container"));
    } else {
        errors.extend(invalid_for(path.child("container"), container, check_dns1123_label(container)));
    }
    errors
}

/// Errors of a target (`validateMetricTarget`).
fn target_errors(target: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let target_type = text(target, "type");
    if target_type.is_empty() {
        errors.push(FieldError::required(path.child("type"), "must specify a metric target type"));
    }
    if !matches!(target_type, "Utilization" | "Value" | "AverageValue") {
        let why = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(path.child("type"), typed_text(target_type), why));
    }
    for field in ["value", "averageValue"] {
        let Some(amount) = target[field].as_str() else { continue };
        let is_positive = Quantity::parse(amount).is_ok_and(|quantity| quantity.sign() == Ordering::Greater);
        if !is_positive {
            errors.push(FieldError::invalid(path.child(field), typed_text(amount), "must be positive"));
        }
    }
    if let Some(utilization) = target["averageUtilization"].as_i64().filter(|utilization| *utilization < 1) {
        errors.push(FieldError::invalid(path.child("averageUtilization"), utilization, "must be greater than 0"));
    }
    errors
}

/// Errors of the rules for one direction (`validateScalingRules`).
fn scaling_errors(rules: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const SELECTIONS: [&str; 3] = ["Disabled", "Max", "Min"];
    const TYPES: [&str; 2] = ["Percent", "Pods"];
    let mut errors = FieldErrors::new();
    let window_path = path.child("stabilizationWindowSeconds");
    match rules["stabilizationWindowSeconds"].as_i64() {
        Some(seconds) if seconds < 0 => {
            errors.push(FieldError::invalid(window_path, seconds, "must be greater than or equal to zero"));
        }
        Some(seconds) if seconds > MAX_WINDOW_SECONDS => {
            let why = format!("must be less than or equal to {MAX_WINDOW_SECONDS}");
            errors.push(FieldError::invalid(window_path, seconds, why));
        }
        _ => {}
    }
    errors.extend(enum_error(path.child("selectPolicy"), &rules["selectPolicy"], &SELECTIONS));
    let (policies, policies_path) = (items(rules, "policies"), path.child("policies"));
    if policies.is_empty() {
        errors.push(FieldError::required(policies_path, "must specify at least one Policy"));
    }
    for (index, policy) in policies.iter().enumerate() {
        let path = policies_path.index(index);
        let policy_type = text(policy, "type");
        if !TYPES.contains(&policy_type) {
            errors.push(FieldError::not_supported(path.child("type"), typed_text(policy_type), &TYPES));
        }
        for field in ["value", "periodSeconds"] {
            let number = integer(policy, field);
            if number <= 0 {
                errors.push(FieldError::invalid(path.child(field), number, "must be greater than zero"));
            }
        }
        let seconds = integer(policy, "periodSeconds");
        if seconds > MAX_PERIOD_SECONDS {
            let why = format!("must be less than or equal to {MAX_PERIOD_SECONDS}");
            errors.push(FieldError::invalid(path.child("periodSeconds"), seconds, why));
        }
    }
    if let Some(tolerance) = rules["tolerance"].as_str() {
        let is_negative = Quantity::parse(tolerance).is_ok_and(|quantity| quantity.sign() == Ordering::Less);
        if is_negative {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(path.child("tolerance"), BadValue::from(tolerance), why));
        }
    }
    errors
}

/// Validates the status.
fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    let mut errors = input.metadata_update_errors();
    for field in ["currentReplicas", "desiredReplicas"] {
        errors.extend(negative_error(STATUS.child(field), &input.field("status")[field]));
    }
    errors
}

fn print_autoscaler(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let (spec, status) = (object.get("spec").unwrap_or(&Value::Null), object.get("status").unwrap_or(&Value::Null));
    let target = format!("{}/{}", text_at(spec, "/scaleTargetRef/kind"), text_at(spec, "/scaleTargetRef/name"));
    let min = spec["minReplicas"].as_i64().map_or("<unset>".to_owned(), |min| min.to_string());
    vec![
        printer.name(),
        target.into(),
        format_metrics(items_at(spec, "/metrics"), items_at(status, "/currentMetrics")).into(),
        min.into(),
        integer(spec, "maxReplicas").into(),
        integer(status, "currentReplicas").into(),
        printer.age(),
    ]
}

/// Current values and targets of metrics (`formatHPAMetrics`).
fn format_metrics(metrics: &[Value], current: &[Value]) -> String {
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let shown = metrics.iter().take(MAX_METRICS).enumerate();
    let listed: Vec<String> =
        shown.map(|(index, metric)| format_metric(metric, current.get(index).unwrap_or(&Value::Null))).collect();
    let listed = listed.join(", ");
    match metrics.len().saturating_sub(MAX_METRICS) {
        0 => listed,
        more => format!("{listed} + {more} more..."),
    }
}

fn format_metric(metric: &Value, current: &Value) -> String {
    let metric_type = text(metric, "type");
    let Some((_, field)) = SOURCES.into_iter().find(|(name, _)| *name == metric_type) else {
        return "<unknown type>".to_owned();
    };
    let (target, now) = (&metric[field]["target"], &current[field]);
    let unknown = || "<unknown>".to_owned();
    // What has no value is printed as Go prints a nil pointer to a quantity.
    let amount = |value: &Value| value.as_str().unwrap_or("<nil>").to_owned();
    let of_status = |name: &str| if now.is_null() { unknown() } else { amount(&now["current"][name]) };
    let average = &target["averageValue"];
    match metric_type {
        "Object" | "External" if !average.is_null() => {
            let now = now["current"]["averageValue"].as_str().map_or_else(unknown, str::to_owned);
            format!("{now}/{} (avg)", amount(average))
        }
        "Object" | "External" => format!("{}/{}", of_status("value"), amount(&target["value"])),
        "Pods" => format!("{}/{}", of_status("averageValue"), amount(average)),
        _ => {
            let name = text(&metric[field], "name");
            if !average.is_null() {
                return format!("{name}: {}/{}", of_status("averageValue"), amount(average));
            }
            let percent = |value: &Value| value.as_i64().map(|percent| format!("{percent}%"));
            let now = percent(&now["current"]["averageUtilization"]).unwrap_or_else(unknown);
            let target = percent(&target["averageUtilization"]).unwrap_or_else(|| "<auto>".to_owned());
            format!("{name}: {now}/{target}")
        }
    }
}
