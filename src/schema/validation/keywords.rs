//! Keywords of schemas: numbers, texts, lists, objects, enumerations (`pkg/validation/validate/values.go`).

use serde_json::{Map, Number, Value};

use super::{ValidationResult, ValueValidation, error_of, in_body, shown};
use crate::kubeapi::field_error::{FieldError, FieldErrorKind};
use crate::kubeapi::json::format_go_number;

/// Checks the length and the pattern; the first error ends it.
pub(super) fn validate_text(rules: &ValueValidation, text: &str, path: &str, result: &mut ValidationResult) {
    let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let value = Value::from(text);
    if let Some(limit) = rules.max_length.filter(|limit| length() > *limit) {
        result.add(FieldError::too_long(path, usize::try_from(limit).unwrap_or_default()));
    } else if let Some(least) = rules.min_length.filter(|least| length() < *least) {
        result.invalid(path, &value, format_args!("should be at least {least} chars long"));
    } else if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
        result.invalid(path, &value, format_args!("should match '{}'", pattern.text()));
    }
}

/// Checks a number against its bounds.
pub(super) fn validate_number(rules: &ValueValidation, number: &Number, path: &str, result: &mut ValidationResult) {
    let (value, Some(float)) = (Value::Number(number.clone()), number.as_f64()) else { return };
    if let Some(factor) = rules.multiple_of {
        let quotient = float / factor;
        if quotient.fract() != 0.0 || !quotient.is_finite() {
            result.invalid(path, &value, format_args!("should be a multiple of {}", go_float(factor)));
        }
    }
    if let Some(bound) = rules.maximum {
        let is_exclusive = rules.is_maximum_exclusive;
        if float > bound || is_exclusive && float == bound {
            let words = if is_exclusive { "less than" } else { "less than or equal to" };
            result.invalid(path, &value, format_args!("should be {words} {}", go_float(bound)));
        }
    }
    if let Some(bound) = rules.minimum {
        let is_exclusive = rules.is_minimum_exclusive;
        if float < bound || is_exclusive && float == bound {
            let words = if is_exclusive { "greater than" } else { "greater than or equal to" };
            result.invalid(path, &value, format_args!("should be {words} {}", go_float(bound)));
        }
    }
}

/// A number as Go's `%v` prints a float.
fn go_float(number: f64) -> String {
    format_go_number(&Value::from(number))
}

/// Checks the length of a list, and that no item occurs twice.
pub(super) fn validate_items(rules: &ValueValidation, items: &[Value], path: &str, result: &mut ValidationResult) {
    let (count, value) = (i64::try_from(items.len()).unwrap_or(i64::MAX), || Value::from(items.len()));
    if let Some(least) = rules.min_items.filter(|least| count < *least) {
        result.invalid(path, &value(), format_args!("should have at least {least} items"));
    }
    if let Some(limit) = rules.max_items.filter(|limit| count > *limit) {
        result.add(FieldError::too_many(path, items.len(), usize::try_from(limit).unwrap_or_default()));
    }
    let has_twins = || items.iter().enumerate().any(|(at, item)| items[..at].contains(item));
    // Not allowed in a definition; old ones may have it. The comparison is bounded.
    if rules.has_unique_items && items.len() <= 1024 && has_twins() {
        result.add(FieldError::invalid(path, "", in_body(path, "shouldn't contain duplicates")));
    }
}

/// Checks the number of fields. Returns false if the object is not examined further.
pub(super) fn validate_field_count(
    rules: &ValueValidation,
    fields: &Map<String, Value>,
    path: &str,
    result: &mut ValidationResult,
) -> bool {
    let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(least) = rules.min_properties.filter(|least| count < *least) {
        result.invalid(path, &Value::from(fields.len()), format_args!("should have at least {least} properties"));
        return false;
    }
    if let Some(limit) = rules.max_properties.filter(|limit| count > *limit) {
        result.add(FieldError::too_many(path, fields.len(), usize::try_from(limit).unwrap_or_default()));
        return false;
    }
    true
}

/// Checks that the value is one of those that are allowed.
pub(super) fn validate_enumeration(rules: &ValueValidation, value: &Value, path: &str, result: &mut ValidationResult) {
    let equals = |allowed: &Value| match (allowed, value) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    };
    if rules.enumeration.is_empty() || rules.enumeration.iter().any(equals) {
        return;
    }
    let quoted: Vec<String> = rules.enumeration.iter().map(|allowed| format!("{:?}", shown(allowed))).collect();
    let detail = format!("supported values: {}", quoted.join(", "));
    result.add(error_of(FieldErrorKind::NotSupported, path, value, detail));
}
