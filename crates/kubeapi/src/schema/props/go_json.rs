//! JSON as Go writes its structs without tags: absent lists and maps are null, numbers and escapes are Go's.

use std::collections::BTreeMap;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::field_error::BadValue;
use crate::json::{format_go_number, write_json};

/// A value as an error shows it.
pub fn bad_value(value: &impl Serialize) -> BadValue {
    let text = serde_json::to_string(value).unwrap_or_default();
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    BadValue::from_json(escaped)
}

/// Writes a list; null if empty.
pub fn list<T: Serialize, S: Serializer>(items: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    if items.is_empty() { serializer.serialize_none() } else { items.serialize(serializer) }
}

/// Writes a map; null if empty.
pub fn map<T: Serialize, S: Serializer>(items: &BTreeMap<String, T>, serializer: S) -> Result<S::Ok, S::Error> {
    if items.is_empty() { serializer.serialize_none() } else { items.serialize(serializer) }
}

/// Writes any JSON, or null.
pub fn value<S: Serializer>(value: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(|value| raw(write_json(value))).transpose().map_err(S::Error::custom)?.serialize(serializer)
}

/// Writes a list of any JSON; null if empty.
pub fn values<S: Serializer>(values: &[Value], serializer: S) -> Result<S::Ok, S::Error> {
    let texts: Result<Vec<_>, _> = values.iter().map(|value| raw(write_json(value))).collect();
    list(&texts.map_err(S::Error::custom)?, serializer)
}

/// Writes a float, or null.
pub fn float<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = number.map(|number| raw(format_go_number(&Value::from(number))));
    text.transpose().map_err(S::Error::custom)?.serialize(serializer)
}

fn raw(json: String) -> serde_json::Result<Box<RawValue>> {
    RawValue::from_string(json)
}
