//! Size of a value in memory, as far as it matters: whether it is processed on the worker thread.

use serde_json::{Map, Value};

use super::MAX_INLINE_BYTES;

/// Bytes that a value takes besides its text.
const VALUE_BYTES: usize = 16;

/// Size of a value in bytes, roughly. Counted up to a little more than [`MAX_INLINE_BYTES`], so that it costs little.
pub fn value_size(value: &Value) -> usize {
    let mut size = 0;
    add_value(&mut size, value);
    size
}

/// As [`value_size`], of an object.
pub fn map_size(object: &Map<String, Value>) -> usize {
    let mut size = 0;
    add_map(&mut size, object);
    size
}

fn add_value(size: &mut usize, value: &Value) {
    *size += VALUE_BYTES;
    match value {
        Value::String(text) => *size += text.len(),
        Value::Array(items) => {
            for item in items {
                if *size > MAX_INLINE_BYTES {
                    return;
                }
                add_value(size, item);
            }
        }
        Value::Object(map) => add_map(size, map),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn add_map(size: &mut usize, object: &Map<String, Value>) {
    for (key, value) in object {
        if *size > MAX_INLINE_BYTES {
            return;
        }
        *size += key.len();
        add_value(size, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn value_size_counts_texts_and_values_up_to_inline_size() {
        let small = value_size(&json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(1000)}}));
        assert!((1000..1200).contains(&small), "{small}");
        for large in [
            json!("x".repeat(MAX_INLINE_BYTES)),
            json!({"a": vec![0; 10_000]}),
            json!({"a": vec![json!({}); 10_000]}),
            json!(vec![vec!["x"; 100]; 100]),
        ] {
            assert!(value_size(&large) > MAX_INLINE_BYTES);
        }
        assert!(value_size(&json!(vec![0; 10_000_000])) < MAX_INLINE_BYTES + 100, "it stops counting");
    }
}
