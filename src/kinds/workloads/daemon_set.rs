//! DaemonSets.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::deployment::{int_or_percent, selector_change_error, shown_int_or_percent};
use super::{SPEC, check_collisions, check_counts, check_endless_template, container_cells, has_changed_spec};
use super::{is_empty_selector, selects_labels, unselected_error};
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::field_rules::{format_label_selector, int_or_percent_errors, label_selector_errors};
use crate::kinds::internal_json::{external_value, internal_value};
use crate::kinds::pod::{PodSpecOptions, check_not_negative, check_pod_template, template_warnings};
use crate::kinds::service::format_labels;
use crate::kinds::validation::{ValidationInput, text};
use crate::kinds::{GenerationRule, KindRules};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_daemon_set(input),
    },
    warnings: |written| match written.subresource {
        "" if has_changed_spec(written) => {
            template_warnings(&written.field("spec")["template"], &SPEC.child("template"))
        }
        _ => Vec::new(),
    },
    cells: print_daemon_set,
    ..KindRules::of("apps", "daemonsets")
};

fn validate_daemon_set(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let (spec, old) = (input.field("spec"), input.old.map(|_| &input.old_field("spec")["template"]));
    if input.old.is_some() {
        errors.extend(selector_change_error(spec, &input.old_field("spec")["selector"]));
    }
    let (selector, selector_path) = (&spec["selector"], SPEC.child("selector"));
    errors.append(label_selector_errors(selector, false, &selector_path));
    let (template, path) = (&spec["template"], SPEC.child("template"));
    let labels = &template["metadata"]["labels"];
    if selects_labels(selector, labels) == Some(false) {
        errors.push(unselected_error(labels, &path));
    }
    if !selector.is_null() && is_empty_selector(selector) {
        let why = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid(selector_path, external_value(selector), why));
    }
    check_pod_template(template, &PodSpecOptions::of_template(old), &path, &mut errors);
    check_endless_template(template, "DaemonSet", &path, &mut errors);
    check_not_negative(spec, "minReadySeconds", &SPEC, &mut errors);
    check_strategy(&spec["updateStrategy"], &SPEC.child("updateStrategy"), &mut errors);
    check_not_negative(spec, "revisionHistoryLimit", &SPEC, &mut errors);
    errors
}

fn check_strategy(strategy: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (rolling, rolling_path) = (&strategy["rollingUpdate"], path.child("rollingUpdate"));
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if rolling.is_null() => errors.push(FieldError::required(rolling_path, "")),
        "RollingUpdate" => check_rolling_update(rolling, &rolling_path, errors),
        _ => {
            let shown = internal_value("apps.DaemonSetUpdateStrategy", strategy);
            errors.push(FieldError::not_supported(path, shown, &["RollingUpdate", "OnDelete"]));
        }
    }
}

fn check_rolling_update(rolling: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
    let fields = [(path.child("maxUnavailable"), unavailable), (path.child("maxSurge"), surge)];
    // Limits come after what is no amount at all.
    let is_limit = |error: &FieldError| error.detail.starts_with("must not be greater than");
    let all = fields.into_iter().flat_map(|(path, value)| int_or_percent_errors(path, value));
    let (limits, others): (Vec<FieldError>, Vec<FieldError>) = all.partition(is_limit);
    errors.extend(others);
    errors.extend(limits);
    match (int_or_percent(unavailable) != 0, int_or_percent(surge) != 0) {
        (true, true) => {
            let why = "may not be set when maxUnavailable is non-zero";
            errors.push(FieldError::invalid(path.child("maxSurge"), shown_int_or_percent(surge), why));
        }
        (false, false) => {
            errors.push(FieldError::required(path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0"));
        }
        _ => {}
    }
}

fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const COUNTS: [&str; 9] = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    let mut errors = input.metadata_update_errors();
    check_counts(input.field("status"), &COUNTS, &mut errors);
    check_collisions(input.field("status"), input.old_field("status"), &mut errors);
    errors
}

fn print_daemon_set(printer: &CellPrinter<'_>) -> Vec<Value> {
    let (spec, status) = (&printer.object["spec"], &printer.object["status"]);
    let [names, images] = container_cells(printer, "/spec/template/spec/containers");
    let count = |field: &str| Value::from(integer(status, field));
    vec![
        printer.name(),
        count("desiredNumberScheduled"),
        count("currentNumberScheduled"),
        count("numberReady"),
        count("updatedNumberScheduled"),
        count("numberAvailable"),
        format_labels(spec.pointer("/template/spec/nodeSelector")).into(),
        printer.age(),
        names,
        images,
        format_label_selector(&spec["selector"]).into(),
    ]
}
