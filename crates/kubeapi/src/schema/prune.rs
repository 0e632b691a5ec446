//! Pruning: fields that the schema does not know are removed, and their paths reported
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning/algorithm.go`).

use serde_json::{Map, Value};

use super::Schema;
use super::path::ValuePath;
use crate::GoQuoted;

/// Fields of the root and of embedded resources that are never pruned; other code checks them.
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// Maximum size of all reported paths in bytes: each may be as long as the object.
const MAX_REPORTED: usize = 256 * 1024;

/// Removes fields that the schema does not know, and returns their paths, such as `spec.ports[0].name`, sorted. Without
/// a schema nothing is known. With `is_root`, the value is an object whose `apiVersion`, `kind` and `metadata` stay.
pub fn prune_unknown_fields(value: &mut Value, schema: Option<&Schema>, is_root: bool) -> Vec<String> {
    let mut pruner = FieldPruner::default();
    match (value, schema) {
        (Value::Object(map), schema) if is_root => pruner.prune_object(map, schema, true, None),
        (value, schema) => pruner.prune(value, schema, None),
    }
    pruner.removed.sort_unstable();
    pruner.removed
}

/// The text of strict decoding for a path that was removed.
pub fn unknown_field_message(path: &str) -> String {
    format!("unknown field {}", GoQuoted(path))
}

#[derive(Default)]
struct FieldPruner {
    removed: Vec<String>,
    reported: usize,
}

impl FieldPruner {
    fn report(&mut self, path: ValuePath<'_>) {
        if self.reported < MAX_REPORTED {
            let path = path.to_string();
            self.reported += path.len();
            self.removed.push(path);
        }
    }

    fn prune(&mut self, value: &mut Value, schema: Option<&Schema>, path: Option<&ValuePath<'_>>) {
        match value {
            Value::Object(map) => {
                let is_embedded = schema.is_some_and(|schema| schema.is_embedded_resource);
                self.prune_object(map, schema, is_embedded, path);
            }
            Value::Array(items) => {
                let inner = schema.and_then(|schema| schema.items.as_deref());
                let is_preserved = schema.is_some_and(|schema| schema.preserves_unknown_fields);
                for (index, item) in items.iter_mut().enumerate() {
                    let path = ValuePath::item(path, index);
                    if is_preserved {
                        self.prune_specified(item, inner, Some(&path));
                    } else {
                        self.prune(item, inner, Some(&path));
                    }
                }
            }
            _ => {}
        }
    }

    fn prune_object(
        &mut self,
        map: &mut Map<String, Value>,
        schema: Option<&Schema>,
        is_embedded: bool,
        path: Option<&ValuePath<'_>>,
    ) {
        let is_preserved = schema.is_some_and(|schema| schema.preserves_unknown_fields);
        map.retain(|key, value| {
            if is_embedded && META_FIELDS.contains(&key.as_str()) {
                return true;
            }
            let specified = schema.and_then(|schema| match schema.properties.get(key) {
                Some(property) => Some(Some(property.as_ref())),
                None => schema.additional_properties.as_ref().map(|values| values.schema()),
            });
            match specified {
                Some(schema) => {
                    self.prune(value, schema, Some(&ValuePath::property(path, key)));
                    true
                }
                None if is_preserved => true,
                None => {
                    self.report(ValuePath::property(path, key));
                    false
                }
            }
        });
    }

    /// Prunes below an array that preserves unknown fields: only what has a schema.
    fn prune_specified(&mut self, value: &mut Value, schema: Option<&Schema>, path: Option<&ValuePath<'_>>) {
        let Some(schema) = schema else { return };
        match value {
            Value::Object(map) => {
                for (key, value) in map.iter_mut() {
                    if schema.is_embedded_resource && META_FIELDS.contains(&key.as_str()) {
                        continue;
                    }
                    let specified = match schema.properties.get(key) {
                        Some(property) => Some(Some(property.as_ref())),
                        None => schema.additional_properties.as_ref().map(|values| values.schema()),
                    };
                    if let Some(schema) = specified {
                        self.prune(value, schema, Some(&ValuePath::property(path, key)));
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.prune_specified(item, schema.items.as_deref(), Some(&ValuePath::item(path, index)));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{AdditionalProperties, ValueType};
    use super::*;

    fn preserving(schema: Schema) -> Schema {
        Schema { preserves_unknown_fields: true, ..schema }
    }

    fn embedded(schema: Schema) -> Schema {
        Schema { is_embedded_resource: true, ..schema }
    }

    fn text() -> Schema {
        Schema::of_type(ValueType::String)
    }

    fn check(schema: &Schema, value: impl Into<Value>, expected: impl Into<Value>, paths: &[&str]) {
        let (mut pruned, expected): (Value, Value) = (value.into(), expected.into());
        assert_eq!(prune_unknown_fields(&mut pruned, Some(schema), true), paths);
        assert_eq!(pruned, expected);
        assert_eq!(prune_unknown_fields(&mut pruned, Some(schema), true), Vec::<String>::new());
    }

    #[test]
    fn prune_removes_unknown_fields_with_sorted_paths() {
        let schema = Schema::of_object([(
            "spec",
            Schema::of_object([
                ("a", text()),
                ("list", Schema::of_array(Schema::of_object([("x", text())]))),
                ("map", Schema::of_map(Schema::of_object([("y", text())]))),
            ]),
        )]);
        check(
            &schema,
            json!({
                "apiVersion": "v1", "kind": "K", "metadata": {"foo": 1}, "zzz": 1,
                "spec": {"a": {"b": 1}, "list": [{"x": 1, "u": 2}, 3, {"u": 1}], "map": {"k": {"y": 1, "u": 2}}, "n": {}},
            }),
            json!({
                "apiVersion": "v1", "kind": "K", "metadata": {"foo": 1},
                "spec": {"a": {}, "list": [{"x": 1}, 3, {}], "map": {"k": {"y": 1}}},
            }),
            &["spec.a.b", "spec.list[0].u", "spec.list[2].u", "spec.map.k.u", "spec.n", "zzz"],
        );
        assert_eq!(unknown_field_message("spec.n"), "unknown field \"spec.n\"");
    }

    #[test]
    fn prune_preserved_still_prunes_what_is_specified() {
        let schema = Schema::of_object([
            ("open", preserving(Schema::of_object([("a", Schema::of_object([("b", text())]))]))),
            ("list", preserving(Schema::of_array(Schema::of_object([("a", Schema::of_object([]))])))),
        ]);
        check(
            &schema,
            json!({"open": {"u": {"v": 1}, "a": {"b": 1, "u": 2}}, "list": [{"u": 1, "a": {"u": 1}}]}),
            json!({"open": {"u": {"v": 1}, "a": {"b": 1}}, "list": [{"u": 1, "a": {}}]}),
            &["list[0].a.u", "open.a.u"],
        );
    }

    #[test]
    fn prune_embedded_resource_keeps_its_metadata() {
        let schema = Schema::of_object([("emb", embedded(Schema::of_object([("spec", Schema::of_object([]))])))]);
        check(
            &schema,
            json!({"emb": {"apiVersion": "v1", "kind": "K", "metadata": {"u": 1}, "u": 1, "spec": {"u": 1}}}),
            json!({"emb": {"apiVersion": "v1", "kind": "K", "metadata": {"u": 1}, "spec": {}}}),
            &["emb.spec.u", "emb.u"],
        );
    }

    #[test]
    fn prune_any_additional_property_empties_objects() {
        let schema = Schema { additional_properties: Some(AdditionalProperties::Any), ..Schema::of_object([]) };
        let schema = Schema::of_object([("m", schema)]);
        let value = json!({"m": {"a": 1, "b": {"c": 1}, "d": [{"e": 1}, 2]}});
        check(&schema, value, json!({"m": {"a": 1, "b": {}, "d": [{}, 2]}}), &["m.b.c", "m.d[0].e"]);
    }

    #[test]
    fn prune_reports_bounded() {
        let long = "k".repeat(100_000);
        let fields: Map<String, Value> = (0..100).map(|n| (format!("f{n}"), json!(1))).collect();
        let mut value = json!({ long: fields });
        let schema = Schema::of_map(Schema::of_object([]));
        let reported = prune_unknown_fields(&mut value, Some(&schema), false);
        assert!(reported.iter().map(String::len).sum::<usize>() < MAX_REPORTED + 5000 && reported.len() > 10);
    }

    proptest! {
        #[test]
        fn prune_without_schema_keeps_meta_fields_only(keys in proptest::collection::vec("[a-c]|kind", 0..6)) {
            let map: Map<String, Value> = keys.into_iter().map(|key| (key, json!({"x": 1}))).collect();
            let mut value = Value::Object(map);
            prune_unknown_fields(&mut value, None, true);
            prop_assert!(value.as_object().unwrap().keys().all(|key| key == "kind"));
        }
    }
}
