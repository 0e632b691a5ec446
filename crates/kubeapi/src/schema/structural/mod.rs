//! The rules of structural schemas (`NewStructural` and `ValidateStructural` in
//! `k8s.io/apiextensions-apiserver/pkg/apiserver/schema`).

mod completeness;
mod invariants;
mod nested;

use self::completeness::check_completeness;
use self::invariants::{SchemaLevel, check_invariants};
use super::PatternBudget;
use super::props::{JsonSchemaProps, SchemaOrBool};
use crate::field_error::{FieldErrors, FieldPath};

/// Why a schema has no structural form: it has a keyword that is not supported. None if it has one.
pub fn conversion_error(schema: &JsonSchemaProps) -> Option<&'static str> {
    if let Some(error) = unsupported_keyword(schema) {
        return Some(error);
    }
    let alternatives = schema.not.as_deref().into_iter();
    let alternatives = alternatives.chain(&schema.all_of).chain(&schema.any_of).chain(&schema.one_of);
    if let Some(error) = first_conversion_error(alternatives) {
        return Some(error);
    }
    if schema.preserve_unknown_fields == Some(false) {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined");
    }
    if schema.items.as_ref().is_some_and(|items| !items.json_schemas.is_empty()) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array");
    }
    let inner = items_schema(schema).into_iter().chain(schema.properties.values());
    first_conversion_error(inner.chain(schema.additional_properties.as_ref().and_then(value_schema)))
}

fn first_conversion_error<'s>(schemas: impl IntoIterator<Item = &'s JsonSchemaProps>) -> Option<&'static str> {
    schemas.into_iter().find_map(conversion_error)
}

fn unsupported_keyword(schema: &JsonSchemaProps) -> Option<&'static str> {
    let keywords = [
        (!schema.id.is_empty(), "OpenAPIV3Schema 'id' is not supported"),
        (!schema.schema.is_empty(), "OpenAPIV3Schema 'schema' is not supported"),
        (
            schema.reference.as_ref().is_some_and(|reference| !reference.is_empty()),
            "OpenAPIV3Schema '$ref' is not supported",
        ),
        (!schema.pattern_properties.is_empty(), "OpenAPIV3Schema 'patternProperties' is not supported"),
        (!schema.dependencies.is_empty(), "OpenAPIV3Schema 'dependencies' is not supported"),
        (schema.additional_items.is_some(), "OpenAPIV3Schema 'additionalItems' is not supported"),
        (!schema.definitions.is_empty(), "OpenAPIV3Schema 'definitions' is not supported"),
    ];
    keywords.into_iter().find(|(is_set, _)| *is_set).map(|(_, error)| error)
}

/// The errors of a schema that has a structural form, sorted by their texts. `path` is that of the schema, `patterns` what
/// the definition may still have.
pub fn validate_structural(
    schema: &JsonSchemaProps,
    path: &FieldPath<'_>,
    patterns: &mut PatternBudget,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    check_invariants(schema, SchemaLevel::Root, path, patterns, &mut errors);
    check_completeness(schema, path, &mut errors);
    errors.sort();
    errors
}

/// The schema of the items of a list.
fn items_schema(schema: &JsonSchemaProps) -> Option<&JsonSchemaProps> {
    schema.items.as_ref()?.schema.as_deref()
}

/// The schema of the values of a map.
fn value_schema(values: &SchemaOrBool) -> Option<&JsonSchemaProps> {
    values.schema.as_deref()
}

#[cfg(test)]
mod tests;
