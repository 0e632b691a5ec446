//! PersistentVolumes (`pkg/registry/core/persistentvolume/strategy.go`, `pkg/api/persistentvolume/util.go`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use kubeapi::names::check_dns1123_subdomain;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Value, json};

use super::volume_source::{source_errors, source_fields};
use super::{
    CLASS_ANNOTATION, access_mode_errors, class_of, format_access_modes, printed_phase, text_or_unset,
    volume_mode_error,
};
use crate::kinds::cells::{CellPrinter, text_at};
use crate::kinds::field_rules::{IMMUTABLE, enum_error, immutable_error, is_same};
use crate::kinds::initial_status::reset_status;
use crate::kinds::internal_json::internal_diff;
use crate::kinds::node_selector::{has_invalid_value, node_selector_errors, node_selector_warnings};
use crate::kinds::resource_names::{amounts, unpositive_amount_error};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text};
use crate::kinds::{KindRules, Object, ObjectUpdate, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    returns_deleted_object: true,
    prepare_new: |kind, object| {
        let mut status = json!({"phase": "Pending"});
        let created = ObjectMetaView::of_map(object).creation_timestamp();
        if !created.is_empty() {
            status["lastPhaseTransitionTime"] = created.into();
        }
        reset_status(kind, object, &status);
    },
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => input.metadata_update_errors(),
        _ => validate_volume(input),
    },
    warnings: volume_warnings,
    cells: print_volume,
    ..KindRules::of("", "persistentvolumes")
};

const MOUNT_OPTIONS_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// A new phase gets the time of the change, unless the client says another.
fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    const FIELD: &str = "lastPhaseTransitionTime";
    update.keep_other_part(object);
    if update.subresource != "status" {
        return;
    }
    let old = update.old.get("status").unwrap_or(&Value::Null);
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else { return };
    let is_same_phase = status.get("phase").unwrap_or(&Value::Null) == &old["phase"];
    let time = status.get(FIELD).filter(|time| !time.is_null());
    if is_same_phase && time.is_none() {
        if !old[FIELD].is_null() {
            status.insert(FIELD.to_owned(), old[FIELD].clone());
        }
    } else if !is_same_phase && time.is_none_or(|time| *time == old[FIELD]) {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        status.insert(FIELD.to_owned(), now.into());
    }
}

/// Validates a PersistentVolume. A replacement is validated twice, as by Kubernetes.
fn validate_volume(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = volume_errors(input);
    errors.extend(mount_option_error(input));
    if input.old.is_some() {
        errors.append(volume_errors(input));
        errors.append(change_errors(input.field("spec"), input.old_field("spec")));
    }
    errors
}

fn volume_errors(input: &ValidationInput<'_>) -> FieldErrors {
    const POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let mut errors = input.metadata_errors();
    if items(spec, "accessModes").is_empty() {
        errors.push(FieldError::required(SPEC.child("accessModes"), ""));
    }
    errors.append(access_mode_errors(spec, &SPEC));
    errors.append(capacity_errors(&spec["capacity"]));
    let policy_path = SPEC.child("persistentVolumeReclaimPolicy");
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        errors.extend(enum_error(policy_path, &spec["persistentVolumeReclaimPolicy"], &POLICIES));
    }
    let affinity = &spec["nodeAffinity"];
    if !affinity.is_null() {
        let path = SPEC.child("nodeAffinity");
        match &affinity["required"] {
            Value::Null => {
                errors.push(FieldError::required(path.child("required"), "must specify required node constraints"));
            }
            required => {
                let allows_any_value = has_invalid_value(&old_spec["nodeAffinity"]["required"]);
                errors.append(node_selector_errors(required, allows_any_value, &path.child("required")));
            }
        }
    }
    errors.append(source_errors(spec, input.metadata().name(), &SPEC));
    if is_root(spec["hostPath"]["path"].as_str()) && policy == "Recycle" {
        errors.push(FieldError::forbidden(policy_path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        errors.extend(invalid_for(SPEC.child("storageClassName"), class, check_dns1123_subdomain(class)));
    }
    errors.extend(volume_mode_error(spec, &SPEC));
    if let Some(class) = spec["volumeAttributesClassName"].as_str() {
        let path = SPEC.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.push(FieldError::required(path, "an empty string is disallowed"));
        } else {
            errors.extend(invalid_for(path, class, check_dns1123_subdomain(class)));
        }
        if spec["csi"].is_null() {
            let why = "has to be specified when using volumeAttributesClassName";
            errors.push(FieldError::required(SPEC.child("csi"), why));
        }
    }
    errors
}

