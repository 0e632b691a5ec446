//! Negotiation of the encoding of a Status by `Accept`, and of compression by `Accept-Encoding`.

use std::borrow::Cow;

use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderValue};

use kubeapi::{Query, StatusEncoding};

/// The `Accept` header of a request. It is stored apart from the request, whose headers are forwarded before it is
/// known whether the gateway must respond itself.
#[derive(Clone, Debug, Default)]
pub struct Accept {
    value: Option<HeaderValue>,
    is_for_human: bool,
}

impl Accept {
    /// Reads the first `Accept`, as in Kubernetes, and `User-Agent`: curl, wget and browsers get indented JSON.
    pub fn from_headers(headers: &HeaderMap) -> Accept {
        Accept { value: headers.get(ACCEPT).cloned(), is_for_human: is_human_client(headers) }
    }

    /// The encoding of a Status for this client; JSON if nothing acceptable is supported.
    pub fn encoding(&self) -> StatusEncoding {
        let accept = self.value.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
        match negotiate(accept).unwrap_or_default() {
            StatusEncoding::Json if self.is_for_human => StatusEncoding::PrettyJson,
            encoding => encoding,
        }
    }
}

/// Whether people use the client that `User-Agent` names: curl, wget or a browser.
fn is_human_client(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
    [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|name| agent.starts_with(name))
}

/// Whether JSON is indented: by the parameter `pretty`, else for clients that people use.
pub fn is_pretty_print(query: &Query<'_>, headers: &HeaderMap) -> bool {
    match query.get("pretty") {
        Some(pretty) if !pretty.is_empty() => matches!(&*pretty, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        _ => is_human_client(headers),
    }
}

/// One entry of an `Accept` header.
#[derive(Clone, Debug, PartialEq)]
pub struct MediaRange<'a> {
    /// `application`, or `*`.
    pub kind: &'a str,
    /// `json`, or `*`.
    pub subtype: &'a str,
    /// The `q` value, from 0 to 1.
    pub quality: f32,
    /// Every other parameter, unquoted.
    pub parameters: Vec<(&'a str, Cow<'a, str>)>,
}

impl MediaRange<'_> {
    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| &**value)
    }

    /// Whether the entry matches this media type, possibly by a wildcard.
    pub fn covers(&self, kind: &str, subtype: &str) -> bool {
        let same = |pattern: &str, text: &str| pattern == "*" || pattern.eq_ignore_ascii_case(text);
        same(self.kind, kind) && same(self.subtype, subtype)
    }

    fn wildcard_count(&self) -> u8 {
        u8::from(self.kind == "*") + u8::from(self.subtype == "*")
    }
}

/// The maximum number of parsed entries of an `Accept` header, which may be a megabyte long.
const MAX_MEDIA_RANGES: usize = 64;
/// The maximum number of parsed parameters of an entry.
const MAX_PARAMETERS: usize = 16;

/// Parses the first [`MAX_MEDIA_RANGES`] entries of an `Accept` header, sorted by preference: by quality, then
/// specificity, then order. Invalid entries and those with a quality of zero are skipped.
pub fn parse_accept(accept: &str) -> Vec<MediaRange<'_>> {
    let acceptable = split_unquoted(accept, ',').filter_map(parse_media_range).filter(|clause| clause.quality > 0.0);
    let mut clauses: Vec<_> = acceptable.take(MAX_MEDIA_RANGES).collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then(a.wildcard_count().cmp(&b.wildcard_count())));
    clauses
}

/// Returns the preferred encoding of a Status; none if none is acceptable. An empty header accepts any.
///
/// An entry for a transformed object (`as=Table`) or another server version does not apply to a Status, as in
/// `k8s.io/apiserver/pkg/endpoints/handlers/negotiation`.
pub fn negotiate(accept: &str) -> Option<StatusEncoding> {
    if accept.trim().is_empty() {
        return Some(StatusEncoding::Json);
    }
    parse_accept(accept).iter().filter(|clause| applies_to_status(clause)).find_map(|clause| {
        let json =
            if clause.parameter("pretty") == Some("1") { StatusEncoding::PrettyJson } else { StatusEncoding::Json };
        [
            (json, "json"),
            (StatusEncoding::Yaml, "yaml"),
            (StatusEncoding::Protobuf, "vnd.kubernetes.protobuf"),
            (StatusEncoding::Cbor, "cbor"),
        ]
        .into_iter()
        .find(|(_, subtype)| clause.covers("application", subtype))
        .map(|(encoding, _)| encoding)
    })
}

fn applies_to_status(clause: &MediaRange<'_>) -> bool {
    clause.parameters.iter().all(|(key, value)| match *key {
        "as" | "g" | "v" => false,
        "sv" => value.is_empty(),
        "stream" => value.is_empty() || value == "watch",
        _ => true,
    })
}

fn parse_media_range(text: &str) -> Option<MediaRange<'_>> {
    let mut parts = split_unquoted(text, ';').map(str::trim);
    let media = parts.next()?;
    let (kind, subtype) = match media.split_once('/') {
        Some((kind, subtype)) => (kind.trim(), subtype.trim()),
        None if media == "*" => ("*", "*"),
        None => return None,
    };
    if kind.is_empty() || subtype.is_empty() || subtype.contains('/') {
        return None;
    }
    let mut clause = MediaRange { kind, subtype, quality: 1.0, parameters: Vec::new() };
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        let (key, value) = (key.trim(), value.trim());
        if key.eq_ignore_ascii_case("q") {
            // An invalid quality counts as 0 rather than 1.
            clause.quality = value.parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0);
        } else if clause.parameters.len() < MAX_PARAMETERS {
            clause.parameters.push((key, unquoted(value)));
        }
    }
    Some(clause)
}

