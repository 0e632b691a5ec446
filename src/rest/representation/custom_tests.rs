//! Tests of custom objects: what is sent as it is stored, and lists.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use store::watch_cache::{ContinuePosition, Stored};
use store::{KeyValue, Prefix};

use super::body::FRAME_BYTES;
use super::document::write_item;
use super::negotiate::{ObjectTransform, OutputEncoding, RowObject};
use super::*;
use crate::conversion::schema_work;
use crate::resources::custom::{Crd, custom_entries};

fn stored(value: &Value) -> Arc<Stored> {
    let prefix = Prefix::parse("/registry/a.io/things/").unwrap();
    let key = prefix.key("", "x").unwrap();
    let value = Bytes::from(format!("{value}\n"));
    Arc::new(Stored::new(Arc::new(KeyValue { key, value, created: 2, revision: 7, expires: None }), &prefix, &[]))
}

/// The kinds of the served versions: the fields of `spec` by version.
fn kinds(versions: &[(&str, Value)]) -> Vec<ServedKind> {
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let version = |(name, fields): &(&str, Value)| {
        let spec = json!({"type": "object", "properties": fields});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        json!({"name": name, "served": true, "storage": *name == "v1", "schema": {"openAPIV3Schema": schema}})
    };
    let versions: Vec<Value> = versions.iter().map(version).collect();
    let crd = json!({
        "metadata": {"name": "things.a.io"},
        "spec": {"group": "a.io", "names": names, "scope": "Cluster", "versions": versions},
        "status": {"acceptedNames": names},
    });
    let record = stored(&crd);
    let crd: Crd = serde_json::from_value(crd).unwrap();
    let mut kinds: Vec<ServedKind> = custom_entries(&crd, &record, None).into_iter().map(|entry| entry.kind).collect();
    kinds.sort_by(|a, b| a.version.version.cmp(&b.version.version));
    kinds
}

fn written(kind: &ServedKind, object: &Arc<Stored>, transform: ObjectTransform) -> String {
    let mut out = Vec::new();
    write_item(&mut out, kind, &ReplyObject::stored(object.clone()), transform, SystemTime::UNIX_EPOCH);
    String::from_utf8(out).unwrap()
}

/// The object in a version, which must be the same when it is sent again; and whether it is sent as it is stored.
fn sent(kind: &ServedKind, object: &Arc<Stored>) -> (String, bool) {
    let first = written(kind, object, ObjectTransform::Unchanged);
    assert_eq!(written(kind, object, ObjectTransform::Unchanged), first);
    (first, object.schema_checks().result(kind.version.custom().unwrap().id()).unwrap())
}

fn thing(spec: &Value) -> Arc<Stored> {
    stored(&json!({"apiVersion": "a.io/v1", "kind": "Thing", "metadata": {"generation": 1, "name": "x"}, "spec": spec}))
}

