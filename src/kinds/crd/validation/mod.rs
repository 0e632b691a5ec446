//! Validation of CustomResourceDefinitions (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`).

mod conversion;
mod defaults;
mod formats;
mod hoisted;
mod names;
mod options;
mod ratcheting;
mod rules;
mod schema;
mod schema_lists;
mod selectable;
mod spec;
mod version_fields;

use std::collections::HashSet;

use kubeapi::GoQuoted;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::NameRule;
use kubeapi::object_meta::{ObjectMetaView, validate_object_meta};
use serde::Deserialize as _;
use serde_json::{Map, Value};

use self::formats::unrecognized_formats;
use self::hoisted::HoistedSpec;
use self::names::name_errors;
use self::options::ValidationRules;
use self::ratcheting::rules_for_replacement;
use self::rules::{unenforced_rule_errors, unenforced_rule_warning};
use self::spec::{spec_errors, spec_update_errors, stored_version_errors};
use crate::kinds::validation::{METADATA, NULL, ValidationInput};
use crate::resources::custom::CrdNames;
use crate::resources::custom::api_approval::{APPROVAL_ANNOTATION, ApprovalState, approval_state, is_protected_group};

/// The errors of a CustomResourceDefinition.
pub(in crate::kinds) fn validate_crd(input: &ValidationInput<'_>) -> FieldErrors {
    if input.subresource == "status" {
        let mut errors = input.metadata_change_errors();
        errors.append(accepted_name_errors(input));
        return errors;
    }
    let spec = match HoistedSpec::read(input.field("spec")) {
        Ok(spec) => spec,
        Err(error) => return FieldError::internal("spec", error.to_string()).into(),
    };
    let old = input.old.map(|_| HoistedSpec::read_stored(input.old_field("spec")));
    let mut errors = match &old {
        None => {
            let mut errors = new_metadata_errors(input, &spec);
            errors.append(spec_errors(&spec, &ValidationRules::for_new(), input.budget));
            errors
        }
        Some(old) => {
            let mut errors = input.metadata_change_errors();
            let rules = rules_for_replacement(&spec, old, is_established(input.old_field("status")));
            errors.append(spec_update_errors(&spec, old, &rules, input.budget));
            errors
        }
    };
    errors.append(accepted_name_errors(input));
    let stored = &input.field("status")["storedVersions"];
    let stored: Option<Vec<String>> =
        stored.as_array().map(|all| all.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect());
    errors.append(stored_version_errors(stored.as_deref(), spec.versions()));
    errors.extend(approval_error(input, &spec));
    if spec.preserve_unknown_fields && !old.as_ref().is_some_and(|old| old.preserve_unknown_fields) {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, why));
    }
    if !input.settings.allows_unenforced_rules {
        errors.extend(unenforced_rule_errors(&spec, old.as_ref()));
    }
    errors
}

/// The errors of the metadata of a new CRD, whose name is that of the resource and the group.
fn new_metadata_errors(input: &ValidationInput<'_>, spec: &HoistedSpec<'_>) -> FieldErrors {
    let meta = input.metadata();
    let errors = validate_object_meta(meta, false, NameRule::DnsSubdomain, &METADATA);
    let (of_names, others) =
        errors.partition(|error| matches!(&*error.field, "metadata.generateName" | "metadata.name"));
    let (mut sorted, of_name) = of_names.partition(|error| error.field == "metadata.generateName");
    let required = format!("{}.{}", spec.names.plural, spec.group);
    let why = "must be spec.names.plural+\".\"+spec.group";
    let is_wrong = |name: &&str| !name.is_empty() && *name != required;
    let wrong = |field: &str, name: &str| {
        Some(name).filter(is_wrong).map(|name| FieldError::invalid(METADATA.child(field), name, why))
    };
    sorted.extend(wrong("generateName", meta.generate_name()));
    sorted.append(of_name);
    sorted.extend(wrong("name", meta.name()));
    sorted.append(others);
    sorted
}

fn is_established(status: &Value) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == "Established").is_some_and(|found| found["status"] == "True")
}

/// The errors of the names in the status.
fn accepted_name_errors(input: &ValidationInput<'_>) -> FieldErrors {
    let status = FieldPath::root("status");
    let names = Option::<CrdNames>::deserialize(&input.field("status")["acceptedNames"]);
    name_errors(&names.ok().flatten().unwrap_or_default(), &status.child("acceptedNames"))
}

/// The error of an approval that is missing or malformed, and was not before (`validateAPIApproval`).
fn approval_error(input: &ValidationInput<'_>, spec: &HoistedSpec<'_>) -> Option<FieldError> {
    if !is_protected_group(&spec.group) {
        return None;
    }
    let annotation = |meta: ObjectMetaView<'_>| meta.annotation(APPROVAL_ANNOTATION).unwrap_or_default().to_owned();
    let text = annotation(input.metadata());
    let (state, why) = approval_state(&text);
    let old_state = input.old.map(|old| approval_state(&annotation(ObjectMetaView::of_map(old))).0);
    if old_state == Some(state) {
        return None;
    }
    let path = METADATA.child("annotations");
    let path = path.key(APPROVAL_ANNOTATION);
    match state {
        ApprovalState::Invalid => Some(FieldError::invalid(path, &text, why)),
        ApprovalState::Missing => Some(FieldError::required(path, why)),
        ApprovalState::Approved | ApprovalState::Bypassed => None,
    }
}

/// Warnings about a valid CustomResourceDefinition.
pub(super) fn crd_warnings(old: Option<&Map<String, Value>>, object: &Map<String, Value>) -> Vec<String> {
    let spec = HoistedSpec::read_stored(object.get("spec").unwrap_or(&NULL));
    let old = old.map(|old| HoistedSpec::read_stored(old.get("spec").unwrap_or(&NULL)));
    let known: HashSet<String> = old.as_ref().map(unrecognized_formats).unwrap_or_default().into_iter().collect();
    let found = unrecognized_formats(&spec);
    let formats = found.iter().filter(|format| !known.contains(*format));
    let mut warnings: Vec<String> =
        formats.map(|format: &String| format!("unrecognized format {}", GoQuoted(format))).collect();
    warnings.extend(unenforced_rule_warning(&spec));
    warnings
}
