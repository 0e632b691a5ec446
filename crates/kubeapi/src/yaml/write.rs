//! Writes YAML in the layout of `sigs.k8s.io/yaml`: sorted keys, lists as far left as their key, texts without quotes
//! where every reader of YAML 1.1 takes them for texts. Long lines are not folded.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::resolve::resolve_scalar;
use crate::json::write_json_into;

/// Indentation in spaces from which on mappings and lists are written in one line, as JSON, which is YAML. Otherwise each
/// scalar of a deeply nested object would have hundreds of spaces before it.
const MAX_INDENT: usize = 80;

/// Appends a value as a block at a level of indentation, in spaces, with a newline at the end.
pub fn write_yaml_into(out: &mut String, value: &Value, indent: usize) {
    write_indent(out, indent);
    write_block(out, value, indent);
}

/// Writes a value with a first line that is indented already.
fn write_block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() && indent < MAX_INDENT => write_mapping(out, map, indent),
        Value::Array(items) if !items.is_empty() && indent < MAX_INDENT => write_sequence(out, items, indent),
        scalar => {
            write_scalar(out, scalar, indent);
            out.push('\n');
        }
    }
}

fn write_mapping(out: &mut String, map: &Map<String, Value>, indent: usize) {
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 {
            write_indent(out, indent);
        }
        write_text(out, key, None);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() && indent < MAX_INDENT => {
                out.push('\n');
                write_indent(out, indent + 2);
                write_mapping(out, map, indent + 2);
            }
            Value::Array(items) if !items.is_empty() && indent < MAX_INDENT => {
                out.push('\n');
                write_indent(out, indent);
                write_sequence(out, items, indent);
            }
            scalar => {
                out.push(' ');
                write_scalar(out, scalar, indent + 2);
                out.push('\n');
            }
        }
    }
}

fn write_sequence(out: &mut String, items: &[Value], indent: usize) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            write_indent(out, indent);
        }
        out.push_str("- ");
        write_block(out, item, indent + 2);
    }
}

fn write_indent(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Writes a scalar, an empty mapping or list, or one that is nested too deep for a block. Lines of a text are indented by `indent`.
fn write_scalar(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(text) => write_text(out, text, Some(indent)),
        other => write_json_into(out, other),
    }
}

/// Writes a text; as a block of lines only where an indentation is given.
fn write_text(out: &mut String, text: &str, indent: Option<usize>) {
    let is_printable = |c: char| matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}');
    let is_one_line = text.chars().all(is_printable) && !text.contains(['\u{2028}', '\u{2029}']);
    if is_one_line && is_plain(text) {
        out.push_str(text);
        return;
    }
    // As Go: double quotes for what would be another type, single quotes for what has special characters.
    if is_one_line && is_text(text) && !text.starts_with(|c: char| c.is_ascii_digit()) && !text.is_empty() {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
        return;
    }
    let is_block = text.contains('\n')
        && !text.starts_with([' ', '\n', '\t'])
        && text.chars().all(|c| c == '\n' || c == '\t' || is_printable(c))
        && !text.contains(['\u{2028}', '\u{2029}']);
    match indent.filter(|_| is_block) {
        Some(indent) => write_lines(out, text, indent),
        None => write_quoted(out, text),
    }
}

/// Whether a plain scalar of this text needs no quotes in block context.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', ' ', '='])
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && text != "~"
        && text != "<<"
        && !text.starts_with("...")
        && is_text(text)
        // Dates and times, which YAML 1.1 has a type for.
        && !(text.len() >= 8 && text.as_bytes().get(4) == Some(&b'-') && text.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether the plain scalar is a text, and no boolean, number or null, to a reader of YAML 1.1.
fn is_text(text: &str) -> bool {
    matches!(resolve_scalar(text, true, None), Ok(Value::String(resolved)) if resolved == text)
}

/// Writes a literal block: as many newlines at its end as the text has.
fn write_lines(out: &mut String, text: &str, indent: usize) {
    let content = text.trim_end_matches('\n');
    out.push_str(match text.len() - content.len() {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            write_indent(out, indent);
            out.push_str(line);
        }
    }
}

fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(c),
            _ if c.is_alphanumeric() && u32::from(c) < 0xd800 => out.push(c),
            // Writing to a string cannot fail.
            _ => drop(write!(out, "\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::read_yaml;
    use super::*;

    fn write(value: &Value) -> String {
        let mut out = String::new();
        write_yaml_into(&mut out, value, 0);
        out
    }

    /// Layout and quotes of `sigs.k8s.io/yaml`.
    #[test]
    fn yaml_layout_is_that_of_upstream() {
        let value = json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-11-23T02:52:12Z", "labels": {"x": "y"}, "resourceVersion": "214",
                "uid": "5fb1a22c-585f-4282-a9ac-64686cd450ab", "annotations": {}, "finalizers": []},
            "items": [{"a": [1, [2, {"b": null}], "v<&"], "z": true}, "text: with colon", "two\nlines", "end\n"],
            "empty": "", "number": "1e3", "octal": "010", "bool": "true",
        });
        let expected = "\
bool: \"true\"
empty: \"\"
items:
- a:
  - 1
  - - 2
    - b: null
  - v<&
  z: true
- 'text: with colon'
- |-
  two
  lines
- |
  end
metadata:
  annotations: {}
  creationTimestamp: \"2026-11-23T02:52:12Z\"
  finalizers: []
  labels:
    x: \"y\"
  name: a
  resourceVersion: \"214\"
  uid: 5fb1a22c-585f-4282-a9ac-64686cd450ab
number: \"1e3\"
octal: \"010\"
";
        assert_eq!(write(&value), expected);
    }

    #[test]
    fn yaml_of_deeply_nested_value_is_not_many_times_larger() {
        let mut value = json!(vec![json!({"a": "two\nlines"}); 100]);
        for _ in 0..50 {
            value = json!([value]);
        }
        let json = value.to_string();
        let yaml = write(&value);
        assert!(yaml.len() < 3 * json.len(), "{} bytes of {}", yaml.len(), json.len());
        assert_eq!(read_yaml(&yaml).unwrap().value, value);
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            ".*",
            "[ \\-:#'\"\n\t|>{}\\[\\],&*!%@`?~<=.a0]{0,12}",
            "[0-9._eExob+:-]{1,8}",
            "(true|False|no|ON|y|null|~|\\.inf|\\.NaN|<<|2001-01-01|\u{85}|\u{feff}|\u{2028}|\u{fffe}|\u{1f600})",
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(text(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_write_then_read_is_identity(value in value()) {
            let text = write(&value);
            prop_assert_eq!(read_yaml(&text).map(|document| document.value), Ok(value), "{}", text);
        }
    }
}
