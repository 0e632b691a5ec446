//! Schemas as they stand in a CustomResourceDefinition, with all their keywords (`JSONSchemaProps` in
//! `k8s.io/apiextensions-apiserver/pkg/apis/apiextensions`). Serialized, they look as Go prints them in errors.

mod forms;
pub mod go_json;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::forms::{SchemaOrArray, SchemaOrBool, SchemaOrStrings};

/// A schema with all its keywords, also those that a structural schema cannot have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct JsonSchemaProps {
    /// The keyword `id`.
    #[serde(rename(deserialize = "id", serialize = "ID"))]
    pub id: String,
    /// The keyword `$schema`.
    #[serde(rename(deserialize = "$schema", serialize = "Schema"))]
    pub schema: String,
    /// The keyword `$ref`.
    #[serde(rename(deserialize = "$ref", serialize = "Ref"))]
    pub reference: Option<String>,
    /// The keyword `description`.
    #[serde(rename(deserialize = "description", serialize = "Description"))]
    pub description: String,
    /// The keyword `type`.
    #[serde(rename(deserialize = "type", serialize = "Type"))]
    pub value_type: String,
    /// The keyword `nullable`.
    #[serde(rename(deserialize = "nullable", serialize = "Nullable"))]
    pub nullable: bool,
    /// The keyword `format`.
    #[serde(rename(deserialize = "format", serialize = "Format"))]
    pub format: String,
    /// The keyword `title`.
    #[serde(rename(deserialize = "title", serialize = "Title"))]
    pub title: String,
    /// The keyword `default`.
    #[serde(rename(deserialize = "default", serialize = "Default"), serialize_with = "go_json::value")]
    pub default: Option<Value>,
    /// The keyword `maximum`.
    #[serde(rename(deserialize = "maximum", serialize = "Maximum"), serialize_with = "go_json::float")]
    pub maximum: Option<f64>,
    /// The keyword `exclusiveMaximum`.
    #[serde(rename(deserialize = "exclusiveMaximum", serialize = "ExclusiveMaximum"))]
    pub exclusive_maximum: bool,
    /// The keyword `minimum`.
    #[serde(rename(deserialize = "minimum", serialize = "Minimum"), serialize_with = "go_json::float")]
    pub minimum: Option<f64>,
    /// The keyword `exclusiveMinimum`.
    #[serde(rename(deserialize = "exclusiveMinimum", serialize = "ExclusiveMinimum"))]
    pub exclusive_minimum: bool,
    /// The keyword `maxLength`.
    #[serde(rename(deserialize = "maxLength", serialize = "MaxLength"))]
    pub max_length: Option<i64>,
    /// The keyword `minLength`.
    #[serde(rename(deserialize = "minLength", serialize = "MinLength"))]
    pub min_length: Option<i64>,
    /// The keyword `pattern`.
    #[serde(rename(deserialize = "pattern", serialize = "Pattern"))]
    pub pattern: String,
    /// The keyword `maxItems`.
    #[serde(rename(deserialize = "maxItems", serialize = "MaxItems"))]
    pub max_items: Option<i64>,
    /// The keyword `minItems`.
    #[serde(rename(deserialize = "minItems", serialize = "MinItems"))]
    pub min_items: Option<i64>,
    /// The keyword `uniqueItems`.
    #[serde(rename(deserialize = "uniqueItems", serialize = "UniqueItems"))]
    pub unique_items: bool,
    /// The keyword `multipleOf`.
    #[serde(rename(deserialize = "multipleOf", serialize = "MultipleOf"), serialize_with = "go_json::float")]
    pub multiple_of: Option<f64>,
    /// The keyword `enum`.
    #[serde(rename(deserialize = "enum", serialize = "Enum"), serialize_with = "go_json::values")]
    pub enumeration: Vec<Value>,
    /// The keyword `maxProperties`.
    #[serde(rename(deserialize = "maxProperties", serialize = "MaxProperties"))]
    pub max_properties: Option<i64>,
    /// The keyword `minProperties`.
    #[serde(rename(deserialize = "minProperties", serialize = "MinProperties"))]
    pub min_properties: Option<i64>,
    /// The keyword `required`.
    #[serde(rename(deserialize = "required", serialize = "Required"), serialize_with = "go_json::list")]
    pub required: Vec<String>,
    /// The keyword `items`.
    #[serde(rename(deserialize = "items", serialize = "Items"))]
    pub items: Option<SchemaOrArray>,
    /// The keyword `allOf`.
    #[serde(rename(deserialize = "allOf", serialize = "AllOf"), serialize_with = "go_json::list")]
    pub all_of: Vec<JsonSchemaProps>,
    /// The keyword `oneOf`.
    #[serde(rename(deserialize = "oneOf", serialize = "OneOf"), serialize_with = "go_json::list")]
    pub one_of: Vec<JsonSchemaProps>,
    /// The keyword `anyOf`.
    #[serde(rename(deserialize = "anyOf", serialize = "AnyOf"), serialize_with = "go_json::list")]
    pub any_of: Vec<JsonSchemaProps>,
    /// The keyword `not`.
    #[serde(rename(deserialize = "not", serialize = "Not"))]
    pub not: Option<Box<JsonSchemaProps>>,
    /// The keyword `properties`.
    #[serde(rename(deserialize = "properties", serialize = "Properties"), serialize_with = "go_json::map")]
    pub properties: BTreeMap<String, JsonSchemaProps>,
    /// The keyword `additionalProperties`.
    #[serde(rename(deserialize = "additionalProperties", serialize = "AdditionalProperties"))]
    pub additional_properties: Option<SchemaOrBool>,
    /// The keyword `patternProperties`.
    #[serde(
        rename(deserialize = "patternProperties", serialize = "PatternProperties"),
        serialize_with = "go_json::map"
    )]
    pub pattern_properties: BTreeMap<String, JsonSchemaProps>,
    /// The keyword `dependencies`.
    #[serde(rename(deserialize = "dependencies", serialize = "Dependencies"), serialize_with = "go_json::map")]
    pub dependencies: BTreeMap<String, SchemaOrStrings>,
    /// The keyword `additionalItems`.
    #[serde(rename(deserialize = "additionalItems", serialize = "AdditionalItems"))]
    pub additional_items: Option<SchemaOrBool>,
    /// The keyword `definitions`.
    #[serde(rename(deserialize = "definitions", serialize = "Definitions"), serialize_with = "go_json::map")]
    pub definitions: BTreeMap<String, JsonSchemaProps>,
    /// The keyword `externalDocs`.
    #[serde(rename(deserialize = "externalDocs", serialize = "ExternalDocs"))]
    pub external_docs: Option<ExternalDocumentation>,
    /// The keyword `example`.
    #[serde(rename(deserialize = "example", serialize = "Example"), serialize_with = "go_json::value")]
    pub example: Option<Value>,
    /// The keyword `x-kubernetes-preserve-unknown-fields`.
    #[serde(rename(deserialize = "x-kubernetes-preserve-unknown-fields", serialize = "XPreserveUnknownFields"))]
    pub preserve_unknown_fields: Option<bool>,
    /// The keyword `x-kubernetes-embedded-resource`.
    #[serde(rename(deserialize = "x-kubernetes-embedded-resource", serialize = "XEmbeddedResource"))]
    pub embedded_resource: bool,
    /// The keyword `x-kubernetes-int-or-string`.
    #[serde(rename(deserialize = "x-kubernetes-int-or-string", serialize = "XIntOrString"))]
    pub int_or_string: bool,
    /// The keyword `x-kubernetes-list-map-keys`.
    #[serde(
        rename(deserialize = "x-kubernetes-list-map-keys", serialize = "XListMapKeys"),
        serialize_with = "go_json::list"
    )]
    pub list_map_keys: Vec<String>,
    /// The keyword `x-kubernetes-list-type`.
    #[serde(rename(deserialize = "x-kubernetes-list-type", serialize = "XListType"))]
    pub list_type: Option<String>,
    /// The keyword `x-kubernetes-map-type`.
    #[serde(rename(deserialize = "x-kubernetes-map-type", serialize = "XMapType"))]
    pub map_type: Option<String>,
    /// The keyword `x-kubernetes-validations`.
    #[serde(
        rename(deserialize = "x-kubernetes-validations", serialize = "XValidations"),
        serialize_with = "go_json::list"
    )]
    pub validations: Vec<ValidationRule>,
}

