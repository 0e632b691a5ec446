//! Schemas with all keywords, read and printed.

use serde_json::json;

use super::*;
use crate::field_error::FieldError;

fn read(json: &Value) -> JsonSchemaProps {
    JsonSchemaProps::deserialize(json).unwrap()
}

#[test]
fn schema_props_print_as_in_go() {
    let schema = read(
        &json!({"type": "array", "items": [{"maximum": 1.0}], "enum": ["<", 1.5, null], "default": {"b": 1, "a": 2.0}}),
    );
    let text = FieldError::invalid("x", go_json::bad_value(&schema), "").to_string();
    for part in [
        r#"{"ID":"","Schema":"","Ref":null,"Description":"","Type":"array","Nullable":false,"#,
        r#""Default":{"a":2,"b":1},"#,
        r#""Enum":["\u003c",1.5,null],"#,
        r#""Items":{"Schema":null,"JSONSchemas":[{"ID":"","#,
        r#""Maximum":1,"#,
        r#""XMapType":null,"XValidations":null}"#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn schema_props_of_one_meaning_are_equal() {
    assert_eq!(read(&json!({"maximum": 1, "properties": {}})), read(&json!({"maximum": 1.0})));
    assert_ne!(read(&json!({"default": 1})), read(&json!({"default": 1.0})));
}

#[test]
fn schema_props_are_searched_in_every_keyword() {
    for place in [
        json!({"properties": {"a": {"format": "x"}}}),
        json!({"items": {"not": {"format": "x"}}}),
        json!({"items": [{"format": "x"}]}),
        json!({"additionalProperties": {"allOf": [{"format": "x"}]}}),
        json!({"dependencies": {"a": {"format": "x"}, "b": ["c"]}}),
        json!({"definitions": {"a": {"anyOf": [{"oneOf": [{"format": "x"}]}]}}}),
    ] {
        assert!(read(&place).any(&mut |schema| schema.format == "x"), "{place}");
    }
    assert!(!read(&json!({"additionalProperties": true})).any(&mut |schema| schema.format == "x"));
}
