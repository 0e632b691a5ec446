//! Paths, queries, selectors, durations, keys, versions, and the encodings of a Status.

use std::time::Duration;

use http::Method;
use kubeapi::{
    CanonicalPath, FieldSelector, GroupVersion, LabelSelector, Query, RequestInfo, RetryAfter, Status, StatusDetails,
    StatusEncoding, compare_kube_aware, duration, encode, extra_key,
};

use crate::{fuzz_bytes, fuzz_text, text_from_words};

/// Mostly segments of good paths, or half the inputs would fail at their first byte.
const PATH: &[&str] = &[
    "/api/v1",
    "/apis/g.example.com/v1",
    "/apis",
    "/namespaces/x",
    "/namespaces/x",
    "/namespaces",
    "/proxy",
    "/watch",
    "/status",
    "/finalize",
    "/pods",
    "/pods/a",
    "/pods/a",
    "/things/b/log",
    "/c",
    "/c",
    "/d%20e",
    "/%61",
    "/~:;@",
    "/..data",
    "/é",
    "/..",
    "/%2e%2E",
    "/",
    "%2F",
    "%2f..",
    "%",
    "%25",
    "%00",
    "%c3%a9",
    "\\",
];

const QUERY: &[&str] = &[
    "&watch=true",
    "&watch=false",
    "&watch",
    "&w%61tch=0",
    "&fieldSelector=metadata.name%3Da",
    "&fieldSelector=metadata.name=",
    "&fieldSelector=x%21%3Dy,",
    "&labelSelector=a%3Db",
    "&labelSelector=",
    "&limit=5",
    "&timeoutSeconds=x",
    "&timeout=5s",
    "%2C",
    ",",
    "+",
    "a",
    "&",
    "=",
    ";",
    "%zz",
    "%ff",
    "é",
    " ",
];

#[test]
fn path() {
    fuzz_bytes(|bytes| {
        let raw = &text_from_words(&bytes[..bytes.len() % 8], PATH);
        let Ok(path) = CanonicalPath::parse(raw) else { return };
        assert!(path.wire().is_ascii() && path.wire().starts_with('/'));
        let again = CanonicalPath::parse(path.wire()).expect("what is forwarded is acceptable");
        assert_eq!(again.wire(), path.wire());
        // What a proxied server gets is not decoded, so a raw byte and its escape differ there.
        if !path.segments().any(|segment| segment == "proxy") {
            assert_eq!(again.decoded(), path.decoded());
            assert!(!path.segments().any(|segment| segment == "." || segment == ".."));
        }
    });
}

#[test]
fn query() {
    fuzz_text(QUERY, |raw| {
        let query = Query::parse(raw);
        assert!(query.wire().is_ascii() && !query.wire().contains(';'));
        let again = Query::parse(query.wire());
        assert_eq!(again.wire(), query.wire());
        assert!(again.pairs().eq(query.pairs()));
    });
}

#[test]
fn request_info() {
    const METHODS: [Method; 6] =
        [Method::GET, Method::HEAD, Method::POST, Method::DELETE, Method::PATCH, Method::OPTIONS];
    fuzz_bytes(|bytes| {
        // A few segments are a path; many are one mistake or another.
        let (path, query) = bytes.split_at(bytes.len() / 2 % 5);
        let (raw_path, raw_query) =
            (format!("/apis/g/v1{}", text_from_words(path, PATH)), text_from_words(query, QUERY));
        let Ok(path) = CanonicalPath::parse(&raw_path) else { return };
        let query = Query::parse(&raw_query);
        let method = &METHODS[bytes.len() % METHODS.len()];
        let Ok(info) = RequestInfo::parse(method, &path, &query) else { return };
        // The backend, reading what we forward, must come to what we judged.
        let (wire_path, wire_query) = (path.wire().to_owned(), query.wire().to_owned());
        let path = CanonicalPath::parse(&wire_path).expect("what is forwarded is acceptable");
        let query = Query::parse(&wire_query);
        let there = RequestInfo::parse(method, &path, &query).expect("readable here, readable there");
        let error_text = |info: &RequestInfo<'_>| {
            [
                &info.verb,
                info.api_group,
                info.namespace,
                info.resource,
                info.subresource,
                &info.name,
                &info.field_selector,
            ]
            .map(str::to_owned)
        };
        assert_eq!(error_text(&info), error_text(&there));
        assert!(!info.is_resource_request || !info.resource.is_empty());
    });
}

