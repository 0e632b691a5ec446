//! Request and response bodies for audit events: a bounded capture on the request's thread, decoding to JSON on the
//! sink's thread.

use std::io::Read;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use kubeapi::{YamlError, read_bounded_yaml};
use serde_json::Value;

use crate::process::BudgetShare;

/// Maximum size of an object in an event; a larger one is omitted and the event marked as truncated.
pub(super) const MAX_OBJECT_SIZE: usize = 1 << 20;
/// Maximum size of YAML. JSON declared as YAML (`kubectl apply --server-side`) is parsed as JSON.
const MAX_YAML_SIZE: usize = 64 << 10;
/// Cost of parsing YAML relative to JSON of the same length.
const YAML_COST: usize = 16;
/// Maximum ratio of decompressed to compressed size of a response.
const MAX_EXPANSION: usize = 32;
/// Maximum number of captured bytes of all running requests.
pub(super) const MAX_CAPTURED_BYTES: usize = 64 << 20;

/// Bounded capture of a body while it is forwarded.
pub(in crate::observe) struct BodyCapture {
    encoding: BodyEncoding,
    bytes: Vec<u8>,
    too_long: bool,
    budget: Arc<BudgetShare>,
}

/// A captured body.
pub(in crate::observe) enum CapturedBody {
    /// The body, as far as it was received.
    Bytes(BodyEncoding, Vec<u8>),
    /// The body was larger than the limit.
    TooLong,
    /// Not recorded: this media type is neither JSON nor YAML.
    Unreadable(Box<str>),
}

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::observe) struct BodyEncoding {
    yaml: bool,
    gzip: bool,
}

/// Why an event omits an object that its level includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OmitReason {
    TooLong,
    /// The object would expand to much more than was sent (compression, YAML aliases).
    TooExpensive,
    NotJson,
    UnsupportedMediaType(Box<str>),
}

/// Magic number of gzip (RFC 1952).
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

impl BodyEncoding {
    /// Determines the encoding from `headers`; the error is an unsupported media type. The default is JSON, as in API
    /// servers.
    fn from_headers(headers: &HeaderMap) -> Result<BodyEncoding, Box<str>> {
        let text = |value: Option<&http::HeaderValue>| {
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase()).unwrap_or_default()
        };
        let gzip = text(headers.get(CONTENT_ENCODING)) == "gzip";
        let media = text(headers.get(CONTENT_TYPE));
        let media = media.split(';').next().unwrap_or_default().trim_end();
        match media {
            "" | "application/json" => Ok(BodyEncoding { yaml: false, gzip }),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(BodyEncoding { yaml: true, gzip }),
            _ if media.ends_with("+json") => Ok(BodyEncoding { yaml: false, gzip }),
            _ if media.ends_with("+yaml") => Ok(BodyEncoding { yaml: true, gzip }),
            _ => Err(printable_media_type(media)),
        }
    }
}

/// A media type chosen by a client, shortened to printable characters.
fn printable_media_type(media: &str) -> Box<str> {
    media.chars().filter(|letter| letter.is_ascii_graphic()).take(80).collect::<String>().into()
}

impl BodyCapture {
    /// Starts a capture of the body of a request with `headers`, charged to `budget`.
    ///
    /// Never decompressed: API servers ignore the `Content-Encoding` of a request (`limitedReadBody` in
    /// `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`), so compressed bytes never become an object.
    pub(super) fn for_request(headers: &HeaderMap, budget: Arc<BudgetShare>) -> Result<BodyCapture, CapturedBody> {
        let form =
            BodyEncoding { gzip: false, ..BodyEncoding::from_headers(headers).map_err(CapturedBody::Unreadable)? };
        Ok(BodyCapture { encoding: form, bytes: Vec::new(), too_long: false, budget })
    }

    /// Starts a capture of the body of a response with `headers`, charged to `budget`.
    pub(super) fn for_response(headers: &HeaderMap, budget: Arc<BudgetShare>) -> Result<BodyCapture, CapturedBody> {
        let form = BodyEncoding::from_headers(headers).map_err(CapturedBody::Unreadable)?;
        Ok(BodyCapture { encoding: form, bytes: Vec::new(), too_long: false, budget })
    }

