//! OpenAPI v3 documents: enough for `kubectl explain`, `kubectl apply` and server-side validation.

use serde_json::{Map, Value, json};

use super::discovery::CachedDocument;
use super::resource::{ExampleResource, FieldType, GROUP, METADATA, SchemaField};

const JSON: &str = "application/json";

/// `GET /openapi/v3/apis/example.narthex.dev/v1`: the document of the version of `resource`.
pub(super) fn document(resource: &ExampleResource) -> Value {
    let root = format!("/apis/{}", resource.group_version());
    let collection = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{root}/{}", resource.plural),
    };
    let mut paths = Map::new();
    if resource.namespaced {
        let mut list = operation(resource, "list", &["list everywhere"], ResponseSchema::List);
        list["parameters"] = json!(LIST_PARAMETERS.map(parameter));
        paths.insert(format!("{root}/{}", resource.plural), json!({"get": list}));
    }
    let place: &[&str] = if resource.namespaced { &["namespace"] } else { &[] };
    paths.insert(collection.clone(), collection_operations(resource, place));
    paths.insert(format!("{collection}/{{name}}"), object_operations(resource, place));
    json!({"openapi": "3.0.0", "info": {"title": "The example API of Narthex", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths, "components": {"schemas": schemas(resource)}})
}

/// `GET /openapi/v3`: the URL of each version's document, with its hash.
pub(super) fn index<'d>(documents: impl Iterator<Item = (&'d ExampleResource, &'d CachedDocument)>) -> Value {
    let entry = |(resource, document): (&ExampleResource, &CachedDocument)| {
        let path = format!("apis/{}", resource.group_version());
        let url = format!("/openapi/v3/{path}?hash={}", document.tag.trim_matches('"'));
        (path, json!({"serverRelativeURL": url}))
    };
    json!({"paths": documents.map(entry).collect::<Map<String, Value>>()})
}

