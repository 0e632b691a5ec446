//! Values that a kube-apiserver stored as protobuf, which is its default for all kinds but custom ones and CRDs.

use bytes::Bytes;
use kubeapi::json::write_stored_json;
use kubeapi::protobuf::MAGIC;
use kubeapi::protobuf::decode::{decode_object, read_envelope};
use serde_json::Value;

use super::stored_version::convert_to_stored;
use super::{builtin_kinds, set_defaults};

/// The JSON of a stored protobuf value, with defaults, as a kube-apiserver reads it. None for another value, and for one that
/// cannot be read: it is kept, and reported by its key.
pub fn read_stored_protobuf(stored: &Bytes) -> Option<Bytes> {
    if !stored.starts_with(MAGIC) {
        return None;
    }
    let envelope = read_envelope(stored).ok()?;
    let (group, version) = envelope.api_version.rsplit_once('/').unwrap_or(("", envelope.api_version));
    let kind = builtin_kinds().find_kind(group, version, envelope.kind)?;
    let message = kind.version.message()?;
    let mut value = decode_object(&builtin_kinds().messages, message, &envelope).ok()?;
    set_defaults(&builtin_kinds().messages, message, &mut value);
    let Value::Object(mut object) = value else { return None };
    convert_to_stored(&kind, &mut object);
    Some(write_stored_json(&object).bytes.into())
}

#[cfg(test)]
mod tests {
    use kubeapi::protobuf::encode::encode_object;
    use serde_json::json;

    use super::*;

    #[test]
    fn protobuf_becomes_json_with_defaults_and_other_values_stay() {
        let kind = builtin_kinds().find_kind("", "v1", "Service").unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n", "uid": "u"},
            "spec": {"ports": [{"port": 80}], "clusterIP": "None"},
        });
        let message = kind.version.message().unwrap();
        let encoded = encode_object(&builtin_kinds().messages, message, &object).unwrap();
        let read: Value = serde_json::from_slice(&read_stored_protobuf(&encoded.into()).unwrap()).unwrap();
        assert_eq!((&read["kind"], &read["metadata"]["uid"]), (&json!("Service"), &json!("u")));
        assert_eq!(read["spec"]["sessionAffinity"], "None");
        for other in [&b"{}"[..], b"", b"k8s", b"k8s\0", b"k8s\0\n\x08\n\x02v1\x12\x02No", b"k8s:enc:aescbc:v1:key:"] {
            assert_eq!(read_stored_protobuf(&Bytes::from_static(other)), None, "{other:?}");
        }
    }
}
