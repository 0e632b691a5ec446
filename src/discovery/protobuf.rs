//! Encodes discovery documents as Kubernetes protobuf (`k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`,
//! `k8s.io/api/apidiscovery/v2/generated.proto`). Non-pointer fields are written even if empty.

use serde_json::{Map, Value};

use crate::kubeapi::wire::{enveloped, nested, number, text};

/// Fields of a message, in the order of their numbers.
struct Message(&'static [(&'static str, u8, Form)]);

#[derive(Clone, Copy)]
enum Form {
    Text,
    Flag,
    /// A number that is always 0 here.
    Zero,
    Texts,
    /// Strings in a nested message.
    Verbs,
    One(&'static Message),
    /// Omitted if absent.
    Maybe(&'static Message),
    Many(&'static Message),
}

static VERSIONS: Message =
    Message(&[("versions", 1, Form::Texts), ("serverAddressByClientCIDRs", 2, Form::Many(&ADDRESS))]);
static ADDRESS: Message = Message(&[("clientCIDR", 1, Form::Text), ("serverAddress", 2, Form::Text)]);
static GROUPS: Message = Message(&[("groups", 1, Form::Many(&GROUP))]);
static GROUP: Message = Message(&[
    ("name", 1, Form::Text),
    ("versions", 2, Form::Many(&VERSION)),
    ("preferredVersion", 3, Form::One(&VERSION)),
    ("serverAddressByClientCIDRs", 4, Form::Many(&ADDRESS)),
]);
static VERSION: Message = Message(&[("groupVersion", 1, Form::Text), ("version", 2, Form::Text)]);
static RESOURCES: Message = Message(&[("groupVersion", 1, Form::Text), ("resources", 2, Form::Many(&RESOURCE))]);
static RESOURCE: Message = Message(&[
    ("name", 1, Form::Text),
    ("namespaced", 2, Form::Flag),
    ("kind", 3, Form::Text),
    ("verbs", 4, Form::Verbs),
    ("shortNames", 5, Form::Texts),
    ("singularName", 6, Form::Text),
    ("categories", 7, Form::Texts),
    ("group", 8, Form::Text),
    ("version", 9, Form::Text),
    ("storageVersionHash", 10, Form::Text),
]);

static AGGREGATED: Message = Message(&[("metadata", 1, Form::One(&LIST)), ("items", 2, Form::Many(&AGGREGATED_GROUP))]);
static LIST: Message =
    Message(&[("selfLink", 1, Form::Text), ("resourceVersion", 2, Form::Text), ("continue", 3, Form::Text)]);
static AGGREGATED_GROUP: Message =
    Message(&[("metadata", 1, Form::One(&OBJECT)), ("versions", 2, Form::Many(&AGGREGATED_VERSION))]);
static OBJECT: Message = Message(&[
    ("name", 1, Form::Text),
    ("generateName", 2, Form::Text),
    ("namespace", 3, Form::Text),
    ("selfLink", 4, Form::Text),
    ("uid", 5, Form::Text),
    ("resourceVersion", 6, Form::Text),
    ("generation", 7, Form::Zero),
    ("creationTimestamp", 8, Form::One(&Message(&[]))),
]);
static AGGREGATED_VERSION: Message = Message(&[
    ("version", 1, Form::Text),
    ("resources", 2, Form::Many(&AGGREGATED_RESOURCE)),
    ("freshness", 3, Form::Text),
]);
static AGGREGATED_RESOURCE: Message = Message(&[
    ("resource", 1, Form::Text),
    ("responseKind", 2, Form::Maybe(&KIND)),
    ("scope", 3, Form::Text),
    ("singularResource", 4, Form::Text),
    ("verbs", 5, Form::Texts),
    ("shortNames", 6, Form::Texts),
    ("categories", 7, Form::Texts),
    ("subresources", 8, Form::Many(&SUBRESOURCE)),
]);
static SUBRESOURCE: Message = Message(&[
    ("subresource", 1, Form::Text),
    ("responseKind", 2, Form::Maybe(&KIND)),
    ("acceptedTypes", 3, Form::Many(&KIND)),
    ("verbs", 4, Form::Texts),
]);
static KIND: Message = Message(&[("group", 1, Form::Text), ("version", 2, Form::Text), ("kind", 3, Form::Text)]);

/// Encodes the document `json`; `None` if it is of another kind.
pub(super) fn encode(json: &[u8]) -> Option<Vec<u8>> {
    let document: Value = serde_json::from_slice(json).ok()?;
    let kind = document["kind"].as_str()?;
    let message = match kind {
        "APIVersions" => &VERSIONS,
        "APIGroupList" => &GROUPS,
        "APIGroup" => &GROUP,
        "APIResourceList" => &RESOURCES,
        "APIGroupDiscoveryList" => &AGGREGATED,
        _ => return None,
    };
    // Upstream omits it for APIVersions, here as there.
    let api_version = document["apiVersion"].as_str().unwrap_or_default();
    Some(enveloped(api_version, kind, &message.write(document.as_object()?)))
}

impl Message {
    fn write(&self, object: &Map<String, Value>) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, field, form) in self.0 {
            put(&mut out, *field, *form, object.get(*key));
        }
        out
    }
}

fn put(out: &mut Vec<u8>, field: u8, form: Form, value: Option<&Value>) {
    let texts = |out: &mut Vec<u8>, field| {
        for entry in value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            text(out, field, entry);
        }
    };
    match form {
        Form::Text => text(out, field, value.and_then(Value::as_str).unwrap_or_default()),
        Form::Flag => number(out, field, u64::from(value.and_then(Value::as_bool).unwrap_or_default())),
        Form::Zero => number(out, field, 0),
        Form::Texts => texts(out, field),
        Form::Verbs => {
            let mut verbs = Vec::new();
            texts(&mut verbs, 1);
            nested(out, field, &verbs);
        }
        Form::One(message) => {
            let nothing = Map::new();
            nested(out, field, &message.write(value.and_then(Value::as_object).unwrap_or(&nothing)));
        }
        Form::Maybe(message) => {
            if let Some(object) = value.and_then(Value::as_object) {
                nested(out, field, &message.write(object));
            }
        }
        Form::Many(message) => {
            for object in value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
                nested(out, field, &message.write(object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_for_byte_upstream_s() {
        // Responses of kube-apiserver 1.36 for /api and /apis/apps.
        for (json, expected) in [
            (
                r#"{"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:26620"}]}"#,
                &b"k8s\0\x0a\x0f\x0a\0\x12\x0bAPIVersions\x12\"\x0a\x02v1\x12\x1c\x0a\x090.0.0.0/0\x12\x0f127.0.0.1:26620\x1a\0\"\0"[..],
            ),
            (
                r#"{"kind": "APIGroup", "apiVersion": "v1", "name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}], "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"}}"#,
                b"k8s\0\x0a\x0e\x0a\x02v1\x12\x08APIGroup\x12$\x0a\x04apps\x12\x0d\x0a\x07apps/v1\x12\x02v1\x1a\x0d\x0a\x07apps/v1\x12\x02v1\x1a\0\"\0",
            ),
        ] {
            let ours = encode(json.as_bytes()).unwrap();
            assert!(ours == expected, "{}", ours.escape_ascii());
        }
    }

    #[test]
    fn resources_are_written_in_both_forms() {
        let list = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[
            {"name":"a","singularName":"","namespaced":true,"kind":"A","verbs":["get"],"shortNames":["s"]}]}"#;
        let resource = b"\x0a\x01a\x10\x01\x1a\x01A\x22\x05\x0a\x03get\x2a\x01s\x32\0\x42\0\x4a\0\x52\0";
        let ours = encode(list.as_bytes()).unwrap();
        assert!(ours.windows(resource.len()).any(|bytes| bytes == resource), "{}", ours.escape_ascii());
        let aggregated = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
            {"metadata":{"name":"g"},"versions":[{"version":"v1","freshness":"Stale"}]}]}"#;
        let item =
            b"\x12\x20\x0a\x11\x0a\x01g\x12\0\x1a\0\x22\0\x2a\0\x32\0\x38\0\x42\0\x12\x0b\x0a\x02v1\x1a\x05Stale";
        let ours = encode(aggregated.as_bytes()).unwrap();
        assert!(ours.windows(item.len()).any(|bytes| bytes == item), "{}", ours.escape_ascii());
        for other in ["", "[]", "{}", r#"{"kind":"Status"}"#] {
            assert_eq!(encode(other.as_bytes()), None);
        }
    }
}
