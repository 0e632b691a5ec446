//! Workloads: what makes Pods of a template (`pkg/apis/apps/validation`, `pkg/apis/batch/validation`,
//! `pkg/registry/apps`, `pkg/registry/batch`).

mod controller_revision;
mod cron_job;
mod cron_schedule;
mod daemon_set;
mod deployment;
mod job;
mod job_policies;
mod job_status;
mod pod_template;
mod replica_set;
mod replication_controller;
mod stateful_set;

use kubeapi::LabelSelector;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1123_label;
use serde_json::Value;

use super::cells::{CellPrinter, items_at, text_at};
use super::field_rules::{immutable_error, label_selector_errors};
use super::internal_json::external_value;
use super::pod::{check_not_negative, template_warnings};
use super::validation::{items, text};
use super::{KindRules, WrittenObject};

/// The rules of the kinds.
pub(super) static RULES: [&KindRules; 9] = [
    &controller_revision::RULES,
    &cron_job::RULES,
    &daemon_set::RULES,
    &deployment::RULES,
    &job::RULES,
    &pod_template::RULES,
    &replica_set::RULES,
    &replication_controller::RULES,
    &stateful_set::RULES,
];

const SPEC: FieldPath<'static> = FieldPath::root("spec");
const STATUS: FieldPath<'static> = FieldPath::root("status");

/// The error of a changed selector.
fn selector_change_error(spec: &Value, old: &Value) -> Option<FieldError> {
    let error = immutable_error(SPEC.child("selector"), &spec["selector"], old)?;
    Some(FieldError { value: Some(external_value(&spec["selector"])), ..error })
}

/// Whether a selector selects labels; none if it is invalid. An absent one selects nothing (`LabelSelectorAsSelector`).
fn selects_labels(selector: &Value, labels: &Value) -> Option<bool> {
    if selector.is_null() {
        return Some(false);
    }
    Some(LabelSelector::of_object(selector)?.matches(|key| labels[key].as_str()))
}

fn is_empty_selector(selector: &Value) -> bool {
    let has_labels = selector["matchLabels"].as_object().is_some_and(|labels| !labels.is_empty());
    !has_labels && items(selector, "matchExpressions").is_empty()
}

/// Errors of a selector that must be there and select something.
fn check_selector(spec: &Value, empty_error: &str, errors: &mut FieldErrors) {
    let (selector, path) = (&spec["selector"], SPEC.child("selector"));
    if selector.is_null() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    errors.append(label_selector_errors(selector, false, &path));
    if is_empty_selector(selector) {
        errors.push(FieldError::invalid(path, external_value(selector), empty_error));
    }
}

/// The error of a template whose labels the selector of its workload does not select.
fn unselected_error(labels: &Value, template: &FieldPath<'_>) -> FieldError {
    let path = template.child("metadata");
    let shown = if labels.is_null() { BadValue::null() } else { BadValue::from(labels) };
    FieldError::invalid(path.child("labels"), shown, "`selector` does not match template `labels`")
}

/// Errors of a template whose Pods always run again, without an end.
fn check_endless_template(template: &Value, workload: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (spec, path) = (&template["spec"], path.child("spec"));
    let policy = text(spec, "restartPolicy");
    if policy != "Always" {
        errors.push(FieldError::not_supported(path.child("restartPolicy"), policy, &["Always"]));
    }
    if !spec["activeDeadlineSeconds"].is_null() {
        let why = format!("activeDeadlineSeconds in {workload} is not Supported");
        errors.push(FieldError::forbidden(path.child("activeDeadlineSeconds"), why));
    }
}

/// Errors of counts of a status that are negative.
fn check_counts(status: &Value, fields: &[&str], errors: &mut FieldErrors) {
    fields.iter().for_each(|field| check_not_negative(status, field, &STATUS, errors));
}

/// Errors of counts of a status that are greater than that of all Pods.
fn check_count_limits(status: &Value, fields: &[&str], ready_limit: &str, errors: &mut FieldErrors) {
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    for field in fields.iter().filter(|field| count(field) > count("replicas")) {
        let why = "cannot be greater than status.replicas";
        errors.push(FieldError::invalid(STATUS.child(field), count(field), why));
    }
    let available = count("availableReplicas");
    if available > count("readyReplicas") {
        let why = format!("cannot be greater than {ready_limit}");
        errors.push(FieldError::invalid(STATUS.child("availableReplicas"), available, why));
    }
}

/// Errors of a count of collisions that became less.
fn check_collisions(status: &Value, old: &Value, errors: &mut FieldErrors) {
    let count = |status: &Value| status["collisionCount"].as_i64();
    if let Some(old) = count(old)
        && count(status).is_none_or(|count| count < old)
    {
        let shown = count(status).unwrap_or_default();
        errors.push(FieldError::invalid(STATUS.child("collisionCount"), shown, "cannot be decremented"));
    }
}

/// Whether a write changes the specification, so that warnings about its template are due.
fn has_changed_spec(written: &WrittenObject<'_>) -> bool {
    written.old.is_none_or(|old| old.get("spec") != written.object.get("spec"))
}

/// Warnings about the template of a workload that is new, or whose specification changes.
fn changed_template_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    match has_changed_spec(written) {
        true => template_warnings(&written.field("spec")["template"], &SPEC.child("template")),
        false => Vec::new(),
    }
}

/// Warnings about a workload whose name becomes that of hosts: about the name when it is new, and about its template.
fn workload_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    match (written.subresource, written.old) {
        ("", None) => name_warning(written).into_iter().chain(changed_template_warnings(written)).collect(),
        ("", Some(_)) => changed_template_warnings(written),
        _ => Vec::new(),
    }
}

/// The warning about a name that hosts cannot have.
fn name_warning(written: &WrittenObject<'_>) -> Option<String> {
    let sentences = check_dns1123_label(text(written.field("metadata"), "name"));
    let prefix = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS \
                  label is recommended: ";
    (!sentences.is_empty()).then(|| format!("{prefix}[{}]", sentences.join(" ")))
}

/// The names and the images of the containers of a template, as two cells.
fn container_cells(printer: &CellPrinter<'_>, pointer: &str) -> [Value; 2] {
    let containers = items_at(printer.object, pointer);
    ["/name", "/image"].map(|field| {
        let texts: Vec<&str> = containers.iter().map(|container| text_at(container, field)).collect();
        texts.join(",").into()
    })
}
