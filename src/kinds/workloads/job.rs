//! Jobs.

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, is_label_value};
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::{Map, Value, json};

use super::job_policies::{check_failure_policy, check_success_policy, shown_text};
use super::job_status::{has_condition, print_job, validate_status};
use super::{SPEC, has_changed_spec, name_warning, selects_labels, unselected_error};
use crate::kinds::field_rules::{is_same, label_selector_errors};
use crate::kinds::initial_status::reset_status;
use crate::kinds::internal_json::{external_value, internal_value};
use crate::kinds::pod::{PodSpecOptions, check_not_negative, check_pod_template, template_warnings};
use crate::kinds::selectable_fields::SelectableFields;
use crate::kinds::validation::{METADATA, ValidationInput, invalid_for, text};
use crate::kinds::{DependentsRule, GenerationRule, KindRules, Object, WrittenObject};
use kubeapi::GoQuoted;

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    dependents: DependentsRule::Orphan,
    selectable: SelectableFields {
        labels: &["status.successful"],
        paths: &[("status.successful", &["status.succeeded"])],
        unsupported: |_, label| format!("field label {} not supported for Job", GoQuoted(label)),
        ..SelectableFields::NONE
    },
    prepare_new: |kind, object| {
        generate_selector(object);
        reset_status(kind, object, &Value::Object(Object::new()));
    },
    prepare_replacement: |update, object| {
        update.keep_other_part(object);
        set_labels_of_template(object);
    },
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_job(input),
    },
    warnings: job_warnings,
    cells: print_job,
    deletion_warning: Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set \
         propagationPolicy=Orphan to suppress this warning",
    ),
    ..KindRules::of("batch", "jobs")
};

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const OLD_CONTROLLER_UID: &str = "controller-uid";
const OLD_JOB_NAME: &str = "job-name";
const MAX_INDEXED_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// Number of completions from which on other limits hold.
const MANY_COMPLETIONS: i64 = 100_000;
const LIMIT_OF_MANY: i64 = 10_000;
const MAX_MANAGER_BYTES: usize = 63;

/// Gives a Job a selector of its own, and its template the labels (`generateSelector`).
fn generate_selector(object: &mut Object) {
    let meta = ObjectMetaView::of_map(object);
    let (name, uid) = (meta.name().to_owned(), meta.uid().to_owned());
    let is_manual = object.get("spec").is_some_and(|spec| spec["manualSelector"] == Value::Bool(true));
    if is_manual {
        set_labels_of_template(object);
        return;
    }
    // Another name is refused: as a label of the template alone if that had no labels to share.
    let shares_labels = labels_of_template(object).is_some() || is_label_value(&name);
    let Some(Value::Object(spec)) = object.get_mut("spec") else { return };
    let template = spec.entry("template").or_insert_with(|| json!({}));
    if let Some(labels) = child_map(template, "metadata").and_then(|metadata| child_map(metadata, "labels")) {
        let generated = [(OLD_JOB_NAME, &name), (JOB_NAME, &name), (OLD_CONTROLLER_UID, &uid), (CONTROLLER_UID, &uid)];
        for (label, value) in generated {
            add_label(labels, label, value);
        }
    }
    let selector = spec.entry("selector").or_insert_with(|| json!({}));
    if let Some(labels) = child_map(selector, "matchLabels") {
        add_label(labels, CONTROLLER_UID, &uid);
    }
    if shares_labels {
        set_labels_of_template(object);
    }
}

/// The labels of the template, if there are any.
fn labels_of_template(object: &Object) -> Option<&Value> {
    let labels = &object.get("spec")?["template"]["metadata"]["labels"];
    labels.as_object().is_some_and(|labels| !labels.is_empty()).then_some(labels)
}

/// Gives a Job without labels those of its template (`SetDefaults_Job`).
fn set_labels_of_template(object: &mut Object) {
    let has_labels = ObjectMetaView::of_map(object).labels().next().is_some();
    if let (false, Some(labels)) = (has_labels, labels_of_template(object).cloned()) {
        change_metadata(object, |metadata| metadata.insert("labels".to_owned(), labels));
    }
}

/// A map in an object, which is made if it is absent.
fn child_map<'v>(object: &'v mut Value, field: &str) -> Option<&'v mut Value> {
    let map = object.as_object_mut()?;
    let child = map.entry(field).or_insert_with(|| json!({}));
    if child.is_null() {
        *child = json!({});
    }
    Some(child)
}

fn add_label(labels: &mut Value, label: &str, value: &str) {
    if let Value::Object(labels) = labels {
        labels.entry(label).or_insert_with(|| value.into());
    }
}

