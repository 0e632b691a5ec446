//! StatefulSets.

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{NameRule, check_dns1123_label};
use serde_json::{Value, json};

use super::deployment::{int_or_percent, shown_int_or_percent};
use super::{SPEC, check_collisions, check_count_limits, check_counts, check_endless_template, check_selector};
use super::{container_cells, has_changed_spec, is_empty_selector, selects_labels, unselected_error};
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::field_rules::{int_or_percent_errors, typed_text};
use crate::kinds::initial_status::reset_status;
use crate::kinds::internal_json::{external_value, internal_value};
use crate::kinds::pod::{
    PodSpecOptions, check_claim_spec, check_not_negative, check_pod_template, check_template_metadata,
    template_warnings,
};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text};
use crate::kinds::{GenerationRule, KindRules, Object, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    name_rule: NameRule::DnsLabel,
    generation: GenerationRule::SPEC,
    convert_body: set_claim_kinds,
    prepare_new: |kind, object| {
        reset_status(kind, object, &Value::Object(Object::new()));
        drop_max_unavailable(object);
    },
    prepare_replacement: |update, object| {
        update.keep_other_part(object);
        let strategy = update.old.get("spec").map(|spec| &spec["updateStrategy"]["rollingUpdate"]);
        if strategy.is_none_or(|strategy| strategy["maxUnavailable"].is_null()) {
            drop_max_unavailable(object);
        }
    },
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_stateful_set(input),
    },
    warnings: stateful_set_warnings,
    cells: print_stateful_set,
    ..KindRules::of("apps", "statefulsets")
};

/// Fields of a specification that may change.
const UPDATABLE: [&str; 7] = [
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];

/// Gives the templates of claims their kind (`Convert_apps_StatefulSetSpec_To_v1_StatefulSetSpec`).
fn set_claim_kinds(object: &mut Object) {
    let claims = object.get_mut("spec").and_then(|spec| spec.get_mut("volumeClaimTemplates"));
    for claim in claims.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
        claim.insert("apiVersion".to_owned(), "v1".into());
        claim.insert("kind".to_owned(), "PersistentVolumeClaim".into());
    }
}

/// Removes a field whose feature is off (`dropStatefulSetDisabledFields`).
fn drop_max_unavailable(object: &mut Object) {
    let rolling = object.get_mut("spec").and_then(|spec| spec.pointer_mut("/updateStrategy/rollingUpdate"));
    if let Some(Value::Object(rolling)) = rolling {
        rolling.remove("maxUnavailable");
    }
}

fn validate_stateful_set(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let Some(_) = input.old else {
        let mut errors = input.metadata_errors();
        check_spec(spec, &PodSpecOptions::of_template(None), SpecRules::default(), &mut errors);
        return errors;
    };
    let mut errors = input.metadata_update_errors();
    let old = input.old_field("spec");
    let options = PodSpecOptions::of_template(Some(&old["template"]));
    let mut rules = SpecRules { is_update: true, skips_template: false };
    let mut old_errors = FieldErrors::new();
    check_spec(old, &options, rules, &mut old_errors);
    rules.skips_template = !old_errors.is_empty();
    check_spec(spec, &options, rules, &mut errors);
    let fixed = |spec: &Value| {
        let mut fixed = spec.as_object().cloned().unwrap_or_default();
        UPDATABLE.iter().for_each(|field| drop(fixed.remove(*field)));
        fixed
    };
    if fixed(spec) != fixed(old) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                   'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                   'minReadySeconds' are forbidden";
        errors.push(FieldError::forbidden(SPEC, why));
    }
    errors
}

/// What is not examined again.
#[derive(Clone, Copy, Default)]
struct SpecRules {
    /// The name of the Service and the claims cannot change.
    is_update: bool,
    /// The stored template is invalid already.
    skips_template: bool,
}

fn check_spec(spec: &Value, options: &PodSpecOptions<'_>, rules: SpecRules, errors: &mut FieldErrors) {
    let policy_path = SPEC.child("podManagementPolicy");
    match text(spec, "podManagementPolicy") {
        "" => errors.push(FieldError::required(policy_path, "")),
        "OrderedReady" | "Parallel" => {}
        other => {
            let why = "must be 'OrderedReady' or 'Parallel'";
            errors.push(FieldError::invalid(policy_path, typed_text(other), why));
        }
    }
    check_strategy(&spec["updateStrategy"], &SPEC.child("updateStrategy"), errors);
    let retention = &spec["persistentVolumeClaimRetentionPolicy"];
    let retention_path = SPEC.child("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"].into_iter().filter(|_| !retention.is_null()) {
        let policy = text(retention, field);
        if !matches!(policy, "Retain" | "Delete") {
            let supported = ["Retain", "Delete"];
            errors.push(FieldError::not_supported(retention_path.child(field), policy, &supported));
        }
    }
    let claims = items(spec, "volumeClaimTemplates");
    if !rules.is_update {
        let path = SPEC.child("volumeClaimTemplates");
        for (index, claim) in claims.iter().enumerate() {
            let path = path.index(index);
            check_claim_spec(&claim["spec"], &path.child("spec"), errors);
        }
    }
    check_not_negative(spec, "replicas", &SPEC, errors);
    check_not_negative(spec, "minReadySeconds", &SPEC, errors);
    if let Some(start) = spec["ordinals"]["start"].as_i64().filter(|start| *start < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(SPEC.child("ordinals.start"), start, why));
    }
    let service = text(spec, "serviceName");
    if !rules.is_update && !service.is_empty() {
        errors.extend(invalid_for(SPEC.child("serviceName"), service, check_dns1123_label(service)));
    }
    check_selector(spec, "empty selector is invalid for statefulset", errors);
    check_template(spec, options, rules, errors);
    let workload = "StatefulSet";
    check_endless_template(&spec["template"], workload, &SPEC.child("template"), errors);
}

