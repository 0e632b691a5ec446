//! Objects as they pass: a bounded copy of a body on the request's thread, a JSON object out of it on the sink's.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value;

/// The largest object that is written; of a larger one the event says that it is not there.
pub(super) const LARGEST: usize = 1 << 20;
/// The most bytes of bodies that are kept at once for requests that still run.
const MOST_HELD: usize = 64 << 20;

/// What all copies that are being made take together.
#[derive(Default)]
pub(super) struct Held(AtomicUsize);

/// A copy of a body that passes by.
pub(in crate::observe) struct Copy {
    form: Form,
    bytes: Vec<u8>,
    too_long: bool,
    held: Arc<Held>,
}

/// A body that has passed.
pub(in crate::observe) enum Passed {
    /// All of it, or all there was of it.
    Bytes(Form, Vec<u8>),
    /// It was larger than what is kept.
    TooLong,
    /// It is written in a way that cannot be made JSON here; with its media type.
    Unreadable(Box<str>),
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::observe) struct Form {
    yaml: bool,
    gzip: bool,
}

/// Why an event lacks an object that its level asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    TooLong,
    NoJson,
    Encoding(Box<str>),
}

/// How gzip begins (RFC 1952).
const GZIP: &[u8] = &[0x1f, 0x8b];

impl Form {
    /// How the body behind `headers` is written; its media type when it cannot be read. JSON when nothing is said,
    /// as an API server reads it.
    fn of(headers: &HeaderMap) -> Result<Form, Box<str>> {
        let text = |value: Option<&http::HeaderValue>| {
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase()).unwrap_or_default()
        };
        let gzip = text(headers.get(CONTENT_ENCODING)) == "gzip";
        let media = text(headers.get(CONTENT_TYPE));
        let media = media.split(';').next().unwrap_or_default().trim_end();
        match media {
            "" | "application/json" => Ok(Form { yaml: false, gzip }),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Form { yaml: true, gzip }),
            _ if media.ends_with("+json") => Ok(Form { yaml: false, gzip }),
            _ if media.ends_with("+yaml") => Ok(Form { yaml: true, gzip }),
            _ => Err(short(media)),
        }
    }
}

/// What a client chose, as far as it is shown.
fn short(media: &str) -> Box<str> {
    media.chars().filter(|letter| letter.is_ascii_graphic()).take(80).collect::<String>().into()
}

impl Copy {
    /// Begins a copy of the body behind `headers`.
    pub(super) fn begin(headers: &HeaderMap, held: &Arc<Held>) -> Result<Copy, Passed> {
        let form = Form::of(headers).map_err(Passed::Unreadable)?;
        Ok(Copy { form, bytes: Vec::new(), too_long: false, held: held.clone() })
    }

    /// Some more of it passes.
    pub(in crate::observe) fn more(&mut self, data: &[u8]) {
        if self.too_long {
            return;
        }
        let before = self.held.0.fetch_add(data.len(), Relaxed);
        if self.bytes.len() + data.len() > LARGEST || before + data.len() > MOST_HELD {
            self.held.0.fetch_sub(data.len() + self.bytes.len(), Relaxed);
            self.bytes = Vec::new();
            self.too_long = true;
            return;
        }
        self.bytes.extend_from_slice(data);
    }

    /// That was all; nothing when there was nothing.
    pub(in crate::observe) fn end(mut self) -> Option<Passed> {
        if self.too_long {
            return Some(Passed::TooLong);
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.held.0.fetch_sub(bytes.len(), Relaxed);
        (!bytes.is_empty()).then_some(Passed::Bytes(self.form, bytes))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes.len(), Relaxed);
    }
}

impl Passed {
    /// Memory it takes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Passed::Bytes(_, bytes) => bytes.len(),
            Passed::TooLong | Passed::Unreadable(_) => 0,
        }
    }

    #[cfg(test)]
    pub(super) fn json(text: impl Into<Vec<u8>>) -> Passed {
        Passed::Bytes(Form { yaml: false, gzip: false }, text.into())
    }

    /// The object; always one that was read, so that whatever a client sends, an event is one line of good JSON.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn object(&self, omit_managed_fields: bool) -> Result<Value, Lack> {
        let mut object: Value = match self {
            Passed::TooLong => return Err(Lack::TooLong),
            Passed::Unreadable(media) => return Err(Lack::Encoding(media.clone())),
            Passed::Bytes(form, bytes) => form.read(bytes)?,
        };
        if omit_managed_fields {
            drop_managed_fields(&mut object);
        }
        Ok(object)
    }
}

