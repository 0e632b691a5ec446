//! Reads `JSONSchemaProps` of a CustomResourceDefinition (`NewStructural` in
//! `k8s.io/apiextensions-apiserver/pkg/apiserver/schema`).

use std::sync::Arc;

use serde_json::{Map, Value};

use super::validation::{Pattern, ValueValidation};
use super::{AdditionalProperties, ListType, MapType, Schema, ValueType};

/// Maximum depth of a schema. A stored object has at most 128 levels, of which a property takes two.
const MAX_DEPTH: usize = 64;

impl Schema {
    /// Reads a schema as it stands in a CustomResourceDefinition. Keywords of the wrong type are as if absent; the
    /// definition was decoded and validated before.
    ///
    /// # Errors
    /// The value is no object, or nested too deep.
    pub fn read(json: &Value) -> Result<Schema, SchemaReadError> {
        read_schema(json, MAX_DEPTH)
    }
}

/// Why a schema cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaReadError {
    /// The value is no object.
    NoObject,
    /// The schema is nested too deep.
    TooDeep,
}

impl std::fmt::Display for SchemaReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SchemaReadError::NoObject => f.write_str("a schema must be an object"),
            SchemaReadError::TooDeep => write!(f, "schemas may be nested at most {MAX_DEPTH} levels deep"),
        }
    }
}

impl std::error::Error for SchemaReadError {}

fn read_schema(json: &Value, depth: usize) -> Result<Schema, SchemaReadError> {
    let Value::Object(fields) = json else { return Err(SchemaReadError::NoObject) };
    let depth = depth.checked_sub(1).ok_or(SchemaReadError::TooDeep)?;
    let flag = |name: &str| fields.get(name).and_then(Value::as_bool) == Some(true);
    let texts = |name: &str| -> Vec<String> {
        let items = fields.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut schema = Schema {
        value_type: value_type(text(fields, "type")),
        format: text(fields, "format").to_owned(),
        required: texts("required"),
        default: fields.get("default").filter(|default| !default.is_null()).cloned(),
        is_nullable: flag("nullable"),
        preserves_unknown_fields: flag("x-kubernetes-preserve-unknown-fields"),
        is_embedded_resource: flag("x-kubernetes-embedded-resource"),
        is_int_or_string: flag("x-kubernetes-int-or-string"),
        list_type: match text(fields, "x-kubernetes-list-type") {
            "atomic" => Some(ListType::Atomic),
            "set" => Some(ListType::Set),
            "map" => Some(ListType::Map),
            _ => None,
        },
        list_map_keys: texts("x-kubernetes-list-map-keys"),
        map_type: match text(fields, "x-kubernetes-map-type") {
            "granular" => Some(MapType::Granular),
            "atomic" => Some(MapType::Atomic),
            _ => None,
        },
        validation: read_validation(fields, depth)?,
        ..Schema::default()
    };
    for (name, property) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
        schema.properties.insert(name.clone(), Arc::new(read_schema(property, depth)?));
    }
    schema.note_defaults();
    schema.additional_properties = match fields.get("additionalProperties") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(AdditionalProperties::Any),
        Some(values) => Some(AdditionalProperties::Schema(Arc::new(read_schema(values, depth)?))),
    };
    if let Some(items @ Value::Object(_)) = fields.get("items") {
        schema.items = Some(Arc::new(read_schema(items, depth)?));
    }
    let additional = schema.additional_properties.as_ref().and_then(AdditionalProperties::schema);
    let mut inner = schema.properties.values().chain(&schema.items).map(|inner| &**inner).chain(additional);
    schema.contains_embedded_resource =
        schema.is_embedded_resource || inner.any(|inner| inner.contains_embedded_resource);
    Ok(schema)
}

fn read_validation(fields: &Map<String, Value>, depth: usize) -> Result<Option<Arc<ValueValidation>>, SchemaReadError> {
    let number = |name: &str| fields.get(name).and_then(Value::as_f64);
    let count = |name: &str| fields.get(name).and_then(Value::as_i64);
    let flag = |name: &str| fields.get(name).and_then(Value::as_bool) == Some(true);
    let nested = |name: &str| -> Result<Vec<Schema>, SchemaReadError> {
        let all = fields.get(name).and_then(Value::as_array).into_iter().flatten();
        all.map(|schema| read_schema(schema, depth)).collect()
    };
    let validation = ValueValidation {
        maximum: number("maximum"),
        is_maximum_exclusive: flag("exclusiveMaximum"),
        minimum: number("minimum"),
        is_minimum_exclusive: flag("exclusiveMinimum"),
        multiple_of: number("multipleOf"),
        max_length: count("maxLength"),
        min_length: count("minLength"),
        pattern: Some(text(fields, "pattern")).filter(|pattern| !pattern.is_empty()).map(Pattern::new),
        max_items: count("maxItems"),
        min_items: count("minItems"),
        has_unique_items: flag("uniqueItems"),
        max_properties: count("maxProperties"),
        min_properties: count("minProperties"),
        enumeration: fields.get("enum").and_then(Value::as_array).cloned().unwrap_or_default().into(),
        all_of: nested("allOf")?,
        any_of: nested("anyOf")?,
        one_of: nested("oneOf")?,
        not: match fields.get("not") {
            Some(schema @ Value::Object(_)) => Some(Box::new(read_schema(schema, depth)?)),
            _ => None,
        },
    };
    Ok((validation != ValueValidation::default()).then(|| Arc::new(validation)))
}

fn text<'v>(fields: &'v Map<String, Value>, name: &str) -> &'v str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn value_type(name: &str) -> Option<ValueType> {
    Some(match name {
        "object" => ValueType::Object,
        "array" => ValueType::Array,
        "string" => ValueType::String,
        "integer" => ValueType::Integer,
        "number" => ValueType::Number,
        "boolean" => ValueType::Boolean,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schema_is_read_with_properties_items_and_extensions() {
        let schema = Schema::read(&json!({"type": "object", "required": ["spec"], "properties": {
            "spec": {"type": "object", "properties": {
                "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                          "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}},
                "size": {"x-kubernetes-int-or-string": true, "default": 3},
            }},
            "any": {"type": "object", "additionalProperties": true, "nullable": true},
        }}));
        let schema = schema.unwrap();
        let spec = &schema.properties["spec"];
        let ports = &spec.properties["ports"];
        assert_eq!((ports.list_type, &*ports.list_map_keys), (Some(ListType::Map), &["name".to_owned()][..]));
        let name = &ports.items.as_ref().unwrap().properties["name"];
        assert_eq!(name.validation.as_ref().unwrap().max_length, Some(3));
        assert_eq!(
            (spec.properties["size"].is_int_or_string, &spec.properties["size"].default),
            (true, &Some(json!(3)))
        );
        let any = &schema.properties["any"];
        assert_eq!((&any.additional_properties, any.is_nullable), (&Some(AdditionalProperties::Any), true));
        assert!(any.validation.is_none() && schema.required == ["spec"]);
    }

    #[test]
    fn schema_that_is_too_deep_or_no_object_is_refused() {
        let mut json = json!({"type": "object"});
        for _ in 0..MAX_DEPTH {
            json = json!({"type": "object", "properties": {"a": json}});
        }
        assert_eq!(Schema::read(&json), Err(SchemaReadError::TooDeep));
        assert_eq!(Schema::read(&json!(true)), Err(SchemaReadError::NoObject));
    }
}