fn validate_job(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, old_spec) = (input.field("spec"), input.old.map(|_| input.old_field("spec")));
    let old_template = old_spec.map(|spec| &spec["template"]);
    let options = PodSpecOptions::of_template(old_template);
    let has_label = |label: &str| old_template.is_none_or(|old| old["metadata"]["labels"].get(label).is_some());
    let mut errors = input.metadata_errors();
    check_generated_selector(input, has_label(JOB_NAME) && has_label(CONTROLLER_UID), &mut errors);
    check_selected_spec(spec, &options, &mut errors);
    check_host_names(input, &mut errors);
    if let Some(old_spec) = old_spec {
        errors.append(input.metadata_update_errors());
        check_selected_spec(spec, &options, &mut errors);
        check_changes(spec, (old_spec, input.old_field("status")), &mut errors);
    }
    errors
}

/// Errors of labels and a selector that are not those that the server generates.
fn check_generated_selector(input: &ValidationInput<'_>, has_new_labels: bool, errors: &mut FieldErrors) {
    let spec = input.field("spec");
    let selector = &spec["selector"];
    if spec["manualSelector"] == Value::Bool(true) || selector.is_null() {
        return;
    }
    let (name, uid) = (input.metadata().name(), input.metadata().uid());
    if uid.is_empty() {
        errors.push(FieldError::required(METADATA.child("uid"), ""));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let path = SPEC.child("template");
    let path = path.child("metadata");
    let path = path.child("labels");
    let mut expected = Map::new();
    let generated = [
        (OLD_CONTROLLER_UID, uid, true),
        (OLD_JOB_NAME, name, true),
        (CONTROLLER_UID, uid, has_new_labels),
        (JOB_NAME, name, has_new_labels),
    ];
    for (label, value, _) in generated.into_iter().filter(|(_, _, is_expected)| *is_expected) {
        expected.insert(label.to_owned(), value.into());
        let why = format!("must be '{value}'");
        match labels[label].as_str() {
            None => errors.push(FieldError::required(path.key(label), why)),
            Some(found) if found != value => {
                errors.push(FieldError::invalid(path.key(label), BadValue::from(labels), why));
            }
            Some(_) => {}
        }
    }
    if selects_labels(selector, &Value::Object(expected)) == Some(false) {
        let why = "`selector` not auto-generated";
        errors.push(FieldError::invalid(SPEC.child("selector"), external_value(selector), why));
    }
}

/// Errors of the specification of a Job with a selector (`ValidateJobSpec`).
fn check_selected_spec(spec: &Value, options: &PodSpecOptions<'_>, errors: &mut FieldErrors) {
    check_job_spec(spec, options, &SPEC, errors);
    let (selector, path) = (&spec["selector"], SPEC.child("selector"));
    if selector.is_null() {
        errors.push(FieldError::required(path, ""));
    }
    errors.append(label_selector_errors(selector, false, &path));
    let labels = &spec["template"]["metadata"]["labels"];
    if selects_labels(selector, labels) == Some(false) {
        errors.push(unselected_error(labels, &SPEC.child("template")));
    }
}

/// Errors of the specification of a Job or of a template of Jobs (`validateJobSpec`).
pub(super) fn check_job_spec(
    spec: &Value,
    options: &PodSpecOptions<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        check_not_negative(spec, field, path, errors);
    }
    let is_set = |field: &str| !spec[field].is_null();
    if is_set("maxFailedIndexes") && !is_set("backoffLimitPerIndex") {
        errors.push(FieldError::required(path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    check_manager(spec, &path.child("managedBy"), errors);
    check_completion_mode(spec, path, errors);
    if is_set("podFailurePolicy") {
        check_failure_policy(spec, &path.child("podFailurePolicy"), errors);
    }
    if is_set("successPolicy") {
        let path = path.child("successPolicy");
        if text(spec, "completionMode") == "Indexed" {
            check_success_policy(spec, &path, errors);
        } else {
            let shown = internal_value("batch.SuccessPolicy", &spec["successPolicy"]);
            errors.push(FieldError::invalid(path, shown, "requires indexed completion mode"));
        }
    }
    if let Some(policy) = spec["podReplacementPolicy"].as_str() {
        let supported: &[&str] = match is_set("podFailurePolicy") {
            true => &["Failed"],
            false => &["Failed", "TerminatingOrFailed"],
        };
        if !supported.contains(&policy) {
            errors.push(FieldError::not_supported(path.child("podReplacementPolicy"), policy, supported));
        }
    }
    let template_path = path.child("template");
    check_pod_template(&spec["template"], options, &template_path, errors);
    let path = template_path.child("spec");
    let path = path.child("restartPolicy");
    match text(&spec["template"]["spec"], "restartPolicy") {
        "" | "Always" => errors.push(FieldError::required(path, "valid values: \"OnFailure\", \"Never\"")),
        "Never" => {}
        "OnFailure" if is_set("podFailurePolicy") => {
            let why = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid(path, "OnFailure", why));
        }
        "OnFailure" => {}
        other => errors.push(FieldError::not_supported(path, other, &["OnFailure", "Never"])),
    }
}

/// Errors of the name of a controller, which begins with a domain (`IsDomainPrefixedPath`).
fn check_manager(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    const PATTERN: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    let Some(manager) = spec["managedBy"].as_str() else { return };
    match manager.split_once('/') {
        _ if manager.is_empty() => errors.push(FieldError::required(path, "")),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            errors.extend(invalid_for(*path, domain, check_dns1123_subdomain(domain)));
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
            if !rest.bytes().all(is_allowed) {
                let why = format!("Invalid path (regex used for validation is '{PATTERN}')");
                errors.push(FieldError::invalid(path, rest, why));
            }
        }
        _ => {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(path, manager, why));
        }
    }
    if manager.len() > MAX_MANAGER_BYTES {
        errors.push(FieldError::too_long(path, MAX_MANAGER_BYTES));
    }
}

