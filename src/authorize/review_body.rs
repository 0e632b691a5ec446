//! Decoding of review bodies to JSON: clients send JSON, YAML or, like kubectl, protobuf.

use serde_json::{Map, Value, json};

use kubeapi::protobuf::{MAGIC, ProtobufValue, read_fields};
use kubeapi::{Status, YamlError, read_bounded_yaml};

/// The kind of a review body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewBody {
    /// `SelfSubjectReview`.
    SelfSubject,
    /// `SelfSubjectAccessReview`.
    SelfSubjectAccess,
    /// `SelfSubjectRulesReview`.
    SelfSubjectRules,
    /// `SubjectAccessReview`.
    SubjectAccess,
    /// `TokenReview`.
    Token,
}

/// A decoded field of a message: its number, its JSON name, and its type. Other fields are skipped.
type ProtobufField = (u64, &'static str, FieldShape);

#[derive(Clone, Copy)]
enum FieldShape {
    Text,
    Message(&'static [ProtobufField]),
    /// Repeated strings.
    Texts,
    /// Repeated messages.
    Messages(&'static [ProtobufField]),
    /// A map from strings to lists of strings.
    Extra,
}

use FieldShape::{Extra, Message, Messages, Text, Texts};

/// `runtime.Unknown`, around every object; the object itself is its field 2.
const ENVELOPE: &[ProtobufField] = &[(1, "type", Message(&[(1, "apiVersion", Text), (2, "kind", Text)]))];
const RAW: u64 = 2;
/// One entry of a map from texts to `ExtraValue`s.
const ENTRY: &[ProtobufField] = &[(1, "key", Text), (2, "value", Message(&[(1, "items", Texts)]))];

/// `ResourceAttributes` of `k8s.io/api/authorization/v1/generated.proto`, as the messages below.
const RESOURCE: FieldShape = Message(&[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
    (8, "fieldSelector", SELECTOR),
    (9, "labelSelector", SELECTOR),
]);
const SELECTOR: FieldShape = Message(&[
    (1, "rawSelector", Text),
    (2, "requirements", Messages(&[(1, "key", Text), (2, "operator", Text), (3, "values", Texts)])),
]);
const PATH: FieldShape = Message(&[(1, "path", Text), (2, "verb", Text)]);
const SELF_ACCESS: &[ProtobufField] =
    &[(2, "spec", Message(&[(1, "resourceAttributes", RESOURCE), (2, "nonResourceAttributes", PATH)]))];
const SELF_RULES: &[ProtobufField] = &[(2, "spec", Message(&[(1, "namespace", Text)]))];
const ACCESS: &[ProtobufField] = &[(
    2,
    "spec",
    Message(&[
        (1, "resourceAttributes", RESOURCE),
        (2, "nonResourceAttributes", PATH),
        (3, "user", Text),
        (4, "groups", Texts),
        (5, "extra", Extra),
        (6, "uid", Text),
    ]),
)];
/// `TokenReview` of `k8s.io/api/authentication/v1/generated.proto`.
const TOKEN: &[ProtobufField] = &[(2, "spec", Message(&[(1, "token", Text), (2, "audiences", Texts)]))];

impl ReviewBody {
    /// The maximum size of a body in bytes.
    pub fn max_bytes(self) -> usize {
        match self {
            // Every authenticated user may send these; usually a few hundred bytes.
            ReviewBody::SelfSubject | ReviewBody::SelfSubjectAccess | ReviewBody::SelfSubjectRules => 32 << 10,
            // May have thousands of groups, or a large token.
            ReviewBody::SubjectAccess | ReviewBody::Token => 256 << 10,
        }
    }

    /// Whether [`ReviewBody::read`] of this many bytes may take longer than about a millisecond.
    pub fn is_slow(content_type: &str, bytes: usize) -> bool {
        bytes > if media_type(content_type) == "application/yaml" { 1 << 10 } else { 64 << 10 }
    }

    /// Decodes a body of `content_type` to JSON.
    ///
    /// # Errors
    /// 415 for an unsupported content type, 400 for an invalid body.
    pub fn read(self, content_type: &str, body: &[u8]) -> Result<Vec<u8>, Status> {
        match &*media_type(content_type) {
            "" | "application/json" => Ok(body.to_vec()),
            "application/yaml" => {
                let not_yaml = || Status::bad_request("the body is not valid YAML");
                let text = std::str::from_utf8(body).map_err(|_| not_yaml())?;
                read_bounded_yaml(text).map(|value| value.to_string().into()).map_err(|error| match error {
                    YamlError::Invalid(_) => not_yaml(),
                    YamlError::TooExpensive(why) => Status::bad_request(format!(
                        "the YAML of the body is refused: {why}; send JSON, or YAML without merge keys and with few \
                         aliases"
                    )),
                })
            }
            "application/vnd.kubernetes.protobuf" => self
                .decode_protobuf(body)
                .map(|value| value.to_string().into())
                .ok_or_else(|| Status::bad_request("the body is not a valid protobuf object")),
            _ => Err(Status::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: application/json, \
                 application/yaml, application/vnd.kubernetes.protobuf",
            )),
        }
    }

    fn decode_protobuf(self, body: &[u8]) -> Option<Value> {
        let body = body.strip_prefix(MAGIC)?;
        let envelope = decode_message(body, ENVELOPE)?;
        let mut raw: &[u8] = &[];
        for field in read_fields(body) {
            if let (RAW, ProtobufValue::Bytes(value)) = field.ok()? {
                raw = value;
            }
        }
        let fields = match self {
            ReviewBody::SelfSubject => &[],
            ReviewBody::SelfSubjectAccess => SELF_ACCESS,
            ReviewBody::SelfSubjectRules => SELF_RULES,
            ReviewBody::SubjectAccess => ACCESS,
            ReviewBody::Token => TOKEN,
        };
        let mut object = decode_message(raw, fields)?;
        for name in ["apiVersion", "kind"] {
            let value = envelope.get("type").and_then(|entry| entry.get(name)).cloned();
            object.insert(name.to_owned(), value.unwrap_or_else(|| json!("")));
        }
        Some(Value::Object(object))
    }
}

fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn decode_message(bytes: &[u8], fields: &[ProtobufField]) -> Option<Map<String, Value>> {
    let mut read = Map::new();
    for field in read_fields(bytes) {
        let (number, value) = field.ok()?;
        let value = if let ProtobufValue::Bytes(value) = value { Some(value) } else { None };
        let Some((_, name, field_type)) = fields.iter().find(|(field_number, ..)| *field_number == number) else {
            continue;
        };
        match field_type {
            Text => drop(read.insert((*name).to_owned(), decode_text(value?)?)),
            Message(fields) => drop(read.insert((*name).to_owned(), decode_message(value?, fields)?.into())),
            Texts => push_value(&mut read, name, decode_text(value?)?)?,
            Messages(fields) => push_value(&mut read, name, decode_message(value?, fields)?.into())?,
            Extra => {
                let mut entry = decode_message(value?, ENTRY)?;
                let key = entry.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
                let items = entry.get_mut("value").and_then(|value| value.get_mut("items")).map(Value::take);
                let extra = read.entry(*name).or_insert_with(|| json!({}));
                extra.as_object_mut()?.insert(key, items.unwrap_or_else(|| json!([])));
            }
        }
    }
    Some(read)
}

fn decode_text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

fn push_value(read: &mut Map<String, Value>, name: &str, value: Value) -> Option<()> {
    read.entry(name).or_insert_with(|| json!([])).as_array_mut().map(|list| list.push(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

    fn written(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).unwrap()][..], value].concat()
    }

    fn object(kind: &str, raw: &[u8]) -> Vec<u8> {
        let version = written(1, b"authorization.k8s.io/v1");
        let said = written(1, &[version, written(2, kind.as_bytes())].concat());
        [&MAGIC[..], &said, &written(2, raw), &written(3, b""), &written(4, b"")].concat()
    }

    fn read(review: ReviewBody, body: &[u8]) -> Result<Value, u16> {
        let read = review.read(PROTOBUF, body).map_err(|status| status.code)?;
        Ok(serde_json::from_slice(&read).unwrap())
    }

    #[test]
    fn review_body_protobuf_of_kubectl_decoded() {
        // Empty metadata, unknown fields, and known fields.
        let attributes = [written(2, b"get"), written(5, b"things"), written(7, b"one"), vec![0x78, 1]].concat();
        let spec = written(2, &written(1, &attributes));
        let body = object("SelfSubjectAccessReview", &[written(1, b""), spec, written(3, &[8, 0])].concat());
        assert_eq!(
            read(ReviewBody::SelfSubjectAccess, &body),
            Ok(json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"verb": "get", "resource": "things", "name": "one"}},
            }))
        );
        let body = object("SelfSubjectRulesReview", &written(2, &written(1, b"default")));
        assert_eq!(read(ReviewBody::SelfSubjectRules, &body).unwrap()["spec"], json!({"namespace": "default"}));
    }

    #[test]
    fn review_body_protobuf_of_backend_decoded() {
        let requirement = [written(1, b"app"), written(2, b"In"), written(3, b"a"), written(3, b"b")].concat();
        let attributes = [written(2, b"list"), written(9, &written(2, &requirement))].concat();
        let extra = |key: &[u8], values: &[&[u8]]| {
            let items: Vec<u8> = values.iter().flat_map(|value| written(1, value)).collect();
            written(5, &[written(1, key), written(2, &items)].concat())
        };
        let spec = [
            written(1, &attributes),
            written(3, b"jane"),
            written(4, b"devs"),
            written(4, b"ops"),
            extra(b"scopes", &[b"a", b"b"]),
            extra(b"none", &[]),
            written(6, b"7"),
        ];
        let body = object("SubjectAccessReview", &written(2, &spec.concat()));
        assert_eq!(
            read(ReviewBody::SubjectAccess, &body).unwrap()["spec"],
            json!({
                "resourceAttributes": {"verb": "list", "labelSelector": {"requirements": [
                    {"key": "app", "operator": "In", "values": ["a", "b"]},
                ]}},
                "user": "jane", "groups": ["devs", "ops"], "extra": {"scopes": ["a", "b"], "none": []}, "uid": "7",
            })
        );
        let spec = [written(1, b"secret"), written(2, b"us")].concat();
        let read = read(ReviewBody::Token, &object("TokenReview", &written(2, &spec))).unwrap();
        assert_eq!(read["spec"], json!({"token": "secret", "audiences": ["us"]}));
    }

    #[test]
    fn review_body_truncated_protobuf_is_400() {
        let body = object("SelfSubjectRulesReview", &written(2, &written(1, b"default")));
        for length in 0..body.len() {
            match read(ReviewBody::SelfSubjectRules, &body[..length]) {
                // Cut between two fields, it is valid with fewer fields.
                Ok(value) => assert!(length >= MAGIC.len(), "{value}"),
                Err(code) => assert_eq!(code, 400),
            }
        }
        for body in
            [&b""[..], b"{}", b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"k8s\0\x0b", b"k8s\0\x12\x7f"]
        {
            assert_eq!(read(ReviewBody::SelfSubjectRules, body), Err(400), "{body:?}");
        }
        assert_eq!(ReviewBody::SelfSubjectRules.read("text/plain", b"x").unwrap_err().code, 415);
        assert_eq!(ReviewBody::SelfSubjectRules.read("application/yaml; charset=utf-8", b"[").unwrap_err().code, 400);
    }

    #[test]
    fn review_body_in_yaml_with_merge_keys_is_refused() {
        let refused = ReviewBody::SelfSubjectRules
            .read("application/yaml", b"a: &a {namespace: x}\nspec: {<<: *a}\n")
            .unwrap_err();
        assert_eq!(refused.code, 400);
        assert!(refused.message.contains("merge keys"), "{}", refused.message);
        let read = ReviewBody::SelfSubjectRules.read("application/yaml", b"a: &a {namespace: x}\nspec: *a\n").unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&read).unwrap()["spec"], json!({"namespace": "x"}));
    }

    #[test]
    fn review_body_arbitrary_bytes_do_not_panic() {
        bolero::check!().with_iterations(5000).with_max_len(40).for_each(|bytes: &[u8]| {
            for body in [ReviewBody::SelfSubjectAccess, ReviewBody::SubjectAccess, ReviewBody::Token] {
                // As the body, and as the content of an envelope.
                let _ = body.read(PROTOBUF, &[&MAGIC[..], bytes].concat());
                let _ = body.read(PROTOBUF, &object("", &written(2, bytes)));
            }
        });
    }
}
