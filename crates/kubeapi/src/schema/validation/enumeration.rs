//! The keyword `enum`: allowed values, found in a time that does not depend on their number.

use std::collections::HashSet;

use serde_json::Value;

use super::budget::BYTES_PER_STEP;
use super::number::GoNumber;
use super::{ValidationResult, field_of};
use crate::GoQuoted;
use crate::field_error::{BadValue, FieldError, FieldErrorKind};
use crate::json::{json_size, write_json};
use crate::schema::path::ValuePath;

/// Maximum size of the values that an error lists, in bytes.
const MAX_LISTED: usize = 16 << 10;

/// Allowed values; none for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Enumeration {
    values: Vec<Value>,
    texts: HashSet<String>,
    integers: HashSet<i64>,
    /// Bits of floats.
    floats: HashSet<u64>,
    /// Truth values, lists and objects as JSON.
    others: HashSet<String>,
    /// The values as an error lists them.
    listed: String,
}

impl From<Vec<Value>> for Enumeration {
    fn from(values: Vec<Value>) -> Enumeration {
        let mut all = Enumeration::default();
        for value in &values {
            match value {
                Value::Null => {}
                Value::String(text) => drop(all.texts.insert(text.clone())),
                Value::Number(number) => match GoNumber::of(number) {
                    GoNumber::Integer(integer) => drop(all.integers.insert(integer)),
                    GoNumber::Float(float) => drop(all.floats.insert(bits(float))),
                },
                other => drop(all.others.insert(other.to_string())),
            }
            if all.listed.len() < MAX_LISTED {
                let text = value.as_str().map_or_else(|| write_json(value), str::to_owned);
                all.listed.push_str(if all.listed.is_empty() { "supported values: " } else { ", " });
                all.listed.push_str(&GoQuoted(&text).to_string());
            }
        }
        all.values = values;
        all
    }
}

impl Enumeration {
    /// Bytes of a list or object that is written as JSON, to be compared and for an error.
    fn compared_size(value: &Value) -> usize {
        match value {
            Value::Array(_) | Value::Object(_) => json_size(value),
            _ => 0,
        }
    }

    /// Whether a value, converted as by Go to the type of an allowed one, equals it: a float is cut off, an integer is a
    /// character. Null never does.
    fn allows(&self, value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::String(text) => self.texts.contains(text),
            Value::Number(number) => match GoNumber::of(number) {
                GoNumber::Integer(integer) => {
                    let character = u32::try_from(integer).ok().and_then(char::from_u32);
                    let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
                    self.integers.contains(&integer)
                        || self.floats.contains(&bits(GoNumber::Integer(integer).as_float()))
                        || self.texts.contains(&*character.encode_utf8(&mut [0; 4]))
                }
                #[allow(clippy::cast_possible_truncation)]
                GoNumber::Float(float) => self.integers.contains(&(float as i64)) || self.floats.contains(&bits(float)),
            },
            other => !self.others.is_empty() && self.others.contains(&other.to_string()),
        }
    }
}

/// The bits of a float, the same for both zeros.
fn bits(float: f64) -> u64 {
    (float + 0.0).to_bits()
}

/// Checks that the value is one of those that are allowed.
pub(super) fn validate_enumeration(
    allowed: &Enumeration,
    value: &Value,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    if allowed.values.is_empty() || !result.budget.spend(Enumeration::compared_size(value) / BYTES_PER_STEP) {
        return;
    }
    if allowed.allows(value) {
        return;
    }
    let value = Some(BadValue::from(value));
    result.add(FieldError::new(FieldErrorKind::NotSupported, field_of(path), value, allowed.listed.as_str()));
}
