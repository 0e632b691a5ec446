//! Converts OpenAPI v2 documents to v3, for backends from before Kubernetes 1.24, by the rules of kube-openapi's
//! `pkg/openapiconv`.

use serde_json::{Map, Value, json};

use super::source_document::{DocumentEntry, SourceDocument};

type JsonObject = Map<String, Value>;

/// Converts a [`SourceDocument`] to a v3 document.
pub(super) fn convert(part: &SourceDocument) -> Value {
    let head = |key: &str| part.head.get(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let produces = head("produces").unwrap_or_default();
    let each = |entries: &super::source_document::Entries, convert: &dyn Fn(Value) -> Value| -> Value {
        let whole = |entry: &DocumentEntry| {
            let mut text = String::new();
            entry.write_to(&mut text);
            serde_json::from_str(&text).unwrap_or_default()
        };
        entries.iter().map(|(name, entry)| (name.clone(), convert(whole(entry)))).collect::<JsonObject>().into()
    };
    let mut components = JsonObject::new();
    components.insert("schemas".into(), each(&part.definitions, &schema));
    if !part.parameters.is_empty() {
        // Kubernetes drops them, and leaves dangling references.
        components.insert("parameters".into(), each(&part.parameters, &parameter));
    }
    if let Some(Value::Object(responses)) = head("responses") {
        let all = responses.into_iter().map(|(name, response)| (name, convert_response(response, &produces)));
        components.insert("responses".into(), all.collect::<JsonObject>().into());
    }
    if let Some(Value::Object(schemes)) = head("securityDefinitions") {
        let all = schemes.into_iter().map(|(name, scheme)| (name, security_scheme(scheme)));
        components.insert("securitySchemes".into(), all.collect::<JsonObject>().into());
    }
    let mut document = json!({
        "openapi": "3.0.0",
        "info": head("info").unwrap_or_else(|| json!({"title": "", "version": ""})),
        "paths": each(&part.paths, &path_to_v3),
        "components": components,
    });
    if let Some(docs) = head("externalDocs") {
        document["externalDocs"] = docs;
    }
    document
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

/// Replaces the value of `key`, if there is one.
fn map_field(object: &mut JsonObject, key: &str, change: impl FnOnce(Value) -> Value) {
    if let Some(value) = object.get_mut(key) {
        *value = change(value.take());
    }
}

fn each(value: Value, convert: impl Fn(Value) -> Value) -> Value {
    match value {
        Value::Array(entries) => entries.into_iter().map(convert).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, convert(value))).collect::<JsonObject>().into()
        }
        other => other,
    }
}

fn map_reference(value: Value, from: &str, to: &str) -> Value {
    match value.as_str().and_then(|name| name.strip_prefix(from)) {
        Some(name) => format!("{to}{name}").into(),
        None => value,
    }
}

fn schema(value: Value) -> Value {
    let Value::Object(mut fields) = value else { return value };
    map_field(&mut fields, "properties", |properties| each(properties, schema));
    map_field(&mut fields, "allOf", |all| each(all, schema));
    map_field(&mut fields, "additionalProperties", schema);
    map_field(&mut fields, "items", |items| if items.is_array() { each(items, schema) } else { schema(items) });
    map_field(&mut fields, "$ref", |name| map_reference(name, "#/definitions/", "#/components/schemas/"));
    // In v3 all siblings of a reference are ignored.
    if fields.len() > 1
        && let Some(reference) = fields.remove("$ref")
    {
        fields.insert("allOf".into(), json!([{"$ref": reference}]));
    }
    fields.into()
}

/// Converts a path item.
pub(in crate::openapi) fn path_to_v3(value: Value) -> Value {
    let mut fields = object(value);
    for (key, value) in &mut fields {
        *value = match key.as_str() {
            "parameters" => each(value.take(), parameter),
            "get" | "put" | "post" | "delete" | "options" | "head" | "patch" => operation(value.take()),
            _ => value.take(),
        };
    }
    fields.into()
}

fn operation(value: Value) -> Value {
    let mut fields = object(value);
    for gone in ["schemes", "security"] {
        fields.remove(gone);
    }
    let consumes = fields.remove("consumes").unwrap_or_default();
    let produces = fields.remove("produces").unwrap_or_default();
    if let Some(Value::Array(parameters)) = fields.remove("parameters") {
        let is_body = |one: &Value| one["in"] == "body" && one.get("schema").is_some();
        let (bodies, others): (Vec<_>, Vec<_>) = parameters.into_iter().partition(is_body);
        if let Some(body) = bodies.into_iter().next() {
            let mut request = json!({"content": content(&consumes, &schema(body["schema"].clone()))});
            if body["required"] == true {
                request["required"] = true.into();
            }
            fields.insert("requestBody".into(), request);
        }
        if !others.is_empty() {
            fields.insert("parameters".into(), others.into_iter().map(parameter).collect());
        }
    }
    map_field(&mut fields, "responses", |responses| each(responses, |response| convert_response(response, &produces)));
    fields.into()
}

/// The schema for each media type.
fn content(types: &Value, schema: &Value) -> Value {
    let types = types.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
    types.map(|kind| (kind.to_owned(), json!({"schema": schema}))).collect::<JsonObject>().into()
}

