//! Schemas of custom resources as OpenAPI publishes them
//! (`k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder` and `v2`).

use serde_json::{Map, Value, json};

use super::definitions::{V2_PREFIX, V3_PREFIX};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const OBJECT_META_TEXT: &str = "Standard object's metadata. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const EMBEDDED_API_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More \
    info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const EMBEDDED_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

const PRESERVES_UNKNOWN_FIELDS: &str = "x-kubernetes-preserve-unknown-fields";
/// Keywords of alternatives.
const ALTERNATIVES: [&str; 4] = ["allOf", "anyOf", "not", "oneOf"];

/// A version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenApiVersion {
    /// OpenAPI v2, in which kubectl knows neither alternatives nor null.
    V2,
    /// OpenAPI v3.
    V3,
}

/// The schema of an object from that of its definition, a structural one, without the fields of every object. None if
/// nothing is published of its fields: kubectl would refuse all others.
pub(super) fn published_schema(schema: Value, version: OpenApiVersion) -> Option<Value> {
    let Value::Object(mut fields) = schema else { return None };
    if version == OpenApiVersion::V2 && is_true(&fields, PRESERVES_UNKNOWN_FIELDS) {
        return None;
    }
    rewrite(&mut fields, version);
    Some(fields.into())
}

/// The schema of the metadata of an object.
pub(super) fn object_meta(version: OpenApiVersion) -> Value {
    match version {
        OpenApiVersion::V2 => json!({"description": OBJECT_META_TEXT, "$ref": format!("{V2_PREFIX}{OBJECT_META}")}),
        OpenApiVersion::V3 => {
            json!({"description": OBJECT_META_TEXT, "allOf": [{"$ref": format!("{V3_PREFIX}{OBJECT_META}")}]})
        }
    }
}

/// Rewrites a schema and those in it. A stored definition has at most 128 levels.
fn rewrite(fields: &mut Map<String, Value>, version: OpenApiVersion) {
    if fields.get("default").is_some_and(Value::is_null) {
        fields.remove("default");
    }
    match version {
        OpenApiVersion::V2 => remove_unsupported(fields),
        OpenApiVersion::V3 => add_int_or_string(fields),
    }
    for name in ["items", "additionalProperties"] {
        if let Some(Value::Object(inner)) = fields.get_mut(name) {
            rewrite(inner, version);
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(|inner| rewrite(inner, version));
    }
    let is_open = version == OpenApiVersion::V2 && is_true(fields, PRESERVES_UNKNOWN_FIELDS);
    if is_true(fields, "x-kubernetes-embedded-resource") && !is_open {
        add_embedded_fields(fields, version);
    }
}

fn is_true(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name) == Some(&json!(true))
}

/// Adds the types to an int-or-string that does not name them.
fn add_int_or_string(fields: &mut Map<String, Value>) {
    let types = json!([{"type": "integer"}, {"type": "string"}]);
    let names_types =
        fields.get("anyOf") == Some(&types) || fields.get("allOf").is_some_and(|all| all[0]["anyOf"] == types);
    if !is_true(fields, "x-kubernetes-int-or-string") || names_types {
        return;
    }
    if !fields.contains_key("anyOf") {
        fields.insert("anyOf".to_owned(), types);
        return;
    }
    let all = fields.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.insert(0, json!({"anyOf": types}));
    }
}

/// Removes what kubectl does not understand in OpenAPI v2.
fn remove_unsupported(fields: &mut Map<String, Value>) {
    let preserves = is_true(fields, PRESERVES_UNKNOWN_FIELDS);
    let is_nullable = |schema: &Value| schema["nullable"] == true;
    ALTERNATIVES.iter().for_each(|name| drop(fields.remove(*name)));
    if fields.remove("nullable") == Some(json!(true)) {
        fields.remove("type");
        fields.remove("items");
        fields.remove("properties");
    }
    if preserves {
        fields.remove("items");
        fields.remove("properties");
    }
    let has_items = fields.contains_key("items");
    if fields.get("type").is_some_and(|name| (name == "array" && !has_items) || (name == "object" && preserves)) {
        fields.remove("type");
    }
    let nullable: Vec<String> = match fields.get("properties").and_then(Value::as_object) {
        Some(properties) => {
            properties.iter().filter(|(_, schema)| is_nullable(schema)).map(|one| one.0.clone()).collect()
        }
        None => Vec::new(),
    };
    let has_nullable_values = fields.get("additionalProperties").is_some_and(is_nullable);
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        required.retain(|name| !has_nullable_values && nullable.iter().all(|nullable| name != nullable.as_str()));
        if required.is_empty() {
            fields.remove("required");
        }
    }
}

/// Adds the fields of every object to the schema of an embedded one.
fn add_embedded_fields(fields: &mut Map<String, Value>, version: OpenApiVersion) {
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = json!({"type": "string", "description": EMBEDDED_API_VERSION});
    properties["kind"] = json!({"type": "string", "description": EMBEDDED_KIND});
    properties["metadata"] = object_meta(version);
    let required = fields.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|one| one == name) {
                required.push(name.into());
            }
        }
    }
}