/// The keyword `externalDocs`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct ExternalDocumentation {
    /// Description of the document.
    #[serde(rename(serialize = "Description"))]
    pub description: String,
    /// Address of the document.
    #[serde(rename(serialize = "URL"))]
    pub url: String,
}

/// A rule in CEL: an item of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all(deserialize = "camelCase", serialize = "PascalCase"))]
pub struct ValidationRule {
    /// The expression.
    pub rule: String,
    /// Message of the error.
    pub message: String,
    /// Expression of the message of the error.
    pub message_expression: String,
    /// Reason of the error.
    pub reason: Option<String>,
    /// Path of the field that the error is about.
    pub field_path: String,
    /// Whether the rule is evaluated without an old value, too.
    pub optional_old_self: Option<bool>,
}

impl JsonSchemaProps {
    /// Whether a predicate holds for the schema or for one in it (`SchemaHas`). Rules, defaults and types are looked for
    /// also where a structural schema may not have them.
    pub fn any(&self, predicate: &mut dyn FnMut(&JsonSchemaProps) -> bool) -> bool {
        let items = self.items.iter().flat_map(|items| items.schema.as_deref().into_iter().chain(&items.json_schemas));
        predicate(self)
            || items
                .chain(&self.all_of)
                .chain(&self.any_of)
                .chain(&self.one_of)
                .chain(self.not.as_deref())
                .chain(self.properties.values())
                .chain(self.additional_properties.as_ref().and_then(|values| values.schema.as_deref()))
                .chain(self.pattern_properties.values())
                .chain(self.additional_items.as_ref().and_then(|values| values.schema.as_deref()))
                .chain(self.definitions.values())
                .chain(self.dependencies.values().filter_map(|dependency| dependency.schema.as_deref()))
                .any(|schema| schema.any(predicate))
    }

