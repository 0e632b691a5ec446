//! Schemas and parameters that a kube-apiserver publishes of its built-in kinds, from `definitions.json.gz`, which
//! `tests/interop/kinds` writes.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The compressed file.
pub(super) const FILE: &[u8] = include_bytes!("definitions.json.gz");
/// Prefix of references in OpenAPI v3.
pub(super) const V3_PREFIX: &str = "#/components/schemas/";
/// Prefix of references in OpenAPI v2.
pub(super) const V2_PREFIX: &str = "#/definitions/";

/// The text of the file. About 1 MiB, so it is not kept.
pub(super) struct DefinitionsText(String);

/// The content of the file. Definitions are parsed when needed.
#[derive(Default, Deserialize)]
pub(super) struct Definitions<'t> {
    /// Parameters of requests as OpenAPI v2 has them, by the names under which it shares them.
    pub(super) parameters: BTreeMap<String, Value>,
    /// Names of the parameters of each `x-kubernetes-action`.
    pub(super) actions: BTreeMap<String, Vec<String>>,
    #[serde(borrow)]
    definitions: BTreeMap<String, &'t RawValue>,
}

impl DefinitionsText {
    /// Decompresses the file.
    pub(super) fn read() -> DefinitionsText {
        let mut text = String::new();
        // The file is part of the program, and a test reads it.
        let _ = GzDecoder::new(FILE).read_to_string(&mut text);
        DefinitionsText(text)
    }

    /// Parses the text.
    pub(super) fn parse(&self) -> Definitions<'_> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl Definitions<'_> {
    /// The definitions named `first`, and all that they refer to, as OpenAPI v3 has them.
    pub(super) fn reachable(&self, first: impl IntoIterator<Item = String>) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        let mut next: Vec<String> = first.into_iter().collect();
        while let Some(name) = next.pop() {
            if found.contains_key(&name) {
                continue;
            }
            let Some(text) = self.definitions.get(&name) else { continue };
            let value: Value = serde_json::from_str(text.get()).unwrap_or_default();
            collect_references(&value, V3_PREFIX, &mut next);
            found.insert(name, value);
        }
        found
    }
}

/// Adds the names of all definitions that `value` refers to.
pub(super) fn collect_references(value: &Value, prefix: &str, names: &mut Vec<String>) {
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| collect_references(entry, prefix, names)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().filter(|_| key == "$ref") {
                    Some(name) => names.extend(name.strip_prefix(prefix).map(str::to_owned)),
                    None => collect_references(value, prefix, names),
                }
            }
        }
        _ => {}
    }
}

/// A schema of OpenAPI v3 as OpenAPI v2 has it: without defaults, with plain references, and with one type where v3 has
/// two.
pub(super) fn schema_to_v2(schema: Value) -> Value {
    let Value::Object(mut fields) = schema else { return schema };
    fields.remove("default");
    if let Some(Value::Array(all)) = fields.remove("allOf") {
        fields.extend(all.into_iter().filter_map(|one| one.as_object().cloned()).flatten());
    }
    if let Some(reference) = fields.get_mut("$ref")
        && let Some(name) = reference.as_str().and_then(|text| text.strip_prefix(V3_PREFIX))
    {
        *reference = format!("{V2_PREFIX}{name}").into();
    }
    if let Some(Value::Array(choices)) = fields.remove("oneOf") {
        fields.insert("type".to_owned(), "string".into());
        if choices.contains(&json!({"type": "integer"})) {
            fields.insert("format".to_owned(), "int-or-string".into());
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get_mut(key) {
            *schema = schema_to_v2(schema.take());
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        let converted = std::mem::take(properties).into_iter().map(|(name, schema)| (name, schema_to_v2(schema)));
        *properties = converted.collect::<Map<_, _>>();
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use kubeapi::protobuf::table::MessageType;

    use super::*;
    use crate::resources::builtin::builtin_kinds;

    #[test]
    fn openapi_definitions_cover_served_messages_and_their_fields() {
        let text = DefinitionsText::read();
        let definitions = text.parse();
        let names = |message: &MessageType| -> Vec<&str> {
            message.fields.iter().map(|field| field.name).filter(|name| !name.is_empty()).collect()
        };
        let mut checked = 0;
        for resource in builtin_kinds().resources().iter().filter(|resource| resource.storage.is_some()) {
            for version in &resource.versions {
                let message = builtin_kinds().messages.message(version.message().unwrap());
                let found = definitions.reachable([message.name.to_owned()]);
                for (name, definition) in &found {
                    let Some(properties) = definition["properties"].as_object() else { continue };
                    let Some(id) = builtin_kinds().messages.find(name) else { continue };
                    let message = builtin_kinds().messages.message(id);
                    let has_embedded = message.fields.iter().any(|field| field.name.is_empty());
                    assert!(has_embedded || names(message).len() == properties.len(), "{name}");
                    assert!(names(message).iter().all(|field| properties.contains_key(*field)), "{name}");
                    checked += 1;
                }
                assert!(found.contains_key(message.name), "{}", message.name);
            }
        }
        assert!(checked > 500, "{checked}");
        for names in definitions.actions.values() {
            assert!(names.iter().all(|name| definitions.parameters.contains_key(name)));
        }
    }

    #[test]
    fn openapi_schema_converted_to_v2() {
        let schema = json!({
            "description": "d", "type": "object", "properties": {
                "default": {"type": "string", "default": "a"},
                "one": {"allOf": [{"$ref": "#/components/schemas/One"}], "default": {}, "description": "o"},
                "all": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/One"}], "default": {}}},
                "port": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
                "amount": {"oneOf": [{"type": "string"}, {"type": "number"}]},
            },
        });
        let expected = json!({
            "description": "d", "type": "object", "properties": {
                "default": {"type": "string"},
                "one": {"$ref": "#/definitions/One", "description": "o"},
                "all": {"type": "array", "items": {"$ref": "#/definitions/One"}},
                "port": {"type": "string", "format": "int-or-string"},
                "amount": {"type": "string"},
            },
        });
        assert_eq!(schema_to_v2(schema), expected);
    }
}
