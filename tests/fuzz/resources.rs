//! Objects of built-in kinds: protobuf, and JSON of any shape.

use kubeapi::protobuf::decode::{ProtobufEnvelope, decode_object, read_envelope};
use kubeapi::protobuf::encode::encode_object;
use kubeapi::protobuf::normalize::normalize;
use narthex::resources::builtin::{builtin_kinds, set_defaults};
use serde_json::Value;

use crate::{fuzz_bytes, fuzz_text};

/// Kinds that have every form of a value among them.
const KINDS: [(&str, &str, &str); 5] = [
    ("", "v1", "services"),
    ("", "v1", "pods"),
    ("coordination.k8s.io", "v1", "leases"),
    ("authentication.k8s.io", "v1", "tokenreviews"),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
];

#[test]
fn protobuf_objects() {
    fuzz_bytes(|bytes| {
        let kinds = builtin_kinds();
        let _ = read_envelope(bytes);
        for (group, version, plural) in KINDS {
            let message = kinds.find(group, version, plural).unwrap().version.message().unwrap();
            let envelope = ProtobufEnvelope { raw: bytes, ..ProtobufEnvelope::default() };
            if let Ok(value) = decode_object(&kinds.messages, message, &envelope) {
                encode_object(&kinds.messages, message, &value).unwrap();
            }
        }
    });
}

#[test]
fn json_objects() {
    const WORDS: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "{",
        "}",
        "\"metadata\":",
        "\"spec\":",
        "\"ports\":[",
        "\"labels\":{",
        "null",
        "true",
        "1",
        "1.5",
        "\"\"",
        "\"name\":",
        "\"targetPort\":",
        "\"renewTime\":",
        "\"0001-01-01T00:00:00Z\"",
        "\"containers\":[{",
        "\"properties\":{",
        "\"items\":",
        "\"a\":",
        "\"AA==\"",
    ];
    fuzz_text(WORDS, |text| {
        let kinds = builtin_kinds();
        let Ok(value) = serde_json::from_str::<Value>(text) else { return };
        for (group, version, plural) in KINDS {
            let message = kinds.find(group, version, plural).unwrap().version.message().unwrap();
            let mut value = value.clone();
            if normalize(&kinds.messages, message, &mut value).is_ok() {
                set_defaults(&kinds.messages, message, &mut value);
                encode_object(&kinds.messages, message, &value).unwrap();
            }
        }
    });
}
