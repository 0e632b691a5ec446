//! MutatingWebhookConfigurations and ValidatingWebhookConfigurations.

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1035_label, check_dns1123_subdomain};
use serde_json::Value;

use super::match_rules::{
    FAILURE_POLICIES, MATCH_POLICIES, REINVOCATION_POLICIES, match_condition_errors, rule_errors,
};
use super::registration_rules;
use crate::kinds::KindRules;
use crate::kinds::cells::{CellPrinter, items_at};
use crate::kinds::field_rules::{enum_error, is_invalid_selector, is_same, label_selector_errors};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};
use crate::kinds::webhook_address::{webhook_service_errors, webhook_url_errors};

pub(super) static MUTATING_RULES: KindRules = webhook_rules("mutatingwebhookconfigurations");
pub(super) static VALIDATING_RULES: KindRules = webhook_rules("validatingwebhookconfigurations");

const fn webhook_rules(plural: &'static str) -> KindRules {
    KindRules {
        validate: validate_configuration,
        cells: print_configuration,
        ..registration_rules(plural, &["webhooks"])
    }
}

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const SELECTORS: [&str; 2] = ["namespaceSelector", "objectSelector"];

/// What is required of new webhooks, and of stored ones that meet it.
struct WebhookRequirements {
    no_side_effects: bool,
    known_review_version: bool,
    unique_names: bool,
    valid_label_values: bool,
    match_conditions: bool,
}

impl WebhookRequirements {
    /// Those of webhooks that replace `old`; all, if nothing is replaced.
    fn of(new: &[Value], old: Option<&[Value]>) -> WebhookRequirements {
        let Some(old) = old else {
            return WebhookRequirements {
                no_side_effects: true,
                known_review_version: true,
                unique_names: true,
                valid_label_values: true,
                match_conditions: true,
            };
        };
        let mut names = HashSet::new();
        let same_conditions = new.len() == old.len()
            && new.iter().zip(old).all(|(new, old)| is_same(&new["matchConditions"], &old["matchConditions"]));
        WebhookRequirements {
            no_side_effects: old.iter().all(|webhook| NO_SIDE_EFFECTS.contains(&text(webhook, "sideEffects"))),
            known_review_version: old.iter().all(|webhook| {
                let versions = texts(webhook, "admissionReviewVersions");
                versions.is_empty() || has_review_version(&versions)
            }),
            unique_names: old.iter().all(|webhook| names.insert(text(webhook, "name"))),
            valid_label_values: !old
                .iter()
                .any(|webhook| SELECTORS.into_iter().any(|field| is_invalid_selector(&webhook[field]))),
            match_conditions: !same_conditions,
        }
    }
}

fn has_review_version(versions: &[&str]) -> bool {
    versions.iter().any(|version| REVIEW_VERSIONS.contains(version))
}

/// Validates a configuration.
fn validate_configuration(input: &ValidationInput<'_>) -> FieldErrors {
    const WEBHOOKS: FieldPath<'static> = FieldPath::root("webhooks");
    let list = |field: &'_ Value| field.as_array().map_or(&[][..], Vec::as_slice).to_vec();
    let webhooks = list(input.field("webhooks"));
    let old = input.old.map(|_| list(input.old_field("webhooks")));
    let requirements = WebhookRequirements::of(&webhooks, old.as_deref());
    let mut errors = input.generic_metadata_errors();
    let mut names = HashSet::new();
    for (index, webhook) in webhooks.iter().enumerate() {
        let path = WEBHOOKS.index(index);
        errors.append(webhook_errors(webhook, &requirements, &path));
        let versions_path = path.child("admissionReviewVersions");
        errors.append(review_version_errors(webhook, requirements.known_review_version, &versions_path));
        let name = text(webhook, "name");
        if requirements.unique_names && !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        }
    }
    errors
}

fn webhook_errors(webhook: &Value, requirements: &WebhookRequirements, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    errors.extend(domain_name_error(text(webhook, "name"), path.child("name")));
    for (index, rule) in items(webhook, "rules").iter().enumerate() {
        errors.append(rule_errors(rule, &path.child("rules").index(index)));
    }
    errors.extend(enum_error(path.child("failurePolicy"), &webhook["failurePolicy"], &FAILURE_POLICIES));
    errors.extend(enum_error(path.child("matchPolicy"), &webhook["matchPolicy"], &MATCH_POLICIES));
    let side_effects = if requirements.no_side_effects { &NO_SIDE_EFFECTS[..] } else { &SIDE_EFFECTS };
    if webhook["sideEffects"].is_null() {
        let why = format!("must specify one of {}", side_effects.join(", "));
        errors.push(FieldError::required(path.child("sideEffects"), why));
    }
    errors.extend(enum_error(path.child("sideEffects"), &webhook["sideEffects"], side_effects));
    if let Some(seconds) = webhook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(path.child("timeoutSeconds"), seconds, why));
    }
    for field in SELECTORS {
        let allows_any_value = !requirements.valid_label_values;
        errors.append(label_selector_errors(&webhook[field], allows_any_value, &path.child(field)));
    }
    let policy = &webhook["reinvocationPolicy"];
    errors.extend(enum_error(path.child("reinvocationPolicy"), policy, &REINVOCATION_POLICIES));
    errors.append(client_errors(&webhook["clientConfig"], &path.child("clientConfig")));
    if requirements.match_conditions {
        let conditions = items(webhook, "matchConditions");
        errors.append(match_condition_errors(conditions, &path.child("matchConditions")));
    }
    errors
}

/// The error of a name that is no domain of at least three labels (`IsFullyQualifiedName`).
fn domain_name_error(name: &str, path: FieldPath<'_>) -> Option<FieldError> {
    if name.is_empty() {
        return Some(FieldError::required(path, ""));
    }
    let sentences = check_dns1123_subdomain(name);
    if !sentences.is_empty() {
        return Some(FieldError::invalid(path, name, sentences.join(",")));
    }
    let why = "should be a domain with at least three segments separated by dots";
    (name.split('.').count() < 3).then(|| FieldError::invalid(path, name, why))
}

fn client_errors(client: &Value, path: &FieldPath<'_>) -> FieldErrors {
    match (client["url"].as_str(), &client["service"]) {
        (Some(url), Value::Null) => webhook_url_errors(url, &path.child("url")).into(),
        (None, service @ Value::Object(_)) => {
            // An absent port has the default.
            let port = service["port"].as_i64().unwrap_or(443);
            let names = (text(service, "namespace"), text(service, "name"));
            webhook_service_errors(names, service["path"].as_str(), port, &path.child("service"))
        }
        _ => FieldError::required(path, "exactly one of url or service is required").into(),
    }
}

/// Errors of the versions of `AdmissionReview` that a webhook understands.
fn review_version_errors(webhook: &Value, is_one_required: bool, path: &FieldPath<'_>) -> FieldErrors {
    let versions = texts(webhook, "admissionReviewVersions");
    if versions.is_empty() {
        return FieldError::required(path, format!("must specify one of {}", REVIEW_VERSIONS.join(", "))).into();
    }
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let path = path.index(index);
        if !seen.insert(version) {
            errors.push(FieldError::invalid(path, *version, "duplicate version"));
            continue;
        }
        errors.extend(invalid_for(path, version, check_dns1035_label(version)));
    }
    if is_one_required && !has_review_version(&versions) {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path, BadValue::from(&webhook["admissionReviewVersions"]), why));
    }
    errors
}

fn print_configuration(printer: &CellPrinter<'_>) -> Vec<Value> {
    vec![printer.name(), items_at(printer.object, "/webhooks").len().into(), printer.age()]
}