fn expected(version: &str, spec: &str) -> String {
    let metadata = r#"{"generation":1,"name":"x","resourceVersion":"7"}"#;
    format!(r#"{{"apiVersion":"a.io/{version}","kind":"Thing","metadata":{metadata},"spec":{spec}}}"#)
}

#[test]
fn custom_object_sent_as_stored_unless_schema_adds_or_removes() {
    let text = json!({"type": "string"});
    let with_default = json!({"type": "string", "default": "d"});
    let all = kinds(&[("v1", json!({"a": text})), ("v2", json!({"a": text, "b": with_default})), ("v3", json!({}))]);
    let object = thing(&json!({"a": "1"}));
    for _ in 0..2 {
        assert_eq!(sent(&all[0], &object), (expected("v1", r#"{"a":"1"}"#), true));
        assert_eq!(sent(&all[1], &object), (expected("v2", r#"{"a":"1"}"#), true));
        assert_eq!(sent(&all[2], &object), (expected("v3", "{}"), false));
    }
    // Nothing but `apiVersion` differs.
    let whole = thing(&json!({"a": "1"}));
    let same = kinds(&[("v1", json!({"a": text})), ("v2", json!({"a": text}))]);
    assert_eq!(sent(&same[1], &whole), (expected("v2", r#"{"a":"1"}"#), true));
    assert_eq!(sent(&same[0], &whole), (expected("v1", r#"{"a":"1"}"#), true));
    // The CRD changes.
    let pruning = kinds(&[("v1", json!({})), ("v2", json!({"a": text}))]);
    assert_eq!(sent(&pruning[0], &whole), (expected("v1", "{}"), false));
    assert_eq!(sent(&pruning[1], &whole), (expected("v2", "{}"), false));
    assert_eq!(sent(&same[1], &whole), (expected("v2", r#"{"a":"1"}"#), true));
}

#[test]
fn custom_object_of_other_writer_is_sent_sorted() {
    let kind = &kinds(&[("v1", json!({}))])[0];
    let text = br#"{"kind": "Thing", "apiVersion": "a.io/v1", "metadata": {"name": "x", "generation": 1}, "spec": {}}"#;
    let prefix = Prefix::parse("/registry/a.io/things/").unwrap();
    let key = prefix.key("", "x").unwrap();
    let record = KeyValue { key, value: Bytes::from_static(text), created: 2, revision: 7, expires: None };
    let object = Arc::new(Stored::new(Arc::new(record), &prefix, &[]));
    assert_eq!(sent(kind, &object), (expected("v1", "{}"), false));
}

#[test]
fn custom_object_is_checked_before_it_is_written() {
    let with_default = json!({"type": "string", "default": "d"});
    let all = kinds(&[("v1", json!({"a": with_default})), ("v2", json!({}))]);
    let id = all[0].version.custom().unwrap().id();
    let long = "x".repeat(100_000);
    for (spec, expected) in [
        (json!({"a": "1"}), Some(true)),
        (json!({}), Some(false)),
        (json!({"a": "1", "b": 1}), Some(false)),
        // It is found out when it is read.
        (json!({"a": long}), None),
    ] {
        let object = thing(&spec);
        let value: Value = serde_json::from_slice(object.bytes()).unwrap();
        let is_complete = schema_work::is_complete(&all[0], value.as_object().unwrap());
        schema_work::record_completeness(&all[0], &object, is_complete);
        assert_eq!((is_complete, object.schema_checks().result(id)), (expected, expected));
        assert_eq!(
            schema_work::is_complete(&all[1], value.as_object().unwrap()),
            None,
            "it is stored in another version"
        );
    }
}

#[tokio::test]
async fn custom_list_frames_are_bounded_by_defaults_and_made_on_compute_threads() {
    let kind = &kinds(&[("v1", json!({"a": {"type": "string", "default": "d".repeat(40_000)}}))])[0];
    let list = |whole: bool| StoredList {
        revision: 9,
        objects: (0..8).map(|at| thing(&if whole && at < 4 { json!({"a": "1"}) } else { json!({}) })).collect(),
        next: None,
        remaining: None,
    };
    for transform in [
        ObjectTransform::Unchanged,
        ObjectTransform::PartialMetadata("meta.k8s.io/v1"),
        ObjectTransform::Table("meta.k8s.io/v1", RowObject::Metadata),
    ] {
        let media_type = OutputMediaType { encoding: OutputEncoding::Json, transform, accepts_gzip: false };
        let mut frames = list_frames(kind, list(false), media_type).await.unwrap();
        let (mut count, mut is_on_thread) = (0, true);
        while {
            is_on_thread &= count == 4 || frames.next_size() > FRAME_BYTES;
            frames.next_frame().is_some()
        } {
            count += 1;
        }
        // Two defaults fill a frame.
        assert!(count == 4 && is_on_thread, "{transform:?}: {count} frames");
        // Those that are sent as they are stored need no thread, unless with others.
        let list = list(true);
        list.objects[..4].iter().for_each(|object| drop(written(kind, object, ObjectTransform::Unchanged)));
        let mut frames = list_frames(kind, list, media_type).await.unwrap();
        assert!(frames.next_size() < FRAME_BYTES);
        frames.next_frame();
        assert!(frames.next_size() > FRAME_BYTES, "the others are in frames of their own");
    }
    // A watch and a single object.
    let object = thing(&json!({}));
    assert!(ReplyObject::stored(object.clone()).work(kind) > FRAME_BYTES);
    written(kind, &object, ObjectTransform::Unchanged);
    assert!(ReplyObject::stored(object).work(kind) > FRAME_BYTES, "defaults are added each time");
}

#[test]
fn custom_object_as_stored_has_row_and_metadata_of_the_asked_version() {
    let kind = &kinds(&[("v1", json!({})), ("v2", json!({}))])[1];
    let object = thing(&json!({}));
    let transforms = [
        ObjectTransform::Unchanged,
        ObjectTransform::PartialMetadata("meta.k8s.io/v1"),
        ObjectTransform::Table("meta.k8s.io/v1", RowObject::Complete),
    ];
    let first = transforms.map(|transform| written(kind, &thing(&json!({})), transform));
    sent(kind, &object);
    assert_eq!(transforms.map(|transform| written(kind, &object, transform)), first);
    assert!(first[2].contains(&expected("v2", "{}")), "{}", first[2]);
}

#[tokio::test]
async fn custom_list_has_sorted_keys_and_always_continue() {
    let kind = &kinds(&[("v1", json!({}))])[0];
    let list = |count: usize, next: Option<&str>| StoredList {
        revision: 9,
        objects: (0..count).map(|_| thing(&json!({}))).collect(),
        next: next.map(|start| ContinuePosition { revision: Some(9), start: start.to_owned() }),
        remaining: next.map(|_| 3),
    };
    let respond = async |list, encoding| {
        let media_type = OutputMediaType { encoding, transform: ObjectTransform::Unchanged, accepts_gzip: false };
        let response = respond(kind, media_type, StatusCode::OK, ReplyContent::List(list)).await.unwrap();
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    };
    let item = expected("v1", "{}");
    assert_eq!(
        respond(list(2, None), OutputEncoding::Json).await,
        format!(
            "{{\"apiVersion\":\"a.io/v1\",\"items\":[{item},{item}],\"kind\":\"ThingList\",\
             \"metadata\":{{\"continue\":\"\",\"resourceVersion\":\"9\"}}}}\n"
        )
    );
    let page: Value = serde_json::from_str(&respond(list(1, Some("/x\0")), OutputEncoding::Json).await).unwrap();
    assert_eq!(
        (&page["metadata"]["remainingItemCount"], &page["metadata"]["resourceVersion"]),
        (&json!(3), &json!("9"))
    );
    assert_ne!(page["metadata"]["continue"], "");
    let yaml =
        "apiVersion: a.io/v1\nitems: []\nkind: ThingList\nmetadata:\n  continue: \"\"\n  resourceVersion: \"9\"\n";
    assert_eq!(respond(list(0, None), OutputEncoding::Yaml).await, yaml);
}

#[test]
fn defaults_that_would_make_an_object_too_large_are_refused() {
    use crate::rest::request_body::{BodyFindings, check_object};
    use crate::rest::write_options::FieldValidation;

    // The CRD got large defaults after the object was stored.
    let item = json!({"type": "object", "properties": {"d": {"type": "string", "default": "x".repeat(1000)}}});
    let fields = json!({"items": {"type": "array", "items": item}});
    let kind = kinds(&[("v1", fields)]).remove(0);
    let with_items = |count: usize| json!({"items": vec![json!({}); count]});
    let (small, large) = (thing(&with_items(1000)), thing(&with_items(200_000)));
    assert_eq!(ReplyObject::stored(small).check_readable(&kind), Ok(()));
    let error = ReplyObject::stored(large.clone()).check_readable(&kind).unwrap_err();
    assert_eq!(error.code, 500);
    assert!(
        error
            .message
            .contains("/registry/a.io/things/x cannot be sent: the defaults of its schema add more than 1572864 bytes")
    );
    // In a list it has the defaults that fit.
    assert!(written(&kind, &large, ObjectTransform::Unchanged).len() < 3 << 20);

    let body = serde_json::from_slice::<Value>(large.bytes()).unwrap();
    let Err(refused) = check_object(&kind, body, BodyFindings::Texts(Vec::new()), FieldValidation::Warn) else {
        panic!("not refused");
    };
    for status in [refused.body_status(&kind, b"{}"), refused.patch_status("{}")] {
        assert_eq!((status.code, &*status.message), (413, "Request entity too large: limit is 1572864"));
    }
}