/// Whether a path is `/`, however it is written.
fn is_root(path: Option<&str>) -> bool {
    let Some(path) = path.filter(|path| path.starts_with('/')) else { return false };
    let mut depth = 0_usize;
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => depth = depth.saturating_sub(1),
            _ => depth += 1,
        }
    }
    depth == 0
}

fn capacity_errors(capacity: &Value) -> FieldErrors {
    let path = SPEC.child("capacity");
    let mut errors = FieldErrors::new();
    let count = capacity.as_object().map_or(0, serde_json::Map::len);
    if count == 0 {
        errors.push(FieldError::required(path, ""));
    }
    if capacity["storage"].is_null() || count > 1 {
        let sorted = capacity.as_object().map(|capacity| capacity.iter().collect::<BTreeMap<_, _>>());
        let shown = BadValue::from(&json!(sorted));
        errors.push(FieldError::not_supported(path, shown, &["storage"]));
    }
    for (name, amount) in amounts(capacity) {
        if amount.value() < 0 {
            errors.push(FieldError::invalid(path.key(name), amount.value(), "must be a valid resource quantity"));
        }
        errors.extend(unpositive_amount_error(path.key(name), &amount));
    }
    errors
}

/// The error of mount options in an annotation, for a source that cannot have them.
fn mount_option_error(input: &ValidationInput<'_>) -> Option<FieldError> {
    const SOURCES: [&str; 13] = [
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    let spec = input.field("spec");
    let is_wrong = input.metadata().annotation(MOUNT_OPTIONS_ANNOTATION).is_some()
        && SOURCES.into_iter().all(|source| spec[source].is_null());
    let metadata = FieldPath::root("metadata");
    let path = metadata.child("annotations");
    let why = "may not specify mount options for this volume type";
    is_wrong.then(|| FieldError::forbidden(path.child(MOUNT_OPTIONS_ANNOTATION), why))
}

fn change_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    const EXPANSION: &str = "controllerExpandSecretRef";
    let mut errors = FieldErrors::new();
    let is_changed = |field: &str| match field {
        // A driver that had no such Secret may get one.
        "csi" if !old_spec["csi"].is_null() && old_spec["csi"][EXPANSION].is_null() => {
            let mut source = spec["csi"].clone();
            if let Some(source) = source.as_object_mut() {
                source.remove(EXPANSION);
            }
            source != old_spec["csi"]
        }
        field => spec[field] != old_spec[field],
    };
    if source_fields().any(is_changed) {
        let diff = internal_diff("core.PersistentVolumeSource", old_spec, spec).unwrap_or_default();
        let why = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.push(FieldError::forbidden(SPEC.child("persistentvolumesource"), why));
    }
    let mode = FieldPath::root("volumeMode");
    errors.extend(immutable_error(mode, &spec["volumeMode"], &old_spec["volumeMode"]));
    let (affinity, old_affinity) = (&spec["nodeAffinity"], &old_spec["nodeAffinity"]);
    if !old_affinity.is_null() && !is_same_affinity(affinity, old_affinity) {
        let why = format!("{IMMUTABLE}, except for updating from beta label to GA");
        errors.push(FieldError::invalid("nodeAffinity", internal_affinity(affinity), why));
    }
    let class = "volumeAttributesClassName";
    if !old_spec[class].is_null() && spec[class].is_null() {
        let why = "update from non-nil value to nil is forbidden";
        errors.push(FieldError::forbidden(SPEC.child(class), why));
    }
    errors
}

