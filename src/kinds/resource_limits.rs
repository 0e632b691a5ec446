//! LimitRanges and ResourceQuotas (`pkg/registry/core/{limitrange,resourcequota}/strategy.go`).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use kubeapi::names::check_qualified_name;
use kubeapi::object_meta::change_metadata;
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::cells::CellPrinter;
use super::field_rules::{IMMUTABLE, typed_text};
use super::resource_names::{
    amount_errors, amount_of, amounts, container_resource_errors, is_native_resource, is_quota_resource,
    quota_resource_errors, resource_name_errors,
};
use super::validation::{ValidationInput, items, text, texts};
use super::{KindRules, Object, WrittenObject};

pub(super) static LIMIT_RANGE_RULES: KindRules = KindRules {
    creates_on_update: true,
    begin_create: |_, object| {
        name_limit_range(object);
        Ok(())
    },
    validate: validate_limit_range,
    ..KindRules::of("", "limitranges")
};

/// Names a LimitRange that has no name (`PrepareForCreate`).
fn name_limit_range(object: &mut Object) {
    change_metadata(object, |metadata| {
        let has = |field: &str| metadata.get(field).and_then(Value::as_str).is_some_and(|name| !name.is_empty());
        if !has("name") && !has("generateName") {
            metadata.insert("name".to_owned(), uuid::Uuid::new_v4().to_string().into());
        }
    });
}

pub(super) static QUOTA_RULES: KindRules = KindRules {
    returns_deleted_object: true,
    validate: |input| match input.subresource {
        "status" => validate_quota_status(input),
        _ => validate_quota(input),
    },
    warnings: quota_warnings,
    cells: print_quota,
    ..KindRules::of("", "resourcequotas")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Amounts above which ratios are not computed in thousandths (`MaxMilliValue`).
const MAX_MILLI_VALUE: i64 = i64::MAX / 1000;

/// Validates a LimitRange.
fn validate_limit_range(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_errors();
    let path = SPEC.child("limits");
    let mut types = HashSet::new();
    for (index, limit) in items(input.field("spec"), "limits").iter().enumerate() {
        let path = path.index(index);
        let limit_type = text(limit, "type");
        errors.extend(limit_type_errors(path.child("type"), limit_type));
        if !types.insert(limit_type) {
            errors.push(FieldError::duplicate(path.child("type"), typed_text(limit_type)));
        }
        errors.append(limit_errors(limit, limit_type, &path));
    }
    errors
}

fn limit_type_errors(path: FieldPath<'_>, limit_type: &str) -> Vec<FieldError> {
    const TYPES: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];
    let invalid = |why: String| FieldError::invalid(path, typed_text(limit_type), why);
    let mut errors: Vec<FieldError> = check_qualified_name(limit_type).into_iter().map(invalid).collect();
    if errors.is_empty() && !limit_type.contains('/') && !TYPES.contains(&limit_type) {
        errors.push(invalid("must be a standard limit type or fully qualified".to_owned()));
    }
    errors
}

fn limit_errors(limit: &Value, limit_type: &str, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut names = BTreeSet::new();
    let name_errors = match limit_type {
        "Pod" | "Container" => container_resource_errors,
        _ => resource_name_errors,
    };
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let path = path.child(field);
        if limit_type == "Pod" && matches!(field, "default" | "defaultRequest") {
            if limit[field].as_object().is_some_and(|amounts| !amounts.is_empty()) {
                errors.push(FieldError::forbidden(path, "may not be specified when `type` is 'Pod'"));
            }
            continue;
        }
        if field == "maxLimitRequestRatio" && limit_type == "PersistentVolumeClaim" {
            errors.extend(claim_limit_error(limit, &path));
        }
        for (name, _) in limit[field].as_object().into_iter().flatten() {
            errors.extend(name_errors(path.key(name), name));
            names.insert(name.as_str());
        }
    }
    let is_pod = limit_type == "Pod";
    for name in names {
        errors.append(bound_errors(limit, name, is_pod, path));
    }
    errors
}

fn claim_limit_error(limit: &Value, path_of_ratio: &FieldPath<'_>) -> Option<FieldError> {
    let has_bound = ["min", "max"].into_iter().any(|field| !limit[field]["storage"].is_null());
    let path = path_of_ratio.to_string();
    let path = path.trim_end_matches("maxLimitRequestRatio");
    let why = "either minimum or maximum storage value is required, but neither was provided";
    (!has_bound).then(|| FieldError::required(format!("{path}limits"), why))
}

