//! `Accept`, and hop-by-hop headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use narthex::message::{Accept, hop_by_hop, negotiate, upgrade_protocol};

use crate::{fuzz_bytes, fuzz_text, text_from_words};

#[test]
fn accept() {
    const WORDS: &[&str] = &[
        "application/json",
        "application/yaml",
        "application/cbor",
        "application/vnd.kubernetes.protobuf",
        "*/*",
        "*",
        "/",
        ",",
        ";",
        "q=",
        "0.5",
        "1",
        "-1",
        "inf",
        "NaN",
        "as=Table",
        "v=v1",
        "g=x",
        "stream=watch",
        "pretty=1",
        "\"",
        "\\",
        " ",
        "=",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        let clauses = negotiate::parse_accept(text);
        assert!(clauses.iter().all(|clause| clause.quality > 0.0 && clause.quality <= 1.0));
        assert!(clauses.is_sorted_by(|a, b| a.quality >= b.quality));
        let _ = negotiate::negotiate(text);
        if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            let headers = HeaderMap::from_iter([(http::header::ACCEPT, value)]);
            let _ = Accept::from_headers(&headers).encoding();
        }
    });
}

#[test]
fn hop_by_hop_headers() {
    const NAMES: [&str; 8] = ["connection", "te", "upgrade", "x-a", "x-b", "keep-alive", "http2-settings", "trailer"];
    const WORDS: &[&str] = &[
        "close",
        "upgrade",
        "websocket",
        "h2c",
        "trailers",
        "x-a",
        "X-B",
        "te",
        "Connection",
        ",",
        ",",
        ";",
        " ",
        "=",
        "é",
    ];
    fuzz_bytes(|bytes| {
        let mut headers = HeaderMap::new();
        for (line, name) in bytes.chunks(6).zip(NAMES.iter().cycle()) {
            let name = line.first().map_or(*name, |byte| NAMES[usize::from(*byte) % NAMES.len()]);
            if let Ok(value) = HeaderValue::from_bytes(text_from_words(line, WORDS).as_bytes()) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        if let Some(protocol) = upgrade_protocol(&headers) {
            assert!(!protocol.to_ascii_lowercase().starts_with("h2c"));
        }
        hop_by_hop::strip_request(&mut headers, |_| false);
        for name in ["connection", "upgrade", "keep-alive", "http2-settings"] {
            assert!(!headers.contains_key(name));
        }
        assert!(headers.get("te").is_none_or(|value| value == "trailers"));
    });
}
