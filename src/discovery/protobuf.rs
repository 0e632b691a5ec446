//! Encodes discovery documents as Kubernetes protobuf (`k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`,
//! `k8s.io/api/apidiscovery/v2/generated.proto`). Non-pointer fields are written even if empty.

use serde_json::{Map, Value};

use kubeapi::protobuf::{wrap_unknown, write_bytes, write_number, write_text};

/// Fields of a message, in the order of their numbers.
struct ProtobufMessage(&'static [(&'static str, u8, ProtobufFieldType)]);

#[derive(Clone, Copy)]
enum ProtobufFieldType {
    Text,
    Flag,
    /// A number that is always 0 here.
    Zero,
    Texts,
    /// Strings in a nested message.
    Verbs,
    One(&'static ProtobufMessage),
    /// Omitted if absent.
    Optional(&'static ProtobufMessage),
    Many(&'static ProtobufMessage),
}

static VERSIONS: ProtobufMessage = ProtobufMessage(&[
    ("versions", 1, ProtobufFieldType::Texts),
    ("serverAddressByClientCIDRs", 2, ProtobufFieldType::Many(&ADDRESS)),
]);
static ADDRESS: ProtobufMessage =
    ProtobufMessage(&[("clientCIDR", 1, ProtobufFieldType::Text), ("serverAddress", 2, ProtobufFieldType::Text)]);
static GROUPS: ProtobufMessage = ProtobufMessage(&[("groups", 1, ProtobufFieldType::Many(&GROUP))]);
static GROUP: ProtobufMessage = ProtobufMessage(&[
    ("name", 1, ProtobufFieldType::Text),
    ("versions", 2, ProtobufFieldType::Many(&VERSION)),
    ("preferredVersion", 3, ProtobufFieldType::One(&VERSION)),
    ("serverAddressByClientCIDRs", 4, ProtobufFieldType::Many(&ADDRESS)),
]);
static VERSION: ProtobufMessage =
    ProtobufMessage(&[("groupVersion", 1, ProtobufFieldType::Text), ("version", 2, ProtobufFieldType::Text)]);
static RESOURCES: ProtobufMessage = ProtobufMessage(&[
    ("groupVersion", 1, ProtobufFieldType::Text),
    ("resources", 2, ProtobufFieldType::Many(&RESOURCE)),
]);
static RESOURCE: ProtobufMessage = ProtobufMessage(&[
    ("name", 1, ProtobufFieldType::Text),
    ("namespaced", 2, ProtobufFieldType::Flag),
    ("kind", 3, ProtobufFieldType::Text),
    ("verbs", 4, ProtobufFieldType::Verbs),
    ("shortNames", 5, ProtobufFieldType::Texts),
    ("singularName", 6, ProtobufFieldType::Text),
    ("categories", 7, ProtobufFieldType::Texts),
    ("group", 8, ProtobufFieldType::Text),
    ("version", 9, ProtobufFieldType::Text),
    ("storageVersionHash", 10, ProtobufFieldType::Text),
]);

static AGGREGATED: ProtobufMessage = ProtobufMessage(&[
    ("metadata", 1, ProtobufFieldType::One(&LIST)),
    ("items", 2, ProtobufFieldType::Many(&AGGREGATED_GROUP)),
]);
static LIST: ProtobufMessage = ProtobufMessage(&[
    ("selfLink", 1, ProtobufFieldType::Text),
    ("resourceVersion", 2, ProtobufFieldType::Text),
    ("continue", 3, ProtobufFieldType::Text),
]);
static AGGREGATED_GROUP: ProtobufMessage = ProtobufMessage(&[
    ("metadata", 1, ProtobufFieldType::One(&OBJECT)),
    ("versions", 2, ProtobufFieldType::Many(&AGGREGATED_VERSION)),
]);
static OBJECT: ProtobufMessage = ProtobufMessage(&[
    ("name", 1, ProtobufFieldType::Text),
    ("generateName", 2, ProtobufFieldType::Text),
    ("namespace", 3, ProtobufFieldType::Text),
    ("selfLink", 4, ProtobufFieldType::Text),
    ("uid", 5, ProtobufFieldType::Text),
    ("resourceVersion", 6, ProtobufFieldType::Text),
    ("generation", 7, ProtobufFieldType::Zero),
    ("creationTimestamp", 8, ProtobufFieldType::One(&ProtobufMessage(&[]))),
]);
static AGGREGATED_VERSION: ProtobufMessage = ProtobufMessage(&[
    ("version", 1, ProtobufFieldType::Text),
    ("resources", 2, ProtobufFieldType::Many(&AGGREGATED_RESOURCE)),
    ("freshness", 3, ProtobufFieldType::Text),
]);
static AGGREGATED_RESOURCE: ProtobufMessage = ProtobufMessage(&[
    ("resource", 1, ProtobufFieldType::Text),
    ("responseKind", 2, ProtobufFieldType::Optional(&KIND)),
    ("scope", 3, ProtobufFieldType::Text),
    ("singularResource", 4, ProtobufFieldType::Text),
    ("verbs", 5, ProtobufFieldType::Texts),
    ("shortNames", 6, ProtobufFieldType::Texts),
    ("categories", 7, ProtobufFieldType::Texts),
    ("subresources", 8, ProtobufFieldType::Many(&SUBRESOURCE)),
]);
static SUBRESOURCE: ProtobufMessage = ProtobufMessage(&[
    ("subresource", 1, ProtobufFieldType::Text),
    ("responseKind", 2, ProtobufFieldType::Optional(&KIND)),
    ("acceptedTypes", 3, ProtobufFieldType::Many(&KIND)),
    ("verbs", 4, ProtobufFieldType::Texts),
]);
static KIND: ProtobufMessage = ProtobufMessage(&[
    ("group", 1, ProtobufFieldType::Text),
    ("version", 2, ProtobufFieldType::Text),
    ("kind", 3, ProtobufFieldType::Text),
]);

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
    // Kubernetes omits it for APIVersions, here as there.
    let api_version = document["apiVersion"].as_str().unwrap_or_default();
    Some(wrap_unknown(api_version, kind, &message.write(document.as_object()?)))
}

impl ProtobufMessage {
    fn write(&self, object: &Map<String, Value>) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, field, form) in self.0 {
            put_field(&mut out, *field, *form, object.get(*key));
        }
        out
    }
}

