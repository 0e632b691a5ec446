//! Encodes a [`Status`], byte for byte as a kube-apiserver.
//!
//! Without libraries: one type in four encodings is less code than four dependencies, and clients' golden files depend
//! on the order of fields.

mod cbor;
mod json;
mod protobuf;
mod yaml;

use bytes::Bytes;
use http::HeaderValue;

use super::Status;

/// Encoding of a [`Status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StatusEncoding {
    /// `application/json`, on one line.
    #[default]
    Json,
    /// `application/json`, indented.
    PrettyJson,
    /// `application/yaml`.
    Yaml,
    /// `application/cbor`, with the self-described tag.
    Cbor,
    /// `application/vnd.kubernetes.protobuf`: the magic, a `runtime.Unknown`, and the `Status` in it.
    Protobuf,
}

impl StatusEncoding {
    /// The value of `Content-Type`.
    pub fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            StatusEncoding::Json | StatusEncoding::PrettyJson => "application/json",
            StatusEncoding::Yaml => "application/yaml",
            StatusEncoding::Cbor => "application/cbor",
            StatusEncoding::Protobuf => "application/vnd.kubernetes.protobuf",
        })
    }
}

/// Encodes `status`.
pub fn encode(status: &Status, encoding: StatusEncoding) -> Bytes {
    Bytes::from(match encoding {
        StatusEncoding::Json => json::encode(status, false),
        StatusEncoding::PrettyJson => json::encode(status, true),
        StatusEncoding::Yaml => yaml::encode(status),
        StatusEncoding::Cbor => cbor::encode(status),
        StatusEncoding::Protobuf => protobuf::encode(status),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{StatusCause, StatusDetails};

    /// The inputs of the encoders' golden bytes, which k8s.io/apimachinery v0.36.3 generated.
    pub(super) fn examples() -> [Status; 5] {
        let causes = vec![
            StatusCause { reason: "MissingEndpoints".into(), message: "no endpoints".into(), field: String::new() },
            StatusCause { reason: String::new(), message: "m".into(), field: "spec.x".into() },
        ];
        [
            Status::unauthorized(),
            Status::new(
                403,
                "Forbidden",
                "flunders.wardle.example.com \"x\" is forbidden: User &lt;\"é\u{2028}\u{1}\u{8}\" cannot < & '",
            )
            .with_details(StatusDetails::for_resource("wardle.example.com", "flunders", "x")),
            Status::forbidden("User \"u\" cannot get path \"/x\""),
            Status::service_unavailable("gone: away").with_details(StatusDetails {
                group: "g".into(),
                kind: "k".into(),
                uid: "u-1".into(),
                causes,
                retry_after_seconds: 300,
                ..StatusDetails::default()
            }),
            Status::bad_request("it's\nlines "),
        ]
    }

    fn as_value(status: &Status) -> serde_json::Value {
        let mut value = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": status.outcome(), "code": status.code,
        });
        if status.code < 400 {
            value.as_object_mut().unwrap().remove("code");
        }
        if let Some(token) = &status.continue_token {
            value["metadata"]["continue"] = json!(token);
        }
        if !status.message.is_empty() {
            value["message"] = json!(status.message);
        }
        if !status.reason.is_empty() {
            value["reason"] = json!(status.reason);
        }
        if let Some(details) = &status.details {
            value["details"] = serde_json::to_value(details).unwrap();
        }
        value
    }

    /// Kubernetes' CBOR uses byte strings for texts.
    fn from_cbor(value: ciborium::Value) -> serde_json::Value {
        match value {
            ciborium::Value::Bytes(bytes) => json!(String::from_utf8(bytes).unwrap()),
            ciborium::Value::Integer(n) => json!(i64::try_from(n).unwrap()),
            ciborium::Value::Array(items) => items.into_iter().map(from_cbor).collect(),
            ciborium::Value::Map(entries) => {
                let entries = entries
                    .into_iter()
                    .map(|(key, value)| (from_cbor(key).as_str().unwrap().to_owned(), from_cbor(value)));
                serde_json::Value::Object(entries.collect())
            }
            ciborium::Value::Tag(55799, inner) => from_cbor(*inner),
            other => panic!("unexpected {other:?}"),
        }
    }

    fn arbitrary_status() -> impl Strategy<Value = Status> {
        let cause = ("[A-Z]*", ".*", ".*").prop_map(|(reason, message, field)| StatusCause { reason, message, field });
        let details = (".*", ".*", ".*", ".*", proptest::collection::vec(cause, 0..3), any::<u32>()).prop_map(
            |(name, group, kind, uid, causes, seconds)| StatusDetails {
                name,
                group,
                kind,
                uid,
                causes,
                retry_after_seconds: seconds >> 1,
            },
        );
        (100u16..600, ".*", proptest::option::of(details), proptest::option::of("[a-zA-Z0-9]+")).prop_map(
            |(code, message, details, token)| {
                let mut status = Status::new(code, "InternalError", message);
                status.details = details.map(Box::new);
                status.continue_token = token.map(Into::into);
                status
            },
        )
    }

    proptest! {
        #[test]
        fn every_encoding_holds_the_same(status in arbitrary_status()) {
            let expected = as_value(&status);
            for encoding in [StatusEncoding::Json, StatusEncoding::PrettyJson] {
                let read: serde_json::Value = serde_json::from_slice(&encode(&status, encoding)).unwrap();
                prop_assert_eq!(&read, &expected);
            }
            let cbor: ciborium::Value = ciborium::from_reader(&encode(&status, StatusEncoding::Cbor)[..]).unwrap();
            prop_assert_eq!(&from_cbor(cbor), &expected);
            let yaml: serde_json::Value = serde_saphyr::from_slice(&encode(&status, StatusEncoding::Yaml)).unwrap();
            prop_assert_eq!(yaml, expected);
        }
    }
}
