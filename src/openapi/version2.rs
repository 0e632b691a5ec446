//! `/openapi/v2`, which describes nothing and is there for kubectl's sake.
//!
//! Whatever kubectl does not find in version 3 (a manifest of a kind that nobody serves, for one) it looks up in
//! version 2, and if that cannot be had it gives up with "error validating data: the server could not find the
//! requested resource" instead of naming the kind (`kubectl/pkg/validation`, `cli-runtime/pkg/resource`). A document
//! without paths and definitions lets it go on.

use std::sync::LazyLock;

use http::{HeaderMap, Method, Response};

use crate::discovery::{Document, Reply, accepted, not_acceptable, not_allowed};
use crate::message::{Body, Refusal};

const TITLE: &str = "narthex";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// What kubectl asks for: the name before it was made a valid one.
const PROTOBUF_ONCE: &str = "com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Answers a request for the document.
pub(super) fn answer(method: &Method, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    static JSON: LazyLock<Document> = LazyLock::new(|| {
        Document::of(&serde_json::json!({
            "swagger": "2.0", "info": {"title": TITLE, "version": env!("CARGO_PKG_VERSION")}, "paths": {},
        }))
    });
    static BINARY: LazyLock<Document> = LazyLock::new(|| Document::from_json(binary().into()));
    if method != Method::GET && method != Method::HEAD {
        return Err(not_allowed());
    }
    let (document, content_type) = match accepted(headers) {
        None => (&JSON, "application/json"),
        Some(clauses) => clauses
            .iter()
            .find_map(|clause| match clause {
                json if json.covers("application", "json") => Some((&JSON, "application/json")),
                binary
                    if binary.covers("application", PROTOBUF_ONCE)
                        || binary.covers("application", PROTOBUF.trim_start_matches("application/")) =>
                {
                    Some((&BINARY, PROTOBUF))
                }
                _ => None,
            })
            .ok_or_else(|| not_acceptable(&format!("application/json, {PROTOBUF}")))?,
    };
    Ok(Reply { content_type, cache: "no-cache, private", document, yaml: None }.to(method, headers))
}

/// The same as `openapi.v2.Document` of gnostic: swagger = 1, info = 2 {title = 1, version = 2}, paths = 8.
fn binary() -> Vec<u8> {
    let info = [field(1, TITLE.as_bytes()), field(2, env!("CARGO_PKG_VERSION").as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info), field(8, b"")].concat()
}

/// A length-delimited field; all of ours are shorter than 128 bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, content.len() as u8];
    field.extend_from_slice(content);
    field
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, CONTENT_TYPE};
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn ask(method: &Method, accept: Option<&'static str>) -> Result<Response<Body>, Refusal> {
        let accept = accept.map(|accept| (ACCEPT, HeaderValue::from_static(accept)));
        answer(method, &accept.into_iter().collect::<HeaderMap<HeaderValue>>())
    }

    fn content(accept: Option<&'static str>) -> (String, Vec<u8>) {
        let response = ask(&Method::GET, accept).unwrap();
        let header = |name: HeaderName| response.headers()[name].to_str().unwrap().to_owned();
        let kind = header(CONTENT_TYPE);
        match response.into_body() {
            Body::Full(bytes) => (kind, bytes.to_vec()),
            _ => panic!("no body"),
        }
    }

    #[test]
    fn both_forms_say_that_nothing_is_described() {
        for accept in [None, Some("application/json"), Some("*/*")] {
            let (kind, bytes) = content(accept);
            assert_eq!(kind, "application/json");
            let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!((&document["swagger"], &document["paths"]), (&"2.0".into(), &serde_json::json!({})));
        }
        for accept in ["application/com.github.proto-openapi.spec.v2@v1.0+protobuf", PROTOBUF] {
            let (kind, bytes) = content(Some(accept));
            assert_eq!(kind, PROTOBUF);
            assert!(bytes.starts_with(b"\x0a\x032.0\x12"), "{bytes:?}");
            assert!(bytes.ends_with(b"\x42\x00"), "{bytes:?}");
            let info = usize::from(bytes[6]);
            assert_eq!(bytes.len(), 7 + info + 2, "the lengths add up: {bytes:?}");
        }
    }

    #[test]
    fn other_forms_and_other_methods_are_refused() {
        let code = |method, accept| ask(&method, accept).err().map(|refusal| refusal.status().code);
        assert_eq!(code(Method::GET, Some("text/html")), Some(406));
        assert_eq!(code(Method::POST, None), Some(405));
    }
}
