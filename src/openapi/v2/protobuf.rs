//! Encodes a document as gnostic's `openapi.v2.Document` (`github.com/google/gnostic-models`), which Go clients
//! request.

use std::collections::BTreeMap;

use kubeapi::protobuf::{write_bytes, write_double, write_number as integer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::schema_table::{
    DEFINITION, DOCUMENT, FieldSchema, MessageSchema, PARAMETER, PATH, RESPONSE_OR_REFERENCE, SCHEMA, ValueKind,
};
use super::validate::{as_integer, is_extension, yaml_safe_json};

/// Encodes the validated document `json`; `None` if it is not an object.
///
/// Entries are decoded one at a time: a tree of the whole document would take many times the memory.
pub(super) fn encode(json: &[u8]) -> Option<Vec<u8>> {
    let parts: BTreeMap<String, &RawValue> = serde_json::from_slice(json).ok()?;
    let mut out = Vec::with_capacity(json.len());
    for field in DOCUMENT.fields {
        let Some(text) = parts.get(field.key) else { continue };
        let entry = match field.key {
            "paths" => &PATH,
            "definitions" => &DEFINITION,
            "parameters" => &PARAMETER,
            _ => {
                put_value(&mut out, field.number, field.kind, &serde_json::from_str(text.get()).ok()?);
                continue;
            }
        };
        let mut section = Vec::new();
        let entries: BTreeMap<String, &RawValue> = serde_json::from_str(text.get()).ok()?;
        for (name, text) in entries {
            let value: Value = serde_json::from_str(text.get()).ok()?;
            match field.kind {
                ValueKind::Paths => put_named_or_extension(&mut section, 2, 1, &name, *entry, &value),
                _ => put_named(&mut section, 1, &name, *entry, &value),
            }
        }
        write_bytes(&mut out, field.number, &section);
    }
    for (name, text) in parts.iter().filter(|(name, _)| is_extension(name)) {
        put_named(&mut out, DOCUMENT.extensions, name, ValueKind::Any, &serde_json::from_str(text.get()).ok()?);
    }
    Some(out)
}

/// Appends a field. A value of another kind was removed by validation, and is omitted here.
fn put_value(out: &mut Vec<u8>, number: u8, kind: ValueKind, value: &Value) {
    match (kind, value) {
        (ValueKind::Text | ValueKind::Reference, Value::String(text)) if !text.is_empty() => {
            write_bytes(out, number, text.as_bytes())
        }
        (ValueKind::Flag, Value::Bool(true)) => integer(out, number, 1),
        (ValueKind::Integer, Value::Number(value)) => match as_integer(value).unwrap_or_default() {
            0 => {}
            value => integer(out, number, value as u64),
        },
        (ValueKind::Number, Value::Number(value)) => match value.as_f64().unwrap_or_default() {
            0.0 => {}
            value => write_double(out, number, value),
        },
        (ValueKind::Texts, Value::Array(entries)) => {
            entries.iter().filter_map(Value::as_str).for_each(|text| write_bytes(out, number, text.as_bytes()));
        }
        (ValueKind::TextOrTexts, value) => {
            let mut words = Vec::new();
            match value {
                Value::String(text) => write_bytes(&mut words, 1, text.as_bytes()),
                value => put_value(&mut words, 1, ValueKind::Texts, value),
            }
            write_bytes(out, number, &words);
        }
        (ValueKind::Any, value) => {
            let mut any = Vec::new();
            write_bytes(&mut any, 2, yaml_safe_json(value).as_bytes());
            write_bytes(out, number, &any);
        }
        (ValueKind::Anys, Value::Array(entries)) => {
            entries.iter().for_each(|entry| put_value(out, number, ValueKind::Any, entry))
        }
        (ValueKind::One(message), Value::Object(object)) => write_bytes(out, number, &encode_fields(message, object)),
        (ValueKind::Many(message), Value::Array(entries)) => {
            entries.iter().for_each(|entry| put_value(out, number, ValueKind::One(message), entry));
        }
        (ValueKind::Named(kind), Value::Object(object)) => {
            let mut entries = Vec::new();
            object.iter().for_each(|(name, value)| put_named(&mut entries, 1, name, *kind, value));
            write_bytes(out, number, &entries);
        }
        (ValueKind::NamedMany(kind), Value::Array(entries)) => {
            entries.iter().for_each(|entry| put_value(out, number, ValueKind::Named(kind), entry));
        }
        (ValueKind::Choice(choose), Value::Object(object)) => {
            let Some((around, message)) = choose(object) else { return };
            let wrap = |inner: Vec<u8>, number: &u8| {
                let mut outer = Vec::with_capacity(inner.len() + 4);
                write_bytes(&mut outer, *number, &inner);
                outer
            };
            write_bytes(out, number, &around.iter().rev().fold(encode_fields(message, object), wrap));
        }
        (ValueKind::Choices(choose), Value::Array(entries)) => {
            entries.iter().for_each(|entry| put_value(out, number, ValueKind::Choice(choose), entry));
        }
        (ValueKind::SchemaOrFlag, value) => {
            let mut either = Vec::new();
            match value {
                // A oneof, so `false` is written, too.
                Value::Bool(flag) => integer(&mut either, 2, u64::from(*flag)),
                value => put_value(&mut either, 1, ValueKind::One(&SCHEMA), value),
            }
            write_bytes(out, number, &either);
        }
        (ValueKind::Schemas, value) => {
            let mut schemas = Vec::new();
            match value {
                Value::Array(_) => put_value(&mut schemas, 1, ValueKind::Many(&SCHEMA), value),
                value => put_value(&mut schemas, 1, ValueKind::One(&SCHEMA), value),
            }
            write_bytes(out, number, &schemas);
        }
        (ValueKind::Responses, Value::Object(object)) => {
            let mut answers = Vec::new();
            object.iter().for_each(|(name, value)| {
                put_named_or_extension(&mut answers, 1, 2, name, RESPONSE_OR_REFERENCE, value)
            });
            write_bytes(out, number, &answers);
        }
        (ValueKind::Paths, Value::Object(object)) => {
            let mut paths = Vec::new();
            object.iter().for_each(|(name, value)| put_named_or_extension(&mut paths, 2, 1, name, PATH, value));
            write_bytes(out, number, &paths);
        }
        _ => {}
    }
}

fn encode_fields(message: &MessageSchema, object: &Map<String, Value>) -> Vec<u8> {
    let mut out = Vec::new();
    for FieldSchema { key, number, kind } in message.fields {
        if let Some(value) = object.get(*key) {
            put_value(&mut out, *number, *kind, value);
        }
    }
    if message.extensions > 0 {
        for (name, value) in object.iter().filter(|(name, _)| is_extension(name)) {
            put_named(&mut out, message.extensions, name, ValueKind::Any, value);
        }
    }
    out
}

/// One of the messages `Named…`: a name and its value.
fn put_named(out: &mut Vec<u8>, number: u8, name: &str, kind: ValueKind, value: &Value) {
    let mut entry = Vec::new();
    write_bytes(&mut entry, 1, name.as_bytes());
    put_value(&mut entry, 2, kind, value);
    write_bytes(out, number, &entry);
}

fn put_named_or_extension(out: &mut Vec<u8>, number: u8, extensions: u8, name: &str, kind: ValueKind, value: &Value) {
    match is_extension(name) {
        true => put_named(out, extensions, name, ValueKind::Any, value),
        false => put_named(out, number, name, kind, value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn openapi_v2_protobuf_equals_gnostic_bytes() {
        let put = |kind, value: Value| {
            let mut out = Vec::new();
            put_value(&mut out, 1, kind, &value);
            out
        };
        assert_eq!(put(ValueKind::Text, json!("abc")), b"\x0a\x03abc");
        assert_eq!(put(ValueKind::Flag, json!(true)), [8, 1]);
        assert_eq!(put(ValueKind::Flag, json!(false)), [] as [u8; 0]);
        assert_eq!(put(ValueKind::Integer, json!(300.0)), [8, 0xac, 2]);
        assert_eq!(put(ValueKind::Integer, json!(-1)), [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert_eq!(put(ValueKind::Number, json!(1)), [9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(put(ValueKind::TextOrTexts, json!("a")), b"\x0a\x03\x0a\x01a");
        assert_eq!(put(ValueKind::TextOrTexts, json!(["a", "b"])), b"\x0a\x06\x0a\x01a\x0a\x01b");
        assert_eq!(put(ValueKind::SchemaOrFlag, json!(false)), [10, 2, 16, 0]);
        assert_eq!(put(ValueKind::SchemaOrFlag, json!({})), [10, 2, 10, 0]);
        assert_eq!(put(ValueKind::Any, json!({"a": [1]})), b"\x0a\x0b\x12\x09{\"a\":[1]}");
        // A path parameter is nested in two messages.
        let parameter = put(PARAMETER, json!({"in": "path", "required": true}));
        assert_eq!(parameter, b"\x0a\x0c\x12\x0a\x22\x08\x08\x01\x12\x04path");
        let document = encode(br#"{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{}}"#).unwrap();
        assert_eq!(document, b"\x0a\x032.0\x12\x06\x0a\x01t\x12\x01v\x42\x00");
        assert_eq!(encode(b"[]"), None);
    }
}
