//! Input and result values of expressions.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value;
use cel::objects::{Key, Map};

/// Value of the variable on which an expression is evaluated.
#[derive(Clone, Debug)]
pub struct ExpressionInput {
    pub(super) value: Value,
    /// Number of values, nested ones included.
    pub(super) elements: f64,
    /// Total length of all strings.
    pub(super) bytes: f64,
}

/// Result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub enum EvaluatedValue {
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// A list of strings.
    StringList(Vec<String>),
    /// `null`.
    Null,
    /// Any other value, by the name of its type.
    Other(String),
}

impl ExpressionInput {
    /// Converts a JSON value. Numbers become doubles, as when Go's `encoding/json` decodes into `any`.
    pub fn from_json(json: &serde_json::Value) -> ExpressionInput {
        let mut input = ExpressionInput { value: Value::Null, elements: 0.0, bytes: 0.0 };
        input.value = input.convert(json);
        input
    }

    fn convert(&mut self, json: &serde_json::Value) -> Value {
        self.elements += 1.0;
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(yes) => Value::Bool(*yes),
            serde_json::Value::Number(number) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => Value::String(Arc::new(self.copy_string(text))),
            serde_json::Value::Array(list) => Value::List(Arc::new(list.iter().map(|one| self.convert(one)).collect())),
            serde_json::Value::Object(map) => {
                let entries =
                    map.iter().map(|(key, value)| (Key::String(Arc::new(self.copy_string(key))), self.convert(value)));
                let entries: HashMap<Key, Value> = entries.collect();
                Value::Map(Map { map: Arc::new(entries) })
            }
        }
    }

    fn copy_string(&mut self, text: &str) -> String {
        self.bytes += count(text.len());
        text.to_owned()
    }
}

impl EvaluatedValue {
    pub(super) fn from_cel(value: Value) -> Result<EvaluatedValue, String> {
        Ok(match value {
            Value::Bool(yes) => EvaluatedValue::Bool(yes),
            Value::String(text) => EvaluatedValue::String(Arc::unwrap_or_clone(text)),
            Value::Null => EvaluatedValue::Null,
            Value::List(list) => {
                let texts = list.iter().map(|one| match one {
                    Value::String(text) => Some(text.as_str().to_owned()),
                    _ => None,
                });
                match texts.collect() {
                    Some(texts) => EvaluatedValue::StringList(texts),
                    None => EvaluatedValue::Other("list".to_owned()),
                }
            }
            other => EvaluatedValue::Other(other.type_of().to_string()),
        })
    }
}

/// Converts a count; exact for every size that fits in memory.
#[allow(clippy::cast_precision_loss)]
pub(super) fn count(number: usize) -> f64 {
    number as f64
}
