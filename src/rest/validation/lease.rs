//! Validation of Leases (`pkg/apis/coordination/validation/validation.go`).

use serde_json::Value;

use super::{METADATA, ValidationInput};
use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::kubeapi::names::NameRule;
use crate::kubeapi::object_meta::validate_object_meta;

/// Validates a Lease. Unlike for other kinds, finalizers need no domain.
pub(super) fn validate_lease(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let mut errors = match input.old {
        None => validate_object_meta(input.metadata(), true, NameRule::DnsSubdomain, &METADATA),
        Some(_) => input.metadata_change_errors(),
    };
    let path = FieldPath::root("spec");
    let rules = [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ];
    for (field, least, why) in rules {
        let number = input.field("spec").get(field).and_then(Value::as_i64);
        if let Some(number) = number.filter(|number| *number < least) {
            errors.push(FieldError::invalid(path.child(field), number, why));
        }
    }
    errors
}