    /// The keywords in Go's order and spelling, each with whether it is set.
    pub fn keywords(&self) -> [(&'static str, bool); 44] {
        [
            ("ID", !self.id.is_empty()),
            ("Schema", !self.schema.is_empty()),
            ("Ref", self.reference.is_some()),
            ("Description", !self.description.is_empty()),
            ("Type", !self.value_type.is_empty()),
            ("Nullable", self.nullable),
            ("Format", !self.format.is_empty()),
            ("Title", !self.title.is_empty()),
            ("Default", self.default.is_some()),
            ("Maximum", self.maximum.is_some()),
            ("ExclusiveMaximum", self.exclusive_maximum),
            ("Minimum", self.minimum.is_some()),
            ("ExclusiveMinimum", self.exclusive_minimum),
            ("MaxLength", self.max_length.is_some()),
            ("MinLength", self.min_length.is_some()),
            ("Pattern", !self.pattern.is_empty()),
            ("MaxItems", self.max_items.is_some()),
            ("MinItems", self.min_items.is_some()),
            ("UniqueItems", self.unique_items),
            ("MultipleOf", self.multiple_of.is_some()),
            ("Enum", !self.enumeration.is_empty()),
            ("MaxProperties", self.max_properties.is_some()),
            ("MinProperties", self.min_properties.is_some()),
            ("Required", !self.required.is_empty()),
            ("Items", self.items.is_some()),
            ("AllOf", !self.all_of.is_empty()),
            ("OneOf", !self.one_of.is_empty()),
            ("AnyOf", !self.any_of.is_empty()),
            ("Not", self.not.is_some()),
            ("Properties", !self.properties.is_empty()),
            ("AdditionalProperties", self.additional_properties.is_some()),
            ("PatternProperties", !self.pattern_properties.is_empty()),
            ("Dependencies", !self.dependencies.is_empty()),
            ("AdditionalItems", self.additional_items.is_some()),
            ("Definitions", !self.definitions.is_empty()),
            ("ExternalDocs", self.external_docs.is_some()),
            ("Example", self.example.is_some()),
            ("XPreserveUnknownFields", self.preserve_unknown_fields.is_some()),
            ("XEmbeddedResource", self.embedded_resource),
            ("XIntOrString", self.int_or_string),
            ("XListMapKeys", !self.list_map_keys.is_empty()),
            ("XListType", self.list_type.is_some()),
            ("XMapType", self.map_type.is_some()),
            ("XValidations", !self.validations.is_empty()),
        ]
    }
}

#[cfg(test)]
mod tests;
