//! ReplicaSets.

use kubeapi::field_error::{FieldError, FieldErrors};
use serde_json::Value;

use super::{SPEC, check_count_limits, check_counts, check_endless_template, check_selector, container_cells};
use super::{is_empty_selector, selector_change_error, selects_labels, unselected_error, workload_warnings};
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::field_rules::format_label_selector;
use crate::kinds::internal_json::external_value;
use crate::kinds::pod::{PodSpecOptions, check_not_negative, check_pod_template};
use crate::kinds::validation::ValidationInput;
use crate::kinds::{GenerationRule, KindRules};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_replica_set(input),
    },
    warnings: workload_warnings,
    cells: print_replica_set,
    ..KindRules::of("apps", "replicasets")
};

fn validate_replica_set(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let (spec, old) = (input.field("spec"), input.old.map(|_| &input.old_field("spec")["template"]));
    check_not_negative(spec, "replicas", &SPEC, &mut errors);
    check_not_negative(spec, "minReadySeconds", &SPEC, &mut errors);
    // As upstream.
    check_selector(spec, "empty selector is invalid for deployment", &mut errors);
    check_replica_template(spec, &PodSpecOptions::of_template(old), &mut errors);
    if input.old.is_some() {
        errors.extend(selector_change_error(spec, &input.old_field("spec")["selector"]));
    }
    errors
}

/// Errors of the template of a Deployment or ReplicaSet (`ValidatePodTemplateSpecForReplicaSet`).
pub(super) fn check_replica_template(spec: &Value, options: &PodSpecOptions<'_>, errors: &mut FieldErrors) {
    let (selector, template, path) = (&spec["selector"], &spec["template"], SPEC.child("template"));
    let labels = &template["metadata"]["labels"];
    let Some(is_selected) = selects_labels(selector, labels) else {
        let shown = external_value(selector);
        errors.push(FieldError::invalid(SPEC.child("selector"), shown, "invalid label selector"));
        return;
    };
    let selects_all = !selector.is_null() && is_empty_selector(selector);
    if !is_selected && !selects_all {
        errors.push(unselected_error(labels, &path));
    }
    check_pod_template(template, options, &path, errors);
    check_endless_template(template, "ReplicaSet", &path, errors);
}

fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const COUNTS: [&str; 6] = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    let mut errors = input.metadata_update_errors();
    let status = input.field("status");
    check_counts(status, &COUNTS, &mut errors);
    let limited = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    check_count_limits(status, &limited, "readyReplicas", &mut errors);
    errors
}

fn print_replica_set(printer: &CellPrinter<'_>) -> Vec<Value> {
    let (spec, status) = (&printer.object["spec"], &printer.object["status"]);
    let [names, images] = container_cells(printer, "/spec/template/spec/containers");
    vec![
        printer.name(),
        integer(spec, "replicas").into(),
        integer(status, "replicas").into(),
        integer(status, "readyReplicas").into(),
        printer.age(),
        names,
        images,
        format_label_selector(&spec["selector"]).into(),
    ]
}