    /// Appends forwarded data.
    pub(in crate::observe) fn append(&mut self, data: &[u8]) {
        if self.too_long {
            return;
        }
        if self.bytes.len() + data.len() > MAX_OBJECT_SIZE || !self.budget.try_acquire(data.len()) {
            self.budget.release(self.bytes.len());
            self.bytes = Vec::new();
            self.too_long = true;
            return;
        }
        self.bytes.extend_from_slice(data);
    }

    /// Ends the capture; `None` for an empty body.
    pub(in crate::observe) fn finish(mut self) -> Option<CapturedBody> {
        if self.too_long {
            return Some(CapturedBody::TooLong);
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.budget.release(bytes.len());
        (!bytes.is_empty()).then_some(CapturedBody::Bytes(self.encoding, bytes))
    }
}

impl Drop for BodyCapture {
    fn drop(&mut self) {
        self.budget.release(self.bytes.len());
    }
}

impl CapturedBody {
    /// Cost of writing the body, in bytes of JSON; at least its memory use.
    pub(super) fn weight(&self) -> usize {
        match self {
            CapturedBody::Bytes(form, bytes) if form.is_gzip(bytes) => form.max_unpacked(bytes).max(bytes.len()),
            CapturedBody::Bytes(BodyEncoding { yaml: true, .. }, bytes) if !looks_like_object(bytes) => {
                bytes.len().max(bytes.len().min(MAX_YAML_SIZE) * YAML_COST)
            }
            CapturedBody::Bytes(_, bytes) => bytes.len(),
            CapturedBody::TooLong | CapturedBody::Unreadable(_) => 0,
        }
    }

    #[cfg(test)]
    pub(super) fn json(text: impl Into<Vec<u8>>) -> CapturedBody {
        CapturedBody::Bytes(BodyEncoding { yaml: false, gzip: false }, text.into())
    }

    /// Decodes the object. It is parsed and serialized again, so that an event is always one line of valid JSON.
    ///
    /// # Errors
    /// Why the object is omitted.
    pub(super) fn object(&self, omit_managed_fields: bool) -> Result<Value, OmitReason> {
        let mut object: Value = match self {
            CapturedBody::TooLong => return Err(OmitReason::TooLong),
            CapturedBody::Unreadable(media) => return Err(OmitReason::UnsupportedMediaType(media.clone())),
            CapturedBody::Bytes(form, bytes) => form.decode(bytes)?,
        };
        if omit_managed_fields {
            drop_managed_fields(&mut object);
        }
        Ok(object)
    }
}

impl BodyEncoding {
    /// Whether `bytes` are compressed. A plain body with a `Content-Encoding` is used as it is.
    fn is_gzip(self, bytes: &[u8]) -> bool {
        self.gzip && bytes.starts_with(GZIP_MAGIC)
    }

    /// Maximum decompressed size of `bytes`.
    fn max_unpacked(self, bytes: &[u8]) -> usize {
        bytes.len().saturating_mul(MAX_EXPANSION).min(MAX_OBJECT_SIZE)
    }

