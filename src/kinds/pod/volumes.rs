//! Volumes of Pods (`ValidateVolumes`). Of sources that Kubernetes has dropped or replaced by drivers, only the fields that
//! must be set are examined.

use std::collections::{HashMap, HashSet};

use kubeapi::GoQuoted;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain};
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::PodSpecOptions;
use super::paths::{
    check_choice, check_descending_path, check_file_mode, check_no_backsteps, check_required, check_supported,
};
use super::projected_volume::check_projected_volume;
use super::volume_claim::check_claim_template;
use super::volume_files::{check_key_file, check_pod_field_file};
use crate::kinds::validation::{invalid_for, items, text};

/// Kinds of volumes, in the order in which they are examined, with the field that stands for a second one in errors.
const SOURCES: [(&str, &str); 30] = [
    ("emptyDir", "emptyDir"),
    ("hostPath", "hostPath"),
    ("gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret"),
    ("nfs", "nfs"),
    ("iscsi", "iscsi"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd"),
    ("cinder", "cinder"),
    ("cephfs", "cephFS"),
    ("quobyte", "quobyte"),
    // As upstream.
    ("downwardAPI", "downwarAPI"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("configMap", "configMap"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("storageos", "storageos"),
    ("projected", "projected"),
    ("scaleIO", "scaleIO"),
    ("csi", "csi"),
    ("ephemeral", "ephemeral"),
    ("image", "image"),
];
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MAX_PARTITION: i64 = 255;
const MAX_DRIVER_NAME: usize = 63;

/// Errors of volumes; returns those that are valid, by name.
pub(super) fn check_volumes<'s>(
    volumes: &'s [Value],
    path: &FieldPath<'_>,
    options: &PodSpecOptions<'_>,
    errors: &mut FieldErrors,
) -> HashMap<&'s str, &'s Value> {
    let pod_name = options.pod_name.filter(|name| !name.is_empty());
    let created: HashSet<String> = match pod_name {
        Some(pod) => {
            let ephemeral = volumes.iter().filter(|volume| !volume["ephemeral"].is_null());
            ephemeral.map(|volume| format!("{pod}-{}", text(volume, "name"))).collect()
        }
        None => HashSet::new(),
    };
    let mut valid = HashMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        let mut found = FieldErrors::new();
        let name = text(volume, "name");
        check_source(volume, &path, options, &mut found);
        match name {
            "" => found.push(FieldError::required(path.child("name"), "")),
            name => found.extend(invalid_for(path.child("name"), name, check_dns1123_label(name))),
        }
        if valid.contains_key(name) {
            found.push(FieldError::duplicate(path.child("name"), name));
        }
        if found.is_empty() {
            valid.insert(name, volume);
        }
        errors.append(found);
        let claim = text(&volume["persistentVolumeClaim"], "claimName");
        if created.contains(claim) {
            let path = path.child("persistentVolumeClaim");
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(FieldError::invalid(path.child("claimName"), claim, why));
        }
    }
    valid
}

fn check_source(volume: &Value, path: &FieldPath<'_>, options: &PodSpecOptions<'_>, errors: &mut FieldErrors) {
    let mut is_found = false;
    for (field, second) in SOURCES {
        let source = &volume[field];
        if source.is_null() {
            continue;
        }
        if is_found {
            errors.push(FieldError::forbidden(path.child(second), "may not specify more than 1 volume type"));
        } else {
            check_one_source(field, source, (volume, path), options, errors);
        }
        is_found = true;
        if field == "iscsi" && !source["initiatorName"].is_null() {
            let name = text(volume, "name");
            if name.len() + 1 + text(source, "targetPortal").len() > 64 {
                let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                           iscsi.initiatorName is specified.";
                errors.push(FieldError::invalid(path.child("name"), name, why));
            }
        }
    }
    if !is_found {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

/// Errors of the source of a volume.
fn check_one_source(
    field: &str,
    source: &Value,
    (volume, volume_path): (&Value, &FieldPath<'_>),
    options: &PodSpecOptions<'_>,
    errors: &mut FieldErrors,
) {
    let path = &volume_path.child(if field == "gcePersistentDisk" { "persistentDisk" } else { field });
    match field {
        "emptyDir" => check_empty_dir(source, path, errors),
        "hostPath" => check_host_path(source, path, errors),
        "gitRepo" => {
            check_required(source, &["repository"], path, errors);
            check_descending_path(text(source, "directory"), &path.child("directory"), errors);
        }
        "gcePersistentDisk" => check_disk(source, "pdName", path, errors),
        "awsElasticBlockStore" => check_disk(source, "volumeID", path, errors),
        "secret" => check_key_files(source, "secretName", path, errors),
        "configMap" => check_key_files(source, "name", path, errors),
        "nfs" => {
            check_required(source, &["server", "path"], path, errors);
            let target = text(source, "path");
            if !target.starts_with('/') {
                errors.push(FieldError::invalid(path.child("path"), target, "must be an absolute path"));
            }
        }
        "persistentVolumeClaim" => check_required(source, &["claimName"], path, errors),
        "downwardAPI" => {
            check_file_mode(source, "defaultMode", path, errors);
            items(source, "items").iter().for_each(|file| check_pod_field_file(file, path, errors));
        }
        "projected" => check_projected_volume(source, path, errors),
        "csi" => check_driver_volume(source, path, errors),
        "ephemeral" => check_ephemeral_volume(source, (volume, volume_path), options, errors),
        "image" => {
            if options.is_pod {
                check_required(source, &["reference"], path, errors);
            }
            check_choice(text(source, "pullPolicy"), &PULL_POLICIES, &path.child("pullPolicy"), errors);
        }
        "iscsi" => check_required(source, &["targetPortal", "iqn"], path, errors),
        "glusterfs" => check_required(source, &["endpoints", "path"], path, errors),
        "rbd" => {
            if items(source, "monitors").is_empty() {
                errors.push(FieldError::required(path.child("monitors"), ""));
            }
            check_required(source, &["image"], path, errors);
        }
        "cephfs" if items(source, "monitors").is_empty() => {
            errors.push(FieldError::required(path.child("monitors"), ""));
        }
        "cinder" | "portworxVolume" => check_required(source, &["volumeID"], path, errors),
        "flexVolume" => check_required(source, &["driver"], path, errors),
        "azureFile" => check_required(source, &["secretName", "shareName"], path, errors),
        "vsphereVolume" => check_required(source, &["volumePath"], path, errors),
        "photonPersistentDisk" => check_required(source, &["pdID"], path, errors),
        "azureDisk" => check_required(source, &["diskName", "diskURI"], path, errors),
        "scaleIO" => check_required(source, &["gateway", "system", "volumeName"], path, errors),
        _ => {}
    }
}

fn check_empty_dir(source: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let limit = source["sizeLimit"].as_str().and_then(|limit| Quantity::parse(limit).ok());
    if limit.is_some_and(|limit| limit.sign().is_lt()) {
        let why = "SizeLimit field must be a valid resource quantity";
        errors.push(FieldError::forbidden(path.child("sizeLimit"), why));
    }
}

fn check_host_path(source: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let target = text(source, "path");
    if target.is_empty() {
        errors.push(FieldError::required(path.child("path"), ""));
        return;
    }
    check_no_backsteps(target, &path.child("path"), errors);
    if let Some(kind) = source["type"].as_str() {
        check_supported(kind, &HOST_PATH_TYPES, &path.child("type"), errors);
    }
}

fn check_disk(source: &Value, name: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_required(source, &[name], path, errors);
    let partition = source["partition"].as_i64().unwrap_or_default();
    if !(0..=MAX_PARTITION).contains(&partition) {
        let why = "must be between 1 and 255, inclusive";
        errors.push(FieldError::invalid(path.child("partition"), partition, why));
    }
}

/// Errors of files that keys of a ConfigMap or Secret become.
fn check_key_files(source: &Value, name: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_required(source, &[name], path, errors);
    check_file_mode(source, "defaultMode", path, errors);
    let path = path.child("items");
    for (index, file) in items(source, "items").iter().enumerate() {
        check_key_file(file, &path.index(index), errors);
    }
}

/// Errors of a volume of a CSI driver (`validateCSIVolumeSource`).
fn check_driver_volume(source: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let driver = text(source, "driver");
    if driver.is_empty() {
        errors.push(FieldError::required(path.child("driver"), ""));
    } else {
        if driver.len() > MAX_DRIVER_NAME {
            errors.push(FieldError::too_long(path.child("driver"), MAX_DRIVER_NAME));
        }
        errors.extend(invalid_for(path.child("driver"), driver, check_dns1123_subdomain(&driver.to_lowercase())));
    }
    let secret = &source["nodePublishSecretRef"];
    match text(secret, "name") {
        _ if secret.is_null() => {}
        "" => errors.push(FieldError::required(path.child("nodePublishSecretRef").child("name"), "")),
        name => errors.extend(invalid_for(path.child("name"), name, check_dns1123_subdomain(name))),
    }
}

fn check_ephemeral_volume(
    source: &Value,
    (volume, path): (&Value, &FieldPath<'_>),
    options: &PodSpecOptions<'_>,
    errors: &mut FieldErrors,
) {
    let template_path = path.child("ephemeral");
    let template_path = template_path.child("volumeClaimTemplate");
    match &source["volumeClaimTemplate"] {
        Value::Null => errors.push(FieldError::required(template_path, "")),
        template => check_claim_template(template, &template_path, errors),
    }
    let (pod, name) = (options.pod_name.unwrap_or_default(), text(volume, "name"));
    if !pod.is_empty() && !name.is_empty() {
        let claim = format!("{pod}-{name}");
        for why in check_dns1123_subdomain(&claim) {
            let why = format!("PVC name {}: {why}", GoQuoted(&claim));
            errors.push(FieldError::invalid(path.child("name"), name, why));
        }
    }
}
