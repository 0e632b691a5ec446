//! Size of a value as JSON, without writing it.

use serde_json::Value;

/// Number of bytes of a value as JSON without spaces, as `serde_json` writes it.
pub fn json_size(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(flag) => {
            if *flag {
                4
            } else {
                5
            }
        }
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => text_size(text),
        Value::Array(items) => 2 + items.len().saturating_sub(1) + items.iter().map(json_size).sum::<usize>(),
        Value::Object(map) => {
            let fields = map.iter().map(|(key, value)| text_size(key) + 1 + json_size(value));
            2 + map.len().saturating_sub(1) + fields.sum::<usize>()
        }
    }
}

/// Number of objects with fields up to which the size of a value as JSON tells what it takes in memory.
const MANY_OBJECTS: usize = 1 << 14;

/// Whether a value has more than `size` bytes as JSON, and so many small objects that it takes up to a hundred times that
/// in memory: an object with one field takes 7 bytes of JSON and over 600 of memory.
pub fn is_costly_beyond(value: &Value, size: usize) -> bool {
    filled_object_count(value) > MANY_OBJECTS && json_size(value) > size
}

/// Number of objects with fields in a value.
fn filled_object_count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(filled_object_count).sum(),
        Value::Object(map) => usize::from(!map.is_empty()) + map.values().map(filled_object_count).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn text_size(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    2 + text.bytes().map(escaped).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_value_is_costly_for_many_small_objects_beyond_the_size() {
        let many = json!(vec![json!({"": 0}); MANY_OBJECTS + 1]);
        let size = json_size(&many);
        assert!(is_costly_beyond(&many, size - 1) && !is_costly_beyond(&many, size));
        assert!(!is_costly_beyond(&json!("x".repeat(size)), 1));
        assert!(!is_costly_beyond(&json!(vec![json!({}); MANY_OBJECTS + 1]), 1));
    }
}