fn check_template(spec: &Value, options: &PodSpecOptions<'_>, rules: SpecRules, errors: &mut FieldErrors) {
    let (selector, template, path) = (&spec["selector"], &spec["template"], SPEC.child("template"));
    let labels = &template["metadata"]["labels"];
    let Some(is_selected) = selects_labels(selector, labels) else {
        errors.push(FieldError::invalid(SPEC.child("selector"), external_value(selector), ""));
        return;
    };
    let selects_all = !selector.is_null() && is_empty_selector(selector);
    if !is_selected && !selects_all {
        errors.push(unselected_error(labels, &path));
    }
    if !rules.skips_template {
        let pod_template = with_claims(template, items(spec, "volumeClaimTemplates"));
        check_pod_template(pod_template.as_ref().unwrap_or(template), options, &path, errors);
    }
    check_template_metadata(template, options, &path, errors);
}

/// The template with what the controller sets in Pods: names of hosts, and volumes of claims.
fn with_claims(template: &Value, claims: &[Value]) -> Option<Value> {
    let spec = &template["spec"];
    let has_names = ["subdomain", "hostname"].iter().any(|field| !text(spec, field).is_empty());
    if claims.is_empty() && !has_names {
        return None;
    }
    let mut template = template.clone();
    let spec = template.get_mut("spec")?.as_object_mut()?;
    spec.remove("subdomain");
    spec.remove("hostname");
    if !claims.is_empty() {
        let mut names = HashSet::new();
        let mut volumes = Vec::new();
        for name in claims.iter().map(|claim| text(&claim["metadata"], "name")) {
            if names.insert(name) {
                volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
            }
        }
        let own = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
        volumes.extend(own.filter(|volume| !names.contains(text(volume, "name"))).cloned());
        spec.insert("volumes".to_owned(), volumes.into());
    }
    Some(template)
}

fn check_strategy(strategy: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (rolling, rolling_path) = (&strategy["rollingUpdate"], path.child("rollingUpdate"));
    match text(strategy, "type") {
        "" => errors.push(FieldError::required(path, "")),
        "OnDelete" => {
            if !rolling.is_null() {
                let shown = internal_value("apps.RollingUpdateStatefulSetStrategy", rolling);
                let why = "only allowed for updateStrategy 'RollingUpdate'";
                errors.push(FieldError::invalid(rolling_path, shown, why));
            }
        }
        "RollingUpdate" => check_rolling_update(rolling, &rolling_path, errors),
        _ => {
            let shown = internal_value("apps.StatefulSetUpdateStrategy", strategy);
            errors.push(FieldError::invalid(path, shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
}

fn check_rolling_update(rolling: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_not_negative(rolling, "partition", path, errors);
    let (unavailable, path) = (&rolling["maxUnavailable"], path.child("maxUnavailable"));
    if unavailable.is_null() {
        return;
    }
    let is_limit = |error: &FieldError| error.detail.starts_with("must not be greater than");
    let (limits, others): (Vec<FieldError>, Vec<FieldError>) =
        int_or_percent_errors(path, unavailable).into_iter().partition(is_limit);
    errors.extend(others);
    if int_or_percent(unavailable) == 0 {
        errors.push(FieldError::invalid(path, shown_int_or_percent(unavailable), "cannot be 0"));
    }
    errors.extend(limits);
}

fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const COUNTS: [&str; 7] = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    let mut errors = FieldErrors::new();
    let status = input.field("status");
    check_counts(status, &COUNTS, &mut errors);
    let limited = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    check_count_limits(status, &limited, "status.readyReplicas", &mut errors);
    errors.append(input.metadata_update_errors());
    check_collisions(status, input.old_field("status"), &mut errors);
    errors
}

fn stateful_set_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let spec = written.field("spec");
    if !written.subresource.is_empty() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    if has_changed_spec(written) {
        warnings = template_warnings(&spec["template"], &SPEC.child("template"));
    }
    if spec["revisionHistoryLimit"].as_i64().is_some_and(|limit| limit < 0) {
        let why = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is \
                   recommended";
        warnings.push(why.to_owned());
    }
    warnings
}

fn print_stateful_set(printer: &CellPrinter<'_>) -> Vec<Value> {
    let (spec, status) = (&printer.object["spec"], &printer.object["status"]);
    let [names, images] = container_cells(printer, "/spec/template/spec/containers");
    vec![
        printer.name(),
        format!("{}/{}", integer(status, "readyReplicas"), integer(spec, "replicas")).into(),
        printer.age(),
        names,
        images,
    ]
}
