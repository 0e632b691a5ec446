//! IngressClasses (`pkg/registry/networking/ingressclass/strategy.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_path_segment, pattern_error};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use crate::kinds::cells::{CellPrinter, text_at};
use crate::kinds::field_rules::{immutable_error, required_text_errors};
use crate::kinds::validation::{ValidationInput, invalid_for, text};
use crate::kinds::{GenerationRule, KindRules};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    validate: validate_class,
    cells: print_class,
    ..KindRules::of("networking.k8s.io", "ingressclasses")
};

const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";
const MAX_CONTROLLER_BYTES: usize = 250;

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// Validates an IngressClass.
fn validate_class(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let mut errors = input.metadata_update_errors();
    if input.old.is_some() {
        let path = SPEC.child("controller");
        let (new, old) = (text(spec, "controller"), text(input.old_field("spec"), "controller"));
        errors.extend(immutable_error(path, &new.into(), &old.into()));
    }
    errors.append(input.metadata_errors());
    let controller = text(spec, "controller");
    if controller.len() > MAX_CONTROLLER_BYTES {
        errors.push(FieldError::too_long(SPEC.child("controller"), MAX_CONTROLLER_BYTES));
    }
    errors.extend(prefixed_path_errors(SPEC.child("controller"), controller));
    if !spec["parameters"].is_null() {
        errors.append(parameter_errors(&spec["parameters"], &SPEC.child("parameters")));
    }
    errors
}

/// Errors of a path that begins with a domain (`IsDomainPrefixedPath`).
fn prefixed_path_errors(path: FieldPath<'_>, value: &str) -> Vec<FieldError> {
    const PATTERN: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    if value.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let (host, rest) = value.split_once('/').unwrap_or_default();
    if host.is_empty() || rest.is_empty() {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![FieldError::invalid(path, value, why)];
    }
    let mut errors: Vec<FieldError> = invalid_for(path, host, check_dns1123_subdomain(host)).collect();
    let is_path_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !rest.bytes().all(is_path_byte) {
        errors.push(FieldError::invalid(path, rest, pattern_error("Invalid path", PATTERN, &[])));
    }
    errors
}

/// Errors of a reference to parameters (`validateIngressClassParametersReference`).
fn parameter_errors(parameters: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const SCOPES: [&str; 2] = ["Cluster", "Namespace"];
    let mut errors = FieldErrors::new();
    if let Some(group) = parameters["apiGroup"].as_str() {
        errors.extend(invalid_for(path.child("apiGroup"), group, check_dns1123_subdomain(group)));
    }
    for field in ["kind", "name"] {
        errors.extend(required_text_errors(path.child(field), text(parameters, field), check_path_segment));
    }
    let namespace_path = path.child("namespace");
    match (parameters["scope"].as_str(), parameters["namespace"].as_str()) {
        (None, _) => errors.push(FieldError::required(path.child("scope"), "")),
        (Some("Namespace"), None) => {
            errors.push(FieldError::required(namespace_path, "`parameters.scope` is set to 'Namespace'"));
        }
        (Some("Namespace"), Some(namespace)) => {
            errors.extend(invalid_for(namespace_path, namespace, check_dns1123_label(namespace)));
        }
        (Some("Cluster"), Some(_)) => {
            errors.push(FieldError::forbidden(namespace_path, "`parameters.scope` is set to 'Cluster'"));
        }
        (Some("Cluster"), None) => {}
        (Some(scope), _) => errors.push(FieldError::not_supported(path.child("scope"), scope, &SCOPES)),
    }
    errors
}

fn print_class(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let is_default = ObjectMetaView::of(object).annotation(DEFAULT_ANNOTATION) == Some("true");
    let name = format!("{}{}", text_at(object, "/metadata/name"), if is_default { " (default)" } else { "" });
    let parameters = match object.pointer("/spec/parameters") {
        Some(parameters @ Value::Object(_)) => {
            let group = parameters["apiGroup"].as_str().map(|group| format!(".{group}")).unwrap_or_default();
            format!("{}{group}/{}", text(parameters, "kind"), text(parameters, "name"))
        }
        _ => "<none>".to_owned(),
    };
    vec![name.into(), text_at(object, "/spec/controller").into(), parameters.into(), printer.age()]
}
