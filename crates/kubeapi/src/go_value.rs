//! JSON values as Go prints them.

use serde_json::Value;

use super::json::format_go_number;

/// A value as Go's `%v` prints it, which Kubernetes' messages contain: `map[a:1 b:[x <nil>]]`.
pub fn format_go_value(value: &Value) -> String {
    let mut out = String::new();
    write_go_value(&mut out, value);
    out
}

fn write_go_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(_) => out.push_str(&format_go_number(value)),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                write_go_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                write_go_value(out, value);
            }
            out.push(']');
        }
    }
}

/// Go's name of the type of a value, as `%T` prints it.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn go_value_format_matches_percent_v() {
        let value = json!({"b": [1, "x", null, 1.5], "a": {"c": true}});
        assert_eq!(format_go_value(&value), "map[a:map[c:true] b:[1 x <nil> 1.5]]");
    }
}