    fn decode(self, bytes: &[u8]) -> Result<Value, OmitReason> {
        let mut inflated = Vec::new();
        let bytes = if self.is_gzip(bytes) {
            let max_size = self.max_unpacked(bytes);
            let mut unpacking = flate2::read::GzDecoder::new(bytes).take(max_size as u64 + 1);
            unpacking.read_to_end(&mut inflated).map_err(|_| OmitReason::NotJson)?;
            if inflated.len() > max_size {
                return Err(if max_size == MAX_OBJECT_SIZE { OmitReason::TooLong } else { OmitReason::TooExpensive });
            }
            &inflated
        } else {
            bytes
        };
        if !self.yaml || looks_like_object(bytes) {
            // API servers accept invalid UTF-8.
            let read = serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(|_| OmitReason::NotJson);
            if !self.yaml || read.is_ok() {
                return read;
            }
        }
        if bytes.len() > MAX_YAML_SIZE {
            return Err(OmitReason::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| OmitReason::NotJson)?;
        read_bounded_yaml(text).map_err(|error| match error {
            YamlError::TooExpensive(_) => OmitReason::TooExpensive,
            YamlError::Invalid(_) => OmitReason::NotJson,
        })
    }
}

/// Whether `bytes` start like a JSON object.
fn looks_like_object(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
}

/// Removes `managedFields` from an object, the items of a list, and the rows of a Table (`copyWithoutManagedFields`
/// in `k8s.io/apiserver/pkg/audit`).
fn drop_managed_fields(object: &mut Value) {
    fn remove_managed_fields(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    remove_managed_fields(object);
    for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        remove_managed_fields(item);
    }
    for row in object.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(object) = row.get_mut("object") {
            remove_managed_fields(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;
    use crate::process::FairBudget;

    fn headers(media: &str, encoding: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [(CONTENT_TYPE, media), (CONTENT_ENCODING, encoding)] {
            if !value.is_empty() {
                headers.insert(name, value.parse().unwrap());
            }
        }
        headers
    }

    fn passed(copy: Result<BodyCapture, CapturedBody>, pieces: &[&[u8]]) -> Option<CapturedBody> {
        match copy {
            Ok(mut copy) => {
                pieces.iter().for_each(|piece| copy.append(piece));
                copy.finish()
            }
            Err(passed) => Some(passed),
        }
    }

    /// Decodes a response body, and asserts that a request body is decoded equally (except compressed ones).
    fn passes(media: &str, encoding: &str, pieces: &[&[u8]]) -> Option<Result<Value, OmitReason>> {
        let held = FairBudget::new(MAX_CAPTURED_BYTES);
        let headers = headers(media, encoding);
        let read =
            passed(BodyCapture::for_response(&headers, held.share("jane")), pieces).map(|passed| passed.object(false));
        if !pieces.iter().any(|piece| piece.starts_with(GZIP_MAGIC)) {
            let request = passed(BodyCapture::for_request(&headers, held.share("jane")), pieces);
            assert_eq!(request.map(|passed| passed.object(false)), read);
        }
        assert_eq!((held.used(), held.user_count()), (0, 0));
        read
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn audit_body_json_yaml_and_gzip_are_decoded() {
        let object = json!({"a": [1, "x"]});
        for media in ["", "application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
            assert_eq!(passes(media, "", &[b"{\"a\":\n[1,", b" \"x\"]}"]), Some(Ok(object.clone())), "{media}");
        }
        for media in ["application/yaml", "application/apply-patch+yaml"] {
            assert_eq!(passes(media, "", &[b"a:\n- 1\n- x\n"]), Some(Ok(object.clone())), "{media}");
        }
        let small = gzip(b"{\"a\":[1,\"x\"]}");
        assert_eq!(passes("application/json", "gzip", &[&small]), Some(Ok(object)));
        assert_eq!(passes("application/json", "", &[]), None);
    }

    #[test]
    fn audit_body_undecodable_has_omit_reason() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(passes(protobuf, "", &[b"k8s\0"]), Some(Err(OmitReason::UnsupportedMediaType(protobuf.into()))));
        assert_eq!(passes("application/json", "br", &[b"x"]), Some(Err(OmitReason::NotJson)));
        for half in [&b"{\"a\":"[..], b"{}{}", b"\xff", &b"[".repeat(500)] {
            assert_eq!(passes("application/json", "", &[half]), Some(Err(OmitReason::NotJson)));
        }
        assert_eq!(passes("application/yaml", "", &[b"a: ["]), Some(Err(OmitReason::NotJson)));
        for coding in ["gzip", "br"] {
            assert_eq!(
                passes("application/json", coding, &[b"{}"]),
                Some(Ok(json!({}))),
                "declared as compressed, but plain"
            );
        }
        assert_eq!(passes("application/json", "", &[b"{\"a\":\"\xff\"}"]), Some(Ok(json!({"a": "\u{fffd}"}))));
        let large = [b"\"", &b"x".repeat(MAX_OBJECT_SIZE)[..]];
        assert_eq!(passes("application/json", "", &large), Some(Err(OmitReason::TooLong)));
        let yaml = [b"a: ", &b"x".repeat(MAX_YAML_SIZE)[..]];
        assert_eq!(passes("application/yaml", "", &yaml), Some(Err(OmitReason::TooLong)));
        assert!(passes("application/apply-patch+yaml", "", &[b"{\"a\":\"", yaml[1], b"\"}"]).unwrap().is_ok());
    }

    #[test]
    fn audit_body_of_a_compressed_response_expands_to_a_multiple_of_its_length_only() {
        let bomb = gzip(&b" ".repeat(MAX_OBJECT_SIZE));
        assert!(bomb.len() < 8 << 10);
        assert_eq!(passes("application/json", "gzip", &[&bomb]), Some(Err(OmitReason::TooExpensive)));
        let mut noise = fastrand::Rng::with_seed(1);
        let dense: String = std::iter::repeat_with(|| noise.alphanumeric()).take(MAX_OBJECT_SIZE).collect();
        let dense = gzip(format!("\"{dense}\"").as_bytes());
        assert_eq!(passes("application/json", "gzip", &[&dense]), Some(Err(OmitReason::TooLong)));
        // The queue counts the maximum decompressed size.
        let held = FairBudget::new(MAX_CAPTURED_BYTES);
        let weight =
            passed(BodyCapture::for_response(&headers("", "gzip"), held.share("")), &[&bomb]).unwrap().weight();
        assert_eq!(weight, bomb.len() * MAX_EXPANSION);
    }

    #[test]
    fn audit_body_of_a_compressed_request_is_not_unpacked() {
        let held = FairBudget::new(MAX_CAPTURED_BYTES);
        let small = gzip(b"{}");
        let request = passed(BodyCapture::for_request(&headers("", "gzip"), held.share("")), &[&small]).unwrap();
        assert_eq!((request.weight(), request.object(false)), (small.len(), Err(OmitReason::NotJson)));
    }

    #[test]
    fn audit_body_in_yaml_that_expands_is_left_out() {
        let merged = b"a: &a {b: c}\nd: {<<: *a}\n";
        assert_eq!(passes("application/yaml", "", &[merged]), Some(Err(OmitReason::TooExpensive)));
        let lines: String = (1..9).map(|n| format!("a{n}: &a{n} [*a{m},*a{m},*a{m},*a{m}]\n", m = n - 1)).collect();
        let nested = format!("a0: &a0 x\n{lines}");
        assert_eq!(
            passes("application/apply-patch+yaml", "", &[nested.as_bytes()]),
            Some(Err(OmitReason::TooExpensive))
        );
    }

    #[test]
    fn audit_body_captures_are_bounded_per_user() {
        let held = FairBudget::new(MAX_CAPTURED_BYTES);
        let piece = vec![b'x'; MAX_OBJECT_SIZE];
        let copies = |user: &str, count: usize| -> Vec<BodyCapture> {
            let copy = |_| {
                let mut copy = BodyCapture::for_request(&HeaderMap::new(), held.share(user)).ok().unwrap();
                copy.append(&piece);
                copy
            };
            (0..count).map(copy).collect()
        };
        let kept = |copies: &[BodyCapture]| copies.iter().filter(|copy| !copy.too_long).count();
        // The first user gets a half, the second a half of the rest.
        let (first, second) = (copies("mallory", 100), copies("jane", 100));
        assert_eq!([kept(&first), kept(&second)], [32, 16]);
        drop(first);
        assert_eq!(kept(&copies("bob", 100)), 24);
        assert_eq!(held.used(), 16 * MAX_OBJECT_SIZE);
        drop(second);
        assert_eq!((held.used(), held.user_count()), (0, 0));
    }

    #[test]
    fn audit_body_managed_fields_are_removed() {
        let one = |fields: bool| {
            if fields {
                json!({"metadata": {"name": "a", "managedFields": [1]}})
            } else {
                json!({"metadata": {"name": "a"}})
            }
        };
        for (before, after) in [
            (one(true), one(false)),
            (json!({"items": [one(true), 1, one(true)]}), json!({"items": [one(false), 1, one(false)]})),
            (json!({"rows": [{"object": one(true)}, {}]}), json!({"rows": [{"object": one(false)}, {}]})),
            (json!({"metadata": [], "items": {}}), json!({"metadata": [], "items": {}})),
        ] {
            let passed = CapturedBody::json(before.to_string());
            assert_eq!(passed.object(true).unwrap(), after);
            assert_eq!(passed.object(false).unwrap(), before);
        }
    }
}
