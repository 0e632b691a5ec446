//! Keywords of texts, lists, objects, and enumerations (`pkg/validation/validate/values.go`).

use serde_json::{Map, Value};

use super::number::GoNumber;
use super::{ValidationResult, ValueValidation, field_of, in_body};
use crate::kubeapi::field_error::FieldError;
use crate::kubeapi::json::write_json;
use crate::schema::path::ValuePath;

/// Checks the length and the pattern; the first error ends it.
pub(super) fn validate_text(
    rules: &ValueValidation,
    text: &str,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult,
) {
    let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(limit) = rules.max_length.filter(|limit| length() > *limit) {
        result.add(FieldError::too_long(field_of(path), usize::try_from(limit).unwrap_or_default()));
    } else if let Some(least) = rules.min_length.filter(|least| length() < *least) {
        result.invalid(path, text, format_args!("should be at least {least} chars long"));
    } else if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
        result.invalid(path, text, format_args!("should match '{}'", pattern.text()));
    }
}

/// Checks the length of a list, and that no item occurs twice.
pub(super) fn validate_items(
    rules: &ValueValidation,
    items: &[Value],
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult,
) {
    let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(least) = rules.min_items.filter(|least| count < *least) {
        result.invalid(path, count, format_args!("should have at least {least} items"));
    }
    if let Some(limit) = rules.max_items.filter(|limit| count > *limit) {
        result.add(FieldError::too_many(field_of(path), items.len(), usize::try_from(limit).unwrap_or_default()));
    }
    let has_twins = || items.iter().enumerate().any(|(at, item)| items[..at].contains(item));
    // Not allowed in a definition; old ones may have it. The comparison is bounded.
    if rules.has_unique_items && items.len() <= 1024 && has_twins() {
        result.add(FieldError::invalid(field_of(path), "", in_body(path, "shouldn't contain duplicates")));
    }
}

/// Checks the number of fields.
pub(super) fn validate_field_count(
    rules: &ValueValidation,
    fields: &Map<String, Value>,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult,
) {
    let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(least) = rules.min_properties.filter(|least| count < *least) {
        result.invalid(path, count, format_args!("should have at least {least} properties"));
    }
    if let Some(limit) = rules.max_properties.filter(|limit| count > *limit) {
        result.add(FieldError::too_many(field_of(path), fields.len(), usize::try_from(limit).unwrap_or_default()));
    }
}

/// Checks that the value is one of those that are allowed. Null never is.
pub(super) fn validate_enumeration(
    rules: &ValueValidation,
    value: &Value,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult,
) {
    if rules.enumeration.is_empty() || rules.enumeration.iter().any(|allowed| is_allowed(value, allowed)) {
        return;
    }
    let texts: Vec<String> = rules.enumeration.iter().map(enumeration_text).collect();
    let supported: Vec<&str> = texts.iter().map(String::as_str).collect();
    result.add(FieldError::not_supported(field_of(path), value, &supported));
}

fn enumeration_text(value: &Value) -> String {
    value.as_str().map_or_else(|| write_json(value), str::to_owned)
}

/// Whether a value, converted as by Go to the type of an allowed one, equals it: a float is cut off, an integer is a
/// character.
fn is_allowed(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Null, _) => false,
        (Value::Number(value), Value::Number(allowed)) => match (GoNumber::of(value), GoNumber::of(allowed)) {
            #[allow(clippy::cast_possible_truncation)]
            (GoNumber::Float(value), GoNumber::Integer(allowed)) => value as i64 == allowed,
            (value, GoNumber::Float(allowed)) => value.as_float() == allowed,
            (value, allowed) => value == allowed,
        },
        (Value::Number(value), Value::String(allowed)) => match GoNumber::of(value) {
            GoNumber::Integer(code) => {
                let character =
                    u32::try_from(code).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
                allowed.chars().eq([character])
            }
            GoNumber::Float(_) => false,
        },
        (value, allowed) => value == allowed,
    }
}
