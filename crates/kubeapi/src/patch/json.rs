//! JSON patch (RFC 6902), as `evanphx/json-patch` v4 applies it.
//!
//! Beyond the RFC, `replace` and `test` of a missing member of an object treat it as null, negative indices count from
//! the end, and the whole document can only be replaced or tested.

use serde_json::{Map, Value};

use super::PatchError;
use super::limits::{CopiedBytes, PatchWork, check_depth, check_memory, check_operations};
use crate::GoQuoted;
use crate::json::{format_go_number, json_kind, read_untyped_json, strict_messages};

/// Fields of an operation.
const FIELDS: [&str; 4] = ["op", "path", "from", "value"];

/// A JSON patch that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPatch {
    operations: Vec<Map<String, Value>>,
}

impl JsonPatch {
    /// Reads a patch. With `is_checked` (field validation `Warn` or `Strict`) its types are checked, and the texts of
    /// strict errors are returned, such as `json patch unknown field "[0].foo"`.
    ///
    /// # Errors
    /// [`PatchError::Malformed`] for what is no patch, [`PatchError::TooLarge`] for too many operations.
    pub fn parse(bytes: &[u8], is_checked: bool) -> Result<(JsonPatch, Vec<String>), PatchError> {
        let prefix = if is_checked { "error decoding patch: " } else { "" };
        let malformed = |why: String| PatchError::Malformed(format!("{prefix}{why}"));
        let (value, mut findings) = read_untyped_json(bytes).map_err(|error| malformed(error.to_string()))?;
        if let Some(number) = &findings.too_large {
            let target = if is_checked { "struct field jsonPatchOp.value" } else { "value" };
            return Err(malformed(format!("json: cannot unmarshal number {number} into Go {target} of type float64")));
        }
        check_memory(&value)?;
        let (list, item) = if is_checked {
            ("[]handlers.jsonPatchOp", "handlers.jsonPatchOp")
        } else {
            ("jsonpatch.Patch", "jsonpatch.Operation")
        };
        let mismatch = |value: &Value, target: &str| {
            malformed(format!("json: cannot unmarshal {} into Go {target}", json_kind(value)))
        };
        let items = match value {
            Value::Array(items) => items,
            Value::Null => Vec::new(),
            other => return Err(mismatch(&other, &format!("value of type {list}"))),
        };
        let mut operations = Vec::with_capacity(items.len());
        for value in items {
            match value {
                Value::Object(fields) => operations.push(fields),
                Value::Null => operations.push(Map::new()),
                other => return Err(mismatch(&other, &format!("value of type {item}"))),
            }
        }
        let mut warnings = Vec::new();
        if is_checked {
            for fields in &operations {
                for key in ["op", "path", "from"] {
                    if let Some(value) = fields.get(key).filter(|value| !value.is_string() && !value.is_null()) {
                        return Err(mismatch(value, &format!("struct field jsonPatchOp.{key} of type string")));
                    }
                }
            }
            findings.duplicates.retain(|path| is_of_known_field(path));
            let unknown = operations.iter().enumerate().flat_map(|(index, fields)| {
                let unknown = fields.keys().filter(|key| !FIELDS.contains(&key.as_str()));
                unknown.map(move |key| format!("[{index}].{key}"))
            });
            let messages = strict_messages(bytes, &findings, &unknown.collect::<Vec<_>>());
            warnings.extend(messages.into_iter().map(|text| format!("json patch {text}")));
            warnings.truncate(100);
        }
        check_operations(operations.len())?;
        Ok((JsonPatch { operations }, warnings))
    }

    /// Applies the operations in order.
    ///
    /// # Errors
    /// [`PatchError::Rejected`] for the first operation that does not apply, [`PatchError::TooLarge`] for operations that
    /// take too long together.
    pub fn apply(&self, document: Value) -> Result<Value, PatchError> {
        self.apply_unless(document, &|| false)
    }