/// Errors of the amounts of one resource that contradict each other.
fn bound_errors(limit: &Value, name: &str, is_pod: bool, path: &FieldPath<'_>) -> FieldErrors {
    let amount = |field: &str| amount_of(&limit[field], name);
    let default = |field: &str| if is_pod { None } else { amount(field) };
    let (min, max) = (amount("min"), amount("max"));
    let (limit_default, request) = (default("default"), default("defaultRequest"));
    let mut errors = FieldErrors::new();
    let mut check =
        |field: &str, shown: Option<&Quantity>, less: (&str, Option<&Quantity>), more: (&str, Option<&Quantity>)| {
            let ((less_name, Some(less)), (more_name, Some(more)), Some(shown)) = (less, more, shown) else { return };
            if less > more {
                let why = format!("{less_name} value {less} is greater than {more_name} value {more}");
                let path = path.child(field);
                errors.push(FieldError::invalid(path.key(name), typed_text(&shown.to_string()), why));
            }
        };
    let (min, max, request, limit_default) = (min.as_ref(), max.as_ref(), request.as_ref(), limit_default.as_ref());
    check("min", min, ("min", min), ("max", max));
    check("defaultRequest", request, ("min", min), ("default request", request));
    check("defaultRequest", request, ("default request", request), ("max", max));
    check("defaultRequest", request, ("default request", request), ("default limit", limit_default));
    check("default", min, ("min", min), ("default", limit_default));
    check("default", max, ("default", limit_default), ("max", max));
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        let path = path.child("maxLimitRequestRatio");
        let shown = typed_text(&ratio.to_string());
        errors.extend(
            ratio_texts(&ratio, min, max)
                .into_iter()
                .map(|why| FieldError::invalid(path.key(name), shown.clone(), why)),
        );
    }
    let is_overcommitted = is_native_resource(name) && !name.starts_with("hugepages-");
    if let (false, Some(limit_default), Some(request)) = (is_overcommitted, limit_default, request)
        && limit_default != request
    {
        let why = format!("default value {limit_default} must equal to defaultRequest value {request} in {name}");
        let path = path.child("defaultRequest");
        errors.push(FieldError::invalid(path.key(name), typed_text(&request.to_string()), why));
    }
    errors
}

/// What is wrong with a ratio of limits and requests.
fn ratio_texts(ratio: &Quantity, min: Option<&Quantity>, max: Option<&Quantity>) -> Vec<String> {
    let mut texts = Vec::new();
    if ratio.milli_value() < 1000 {
        texts.push(format!("ratio {ratio} is less than 1"));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let is_small = [ratio, min, max].iter().all(|quantity| quantity.value() < MAX_MILLI_VALUE);
        let (value, min, max) = match is_small {
            true => (ratio.milli_value() as f64 / 1000.0, min.milli_value(), max.milli_value()),
            false => (ratio.value() as f64, min.value(), max.value()),
        };
        let bound = max as f64 / min as f64;
        if value > bound {
            texts.push(format!("ratio {ratio} is greater than max/min = {}", go_float(bound)));
        }
    }
    texts
}

/// A number as Go prints it with `%f`.
fn go_float(number: f64) -> String {
    match number {
        number if number.is_nan() => "NaN".to_owned(),
        number if number.is_infinite() => if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        number => format!("{number:.6}"),
    }
}

/// Validates a ResourceQuota.
fn validate_quota(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    errors.append(hard_errors(&spec["hard"], &SPEC.child("hard")));
    errors.append(scope_errors(spec));
    errors.append(scope_selector_errors(spec));
    match input.old {
        None => errors.append(used_errors(input.field("status"))),
        Some(_) => {
            let scopes = |spec| texts(spec, "scopes").into_iter().collect::<HashSet<_>>();
            if scopes(spec) != scopes(input.old_field("spec")) {
                errors.push(FieldError::invalid(SPEC.child("scopes"), BadValue::from(&spec["scopes"]), IMMUTABLE));
            }
        }
    }
    errors
}

/// Validates the status of a ResourceQuota.
fn validate_quota_status(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.append(used_errors(input.field("status")));
    errors
}

fn used_errors(status: &Value) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    let mut errors = hard_errors(&status["hard"], &STATUS.child("hard"));
    errors.append(hard_errors(&status["used"], &STATUS.child("used")));
    errors
}

fn hard_errors(list: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (name, amount) in amounts(list) {
        errors.extend(quota_resource_errors(path.key(name), name));
        errors.extend(amount_errors(path.key(name), name, &amount));
    }
    errors
}

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];

