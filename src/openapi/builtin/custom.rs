//! Definitions of custom resources in OpenAPI (`k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder`).

use std::collections::BTreeMap;

use kubeapi::field_error::FieldPath;
use kubeapi::schema::PatternBudget;
use kubeapi::schema::props::JsonSchemaProps;
use kubeapi::schema::structural::{conversion_error, validate_structural};
use serde_json::{Value, json};

use super::custom_schema::{OpenApiVersion, object_meta, published_schema};
use super::definitions::{V3_PREFIX, schema_to_v2};
use crate::resources::ServedKind;
use crate::resources::catalog::CatalogEntry;

/// Definition of the body of the subresource `scale`.
pub(super) const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// Definitions to which those of custom resources refer.
pub(super) const META_DEFINITIONS: [&str; 2] = [OBJECT_META, LIST_META];

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should \
    convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this \
    from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
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

/// The definitions of all custom resources.
pub(super) fn custom_definitions<'e>(
    entries: impl Iterator<Item = &'e CatalogEntry>,
    version: OpenApiVersion,
) -> BTreeMap<String, Value> {
    let mut definitions = BTreeMap::new();
    for kind in entries.map(|entry| &entry.kind).filter(|kind| kind.resource.custom.is_some()) {
        let mut object = object_definition(kind, version);
        let list = match version {
            OpenApiVersion::V2 => {
                remove_defaults(&mut object);
                schema_to_v2(list_definition(kind))
            }
            OpenApiVersion::V3 => list_definition(kind),
        };
        definitions.insert(custom_definition_name(kind, false), object);
        definitions.insert(custom_definition_name(kind, true), list);
    }
    definitions
}

/// Removes the defaults of a schema, which clients of OpenAPI v2 do not expect (`PruneDefaults` in kube-openapi's
/// `pkg/handler/default_pruning.go`). A schema is at most as deep as a definition may be.
fn remove_defaults(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("default");
    for (keyword, value) in fields {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(remove_defaults),
            ("allOf" | "anyOf" | "oneOf" | "items", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(remove_defaults);
            }
            ("items" | "additionalProperties" | "not", schema) => remove_defaults(schema),
            _ => {}
        }
    }
}

pub(super) fn object_definition(kind: &ServedKind, version: OpenApiVersion) -> Value {
    let custom = kind.version.custom();
    let is_open = version == OpenApiVersion::V2 && custom.is_some_and(|custom| custom.preserves_unknown_fields);
    let schema = custom.and_then(|custom| custom.schema_json()).filter(|schema| is_structural(schema) && !is_open);
    let mut schema = match schema.and_then(|schema| published_schema(schema, version)) {
        Some(mut schema) => {
            schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
            schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
            schema["properties"]["metadata"] = object_meta(version);
            schema
        }
        None => json!({"type": "object"}),
    };
    schema["x-kubernetes-group-version-kind"] = group_version_kind(kind, &kind.resource.kind);
    add_selectable_fields(kind, &mut schema);
    schema
}

/// Whether a schema is published: old definitions may have others.
fn is_structural(schema: &Value) -> bool {
    let Ok(props) = serde_json::from_value::<JsonSchemaProps>(schema.clone()) else { return false };
    conversion_error(&props).is_none()
        && validate_structural(&props, &FieldPath::root(""), &mut PatternBudget::default()).is_empty()
}

fn add_selectable_fields(kind: &ServedKind, schema: &mut Value) {
    let fields = kind.version.custom().map(|version| &version.selectable_fields).into_iter().flatten();
    let fields: Vec<Value> = fields.map(|path| json!({"fieldPath": path})).collect();
    if !fields.is_empty() {
        schema["x-kubernetes-selectable-fields"] = fields.into();
    }
}

fn list_definition(kind: &ServedKind) -> Value {
    let list_kind = kind.resource.list_kind.as_deref().unwrap_or_default();
    let item = format!("{V3_PREFIX}{}", custom_definition_name(kind, false));
    let mut schema = json!({
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
                "items": {"$ref": item},
            },
            "metadata": {"description": LIST_META_TEXT, "allOf": [{"$ref": format!("{V3_PREFIX}{LIST_META}")}]},
        },
        "x-kubernetes-group-version-kind": group_version_kind(kind, list_kind),
    });
    add_selectable_fields(kind, &mut schema);
    schema
}

fn group_version_kind(kind: &ServedKind, name: &str) -> Value {
    json!([{"group": kind.resource.group, "kind": name, "version": kind.version.version}])
}
