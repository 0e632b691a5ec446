//! Pods (`pkg/registry/core/pod/strategy.go`).

mod annotations;
mod cells;
mod containers;
mod environment;
mod mounts;
mod partial_update;
mod paths;
mod probes;
mod projected_volume;
mod quality_of_service;
mod resources;
mod scheduling;
mod security;
mod spec;
mod status;
mod update;
mod volume_claim;
mod volume_files;
mod volumes;
mod warnings;

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_label_value;
use serde_json::{Value, json};

use self::annotations::{check_annotation_changes, check_pod_annotations, check_profile_annotations, is_deletion_cost};
use self::cells::print_pod;
use self::containers::check_image_whitespace;
use self::partial_update::{check_ephemeral_changes, check_resize, keep_other_parts};
pub(super) use self::paths::check_not_negative;
use self::quality_of_service::quality_of_service;
use self::spec::check_pod_spec;
pub(super) use self::spec::{check_pod_template, check_template_metadata};
use self::status::{check_pod_status, keep_pod_status, pod_status_warnings};
use self::update::check_spec_changes;
pub(super) use self::volume_claim::check_claim_spec;
use self::warnings::pod_warnings;
pub(super) use self::warnings::template_warnings;
use super::field_rules::is_invalid_selector;
use super::initial_status::reset_status;
use super::node_selector::node_selector_errors;
use super::selectable_fields::SelectableFields;
use super::validation::{METADATA, ValidationInput, items, text, texts};
use super::{GenerationRule, KindRules, Object, ObjectUpdate};
use crate::resources::ServedKind;

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    returns_deleted_object: true,
    deletion_grace: Some(deletion_grace),
    row_conditions: cells::pod_row_conditions,
    selectable: SelectableFields {
        labels: &[
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        ],
        // The name of clients before v1.
        aliases: &[("spec.host", "spec.nodeName")],
        // The second label has no value.
        paths: &[("status.podIP", &["status.podIP", "status.podIPs.0.ip"]), ("status.podIPs", &[])],
        ..SelectableFields::NONE
    },
    prepare_new,
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => check_pod_status(input),
        _ => validate_pod(input),
    },
    warnings: |written| match (written.subresource, written.old) {
        ("", None) => pod_warnings(written.object),
        ("status", _) => pod_status_warnings(written.field("status")),
        _ => Vec::new(),
    },
    cells: print_pod,
    ..KindRules::of("", "pods")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// What the validation of a specification depends on besides it: whether it is that of a Pod, and what the replaced one had
/// that is not valid any more.
#[derive(Clone, Copy, Default)]
pub(super) struct PodSpecOptions<'o> {
    is_pod: bool,
    /// Name of the Pod; none for a template.
    pod_name: Option<&'o str>,
    allows_any_selector_value: bool,
    allows_any_node_value: bool,
    allows_any_spread_value: bool,
    allows_any_deletion_cost: bool,
}

impl PodSpecOptions<'_> {
    /// Those of a template that replaces another one, or of a new one (`GetValidationOptionsFromPodTemplate`).
    pub(super) fn of_template(old: Option<&Value>) -> PodSpecOptions<'static> {
        old.map_or_else(PodSpecOptions::default, |old| PodSpecOptions::of_old(&old["metadata"], &old["spec"]))
    }

    fn of_old(metadata: &Value, spec: &Value) -> PodSpecOptions<'static> {
        let affinity = &spec["affinity"];
        let required = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let cost = metadata["annotations"]["controller.kubernetes.io/pod-deletion-cost"].as_str();
        let spread = items(spec, "topologySpreadConstraints");
        PodSpecOptions {
            allows_any_selector_value: ["podAffinity", "podAntiAffinity"]
                .into_iter()
                .flat_map(|field| pod_terms(&affinity[field]))
                .any(|term| has_invalid_value(&term["labelSelector"]) || has_invalid_value(&term["namespaceSelector"])),
            allows_any_node_value: !required.is_null()
                && items(required, "nodeSelectorTerms").iter().any(has_invalid_value)
                && node_selector_errors(required, true, &FieldPath::root("")).is_empty(),
            allows_any_spread_value: spread.iter().any(|constraint| is_invalid_selector(&constraint["labelSelector"])),
            allows_any_deletion_cost: cost.is_some_and(|cost| !is_deletion_cost(cost)),
            ..PodSpecOptions::default()
        }
    }
}

