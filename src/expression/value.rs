//! Input and result values of expressions.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value;
use cel::objects::{Key, Map};

use super::cost::count;

/// Value of the variable on which an expression is evaluated.
#[derive(Clone, Debug)]
pub struct Input {
    pub(super) value: Value,
    /// Number of values, nested ones included.
    pub(super) elements: f64,
    /// Total length of all strings.
    pub(super) bytes: f64,
}

/// Result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// A list of strings.
    Texts(Vec<String>),
    /// `null`.
    Null,
    /// Any other value, by the name of its type.
    Other(String),
}

impl Input {
    /// Converts a JSON value. Numbers become doubles, as when Go's `encoding/json` decodes into `any`.
    pub fn of(json: &serde_json::Value) -> Input {
        let mut input = Input { value: Value::Null, elements: 0.0, bytes: 0.0 };
        input.value = input.take(json);
        input
    }

    fn take(&mut self, json: &serde_json::Value) -> Value {
        self.elements += 1.0;
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(yes) => Value::Bool(*yes),
            serde_json::Value::Number(number) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => Value::String(Arc::new(self.text(text))),
            serde_json::Value::Array(list) => Value::List(Arc::new(list.iter().map(|one| self.take(one)).collect())),
            serde_json::Value::Object(map) => {
                let entries = map.iter().map(|(key, value)| (Key::String(Arc::new(self.text(key))), self.take(value)));
                let entries: HashMap<Key, Value> = entries.collect();
                Value::Map(Map { map: Arc::new(entries) })
            }
        }
    }

    fn text(&mut self, text: &str) -> String {
        self.bytes += count(text.len());
        text.to_owned()
    }
}

impl Outcome {
    pub(super) fn of(value: Value) -> Result<Outcome, String> {
        Ok(match value {
            Value::Bool(yes) => Outcome::Bool(yes),
            Value::String(text) => Outcome::Text(Arc::unwrap_or_clone(text)),
            Value::Null => Outcome::Null,
            Value::List(list) => {
                let texts = list.iter().map(|one| match one {
                    Value::String(text) => Some(text.as_str().to_owned()),
                    _ => None,
                });
                match texts.collect() {
                    Some(texts) => Outcome::Texts(texts),
                    None => Outcome::Other("list".to_owned()),
                }
            }
            other => Outcome::Other(other.type_of().to_string()),
        })
    }
}