fn convert_response(value: Value, produces: &Value) -> Value {
    let Value::Object(mut fields) = value else { return value };
    map_field(&mut fields, "$ref", |name| map_reference(name, "#/responses/", "#/components/responses/"));
    for gone in ["headers", "examples"] {
        fields.remove(gone);
    }
    if let Some(described) = fields.remove("schema") {
        fields.insert("content".into(), content(produces, &schema(described)));
    }
    fields.into()
}

fn parameter(value: Value) -> Value {
    let mut fields = object(value);
    if let Some(reference) = fields.remove("$ref") {
        return json!({"$ref": map_reference(reference, "#/parameters/", "#/components/parameters/")});
    }
    const OUTSIDE: [&str; 5] = ["name", "in", "description", "required", "allowEmptyValue"];
    let (mut outside, inside): (JsonObject, JsonObject) =
        fields.into_iter().partition(|(key, _)| OUTSIDE.contains(&key.as_str()) || key.starts_with("x-"));
    // In v2 a parameter that is not an object carries its own schema.
    let mut described = match inside.get("schema") {
        Some(of) => object(schema(of.clone())),
        None => object(schema(inside.into())),
    };
    described.remove("collectionFormat");
    outside.insert("schema".into(), described.into());
    outside.into()
}

fn security_scheme(value: Value) -> Value {
    let mut fields = object(value);
    let Some(flow) = fields.remove("flow") else {
        // HTTP basic authentication has another name in v3.
        if fields.get("type").is_some_and(|kind| kind == "basic") {
            fields.insert("type".into(), "http".into());
            fields.insert("scheme".into(), "basic".into());
        }
        return fields.into();
    };
    let mut details = JsonObject::new();
    for key in ["authorizationUrl", "tokenUrl", "scopes"] {
        if let Some(value) = fields.remove(key) {
            details.insert(key.into(), value);
        }
    }
    let name = match flow.as_str().unwrap_or_default() {
        "application" => "clientCredentials",
        "accessCode" => "authorizationCode",
        other => other,
    };
    fields.insert("flows".into(), json!({name: details}));
    fields.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_v2_document_converted_to_v3() {
        let document = json!({
            "swagger": "2.0", "info": {"title": "t", "version": "v"},
            "securityDefinitions": {
                "token": {"type": "apiKey", "name": "authorization", "in": "header"},
                "flow": {"type": "oauth2", "flow": "accessCode", "authorizationUrl": "https://a", "tokenUrl": "https://t", "scopes": {}},
            },
            "parameters": {"pretty": {"name": "pretty", "in": "query", "type": "string", "uniqueItems": true}},
            "paths": {"/apis/a.io/v1/things": {
                "parameters": [{"$ref": "#/parameters/pretty"}],
                "post": {
                    "operationId": "create", "consumes": ["*/*"], "produces": ["application/json", "application/yaml"],
                    "schemes": ["https"],
                    "parameters": [
                        {"in": "body", "name": "body", "required": true, "schema": {"$ref": "#/definitions/Thing"}},
                        {"in": "query", "name": "dryRun", "type": "string", "description": "try"},
                    ],
                    "responses": {
                        "200": {"description": "OK", "schema": {"$ref": "#/definitions/Thing"}},
                        "401": {"description": "Unauthorized"},
                    },
                    "x-kubernetes-action": "post",
                },
            }},
            "definitions": {"Thing": {
                "type": "object",
                "properties": {
                    "of": {"$ref": "#/definitions/Thing", "description": "its own"},
                    "all": {"type": "array", "items": {"$ref": "#/definitions/Thing"}},
                },
                "x-kubernetes-group-version-kind": [{"group": "a.io", "kind": "Thing", "version": "v1"}],
            }},
        });
        let part = SourceDocument::parse(document.to_string().as_bytes(), Some("/apis/a.io/v1/")).unwrap();
        let reference = json!({"$ref": "#/components/schemas/Thing"});
        let body = json!({"schema": reference});
        let expected = json!({
            "openapi": "3.0.0", "info": {"title": "t", "version": "v"},
            "paths": {"/apis/a.io/v1/things": {
                "parameters": [{"$ref": "#/components/parameters/pretty"}],
                "post": {
                    "operationId": "create",
                    "requestBody": {"content": {"*/*": body}, "required": true},
                    "parameters": [
                        {"in": "query", "name": "dryRun", "description": "try", "schema": {"type": "string"}},
                    ],
                    "responses": {
                        "200": {"description": "OK", "content": {"application/json": body, "application/yaml": body}},
                        "401": {"description": "Unauthorized"},
                    },
                    "x-kubernetes-action": "post",
                },
            }},
            "components": {
                "schemas": {"Thing": {
                    "type": "object",
                    "properties": {
                        "of": {"allOf": [reference], "description": "its own"},
                        "all": {"type": "array", "items": reference},
                    },
                    "x-kubernetes-group-version-kind": [{"group": "a.io", "kind": "Thing", "version": "v1"}],
                }},
                "parameters": {"pretty": {"name": "pretty", "in": "query", "schema": {"type": "string", "uniqueItems": true}}},
                "securitySchemes": {
                    "token": {"type": "apiKey", "name": "authorization", "in": "header"},
                    "flow": {"type": "oauth2", "flows": {"authorizationCode":
                        {"authorizationUrl": "https://a", "tokenUrl": "https://t", "scopes": {}}}},
                },
            },
        });
        assert_eq!(convert(&part), expected);
    }
}