/// The terms of an affinity to Pods.
fn pod_terms(affinity: &Value) -> impl Iterator<Item = &Value> {
    let required = items(affinity, "requiredDuringSchedulingIgnoredDuringExecution").iter();
    let preferred = items(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter();
    required.chain(preferred.map(|weighted| &weighted["podAffinityTerm"]))
}

/// Whether an expression has a value that is none of a label.
fn has_invalid_value(selector: &Value) -> bool {
    let mut expressions = items(selector, "matchExpressions").iter();
    expressions.any(|expression| texts(expression, "values").iter().any(|value| !check_label_value(value).is_empty()))
}

/// Errors of a Pod that is new or replaces another one.
fn validate_pod(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    let (metadata, spec) = (input.field("metadata"), input.field("spec"));
    let old = input.old.map(|_| (input.old_field("metadata"), input.old_field("spec")));
    let options = old.map_or_else(PodSpecOptions::default, |(metadata, spec)| PodSpecOptions::of_old(metadata, spec));
    let options = PodSpecOptions { is_pod: true, pod_name: Some(input.metadata().name()), ..options };
    let annotations = METADATA.child("annotations");
    errors.append(input.metadata_errors());
    check_pod_annotations(metadata, spec, options.allows_any_deletion_cost, &annotations, &mut errors);
    check_pod_spec(spec, &options, &SPEC, &mut errors);
    check_only_pod(spec, &mut errors);
    match old {
        None => check_new_pod(metadata, spec, &mut errors),
        Some((old_metadata, old_spec)) => {
            check_annotation_changes(metadata, old_metadata, &annotations, &mut errors);
            check_pod_annotations(metadata, spec, options.allows_any_deletion_cost, &annotations, &mut errors);
            match input.subresource {
                "ephemeralcontainers" => check_ephemeral_changes(spec, old_spec, &mut errors),
                "resize" => check_resize(spec, old_spec, &mut errors),
                _ => check_spec_changes(spec, old_spec, &mut errors),
            }
        }
    }
    errors
}

/// Errors of what templates may have.
fn check_only_pod(spec: &Value, errors: &mut FieldErrors) {
    if text(spec, "serviceAccountName").is_empty() {
        let volumes = SPEC.child("volumes");
        for (index, volume) in items(spec, "volumes").iter().enumerate() {
            let path = volumes.index(index);
            let path = path.child("projected");
            let path = path.child("sources");
            for (index, source) in items(&volume["projected"], "sources").iter().enumerate() {
                if !source["serviceAccountToken"].is_null() {
                    let path = path.index(index);
                    let why = "must not be specified when serviceAccountName is not set";
                    errors.push(FieldError::forbidden(path.child("serviceAccountToken"), why));
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let path = SPEC.child(list);
        for (index, container) in items(spec, list).iter().enumerate() {
            check_image_whitespace(container, &path.index(index), errors);
        }
    }
}

fn check_new_pod(metadata: &Value, spec: &Value, errors: &mut FieldErrors) {
    if !items(spec, "ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden(SPEC.child("ephemeralContainers"), "cannot be set on create"));
    }
    if !text(spec, "nodeName").is_empty() && !items(spec, "schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(SPEC.child("nodeName"), why));
    }
    check_profile_annotations(metadata, spec, &SPEC, errors);
}

fn prepare_new(kind: &ServedKind, object: &mut Object) {
    reset_status(kind, object, &initial_pod_status(object));
    let labels = object.get("metadata").map(|metadata| metadata["labels"].clone()).unwrap_or_default();
    let Some(spec) = object.get_mut("spec") else { return };
    add_label_expressions(spec, &labels);
}

/// Adds to selectors the labels of the Pod that they name (`mutatePodAffinity`, `mutateTopologySpreadConstraints`).
fn add_label_expressions(spec: &mut Value, labels: &Value) {
    let pointers = ["/affinity/podAffinity", "/affinity/podAntiAffinity"];
    for pointer in pointers {
        let Some(affinity) = spec.pointer_mut(pointer) else { continue };
        if let Some(Value::Array(terms)) = affinity.get_mut("requiredDuringSchedulingIgnoredDuringExecution") {
            terms.iter_mut().for_each(|term| extend_selector(term, labels));
        }
        if let Some(Value::Array(terms)) = affinity.get_mut("preferredDuringSchedulingIgnoredDuringExecution") {
            let terms = terms.iter_mut().filter_map(|term| term.get_mut("podAffinityTerm"));
            terms.for_each(|term| extend_selector(term, labels));
        }
    }
    if let Some(Value::Array(constraints)) = spec.get_mut("topologySpreadConstraints") {
        constraints.iter_mut().for_each(|constraint| extend_selector(constraint, labels));
    }
}

fn extend_selector(term: &mut Value, labels: &Value) {
    let mut added = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let mut seen = HashSet::new();
        for key in texts(term, field) {
            // Validation refuses a key that is there twice, and a value that is none of a label: it may be large.
            let value = labels[key].as_str().filter(|value| check_label_value(value).is_empty());
            if let Some(value) = value.filter(|_| seen.insert(key)) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(Value::Object(selector)) = term.get_mut("labelSelector") else { return };
    if added.is_empty() {
        return;
    }
    if let Value::Array(expressions) = selector.entry("matchExpressions").or_insert_with(|| json!([])) {
        expressions.extend(added);
    }
}

fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    if matches!(update.subresource, "ephemeralcontainers" | "resize") {
        return keep_other_parts(update, object);
    }
    update.keep_other_part(object);
    if update.subresource == "status" {
        keep_pod_status(update, object);
    }
}

/// The seconds in which the kubelet ends the containers; none for a Pod that runs nowhere.
fn deletion_grace(pod: &Object, requested: Option<i64>) -> i64 {
    let text = |part: &str, field: &str| pod.get(part).and_then(|part| part[field].as_str()).unwrap_or_default();
    if text("spec", "nodeName").is_empty() || matches!(text("status", "phase"), "Failed" | "Succeeded") {
        return 0;
    }
    let own = pod.get("spec").and_then(|spec| spec["terminationGracePeriodSeconds"].as_i64());
    match requested.or(own).unwrap_or_default() {
        ..0 => 1,
        seconds => seconds,
    }
}

/// The status of a Pod that no scheduler has seen. As upstream, a quality of service that the client gives stays.
fn initial_pod_status(pod: &Object) -> Value {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let given = pod.get("status").and_then(|status| status["qosClass"].as_str()).filter(|class| !class.is_empty());
    let mut status = json!({"phase": "Pending", "qosClass": given.unwrap_or_else(|| quality_of_service(spec))});
    if spec["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastTransitionTime": pod.get("metadata").map(|metadata| &metadata["creationTimestamp"]),
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_gets_valid_labels_once() {
        let mut spec = json!({"topologySpreadConstraints": [
            {"labelSelector": {}, "matchLabelKeys": ["a", "a", "large", "absent"]}]});
        add_label_expressions(&mut spec, &json!({"a": "b", "large": "x".repeat(64)}));
        let expected = json!([{"key": "a", "operator": "In", "values": ["b"]}]);
        assert_eq!(spec["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"], expected);
    }

    #[test]
    fn pod_status_is_not_the_clients() {
        let pod = json!({"spec": {}, "status": {"phase": "Running", "qosClass": "Guaranteed"}});
        assert_eq!(initial_pod_status(pod.as_object().unwrap()), json!({"phase": "Pending", "qosClass": "Guaranteed"}));
        let gated = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedulingGates": [{"name": "g"}]}});
        let status = initial_pod_status(gated.as_object().unwrap());
        assert_eq!(
            (&status["qosClass"], &status["conditions"][0]["reason"]),
            (&json!("BestEffort"), &json!("SchedulingGated"))
        );
    }
}
