//! The tables, the codec, strict decoding and defaults, compared with what Go's libraries made of the same objects.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use kubeapi::protobuf::decode::{ProtobufEnvelope, ProtobufError, decode_object, read_envelope};
use kubeapi::protobuf::encode::encode_object;
use kubeapi::protobuf::normalize::{NormalizeError, normalize};
use kubeapi::protobuf::table::{FieldListType, MessageId};
use serde_json::{Value, json};

use super::{builtin_kinds, set_defaults};
use crate::resources::ServedKind;

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn message_of(object: &Value) -> MessageId {
    let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let found = builtin_kinds().find_kind(group, version, kind.trim_end_matches("List"));
    let served = found.unwrap_or_else(|| panic!("no {kind} in {api_version}")).version;
    if kind.ends_with("List") { served.list_message() } else { served.message() }.unwrap()
}

fn object_cases() -> Vec<(Value, Vec<u8>)> {
    lines(include_str!("testdata/objects.jsonl"))
        .map(|case| (case["object"].clone(), STANDARD.decode(case["protobuf"].as_str().unwrap()).unwrap()))
        .collect()
}

fn decode(body: &[u8], message: MessageId) -> Result<Value, ProtobufError> {
    decode_object(&builtin_kinds().messages, message, &read_envelope(body)?)
}

#[test]
fn builtin_kinds_of_the_file_are_found() {
    let kinds = builtin_kinds();
    assert_eq!(kinds.resources().len(), 67);
    let ServedKind { resource: services, version: v1 } = kinds.find("", "v1", "services").unwrap();
    assert_eq!((&*services.kind, services.short_names.as_slice()), ("Service", &["svc".into()][..]));
    assert_eq!(services.storage, Some(("".into(), "v1".into())));
    assert_eq!(services.storage_path, "services/specs");
    assert_eq!(v1.subresource("status").unwrap().verbs, ["get", "patch", "update"]);
    let spec = kinds.messages.find("io.k8s.api.core.v1.ServiceSpec").unwrap();
    let (ports, _) = kinds.messages.field(spec, "ports").unwrap();
    assert_eq!((ports.list_type, ports.list_keys.as_slice()), (Some(FieldListType::Map), &["port", "protocol"][..]));
    assert_eq!((ports.patch_strategy, ports.patch_merge_key), ("merge", "port"));
    let autoscalers = kinds.resource("autoscaling", "horizontalpodautoscalers").unwrap();
    assert_eq!(autoscalers.versions.iter().map(|served| &*served.version).collect::<Vec<_>>(), ["v2", "v1"]);
    assert!(kinds.meta_message("DeleteOptions").is_some() && kinds.find("", "v2", "services").is_none());
}

#[test]
fn protobuf_decodes_and_encodes_as_go_does() {
    for (object, bytes) in object_cases() {
        let message = message_of(&object);
        assert_eq!(decode(&bytes, message).unwrap(), object);
        let encoded = encode_object(&builtin_kinds().messages, message, &object).unwrap();
        assert_eq!(STANDARD.encode(encoded), STANDARD.encode(&bytes), "{object}");
    }
}

#[test]
fn normalize_leaves_alone_what_go_wrote() {
    for (object, _) in object_cases() {
        let mut normalized = object.clone();
        let unknown = normalize(&builtin_kinds().messages, message_of(&object), &mut normalized).unwrap();
        assert_eq!((unknown, normalized), (Vec::new(), object));
    }
}

#[test]
fn protobuf_cut_anywhere_is_an_error_or_an_object() {
    for (object, bytes) in object_cases() {
        let message = message_of(&object);
        for length in 0..bytes.len() {
            if let Ok(value) = decode(&bytes[..length], message) {
                assert!(value.is_object());
                encode_object(&builtin_kinds().messages, message, &value).unwrap();
            }
        }
    }
}

#[test]
fn protobuf_of_arbitrary_bytes_does_not_panic() {
    let messages: Vec<MessageId> = object_cases().iter().map(|(object, _)| message_of(object)).collect();
    bolero::check!().with_iterations(3000).with_max_len(60).for_each(|bytes: &[u8]| {
        for message in &messages {
            let envelope = ProtobufEnvelope { raw: bytes, ..ProtobufEnvelope::default() };
            if let Ok(value) = decode_object(&builtin_kinds().messages, *message, &envelope) {
                encode_object(&builtin_kinds().messages, *message, &value).unwrap();
            }
        }
    });
}

#[test]
fn protobuf_of_changed_bytes_does_not_panic() {
    for (object, bytes) in object_cases() {
        let message = message_of(&object);
        for at in (0..bytes.len()).step_by(3) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            let _ = decode(&changed, message);
        }
    }
}