    /// As [`apply`](JsonPatch::apply), until `is_over` says that it takes too long: it is asked before each operation, which
    /// moves up to all items of a list.
    ///
    /// # Errors
    /// [`PatchError::Abandoned`] then.
    pub fn apply_unless(&self, document: Value, is_over: &dyn Fn() -> bool) -> Result<Value, PatchError> {
        let mut document = document;
        let (mut copied, mut work) = (CopiedBytes::default(), PatchWork::of_json_patch());
        for fields in &self.operations {
            if is_over() {
                return Err(PatchError::Abandoned);
            }
            apply_operation(&mut document, fields, &mut copied, &mut work)?;
        }
        Ok(document)
    }
}

/// Whether a path such as `[0].value.a` is below a field of an operation. Go does not look into others.
fn is_of_known_field(path: &str) -> bool {
    let field = path.split_once("].").map_or("", |(_, field)| field);
    FIELDS.contains(&field.split(['.', '[']).next().unwrap_or_default())
}

fn rejected(why: impl Into<String>) -> PatchError {
    PatchError::Rejected(why.into())
}

fn apply_operation(
    document: &mut Value,
    fields: &Map<String, Value>,
    copied: &mut CopiedBytes,
    work: &mut PatchWork,
) -> Result<(), PatchError> {
    let kind = fields.get("op").and_then(Value::as_str).unwrap_or("unknown");
    let pointer = |key: &str| {
        let text = fields.get(key).and_then(Value::as_str);
        text.ok_or_else(|| rejected(format!("{kind} operation failed to decode {key}: missing value")))
    };
    let value = || fields.get("value").cloned().unwrap_or(Value::Null);
    match kind {
        "add" => add(document, kind, pointer("path")?, value(), work),
        "remove" => remove(document, kind, pointer("path")?, work).map(drop),
        "replace" => replace(document, pointer("path")?, value(), work),
        "move" => {
            let moved = remove(document, kind, pointer("from")?, work)?;
            add(document, kind, pointer("path")?, moved, work)
        }
        "copy" => {
            let copy = get(document, kind, pointer("from")?)?.cloned().unwrap_or(Value::Null);
            copied.add(&copy)?;
            add(document, kind, pointer("path")?, copy, work)
        }
        "test" => test(document, pointer("path")?, fields.get("value").unwrap_or(&Value::Null)),
        _ => Err(rejected(format!("Unexpected kind: {kind}"))),
    }
}

/// The object or array that holds the target of a pointer, the key of the target in it, and its depth.
fn find_parent<'d>(
    document: &'d mut Value,
    kind: &str,
    pointer: &str,
) -> Result<(&'d mut Value, String, usize), PatchError> {
    let missing =
        || rejected(format!("{kind} operation does not apply: doc is missing path: {pointer}: missing value"));
    let mut segments: Vec<&str> = pointer.split('/').skip(1).collect();
    let key = unescape(segments.pop().ok_or_else(missing)?);
    let mut at = document;
    for segment in &segments {
        at = match at {
            Value::Object(map) => map.get_mut(&unescape(segment)).ok_or_else(missing)?,
            Value::Array(items) => {
                let index = existing_index(&unescape(segment), items.len()).map_err(|_| missing())?;
                items.get_mut(index).ok_or_else(missing)?
            }
            _ => return Err(missing()),
        };
    }
    match at {
        Value::Object(_) | Value::Array(_) => Ok((at, key, segments.len() + 1)),
        _ => Err(missing()),
    }
}

/// A segment of a pointer: `~1` is a slash, `~0` a tilde (RFC 6901 §4).
fn unescape(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}

fn parse_index(key: &str) -> Result<i64, PatchError> {
    key.parse().map_err(|_| rejected(format!("strconv.Atoi: parsing {}: invalid syntax", GoQuoted(key))))
}

/// Position in a list of `length` items that an index means; a negative one counts from the end.
fn resolve_index(index: i64, length: usize) -> Option<usize> {
    if index >= 0 {
        return usize::try_from(index).ok().filter(|at| *at < length);
    }
    usize::try_from(index.unsigned_abs()).ok().and_then(|back| length.checked_sub(back))
}