fn check_completion_mode(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let number = |field: &str| spec[field].as_i64();
    match spec["completionMode"].as_str() {
        None | Some("NonIndexed") => {
            for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if let Some(number) = number(field) {
                    let why = "requires indexed completion mode";
                    errors.push(FieldError::invalid(path.child(field), number, why));
                }
            }
            return;
        }
        Some("Indexed") => {}
        Some(mode) => {
            let supported = ["NonIndexed", "Indexed"];
            errors.push(FieldError::not_supported(path.child("completionMode"), mode, &supported));
            return;
        }
    }
    let (completions, parallelism, failed) = (number("completions"), number("parallelism"), number("maxFailedIndexes"));
    if completions.is_none() {
        errors.push(FieldError::required(path.child("completions"), "when completion mode is Indexed"));
    }
    let mut check_limit = |field: &str, number: Option<i64>, limit: i64, why: String| {
        if let Some(number) = number.filter(|number| *number > limit) {
            errors.push(FieldError::invalid(path.child(field), number, why));
        }
    };
    let at_most = |limit: i64| format!("must be less than or equal to {limit}");
    let why = format!("{} when completion mode is Indexed", at_most(MAX_INDEXED_PARALLELISM));
    check_limit("parallelism", parallelism, MAX_INDEXED_PARALLELISM, why);
    if let Some(completions) = completions {
        check_limit("maxFailedIndexes", failed, completions, "must be less than or equal to completions".to_owned());
    }
    check_limit("maxFailedIndexes", failed, MAX_FAILED_INDEXES, at_most(MAX_FAILED_INDEXES));
    let has_many = completions.is_some_and(|completions| completions > MANY_COMPLETIONS);
    if !has_many || number("backoffLimitPerIndex").is_none() {
        return;
    }
    let why = format!(
        "{} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index",
        at_most(LIMIT_OF_MANY)
    );
    if failed.is_none() {
        let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.push(FieldError::required(path.child("maxFailedIndexes"), why));
    }
    for (field, number) in [("parallelism", parallelism), ("maxFailedIndexes", failed)] {
        if let Some(number) = number.filter(|number| *number > LIMIT_OF_MANY) {
            errors.push(FieldError::invalid(path.child(field), number, why.clone()));
        }
    }
}

/// Errors of an indexed Job whose Pods would have names that hosts cannot have.
fn check_host_names(input: &ValidationInput<'_>, errors: &mut FieldErrors) {
    let (spec, name) = (input.field("spec"), input.metadata().name());
    let Some(completions) = spec["completions"].as_i64().filter(|completions| *completions > 0) else { return };
    let host_name = format!("{name}-{}", completions - 1);
    if text(spec, "completionMode") == "Indexed" && !check_dns1123_label(&host_name).is_empty() {
        let why = format!("will not able to create pod with invalid DNS label: {host_name}");
        errors.push(FieldError::invalid(METADATA.child("name"), name, why));
    }
}

