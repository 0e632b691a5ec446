//! Tests of strategic merge patches on a part of the Pod's schema.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Fields with a name in the tests: lists of objects merged by `name`, `ports` in them by `containerPort`, lists of
/// texts, a list and an object to replace.
struct PodSchema;

impl MergeSchema for PodSchema {
    fn merge_field(&self, name: &str) -> Option<FieldMerge<'_>> {
        let merge = |key| FieldMerge { strategy: MergeStrategy::Merge, merge_key: key, child: Some(&PodSchema) };
        Some(match name {
            "containers" | "env" => merge(Some("name")),
            "ports" => merge(Some("containerPort")),
            "finalizers" => merge(None),
            "broken" => merge(None),
            "selector" => FieldMerge { strategy: MergeStrategy::Replace, ..FieldMerge::default() },
            _ => FieldMerge { child: Some(&PodSchema), ..FieldMerge::default() },
        })
    }
}

fn apply(document: Value, patch: impl Into<Value>) -> Result<Value, PatchError> {
    let (patch, _) = StrategicPatch::parse(patch.into().to_string().as_bytes())?;
    let Value::Object(document) = document else { panic!("no object") };
    patch.apply(document, &PodSchema).map(Value::Object)
}

fn names(list: &[&str]) -> Value {
    list.iter().map(|name| json!({"name": name})).collect()
}

#[test]
fn strategic_merge_objects_and_nulls() {
    for (document, patch, expected) in [
        (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null, "d": 3}}), json!({"a": {"c": 2, "d": 3}})),
        (json!({"a": 1}), json!({"b": {"c": null, "d": [{"e": null}]}}), json!({"a": 1, "b": {"d": [{}]}})),
        (json!({"a": {"b": 1}}), json!({"a": {"$patch": "replace", "c": 1}}), json!({"a": {"c": 1}})),
        (json!({"a": {"b": 1}}), json!({"a": {"$patch": "delete"}}), json!({"a": {}})),
        (json!({}), json!({"a": {"$patch": "delete"}}), json!({})),
        (json!({"selector": {"a": 1}}), json!({"selector": {"b": 1}}), json!({"selector": {"b": 1}})),
        (json!({"args": [1, 2]}), json!({"args": [3]}), json!({"args": [3]})),
        (json!({"a": [1]}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}})),
        (json!({"a": 1}), json!(null), json!({"a": 1})),
    ] {
        assert_eq!(apply(document, patch.clone()), Ok(expected), "{patch}");
    }
}

#[test]
fn strategic_merge_lists_by_key() {
    let document = json!({"containers": [
        {"name": "a", "image": "1", "ports": [{"containerPort": 80, "name": "x"}]}, {"name": "b", "image": "2"},
    ]});
    let patch = json!({"containers": [
        {"name": "c", "image": "3"}, {"name": "a", "image": "9", "ports": [{"containerPort": 80, "name": null}]},
    ]});
    let expected = json!({"containers": [
        {"name": "c", "image": "3"}, {"name": "a", "image": "9", "ports": [{"containerPort": 80}]},
        {"name": "b", "image": "2"},
    ]});
    assert_eq!(apply(document, patch), Ok(expected));
}

#[test]
fn strategic_merge_deletes_and_replaces_list_entries() {
    let document = || json!({"containers": names(&["a", "b", "c"])});
    let patched = |patch: Value| apply(document(), json!({"containers": patch}));
    let expected = |list: &[&str]| Ok(json!({"containers": names(list)}));
    assert_eq!(patched(json!([{"name": "b", "$patch": "delete"}])), expected(&["a", "c"]));
    assert_eq!(patched(json!([{"name": "z"}, {"$patch": "replace"}])), expected(&["z"]));
    assert_eq!(patched(json!([{"$patch": "replace"}])), expected(&[]));
    assert_eq!(
        patched(json!([{"$patch": "delete"}])),
        Err(unmergeable("map: map[$patch:delete] does not contain declared merge key: name"))
    );
    assert_eq!(
        patched(json!([{"name": "a", "$patch": "merge"}])),
        Err(unmergeable("merging lists cannot yet be specified in the patch"))
    );
    assert_eq!(
        patched(json!([{"image": "x"}])),
        Err(unmergeable("map: map[image:x] does not contain declared merge key: name"))
    );
}

#[test]
fn strategic_merge_lists_of_scalars() {
    let patched = |patch: Value| apply(json!({"finalizers": ["a", "b", "c"]}), patch);
    let expected = |list: &[&str]| Ok(json!({"finalizers": list}));
    assert_eq!(patched(json!({"finalizers": ["d", "a"]})), expected(&["d", "a", "b", "c"]));
    assert_eq!(patched(json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]})), expected(&["a", "c"]));
    let both = json!({
        "$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "d", "b"], "finalizers": ["d"],
    });
    assert_eq!(patched(both), expected(&["c", "d", "b"]));
    assert_eq!(apply(json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["b"]})), Ok(json!({})));
    assert_eq!(
        patched(json!({"finalizers": [1]})),
        Err(unmergeable("list element types are not identical: [[a b c] [1]]"))
    );
    assert_eq!(patched(json!({"$deleteFromPrimitiveList": ["b"]})).unwrap_err().status().code, 400);
}

