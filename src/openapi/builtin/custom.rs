//! Definitions of custom resources in OpenAPI (`k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::definitions::V2_PREFIX;
use crate::resources::ServedKind;
use crate::resources::catalog::CatalogEntry;

/// Definition of the body of the subresource `scale`.
pub(super) const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// Definitions to which those of custom resources refer.
pub(super) const META_DEFINITIONS: [&str; 2] = [OBJECT_META, LIST_META];
/// Prefix of references in OpenAPI v3.
const V3_PREFIX: &str = "#/components/schemas/";
/// Depth to which a schema is converted for OpenAPI v2; a definition has at most 64 levels.
const MAX_DEPTH: usize = 128;

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should \
    convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this \
    from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const OBJECT_META_TEXT: &str = "Standard object's metadata. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const LIST_META_TEXT: &str = "Standard list metadata. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// Name of the definition of an object or a list: the reversed group, the version and the kind.
pub(super) fn custom_definition_name(kind: &ServedKind, is_list: bool) -> String {
    let reversed: Vec<&str> = kind.resource.group.split('.').rev().collect();
    let name = match (is_list, &kind.resource.list_kind) {
        (true, Some(list)) => list,
        _ => &kind.resource.kind,
    };
    format!("{}.{}.{name}", reversed.join("."), kind.version.version)
}

/// The definitions of all custom resources, as OpenAPI v3 has them.
pub(super) fn custom_definitions<'e>(entries: impl Iterator<Item = &'e CatalogEntry>) -> BTreeMap<String, Value> {
    let mut definitions = BTreeMap::new();
    for kind in entries.map(|entry| &entry.kind).filter(|kind| kind.resource.custom.is_some()) {
        definitions.insert(custom_definition_name(kind, false), object_definition(kind));
        definitions.insert(custom_definition_name(kind, true), list_definition(kind));
    }
    definitions
}

fn object_definition(kind: &ServedKind) -> Value {
    let schema = kind.version.custom().and_then(|version| version.schema_json());
    let mut schema = schema.filter(Value::is_object).unwrap_or_else(|| json!({"type": "object"}));
    if schema["x-kubernetes-preserve-unknown-fields"] == true && schema["properties"].is_null() {
        // Nothing is known of the fields but those of every object.
        schema["type"] = json!("object");
    }
    let properties = &mut schema["properties"];
    if !properties.is_object() {
        *properties = json!({});
    }
    properties["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    properties["kind"] = json!({"type": "string", "description": KIND});
    properties["metadata"] =
        json!({"description": OBJECT_META_TEXT, "allOf": [{"$ref": format!("{V3_PREFIX}{OBJECT_META}")}]});
    schema["x-kubernetes-group-version-kind"] = group_version_kind(kind, &kind.resource.kind);
    let fields = kind.version.custom().map(|version| &version.selectable_fields).into_iter().flatten();
    let fields: Vec<Value> = fields.map(|path| json!({"fieldPath": path})).collect();
    if !fields.is_empty() {
        schema["x-kubernetes-selectable-fields"] = fields.into();
    }
    schema
}

fn list_definition(kind: &ServedKind) -> Value {
    let list_kind = kind.resource.list_kind.as_deref().unwrap_or_default();
    let item = format!("{V3_PREFIX}{}", custom_definition_name(kind, false));
    json!({
        "description": format!("{list_kind} is a list of {}", kind.resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "items": {
                "description": format!(
                    "List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
                    kind.resource.plural
                ),
                "type": "array",
                "items": {"allOf": [{"$ref": item}]},
            },
            "metadata": {"description": LIST_META_TEXT, "allOf": [{"$ref": format!("{V3_PREFIX}{LIST_META}")}]},
        },
        "x-kubernetes-group-version-kind": group_version_kind(kind, list_kind),
    })
}

fn group_version_kind(kind: &ServedKind, name: &str) -> Value {
    json!([{"group": kind.resource.group, "kind": name, "version": kind.version.version}])
}

/// A schema as OpenAPI v2 can say it: what v2 has no words for is left out
/// (`pkg/controller/openapi/v2/conversion.go` of apiextensions-apiserver).
pub(super) fn custom_schema_to_v2(schema: Value) -> Value {
    convert(schema, MAX_DEPTH)
}

fn convert(schema: Value, depth: usize) -> Value {
    let (Value::Object(mut fields), Some(depth)) = (schema, depth.checked_sub(1)) else { return json!({}) };
    for name in ["oneOf", "anyOf", "not"] {
        fields.remove(name);
    }
    // A reference with a description beside it.
    if let Some(Value::Array(all)) = fields.remove("allOf")
        && let [Value::Object(only)] = all.as_slice()
        && let Some(name) = only.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(V3_PREFIX))
    {
        fields.insert("$ref".to_owned(), format!("{V2_PREFIX}{name}").into());
    }
    if fields.remove("nullable") == Some(json!(true)) {
        for name in ["type", "items", "properties"] {
            fields.remove(name);
        }
    }
    if fields.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true)) {
        fields.remove("items");
        // The root keeps the fields of every object.
        if depth + 1 < MAX_DEPTH {
            fields.remove("properties");
            fields.remove("type");
        }
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner @ Value::Object(_)) = fields.get_mut(name) {
            *inner = convert(inner.take(), depth);
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        let converted = std::mem::take(properties).into_iter().map(|(name, inner)| (name, convert(inner, depth)));
        *properties = converted.collect::<Map<_, _>>();
    }
    fields.into()
}