#[test]
fn protobuf_prefix_and_envelope_errors_are_those_of_upstream() {
    assert_eq!(read_envelope(b"").unwrap_err().to_string(), "empty data");
    assert_eq!(
        read_envelope(b"{}").unwrap_err().to_string(),
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    );
    assert_eq!(read_envelope(b"k8s\0\x0a\x05\x0a").unwrap_err(), ProtobufError::Malformed);
    let envelope = read_envelope(b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x01x").unwrap();
    assert_eq!(envelope, ProtobufEnvelope { api_version: "v1", kind: "Pod", raw: b"x" });
}

#[test]
fn protobuf_field_that_occurs_twice_is_merged() {
    let message = message_of(&json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    // metadata {name: a}, metadata {namespace: b}.
    let envelope = ProtobufEnvelope { raw: b"\x0a\x03\x0a\x01a\x0a\x03\x1a\x01b", ..ProtobufEnvelope::default() };
    let value = decode_object(&builtin_kinds().messages, message, &envelope).unwrap();
    assert_eq!(value, json!({"metadata": {"name": "a", "namespace": "b"}}));
}

#[test]
fn protobuf_of_many_empty_items_is_refused() {
    let message = message_of(&json!({"apiVersion": "v1", "kind": "Endpoints"}));
    let raw = [0x12, 0].repeat(300_000);
    let envelope = ProtobufEnvelope { raw: &raw, ..ProtobufEnvelope::default() };
    let error = decode_object(&builtin_kinds().messages, message, &envelope).unwrap_err();
    assert_eq!(error, ProtobufError::Value(NormalizeError::TooManyValues));
}

#[test]
fn protobuf_and_json_nested_without_end_are_refused() {
    let crd = builtin_kinds().messages.find("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
    // not: {not: {...}} is field 25.
    let mut raw = Vec::new();
    let mut value = json!({});
    for _ in 0..200 {
        let mut outer = vec![25 << 3 | 2, 1];
        let mut length = raw.len();
        while length >= 0x80 {
            outer.push(length as u8 | 0x80);
            length >>= 7;
        }
        outer.push(length as u8);
        raw = [outer, raw].concat();
        value = json!({"not": value});
    }
    let envelope = ProtobufEnvelope { raw: &raw, ..ProtobufEnvelope::default() };
    let error = decode_object(&builtin_kinds().messages, crd.unwrap(), &envelope).unwrap_err();
    assert_eq!(error, ProtobufError::Value(NormalizeError::TooDeep));
    let error = normalize(&builtin_kinds().messages, crd.unwrap(), &mut value).unwrap_err();
    assert_eq!(error, NormalizeError::TooDeep);
}

/// Go's JSON has empty lists, which are nil after the way through protobuf that a kube-apiserver's store is.
fn empty_lists_are_null(value: &mut Value) {
    match value {
        Value::Array(items) if items.is_empty() => *value = Value::Null,
        Value::Array(items) => items.iter_mut().for_each(empty_lists_are_null),
        Value::Object(fields) => fields.values_mut().for_each(empty_lists_are_null),
        _ => {}
    }
}

#[test]
fn strict_decoding_reports_what_upstream_reports() {
    for case in lines(include_str!("testdata/strict.jsonl")) {
        let mut value = case["sent"].clone();
        let expected = case["error"].as_str().unwrap_or_default();
        match normalize(&builtin_kinds().messages, message_of(&value), &mut value) {
            Ok(unknown) => {
                let reported = expected.strip_prefix("strict decoding error: ");
                let reported: BTreeSet<&str> = reported.into_iter().flat_map(|list| list.split(", ")).collect();
                let unknown: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
                assert_eq!(unknown.iter().map(String::as_str).collect::<BTreeSet<_>>(), reported);
                // What Go decodes is nil here; kube-apiserver stores it as protobuf and reads empty bytes back.
                let mut left = case["left"].clone();
                for bytes in left.get_mut("binaryData").and_then(Value::as_object_mut).into_iter().flatten() {
                    if bytes.1.is_null() {
                        *bytes.1 = json!("");
                    }
                }
                empty_lists_are_null(&mut left);
                assert_eq!(value, left, "{}", case["sent"]);
            }
            Err(error) => assert_eq!(error.to_string(), expected, "{}", case["sent"]),
        }
    }
}

/// Replaces the value at which `choice` arrives by counting down through the tree.
fn replace_one(value: &mut Value, choice: &mut usize, with: &Value) {
    if *choice == 0 {
        *value = with.clone();
    }
    *choice = choice.wrapping_sub(1);
    match value {
        Value::Object(map) => map.values_mut().for_each(|child| replace_one(child, choice, with)),
        Value::Array(items) => items.iter_mut().for_each(|child| replace_one(child, choice, with)),
        _ => {}
    }
}

#[test]
fn normalize_of_changed_objects_is_idempotent_and_encodes() {
    let kinds = builtin_kinds();
    let replacements = [
        json!(null),
        json!({}),
        json!([]),
        json!(""),
        json!([null]),
        json!({"metadata": null, "name": "a"}),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!("2026-01-02T03:04:05.123456Z"),
        json!("0001-01-01T00:00:00Z"),
        json!(true),
    ];
    let mut accepted = 0;
    // The second case of each kind is the one with all fields.
    for (object, _) in object_cases().into_iter().take(44).skip(1).step_by(4) {
        let message = message_of(&object);
        for at in 0..150_usize {
            let mut value = object.clone();
            replace_one(&mut value, &mut at.clone(), &replacements[at % replacements.len()]);
            if normalize(&kinds.messages, message, &mut value).is_err() {
                continue;
            }
            accepted += 1;
            let mut again = value.clone();
            assert_eq!(normalize(&kinds.messages, message, &mut again), Ok(Vec::new()));
            assert_eq!(again, value);
            set_defaults(&kinds.messages, message, &mut again);
            let bytes = encode_object(&kinds.messages, message, &again).unwrap();
            decode(&bytes, message).unwrap();
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn defaults_are_those_of_upstream() {
    for case in lines(include_str!("testdata/defaults.jsonl")) {
        let mut value = case["sent"].clone();
        let message = message_of(&value);
        normalize(&builtin_kinds().messages, message, &mut value).unwrap();
        let mut defaulted = case["defaulted"].clone();
        // As objects in the store: labels of a new Job are set later.
        for object in [&mut value, &mut defaulted] {
            object["metadata"]["uid"] = "1".into();
        }
        set_defaults(&builtin_kinds().messages, message, &mut value);
        empty_lists_are_null(&mut defaulted);
        assert_eq!(value, defaulted, "{}", case["sent"]);
    }
}