#[test]
fn selectors() {
    const WORDS: &[&str] = &[
        "=",
        "==",
        "!=",
        "!",
        ",",
        "(",
        ")",
        " in ",
        " notin ",
        "<",
        ">",
        "a",
        "b/c",
        "\\",
        "\\,",
        "metadata.name",
        " ",
        "1",
    ];
    fuzz_text(WORDS, |text| {
        if let Ok(selector) = FieldSelector::parse(text) {
            let _ = (selector.exact("metadata.name"), selector.matches(|_| "a"));
        }
        if let Ok(selector) = LabelSelector::parse(text) {
            let _ = selector.matches(|_| Some("a"));
            assert!(selector.requirements.is_sorted_by_key(|requirement| requirement.key.clone()));
        }
    });
}

#[test]
fn extra_keys() {
    fuzz_text(&["%", "%2f", "%C3%BC", "ü", "a", "A", "/", ":", " ", "\0"], |key| {
        let lower = key.to_ascii_lowercase();
        assert_eq!(extra_key::unescape(&extra_key::escape(&lower)), lower);
        let _ = extra_key::unescape(key);
    });
}

#[test]
fn durations() {
    fuzz_text(
        &["1", "9", "0", ".", "-", "+", "h", "m", "s", "ms", "us", "µs", "ns", "9223372036854775807", "x"],
        |text| match (duration::parse_signed(text), duration::parse(text)) {
            (Ok(signed), Ok(unsigned)) => assert_eq!(Duration::from_nanos(signed.unsigned_abs()), unsigned),
            (Ok(signed), Err(_)) => assert!(signed < 0),
            (Err(_), unsigned) => assert!(unsigned.is_err()),
        },
    );
}

#[test]
fn versions() {
    fuzz_bytes(|bytes| {
        const WORDS: &[&str] = &["v", "1", "2", "0", "alpha", "beta", "99999999999999999999", "/", "x"];
        let (a, b) = bytes.split_at(bytes.len() / 2);
        let (a, b) = (text_from_words(a, WORDS), text_from_words(b, WORDS));
        assert_eq!(compare_kube_aware(&a, &b), compare_kube_aware(&b, &a).reverse());
        if let Some(version) = GroupVersion::parse(&a) {
            assert_eq!(version.to_string(), a);
        }
    });
}

#[test]
fn status_in_every_encoding() {
    const WORDS: &[&str] = &[
        "\"", "'", "\\", "\n", "\r\n", "\t", "\0", "<", "&", ": ", "- ", "# ", "{", "[", "true", "null", "~", "é",
        "\u{2028}", "\u{feff}", "\u{85}", "1e3", "0x1", " ", "a", "|", ">", "%", "@", "`", "?", "!",
    ];
    fuzz_text(WORDS, |message| {
        let status = Status::new(503, "ServiceUnavailable", message)
            .with_details(StatusDetails::for_resource("g", message, message))
            .with_cause("X", message)
            .with_retry_after(RetryAfter::CircuitOpen(Duration::from_secs(message.len() as u64)));
        let json: serde_json::Value = serde_json::from_slice(&encode(&status, StatusEncoding::Json)).expect("JSON");
        let pretty: serde_json::Value =
            serde_json::from_slice(&encode(&status, StatusEncoding::PrettyJson)).expect("JSON");
        let yaml: serde_json::Value = serde_saphyr::from_slice(&encode(&status, StatusEncoding::Yaml)).expect("YAML");
        assert_eq!(json, pretty);
        assert_eq!(json, yaml);
        assert_eq!(json["message"].as_str().unwrap_or_default(), message);
        ciborium::from_reader::<ciborium::Value, _>(&encode(&status, StatusEncoding::Cbor)[..]).expect("CBOR");
        assert!(encode(&status, StatusEncoding::Protobuf).starts_with(b"k8s\0"));
    });
}
