//! DaemonSets.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::object_meta::change_metadata;
use serde_json::{Value, json};

use super::deployment::{int_or_percent, shown_int_or_percent};
use super::{SPEC, changed_template_warnings, check_collisions, check_counts, check_endless_template, container_cells};
use super::{is_empty_selector, selector_change_error, selects_labels, unselected_error};
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::field_rules::{format_label_selector, int_or_percent_errors, label_selector_errors};
use crate::kinds::initial_status::reset_status;
use crate::kinds::internal_json::{external_value, internal_value};
use crate::kinds::pod::{PodSpecOptions, check_not_negative, check_pod_template};
use crate::kinds::service::format_labels;
use crate::kinds::validation::{ValidationInput, text};
use crate::kinds::{GenerationRule, KindRules, Object, ObjectUpdate};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    prepare_new: |kind, object| {
        reset_status(kind, object, &Value::Object(Object::new()));
        let given = template_generation(object).filter(|generation| *generation >= 1);
        set_template_generation(object, given.unwrap_or(1));
    },
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_daemon_set(input),
    },
    warnings: |written| match written.subresource {
        "" => changed_template_warnings(written),
        _ => Vec::new(),
    },
    cells: print_daemon_set,
    versioned_annotation: Some(TEMPLATE_GENERATION),
    ..KindRules::of("apps", "daemonsets")
};

/// The annotation in which `apps/v1` keeps a field of older versions (`pkg/apis/apps/v1/conversion.go`).
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Object) -> Option<i64> {
    object.get("metadata")?["annotations"][TEMPLATE_GENERATION].as_str()?.parse().ok()
}

fn set_template_generation(object: &mut Object, generation: i64) {
    change_metadata(object, |metadata| {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Value::Object(annotations) = annotations {
            annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
        }
    });
}

/// Counts changes of the template.
fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    let template = |object: &Object| object.get("spec").map(|spec| spec["template"].clone());
    let is_changed = update.subresource.is_empty() && template(update.old) != template(object);
    let generation = template_generation(update.old).unwrap_or(0).saturating_add(i64::from(is_changed));
    if generation > 0 {
        set_template_generation(object, generation);
    }
}

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