fn put_field(out: &mut Vec<u8>, field: u8, form: ProtobufFieldType, value: Option<&Value>) {
    let texts = |out: &mut Vec<u8>, field| {
        for entry in value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            write_text(out, field, entry);
        }
    };
    match form {
        ProtobufFieldType::Text => write_text(out, field, value.and_then(Value::as_str).unwrap_or_default()),
        ProtobufFieldType::Flag => {
            write_number(out, field, u64::from(value.and_then(Value::as_bool).unwrap_or_default()))
        }
        ProtobufFieldType::Zero => write_number(out, field, 0),
        ProtobufFieldType::Texts => texts(out, field),
        ProtobufFieldType::Verbs => {
            let mut verbs = Vec::new();
            texts(&mut verbs, 1);
            write_bytes(out, field, &verbs);
        }
        ProtobufFieldType::One(message) => {
            let nothing = Map::new();
            write_bytes(out, field, &message.write(value.and_then(Value::as_object).unwrap_or(&nothing)));
        }
        ProtobufFieldType::Optional(message) => {
            if let Some(object) = value.and_then(Value::as_object) {
                write_bytes(out, field, &message.write(object));
            }
        }
        ProtobufFieldType::Many(message) => {
            for object in value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
                write_bytes(out, field, &message.write(object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_protobuf_equals_upstream_bytes() {
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
    fn discovery_protobuf_encodes_legacy_and_aggregated() {
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
