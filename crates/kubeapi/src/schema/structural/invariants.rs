//! What each node of a structural schema must be like (`validateStructuralInvariants`).

use super::nested::check_value_validation;
use super::{items_schema, value_schema};
use crate::field_error::{FieldError, FieldErrors, FieldPath};
use crate::schema::PatternBudget;
use crate::schema::props::JsonSchemaProps;

/// Where a node of a schema stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemaLevel {
    Root,
    Item,
    Field,
}

/// Checks a node and those below it.
pub(super) fn check_invariants(
    schema: &JsonSchemaProps,
    level: SchemaLevel,
    path: &FieldPath<'_>,
    patterns: &mut PatternBudget,
    errors: &mut FieldErrors,
) {
    let items = items_schema(schema);
    let items_path = path.child("items");
    if schema.value_type == "array" && items.is_none() {
        errors.push(FieldError::required(items_path, "must be specified"));
    }
    if let Some(items) = items {
        check_invariants(items, SchemaLevel::Item, &items_path, patterns, errors);
    }
    let properties = path.child("properties");
    for (name, inner) in &schema.properties {
        check_invariants(inner, SchemaLevel::Field, &properties.key(name), patterns, errors);
    }
    let additional_path = path.child("additionalProperties");
    if let Some(values) = &schema.additional_properties {
        if level == SchemaLevel::Root {
            errors.push(FieldError::forbidden(additional_path, "must not be used at the root"));
        }
        if let Some(inner) = value_schema(values) {
            check_invariants(inner, SchemaLevel::Field, &additional_path, patterns, errors);
        }
    }
    check_extensions(schema, path, errors);
    check_value_validation(schema, path, patterns, errors);
    check_type(schema, level, path, errors);
    if schema.embedded_resource && schema.additional_properties.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(additional_path, why));
    }
    check_type_meta(schema, level, &properties, errors);
    if schema.embedded_resource && !preserves_unknown_fields(schema) && schema.properties.is_empty() {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(properties, why));
    }
}

fn preserves_unknown_fields(schema: &JsonSchemaProps) -> bool {
    schema.preserve_unknown_fields == Some(true)
}

fn check_extensions(schema: &JsonSchemaProps, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let why = "must be false if x-kubernetes-int-or-string is true";
    if schema.int_or_string && preserves_unknown_fields(schema) {
        errors.push(FieldError::invalid(path.child("x-kubernetes-preserve-unknown-fields"), true, why));
    }
    if schema.int_or_string && schema.embedded_resource {
        errors.push(FieldError::invalid(path.child("x-kubernetes-embedded-resource"), true, why));
    }
}

fn check_type(schema: &JsonSchemaProps, level: SchemaLevel, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let (value_type, type_path) = (&*schema.value_type, path.child("type"));
    if schema.embedded_resource && value_type != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match value_type {
            "" => FieldError::required(type_path, why),
            found => FieldError::invalid(type_path, found, why),
        });
    } else if value_type.is_empty() && !schema.int_or_string && !preserves_unknown_fields(schema) {
        let why = match level {
            SchemaLevel::Root => "must not be empty at the root",
            SchemaLevel::Item => "must not be empty for specified array items",
            SchemaLevel::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(type_path, why));
    }
    if level == SchemaLevel::Root && !matches!(value_type, "" | "object") {
        errors.push(FieldError::invalid(type_path, value_type, "must be object at the root"));
    }
}

/// Checks `kind`, `apiVersion` and `metadata` of the root and of embedded resources. `path` is that of the properties.
fn check_type_meta(schema: &JsonSchemaProps, level: SchemaLevel, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let is_resource = level == SchemaLevel::Root || schema.embedded_resource;
    for name in ["kind", "apiVersion"] {
        if let Some(inner) = schema.properties.get(name).filter(|inner| is_resource && inner.value_type != "string") {
            let path = path.key(name);
            errors.push(FieldError::invalid(path.child("type"), &inner.value_type, "must be string"));
        }
    }
    let Some(metadata) = schema.properties.get("metadata") else { return };
    let path = path.key("metadata");
    if is_resource && metadata.value_type != "object" {
        errors.push(FieldError::invalid(path.child("type"), &metadata.value_type, "must be object"));
    }
    if level == SchemaLevel::Root && !is_name_restriction(metadata) {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(path, why));
    }
}

/// Whether a schema of metadata has only properties `name` and `generateName`.
fn is_name_restriction(metadata: &JsonSchemaProps) -> bool {
    let is_name = |name: &str| matches!(name, "name" | "generateName");
    if !metadata.properties.keys().all(|name| is_name(name)) {
        return false;
    }
    let rest = metadata.keywords().into_iter().filter(|(_, is_set)| *is_set);
    // A default is an error of its own.
    rest.map(|(name, _)| name).all(|name| matches!(name, "Type" | "Default" | "Properties" | "Ref"))
}