fn existing_index(key: &str, length: usize) -> Result<usize, PatchError> {
    let index = parse_index(key)?;
    resolve_index(index, length)
        .ok_or_else(|| rejected(format!("Unable to access invalid index: {index}: invalid index referenced")))
}

fn get<'d>(document: &'d mut Value, kind: &str, pointer: &str) -> Result<Option<&'d Value>, PatchError> {
    let (parent, key, _) = find_parent(document, kind, pointer)?;
    Ok(match parent {
        Value::Array(items) => items.get(existing_index(&key, items.len())?),
        Value::Object(map) => map.get(&key),
        _ => None,
    })
}

fn add(document: &mut Value, kind: &str, pointer: &str, value: Value, work: &mut PatchWork) -> Result<(), PatchError> {
    let (parent, key, depth) = find_parent(document, kind, pointer)?;
    check_depth(&value, depth, work)?;
    match parent {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let at = existing_index(&key, items.len() + 1)?;
            work.spend_moved(items.len() - at)?;
            items.insert(at, value);
        }
        Value::Object(map) => drop(map.insert(key, value)),
        _ => {}
    }
    Ok(())
}

fn remove(document: &mut Value, kind: &str, pointer: &str, work: &mut PatchWork) -> Result<Value, PatchError> {
    let (parent, key, _) = find_parent(document, kind, pointer)?;
    match parent {
        Value::Array(items) => {
            let at = existing_index(&key, items.len())?;
            work.spend_moved(items.len() - at)?;
            Ok(items.remove(at))
        }
        Value::Object(map) => {
            map.remove(&key).ok_or_else(|| rejected(format!("Unable to remove nonexistent key: {key}: missing value")))
        }
        _ => Ok(Value::Null),
    }
}

fn replace(document: &mut Value, pointer: &str, value: Value, work: &mut PatchWork) -> Result<(), PatchError> {
    if pointer.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(rejected("replace operation value must be object or array"));
        }
        *document = value;
        return Ok(());
    }
    let (parent, key, depth) = find_parent(document, "replace", pointer)?;
    check_depth(&value, depth, work)?;
    match parent {
        Value::Array(items) => {
            let at = existing_index(&key, items.len())?;
            items[at] = value;
        }
        Value::Object(map) => drop(map.insert(key, value)),
        _ => {}
    }
    Ok(())
}

fn test(document: &mut Value, pointer: &str, expected: &Value) -> Result<(), PatchError> {
    let is_equal = if pointer.is_empty() {
        are_equal(document, expected)
    } else {
        are_equal(get(document, "test", pointer)?.unwrap_or(&Value::Null), expected)
    };
    if is_equal { Ok(()) } else { Err(rejected(format!("testing value {pointer} failed: test failed"))) }
}

