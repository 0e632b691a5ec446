//! Leases (`pkg/registry/coordination/lease/strategy.go`, `pkg/apis/coordination/validation/validation.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::NameRule;
use kubeapi::object_meta::validate_object_meta;
use serde_json::Value;

use super::cells::text_at;
use super::validation::{METADATA, ValidationInput};
use super::{KindRules, Object};

pub(super) static RULES: KindRules = KindRules {
    creates_on_update: true,
    allows_unconditional_update: false,
    prepare_new: |_, object| drop_coordinated_election(object),
    prepare_replacement: |_, object| drop_coordinated_election(object),
    validate: validate_lease,
    cells: |printer| vec![printer.name(), text_at(printer.object, "/spec/holderIdentity").into(), printer.age()],
    ..KindRules::of("coordination.k8s.io", "leases")
};

/// Drops the fields of coordinated leader election, a feature that is disabled by default.
fn drop_coordinated_election(object: &mut Object) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("strategy");
        spec.remove("preferredHolder");
    }
}

/// Validates a Lease. Unlike for other kinds, finalizers need no domain.
fn validate_lease(input: &ValidationInput<'_>) -> FieldErrors {
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
