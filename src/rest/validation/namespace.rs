//! Validation of Namespaces (`ValidateNamespace`, `ValidateNamespaceStatusUpdate`, `ValidateNamespaceFinalizeUpdate`).

use super::{ValidationInput, invalid_for, legacy_finalizer_error, text, texts};
use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::kubeapi::names::check_qualified_name;

/// Validates a Namespace, or a write of one of its subresources.
pub(super) fn validate_namespace(input: &ValidationInput<'_>, subresource: &str) -> Vec<FieldError> {
    let spec = FieldPath::root("spec");
    let path = spec.child("finalizers");
    let finalizers = texts(input.field("spec"), "finalizers");
    match subresource {
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
            errors.extend(input.metadata_update_errors());
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
