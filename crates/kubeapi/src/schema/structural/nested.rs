//! What may stand inside of `allOf`, `anyOf`, `oneOf` and `not` (`validateValueValidation`).

use super::{items_schema, value_schema};
use crate::field_error::{FieldError, FieldErrors, FieldPath};
use crate::schema::PatternBudget;
use crate::schema::props::JsonSchemaProps;

/// Checks what a node demands of values. `anyOf` may name the types of an int-or-string, in the node itself or in the
/// first of `allOf`.
pub(super) fn check_value_validation(
    schema: &JsonSchemaProps,
    path: &FieldPath<'_>,
    patterns: &mut PatternBudget,
    errors: &mut FieldErrors,
) {
    let skips_any_of = is_int_or_string(&schema.any_of);
    let skips_in_all_of = schema.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of));
    check_alternatives(schema, (skips_any_of, skips_in_all_of), path, patterns, errors);
}

/// Whether alternatives are exactly the two types of an int-or-string.
fn is_int_or_string(alternatives: &[JsonSchemaProps]) -> bool {
    let is_type = |schema: &JsonSchemaProps, value_type: &str| {
        schema.value_type == value_type && schema.keywords().into_iter().all(|(name, is_set)| !is_set || name == "Type")
    };
    matches!(alternatives, [first, second] if is_type(first, "integer") && is_type(second, "string"))
}

fn check_alternatives(
    schema: &JsonSchemaProps,
    (skips_any_of, skips_in_all_of): (bool, bool),
    path: &FieldPath<'_>,
    patterns: &mut PatternBudget,
    errors: &mut FieldErrors,
) {
    if !skips_any_of {
        let path = path.child("anyOf");
        for (index, inner) in schema.any_of.iter().enumerate() {
            check_nested(inner, false, &path.index(index), patterns, errors);
        }
    }
    let all_of = path.child("allOf");
    for (index, inner) in schema.all_of.iter().enumerate() {
        check_nested(inner, skips_in_all_of && index == 0, &all_of.index(index), patterns, errors);
    }
    let one_of = path.child("oneOf");
    for (index, inner) in schema.one_of.iter().enumerate() {
        check_nested(inner, false, &one_of.index(index), patterns, errors);
    }
    if let Some(inner) = &schema.not {
        check_nested(inner, false, &path.child("not"), patterns, errors);
    }
    if !schema.pattern.is_empty()
        && let Some(error) = patterns.error(&schema.pattern)
    {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(path.child("pattern"), &schema.pattern, why));
    }
}

/// Checks a node inside of an alternative, and those below it.
fn check_nested(
    schema: &JsonSchemaProps,
    skips_any_of: bool,
    path: &FieldPath<'_>,
    patterns: &mut PatternBudget,
    errors: &mut FieldErrors,
) {
    check_alternatives(schema, (skips_any_of, false), path, patterns, errors);
    if let Some(items) = items_schema(schema) {
        check_nested(items, false, &path.child("items"), patterns, errors);
    }
    let properties = path.child("properties");
    for (name, inner) in &schema.properties {
        check_nested(inner, false, &properties.key(name), patterns, errors);
    }
    const EMPTY: &str = "must be empty to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FALSE: &str = "must be false to be structural";
    let has_values =
        schema.additional_properties.as_ref().is_some_and(|values| values.allows || value_schema(values).is_some());
    let keywords = [
        ("type", !schema.value_type.is_empty(), EMPTY),
        ("additionalProperties", has_values, UNDEFINED),
        ("default", schema.default.is_some(), UNDEFINED),
        ("title", !schema.title.is_empty(), EMPTY),
        ("description", !schema.description.is_empty(), EMPTY),
        ("nullable", schema.nullable, FALSE),
        ("x-kubernetes-preserve-unknown-fields", schema.preserve_unknown_fields == Some(true), FALSE),
        ("x-kubernetes-embedded-resource", schema.embedded_resource, FALSE),
        ("x-kubernetes-int-or-string", schema.int_or_string, FALSE),
        ("x-kubernetes-list-map-keys", !schema.list_map_keys.is_empty(), EMPTY),
        ("x-kubernetes-list-type", schema.list_type.is_some(), UNDEFINED),
        ("x-kubernetes-map-type", schema.map_type.is_some(), UNDEFINED),
        ("x-kubernetes-validations", !schema.validations.is_empty(), EMPTY),
    ];
    for (keyword, _, why) in keywords.into_iter().filter(|(_, is_set, _)| *is_set) {
        errors.push(FieldError::forbidden(path.child(keyword), why));
    }
    if schema.properties.contains_key("metadata") {
        errors.push(FieldError::forbidden(properties.key("metadata"), "must not be specified in a nested context"));
    }
}
