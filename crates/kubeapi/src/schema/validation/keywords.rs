//! Keywords of texts, lists and objects (`pkg/validation/validate/values.go`).

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::budget::BYTES_PER_STEP;
use super::{ValidationResult, ValueValidation, field_of, in_body};
use crate::field_error::FieldError;
use crate::schema::path::ValuePath;

/// Checks the length and the pattern; the first error ends it.
pub(super) fn validate_text(
    rules: &ValueValidation,
    text: &str,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(limit) = rules.max_length.filter(|limit| length() > *limit) {
        result.add(FieldError::too_long(field_of(path), usize::try_from(limit).unwrap_or_default()));
    } else if let Some(least) = rules.min_length.filter(|least| length() < *least) {
        result.invalid(path, text, format_args!("should be at least {least} chars long"));
    } else if let Some(pattern) = &rules.pattern
        && result.budget.spend(pattern.match_steps(text))
        && !pattern.matches(text)
    {
        result.invalid(path, text, format_args!("should match '{}'", pattern.text()));
    }
}

/// Checks the length of a list, and that no item occurs twice.
pub(super) fn validate_items(
    rules: &ValueValidation,
    items: &[Value],
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(least) = rules.min_items.filter(|least| count < *least) {
        result.invalid(path, count, format_args!("should have at least {least} items"));
    }
    if let Some(limit) = rules.max_items.filter(|limit| count > *limit) {
        result.add(FieldError::too_many(field_of(path), items.len(), usize::try_from(limit).unwrap_or_default()));
    }
    let mut distinct = HashSet::new();
    let mut is_new = |item: &Value| {
        let text = item.to_string();
        result.budget.spend(text.len() / BYTES_PER_STEP) && distinct.insert(text)
    };
    // Not allowed in a definition; old ones may have it.
    if rules.has_unique_items && !items.iter().all(&mut is_new) {
        result.add(FieldError::invalid(field_of(path), "", in_body(path, "shouldn't contain duplicates")));
    }
}

/// Checks the number of fields.
pub(super) fn validate_field_count(
    rules: &ValueValidation,
    fields: &Map<String, Value>,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(least) = rules.min_properties.filter(|least| count < *least) {
        result.invalid(path, count, format_args!("should have at least {least} properties"));
    }
    if let Some(limit) = rules.max_properties.filter(|limit| count > *limit) {
        result.add(FieldError::too_many(field_of(path), fields.len(), usize::try_from(limit).unwrap_or_default()));
    }
}
