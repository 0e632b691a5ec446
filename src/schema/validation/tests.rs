//! Validation of values by schemas.

use serde_json::{Value, json};

use super::{validate, validate_list_types};
use crate::schema::Schema;

fn errors(schema: &Value, value: &Value) -> Vec<String> {
    let schema = Schema::read(&json!({"type": "object", "properties": {"x": schema}})).unwrap();
    let value = json!({"x": value});
    let errors = validate(&schema, &value, None).into_iter().chain(validate_list_types(&schema, &value));
    errors.map(|error| error.to_string()).collect()
}

#[test]
fn schema_validation_has_kubernetes_texts() {
    for (schema, value, expected) in [
        (
            json!({"type": "integer"}),
            json!("a"),
            r#"x: Invalid value: "string": x in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "string"}),
            json!(1),
            r#"x: Invalid value: "integer": x in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "string"}),
            json!(null),
            r#"x: Invalid value: "null": x in body must be of type string: "null""#,
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            r#"x: Unsupported value: "c": supported values: "a", "b""#,
        ),
        (json!({"type": "string", "maxLength": 2}), json!("abc"), "x: Too long: may not be more than 2 bytes"),
        (
            json!({"type": "string", "minLength": 2}),
            json!("ä"),
            r#"x: Invalid value: "ä": x in body should be at least 2 chars long"#,
        ),
        (
            json!({"type": "string", "pattern": "^a$"}),
            json!("b"),
            r#"x: Invalid value: "b": x in body should match '^a$'"#,
        ),
        (
            json!({"type": "integer", "maximum": 10}),
            json!(11),
            "x: Invalid value: 11: x in body should be less than or equal to 10",
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            "x: Invalid value: 1: x in body should be greater than 1",
        ),
        (
            json!({"type": "number", "multipleOf": 0.5}),
            json!(0.7),
            "x: Invalid value: 0.7: x in body should be a multiple of 0.5",
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
            json!(["a", "b"]),
            "x: Too many: 2: must have at most 1 item",
        ),
        (json!({"type": "object", "required": ["y"]}), json!({}), "x.y: Required value"),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("now"),
            r#"x: Invalid value: "now": x in body must be of type date-time: "now""#,
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["a", "a"]),
            r#"x[1]: Duplicate value: "a""#,
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            r#"x: Invalid value: "boolean": x in body must be of type integer,string: "boolean""#,
        ),
    ] {
        assert_eq!(errors(&schema, &value), [expected]);
    }
}

#[test]
fn schema_validation_accepts_what_fits() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!(3.0)),
        (json!({"type": "number"}), json!(3)),
        (json!({"type": "string", "nullable": true}), json!(null)),
        (json!({"x-kubernetes-int-or-string": true}), json!("80%")),
        (json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), json!({"any": [1]})),
        (json!({"type": "string", "format": "something-else"}), json!("x")),
        (json!({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"b": 1})),
    ] {
        assert_eq!(errors(&schema, &value), Vec::<String>::new());
    }
}

#[test]
fn schema_validation_reports_best_alternative() {
    let schema = json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let none = errors(&schema, &json!({}));
    assert_eq!(
        none[0],
        r#"<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf). Found none valid"#
    );
    assert_eq!(none[1], "x.a: Required value");
    let both = errors(&schema, &json!({"a": 1, "b": 2}));
    assert_eq!(
        both,
        [r#"<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#]
    );
    let not = errors(&json!({"type": "string", "not": {"enum": ["a"]}}), &json!("a"));
    assert_eq!(not, [r#"<nil>: Invalid value: "": "x" must not validate the schema (not)"#]);
}
