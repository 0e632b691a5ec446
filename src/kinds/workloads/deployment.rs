//! Deployments.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::replica_set::check_replica_template;
use super::{SPEC, check_collisions, check_count_limits, check_counts, check_selector, container_cells};
use super::{selector_change_error, selects_labels, workload_warnings};
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::field_rules::{format_label_selector, int_or_percent_errors, typed_text};
use crate::kinds::internal_json::internal_value;
use crate::kinds::pod::{PodSpecOptions, check_not_negative};
use crate::kinds::validation::{ValidationInput, text};
use crate::kinds::{GenerationRule, KindRules, Object, ObjectUpdate};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule { metadata_field: Some("annotations"), ..GenerationRule::SPEC },
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_deployment(input),
    },
    warnings: workload_warnings,
    cells: print_deployment,
    ..KindRules::of("apps", "deployments")
};

fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    if update.subresource == "status" {
        update.keep_labels(object);
    }
}

fn validate_deployment(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let (spec, old) = (input.field("spec"), input.old.map(|_| &input.old_field("spec")["template"]));
    check_not_negative(spec, "replicas", &SPEC, &mut errors);
    check_selector(spec, "empty selector is invalid for deployment", &mut errors);
    check_replica_template(spec, &PodSpecOptions::of_template(old), &mut errors);
    check_strategy(&spec["strategy"], &SPEC.child("strategy"), &mut errors);
    for field in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        check_not_negative(spec, field, &SPEC, &mut errors);
    }
    if let Some(seconds) = spec["progressDeadlineSeconds"].as_i64()
        && seconds <= spec["minReadySeconds"].as_i64().unwrap_or_default()
    {
        let why = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid(SPEC.child("progressDeadlineSeconds"), seconds, why));
    }
    if input.old.is_some() {
        errors.extend(selector_change_error(spec, &input.old_field("spec")["selector"]));
    }
    errors
}

fn check_strategy(strategy: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let rolling = &strategy["rollingUpdate"];
    let rolling_path = path.child("rollingUpdate");
    match text(strategy, "type") {
        "Recreate" => {
            if !rolling.is_null() {
                let why = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(FieldError::forbidden(rolling_path, why));
            }
        }
        "RollingUpdate" if rolling.is_null() => {
            errors.push(FieldError::required(rolling_path, "this should be defaulted and never be nil"));
        }
        "RollingUpdate" => check_rolling_update(rolling, &rolling_path, errors),
        _ => {
            let shown = internal_value("apps.DeploymentStrategy", strategy);
            errors.push(FieldError::not_supported(path, shown, &["Recreate", "RollingUpdate"]));
        }
    }
}

fn check_rolling_update(rolling: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
    let unavailable_path = path.child("maxUnavailable");
    // The limit of 100% comes last, and does not hold for the surge.
    let is_limit = |error: &FieldError| error.detail.starts_with("must not be greater than");
    let (limits, others): (Vec<FieldError>, Vec<FieldError>) =
        int_or_percent_errors(unavailable_path, unavailable).into_iter().partition(is_limit);
    errors.extend(others);
    errors.extend(int_or_percent_errors(path.child("maxSurge"), surge).into_iter().filter(|error| !is_limit(error)));
    if int_or_percent(unavailable) == 0 && int_or_percent(surge) == 0 {
        let why = "may not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid(unavailable_path, shown_int_or_percent(unavailable), why));
    }
    errors.extend(limits);
}

/// The number of an amount or percentage; nothing if it is neither.
pub(super) fn int_or_percent(value: &Value) -> i64 {
    match value {
        Value::String(text) => text.strip_suffix('%').unwrap_or(text).parse().unwrap_or(0),
        value => value.as_i64().unwrap_or_default(),
    }
}

/// An amount or percentage as errors show it.
pub(super) fn shown_int_or_percent(value: &Value) -> kubeapi::field_error::BadValue {
    match value {
        Value::String(text) => typed_text(text),
        value => value.as_i64().unwrap_or_default().into(),
    }
}

fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const COUNTS: [&str; 8] = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    let mut errors = input.metadata_update_errors();
    let status = input.field("status");
    check_counts(status, &COUNTS, &mut errors);
    let limited = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    check_count_limits(status, &limited, "readyReplicas", &mut errors);
    check_collisions(status, input.old_field("status"), &mut errors);
    errors
}

fn print_deployment(printer: &CellPrinter<'_>) -> Vec<Value> {
    let (spec, status) = (&printer.object["spec"], &printer.object["status"]);
    let [names, images] = container_cells(printer, "/spec/template/spec/containers");
    let selector = match selects_labels(&spec["selector"], &Value::Null) {
        None => "<invalid>".to_owned(),
        Some(_) => match format_label_selector(&spec["selector"]) {
            none if none == "<none>" => String::new(),
            text => text,
        },
    };
    vec![
        printer.name(),
        format!("{}/{}", integer(status, "readyReplicas"), integer(spec, "replicas")).into(),
        integer(status, "updatedReplicas").into(),
        integer(status, "availableReplicas").into(),
        printer.age(),
        names,
        images,
        selector.into(),
    ]
}
