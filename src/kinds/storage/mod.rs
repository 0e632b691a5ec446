//! Volumes, claims, and the kinds of `storage.k8s.io` (`pkg/registry/storage`,
//! `pkg/registry/core/{persistentvolume,persistentvolumeclaim}`).

mod attachment;
mod class;
mod csi;
mod persistent_volume;
mod persistent_volume_claim;
mod volume_source;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1123_subdomain;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use super::KindRules;
use super::field_rules::{enum_error, typed_text};
use super::validation::{invalid_for, text, texts};

/// Their rules.
pub(super) static RULES: [&KindRules; 8] = [
    &attachment::RULES,
    &class::STORAGE_CLASS_RULES,
    &class::VOLUME_ATTRIBUTES_CLASS_RULES,
    &csi::CAPACITY_RULES,
    &csi::DRIVER_RULES,
    &csi::NODE_RULES,
    &persistent_volume::RULES,
    &persistent_volume_claim::RULES,
];

/// The annotation that named the class before `storageClassName`.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

const MAX_DRIVER_NAME_BYTES: usize = 63;

const fn storage_rules(plural: &'static str) -> KindRules {
    KindRules { returns_deleted_object: true, ..KindRules::of("storage.k8s.io", plural) }
}

/// Errors of the name of a CSI driver (`ValidateCSIDriverName`).
pub(super) fn driver_name_errors(path: FieldPath<'_>, name: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let is_long = name.len() > MAX_DRIVER_NAME_BYTES;
    let too_long = is_long.then(|| FieldError::too_long(path, MAX_DRIVER_NAME_BYTES));
    let sentences = check_dns1123_subdomain(&name.to_lowercase());
    too_long.into_iter().chain(invalid_for(path, name, sentences)).collect()
}

/// Errors of the access modes of a volume or claim that are present.
fn access_mode_errors(spec: &Value, path: &FieldPath<'_>) -> FieldErrors {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let (modes, path) = (texts(spec, "accessModes"), path.child("accessModes"));
    let mut errors = FieldErrors::new();
    let unsupported = modes.iter().filter(|mode| !MODES.contains(mode));
    errors.extend(unsupported.map(|mode| FieldError::not_supported(path, typed_text(mode), &MODES)));
    let is_exclusive = modes.contains(&"ReadWriteOncePod");
    if is_exclusive && modes.iter().any(|mode| MODES.contains(mode) && *mode != "ReadWriteOncePod") {
        errors.push(FieldError::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
    errors
}

fn volume_mode_error(spec: &Value, path: &FieldPath<'_>) -> Option<FieldError> {
    enum_error(path.child("volumeMode"), &spec["volumeMode"], &["Block", "Filesystem"])
}

/// The class of a volume or claim.
fn class_of(object: &Value) -> &str {
    let annotation = ObjectMetaView::of(object).annotation(CLASS_ANNOTATION);
    annotation.unwrap_or_else(|| object.pointer("/spec/storageClassName").and_then(Value::as_str).unwrap_or_default())
}

/// The access modes of a volume or claim in short (`GetAccessModesAsString`).
fn format_access_modes(of: &Value) -> String {
    const SHORT: [(&str, &str); 4] =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let modes = texts(of, "accessModes");
    let present = SHORT.iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, short)| *short);
    present.collect::<Vec<_>>().join(",")
}

/// The phase of a volume or claim, or that it is being deleted.
fn printed_phase(object: &Value) -> &str {
    match ObjectMetaView::of(object).deletion_timestamp() {
        Some(_) => "Terminating",
        None => object.get("status").map_or("", |status| text(status, "phase")),
    }
}

/// A text field for a cell; `<unset>` if absent.
fn text_or_unset<'v>(object: &'v Value, field: &str) -> &'v str {
    object[field].as_str().unwrap_or("<unset>")
}
