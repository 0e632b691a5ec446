//! Roles and bindings (`pkg/registry/rbac/*/strategy.go`, `pkg/apis/rbac/validation/validation.go`).

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{NameRule, check_dns1123_subdomain, check_path_segment};
use serde_json::{Value, json};

use super::KindRules;
use super::cells::{CellPrinter, items_at, text_at};
use super::field_rules::{internal_struct, is_invalid_selector, label_selector_errors, text_json};
use super::validation::{ValidationInput, invalid_for, items, text};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Their rules.
pub(super) static RULES: [KindRules; 4] = [
    KindRules { validate: validate_role, ..rbac_rules("roles") },
    KindRules { validate: validate_role, ..rbac_rules("clusterroles") },
    KindRules { validate: validate_binding, cells: print_binding, ..rbac_rules("rolebindings") },
    KindRules { validate: validate_binding, cells: print_binding, ..rbac_rules("clusterrolebindings") },
];

const fn rbac_rules(plural: &'static str) -> KindRules {
    KindRules { name_rule: NameRule::PathSegment, creates_on_update: true, ..KindRules::of(GROUP, plural) }
}

/// Validates a Role or ClusterRole.
fn validate_role(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_errors();
    let path = FieldPath::root("rules");
    for (index, rule) in input.field("rules").as_array().into_iter().flatten().enumerate() {
        errors.append(policy_rule_errors(rule, input.kind.resource.is_namespaced, &path.index(index)));
    }
    errors.append(aggregation_errors(input));
    errors.append(input.metadata_update_errors());
    errors
}

/// Errors of a rule (`ValidatePolicyRule`).
fn policy_rule_errors(rule: &Value, is_namespaced: bool, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let is_empty = |field: &str| items(rule, field).is_empty();
    if is_empty("verbs") {
        errors.push(FieldError::required(path.child("verbs"), "verbs must contain at least one value"));
    }
    if !is_empty("nonResourceURLs") {
        let mut invalid = |why: &str| {
            let urls = BadValue::from(&rule["nonResourceURLs"]);
            errors.push(FieldError::invalid(path.child("nonResourceURLs"), urls, why));
        };
        if is_namespaced {
            invalid("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].into_iter().any(|field| !is_empty(field)) {
            invalid("rules cannot apply to both regular resources and non-resource URLs");
        }
        return errors;
    }
    for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
        if is_empty(field) {
            let why = format!("resource rules must supply at least one {what}");
            errors.push(FieldError::required(path.child(field), why));
        }
    }
    errors
}

/// Errors of the selectors of an aggregated ClusterRole.
fn aggregation_errors(input: &ValidationInput<'_>) -> FieldErrors {
    const AGGREGATION: FieldPath<'static> = FieldPath::root("aggregationRule");
    let mut errors = FieldErrors::new();
    let rule = input.field("aggregationRule");
    if rule.is_null() {
        return errors;
    }
    let (path, selectors) = (AGGREGATION.child("clusterRoleSelectors"), items(rule, "clusterRoleSelectors"));
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(FieldError::required(path, why));
    }
    let allows_any_value =
        items(input.old_field("aggregationRule"), "clusterRoleSelectors").iter().any(is_invalid_selector);
    for (index, selector) in selectors.iter().enumerate() {
        let path = path.index(index);
        errors.append(label_selector_errors(selector, allows_any_value, &path));
        if is_invalid_selector(selector) {
            // The selector that could not be made is what Kubernetes shows.
            errors.push(FieldError::invalid(path, BadValue::null(), "invalid label selector."));
        }
    }
    errors
}

/// Validates a RoleBinding or ClusterRoleBinding.
fn validate_binding(input: &ValidationInput<'_>) -> FieldErrors {
    const ROLE: FieldPath<'static> = FieldPath::root("roleRef");
    let mut errors = input.metadata_errors();
    let is_namespaced = input.kind.resource.is_namespaced;
    let role = input.field("roleRef");
    let (group, kind, name) = (text(role, "apiGroup"), text(role, "kind"), text(role, "name"));
    if group != GROUP {
        errors.push(FieldError::not_supported(ROLE.child("apiGroup"), group, &[GROUP]));
    }
    let kinds = if is_namespaced { &["Role", "ClusterRole"][..] } else { &["ClusterRole"] };
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported(ROLE.child("kind"), kind, kinds));
    }
    if name.is_empty() {
        errors.push(FieldError::required(ROLE.child("name"), ""));
    } else {
        errors.extend(invalid_for(ROLE.child("name"), name, check_path_segment(name)));
    }
    let subjects = FieldPath::root("subjects");
    for (index, subject) in input.field("subjects").as_array().into_iter().flatten().enumerate() {
        errors.append(subject_errors(subject, is_namespaced, &subjects.index(index)));
    }
    errors.append(input.metadata_update_errors());
    if input.old.is_some() && input.old_field("roleRef") != role {
        let fields = [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")];
        let value = internal_struct(&fields.map(|(name, field)| (name, text_json(role, field))));
        errors.push(FieldError::invalid(ROLE, value, "cannot change roleRef"));
    }
    errors
}

/// Errors of a subject (`ValidateRoleBindingSubject`).
fn subject_errors(subject: &Value, is_namespaced: bool, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (group, name, group_path) = (text(subject, "apiGroup"), text(subject, "name"), path.child("apiGroup"));
    if name.is_empty() {
        errors.push(FieldError::required(path.child("name"), ""));
    }
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.extend(invalid_for(path.child("name"), name, check_dns1123_subdomain(name)));
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(group_path, group, &[""]));
            }
            if !is_namespaced && text(subject, "namespace").is_empty() {
                errors.push(FieldError::required(path.child("namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(FieldError::not_supported(group_path, group, &[GROUP]));
            }
        }
        kind => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(path.child("kind"), kind, &kinds));
        }
    }
    errors
}

fn print_binding(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let role = format!("{}/{}", text_at(object, "/roleRef/kind"), text_at(object, "/roleRef/name"));
    let names = |kind: &str| {
        let subjects = items_at(object, "/subjects").iter().filter(|subject| subject["kind"] == kind);
        let names = subjects.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", text(subject, "namespace"), text(subject, "name")),
            _ => text(subject, "name").to_owned(),
        });
        json!(names.collect::<Vec<_>>().join(", "))
    };
    vec![printer.name(), role.into(), printer.age(), names("User"), names("Group"), names("ServiceAccount")]
}