impl Form {
    /// API servers look at no `Content-Encoding` of a request: what a header calls compressed and is plain is read as
    /// it is, or a client would choose what is seen of its object.
    fn read(self, bytes: &[u8]) -> Result<Value, Lack> {
        let mut inflated = Vec::new();
        let bytes = if self.gzip && bytes.starts_with(GZIP) {
            // A little gzip holds a lot.
            let most = LARGEST as u64 + 1;
            flate2::read::GzDecoder::new(bytes).take(most).read_to_end(&mut inflated).map_err(|_| Lack::NoJson)?;
            if inflated.len() > LARGEST {
                return Err(Lack::TooLong);
            }
            &inflated
        } else {
            bytes
        };
        if !self.yaml {
            // API servers take odd bytes in their stride.
            return serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(|_| Lack::NoJson);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Lack::NoJson)?;
        serde_saphyr::from_str(text).map_err(|_| Lack::NoJson)
    }
}

/// Of an object, of the items of a list, of the rows of a Table (`copyWithoutManagedFields` in
/// `k8s.io/apiserver/pkg/audit`).
fn drop_managed_fields(object: &mut Value) {
    fn of_one(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    of_one(object);
    for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        of_one(item);
    }
    for row in object.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(object) = row.get_mut("object") {
            of_one(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    fn headers(media: &str, encoding: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [(CONTENT_TYPE, media), (CONTENT_ENCODING, encoding)] {
            if !value.is_empty() {
                headers.insert(name, value.parse().unwrap());
            }
        }
        headers
    }

    fn passes(media: &str, encoding: &str, pieces: &[&[u8]]) -> Option<Result<Value, Lack>> {
        let held = Arc::default();
        let passed = match Copy::begin(&headers(media, encoding), &held) {
            Ok(mut copy) => {
                pieces.iter().for_each(|piece| copy.more(piece));
                copy.end()
            }
            Err(passed) => Some(passed),
        };
        assert_eq!(held.0.load(Relaxed), 0);
        passed.map(|passed| passed.object(false))
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn what_can_be_made_json_is() {
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
    fn what_cannot_says_why() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(passes(protobuf, "", &[b"k8s\0"]), Some(Err(Lack::Encoding(protobuf.into()))));
        assert_eq!(passes("application/json", "br", &[b"x"]), Some(Err(Lack::NoJson)));
        for half in [&b"{\"a\":"[..], b"{}{}", b"\xff", &b"[".repeat(500)] {
            assert_eq!(passes("application/json", "", &[half]), Some(Err(Lack::NoJson)));
        }
        assert_eq!(passes("application/yaml", "", &[b"a: ["]), Some(Err(Lack::NoJson)));
        for coding in ["gzip", "br"] {
            assert_eq!(passes("application/json", coding, &[b"{}"]), Some(Ok(json!({}))), "said, and not so");
        }
        assert_eq!(passes("application/json", "", &[b"{\"a\":\"\xff\"}"]), Some(Ok(json!({"a": "\u{fffd}"}))));
        let large = [b"\"", &b"x".repeat(LARGEST)[..]];
        assert_eq!(passes("application/json", "", &large), Some(Err(Lack::TooLong)));
        let bomb = gzip(&b" ".repeat(LARGEST + 1));
        assert_eq!(passes("application/json", "gzip", &[&bomb]), Some(Err(Lack::TooLong)));
    }

    #[test]
    fn many_bodies_at_once_are_bounded_together() {
        let held: Arc<Held> = Arc::default();
        let piece = vec![b'x'; LARGEST];
        let mut copies = Vec::new();
        for _ in 0..MOST_HELD / LARGEST + 1 {
            let mut copy = Copy::begin(&HeaderMap::new(), &held).ok().unwrap();
            copy.more(&piece);
            copies.push(copy);
        }
        assert_eq!(held.0.load(Relaxed), MOST_HELD);
        assert!(matches!(copies.pop().unwrap().end(), Some(Passed::TooLong)));
        drop(copies);
        assert_eq!(held.0.load(Relaxed), 0);
    }

    #[test]
    fn managed_fields_go_from_objects_lists_and_tables() {
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
            let passed = Passed::json(before.to_string());
            assert_eq!(passed.object(true).unwrap(), after);
            assert_eq!(passed.object(false).unwrap(), before);
        }
    }
}
