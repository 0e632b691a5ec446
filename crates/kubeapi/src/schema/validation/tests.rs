//! Validation of values by schemas.

use std::cell::Cell;

use serde_json::{Value, json};

use super::{StepBudget, validate, validate_list_types};
use crate::schema::Schema;

fn errors(schema: &Value, value: &Value) -> Vec<String> {
    let schema = Schema::read(&json!({"type": "object", "properties": {"x": schema}})).unwrap();
    let value = json!({"x": value});
    let mut errors = validate(&schema, &value, None, &StepCounter(Cell::new(usize::MAX)));
    errors.append(validate_list_types(&schema, &value));
    errors.iter().map(ToString::to_string).collect()
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

/// The steps of a validation, of which so many are left.
struct StepCounter(Cell<usize>);

impl StepBudget for StepCounter {
    fn spend(&self, steps: usize) -> bool {
        let left = self.0.get().checked_sub(steps);
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }
}

/// How many steps a validation takes.
fn step_count(schema: &Value, value: &Value) -> usize {
    let steps = StepCounter(Cell::new(usize::MAX));
    validate(&Schema::read(schema).unwrap(), value, None, &steps);
    usize::MAX - steps.0.get()
}

#[test]
fn schema_validation_counts_each_value_in_each_alternative() {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let of_count = |count: usize| {
            let alternatives: Vec<Value> = (0..count).map(|at| json!({"minimum": at + 1})).collect();
            json!({"type": "array", "items": {"type": "integer", keyword: alternatives}})
        };
        let values = |count: usize| Value::from(vec![0; count]);
        let steps = step_count(&of_count(200), &values(40));
        assert!((40 * 200 * 16..40 * 200 * 64).contains(&steps), "{keyword}: {steps}");
        let few = StepCounter(Cell::new(5_000));
        validate(&Schema::read(&of_count(200)).unwrap(), &values(40), None, &few);
        assert_eq!(few.0.get(), 0, "it ends");
    }
}

#[test]
fn schema_validation_counts_texts_that_alternatives_examine_and_repeat() {
    let alternatives = |inner: &Value| json!({"allOf": vec![inner.clone(); 100]});
    let text = json!("a".repeat(64_000));
    for inner in [json!({"maxLength": 10}), json!({"minLength": 100_000}), json!({"maxLength": 100_000})] {
        let steps = step_count(&alternatives(&inner), &text);
        assert!(steps > 100 * 1_000, "{inner}: {steps}");
    }
    let object = json!({"a": vec![text; 3]});
    assert!(step_count(&alternatives(&json!({"enum": [object]})), &object) > 100 * 3_000);
    let long_list: Vec<String> = (0..2_000).map(|at| format!("value{at}")).collect();
    assert!(step_count(&alternatives(&json!({"enum": long_list})), &json!("x")) > 100 * 256);
}

#[test]
fn pattern_is_matched_within_the_steps_only() {
    let schema = json!({"type": "array", "items": {"type": "string", "anyOf": [{"pattern": "^\\pL{0,300}!$"}, {"pattern": "b$"}]}});
    let texts = |count: usize, length: usize| Value::from(vec![format!("{}b", "a".repeat(length)); count]);
    assert_eq!(errors(&schema, &texts(3, 100)), [""; 0]);
    let (few, many) = (step_count(&schema, &texts(10, 1000)), step_count(&schema, &texts(100, 1000)));
    assert!(few > 10 * 300 * 1000 && many > 9 * few, "{few} {many}");
    // 60 alternatives of a thousand states: 4,000 bytes would take 15 s.
    let alternatives: Vec<String> =
        ('A'..='Z').chain('0'..='9').map(|other| format!("[a{other}]{{1000}}[!#]")).collect();
    let schema = json!({"type": "string", "pattern": alternatives.join("|")});
    let budget = StepCounter(Cell::new(1 << 26));
    validate(&Schema::read(&schema).unwrap(), &json!("a".repeat(4_000)), None, &budget);
    assert_eq!(budget.0.get(), 0);
    assert!(
        step_count(&json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}), &json!("abc")) < 4_000
    );
}
