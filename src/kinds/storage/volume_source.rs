//! Sources of persistent volumes (`ValidatePersistentVolumeSpec`).

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain};
use serde_json::Value;

use super::driver_name_errors;
use crate::kinds::field_rules::{enum_error, required_text_errors};
use crate::kinds::validation::{invalid_for, items, text};

/// Fields of the sources in the order in which Kubernetes looks at them, with their names in paths of errors about a second
/// source and about the source.
const SOURCES: [(&str, &str, &str); 22] = [
    ("hostPath", "hostPath", "hostPath"),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("nfs", "nfs", "nfs"),
    ("rbd", "rbd", "rbd"),
    ("quobyte", "quobyte", "quobyte"),
    ("cephfs", "cephFS", "cephfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("cinder", "cinder", "cinder"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("local", "local", "local"),
    ("storageos", "storageos", "storageos"),
    ("csi", "csi", "csi"),
];

/// The fields of the sources.
pub(super) fn source_fields() -> impl Iterator<Item = &'static str> {
    SOURCES.into_iter().map(|(field, ..)| field)
}

/// Errors of the source of a volume, of which there must be one.
pub(super) fn source_errors(spec: &Value, volume_name: &str, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut count = 0;
    for (field, second_name, source_name) in SOURCES.into_iter().filter(|(field, ..)| !spec[*field].is_null()) {
        // A flex volume may be the second.
        if count > 0 && field != "flexVolume" {
            errors.push(FieldError::forbidden(path.child(second_name), "may not specify more than 1 volume type"));
            continue;
        }
        count += 1;
        errors.append(errors_of_source(field, &spec[field], volume_name, &path.child(source_name)));
        if field == "local" && spec["nodeAffinity"].is_null() {
            let why = "Local volume requires node affinity";
            errors.push(FieldError::required(path.child("nodeAffinity"), why));
        }
    }
    if count == 0 {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    errors
}

fn errors_of_source(field: &str, source: &Value, volume_name: &str, path: &FieldPath<'_>) -> FieldErrors {
    let required = |fields: &[&str]| -> FieldErrors {
        let empty = fields.iter().filter(|field| match &source[**field] {
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => true,
        });
        empty.map(|field| FieldError::required(path.child(field), "")).collect()
    };
    match field {
        "hostPath" => host_path_errors(source, path),
        "gcePersistentDisk" => partition_errors(required(&["pdName"]), source, path),
        "awsElasticBlockStore" => partition_errors(required(&["volumeID"]), source, path),
        "glusterfs" => glusterfs_errors(required(&["endpoints", "path"]), source, path),
        "flocker" => flocker_errors(source, path),
        "nfs" => {
            let mut errors = required(&["server", "path"]);
            if !text(source, "path").starts_with('/') {
                let why = "must be an absolute path";
                errors.push(FieldError::invalid(path.child("path"), text(source, "path"), why));
            }
            errors
        }
        "rbd" => required(&["monitors", "image"]),
        "quobyte" => quobyte_errors(source, path),
        "cephfs" => required(&["monitors"]),
        "iscsi" => iscsi_errors(source, volume_name, path),
        "cinder" => secret_errors(required(&["volumeID"]), source, path),
        "fc" => fibre_channel_errors(source, path),
        "flexVolume" => flex_errors(required(&["driver"]), source, path),
        "azureFile" => {
            let mut errors = required(&["secretName", "shareName"]);
            if source["secretNamespace"] == "" {
                errors.push(FieldError::required(path.child("secretNamespace"), ""));
            }
            errors
        }
        "vsphereVolume" => required(&["volumePath"]),
        "photonPersistentDisk" => required(&["pdID"]),
        "portworxVolume" => required(&["volumeID"]),
        "azureDisk" => azure_disk_errors(required(&["diskName", "diskURI"]), source, path),
        "scaleIO" => required(&["gateway", "system", "volumeName"]),
        "local" => match text(source, "path") {
            "" => required(&["path"]),
            target => parent_error(target, path.child("path")).into_iter().collect(),
        },
        "storageos" => storage_os_errors(source, path),
        _ => csi_errors(source, path),
    }
}

/// The error of a path with a step to the parent (`validatePathNoBacksteps`).
fn parent_error(target: &str, path: FieldPath<'_>) -> Option<FieldError> {
    let has_step = target.split('/').any(|step| step == "..");
    has_step.then(|| FieldError::invalid(path, target, "must not contain '..'"))
}

fn host_path_errors(source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let target = text(source, "path");
    if target.is_empty() {
        return FieldError::required(path.child("path"), "").into();
    }
    let mut errors = FieldErrors::new();
    errors.extend(parent_error(target, path.child("path")));
    errors.extend(enum_error(path.child("type"), &source["type"], &TYPES));
    errors
}

/// The error of a number of a unit or partition.
fn range_error(value: &Value, path: FieldPath<'_>, least: i64) -> Option<FieldError> {
    let number = value.as_i64().filter(|number| !(0..=255).contains(number))?;
    Some(FieldError::invalid(path, number, format!("must be between {least} and 255, inclusive")))
}

fn partition_errors(mut errors: FieldErrors, source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    errors.extend(range_error(&source["partition"], path.child("partition"), 1));
    errors
}

fn glusterfs_errors(mut errors: FieldErrors, source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let path = path.child("endpointsNamespace");
    match source["endpointsNamespace"].as_str() {
        None => {}
        Some("") => {
            let why = "if the endpointnamespace is set, it must be a valid namespace name";
            errors.push(FieldError::invalid(path, "", why));
        }
        Some(namespace) => errors.extend(invalid_for(path, namespace, check_dns1123_label(namespace))),
    }
    errors
}

fn flocker_errors(source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (name, uuid) = (text(source, "datasetName"), text(source, "datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errors.push(FieldError::required(path, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let why = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(path, "resource", why));
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(path.child("datasetName"), name, "must not contain '/'"));
    }
    errors
}

fn quobyte_errors(source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";
    let (registry, registry_path) = (text(source, "registry"), path.child("registry"));
    let mut errors = FieldErrors::new();
    if registry.is_empty() {
        errors.push(FieldError::required(registry_path, REGISTRY));
    } else if text(source, "tenant").len() >= 65 {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(path.child("tenant"), why));
    } else {
        let wrong = registry.split(',').filter(|pair| !is_host_port(pair));
        errors.extend(wrong.map(|_| FieldError::invalid(registry_path, registry, REGISTRY)));
    }
    if text(source, "volume").is_empty() {
        errors.push(FieldError::required(path.child("volume"), ""));
    }
    errors
}