/// Splits at `separator`, but not inside a quoted string.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c| {
        let literal = std::mem::take(&mut escaped);
        match c {
            '\\' if quoted && !literal => escaped = true,
            '"' if !literal => quoted = !quoted,
            _ => return c == separator && !quoted,
        }
        false
    })
}

fn unquoted(value: &str) -> Cow<'_, str> {
    let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    match inner {
        Some(inner) if inner.contains('\\') => Cow::Owned(inner.replace("\\\"", "\"").replace("\\\\", "\\")),
        Some(inner) => Cow::Borrowed(inner),
        None => Cow::Borrowed(value),
    }
}

/// Whether `Accept-Encoding` names gzip with a weight above 0. `*` is ignored: a client that can decode gzip names it.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|clause| {
            let (name, parameters) = clause.split_once(';').unwrap_or((clause, ""));
            let weight: f32 = parameters.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.parse().ok())?;
            name.trim().eq_ignore_ascii_case("gzip").then_some(weight)
        })
        .any(|weight| weight > 0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accept_encoding_gzip_by_name_and_weight() {
        for (accepted, expected) in [
            ("", false),
            ("*", false),
            ("br", false),
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
            ("gzip, zstd", true),
            ("gzip;q=0.9, zstd;q=0.1", true),
            ("zstd;q=0, gzip", true),
            ("zstd", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expected, "{accepted}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn accept_header_parsing_is_bounded() {
        let many = "a/b;c=d,".repeat(100_000) + "application/yaml";
        assert_eq!(parse_accept(&many).len(), MAX_MEDIA_RANGES);
        let parameters = "a/b".to_owned() + &";c=d".repeat(100_000) + ";q=0.5";
        let clauses = parse_accept(&parameters);
        assert_eq!((clauses[0].parameters.len(), clauses[0].quality), (MAX_PARAMETERS, 0.5));
    }

    #[test]
    fn accept_header_negotiates_status_encoding() {
        for (accept, expected) in [
            ("", Some(StatusEncoding::Json)),
            ("*/*", Some(StatusEncoding::Json)),
            ("*", Some(StatusEncoding::Json)),
            ("application/*", Some(StatusEncoding::Json)),
            ("application/json", Some(StatusEncoding::Json)),
            ("Application/JSON", Some(StatusEncoding::Json)),
            ("application/json;pretty=1", Some(StatusEncoding::PrettyJson)),
            ("application/json;stream=watch", Some(StatusEncoding::Json)),
            ("application/json; charset=utf-8", Some(StatusEncoding::Json)),
            ("application/yaml", Some(StatusEncoding::Yaml)),
            ("application/cbor", Some(StatusEncoding::Cbor)),
            ("application/vnd.kubernetes.protobuf", Some(StatusEncoding::Protobuf)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(StatusEncoding::Protobuf)),
            ("application/vnd.kubernetes.protobuf;q=0.5,application/json", Some(StatusEncoding::Json)),
            ("application/yaml;q=0.2, application/cbor;q=0.4", Some(StatusEncoding::Cbor)),
            ("*/*;q=0.9,application/yaml;q=0.9", Some(StatusEncoding::Yaml)),
            ("text/html,*/*;q=0.1", Some(StatusEncoding::Json)),
            ("application/json;q=0,application/yaml;q=0.1", Some(StatusEncoding::Yaml)),
            // kubectl's request for a table
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Some(StatusEncoding::Json),
            ),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/yaml;q=0.1", Some(StatusEncoding::Yaml)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", None),
            ("application/json;stream=other", None),
            ("application/json;x=\"a,b;c\",application/yaml", Some(StatusEncoding::Json)),
            ("text/html", None),
            ("application/json;q=2", None),
            ("application/json;q=NaN", None),
            ("application", None),
            ("a/b/c", None),
        ] {
            assert_eq!(negotiate(accept), expected, "{accept}");
        }
    }

    #[test]
    fn accept_header_defaults_to_json_and_indents_for_humans() {
        let encoding = |accept: Option<&[u8]>, agent: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_bytes(accept).unwrap());
            }
            if let Some(agent) = agent {
                headers.insert(USER_AGENT, agent.parse().unwrap());
            }
            Accept::from_headers(&headers).encoding()
        };
        assert_eq!(encoding(None, None), StatusEncoding::Json);
        assert_eq!(encoding(Some(b"text/html"), None), StatusEncoding::Json);
        assert_eq!(encoding(Some(b"\xff"), None), StatusEncoding::Json);
        assert_eq!(encoding(Some(b"*/*"), Some("curl/8.5.0")), StatusEncoding::PrettyJson);
        assert_eq!(encoding(Some(b"application/yaml"), Some("curl/8.5.0")), StatusEncoding::Yaml);
        assert_eq!(encoding(Some(b"*/*"), Some("kubectl/v1.36.3")), StatusEncoding::Json);
    }

    #[test]
    fn accept_header_parameters_are_unquoted() {
        let accept = r#"application/json;g=apidiscovery.k8s.io;v=v2;as="API\"Group""#;
        let clauses = parse_accept(accept);
        assert_eq!(clauses[0].parameter("g"), Some("apidiscovery.k8s.io"));
        assert_eq!(clauses[0].parameter("as"), Some("API\"Group"));
        assert_eq!(clauses[0].parameter("q"), None);
    }

    proptest! {
        #[test]
        fn any_header_is_answered(accept in "[a-z*/;=,q.01\" \\\\]{0,40}") {
            let found = parse_accept(&accept);
            prop_assert!(found.iter().all(|clause| clause.quality > 0.0 && clause.quality <= 1.0));
            prop_assert!(found.windows(2).all(|pair| pair[0].quality >= pair[1].quality));
            let _ = negotiate(&accept);
        }
    }
}
