//! Defaults, and removal of forbidden nulls (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting`).

use serde_json::Value;

use super::Schema;

/// Sets absent fields to their defaults, from the outside to the inside: the fields of a default get theirs, too. A
/// null that the schema forbids becomes the default. Keys of maps are not created.
///
/// Call [`drop_forbidden_nulls`] before: a null without a default stays null here.
pub fn apply_defaults(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let is_set = map.get(name).is_some_and(|value| property.is_nullable || !value.is_null());
                if !is_set {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                if let Some(inner) = schema.field(name) {
                    replace_null(value, inner);
                    apply_defaults(value, inner);
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = &schema.items else { return };
            for item in items {
                replace_null(item, inner);
                apply_defaults(item, inner);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Schema) {
    if let Some(default) = schema.default.as_ref().filter(|_| value.is_null() && !schema.is_nullable) {
        *value = default.clone();
    }
}

/// Removes fields that are null although the schema forbids it, and that have no default. Items of arrays stay.
pub fn drop_forbidden_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let Some(inner) = schema.field(name) else { return true };
            if value.is_null() && !inner.is_nullable && inner.default.is_none() {
                return false;
            }
            drop_forbidden_nulls(value, inner);
            true
        }),
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                items.iter_mut().for_each(|item| drop_forbidden_nulls(item, inner));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ValueType;
    use super::*;

    fn text() -> Schema {
        Schema::of_type(ValueType::String)
    }

    fn shaped(schema: &Schema, value: Value) -> Value {
        let mut shaped = value;
        drop_forbidden_nulls(&mut shaped, schema);
        apply_defaults(&mut shaped, schema);
        let mut again = shaped.clone();
        apply_defaults(&mut again, schema);
        assert_eq!(again, shaped);
        shaped
    }

    /// Cases of Kubernetes' `algorithm_test.go`.
    #[test]
    fn defaults_set_in_objects_maps_and_arrays() {
        let leaf = || Schema::of_object([("a", text().with_default(json!("A"))), ("b", text())]);
        let schema = Schema::of_object([
            ("object", leaf().with_default(json!({"b": "B"}))),
            ("plain", leaf()),
            ("array", Schema::of_array(leaf().with_default(json!({"b": "I"})))),
            ("map", Schema::of_map(leaf().with_default(json!({"b": "M"})))),
            ("scalar", Schema::of_type(ValueType::Integer).with_default(json!(5))),
        ]);
        assert_eq!(shaped(&schema, json!({})), json!({"object": {"a": "A", "b": "B"}, "scalar": 5}));
        assert_eq!(
            shaped(
                &schema,
                json!({
                    "object": {}, "plain": {}, "array": [{}, {"a": "x"}, null], "map": {"k": {}, "l": null}, "scalar": 0,
                })
            ),
            json!({
                "object": {"a": "A"}, "plain": {"a": "A"},
                "array": [{"a": "A"}, {"a": "x"}, {"a": "A", "b": "I"}],
                "map": {"k": {"a": "A"}, "l": {"a": "A", "b": "M"}}, "scalar": 0,
            })
        );
        assert_eq!(shaped(&schema, json!({"object": "text"})), json!({"object": "text", "scalar": 5}));
    }

    #[test]
    fn defaults_for_nulls_depend_on_nullable() {
        let schema = Schema::of_object([
            ("nullable", text().nullable()),
            ("nullableDefault", text().nullable().with_default(json!("x"))),
            ("forbidden", text()),
            ("forbiddenDefault", text().with_default(json!("x"))),
            ("array", Schema::of_array(text())),
            ("nullDefault", text().nullable().with_default(json!(null))),
        ]);
        assert_eq!(
            shaped(
                &schema,
                json!({
                    "nullable": null, "nullableDefault": null, "forbidden": null, "forbiddenDefault": null,
                    "array": [null], "unknown": null,
                })
            ),
            json!({
                "nullable": null, "nullableDefault": null, "forbiddenDefault": "x", "array": [null], "unknown": null,
            })
        );
        assert_eq!(shaped(&schema, json!({})), json!({"nullableDefault": "x", "forbiddenDefault": "x"}));
    }

    #[test]
    fn forbidden_nulls_dropped_at_every_depth() {
        let schema = Schema::of_object([("a", Schema::of_array(Schema::of_map(text())))]);
        let mut value = json!({"a": [{"x": null, "y": "1"}], "b": null});
        drop_forbidden_nulls(&mut value, &schema);
        assert_eq!(value, json!({"a": [{"y": "1"}], "b": null}));
    }
}
