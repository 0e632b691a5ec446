//! Environment of containers, and fields of the Pod in it and in volumes (`ValidateEnv`, `ValidateEnvFrom`).

use std::collections::HashMap;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_config_map_key, check_dns1123_label, check_dns1123_subdomain, check_qualified_name};
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::paths::{check_no_backsteps, is_set};
use crate::kinds::validation::{invalid_for, items, text};

/// Fields of the Pod that an environment may have.
const ENVIRONMENT_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields of the Pod that a volume may have.
const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Labels that `pkg/apis/core/pods/helpers.go` converts.
const CONVERTED_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Where a reference to a field of the Pod or of a container's resources stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReferencePlace {
    Environment,
    Volume,
}

/// Errors of environment variables.
pub(super) fn check_environment(variables: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    for (index, variable) in variables.iter().enumerate() {
        let path = path.index(index);
        match text(variable, "name") {
            "" => errors.push(FieldError::required(path.child("name"), "")),
            name => errors.extend(invalid_for(path.child("name"), name, check_variable_name(name))),
        }
        if !variable["valueFrom"].is_null() {
            check_variable_source(variable, &path.child("valueFrom"), errors);
        }
    }
}

fn check_variable_source(variable: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let source = &variable["valueFrom"];
    let mut count = 0;
    for field in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
        if source[field].is_null() {
            continue;
        }
        count += 1;
        let (reference, path) = (&source[field], path.child(field));
        match field {
            "fieldRef" => check_field_reference(reference, ReferencePlace::Environment, &path, errors),
            "resourceFieldRef" => check_resource_reference(reference, ReferencePlace::Environment, &path, errors),
            "fileKeyRef" => check_file_key(reference, &path, errors),
            _ => check_key_reference(reference, &path, errors),
        }
    }
    let why = match count {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !text(variable, "value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(path, "", why));
}

/// Errors of a reference to a key of a ConfigMap or Secret.
fn check_key_reference(reference: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let name = text(reference, "name");
    errors.extend(invalid_for(path.child("name"), name, check_dns1123_subdomain(name)));
    match text(reference, "key") {
        "" => errors.push(FieldError::required(path.child("key"), "")),
        key => errors.extend(invalid_for(path.child("key"), key, check_config_map_key(key))),
    }
}

fn check_file_key(reference: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    match text(reference, "key") {
        "" => errors.push(FieldError::required(path.child("key"), "")),
        key => errors.extend(invalid_for(path.child("key"), key, check_variable_name(key))),
    }
    match text(reference, "volumeName") {
        "" => errors.push(FieldError::required(path.child("volumeName"), "")),
        name => errors.extend(invalid_for(path.child("volumeName"), name, check_dns1123_label(name))),
    }
    match text(reference, "path") {
        "" => errors.push(FieldError::required(path.child("path"), "")),
        target => check_no_backsteps(target, &path.child("path"), errors),
    }
}

/// Errors of sources of several variables.
pub(super) fn check_environment_sources(sources: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    for (index, source) in sources.iter().enumerate() {
        let item = path.index(index);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            errors.extend(invalid_for(item.child("prefix"), prefix, check_variable_name(prefix)));
        }
        let mut count = 0;
        for field in ["configMapRef", "secretRef"] {
            if source[field].is_null() {
                continue;
            }
            count += 1;
            let item = item.child(field);
            match text(&source[field], "name") {
                "" => errors.push(FieldError::required(item.child("name"), "")),
                name => {
                    let sentences = check_dns1123_subdomain(&without_last_dash(name));
                    errors.extend(invalid_for(item.child("name"), name, sentences));
                }
            }
        }
        match count {
            0 => errors.push(FieldError::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => errors.push(FieldError::invalid(path, "", "may not have more than one field specified at a time")),
        }
    }
}

/// A name whose last dash stands for what a server would append.
fn without_last_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(start) if !start.is_empty() => format!("{start}a"),
        _ => name.to_owned(),
    }
}

/// Sentences for a name of a variable (`IsRelaxedEnvVarName`).
fn check_variable_name(name: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    if name.is_empty() {
        sentences.push("environment variable name must be non-empty".to_owned());
    }
    if name.chars().any(|letter| !(letter.is_ascii_graphic() || letter == ' ') || letter == '=') {
        let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        sentences.push(why.to_owned());
    }
    sentences
}