const LIST_PARAMETERS: [(&str, &str); 10] = [
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
/// kubectl looks for `fieldValidation` here before it lets the server validate.
const WRITE_PARAMETERS: [(&str, &str); 3] =
    [("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];

#[derive(Clone, Copy)]
enum ResponseSchema {
    Object,
    List,
    Status,
}

fn collection_operations(resource: &ExampleResource, place: &[&str]) -> Value {
    let mut list = operation(resource, "list", &["list"], ResponseSchema::List);
    list["parameters"] = json!(LIST_PARAMETERS.map(parameter));
    let mut create = operation(resource, "post", &["create"], ResponseSchema::Object);
    create["parameters"] = json!(WRITE_PARAMETERS.map(parameter));
    create["requestBody"] = body(&[JSON, "application/yaml"], &reference(resource, resource.kind));
    let mut clear = operation(resource, "deletecollection", &["delete a collection"], ResponseSchema::Status);
    clear["parameters"] = json!(LIST_PARAMETERS.map(parameter));
    json!({"get": list, "post": create, "delete": clear, "parameters": path_parameters(place)})
}

fn object_operations(resource: &ExampleResource, place: &[&str]) -> Value {
    let get = operation(resource, "get", &["read"], ResponseSchema::Object);
    let mut put = operation(resource, "put", &["replace"], ResponseSchema::Object);
    put["parameters"] = json!(WRITE_PARAMETERS.map(parameter));
    put["requestBody"] = body(&[JSON, "application/yaml"], &reference(resource, resource.kind));
    let mut patch = operation(resource, "patch", &["patch"], ResponseSchema::Object);
    let mut parameters = WRITE_PARAMETERS.to_vec();
    parameters.push(("force", "boolean"));
    patch["parameters"] = parameters.into_iter().map(parameter).collect();
    // No strategic merge patch: kubectl sends merge patches if it is not listed here.
    let forms = ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    patch["requestBody"] = body(&forms, &json!({"type": "object"}));
    let mut delete = operation(resource, "delete", &["delete"], ResponseSchema::Status);
    delete["parameters"] = json!([("dryRun", "string"), ("propagationPolicy", "string")].map(parameter));
    let place: Vec<&str> = place.iter().copied().chain(["name"]).collect();
    json!({"get": get, "put": put, "patch": patch, "delete": delete, "parameters": path_parameters(&place)})
}

fn operation(resource: &ExampleResource, action: &str, words: &[&str], answer: ResponseSchema) -> Value {
    let schema = match answer {
        ResponseSchema::Object => reference(resource, resource.kind),
        ResponseSchema::List => reference(resource, &resource.list_kind()),
        ResponseSchema::Status => json!({"type": "object"}),
    };
    let id = format!("{}-{}", words.join(" "), resource.plural).replace(' ', "-");
    json!({
        "operationId": id,
        "description": format!("{} {}", words.join(" "), resource.plural),
        "tags": [format!("example_{}", resource.version)],
        "responses": {"200": {"description": "OK", "content": {JSON: {"schema": schema}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": GROUP, "version": resource.version, "kind": resource.kind},
    })
}

fn parameter((name, kind): (&str, &str)) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn path_parameters(names: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    names.iter().map(one).collect()
}

fn body(forms: &[&str], schema: &Value) -> Value {
    let content: Map<String, Value> =
        forms.iter().map(|form| ((*form).to_owned(), json!({"schema": schema}))).collect();
    json!({"required": true, "content": content})
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

fn schema_name(resource: &ExampleResource, kind: &str) -> String {
    format!("dev.narthex.example.{}.{kind}", resource.version)
}

fn reference(resource: &ExampleResource, kind: &str) -> Value {
    json!({"$ref": schema_reference(&schema_name(resource, kind))})
}

/// The reference to `schema` within the document.
fn schema_reference(schema: &str) -> String {
    format!("#/components/schemas/{schema}")
}

fn schemas(resource: &ExampleResource) -> Value {
    let of_kind = |kind: &str| json!([{"group": GROUP, "version": resource.version, "kind": kind}]);
    let api_version = json!({"type": "string", "description": "The API version of the object."});
    let kind = json!({"type": "string", "description": "The kind of the object."});
    let spec = schema_name(resource, &format!("{}Spec", resource.kind));
    let status = schema_name(resource, &format!("{}Status", resource.kind));
    let whole = json!({
        "type": "object",
        "description": resource.description,
        "properties": {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": described(&schema_reference(OBJECT_META), "Standard object metadata."),
            "spec": described(&schema_reference(&spec), "The desired state."),
            "status": described(&schema_reference(&status), "The observed state. Set by the server."),
        },
        "x-kubernetes-group-version-kind": of_kind(resource.kind),
    });
    let list = json!({
        "type": "object",
        "description": format!("{} is a list of {}.", resource.list_kind(), resource.plural),
        "required": ["items"],
        "properties": {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": described(&schema_reference(LIST_META), "Standard list metadata."),
            "items": {"type": "array", "description": "The objects.", "items": reference(resource, resource.kind)},
        },
        "x-kubernetes-group-version-kind": of_kind(&resource.list_kind()),
    });
    let list_meta = json!({
        "type": "object",
        "description": "ListMeta is the metadata of every list.",
        "properties": {
            "continue": {"type": "string", "description": "Token to request the next page."},
            "remainingItemCount": {"type": "integer", "format": "int64", "description": "Number of remaining objects."},
            "resourceVersion": {"type": "string", "description": "The resource version of the list, to watch from."},
        },
    });
    json!({
        schema_name(resource, resource.kind): whole,
        schema_name(resource, &resource.list_kind()): list,
        spec: object_schema(&format!("{}Spec is the desired state.", resource.kind), resource.spec),
        status: object_schema(&format!("{}Status is the observed state.", resource.kind), resource.status),
        OBJECT_META: object_schema("ObjectMeta is the metadata of every object.", METADATA),
        LIST_META: list_meta,
    })
}

/// A reference with a description: siblings of `$ref` are ignored, so it is wrapped in `allOf`.
fn described(to: &str, description: &str) -> Value {
    json!({"description": description, "allOf": [{"$ref": to}]})
}

fn object_schema(description: &str, fields: &[SchemaField]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect();
    json!({"type": "object", "description": description, "properties": properties})
}

fn field_schema(field: &SchemaField) -> Value {
    let mut schema = match field.shape {
        FieldType::Text => json!({"type": "string"}),
        FieldType::Time => json!({"type": "string", "format": "date-time"}),
        FieldType::Flag => json!({"type": "boolean"}),
        FieldType::Integer => json!({"type": "integer", "format": "int64"}),
        FieldType::Texts => {
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"})
        }
        FieldType::Map => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        FieldType::Records => {
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "atomic"})
        }
        FieldType::Object(fields) => object_schema(field.description, fields),
    };
    schema["description"] = json!(field.description);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::quickstart::example::resource::RESOURCES;

    /// Asserts that every `$ref` of the document resolves.
    fn assert_references_resolve(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
                }
                fields.values().for_each(|value| assert_references_resolve(document, value));
            }
            Value::Array(values) => values.iter().for_each(|value| assert_references_resolve(document, value)),
            _ => {}
        }
    }

    #[test]
    fn openapi_document_has_fields_kubectl_needs() {
        for resource in &RESOURCES {
            let document = document(resource);
            assert_references_resolve(&document, &document);
            let paths = document["paths"].as_object().unwrap();
            let patch = paths.values().find_map(|path| path.get("patch")).unwrap();
            assert_eq!(patch["x-kubernetes-action"], "patch");
            assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], resource.kind);
            assert!(patch["parameters"].as_array().unwrap().iter().any(|one| one["name"] == "fieldValidation"));
            assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
            let schema = &document["components"]["schemas"][schema_name(resource, resource.kind)];
            assert_eq!(schema["x-kubernetes-group-version-kind"][0]["version"], resource.version);
        }
    }

    #[test]
    fn openapi_index_lists_documents_with_hash() {
        let documents: Vec<CachedDocument> =
            RESOURCES.iter().map(|resource| CachedDocument::new(&document(resource))).collect();
        let index = index(RESOURCES.iter().zip(&documents));
        let url = index["paths"]["apis/example.narthex.dev/v1"]["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with("/openapi/v3/apis/example.narthex.dev/v1?hash=") && url.len() > 160, "{url}");
    }
}
