//! JSON merge patch (RFC 7386), as `evanphx/json-patch` v4 applies it.

use serde_json::{Map, Value};

use super::PatchError;
use super::limits::check_memory;
use crate::json::{json_kind, read_json};

/// A merge patch that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergePatch {
    /// The object to merge.
    pub fields: Map<String, Value>,
}

impl MergePatch {
    /// Reads a patch, and returns the texts of strict errors: `duplicate field "spec.a"`.
    ///
    /// # Errors
    /// [`PatchError::Malformed`] for what is no object.
    pub fn parse(bytes: &[u8]) -> Result<(MergePatch, Vec<String>), PatchError> {
        let malformed = |why: String| PatchError::Malformed(format!("error decoding patch: {why}"));
        let (value, findings) = read_json(bytes).map_err(|error| malformed(error.to_string()))?;
        check_memory(&value)?;
        match value {
            Value::Object(fields) => Ok((MergePatch { fields }, findings.messages().collect())),
            Value::Null => Err(PatchError::Malformed("Invalid JSON Patch".to_owned())),
            other => {
                let kind = json_kind(&other);
                Err(malformed(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")))
            }
        }
    }

    /// Merges the patch into an object: null removes a field, an object is merged, anything else replaces the field.
    /// What is new loses its nulls, in lists, too, but for items that are null.
    pub fn apply(&self, document: Map<String, Value>) -> Map<String, Value> {
        let mut document = document;
        merge_objects(&mut document, &self.fields);
        document
    }
}

fn merge_objects(document: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match (document.get_mut(key), value) {
            (_, Value::Null) => drop(document.remove(key)),
            (Some(Value::Object(current)), Value::Object(changes)) => merge_objects(current, changes),
            // Kubernetes keeps the nulls in a list that replaces an object.
            (Some(current @ Value::Object(_)), other) => *current = other.clone(),
            (_, other) => drop(document.insert(key.clone(), without_nulls(other))),
        }
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let entries = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(entries.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(document: Value, patch: impl Into<Value>) -> Value {
        let (patch, _) = MergePatch::parse(patch.into().to_string().as_bytes()).unwrap();
        let Value::Object(document) = document else { panic!("no object") };
        Value::Object(patch.apply(document))
    }

    /// Examples of RFC 7386, appendix A, and quirks of json-patch v4.
    #[test]
    fn merge_patch_applies() {
        for (document, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"a": 1}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
            (json!({}), json!({"a": [{"b": null}, null]}), json!({"a": [{}, null]})),
            (json!({"a": {}}), json!({"a": [{"b": null}]}), json!({"a": [{"b": null}]})),
            (json!({"a": null}), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            assert_eq!(apply(document, patch.clone()), expected, "{patch}");
        }
    }

    #[test]
    fn merge_patch_refusals_and_findings_match_upstream() {
        let refusal = |text: &str| MergePatch::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refusal("null"), "Invalid JSON Patch");
        assert_eq!(
            refusal("[]"),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
        assert_eq!(refusal("{"), "error decoding patch: unexpected end of JSON input");
        let (_, findings) = MergePatch::parse(br#"{"spec":{"a":1,"a":2}}"#).unwrap();
        assert_eq!(findings, ["duplicate field \"spec.a\""]);
    }
}