/// Errors of a reference to a field of the Pod (`validateObjectFieldSelector`).
pub(super) fn check_field_reference(
    reference: &Value,
    place: ReferencePlace,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    for field in ["apiVersion", "fieldPath"] {
        if text(reference, field).is_empty() {
            errors.push(FieldError::required(path.child(field), ""));
            return;
        }
    }
    let (version, field) = (text(reference, "apiVersion"), text(reference, "fieldPath"));
    let converted = match convert_field_path(version, field) {
        Ok(converted) => converted,
        Err(why) => {
            let why = format!("error converting fieldPath: {why}");
            errors.push(FieldError::invalid(path.child("fieldPath"), field, why));
            return;
        }
    };
    if let Some((name, key)) = split_subscript(converted) {
        match name {
            "metadata.annotations" => {
                let key = key.to_lowercase();
                errors.extend(invalid_for(*path, &key, check_qualified_name(&key)));
            }
            "metadata.labels" => errors.extend(invalid_for(*path, key, check_qualified_name(key))),
            name => errors.push(FieldError::invalid(path, name, "does not support subscript")),
        }
        return;
    }
    let supported: &[&str] = match place {
        ReferencePlace::Environment => &ENVIRONMENT_FIELDS,
        ReferencePlace::Volume => &VOLUME_FIELDS,
    };
    if !supported.contains(&converted) {
        errors.push(FieldError::not_supported(path.child("fieldPath"), converted, supported));
    }
}

/// A field path of the Pod's internal type (`ConvertDownwardAPIFieldLabel`).
fn convert_field_path<'f>(version: &str, field: &'f str) -> Result<&'f str, String> {
    if version != "v1" {
        return Err(format!("unsupported pod version: {version}"));
    }
    if let Some((name, _)) = split_subscript(field) {
        return match name {
            "metadata.annotations" | "metadata.labels" => Ok(field),
            _ => Err(format!("field label does not support subscript: {field}")),
        };
    }
    match field {
        "spec.host" => Ok("spec.nodeName"),
        _ if CONVERTED_FIELDS.contains(&field) => Ok(field),
        _ => Err(format!("field label not supported: {field}")),
    }
}

/// The path and the key of `path['key']`.
fn split_subscript(field: &str) -> Option<(&str, &str)> {
    let (name, key) = field.strip_suffix("']")?.split_once("['")?;
    (!name.is_empty()).then_some((name, key))
}

/// Errors of a reference to an amount of a container (`validateContainerResourceFieldSelector`).
pub(super) fn check_resource_reference(
    reference: &Value,
    place: ReferencePlace,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let resource = text(reference, "resource");
    let is_huge_pages = ["requests.hugepages-", "limits.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if place == ReferencePlace::Volume && text(reference, "containerName").is_empty() {
        errors.push(FieldError::required(path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(path.child("resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&resource) && !is_huge_pages {
        errors.push(FieldError::not_supported(path.child("resource"), resource, &RESOURCE_FIELDS));
    }
    let divisor = text(reference, "divisor");
    if Quantity::parse(divisor).is_ok_and(|divisor| divisor.sign().is_eq()) || divisor.is_empty() {
        return;
    }
    let bytes = |what: &str| {
        format!(
            "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
             {what} resource"
        )
    };
    let (supported, why): (&[&str], String) = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"], "only divisor's values 1m and 1 are supported with the cpu resource".to_owned()),
        "memory" => (&BYTE_DIVISORS, bytes("memory")),
        "ephemeral-storage" => (&BYTE_DIVISORS, bytes("local ephemeral storage")),
        _ if is_huge_pages => (&BYTE_DIVISORS, bytes("hugepages")),
        _ => return,
    };
    let is_known = is_huge_pages || RESOURCE_FIELDS.contains(&resource);
    if is_known && !supported.contains(&divisor) {
        errors.push(FieldError::invalid(path.child("divisor"), resource, why));
    }
}

/// Errors of files of the environment whose volumes are no `emptyDir` (`validateFileKeyRefVolumes`).
pub(super) fn check_file_volumes(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let volumes = items(spec, "volumes");
    // Of equal names, the last.
    let is_empty_dir: HashMap<&str, bool> =
        volumes.iter().map(|volume| (text(volume, "name"), is_set(&volume["emptyDir"]))).collect();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let path = path.child(list);
        for (index, container) in items(spec, list).iter().enumerate() {
            let path = path.index(index);
            let path = path.child("env");
            for (index, variable) in items(container, "env").iter().enumerate() {
                let reference = &variable["valueFrom"]["fileKeyRef"];
                if reference.is_null() {
                    continue;
                }
                let path = path.index(index);
                let path = path.child("valueFrom");
                let path = path.child("fileKeyRef");
                let name = text(reference, "volumeName");
                match is_empty_dir.get(name) {
                    None => errors.push(FieldError::not_found(path.child("volumeName"), name)),
                    Some(true) => {}
                    Some(false) => {
                        let why = "referenced volume must be of type emptyDir";
                        errors.push(FieldError::invalid(path.child("volumeName"), name, why));
                    }
                }
            }
        }
    }
}
