//! Values as errors show those of Go's internal types: structs without names for JSON, with all their fields in order.
//! `internal_structs.json` holds the structs; `tests/interop/kinds --validation` writes it.

use std::collections::HashMap;
use std::sync::LazyLock;

use kubeapi::field_error::BadValue;
use kubeapi::json::{quote_json_into, write_json_into};
use serde_json::Value;

use super::unified_diff::unified_diff;
use super::validation::NULL;

/// Fields of the structs that have names for JSON, in Go's order. What is not here is in the order of its name.
const EXTERNAL_ORDER: [&str; 17] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
    "matchLabels",
    "matchExpressions",
];

struct InternalField {
    /// Empty for a struct whose fields are those of the one around it.
    name: String,
    /// The name in JSON. Empty if the values are those of the struct around it, after `^` if they are in the one around that.
    external: String,
    shape: InternalShape,
}

enum InternalShape {
    Text,
    Flag,
    Number,
    /// As in JSON.
    External,
    Pointer(Box<InternalShape>),
    List(Box<InternalShape>),
    Map(Box<InternalShape>),
    Struct(String),
}

impl InternalShape {
    fn parse(code: &str) -> InternalShape {
        let inner = |code: &str| Box::new(InternalShape::parse(code));
        if let Some(code) = code.strip_prefix('*') {
            return InternalShape::Pointer(inner(code));
        }
        if let Some(code) = code.strip_prefix("[]") {
            return InternalShape::List(inner(code));
        }
        if let Some(code) = code.strip_prefix("{}") {
            return InternalShape::Map(inner(code));
        }
        match code {
            "s" => InternalShape::Text,
            "b" => InternalShape::Flag,
            "i" => InternalShape::Number,
            "j" => InternalShape::External,
            name => InternalShape::Struct(name.to_owned()),
        }
    }
}

static STRUCTS: LazyLock<HashMap<String, Vec<InternalField>>> = LazyLock::new(|| {
    let lines = include_str!("internal_structs.json").lines();
    let structs = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    structs.map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), read_fields(&one["fields"]))).collect()
});

fn read_fields(fields: &Value) -> Vec<InternalField> {
    let text = |field: &Value, index: usize| field[index].as_str().unwrap_or_default().to_owned();
    let field = |field: &Value| InternalField {
        name: text(field, 0),
        external: text(field, 1),
        shape: InternalShape::parse(&text(field, 2)),
    };
    fields.as_array().into_iter().flatten().map(field).collect()
}

/// A value of an internal struct, pointer (`*`) or list (`[]`).
pub(super) fn internal_value(shape: &str, value: &Value) -> BadValue {
    BadValue::from_json(internal_json(shape, value))
}

/// A value of an internal type as JSON.
pub(super) fn internal_json(shape: &str, value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, &InternalShape::parse(shape), value, &NULL);
    out
}

/// How two values of an internal type differ, as errors about immutable fields show it (`diff.Diff`).
pub(super) fn internal_diff(shape: &str, old: &Value, new: &Value) -> Option<String> {
    let shown = |value: &Value| indented(&internal_json(shape, value));
    let (old, new) = (shown(old), shown(new));
    (old != new).then(|| unified_diff(&old, &new))
}

/// JSON with one space a level, as errors show it.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    let mut letters = json.chars().peekable();
    let break_line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', depth));
    };
    while let Some(letter) = letters.next() {
        if is_in_string {
            is_in_string = letter != '"' || is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            out.push(letter);
            continue;
        }
        match letter {
            '{' | '[' => {
                out.push(letter);
                let is_empty = letters.peek().is_some_and(|next| matches!(next, '}' | ']'));
                depth += 1;
                if !is_empty {
                    break_line(&mut out, depth);
                }
                if is_empty {
                    depth -= 1;
                    out.extend(letters.next());
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                break_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            '"' => {
                is_in_string = true;
                out.push(letter);
            }
            letter => out.push(letter),
        }
    }
    out
}

/// A label selector or the metadata as JSON, in Go's order.
pub(super) fn external_value(value: &Value) -> BadValue {
    let mut out = String::new();
    write_external(&mut out, value);
    BadValue::from_json(out)
}

fn write_value(out: &mut String, shape: &InternalShape, value: &Value, around: &Value) {
    match (shape, value) {
        (InternalShape::Pointer(inner), value) if !value.is_null() => write_value(out, inner, value, around),
        (InternalShape::Text, value) => quote_json_into(out, value.as_str().unwrap_or_default()),
        (InternalShape::Flag, value) => out.push_str(if value == &Value::Bool(true) { "true" } else { "false" }),
        (InternalShape::Number, value) => out.push_str(&value.as_i64().unwrap_or_default().to_string()),
        (InternalShape::List(inner), Value::Array(items)) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, inner, item, &NULL);
            }
            out.push(']');
        }
        (InternalShape::Map(inner), Value::Object(map)) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                quote_json_into(out, key);
                out.push(':');
                write_value(out, inner, item, &NULL);
            }
            out.push('}');
        }
        (InternalShape::Struct(name), value) => {
            out.push('{');
            write_fields(out, name, value, around, &mut true);
            out.push('}');
        }
        (InternalShape::External, value) => write_external(out, value),
        _ => out.push_str("null"),
    }
}

fn write_fields(out: &mut String, name: &str, value: &Value, around: &Value, is_first: &mut bool) {
    for field in STRUCTS.get(name).into_iter().flatten() {
        let found = match (field.external.as_str(), field.external.strip_prefix('^')) {
            (_, Some(outer)) => &around[outer],
            ("", _) => value,
            (external, _) => &value[external],
        };
        match &field.shape {
            InternalShape::Struct(inner) if field.name.is_empty() => write_fields(out, inner, found, value, is_first),
            _ if field.name.is_empty() => write_external_fields(out, found, is_first),
            shape => {
                write_comma(out, is_first);
                quote_json_into(out, &field.name);
                out.push(':');
                write_value(out, shape, found, value);
            }
        }
    }
}

fn write_comma(out: &mut String, is_first: &mut bool) {
    if !std::mem::replace(is_first, false) {
        out.push(',');
    }
}

fn write_external(out: &mut String, value: &Value) {
    match value {
        Value::Object(_) => {
            out.push('{');
            write_external_fields(out, value, &mut true);
            out.push('}');
        }
        value => write_json_into(out, value),
    }
}

fn write_external_fields(out: &mut String, value: &Value, is_first: &mut bool) {
    let rank = |name: &str| EXTERNAL_ORDER.iter().position(|known| *known == name).unwrap_or(EXTERNAL_ORDER.len());
    let mut fields: Vec<(&String, &Value)> = value.as_object().into_iter().flatten().collect();
    fields.sort_by_key(|(name, _)| rank(name));
    for (name, value) in fields {
        write_comma(out, is_first);
        quote_json_into(out, name);
        out.push(':');
        write_json_into(out, value);
    }
}
