//! Namespaces (`pkg/registry/core/namespace/strategy.go`; `ValidateNamespace`, `ValidateNamespaceStatusUpdate`,
//! `ValidateNamespaceFinalizeUpdate`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{NameRule, check_qualified_name};
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::json;

use super::cells::text_at;
use super::selectable_fields::SelectableFields;
use super::validation::{ValidationInput, invalid_for, legacy_finalizer_error, text, texts};
use super::{KindRules, Object, ObjectUpdate, RemovalRule};

pub(super) static RULES: KindRules = KindRules {
    name_rule: NameRule::DnsLabel,
    returns_deleted_object: true,
    removal: RemovalRule::Namespace,
    selectable: SelectableFields::of(&["status.phase"]),
    prepare_new: |_, object| prepare_new(object),
    prepare_replacement,
    validate: validate_namespace,
    cells: |printer| vec![printer.name(), text_at(printer.object, "/status/phase").into(), printer.age()],
    ..KindRules::of("", "namespaces")
};

/// Sets the label with the name, the finalizer and the phase.
fn prepare_new(object: &mut Object) {
    let name = ObjectMetaView::of_map(object).name().to_owned();
    change_metadata(object, |metadata| {
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
        }
    });
    let given = object.get("spec").and_then(|spec| spec["finalizers"].as_array());
    let mut finalizers = given.cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    object.insert("spec".to_owned(), json!({ "finalizers": finalizers }));
    object.insert("status".to_owned(), json!({"phase": "Active"}));
}

/// Only `finalize` changes the finalizers, only `status` the phase.
fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    if update.subresource != "finalize" {
        update.keep(object, "spec");
    }
    if update.subresource != "status" {
        update.keep(object, "status");
    }
}

/// Validates a Namespace, or a write of one of its subresources.
fn validate_namespace(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = FieldPath::root("spec");
    let path = spec.child("finalizers");
    let finalizers = texts(input.field("spec"), "finalizers");
    match input.subresource {
        "status" => {
            let mut errors = input.metadata_update_errors();
            errors.extend(phase_error(input));
            errors
        }
        "finalize" => {
            let mut errors = input.metadata_update_errors();
            for (index, finalizer) in finalizers.iter().enumerate() {
                errors.extend(finalizer_errors(&path.index(index), finalizer));
            }
            errors
        }
        _ => {
            let mut errors = input.metadata_errors();
            errors.extend(finalizers.iter().flat_map(|finalizer| finalizer_errors(&path, finalizer)));
            errors.append(input.metadata_update_errors());
            errors
        }
    }
}

/// The phase must say whether the namespace is being deleted.
fn phase_error(input: &ValidationInput<'_>) -> Option<FieldError> {
    let phase = text(input.field("status"), "phase");
    let (expected, deletion) = match input.metadata().deletion_timestamp() {
        None => ("Active", "is empty"),
        Some(_) => ("Terminating", "is not empty"),
    };
    let why = || format!("may only be '{expected}' if `deletionTimestamp` {deletion}");
    (phase != expected).then(|| FieldError::invalid("status.Phase", phase, why()))
}

/// Errors of a finalizer (`validateFinalizerName`).
fn finalizer_errors(path: &FieldPath<'_>, finalizer: &str) -> Vec<FieldError> {
    let named = invalid_for(*path, finalizer, check_qualified_name(finalizer));
    named.chain(legacy_finalizer_error(path, finalizer)).collect()
}
