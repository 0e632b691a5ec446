//! The JSONPath of printer columns, as client-go evaluates it (`k8s.io/client-go/util/jsonpath`): fields, indices,
//! slices, wildcards, recursive descent, unions and filters.

mod parse;

use std::cmp::Ordering;

use serde_json::Value;

use super::json::{format_go_number, write_json};

/// Maximum number of values that one evaluation visits.
const MAX_VISITED: usize = 100_000;

/// A path that has been parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<PathStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    Field(String),
    Wildcard,
    Recursive,
    Slice(SliceBounds),
    Union(Vec<JsonPath>),
    Filter {
        left: JsonPath,
        comparison: Option<(String, JsonPath)>,
    },
    Literal(Value),
    /// A word such as `range`, which has no meaning in a column.
    Identifier(String),
}

/// `[start:end:step]`; `[start]` ends after its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SliceBounds {
    start: Option<i64>,
    end: Option<i64>,
    is_end_derived: bool,
    step: Option<i64>,
}

/// Error of parsing or evaluating a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPathError(String);

impl std::fmt::Display for JsonPathError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JsonPathError {}

fn error<T>(why: impl Into<String>) -> Result<T, JsonPathError> {
    Err(JsonPathError(why.into()))
}

impl JsonPath {
    /// Parses a path without braces, such as `.status.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// Kubernetes' text; also for a path that is too long or nested too deep.
    pub fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        parse::parse(text).map(|steps| JsonPath { steps })
    }

    /// The values that the path leads to. A missing field is no error.
    ///
    /// # Errors
    /// For an index out of bounds, a filter of what is no array, a comparison of different types, and more than 100,000
    /// visited values.
    pub fn find<'v>(&'v self, value: &'v Value) -> Result<Vec<&'v Value>, JsonPathError> {
        let mut remaining = MAX_VISITED;
        evaluate(&self.steps, vec![value], &mut remaining)
    }

    /// The first value that the path leads to, as for a cell of a Table; `None` for errors, too. It visits at most
    /// `remaining` values, which becomes less.
    pub fn find_first<'v>(&'v self, value: &'v Value, remaining: &mut usize) -> Option<&'v Value> {
        let limit = MAX_VISITED.min(*remaining);
        let mut own = limit;
        let found = evaluate(&self.steps, vec![value], &mut own);
        *remaining -= limit - own;
        found.ok()?.first().copied()
    }
}

/// A value as client-go prints it: texts as they are, objects and arrays as JSON, null as `<no value>`.
pub fn print_json_path_value(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(_) => format_go_number(value),
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => write_json(value),
    }
}

fn evaluate<'v>(
    steps: &'v [PathStep],
    input: Vec<&'v Value>,
    remaining: &mut usize,
) -> Result<Vec<&'v Value>, JsonPathError> {
    let mut values = input;
    for step in steps {
        let mut results = Vec::new();
        match step {
            PathStep::Field(name) => results.extend(values.iter().filter_map(|value| value.as_object()?.get(name))),
            PathStep::Wildcard => values.iter().for_each(|value| results.extend(children(value))),
            PathStep::Recursive => {
                for value in &values {
                    descend(value, &mut results, remaining)?;
                }
            }
            PathStep::Slice(bounds) => {
                for value in values.iter().filter(|value| !value.is_null()) {
                    let Value::Array(items) = value else { return error("value is not array or slice") };
                    match bounds.resolve(items.len())? {
                        Some((start, end, step)) => results.extend(items[start..end].iter().step_by(step)),
                        // As in Kubernetes, an empty range ends the step.
                        None => break,
                    }
                }
            }
            PathStep::Union(paths) => {
                for path in paths {
                    results.extend(evaluate(&path.steps, values.clone(), remaining)?);
                }
            }
            PathStep::Filter { left, comparison } => {
                for value in &values {
                    let Value::Array(items) = value else {
                        return error("value is not array or slice and cannot be filtered");
                    };
                    for item in items {
                        if is_selected(item, left, comparison.as_ref(), remaining)? {
                            results.push(item);
                        }
                    }
                }
            }
            PathStep::Literal(text @ Value::String(_)) => results.push(text),
            PathStep::Literal(value) => results.extend(values.iter().map(|_| value)),
            PathStep::Identifier(name) => return error(format!("unrecognized identifier {name}")),
        }
        spend(remaining, results.len())?;
        values = results;
    }
    Ok(values)
}

