//! Encodes a document as gnostic's `openapi.v2.Document` (`github.com/google/gnostic-models`), which Go clients
//! request.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::form::{ANSWER, DEFINITION, DOCUMENT, Field, Kind, Message, PARAMETER, PATH, SCHEMA};
use super::judge::{is_extension, whole, written};
use crate::kubeapi::wire::{double, nested, number as integer};

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
                put(&mut out, field.number, field.kind, &serde_json::from_str(text.get()).ok()?);
                continue;
            }
        };
        let mut section = Vec::new();
        let entries: BTreeMap<String, &RawValue> = serde_json::from_str(text.get()).ok()?;
        for (name, text) in entries {
            let value: Value = serde_json::from_str(text.get()).ok()?;
            match field.kind {
                Kind::Paths => beside(&mut section, 2, 1, &name, *entry, &value),
                _ => named(&mut section, 1, &name, *entry, &value),
            }
        }
        nested(&mut out, field.number, &section);
    }
    for (name, text) in parts.iter().filter(|(name, _)| is_extension(name)) {
        named(&mut out, DOCUMENT.extensions, name, Kind::Any, &serde_json::from_str(text.get()).ok()?);
    }
    Some(out)
}

/// Appends a field. A value of another kind was removed by validation, and is omitted here.
fn put(out: &mut Vec<u8>, number: u8, kind: Kind, value: &Value) {
    match (kind, value) {
        (Kind::Text | Kind::Reference, Value::String(text)) if !text.is_empty() => nested(out, number, text.as_bytes()),
        (Kind::Flag, Value::Bool(true)) => integer(out, number, 1),
        (Kind::Whole, Value::Number(value)) => match whole(value).unwrap_or_default() {
            0 => {}
            value => integer(out, number, value as u64),
        },
        (Kind::Number, Value::Number(value)) => match value.as_f64().unwrap_or_default() {
            0.0 => {}
            value => double(out, number, value),
        },
        (Kind::Texts, Value::Array(entries)) => {
            entries.iter().filter_map(Value::as_str).for_each(|text| nested(out, number, text.as_bytes()));
        }
        (Kind::Words, value) => {
            let mut words = Vec::new();
            match value {
                Value::String(text) => nested(&mut words, 1, text.as_bytes()),
                value => put(&mut words, 1, Kind::Texts, value),
            }
            nested(out, number, &words);
        }
        (Kind::Any, value) => {
            let mut any = Vec::new();
            nested(&mut any, 2, written(value).as_bytes());
            nested(out, number, &any);
        }
        (Kind::Anys, Value::Array(entries)) => entries.iter().for_each(|entry| put(out, number, Kind::Any, entry)),
        (Kind::One(message), Value::Object(object)) => nested(out, number, &fields(message, object)),
        (Kind::Many(message), Value::Array(entries)) => {
            entries.iter().for_each(|entry| put(out, number, Kind::One(message), entry));
        }
        (Kind::Named(kind), Value::Object(object)) => {
            let mut entries = Vec::new();
            object.iter().for_each(|(name, value)| named(&mut entries, 1, name, *kind, value));
            nested(out, number, &entries);
        }
        (Kind::NamedMany(kind), Value::Array(entries)) => {
            entries.iter().for_each(|entry| put(out, number, Kind::Named(kind), entry));
        }
        (Kind::Choice(choose), Value::Object(object)) => {
            let Some((around, message)) = choose(object) else { return };
            let wrap = |inner: Vec<u8>, number: &u8| {
                let mut outer = Vec::with_capacity(inner.len() + 4);
                nested(&mut outer, *number, &inner);
                outer
            };
            nested(out, number, &around.iter().rev().fold(fields(message, object), wrap));
        }
        (Kind::Choices(choose), Value::Array(entries)) => {
            entries.iter().for_each(|entry| put(out, number, Kind::Choice(choose), entry));
        }
        (Kind::SchemaOrFlag, value) => {
            let mut either = Vec::new();
            match value {
                // A oneof, so `false` is written, too.
                Value::Bool(flag) => integer(&mut either, 2, u64::from(*flag)),
                value => put(&mut either, 1, Kind::One(&SCHEMA), value),
            }
            nested(out, number, &either);
        }
        (Kind::Schemas, value) => {
            let mut schemas = Vec::new();
            match value {
                Value::Array(_) => put(&mut schemas, 1, Kind::Many(&SCHEMA), value),
                value => put(&mut schemas, 1, Kind::One(&SCHEMA), value),
            }
            nested(out, number, &schemas);
        }
        (Kind::Responses, Value::Object(object)) => {
            let mut answers = Vec::new();
            object.iter().for_each(|(name, value)| beside(&mut answers, 1, 2, name, ANSWER, value));
            nested(out, number, &answers);
        }
        (Kind::Paths, Value::Object(object)) => {
            let mut paths = Vec::new();
            object.iter().for_each(|(name, value)| beside(&mut paths, 2, 1, name, PATH, value));
            nested(out, number, &paths);
        }
        _ => {}
    }
}

