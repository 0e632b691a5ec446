//! Claims of volumes as templates have them (`ValidatePersistentVolumeClaimSpec`, `ValidateTemplateObjectMeta`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1123_subdomain;
use kubeapi::object_meta::{ObjectMetaView, validate_annotations, validate_labels};
use serde_json::{Map, Value};

use super::paths::check_supported;
use crate::kinds::field_rules::label_selector_errors;
use crate::kinds::resource_names::{amount_errors, amount_of, unpositive_amount_error};
use crate::kinds::validation::{invalid_for, text, texts};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Errors of the template of a claim in a Pod.
pub(super) fn check_claim_template(template: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let metadata_path = path.child("metadata");
    let empty = Map::new();
    let metadata = template["metadata"].as_object().unwrap_or(&empty);
    let meta = ObjectMetaView::of_metadata(metadata);
    validate_annotations(meta.annotations(), &metadata_path.child("annotations"), errors);
    validate_labels(meta.labels(), &metadata_path.child("labels"), errors);
    for field in metadata.keys().filter(|field| !matches!(field.as_str(), "labels" | "annotations")) {
        errors.push(FieldError::forbidden(metadata_path.child(field), "cannot be set"));
    }
    check_claim_spec(&template["spec"], &path.child("spec"), errors);
}

/// Errors of the specification of a new claim.
pub(in crate::kinds) fn check_claim_spec(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let modes = texts(spec, "accessModes");
    let modes_path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(modes_path, "at least 1 access mode is required"));
    }
    errors.append(label_selector_errors(&spec["selector"], false, &path.child("selector")));
    for mode in &modes {
        check_supported(mode, &ACCESS_MODES, &modes_path, errors);
    }
    let is_other = |mode: &&str| *mode != "ReadWriteOncePod" && ACCESS_MODES.contains(mode);
    if modes.contains(&"ReadWriteOncePod") && modes.iter().any(is_other) {
        errors.push(FieldError::forbidden(modes_path, "may not use ReadWriteOncePod with other access modes"));
    }
    let resources = path.child("resources");
    let storage_path = resources.key("storage");
    match amount_of(&spec["resources"]["requests"], "storage") {
        None => errors.push(FieldError::required(storage_path, "")),
        Some(amount) => match unpositive_amount_error(storage_path, &amount) {
            Some(error) => errors.push(error),
            None => errors.extend(amount_errors(storage_path, "storage", &amount)),
        },
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        if field == "volumeAttributesClassName"
            && let Some(mode) = spec["volumeMode"].as_str()
        {
            check_supported(mode, &VOLUME_MODES, &path.child("volumeMode"), errors);
        }
        let name = text(spec, field);
        if !name.is_empty() {
            errors.extend(invalid_for(path.child(field), name, check_dns1123_subdomain(name)));
        }
    }
}