/// Whether a text has a host and a port, as `net.SplitHostPort` wants it.
fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let has_bracket = |text: &str| text.contains(['[', ']']);
    match is_bracketed {
        Some(host) => !has_bracket(host) && !has_bracket(port),
        None => !host.contains(':') && !has_bracket(host) && !has_bracket(port),
    }
}

fn iscsi_errors(source: &Value, volume_name: &str, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (portal, initiator) = (text(source, "targetPortal"), source["initiatorName"].as_str());
    if portal.is_empty() {
        errors.push(FieldError::required(path.child("targetPortal"), ""));
    }
    if initiator.is_some() && volume_name.len() + 1 + portal.len() > 64 {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                   iscsi.initiatorName is specified.";
        errors.push(FieldError::invalid(path.child("targetportal"), portal, why));
    }
    let name = text(source, "iqn");
    if name.is_empty() {
        errors.push(FieldError::required(path.child("iqn"), ""));
    } else if !is_iscsi_name(name) {
        errors.push(FieldError::invalid(path.child("iqn"), name, "must be valid format"));
    }
    errors.extend(range_error(&source["lun"], path.child("lun"), 0));
    let secret = &source["secretRef"];
    let is_authenticated = ["chapAuthDiscovery", "chapAuthSession"].into_iter().any(|field| source[field] == true);
    if is_authenticated && secret.is_null() {
        errors.push(FieldError::required(path.child("secretRef"), ""));
    }
    if !secret.is_null() && text(secret, "name").is_empty() {
        errors.push(FieldError::required(path.child("secretRef").child("name"), ""));
    }
    if let Some(initiator) = initiator.filter(|initiator| !is_iscsi_name(initiator)) {
        errors.push(FieldError::invalid(path.child("initiatorname"), initiator, "must be valid format"));
    }
    errors
}

/// Whether a text is a name of iSCSI in one of its three forms.
fn is_iscsi_name(name: &str) -> bool {
    let is_alphanumeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    // Any character may stand for the dot.
    let of_length = |rest: &str, length: usize| {
        let mut letters = rest.chars();
        letters.next().is_some_and(|dot| dot != '\n')
            && letters.as_str().len() == length
            && is_alphanumeric(letters.as_str())
    };
    if let Some(rest) = name.strip_prefix("eui") {
        return of_length(rest, 16);
    }
    if let Some(rest) = name.strip_prefix("naa") {
        return of_length(rest, 32);
    }
    name.starts_with("iqn") && has_qualified_name(name)
}

/// Whether a text has a qualified name at its end, which may be the second or third that begins.
fn has_qualified_name(name: &str) -> bool {
    name.match_indices("iqn.").take(8).any(|(at, start)| name.get(at + start.len()..).is_some_and(is_qualified_name))
}

/// Whether a text follows `iqn.`: a month, an authority, and a name after a colon.
fn is_qualified_name(rest: &str) -> bool {
    let bytes = rest.as_bytes();
    let is_month = bytes.len() > 8
        && bytes.iter().take(8).enumerate().all(|(index, byte)| match index {
            4 => *byte == b'-',
            7 => *byte == b'.',
            _ => byte.is_ascii_digit(),
        });
    let Some((authority, name)) = rest.get(8..).and_then(|rest| rest.split_once(':')).filter(|_| is_month) else {
        return false;
    };
    let is_authority_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let is_name_letter = |letter: char| !",;*&$|".contains(letter) && !letter.is_ascii_whitespace();
    !authority.is_empty()
        && authority.bytes().all(is_authority_byte)
        && !name.is_empty()
        && name.chars().all(is_name_letter)
}

