//! Every field and item that an alternative names is also specified outside of it (`validateStructuralCompleteness`).

use super::items_schema;
use crate::field_error::{FieldError, FieldErrors, FieldPath};
use crate::schema::props::JsonSchemaProps;

/// Checks a root. Nodes below it are visited by way of alternatives.
pub(super) fn check_completeness(schema: &JsonSchemaProps, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_alternatives(schema, schema, path, path, errors);
}

/// Checks the alternatives of a node. `structural` and its path are what they are about.
fn check_alternatives(
    schema: &JsonSchemaProps,
    structural: &JsonSchemaProps,
    structural_path: &FieldPath<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if let Some(inner) = &schema.not {
        check_nested(inner, structural, structural_path, &path.child("not"), errors);
    }
    for (keyword, all) in [("allOf", &schema.all_of), ("anyOf", &schema.any_of), ("oneOf", &schema.one_of)] {
        let path = path.child(keyword);
        for (index, inner) in all.iter().enumerate() {
            check_nested(inner, structural, structural_path, &path.index(index), errors);
        }
    }
}

fn check_nested(
    schema: &JsonSchemaProps,
    structural: &JsonSchemaProps,
    structural_path: &FieldPath<'_>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    check_alternatives(schema, structural, structural_path, path, errors);
    let missing = |structural_path: &FieldPath<'_>, path: &FieldPath<'_>| {
        FieldError::required(structural_path, format!("because it is defined in {path}"))
    };
    if let Some(items) = items_schema(schema) {
        let (structural_path, path) = (structural_path.child("items"), path.child("items"));
        match items_schema(structural) {
            Some(structural) => check_nested(items, structural, &structural_path, &path, errors),
            None => errors.push(missing(&structural_path, &path)),
        }
    }
    let (structural_path, path) = (structural_path.child("properties"), path.child("properties"));
    for (name, inner) in &schema.properties {
        let (structural_path, path) = (structural_path.key(name), path.key(name));
        match structural.properties.get(name) {
            Some(structural) => check_nested(inner, structural, &structural_path, &path, errors),
            None => errors.push(missing(&structural_path, &path)),
        }
    }
}
