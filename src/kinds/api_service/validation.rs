//! Validation of APIServices (`k8s.io/kube-aggregator/pkg/apis/apiregistration/validation/validation.go`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubeapi::GoQuoted;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1035_label, check_dns1123_subdomain, check_path_segment};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use super::has_backend;
use crate::kinds::validation::{METADATA, ValidationInput, items, text};
use crate::registry::{URL_ANNOTATION, validate_annotations};

/// Validates an APIService; of a new status the conditions alone.
pub(super) fn validate_api_service(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    if input.subresource != "status" {
        errors.append(input.generic_metadata_errors());
        errors.append(annotation_errors(input));
        let spec = input.field("spec");
        errors.extend(spec_errors(input.metadata().name(), spec));
        errors.extend(match spec["service"].is_object() {
            true => service_errors(spec),
            // The server at a URL, which Kubernetes does not have, has a certificate, too.
            false if has_backend(input.object) => Vec::new(),
            false => local_errors(spec),
        });
    }
    errors.append(condition_errors(input.field("status")));
    errors
}

/// Errors of the annotations that configure the server, by the registry's parser. An annotation that the replaced object
/// has, too, is no error: the flags may have been others when it was written.
fn annotation_errors(input: &ValidationInput<'_>) -> FieldErrors {
    let has_service = input.field("spec")["service"].is_object();
    let is_service_changed = has_service != input.old_field("spec")["service"].is_object();
    let old = input.old.map(ObjectMetaView::of_map);
    let is_changed = |name: &str, value: &str| {
        old.is_none_or(|old| old.annotation(name) != Some(value)) || name == URL_ANNOTATION && is_service_changed
    };
    let changed = input.metadata().annotations().filter(|(name, value)| is_changed(name, value));
    let path = METADATA.child("annotations");
    let invalid = validate_annotations(changed, has_service, &input.settings.registry);
    invalid.into_iter().map(|one| FieldError::invalid(path.key(one.name), one.value, one.detail)).collect()
}

fn spec_errors(name: &str, spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = FieldPath::root("spec");
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let required_name = format!("{version}.{group}");
    // What is no name at all has another error.
    if !name.is_empty() && check_path_segment(name).is_empty() && name != required_name {
        let why = format!("must be `spec.version+\".\"+spec.group`: {}", GoQuoted(&required_name));
        errors.push(FieldError::invalid("metadata.name", name, why));
    }
    if group.is_empty() && version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required(path.child("group"), why));
    }
    let mut add = |field: &str, value: &str, sentences: Vec<String>| {
        errors.extend(sentences.into_iter().map(|why| FieldError::invalid(path.child(field), value, why)));
    };
    if !group.is_empty() {
        add("group", group, check_dns1123_subdomain(group));
    }
    add("version", version, check_dns1035_label(version));
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let value = spec[field].as_i64().unwrap_or_default();
        if !(1..=most).contains(&value) {
            let why = format!("must be positive and less than {most}");
            errors.push(FieldError::invalid(path.child(field), value, why));
        }
    }
    errors
}

/// Errors of an APIService without a server of its own.
fn local_errors(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (path, bundle) = (FieldPath::root("spec"), text(spec, "caBundle"));
    if !bundle.is_empty() {
        let length = STANDARD.decode(bundle).map_or(bundle.len(), |bytes| bytes.len());
        let why = "local APIServices may not have a caBundle";
        errors.push(FieldError::invalid(path.child("caBundle"), format!("{length} bytes").as_str(), why));
    }
    if skips_verification(spec) {
        let why = "local APIServices may not have insecureSkipTLSVerify";
        errors.push(FieldError::invalid(path.child("insecureSkipTLSVerify"), true, why));
    }
    errors
}

/// Errors of the Service of an APIService.
fn service_errors(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (path, service) = (FieldPath::root("spec"), &spec["service"]);
    let service_path = path.child("service");
    for field in ["namespace", "name"] {
        if text(service, field).is_empty() {
            errors.push(FieldError::required(service_path.child(field), ""));
        }
    }
    let port = service["port"].as_i64().unwrap_or_default();
    if !(1..=65_535).contains(&port) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(service_path.child("port"), port, why));
    }
    if skips_verification(spec) && !text(spec, "caBundle").is_empty() {
        let why = "may not be true if caBundle is present";
        errors.push(FieldError::invalid(path.child("insecureSkipTLSVerify"), true, why));
    }
    errors
}

fn skips_verification(spec: &Value) -> bool {
    spec["insecureSkipTLSVerify"].as_bool().unwrap_or_default()
}

/// Errors of the status of conditions (`validateAPIServiceStatus`).
fn condition_errors(status: &Value) -> FieldErrors {
    const STATUSES: [&str; 3] = ["True", "False", "Unknown"];
    let of_condition = |(at, condition): (usize, &Value)| {
        let status = text(condition, "status");
        let path = format!("status.conditions[{at}].status");
        (!STATUSES.contains(&status)).then(|| FieldError::not_supported(path, status, &STATUSES))
    };
    items(status, "conditions").iter().enumerate().filter_map(of_condition).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bodies(object: &Value) -> Vec<String> {
        let spec = &object["spec"];
        let mut errors = spec_errors(text(&object["metadata"], "name"), spec);
        errors.extend(if spec["service"].is_object() { service_errors(spec) } else { local_errors(spec) });
        errors.iter().map(|error| format!("{}: {}", error.field, error.body())).collect()
    }

    #[test]
    fn api_service_validation_has_upstream_texts() {
        let valid = json!({"metadata": {"name": "v1.a.io"}, "spec": {
            "group": "a.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 1,
            "service": {"namespace": "default", "name": "api", "port": 443},
        }});
        assert_eq!(bodies(&valid), [""; 0]);
        let mut wrong = valid.clone();
        wrong["metadata"]["name"] = json!("x");
        wrong["spec"]["groupPriorityMinimum"] = json!(0);
        wrong["spec"]["service"] = json!({"name": "api", "port": 70_000});
        wrong["spec"]["caBundle"] = json!("YWJj");
        wrong["spec"]["insecureSkipTLSVerify"] = json!(true);
        assert_eq!(
            bodies(&wrong),
            [
                "metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.a.io\"",
                "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
                "spec.service.namespace: Required value",
                "spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive",
                "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
            ]
        );
        let mut local = valid;
        local["spec"]["service"] = Value::Null;
        local["spec"]["caBundle"] = json!("YWJj");
        let why = "spec.caBundle: Invalid value: \"3 bytes\": local APIServices may not have a caBundle";
        assert_eq!(bodies(&local), [why]);
    }
}