fn fibre_channel_errors(source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (targets, ids) = (items(source, "targetWWNs"), items(source, "wwids"));
    let targets_path = path.child("targetWWNs");
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => {
            let why = "must specify either targetWWNs or wwids, but not both";
            errors.push(FieldError::required(targets_path, why));
        }
        (false, false) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            errors.push(FieldError::invalid(targets_path, BadValue::from(&source["targetWWNs"]), why));
        }
        _ => {}
    }
    if !targets.is_empty() {
        if source["lun"].is_null() {
            errors.push(FieldError::required(path.child("lun"), "lun is required if targetWWNs is specified"));
        }
        errors.extend(range_error(&source["lun"], path.child("lun"), 0));
    }
    errors
}

fn flex_errors(mut errors: FieldErrors, source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let path = path.child("options");
    for (key, _) in source["options"].as_object().into_iter().flatten() {
        let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
        let domain = format!(".{}", namespace.to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let why = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(path.key(key), key, why));
        }
    }
    errors
}

fn azure_disk_errors(mut errors: FieldErrors, source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    let modes = ["None", "ReadOnly", "ReadWrite"];
    errors.extend(enum_error(path.child("cachingMode"), &source["cachingMode"], &modes));
    errors.extend(enum_error(path.child("kind"), &source["kind"], &["Dedicated", "Managed", "Shared"]));
    let (uri, uri_path) = (text(source, "diskURI"), path.child("diskURI"));
    let (start, form) = match source["kind"].as_str() {
        None => return errors,
        Some("Managed") => ("/subscriptions/", MANAGED),
        Some(_) => ("https://", BLOB),
    };
    if !uri.starts_with(start) {
        errors.push(FieldError::not_supported(uri_path, uri, &[form]));
    }
    errors
}

/// Errors of a reference to a Secret by name and namespace, if there is one.
fn secret_errors(mut errors: FieldErrors, source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (secret, path) = (&source["secretRef"], path.child("secretRef"));
    if !secret.is_null() {
        let empty = ["name", "namespace"].into_iter().filter(|field| text(secret, field).is_empty());
        errors.extend(empty.map(|field| FieldError::required(path.child(field), "")));
    }
    errors
}

fn storage_os_errors(source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let namespace = text(source, "volumeNamespace");
    errors.extend(required_text_errors(path.child("volumeName"), text(source, "volumeName"), check_dns1123_label));
    if !namespace.is_empty() {
        errors.extend(invalid_for(path.child("volumeNamespace"), namespace, check_dns1123_label(namespace)));
    }
    secret_errors(errors, source, path)
}

fn csi_errors(source: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const SECRETS: [&str; 4] =
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
    let mut errors = FieldErrors::new();
    errors.extend(driver_name_errors(path.child("driver"), text(source, "driver")));
    if text(source, "volumeHandle").is_empty() {
        errors.push(FieldError::required(path.child("volumeHandle"), ""));
    }
    for field in SECRETS.into_iter().filter(|field| !source[*field].is_null()) {
        let (secret, path) = (&source[field], path.child(field));
        errors.extend(required_text_errors(path.child("name"), text(secret, "name"), check_dns1123_subdomain));
        errors.extend(required_text_errors(path.child("namespace"), text(secret, "namespace"), check_dns1123_label));
    }
    errors
}

/// Errors of a volume in the specification of a VolumeAttachment, which must be one of CSI.
pub(super) fn inline_volume_errors(spec: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const CONTEXT: &str = "in the context of inline volumes";
    let mut errors = FieldErrors::new();
    let forbidden =
        |field: &'_ str| FieldError::forbidden(path.child(field), format!("may not be specified {CONTEXT}"));
    if !spec["claimRef"].is_null() {
        errors.push(forbidden("claimRef"));
    }
    if spec["capacity"].as_object().is_some_and(|capacity| !capacity.is_empty()) {
        errors.push(forbidden("capacity"));
    }
    if spec["csi"].is_null() {
        errors.push(FieldError::required(path.child("csi"), format!("has to be specified {CONTEXT}")));
    }
    if items(spec, "accessModes").is_empty() {
        errors.push(FieldError::required(path.child("accessModes"), ""));
    }
    errors.append(super::access_mode_errors(spec, path));
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    if !policy.is_empty() && policy != "Retain" {
        let why = format!("may only be Retain {CONTEXT}");
        errors.push(FieldError::forbidden(path.child("persistentVolumeReclaimPolicy"), why));
    }
    if !spec["nodeAffinity"].is_null() {
        errors.push(forbidden("nodeAffinity"));
    }
    errors.append(source_errors(spec, "", path));
    if !text(spec, "storageClassName").is_empty() {
        errors.push(forbidden("storageClassName"));
    }
    if spec["volumeMode"].as_str().is_some_and(|mode| mode != "Filesystem") {
        let why = format!("may not specify volumeMode other than Filesystem {CONTEXT}");
        errors.push(FieldError::forbidden(path.child("volumeMode"), why));
    }
    errors
}