/// Whether an affinity is the same but for labels that have new names.
fn is_same_affinity(affinity: &Value, old: &Value) -> bool {
    const RENAMED: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    let mut renamed = old.clone();
    let new_terms = items(&affinity["required"], "nodeSelectorTerms");
    let old_terms = renamed.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for (new_term, old_term) in new_terms.iter().zip(old_terms.into_iter().flatten()) {
        for field in ["matchExpressions", "matchFields"] {
            let old_expressions = old_term.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
            for (new, old) in items(new_term, field).iter().zip(old_expressions) {
                // A key without a new name has an empty one in Kubernetes' table.
                let new_name = RENAMED.iter().find(|(from, _)| old["key"] == *from).map_or("", |(_, to)| to);
                let is_renamed = new["key"] == new_name;
                if let Some(old) = old.as_object_mut()
                    && is_renamed
                {
                    old.insert("key".to_owned(), new["key"].clone());
                }
            }
        }
    }
    is_same(affinity, &renamed)
}

/// An affinity as Go shows its internal struct.
fn internal_affinity(affinity: &Value) -> BadValue {
    let list = |of: &Value, field: &str, item: fn(&Value) -> String| match of[field].as_array() {
        None => "null".to_owned(),
        Some(items) => format!("[{}]", items.iter().map(item).collect::<Vec<_>>().join(",")),
    };
    fn expression(expression: &Value) -> String {
        let json = |field: &str| write_json(&expression[field]);
        format!("{{\"Key\":{},\"Operator\":{},\"Values\":{}}}", json("key"), json("operator"), json("values"))
    }
    if affinity.is_null() {
        return BadValue::null();
    }
    if affinity["required"].is_null() {
        return BadValue::from_json("{\"Required\":null}".to_owned());
    }
    let terms = items(&affinity["required"], "nodeSelectorTerms").iter().map(|term| {
        let (expressions, fields) = (list(term, "matchExpressions", expression), list(term, "matchFields", expression));
        format!("{{\"MatchExpressions\":{expressions},\"MatchFields\":{fields}}}")
    });
    let terms = terms.collect::<Vec<_>>().join(",");
    BadValue::from_json(format!("{{\"Required\":{{\"NodeSelectorTerms\":[{terms}]}}}}"))
}

fn volume_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    const ANNOTATIONS: [(&str, &str); 2] = [
        (CLASS_ANNOTATION, "deprecated since v1.8; use \"storageClassName\" attribute instead"),
        (MOUNT_OPTIONS_ANNOTATION, "deprecated since v1.31; use \"mountOptions\" attribute instead"),
    ];
    const SOURCES: [(&str, &str, &str); 6] = [
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    if !written.subresource.is_empty() {
        return Vec::new();
    }
    let (meta, spec) = (ObjectMetaView::of_map(written.object), written.field("spec"));
    let deprecated = ANNOTATIONS.into_iter().filter(|(key, _)| meta.annotation(key).is_some());
    let mut warnings: Vec<String> =
        deprecated.map(|(key, text)| format!("metadata.annotations[{key}]: {text}")).collect();
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic \
                   provisioning.";
        warnings.push(format!("spec.persistentVolumeReclaimPolicy: {why}"));
    }
    let affinity = SPEC.child("nodeAffinity");
    let required = affinity.child("required");
    let terms = items(&spec["nodeAffinity"]["required"], "nodeSelectorTerms");
    warnings.extend(node_selector_warnings(terms, &required.child("nodeSelectorTerms")));
    let sources = SOURCES.into_iter().filter(|(field, ..)| !spec[*field].is_null());
    warnings.extend(sources.map(|(_, name, why)| format!("spec.{name}: {why}")));
    warnings
}

fn print_volume(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let claim = match &spec["claimRef"] {
        Value::Null => String::new(),
        claim => format!("{}/{}", text(claim, "namespace"), text(claim, "name")),
    };
    vec![
        printer.name(),
        spec["capacity"]["storage"].as_str().unwrap_or("0").into(),
        format_access_modes(spec).into(),
        text(spec, "persistentVolumeReclaimPolicy").into(),
        printed_phase(object).into(),
        claim.into(),
        class_of(object).into(),
        text_or_unset(spec, "volumeAttributesClassName").into(),
        text_at(object, "/status/reason").into(),
        printer.age(),
        text_or_unset(spec, "volumeMode").into(),
    ]
}
