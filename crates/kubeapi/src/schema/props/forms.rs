//! Keywords that are a schema or something else (`JSONSchemaPropsOrArray`, `JSONSchemaPropsOrBool`,
//! `JSONSchemaPropsOrStringArray`).

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{JsonSchemaProps, go_json};

/// A schema, or a list of schemas.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaOrArray {
    /// The schema.
    pub schema: Option<Box<JsonSchemaProps>>,
    /// The list.
    #[serde(rename = "JSONSchemas", serialize_with = "go_json::list")]
    pub json_schemas: Vec<JsonSchemaProps>,
}

/// A schema, or whether anything is allowed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaOrBool {
    /// Whether anything is allowed; true beside a schema.
    pub allows: bool,
    /// The schema.
    pub schema: Option<Box<JsonSchemaProps>>,
}

/// A schema, or a list of names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaOrStrings {
    /// The schema.
    pub schema: Option<Box<JsonSchemaProps>>,
    /// The names.
    #[serde(serialize_with = "go_json::list")]
    pub property: Vec<String>,
}

/// What stands for one of these keywords.
enum KeywordValue {
    Schema(Box<JsonSchemaProps>),
    Items(Vec<Value>),
    Bool(bool),
}

impl<'de> Deserialize<'de> for KeywordValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeywordValue, D::Error> {
        deserializer.deserialize_any(KeywordVisitor)
    }
}

struct KeywordVisitor;

impl<'de> Visitor<'de> for KeywordVisitor {
    type Value = KeywordValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a schema, a list or a boolean")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeywordValue, A::Error> {
        Ok(KeywordValue::Schema(Box::deserialize(MapAccessDeserializer::new(map))?))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<KeywordValue, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(KeywordValue::Items(values))
    }

    fn visit_bool<E>(self, value: bool) -> Result<KeywordValue, E> {
        Ok(KeywordValue::Bool(value))
    }
}

/// Reads the items of a list.
fn read_items<T: for<'t> Deserialize<'t>, E: serde::de::Error>(items: Vec<Value>) -> Result<Vec<T>, E> {
    items.into_iter().map(|item| serde_json::from_value(item).map_err(E::custom)).collect()
}

impl<'de> Deserialize<'de> for SchemaOrArray {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SchemaOrArray, D::Error> {
        Ok(match KeywordValue::deserialize(deserializer)? {
            KeywordValue::Schema(schema) => SchemaOrArray { schema: Some(schema), json_schemas: Vec::new() },
            KeywordValue::Items(items) => SchemaOrArray { schema: None, json_schemas: read_items(items)? },
            KeywordValue::Bool(_) => SchemaOrArray::default(),
        })
    }
}

impl<'de> Deserialize<'de> for SchemaOrBool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SchemaOrBool, D::Error> {
        match KeywordValue::deserialize(deserializer)? {
            KeywordValue::Schema(schema) => Ok(SchemaOrBool { allows: true, schema: Some(schema) }),
            KeywordValue::Bool(allows) => Ok(SchemaOrBool { allows, schema: None }),
            KeywordValue::Items(_) => Err(D::Error::custom("boolean or JSON schema expected")),
        }
    }
}

impl<'de> Deserialize<'de> for SchemaOrStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SchemaOrStrings, D::Error> {
        // Kubernetes stores null where neither a schema nor names are given.
        Ok(match Option::<KeywordValue>::deserialize(deserializer)? {
            Some(KeywordValue::Schema(schema)) => SchemaOrStrings { schema: Some(schema), property: Vec::new() },
            Some(KeywordValue::Items(items)) => SchemaOrStrings { schema: None, property: read_items(items)? },
            Some(KeywordValue::Bool(_)) | None => SchemaOrStrings::default(),
        })
    }
}