fn spend(remaining: &mut usize, count: usize) -> Result<(), JsonPathError> {
    // One more, so that a filter of scalars costs, too.
    match remaining.checked_sub(count + 1) {
        Some(rest) => {
            *remaining = rest;
            Ok(())
        }
        None => error(format!("JSONPath visits more than {MAX_VISITED} values")),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

/// Appends the value and what is in it, but for what has no content. Values nest at most as deep as they were read.
fn descend<'v>(value: &'v Value, results: &mut Vec<&'v Value>, remaining: &mut usize) -> Result<(), JsonPathError> {
    spend(remaining, 0)?;
    let inner = children(value);
    if !inner.is_empty() || value.as_str().is_some_and(|text| !text.is_empty()) {
        results.push(value);
    }
    inner.into_iter().try_for_each(|child| descend(child, results, remaining))
}

impl SliceBounds {
    /// Start, end and step for an array of a length; `None` for an empty range.
    fn resolve(self, length: usize) -> Result<Option<(usize, usize, usize)>, JsonPathError> {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let mut start = self.start.unwrap_or(0);
        if start < 0 {
            start = start.saturating_add(length);
        }
        let mut end = self.end.unwrap_or(length);
        if end < 0 || (end == 0 && self.is_end_derived) {
            end = end.saturating_add(length);
        }
        if start == end {
            return Ok(None);
        }
        let out_of_bounds = |index: i64| error(format!("array index out of bounds: index {index}, length {length}"));
        if start >= length || start < 0 {
            return out_of_bounds(start);
        }
        if end > length || end < 0 {
            return out_of_bounds(end.saturating_sub(1));
        }
        if start > end {
            return error(format!("starting index {start} is greater than ending index {end}"));
        }
        let step = self.step.unwrap_or(1);
        match (usize::try_from(start), usize::try_from(end), usize::try_from(step)) {
            (Ok(start), Ok(end), Ok(step)) if step > 0 => Ok(Some((start, end, step))),
            _ => error("step must be > 0"),
        }
    }
}

fn is_selected(
    item: &Value,
    left: &JsonPath,
    comparison: Option<&(String, JsonPath)>,
    remaining: &mut usize,
) -> Result<bool, JsonPathError> {
    let lefts = evaluate(&left.steps, vec![item], remaining);
    let Some((operator, right)) = comparison else {
        // In Kubernetes, an item exists if its path has an error.
        return match lefts {
            Ok(values) => Ok(!values.is_empty()),
            Err(_) => spend(remaining, 0).map(|()| true),
        };
    };
    let one = |values: Vec<&Value>| match values.as_slice() {
        [] => Ok(None),
        [value] => Ok(Some((*value).clone())),
        _ => error("can only compare one element at a time"),
    };
    let Some(left) = one(lefts?)? else { return Ok(false) };
    let Some(right) = one(evaluate(&right.steps, vec![item], remaining)?)? else { return Ok(false) };
    compare(&left, operator, &right)
}

/// Compares as `text/template`: only values of one type, and order only for numbers and texts.
fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, JsonPathError> {
    let incompatible = || error("incompatible types for comparison");
    let (ordering, is_ordered) = match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => (a.cmp(b), false),
        (Value::String(a), Value::String(b)) => (a.cmp(b), true),
        (Value::Number(a), Value::Number(b)) if a.is_f64() == b.is_f64() => {
            let ordering = match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
            };
            (ordering, true)
        }
        _ => return incompatible(),
    };
    match operator {
        "==" => Ok(ordering.is_eq()),
        "!=" => Ok(ordering.is_ne()),
        "<" | ">" | "<=" | ">=" if !is_ordered => error("invalid type for comparison"),
        "<" => Ok(ordering.is_lt()),
        ">" => Ok(ordering.is_gt()),
        "<=" => Ok(ordering.is_le()),
        ">=" => Ok(ordering.is_ge()),
        _ => error(format!("unrecognized filter operator {operator}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(path: &str, value: &Value) -> Result<Value, String> {
        let path = JsonPath::parse(path).map_err(|error| error.to_string())?;
        path.find(value).map(|values| values.into_iter().cloned().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn json_path_of_columns() {
        let object = json!({
            "metadata": {"name": "a", "labels": {"a.b/c": "x"}},
            "spec": {"list": [0, 1, 2, 3, 4], "null": null},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 5}, {"type": "Synced", "status": "False", "n": 7},
            ]},
        });
        for (path, expected) in [
            (".metadata.name", json!(["a"])),
            (".metadata.labels.a\\.b/c", json!(["x"])),
            (".metadata.labels['a\\.b/c']", json!(["x"])),
            (".spec.missing.deeper", json!([])),
            (".spec.null", json!([null])),
            (".spec.null.x", json!([])),
            (".spec.list[1]", json!([1])),
            (".spec.list[-1]", json!([4])),
            (".spec.list[1:3]", json!([1, 2])),
            (".spec.list[::2]", json!([0, 2, 4])),
            (".spec.list[*]", json!([0, 1, 2, 3, 4])),
            (".spec.list[0,2]", json!([0, 2])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type == 'Synced')].status", json!(["False"])),
            (".status.conditions[?(@.n>5)].type", json!(["Synced"])),
            (".status.conditions[?(@.x)].type", json!([])),
            (".status.conditions[?(@.n)].type", json!(["Ready", "Synced"])),
            (".status.conditions[*].type", json!(["Ready", "Synced"])),
            ("..type", json!(["Ready", "Synced"])),
            (".", json!([])),
        ] {
            assert_eq!(found(path, &object), Ok(expected), "{path}");
        }
    }

    #[test]
    fn json_path_errors_match_upstream() {
        let value = json!({"l": [1], "o": {}});
        for (path, expected) in [
            (".l[3]", "array index out of bounds: index 3, length 1"),
            (".l[", "unterminated array"),
            (".l[x]", "invalid array index x"),
            (".l[?(@.a", "unterminated filter"),
            (".o[0]", "value is not array or slice"),
            (".o[?(@.a)]", "value is not array or slice and cannot be filtered"),
            ("....a", "invalid multiple recursive descent"),
            (".l[?(@==\"a\")]", "incompatible types for comparison"),
            (".l 'b", "unterminated quoted string"),
        ] {
            assert_eq!(found(path, &value).unwrap_err(), expected, "{path}");
        }
    }

    #[test]
    fn json_path_nesting_and_work_bounded() {
        assert!(JsonPath::parse(&"[?(".repeat(1000)).is_err());
        assert!(JsonPath::parse(&".a".repeat(100_000)).is_err());
        let mut value = json!({"a": [1, 2, 3]});
        for _ in 0..60 {
            value = json!({"a": [value]});
        }
        assert!(found("..a..a..a..a..a", &value).unwrap_err().starts_with("JSONPath visits more than"));
    }

    #[test]
    fn json_path_values_printed() {
        for (value, expected) in [
            (json!("x"), "x"),
            (json!(1.5), "1.5"),
            (json!(1e21), "1e+21"),
            (json!(null), "<no value>"),
            (json!({"b": "<", "a": 1}), r#"{"a":1,"b":"\u003c"}"#),
        ] {
            assert_eq!(print_json_path_value(&value), expected);
        }
    }

    proptest! {
        #[test]
        fn json_path_never_panics(path in r#"[.a\[\]?(@=<"'1:*,\\ é)-]{0,16}"#) {
            let _ = found(&path, &json!({"a": [{"a": 1}, {"a": "x"}]}));
        }
    }
}