fn fields(message: &Message, object: &Map<String, Value>) -> Vec<u8> {
    let mut out = Vec::new();
    for Field { key, number, kind } in message.fields {
        if let Some(value) = object.get(*key) {
            put(&mut out, *number, *kind, value);
        }
    }
    if message.extensions > 0 {
        for (name, value) in object.iter().filter(|(name, _)| is_extension(name)) {
            named(&mut out, message.extensions, name, Kind::Any, value);
        }
    }
    out
}

/// One of the messages `Named…`: a name and its value.
fn named(out: &mut Vec<u8>, number: u8, name: &str, kind: Kind, value: &Value) {
    let mut entry = Vec::new();
    nested(&mut entry, 1, name.as_bytes());
    put(&mut entry, 2, kind, value);
    nested(out, number, &entry);
}

fn beside(out: &mut Vec<u8>, number: u8, extensions: u8, name: &str, kind: Kind, value: &Value) {
    match is_extension(name) {
        true => named(out, extensions, name, Kind::Any, value),
        false => named(out, number, name, kind, value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn byte_for_byte_gnostic_s() {
        let put = |kind, value: Value| {
            let mut out = Vec::new();
            put(&mut out, 1, kind, &value);
            out
        };
        assert_eq!(put(Kind::Text, json!("abc")), b"\x0a\x03abc");
        assert_eq!(put(Kind::Flag, json!(true)), [8, 1]);
        assert_eq!(put(Kind::Flag, json!(false)), [] as [u8; 0]);
        assert_eq!(put(Kind::Whole, json!(300.0)), [8, 0xac, 2]);
        assert_eq!(put(Kind::Whole, json!(-1)), [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert_eq!(put(Kind::Number, json!(1)), [9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(put(Kind::Words, json!("a")), b"\x0a\x03\x0a\x01a");
        assert_eq!(put(Kind::Words, json!(["a", "b"])), b"\x0a\x06\x0a\x01a\x0a\x01b");
        assert_eq!(put(Kind::SchemaOrFlag, json!(false)), [10, 2, 16, 0]);
        assert_eq!(put(Kind::SchemaOrFlag, json!({})), [10, 2, 10, 0]);
        assert_eq!(put(Kind::Any, json!({"a": [1]})), b"\x0a\x0b\x12\x09{\"a\":[1]}");
        // A path parameter is nested in two messages.
        let parameter = put(PARAMETER, json!({"in": "path", "required": true}));
        assert_eq!(parameter, b"\x0a\x0c\x12\x0a\x22\x08\x08\x01\x12\x04path");
        let document = encode(br#"{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{}}"#).unwrap();
        assert_eq!(document, b"\x0a\x032.0\x12\x06\x0a\x01t\x12\x01v\x42\x00");
        assert_eq!(encode(b"[]"), None);
    }
}
