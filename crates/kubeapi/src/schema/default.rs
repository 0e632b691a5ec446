//! Defaults, and removal of forbidden nulls (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting`).

use std::fmt;

use serde_json::Value;

use super::Schema;
use crate::json::json_size;

/// The defaults of a schema would make an object too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultsTooLarge {
    /// Maximum size of the defaults of one object in bytes.
    pub limit: usize,
}

impl fmt::Display for DefaultsTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the defaults of its schema add more than {} bytes", self.limit)
    }
}

impl std::error::Error for DefaultsTooLarge {}

/// Sets absent fields to their defaults, from the outside to the inside: the fields of a default get theirs, too. A
/// null that the schema forbids becomes the default. Keys of maps are not created.
///
/// Call [`drop_forbidden_nulls`] before: a null without a default stays null here.
///
/// # Errors
/// The defaults have more than `limit` bytes of JSON together: a small object may have many places for large defaults. It
/// has those within the limit then.
pub fn apply_defaults(value: &mut Value, schema: &Schema, limit: usize) -> Result<(), DefaultsTooLarge> {
    let mut budget = DefaultsBudget { limit, left: limit };
    budget.apply(value, schema)
}

/// How many bytes defaults may still add to an object.
struct DefaultsBudget {
    limit: usize,
    left: usize,
}

impl DefaultsBudget {
    fn spend(&mut self, bytes: usize) -> Result<(), DefaultsTooLarge> {
        self.left = self.left.checked_sub(bytes).ok_or(DefaultsTooLarge { limit: self.limit })?;
        Ok(())
    }

    fn apply(&mut self, value: &mut Value, schema: &Schema) -> Result<(), DefaultsTooLarge> {
        match value {
            Value::Object(map) => {
                // Not all properties: an object may have many items that have none of them.
                for name in &schema.defaulted {
                    let Some(property) = schema.properties.get(name) else { continue };
                    let Some(default) = &property.default else { continue };
                    let is_set = map.get(name).is_some_and(|value| property.is_nullable || !value.is_null());
                    if !is_set {
                        self.spend(name.len() + 4 + json_size(default))?;
                        map.insert(name.clone(), default.clone());
                    }
                }
                for (name, value) in map.iter_mut() {
                    if let Some(inner) = schema.field(name) {
                        self.replace_null(value, inner)?;
                        self.apply(value, inner)?;
                    }
                }
            }
            Value::Array(items) => {
                let Some(inner) = &schema.items else { return Ok(()) };
                for item in items {
                    self.replace_null(item, inner)?;
                    self.apply(item, inner)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn replace_null(&mut self, value: &mut Value, schema: &Schema) -> Result<(), DefaultsTooLarge> {
        if let Some(default) = schema.default.as_ref().filter(|_| value.is_null() && !schema.is_nullable) {
            self.spend(json_size(default))?;
            *value = default.clone();
        }
        Ok(())
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
    use serde_json::{Map, json};

    use super::super::ValueType;
    use super::*;

    fn text() -> Schema {
        Schema::of_type(ValueType::String)
    }

    fn shaped(schema: &Schema, value: Value) -> Value {
        let mut shaped = value;
        drop_forbidden_nulls(&mut shaped, schema);
        apply_defaults(&mut shaped, schema, usize::MAX).unwrap();
        let mut again = shaped.clone();
        apply_defaults(&mut again, schema, 0).unwrap();
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

    #[test]
    fn defaults_beyond_the_limit_are_refused_before_they_take_memory() {
        // Each item gets a kilobyte; and a default whose items have defaults.
        let item = || Schema::of_object([("a", text().with_default(json!("x".repeat(1000))))]);
        let list = Schema::of_array(item()).with_default(json!(vec![json!({}); 1000]));
        let schema = Schema::of_object([
            ("list", list),
            ("map", Schema::of_map(item())),
            ("nulls", { Schema::of_array(item().with_default(json!({}))) }),
        ]);
        let refused = |value: Value, limit: usize| {
            let mut value = value;
            let result = apply_defaults(&mut value, &schema, limit);
            assert!(json_size(&value) < limit + 20_000, "{}", json_size(&value));
            result
        };
        let items: Map<String, Value> = (0..1000).map(|at| (at.to_string(), json!({}))).collect();
        let own = |mut fields: Value| {
            fields["list"] = fields.get("list").cloned().unwrap_or(json!([]));
            fields
        };
        for value in [json!({}), own(json!({"list": vec![json!({}); 1000]})), own(json!({"map": items})), {
            own(json!({"nulls": vec![json!(null); 1000]}))
        }] {
            assert_eq!(refused(value.clone(), 500_000), Err(DefaultsTooLarge { limit: 500_000 }));
            assert_eq!(refused(value, 1_500_000), Ok(()));
        }
    }

    #[test]
    fn json_size_is_that_of_the_text() {
        for value in [json!(null), json!({"a": [1, -2.5, true, {}], "b": {"c": "é\n\"", "d": []}}), json!("\u{1}")] {
            assert_eq!(json_size(&value), value.to_string().len(), "{value}");
        }
    }
}
