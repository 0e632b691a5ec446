//! Scalars as `go.yaml.in/yaml/v2` resolves them (`resolve.go`): YAML 1.1 without base 60, and then as JSON, so that
//! `1.0` is an integer.

use base64::Engine as _;
use serde_json::Value;

use super::{YamlReadError, fail};
use crate::json::{format_go_number, read_json, write_json};

/// The value of a scalar. `tag` is that of YAML's core schema, such as `str`, empty for another one.
pub(super) fn resolve_scalar(text: &str, is_plain: bool, tag: Option<&str>) -> Result<Value, YamlReadError> {
    match tag {
        None if !is_plain => Ok(text.into()),
        None => as_json(resolve_plain(text), text),
        Some("str" | "") => Ok(text.into()),
        Some("binary") => match base64::engine::general_purpose::STANDARD.decode(text.replace(['\n', '\r'], "")) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned().into()),
            Err(_) => fail("!!binary value contains invalid base64 data"),
        },
        Some(tag) => {
            let scalar = resolve_plain(text);
            let scalar = match (tag, scalar) {
                ("float", YamlScalar::Integer(integer)) => YamlScalar::Float(integer as f64),
                (_, other) => other,
            };
            let is_timestamp = tag == "timestamp" && matches!(scalar, YamlScalar::Text);
            if scalar.tag() != tag && !is_timestamp {
                return fail(format_args!("cannot decode !!{} `{text}` as a !!{tag}", scalar.tag()));
            }
            if is_timestamp { Ok(text.into()) } else { as_json(scalar, text) }
        }
    }
}

/// The text of a scalar that is a key.
pub(super) fn key_text(value: &Value) -> Result<String, YamlReadError> {
    match value {
        Value::String(key) => Ok(key.clone()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Number(_) => Ok(format_go_number(value)),
        _ => fail("unsupported map key of type: %!s(<nil>)"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum YamlScalar {
    Null,
    Bool(bool),
    Integer(i64),
    /// Beyond `i64`.
    Unsigned(u64),
    Float(f64),
    Text,
}

impl YamlScalar {
    fn tag(self) -> &'static str {
        match self {
            YamlScalar::Null => "null",
            YamlScalar::Bool(_) => "bool",
            YamlScalar::Integer(_) | YamlScalar::Unsigned(_) => "int",
            YamlScalar::Float(_) => "float",
            YamlScalar::Text => "str",
        }
    }
}

fn as_json(scalar: YamlScalar, text: &str) -> Result<Value, YamlReadError> {
    Ok(match scalar {
        YamlScalar::Null => Value::Null,
        YamlScalar::Bool(flag) => flag.into(),
        YamlScalar::Integer(integer) => integer.into(),
        YamlScalar::Unsigned(integer) => (integer as f64).into(),
        YamlScalar::Float(float) if !float.is_finite() => {
            let name = if float.is_nan() {
                "NaN"
            } else if float > 0.0 {
                "+Inf"
            } else {
                "-Inf"
            };
            return Err(YamlReadError(format!("json: unsupported value: {name}")));
        }
        // Kubernetes writes JSON and reads it again.
        YamlScalar::Float(float) => match read_json(write_json(&float.into()).as_bytes()) {
            Ok((value, _)) => value,
            Err(_) => float.into(),
        },
        YamlScalar::Text => text.into(),
    })
}

fn resolve_plain(text: &str) -> YamlScalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return YamlScalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return YamlScalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return YamlScalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return YamlScalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return YamlScalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return YamlScalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    match text.bytes().next() {
        Some(b'.') => parse_float(&text.replace('_', "")).map_or(YamlScalar::Text, YamlScalar::Float),
        Some(b'0'..=b'9' | b'+' | b'-') => {
            let plain = text.replace('_', "");
            parse_integer(&plain).or_else(|| parse_float(&plain).map(YamlScalar::Float)).unwrap_or(YamlScalar::Text)
        }
        _ => YamlScalar::Text,
    }
}

/// Go's `strconv.ParseInt` and `ParseUint` with base 0: `0x`, `0o`, `0b`, and a zero for octal numbers.
fn parse_integer(text: &str) -> Option<YamlScalar> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (Some(true), &text[1..]),
        b'+' => (Some(false), &text[1..]),
        _ => (None, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find_map(|(prefix, radix)| Some((lower.strip_prefix(prefix)?, radix)))
        .unwrap_or_else(|| match lower.strip_prefix('0') {
            Some(rest) if !rest.is_empty() => (rest, 8),
            _ => (lower.as_str(), 10),
        });
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    match (sign, i64::try_from(size)) {
        (Some(true), Ok(size)) => Some(YamlScalar::Integer(-size)),
        (Some(true), Err(_)) if size == i64::MIN.unsigned_abs() => Some(YamlScalar::Integer(i64::MIN)),
        (Some(false) | None, Ok(size)) => Some(YamlScalar::Integer(size)),
        (None, Err(_)) => Some(YamlScalar::Unsigned(size)),
        _ => None,
    }
}

/// A float with digits at one side of the point at least.
fn parse_float(text: &str) -> Option<f64> {
    let is_float_byte = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    if !text.bytes().all(is_float_byte) || text.starts_with("+-") {
        return None;
    }
    text.parse().ok().filter(|float: &f64| float.is_finite())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Values of `sigs.k8s.io/yaml`.
    #[test]
    fn yaml_scalars_match_upstream() {
        for (text, expected) in [
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("n", json!(false)),
            ("yEs", json!("yEs")),
            ("~", json!(null)),
            ("", json!(null)),
            ("12", json!(12)),
            ("+12", json!(12)),
            ("-0", json!(0)),
            ("1_000", json!(1000)),
            ("010", json!(8)),
            ("0o10", json!(8)),
            ("0x1F", json!(31)),
            ("0b11", json!(3)),
            ("-0b11", json!(-3)),
            ("08", json!(8)),
            ("0x", json!("0x")),
            ("1.0", json!(1)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("5.", json!(5)),
            ("1e3", json!(1000)),
            ("1e30", json!(1e30)),
            ("1e999", json!("1e999")),
            ("9223372036854775808", json!(9_223_372_036_854_775_808f64)),
            ("+9223372036854775808", json!(9_223_372_036_854_775_808f64)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("2020-01-01", json!("2020-01-01")),
            ("1.2.3", json!("1.2.3")),
            ("10m", json!("10m")),
            ("-", json!("-")),
            (".", json!(".")),
            ("190:20:30", json!("190:20:30")),
            ("<<", json!("<<")),
            ("=", json!("=")),
        ] {
            assert_eq!(resolve_scalar(text, true, None), Ok(expected), "{text}");
        }
        assert_eq!(resolve_scalar("yes", false, None), Ok(json!("yes")));
        assert_eq!(resolve_scalar("5", true, Some("str")), Ok(json!("5")));
        assert_eq!(resolve_scalar("5", false, Some("int")), Ok(json!(5)));
        assert_eq!(resolve_scalar("aGk=", true, Some("binary")), Ok(json!("hi")));
        let error = resolve_scalar("x", true, Some("int")).unwrap_err();
        assert_eq!(error.to_string(), "yaml: cannot decode !!str `x` as a !!int");
    }
}
