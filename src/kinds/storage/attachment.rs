//! VolumeAttachments (`pkg/registry/storage/volumeattachment/strategy.go`).

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1123_subdomain;
use serde_json::Value;

use super::volume_source::inline_volume_errors;
use super::{driver_name_errors, storage_rules};
use crate::kinds::KindRules;
use crate::kinds::cells::{CellPrinter, text_at};
use crate::kinds::field_rules::{IMMUTABLE, internal_struct, is_same, text_json};
use crate::kinds::validation::{ValidationInput, invalid_for, text};

pub(super) static RULES: KindRules = KindRules {
    allows_unconditional_update: false,
    validate: validate_attachment,
    cells: print_attachment,
    ..storage_rules("volumeattachments")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");
const STATUS: FieldPath<'static> = FieldPath::root("status");

const MAX_METADATA_BYTES: usize = 256 << 10;
const MAX_MESSAGE_BYTES: usize = 1024;

/// Validates a VolumeAttachment. Its metadata are not compared with those before, but by the rules of every object.
fn validate_attachment(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, status) = (input.field("spec"), input.field("status"));
    let mut errors = input.metadata_errors();
    errors.extend(driver_name_errors(SPEC.child("attacher"), text(spec, "attacher")));
    errors.append(source_errors(&spec["source"]));
    let node = text(spec, "nodeName");
    errors.extend(invalid_for(SPEC.child("nodeName"), node, check_dns1123_subdomain(node)));
    let metadata = status["attachmentMetadata"].as_object().into_iter().flatten();
    let bytes = metadata.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum::<usize>();
    if bytes > MAX_METADATA_BYTES {
        errors.push(FieldError::too_long(STATUS.child("attachmentMetadata"), MAX_METADATA_BYTES));
    }
    for field in ["attachError", "detachError"] {
        let path = STATUS.child(field);
        if text(&status[field], "message").len() > MAX_MESSAGE_BYTES {
            // The wrong limit, as in Kubernetes.
            errors.push(FieldError::too_long(path.child("message"), MAX_METADATA_BYTES));
        }
        if let Some(code) = status[field]["errorCode"].as_i64().filter(|code| *code < 0) {
            let why = format!("must be between 0 and {}, inclusive", i32::MAX);
            errors.push(FieldError::invalid(path.child("errorCode"), code, why));
        }
    }
    if let Some(volume) = spec["source"]["persistentVolumeName"].as_str() {
        let path = FieldPath::root("spec.source.persistentVolumeName");
        errors.extend(invalid_for(path, volume, check_dns1123_subdomain(volume)));
    }
    if input.old.is_some() && !is_same(spec, input.old_field("spec")) {
        errors.push(FieldError::invalid(SPEC, internal_spec(spec), IMMUTABLE));
    }
    errors
}

/// A specification as Go shows its internal struct. One with a volume in it is shown without that volume.
fn internal_spec(spec: &Value) -> BadValue {
    let volume = match spec["source"]["persistentVolumeName"].as_str() {
        None => "null".to_owned(),
        Some(_) => text_json(&spec["source"], "persistentVolumeName"),
    };
    internal_struct(&[
        ("Attacher", text_json(spec, "attacher")),
        ("Source", format!("{{\"PersistentVolumeName\":{volume},\"InlineVolumeSpec\":null}}")),
        ("NodeName", text_json(spec, "nodeName")),
    ])
}

fn source_errors(source: &Value) -> FieldErrors {
    let path = SPEC.child("source");
    let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source["persistentVolumeName"].as_str(), &source["inlineVolumeSpec"]) {
        (None, Value::Null) => FieldError::required(path, why).into(),
        (Some(""), Value::Null) => {
            let why = "must specify non empty persistentVolumeName";
            FieldError::required(path.child("persistentVolumeName"), why).into()
        }
        (Some(_), Value::Null) => FieldErrors::new(),
        (None, volume) => inline_volume_errors(volume, &path.child("inlineVolumeSpec")),
        (Some(_), _) => FieldError::forbidden(path, why).into(),
    }
}

fn print_attachment(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let is_attached = object.pointer("/status/attached") == Some(&Value::Bool(true));
    vec![
        printer.name(),
        text_at(object, "/spec/attacher").into(),
        text_at(object, "/spec/source/persistentVolumeName").into(),
        text_at(object, "/spec/nodeName").into(),
        is_attached.into(),
        printer.age(),
    ]
}
