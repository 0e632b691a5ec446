//! Schemas of a CustomResourceDefinition: keywords that are not supported, and keywords that exclude each other
//! (`ValidateCustomResourceDefinitionOpenAPISchema`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::schema::props::{JsonSchemaProps, go_json};
use kubeapi::schema::structural::{conversion_error, validate_structural};

use super::defaults::default_errors;
use super::hoisted::CrdSchema;
use super::options::{CrdBudget, SCHEMA_TYPES, ValidationRules};
use super::rules::check_rule_fields;
use super::schema_lists::check_lists_and_maps;

/// Keywords that the root may have beside a subresource `status`, in Go's spelling: they apply to the status as well if
/// that is taken out.
const ROOT_KEYWORDS: [&str; 22] = [
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

/// The errors of a schema of all versions or of one. `path` is that of the object with the schema.
pub(super) fn schema_errors(
    schema: Option<CrdSchema<'_>>,
    has_status: bool,
    rules: &ValidationRules,
    requires_structural: bool,
    budget: &mut CrdBudget<'_>,
    path: &FieldPath<'_>,
) -> FieldErrors {
    let Some(CrdSchema { props: schema, written }) = schema else { return FieldErrors::new() };
    let path = path.child("openAPIV3Schema");
    let mut errors = FieldErrors::new();
    if has_status {
        errors.extend(root_keyword_error(schema, &path));
    }
    if schema.nullable {
        errors.push(FieldError::forbidden(path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut no_structural_form = None;
    if requires_structural {
        no_structural_form = conversion_error(schema);
        if no_structural_form.is_none() {
            let found = validate_structural(schema, &path, &mut budget.patterns);
            let is_structural = found.is_empty();
            errors.append(found);
            if is_structural {
                errors.append(default_errors(written, (rules.requires_pruned_defaults, budget.steps), &path));
            }
        }
    }
    let place = SchemaPlace { is_root: true, ..SchemaPlace::default() };
    check_schema(schema, place, rules, &path, &mut errors);
    match no_structural_form {
        // Other errors say the same.
        Some(why) if errors.is_empty() => FieldError::invalid(path, "", why).into(),
        _ => errors,
    }
}

/// The error of a keyword at the root that cannot be there beside a subresource `status`.
fn root_keyword_error(schema: &JsonSchemaProps, path: &FieldPath<'_>) -> Option<FieldError> {
    for (keyword, _) in schema.keywords().into_iter().filter(|(_, is_set)| *is_set) {
        if keyword == "Type" && schema.value_type != "object" {
            let why =
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            return Some(FieldError::invalid(path.child("type"), &schema.value_type, why));
        }
        if !ROOT_KEYWORDS.contains(&keyword) {
            let why = format!(
                "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
                ROOT_KEYWORDS.join(" ")
            );
            return Some(FieldError::invalid(path, go_json::bad_value(schema), why));
        }
    }
    None
}

/// Where a schema stands (`specStandardValidatorV3`).
#[derive(Clone, Copy, Debug, Default)]
struct SchemaPlace<'p> {
    is_root: bool,
    /// Inside of `apiVersion`, `kind` or `metadata` of a resource.
    is_in_metadata: bool,
    /// Why defaults may not be set.
    no_default: Option<NoDefault<'p>>,
}

/// Why a schema may not have a default.
#[derive(Clone, Copy, Debug)]
enum NoDefault<'p> {
    TopLevel(&'p str),
    MetadataValue,
}

fn check_schema(
    schema: &JsonSchemaProps,
    place: SchemaPlace<'_>,
    rules: &ValidationRules,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    check_keywords(schema, place, rules, path, errors);
    if schema.unique_items {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(path.child("uniqueItems"), why));
    }
    check_fields(schema, place, rules, path, errors);
    check_alternatives(schema, place, rules, path, errors);
    if schema.preserve_unknown_fields == Some(false) {
        let path = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(path, false, "must be true or undefined"));
    }
    check_lists_and_maps(schema, rules, path, errors);
    check_rule_fields(schema, path, errors);
}

/// Checks keywords that are not supported, or not here.
fn check_keywords(
    schema: &JsonSchemaProps,
    place: SchemaPlace<'_>,
    rules: &ValidationRules,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let value_type = &*schema.value_type;
    if rules.requires_valid_types && !value_type.is_empty() && !SCHEMA_TYPES.contains(&value_type) {
        errors.push(FieldError::not_supported(path.child("type"), value_type, &SCHEMA_TYPES));
    }
    if let Some(reason) = place.no_default.filter(|_| schema.default.is_some()) {
        let why = match reason {
            NoDefault::TopLevel(field) => format!("must not be set in top-level {field}"),
            NoDefault::MetadataValue => {
                "must not be set inside additionalProperties applying to object metadata".to_owned()
            }
        };
        errors.push(FieldError::forbidden(path.child("default"), why));
    }
    let has_item_list = schema.items.as_ref().is_some_and(|items| !items.json_schemas.is_empty());
    let unsupported = [
        ("id", !schema.id.is_empty(), "id is not supported"),
        ("additionalItems", schema.additional_items.is_some(), "additionalItems is not supported"),
        ("patternProperties", !schema.pattern_properties.is_empty(), "patternProperties is not supported"),
        ("definitions", !schema.definitions.is_empty(), "definitions is not supported"),
        ("dependencies", !schema.dependencies.is_empty(), "dependencies is not supported"),
        ("$ref", schema.reference.is_some(), "$ref is not supported"),
        ("type", value_type == "null", "type cannot be set to null, use nullable as an alternative"),
        ("items", has_item_list, "items must be a schema object and not an array"),
        (
            "x-kubernetes-embedded-resource",
            place.is_in_metadata && schema.embedded_resource,
            "must not be used inside of resource meta",
        ),
    ];
    for (keyword, _, why) in unsupported.into_iter().filter(|(_, is_set, _)| *is_set) {
        errors.push(FieldError::forbidden(path.child(keyword), why));
    }
}

/// Checks the schemas of fields and values of an object.
fn check_fields(
    schema: &JsonSchemaProps,
    place: SchemaPlace<'_>,
    rules: &ValidationRules,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if let Some(values) = &schema.additional_properties {
        let path = path.child("additionalProperties");
        if !schema.properties.is_empty() && (!values.allows || values.schema.is_some()) {
            let why = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(path, why));
        }
        if let Some(inner) = &values.schema {
            let no_default = if place.is_in_metadata { Some(NoDefault::MetadataValue) } else { place.no_default };
            let place = SchemaPlace { is_root: false, no_default, ..place };
            check_schema(inner, place, rules, &path, errors);
        }
    }
    let properties = path.child("properties");
    for (name, inner) in &schema.properties {
        let mut inner_place = SchemaPlace { is_root: false, ..place };
        let is_resource = place.is_root || schema.embedded_resource;
        if is_resource && matches!(&**name, "metadata" | "kind" | "apiVersion") {
            inner_place.is_in_metadata = true;
            if place.is_root {
                inner_place.no_default = Some(NoDefault::TopLevel(name));
            }
        }
        check_schema(inner, inner_place, rules, &properties.key(name), errors);
    }
}

/// Checks all other schemas in a schema.
fn check_alternatives(
    schema: &JsonSchemaProps,
    place: SchemaPlace<'_>,
    rules: &ValidationRules,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let place = SchemaPlace { is_root: false, ..place };
    if let Some(inner) = &schema.not {
        check_schema(inner, place, rules, &path.child("not"), errors);
    }
    for (keyword, all) in [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)] {
        let path = path.child(keyword);
        for (index, inner) in all.iter().enumerate() {
            check_schema(inner, place, rules, &path.index(index), errors);
        }
    }
    let definitions = path.child("definitions");
    for (name, inner) in &schema.definitions {
        check_schema(inner, place, rules, &definitions.key(name), errors);
    }
    if let Some(items) = &schema.items {
        let path = path.child("items");
        if let Some(inner) = &items.schema {
            check_schema(inner, place, rules, &path, errors);
        }
        for (index, inner) in items.json_schemas.iter().enumerate() {
            check_schema(inner, place, rules, &path.index(index), errors);
        }
    }
    let dependencies = path.child("dependencies");
    for (name, dependency) in &schema.dependencies {
        if let Some(inner) = &dependency.schema {
            check_schema(inner, place, rules, &dependencies.key(name), errors);
        }
    }
}
