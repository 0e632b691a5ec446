//! PriorityClasses (`pkg/registry/scheduling/priorityclass/strategy.go`, `pkg/apis/scheduling/validation/validation.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::cells::{CellPrinter, integer, text_at};
use super::field_rules::{immutable_error, typed_text};
use super::validation::{METADATA, ValidationInput};
use super::{GenerationRule, KindRules};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule { begins: true, ..GenerationRule::NONE },
    validate: validate_class,
    cells: print_class,
    ..KindRules::of("scheduling.k8s.io", "priorityclasses")
};

const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
/// The classes of the system with their values.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// Validates a PriorityClass. Nothing but descriptions and whether it is the default may change.
fn validate_class(input: &ValidationInput<'_>) -> FieldErrors {
    const POLICIES: [&str; 2] = ["PreemptLowerPriority", "Never"];
    const POLICY: FieldPath<'static> = FieldPath::root("preemptionPolicy");
    let value = input.field("value").as_i64().unwrap_or_default();
    let policy = input.field("preemptionPolicy");
    if input.old.is_some() {
        let mut errors = input.metadata_update_errors();
        if input.field("value") != input.old_field("value") {
            errors.push(FieldError::forbidden("value", "may not be changed in an update."));
        }
        errors.extend(immutable_error(POLICY, policy, input.old_field("preemptionPolicy")));
        return errors;
    }
    let mut errors = input.metadata_errors();
    let name = input.metadata().name();
    if name.starts_with("system-") {
        let is_default = *input.field("globalDefault") == Value::Bool(true);
        errors.extend(system_class_error(name, value, is_default));
    } else if value > HIGHEST_USER_PRIORITY {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.push(FieldError::forbidden("value", why));
    }
    match policy.as_str() {
        Some("") => errors.push(FieldError::required(POLICY, "")),
        Some(other) if !POLICIES.contains(&other) => {
            errors.push(FieldError::not_supported(POLICY, typed_text(other), &POLICIES));
        }
        _ => {}
    }
    errors
}

fn system_class_error(name: &str, value: i64, is_default: bool) -> Option<FieldError> {
    let why = match SYSTEM_CLASSES.iter().find(|(class, _)| *class == name) {
        None => format!("{name} is not a known system priority class"),
        Some((_, expected)) if *expected != value => format!("value of {name} PriorityClass must be {expected}"),
        Some(_) if is_default => format!("globalDefault of {name} PriorityClass must be false"),
        Some(_) => return None,
    };
    let why = format!("priority class names with 'system-' prefix are reserved for system use only. error: {why}");
    Some(FieldError::forbidden(METADATA.child("name"), why))
}

fn print_class(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    vec![
        printer.name(),
        integer(object, "value").into(),
        (object["globalDefault"] == true).into(),
        printer.age(),
        text_at(object, "/preemptionPolicy").into(),
    ]
}
