//! The body of a question about oneself, as JSON, whatever it came in: kubectl sends protobuf.

use serde_json::{Map, Value, json};

use super::SelfReview;
use crate::kubeapi::Status;

/// What stands before every object in protobuf (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`).
const MAGIC: &[u8] = b"k8s\0";

/// A field of a message that we read: its number, its name in JSON, and what it holds. All others are skipped.
type Field = (u64, &'static str, Shape);

#[derive(Clone, Copy)]
enum Shape {
    Text,
    Message(&'static [Field]),
}

use Shape::{Message, Text};

/// `runtime.Unknown`, around every object; the object itself is its field 2.
const ENVELOPE: &[Field] = &[(1, "type", Message(&[(1, "apiVersion", Text), (2, "kind", Text)]))];
const RAW: u64 = 2;
/// `SelfSubjectAccessReview` of `k8s.io/api/authorization/v1/generated.proto`.
const ACCESS: &[Field] = &[(
    2,
    "spec",
    Message(&[
        (
            1,
            "resourceAttributes",
            Message(&[
                (1, "namespace", Text),
                (2, "verb", Text),
                (3, "group", Text),
                (4, "version", Text),
                (5, "resource", Text),
                (6, "subresource", Text),
                (7, "name", Text),
                (8, "fieldSelector", Message(&[(1, "rawSelector", Text)])),
                (9, "labelSelector", Message(&[(1, "rawSelector", Text)])),
            ]),
        ),
        (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)])),
    ]),
)];
/// `SelfSubjectRulesReview`, from the same file.
const RULES: &[Field] = &[(2, "spec", Message(&[(1, "namespace", Text)]))];

impl SelfReview {
    /// The body as JSON; `content_type` is what its sender says it is.
    ///
    /// # Errors
    /// 415 for what nobody here reads, 400 for what is not what it is said to be.
    pub fn body(self, content_type: &str, body: &[u8]) -> Result<Vec<u8>, Status> {
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &*kind {
            "" | "application/json" => Ok(body.to_vec()),
            "application/yaml" => serde_saphyr::from_slice::<Value>(body)
                .map(|value| value.to_string().into())
                .map_err(|_| Status::bad_request("the body is no YAML")),
            "application/vnd.kubernetes.protobuf" => self
                .decoded(body)
                .map(|value| value.to_string().into())
                .ok_or_else(|| Status::bad_request("the body is no object in protobuf")),
            _ => Err(Status::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: application/json, \
                 application/yaml, application/vnd.kubernetes.protobuf",
            )),
        }
    }

    fn decoded(self, body: &[u8]) -> Option<Value> {
        let body = body.strip_prefix(MAGIC)?;
        let envelope = message(body, ENVELOPE)?;
        let mut raw: &[u8] = &[];
        let mut rest = body;
        while !rest.is_empty() {
            let (number, value, after) = field(rest)?;
            if let (RAW, Some(value)) = (number, value) {
                raw = value;
            }
            rest = after;
        }
        let fields = match self {
            SelfReview::Subject => &[],
            SelfReview::Access => ACCESS,
            SelfReview::Rules => RULES,
        };
        let mut object = message(raw, fields)?;
        for name in ["apiVersion", "kind"] {
            let said = envelope.get("type").and_then(|said| said.get(name)).cloned();
            object.insert(name.to_owned(), said.unwrap_or_else(|| json!("")));
        }
        Some(Value::Object(object))
    }
}

fn message(mut bytes: &[u8], fields: &[Field]) -> Option<Map<String, Value>> {
    let mut read = Map::new();
    while !bytes.is_empty() {
        let (number, value, after) = field(bytes)?;
        bytes = after;
        let Some((_, name, shape)) = fields.iter().find(|(known, ..)| *known == number) else { continue };
        let value = match shape {
            Text => std::str::from_utf8(value?).ok()?.into(),
            Message(fields) => Value::Object(message(value?, fields)?),
        };
        read.insert((*name).to_owned(), value);
    }
    Some(read)
}

/// A field's number, its bytes if it is of a kind that has some, and what follows it.
type Read<'b> = (u64, Option<&'b [u8]>, &'b [u8]);

/// The first field.
fn field(bytes: &[u8]) -> Option<Read<'_>> {
    let (key, rest) = varint(bytes)?;
    let number = key >> 3;
    match key & 7 {
        0 => varint(rest).map(|(_, rest)| (number, None, rest)),
        1 => rest.split_at_checked(8).map(|(_, rest)| (number, None, rest)),
        5 => rest.split_at_checked(4).map(|(_, rest)| (number, None, rest)),
        2 => {
            let (length, rest) = varint(rest)?;
            let (value, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            Some((number, Some(value), rest))
        }
        _ => None,
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f).checked_shl(u32::try_from(7 * at).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
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
        [MAGIC, &said, &written(2, raw), &written(3, b""), &written(4, b"")].concat()
    }

    fn read(review: SelfReview, body: &[u8]) -> Result<Value, u16> {
        let read = review.body(PROTOBUF, body).map_err(|status| status.code)?;
        Ok(serde_json::from_slice(&read).unwrap())
    }

    #[test]
    fn as_kubectl_sends_it() {
        // An empty metadata, numbers of fields that we do not know, and the fields that we do.
        let attributes = [written(2, b"get"), written(5, b"things"), written(7, b"one"), vec![0x78, 1]].concat();
        let spec = written(2, &written(1, &attributes));
        let body = object("SelfSubjectAccessReview", &[written(1, b""), spec, written(3, &[8, 0])].concat());
        assert_eq!(
            read(SelfReview::Access, &body),
            Ok(json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"verb": "get", "resource": "things", "name": "one"}},
            }))
        );
        let body = object("SelfSubjectRulesReview", &written(2, &written(1, b"default")));
        assert_eq!(read(SelfReview::Rules, &body).unwrap()["spec"], json!({"namespace": "default"}));
    }

    #[test]
    fn what_is_cut_short_is_400() {
        let body = object("SelfSubjectRulesReview", &written(2, &written(1, b"default")));
        for length in 0..body.len() {
            match read(SelfReview::Rules, &body[..length]) {
                // Between two fields it is whole, with less in it.
                Ok(value) => assert!(length >= MAGIC.len(), "{value}"),
                Err(code) => assert_eq!(code, 400),
            }
        }
        for body in
            [&b""[..], b"{}", b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"k8s\0\x0b", b"k8s\0\x12\x7f"]
        {
            assert_eq!(read(SelfReview::Rules, body), Err(400), "{body:?}");
        }
        assert_eq!(SelfReview::Rules.body("text/plain", b"x").unwrap_err().code, 415);
        assert_eq!(SelfReview::Rules.body("application/yaml; charset=utf-8", b"[").unwrap_err().code, 400);
    }

    #[test]
    fn no_bytes_are_too_odd() {
        bolero::check!().with_iterations(5000).with_max_len(40).for_each(|bytes: &[u8]| {
            let _ = SelfReview::Access.body(PROTOBUF, &[MAGIC, bytes].concat());
        });
    }
}
