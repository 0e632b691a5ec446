//! Writes JSON byte for byte as Go's `encoding/json`: sorted keys, Go's floats, HTML characters escaped.

use serde_json::{Map, Number, Value};

/// Writes a value on one line, without a newline at the end.
pub fn write_json(value: &Value) -> String {
    let mut out = String::new();
    write_json_into(&mut out, value);
    out
}

/// Appends a value on one line, without a newline at the end.
pub fn write_json_into(out: &mut String, value: &Value) {
    write_value(out, value, write_number);
}

/// Appends a value on one line, its numbers by `write_number`.
fn write_value(out: &mut String, value: &Value, write_number: fn(&mut String, &Number)) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => quote_json_into(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, item, write_number);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_key(out, key);
                write_value(out, value, write_number);
            }
            out.push('}');
        }
    }
}

fn write_key(out: &mut String, key: &str) {
    quote_json_into(out, key);
    out.push(':');
}

/// Appends a string in quotes, escaped as by Go, with `<`, `>`, `&`, U+2028 and U+2029 as `\u003c` and so on.
pub fn quote_json_into(out: &mut String, text: &str) {
    out.push('"');
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let width = match byte {
            b'"' | b'\\' | b'<' | b'>' | b'&' | 0..0x20 => 1,
            // U+2028 and U+2029 are E2 80 A8 and E2 80 A9.
            0xe2 if matches!(bytes.get(at + 1..at + 3), Some([0x80, 0xa8 | 0xa9])) => 3,
            _ => continue,
        };
        out.push_str(&text[copied..at]);
        copied = at + width;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            0xe2 if bytes[at + 2] == 0xa8 => out.push_str("\\u2028"),
            0xe2 => out.push_str("\\u2029"),
            _ => out.push_str(&format!("\\u{byte:04x}")),
        }
    }
    out.push_str(&text[copied..]);
    out.push('"');
}

/// Go's `float64` in JSON: as `%f` in the shortest form, or with an exponent below 1e-6 and from 1e21 on.
fn write_number(out: &mut String, number: &Number) {
    use std::fmt::Write;
    let float = match number.as_f64() {
        Some(float) if number.is_f64() => float,
        _ => {
            let _ = write!(out, "{number}");
            return;
        }
    };
    let size = float.abs();
    let _ = if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{float:e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) if !exponent.starts_with('-') => write!(out, "{mantissa}e+{exponent}"),
            _ => write!(out, "{text}"),
        }
    } else {
        write!(out, "{float}")
    };
}

/// As [`write_number`], with `0` for a negative zero: Go writes `-0`, and reads that as an integer.
fn write_stored_number(out: &mut String, number: &Number) {
    match number.as_f64() {
        Some(0.0) => out.push('0'),
        _ => write_number(out, number),
    }
}

/// Go's `%v` of a number: an integer, or the shortest float, with an exponent of at least two digits below 1e-4 and from
/// 1e6 on.
pub fn format_go_number(value: &Value) -> String {
    let float = match value {
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default(),
        _ => return value.to_string(),
    };
    if float == 0.0 || (1e-4..1e6).contains(&float.abs()) {
        return float.to_string();
    }
    let text = format!("{float:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Go's word for the type of a JSON value, as in `json: cannot unmarshal array into Go value`.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// An object as it is stored: without `metadata.resourceVersion`, with a newline at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredJson {
    /// The bytes, valid UTF-8.
    pub bytes: Vec<u8>,
    /// Place of the resource version; `None` if `metadata` is not an object.
    pub slot: Option<VersionSlot>,
}

/// Place in written bytes where `metadata.resourceVersion` belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionSlot {
    /// Offset in bytes.
    pub offset: usize,
    comma_before: bool,
    comma_after: bool,
}

impl VersionSlot {
    /// Appends `bytes` with `metadata.resourceVersion` to `out`. The slot must be that of `bytes`.
    pub fn splice_into(&self, out: &mut Vec<u8>, bytes: &[u8], resource_version: u64) {
        let (before, after) = bytes.split_at(self.offset.min(bytes.len()));
        out.reserve(bytes.len() + 44);
        out.extend_from_slice(before);
        if self.comma_before {
            out.push(b',');
        }
        out.extend_from_slice(b"\"resourceVersion\":\"");
        out.extend_from_slice(resource_version.to_string().as_bytes());
        out.push(b'"');
        if self.comma_after {
            out.push(b',');
        }
        out.extend_from_slice(after);
    }
}

