//! Metadata of a converted object: a webhook may change labels and annotations only.

use std::collections::HashSet;

use serde_json::{Map, Value};

use kubeapi::field_error::{FieldErrors, FieldPath};
use kubeapi::go_type;
use kubeapi::object_meta::{validate_annotations, validate_labels};

const METADATA: FieldPath<'static> = FieldPath::root("metadata");

/// Gives a converted object the metadata of the original, but for its labels and annotations.
///
/// # Errors
/// Labels or annotations are invalid; with upstream's text (`restoreObjectMeta` in `webhook_converter.go`).
pub(super) fn restore_metadata(original: &Value, converted: &mut Value) -> Result<(), String> {
    let answered = match converted.get_mut("metadata").map(Value::take) {
        Some(Value::Object(answered)) => answered,
        Some(other) => return Err(format!("invalid metadata of type {} in converted object", go_type(&other))),
        None => return Err("missing metadata in converted object".to_owned()),
    };
    let mut metadata = match original.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        Some(other) => return Err(format!("invalid metadata of type {} in input object", go_type(other))),
        None => Map::new(),
    };
    for (field, mut value) in
        ["labels", "annotations"].into_iter().zip([answered.get("labels"), answered.get("annotations")])
    {
        value = value.filter(|value| !value.is_null());
        let Some(value) = value else {
            metadata.remove(field);
            continue;
        };
        let Value::Object(texts) = value else {
            return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(value)));
        };
        if let Some((key, other)) = texts.iter().find(|(_, text)| !text.is_string()) {
            let found = go_type(other);
            return Err(format!("metadata.{field}[{key}] must be a string, but is {found} in converted object"));
        }
        if metadata.get(field) != Some(value) {
            check_texts(field, texts)?;
        }
        metadata.insert(field.to_owned(), value.clone());
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(())
}

fn check_texts(field: &str, texts: &Map<String, Value>) -> Result<(), String> {
    let pairs = texts.iter().map(|(key, value)| (&**key, value.as_str().unwrap_or_default()));
    let mut errors = FieldErrors::new();
    match field {
        "labels" => validate_labels(pairs, &METADATA.child("labels"), &mut errors),
        // The field in upstream's text.
        _ => validate_annotations(pairs, &METADATA.child("annotation"), &mut errors),
    }
    let mut seen = HashSet::new();
    let texts = errors.iter().map(ToString::to_string);
    let texts: Vec<String> = texts.filter(|text| seen.insert(text.clone())).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        all => Err(format!("[{}]", all.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn restored(original: &Value, converted: &Value) -> Result<Value, String> {
        let mut converted = json!({"metadata": converted});
        restore_metadata(&json!({"metadata": original}), &mut converted)?;
        Ok(converted["metadata"].take())
    }

    #[test]
    fn conversion_changes_labels_and_annotations_only() {
        let original = json!({"name": "a", "finalizers": ["f"], "labels": {"a": "1"}, "annotations": {"b": "1"}});
        let converted = json!({"name": "a", "finalizers": [], "generation": 7, "labels": {"c": "2"}});
        let expected = json!({"name": "a", "finalizers": ["f"], "labels": {"c": "2"}});
        assert_eq!(restored(&original, &converted), Ok(expected));
        assert_eq!(restored(&json!({"labels": {}}), &json!({"labels": null})), Ok(json!({})));
    }

    #[test]
    fn conversion_with_invalid_metadata_has_upstream_text() {
        let original = json!({"name": "a", "labels": {"-": "kept"}});
        for (converted, expected) in [
            (json!([]), "invalid metadata of type []interface {} in converted object"),
            (json!({"labels": "x"}), "invalid metadata.labels of type string in converted object"),
            (json!({"labels": {"a": 1}}), "metadata.labels[a] must be a string, but is int64 in converted object"),
            (
                json!({"annotations": {"a": {}}}),
                "metadata.annotations[a] must be a string, but is map[string]interface {} in converted object",
            ),
        ] {
            assert_eq!(restored(&original, &converted).unwrap_err(), expected);
        }
        let label = restored(&original, &json!({"labels": {"a": "-"}})).unwrap_err();
        assert!(label.starts_with("metadata.labels: Invalid value: \"-\": a valid label must be"), "{label}");
        let annotation = restored(&original, &json!({"annotations": {"-": ""}})).unwrap_err();
        assert!(annotation.starts_with("metadata.annotation: Invalid value: \"-\": name part must"), "{annotation}");
        // What was there before is not checked again.
        assert!(restored(&original, &json!({"labels": {"-": "kept"}})).is_ok());
        let missing = restore_metadata(&json!({}), &mut json!({})).unwrap_err();
        assert_eq!(missing, "missing metadata in converted object");
    }
}