/// Equality of JSON: numbers are equal if Go writes them alike.
fn are_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a_number), Value::Number(b_number)) => {
            a_number == b_number || format_go_number(a) == format_go_number(b)
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| are_equal(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn apply(document: Value, patch: impl Into<Value>) -> Result<Value, PatchError> {
        JsonPatch::parse(patch.into().to_string().as_bytes(), true)?.0.apply(document)
    }

    /// Examples of RFC 6902, appendix A, and quirks of json-patch v4.
    #[test]
    fn json_patch_applies() {
        for (document, patch, expected) in [
            (
                json!({"foo": "bar"}),
                json!([{"op": "add", "path": "/baz", "value": "q"}]),
                json!({"baz": "q", "foo": "bar"}),
            ),
            (
                json!({"foo": ["a", "c"]}),
                json!([{"op": "add", "path": "/foo/1", "value": "b"}]),
                json!({"foo": ["a", "b", "c"]}),
            ),
            (
                json!({"foo": ["a"]}),
                json!([{"op": "add", "path": "/foo/-", "value": ["b"]}]),
                json!({"foo": ["a", ["b"]]}),
            ),
            (
                json!({"foo": ["a", "b"]}),
                json!([{"op": "add", "path": "/foo/-1", "value": "x"}]),
                json!({"foo": ["a", "b", "x"]}),
            ),
            (json!({"foo": ["a", "b"]}), json!([{"op": "remove", "path": "/foo/-1"}]), json!({"foo": ["a"]})),
            (json!({"foo": [1, 2]}), json!([{"op": "replace", "path": "/foo/-2", "value": 3}]), json!({"foo": [3, 2]})),
            (json!({"foo": 1}), json!([{"op": "replace", "path": "/bar", "value": 2}]), json!({"foo": 1, "bar": 2})),
            (
                json!({"a": {"b": 1}, "c": {}}),
                json!([{"op": "move", "from": "/a/b", "path": "/c/d"}]),
                json!({"a": {}, "c": {"d": 1}}),
            ),
            (
                json!({"a": ["x", "y"]}),
                json!([{"op": "move", "from": "/a/0", "path": "/a/1"}]),
                json!({"a": ["y", "x"]}),
            ),
            (
                json!({"a": {"b": 1}}),
                json!([{"op": "copy", "from": "/a", "path": "/c"}]),
                json!({"a": {"b": 1}, "c": {"b": 1}}),
            ),
            (
                json!({"a/b": 1, "m~n": 2}),
                json!([{"op": "remove", "path": "/a~1b"}, {"op": "test", "path": "/m~0n", "value": 2}]),
                json!({"m~n": 2}),
            ),
            (
                json!({"a": 1}),
                json!([{"op": "test", "path": "/b", "value": null}, {"op": "test", "path": "/b"}]),
                json!({"a": 1}),
            ),
            (json!({"a": 1.0}), json!([{"op": "test", "path": "/a", "value": 1}]), json!({"a": 1.0})),
            (json!({"a": 1}), json!([{"op": "replace", "path": "", "value": {"b": 2}}]), json!({"b": 2})),
            (json!({"a": 1}), json!([{"op": "add", "path": "/", "value": 2}]), json!({"a": 1, "": 2})),
            (json!({"a": 1}), json!([{"op": "add", "path": "/b"}]), json!({"a": 1, "b": null})),
            (json!({"a": 1}), json!(null), json!({"a": 1})),
        ] {
            assert_eq!(apply(document, patch.clone()), Ok(expected), "{patch}");
        }
    }

    #[test]
    fn json_patch_refusals() {
        for (patch, expected) in [
            (json!([{"op": "test", "path": "/a", "value": 2}]), "testing value /a failed: test failed"),
            (json!([{"op": "test", "path": "/a", "value": null}]), "testing value /a failed: test failed"),
            (json!([{"op": "remove", "path": "/x"}]), "Unable to remove nonexistent key: x: missing value"),
            (json!([{"op": "remove", "path": "/l/5"}]), "Unable to access invalid index: 5: invalid index referenced"),
            (
                json!([{"op": "add", "path": "/l/2", "value": 1}]),
                "Unable to access invalid index: 2: invalid index referenced",
            ),
            (
                json!([{"op": "replace", "path": "/l/-2", "value": 1}]),
                "Unable to access invalid index: -2: invalid index referenced",
            ),
            (json!([{"op": "add", "path": "/l/x", "value": 1}]), "strconv.Atoi: parsing \"x\": invalid syntax"),
            (
                json!([{"op": "add", "path": "/a/b", "value": 1}]),
                "add operation does not apply: doc is missing path: /a/b: missing value",
            ),
            (
                json!([{"op": "add", "path": "", "value": {}}]),
                "add operation does not apply: doc is missing path: : missing value",
            ),
            (json!([{"op": "frobnicate", "path": "/a"}]), "Unexpected kind: frobnicate"),
            (json!([null]), "Unexpected kind: unknown"),
            (json!([{"op": "move", "path": "/a"}]), "move operation failed to decode from: missing value"),
        ] {
            assert_eq!(apply(json!({"a": 1, "l": [0]}), patch.clone()), Err(rejected(expected)), "{patch}");
        }
    }

    #[test]
    fn json_patch_malformed_texts_match_upstream() {
        let checked = |text: &str| JsonPatch::parse(text.as_bytes(), true).unwrap_err().to_string();
        assert_eq!(
            checked("{}"),
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        );
        assert_eq!(
            checked("[1]"),
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"
        );
        assert_eq!(
            checked(r#"[{"op":1}]"#),
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"
        );
        assert_eq!(checked("["), "error decoding patch: unexpected end of JSON input");
        let unchecked = JsonPatch::parse(b"{}", false).unwrap_err().to_string();
        assert_eq!(unchecked, "json: cannot unmarshal object into Go value of type jsonpatch.Patch");
        let many = format!("[{}]", vec!["null"; 10_001].join(","));
        let error = JsonPatch::parse(many.as_bytes(), true).unwrap_err();
        assert_eq!(
            error.status().message,
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
    }

    #[test]
    fn json_patch_strict_findings() {
        let text = br#"[{"op":"add","path":"/a","path":"/b","value":{"x":1,"x":2},"foo":1,"foo":{"y":1,"y":2}}]"#;
        let (patch, findings) = JsonPatch::parse(text, true).unwrap();
        assert_eq!(
            findings,
            [
                "json patch duplicate field \"[0].path\"",
                "json patch duplicate field \"[0].value.x\"",
                "json patch unknown field \"[0].foo\"",
            ]
        );
        assert_eq!(patch.apply(json!({})), Ok(json!({"b": {"x": 2}})));
        let text = br#"[{"op":"add","path":"/a","foo":1,"value":1},{"op":"add","path":"/a","value":1,"value":2}]"#;
        let expected = ["json patch unknown field \"[0].foo\"", "json patch duplicate field \"[1].value\""];
        assert_eq!(JsonPatch::parse(text, true).unwrap().1, expected);
        assert!(JsonPatch::parse(text, false).unwrap().1.is_empty());
    }

    #[test]
    fn json_patch_that_takes_too_long_is_given_up_between_operations() {
        let add = json!({"op": "add", "path": "/l/0", "value": 1});
        let (patch, _) = JsonPatch::parse(json!(vec![add; 100]).to_string().as_bytes(), true).unwrap();
        let asked = std::cell::Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) == 7;
        assert_eq!(patch.apply_unless(json!({"l": []}), &is_over), Err(PatchError::Abandoned));
        assert_eq!(asked.get(), 8);
        assert_eq!(PatchError::Abandoned.status().code, 504);
    }

    #[test]
    fn json_patch_copies_and_depth_bounded() {
        let mut operations = vec![json!({"op": "add", "path": "/a", "value": ["x".repeat(1000)]})];
        operations.extend((0..20).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"})));
        let error = apply(json!({}), json!(operations)).unwrap_err();
        assert!(error.to_string().starts_with("Unable to complete the copy, the accumulated size increase of copy is"));
        // Each pair puts the document one level deeper.
        let mut operations = Vec::new();
        for _ in 0..3000 {
            operations.push(json!({"op": "add", "path": "/b", "value": {}}));
            operations.push(json!({"op": "move", "from": "/a", "path": "/b/a"}));
            operations.push(json!({"op": "move", "from": "/b", "path": "/a"}));
        }
        assert_eq!(apply(json!({"a": 1}), json!(operations)), Err(rejected("the patched document exceeds 128 levels")));
    }

    proptest! {
        #[test]
        fn json_patch_never_panics(path in "(/[ab0-9~-]{0,2}){0,3}", from in "(/[ab0-9-]{0,2}){0,3}", op in 0usize..6) {
            let op = ["add", "remove", "replace", "move", "copy", "test"][op];
            let patch = json!([{"op": op, "path": path, "from": from, "value": {"a": [1]}}]);
            let _ = apply(json!({"a": [1, {"b": [2]}], "b": {"a": 1}}), patch);
        }

        #[test]
        fn json_patch_add_then_remove_is_identity(key in "[a-z/~]{1,4}", value in any::<i64>()) {
            let document = json!({"A": [1, 2], "B": {}});
            let pointer = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
            let patch = json!([
                {"op": "add", "path": pointer, "value": value}, {"op": "test", "path": pointer, "value": value},
                {"op": "remove", "path": pointer},
            ]);
            prop_assert_eq!(apply(document.clone(), patch), Ok(document));
        }
    }
}