/// Writes an object without its resource version, and notes where that belongs.
pub fn write_stored_json(object: &Map<String, Value>) -> StoredJson {
    const VERSION: &str = "resourceVersion";
    let mut out = String::new();
    let mut slot = None;
    out.push('{');
    for (index, (key, value)) in object.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_key(&mut out, key);
        match value {
            Value::Object(metadata) if key == "metadata" => {
                out.push('{');
                let (mut first, mut offset, mut comma_before) = (true, out.len(), false);
                for (key, value) in metadata.iter().filter(|(key, _)| *key != VERSION) {
                    if !first {
                        out.push(',');
                    }
                    first = false;
                    write_key(&mut out, key);
                    write_value(&mut out, value, write_stored_number);
                    if key.as_str() < VERSION {
                        (offset, comma_before) = (out.len(), true);
                    }
                }
                slot = Some(VersionSlot { offset, comma_before, comma_after: !first && !comma_before });
                out.push('}');
            }
            _ => write_value(&mut out, value, write_stored_number),
        }
    }
    out.push_str("}\n");
    // Kept as long as the object; it has grown by doubling.
    out.shrink_to_fit();
    StoredJson { bytes: out.into_bytes(), slot }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::read_json;
    use super::*;

    /// Go's bytes, from `encoding/json`.
    #[test]
    fn json_write_matches_go() {
        for (value, expected) in [
            (json!(1.0), "1"),
            (json!(-0.0), "-0"),
            (json!(0.1), "0.1"),
            (json!(1e20), "100000000000000000000"),
            (json!(1e21), "1e+21"),
            (json!(1.5e300), "1.5e+300"),
            (json!(0.000_001), "0.000001"),
            (json!(0.000_000_15), "1.5e-7"),
            (json!(5e-324), "5e-324"),
            (json!(9_223_372_036_854_775_808f64), "9223372036854776000"),
            (json!(i64::MIN), "-9223372036854775808"),
            (json!("<a>&\u{2028}\u{2029}\"\\/\n\r\t\x08\x0c\0\x7fé\u{1f600}"), {
                "\"\\u003ca\\u003e\\u0026\\u2028\\u2029\\\"\\\\/\\n\\r\\t\\b\\f\\u0000\x7fé\u{1f600}\""
            }),
            (json!({"b": [1, null, true, false, {}], "a": [], "B": "x", "<": 1}), {
                r#"{"\u003c":1,"B":"x","a":[],"b":[1,null,true,false,{}]}"#
            }),
        ] {
            assert_eq!(write_json(&value), expected);
        }
    }

    #[test]
    fn json_stored_zero_has_no_sign() {
        let object = json!({"a": -0.0, "b": [0.0, -0.5, 0], "metadata": {"c": -0.0}});
        let bytes = write_stored_json(object.as_object().unwrap()).bytes;
        assert_eq!(String::from_utf8(bytes).unwrap(), "{\"a\":0,\"b\":[0,-0.5,0],\"metadata\":{\"c\":0}}\n");
    }

    #[test]
    fn json_stored_without_version_and_spliced_in_order() {
        for (metadata, expected) in [
            (json!({"name": "a", "resourceVersion": "3", "uid": "u"}), {
                r#"{"kind":"K","metadata":{"name":"a","resourceVersion":"42","uid":"u"},"spec":{}}"#
            }),
            (json!({"uid": "u"}), r#"{"kind":"K","metadata":{"resourceVersion":"42","uid":"u"},"spec":{}}"#),
            (json!({"name": "a"}), r#"{"kind":"K","metadata":{"name":"a","resourceVersion":"42"},"spec":{}}"#),
            (json!({}), r#"{"kind":"K","metadata":{"resourceVersion":"42"},"spec":{}}"#),
        ] {
            let object = json!({"kind": "K", "metadata": metadata, "spec": {}});
            let stored = write_stored_json(object.as_object().unwrap());
            assert!(!String::from_utf8_lossy(&stored.bytes).contains("resourceVersion"));
            let mut spliced = Vec::new();
            stored.slot.unwrap().splice_into(&mut spliced, &stored.bytes, 42);
            assert_eq!(String::from_utf8(spliced).unwrap(), format!("{expected}\n"));
        }
        assert_eq!(write_stored_json(json!({"a": 1}).as_object().unwrap()).slot, None);
    }

    fn arbitrary_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter("has a fraction", |f| f.fract() != 0.0).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(".{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_write_then_read_is_identity(value in arbitrary_value()) {
            prop_assert_eq!(read_json(write_json(&value).as_bytes()).unwrap().0, value);
        }
    }
}