/// Pairs of scopes that nothing has both of.
const CONFLICTS: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// The number of limits of a quota that a scope cannot have.
fn unscoped_count(spec: &Value, scope: &str) -> usize {
    const COMPUTE: [&str; 7] =
        ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    let is_valid = |name: &str| match scope {
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        scope if SCOPES.contains(&scope) => COMPUTE.contains(&name),
        _ => true,
    };
    let names = spec["hard"].as_object().into_iter().flat_map(|hard| hard.keys());
    names.filter(|name| is_quota_resource(name) && !is_valid(name)).count()
}

fn conflicting_count(scopes: &[&str]) -> usize {
    CONFLICTS.iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))).count()
}

fn scope_errors(spec: &Value) -> FieldErrors {
    let scopes = texts(spec, "scopes");
    let path = SPEC.child("scopes");
    let all = BadValue::from(&spec["scopes"]);
    let invalid = |why: &str| FieldError::invalid(path, all.clone(), why);
    let mut errors = FieldErrors::new();
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(invalid("unsupported scope"));
        }
        let count = if errors.is_full() { 0 } else { unscoped_count(spec, scope) };
        errors.extend((0..count).map(|_| invalid("unsupported scope applied to resource")));
    }
    errors.extend((0..conflicting_count(&scopes)).map(|_| invalid("conflicting scopes")));
    errors
}

fn scope_selector_errors(spec: &Value) -> FieldErrors {
    let selector = &spec["scopeSelector"];
    let selector_path = SPEC.child("scopeSelector");
    let path = selector_path.child("matchExpressions");
    let mut errors = FieldErrors::new();
    let mut scopes = Vec::new();
    for expression in items(selector, "matchExpressions") {
        let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
        let invalid_operator = |why: &str| FieldError::invalid(path.child("operator"), typed_text(operator), why);
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(path.child("scopeName"), typed_text(scope), "unsupported scope"));
        }
        let count = if errors.is_full() { 0 } else { unscoped_count(spec, scope) };
        let why = "unsupported scope applied to resource";
        errors.extend((0..count).map(|_| FieldError::invalid(path, internal_selector(selector), why)));
        let has_values = matches!(scope, "PriorityClass" | "VolumeAttributesClass") || !SCOPES.contains(&scope);
        if !has_values && operator != "Exists" {
            errors.push(invalid_operator(
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                 ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                 ResourceQuotaScopeCrossNamespacePodAffinity",
            ));
        }
        let values = items(expression, "values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(path.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(path.child("values"), BadValue::from(&expression["values"]), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(invalid_operator("not a valid selector operator")),
        }
        scopes.push(scope);
    }
    let all = || BadValue::from(&spec["scopes"]);
    let conflicts = (0..conflicting_count(&scopes)).map(|_| FieldError::invalid(path, all(), "conflicting scopes"));
    errors.extend(conflicts);
    errors
}

/// A scope selector as Go shows its internal struct.
fn internal_selector(selector: &Value) -> BadValue {
    let expression = |expression: &Value| {
        format!(
            "{{\"ScopeName\":{},\"Operator\":{},\"Values\":{}}}",
            write_json(&expression["scopeName"]),
            write_json(&expression["operator"]),
            write_json(&expression["values"])
        )
    };
    let expressions: Vec<String> = items(selector, "matchExpressions").iter().map(expression).collect();
    BadValue::from_json(format!("{{\"MatchExpressions\":[{}]}}", expressions.join(",")))
}

/// Warnings about limits that are less than requests, in a new quota.
fn quota_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    if written.old.is_some() {
        return Vec::new();
    }
    let hard = &written.field("spec")["hard"];
    let warning = |resource: &&str| {
        let mut request_name = format!("requests.{resource}");
        let mut request = amount_of(hard, &request_name);
        if request.is_none() && matches!(*resource, "cpu" | "memory") {
            request = amount_of(hard, resource);
            request_name = (*resource).to_owned();
        }
        let limit_name = format!("limits.{resource}");
        let (request, limit) = (request?, amount_of(hard, &limit_name)?);
        let text = || format!("ResourceQuota {request_name} ({request}) should be less than {limit_name} ({limit})");
        (request > limit).then(text)
    };
    ["cpu", "memory", "storage", "ephemeral-storage"].iter().filter_map(warning).collect()
}

fn print_quota(printer: &CellPrinter<'_>) -> Vec<Value> {
    let status = printer.object.get("status").unwrap_or(&Value::Null);
    let hard: BTreeMap<&str, &str> = status["hard"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, amount)| (name.as_str(), amount.as_str().unwrap_or_default()))
        .collect();
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in hard {
        let used = status["used"][name].as_str().unwrap_or("0");
        let list = if name.starts_with("limits.") { &mut limits } else { &mut requests };
        list.push(format!("{name}: {used}/{hard}"));
    }
    vec![printer.name(), requests.join(", ").into(), limits.join(", ").into(), printer.age()]
}
