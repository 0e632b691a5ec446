//! ReplicationControllers.

use kubeapi::field_error::{FieldError, FieldErrors};
use kubeapi::names::NameRule;
use serde_json::Value;

use super::{SPEC, check_count_limits, check_counts, check_endless_template, container_cells};
use super::{unselected_error, workload_warnings};
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::pod::{PodSpecOptions, check_not_negative, check_pod_template};
use crate::kinds::selectable_fields::SelectableFields;
use crate::kinds::service::format_labels;
use crate::kinds::validation::ValidationInput;
use crate::kinds::{DependentsRule, GenerationRule, KindRules};

pub(super) static RULES: KindRules = KindRules {
    name_rule: NameRule::LongName,
    generation: GenerationRule::SPEC,
    dependents: DependentsRule::Orphan,
    selectable: SelectableFields::of(&["status.replicas"]),
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_controller(input),
    },
    warnings: workload_warnings,
    cells: print_controller,
    ..KindRules::of("", "replicationcontrollers")
};

fn validate_controller(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let (spec, old) = (input.field("spec"), input.old.map(|_| &input.old_field("spec")["template"]));
    check_not_negative(spec, "minReadySeconds", &SPEC, &mut errors);
    let selector = spec["selector"].as_object().filter(|selector| !selector.is_empty());
    if selector.is_none() {
        errors.push(FieldError::required(SPEC.child("selector"), ""));
    }
    if spec["replicas"].is_null() {
        errors.push(FieldError::required(SPEC.child("replicas"), ""));
    }
    check_not_negative(spec, "replicas", &SPEC, &mut errors);
    let (template, path) = (&spec["template"], SPEC.child("template"));
    if template.is_null() {
        errors.push(FieldError::required(path, ""));
        return errors;
    }
    let labels = &template["metadata"]["labels"];
    let mut selected = selector.into_iter().flatten();
    if !selected.all(|(key, value)| labels.get(key) == Some(value)) {
        errors.push(unselected_error(labels, &path));
    }
    check_pod_template(template, &PodSpecOptions::of_template(old), &path, &mut errors);
    check_endless_template(template, "ReplicationController", &path, &mut errors);
    errors
}

fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const COUNTS: [&str; 5] =
        ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"];
    let mut errors = input.metadata_update_errors();
    let status = input.field("status");
    check_counts(status, &COUNTS, &mut errors);
    let limited = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    check_count_limits(status, &limited, "readyReplicas", &mut errors);
    errors
}

fn print_controller(printer: &CellPrinter<'_>) -> Vec<Value> {
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
        format_labels(spec.get("selector")).into(),
    ]
}