#[test]
fn strategic_merge_sets_element_order() {
    let document = || json!({"containers": names(&["a", "server", "b"])});
    let order = json!({"$setElementOrder/containers": names(&["b", "c", "a"]), "containers": [{"name": "c"}]});
    assert_eq!(apply(document(), order), Ok(json!({"containers": names(&["server", "b", "c", "a"])})));
    let order = json!({"$setElementOrder/containers": names(&["b", "a"])});
    assert_eq!(apply(document(), order), Ok(json!({"containers": names(&["server", "b", "a"])})));
    let added = json!({"$setElementOrder/containers": names(&["y", "x"]), "containers": names(&["y", "x"])});
    assert_eq!(apply(json!({}), added), Ok(json!({"containers": names(&["y", "x"])})));
    let mismatch = json!({"$setElementOrder/containers": names(&["a"]), "containers": names(&["z"])});
    let why = "The order in patch list:\n[map[name:z]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n";
    assert_eq!(apply(document(), mismatch), Err(unmergeable(why)));
    let text = json!({"$setElementOrder/containers": "a"});
    assert_eq!(apply(document(), text), Err(unmergeable("expected a []interface {}, but received a string")));
}

#[test]
fn strategic_merge_retains_keys() {
    let document = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"x": 1}}});
    let patch = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
    assert_eq!(apply(document.clone(), patch), Ok(json!({"strategy": {"type": "Recreate"}})));
    let other = json!({"strategy": {"$retainKeys": ["type"], "other": 1}});
    let error = PatchError::Malformed("invalid patch format of retainKeys".into());
    assert_eq!(apply(document, other), Err(error));
}

#[test]
fn strategic_merge_refusals() {
    let document = json!({"a": {}, "broken": [{"x": 1}], "finalizers": [["a"]]});
    let patched = |patch: Value| apply(document.clone(), patch);
    let unknown = "unknown patch type: merge in map: map[$patch:merge]";
    assert_eq!(patched(json!({"a": {"$patch": "merge"}})), Err(unmergeable(unknown)));
    let keyless = "cannot merge lists without merge key for struct";
    assert_eq!(patched(json!({"broken": [{"x": 2}]})), Err(unmergeable(keyless)));
    assert_eq!(patched(json!({"finalizers": ["a"]})).unwrap_err().status().code, 422);
    assert_eq!(StrategicPatch::parse(b"[]").unwrap_err().status().code, 400);
}

#[test]
fn strategic_merge_by_structural_schema() {
    let item = Schema::of_object([("name", Schema::of_type(ValueType::String))]);
    let containers =
        Schema { merge_key: Some("name".into()), merge_strategy: MergeStrategy::Merge, ..Schema::of_array(item) };
    let schema = Schema::of_object([("spec", Schema::of_object([("containers", containers)]))]);
    let (patch, _) = StrategicPatch::parse(br#"{"spec":{"containers":[{"name":"a","image":"2"}]}}"#).unwrap();
    let document = json!({"spec": {"containers": [{"name": "b"}, {"name": "a", "x": 1}]}});
    let merged = patch.apply(document.as_object().unwrap().clone(), &schema).unwrap();
    let expected = json!([{"name": "b"}, {"name": "a", "x": 1, "image": "2"}]);
    assert_eq!(merged["spec"]["containers"], expected);
}

fn arbitrary_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), (0..3i64).prop_map(Value::from), "[ab]".prop_map(Value::from)];
    let keys = prop_oneof![
        Just("containers"),
        Just("name"),
        Just("finalizers"),
        Just("$patch"),
        Just("$retainKeys"),
        Just("a"),
        Just("$setElementOrder/containers"),
        Just("$setElementOrder/finalizers"),
        Just("$deleteFromPrimitiveList/finalizers"),
    ];
    leaf.prop_recursive(4, 40, 4, move |inner| {
        let map = proptest::collection::btree_map(keys.clone(), inner.clone(), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            map.prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn strategic_merge_never_panics(document in arbitrary_value(), patch in arbitrary_value()) {
        if document.is_object() {
            let _ = apply(document, patch);
        }
    }

    #[test]
    fn strategic_merge_of_key_lists_keeps_each_name_once(
        before in proptest::collection::btree_set("[a-e]", 0..5),
        changes in proptest::collection::btree_set("[a-e]", 0..5),
    ) {
        let list = |set: &std::collections::BTreeSet<String>| -> Value {
            set.iter().map(|name| json!({"name": name})).collect()
        };
        let merged = apply(json!({"containers": list(&before)}), json!({"containers": list(&changes)})).unwrap();
        let mut found: Vec<&str> =
            merged["containers"].as_array().unwrap().iter().filter_map(|item| item["name"].as_str()).collect();
        found.sort_unstable();
        let expected: Vec<&str> = before.union(&changes).map(String::as_str).collect();
        prop_assert_eq!(found, expected);
    }
}