/// Errors of what changed in the specification of a Job (`ValidateJobSpecUpdate`).
fn check_changes(spec: &Value, (old, old_status): (&Value, &Value), errors: &mut FieldErrors) {
    let is_indexed = text(spec, "completionMode") == "Indexed";
    if !is_indexed {
        check_immutable((spec, old), "completions", errors, |value| BadValue::from(value));
    } else if let (Some(completions), true) = (spec["completions"].as_i64(), spec["completions"] != old["completions"])
        && spec["parallelism"].as_i64() != Some(completions)
    {
        let why = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid(SPEC.child("completions"), completions, why));
    }
    check_immutable((spec, old), "selector", errors, external_value);
    let (new, path) = (&spec["template"], SPEC.child("template"));
    let (old_template, is_changeable) = changeable_template(spec, (old, old_status));
    let changed = match is_changeable {
        true => (new["spec"] != old_template["spec"]).then(|| (path.child("spec"), "core.PodSpec", &new["spec"])),
        false => (*new != old_template).then_some((path, "core.PodTemplateSpec", new)),
    };
    if let Some((path, shape, new)) = changed {
        errors.push(FieldError::invalid(path, internal_value(shape, new), "field is immutable"));
    }
    check_immutable((spec, old), "completionMode", errors, shown_text);
    check_immutable((spec, old), "podFailurePolicy", errors, |value| internal_value("*batch.PodFailurePolicy", value));
    check_immutable((spec, old), "backoffLimitPerIndex", errors, |value| BadValue::from(value));
    check_immutable((spec, old), "managedBy", errors, shown_text);
    check_immutable((spec, old), "successPolicy", errors, |value| internal_value("*batch.SuccessPolicy", value));
}

/// Errors of a changed field, which shows the new value.
fn check_immutable(
    (spec, old): (&Value, &Value),
    field: &str,
    errors: &mut FieldErrors,
    shown: impl Fn(&Value) -> BadValue,
) {
    if !is_same(&spec[field], &old[field]) {
        errors.push(FieldError::invalid(SPEC.child(field), shown(&spec[field]), "field is immutable"));
    }
}

/// The old template with the new values of what may change, and whether something may.
fn changeable_template(spec: &Value, (old, old_status): (&Value, &Value)) -> (Value, bool) {
    let mut template = old["template"].clone();
    let is_suspended = old["suspend"] == Value::Bool(true);
    let has_stopped = old_status["startTime"].is_null() || has_condition(old_status, "Suspended");
    if !is_suspended || !has_stopped || old_status["active"].as_i64().unwrap_or_default() != 0 {
        return (template, false);
    }
    let new = &spec["template"];
    for (part, fields) in
        [("metadata", &["annotations", "labels"][..]), ("spec", &["nodeSelector", "tolerations", "schedulingGates"])]
    {
        if !template[part].is_object() && !new[part].is_object() {
            continue;
        }
        let Some(map) = child_map(&mut template, part).and_then(Value::as_object_mut) else { continue };
        fields.iter().for_each(|field| copy_field(map, &new[part], field));
    }
    let Some(Value::Object(pod)) = template.get_mut("spec") else { return (template, true) };
    let new_affinity = &new["spec"]["affinity"];
    match (pod.get_mut("affinity"), new_affinity) {
        (Some(Value::Object(affinity)), new_affinity) => {
            copy_field(affinity, new_affinity, "nodeAffinity");
            if affinity.is_empty() && new_affinity.is_null() {
                pod.remove("affinity");
            }
        }
        (None, Value::Object(_)) => {
            let mut affinity = Map::new();
            copy_field(&mut affinity, new_affinity, "nodeAffinity");
            pod.insert("affinity".to_owned(), affinity.into());
        }
        _ => {}
    }
    for list in ["containers", "initContainers"] {
        let Some(Value::Array(containers)) = pod.get_mut(list) else { continue };
        let new_containers = new["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        if containers.len() == new_containers.len() {
            for (container, new) in containers.iter_mut().zip(new_containers) {
                if container["name"] == new["name"]
                    && let Some(container) = container.as_object_mut()
                {
                    copy_field(container, new, "resources");
                }
            }
        }
    }
    (template, true)
}

fn copy_field(map: &mut Map<String, Value>, from: &Value, field: &str) {
    match &from[field] {
        Value::Null => drop(map.remove(field)),
        value => drop(map.insert(field.to_owned(), value.clone())),
    }
}

fn job_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    if !written.subresource.is_empty() {
        return Vec::new();
    }
    let name = if written.old.is_none() { name_warning(written) } else { None };
    let spec = if has_changed_spec(written) { spec_warnings(written.field("spec"), &SPEC) } else { Vec::new() };
    name.into_iter().chain(spec).collect()
}

/// Warnings about the specification of a Job or of a template of Jobs (`WarningsForJobSpec`).
pub(super) fn spec_warnings(spec: &Value, path: &FieldPath<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let number = |field: &str| spec[field].as_i64().unwrap_or_default();
    let has_many = number("completions") > MANY_COMPLETIONS && number("parallelism") > LIMIT_OF_MANY;
    if text(spec, "completionMode") == "Indexed" && has_many {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(template_warnings(&spec["template"], &path.child("template")));
    warnings
}
