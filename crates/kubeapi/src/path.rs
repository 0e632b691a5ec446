//! Request paths: the same segments for authorization, routing and forwarding.
//!
//! Kubernetes authorizes and forwards the decoded path, so that a `%2F` inside a name changes the number of segments.
//! Other proxies authorize a normalized path and forward the raw one. Here an ambiguous path is refused.

use std::borrow::Cow;

use super::{Status, percent};

/// Characters that need no decoding or encoding (RFC 3986 `pchar` without `%`, and the slash).
const PLAIN: percent::ByteSet = percent::alphanumeric_and(b"-._~!$&'()*+,;=:@/");
/// Characters that are forwarded unchanged.
const ON_THE_WIRE: percent::ByteSet = percent::alphanumeric_and(b"-._~!$&'()*+,;=:@/%");

/// An unambiguous path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalPath<'p> {
    raw: &'p str,
    decoded: Cow<'p, str>,
    wire: Cow<'p, str>,
}

impl<'p> CanonicalPath<'p> {
    /// Parses the path of a request target, without the query. Does not copy an ordinary path.
    ///
    /// The part after a `proxy` subresource is another server's path: only its escapes and raw control characters are
    /// checked. One trailing slash is allowed.
    ///
    /// # Errors
    /// 400 for a missing leading slash, a malformed escape, a control character, a `.` or `..` segment. In a resource
    /// path (below `/api` or `/apis`) also for an encoded slash or an empty segment.
    pub fn parse(raw: &'p str) -> Result<CanonicalPath<'p>, Status> {
        CanonicalPath::parse_for(raw, PathRules::KubeApiserver)
    }

    /// Parses a path without the exception for `proxy` subresources: the whole path is checked.
    pub fn parse_without_proxy(raw: &'p str) -> Result<CanonicalPath<'p>, Status> {
        CanonicalPath::parse_for(raw, PathRules::WithoutProxy)
    }

    /// Parses a path of a server other than an API server. `/api` and `proxy` have no special meaning. Encoded slashes
    /// and empty segments are allowed.
    ///
    /// # Errors
    /// As [`CanonicalPath::parse`], without the additional ones of resource paths.
    pub fn parse_non_kubernetes(raw: &'p str) -> Result<CanonicalPath<'p>, Status> {
        CanonicalPath::parse_for(raw, PathRules::NonKubernetes)
    }

    fn parse_for(raw: &'p str, server: PathRules) -> Result<CanonicalPath<'p>, Status> {
        let raw = if raw.is_empty() { "/" } else { raw };
        if is_ordinary(raw) {
            return Ok(CanonicalPath { raw, decoded: Cow::Borrowed(raw), wire: Cow::Borrowed(raw) });
        }
        let decoded = decode_unambiguous(raw, server).map_err(|problem| Status::bad_request(problem.message(raw)))?;
        Ok(CanonicalPath { raw, wire: wire_form(raw, &decoded), decoded: Cow::Owned(decoded) })
    }

    /// Forwards an encoded slash as it came, for a server to which it is a part of a name. What is authorized stays the
    /// decoded path.
    #[must_use]
    pub fn keep_escaped_slashes(self) -> CanonicalPath<'p> {
        CanonicalPath { wire: escaped_form(self.raw), ..self }
    }

    /// The path as the client sent it, for `X-Forwarded-Uri` and the access log.
    pub fn raw(&self) -> &'p str {
        self.raw
    }

    /// The path for authorization and routing: percent-decoded, except after a `proxy` subresource.
    pub fn decoded(&self) -> &str {
        &self.decoded
    }

    /// The path to forward: the same segments as [`decoded`](Self::decoded), percent-encoded where needed.
    pub fn wire(&self) -> &str {
        &self.wire
    }

    /// The decoded segments, without leading and trailing slashes.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        segments(&self.decoded)
    }
}

/// The segments of a decoded path, without leading and trailing slashes.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    let trimmed = path.trim_matches('/');
    trimmed.split('/').take(if trimmed.is_empty() { 0 } else { usize::MAX })
}

/// Whether there is nothing to decode, and no segment is empty or starts with a dot: true for nearly all paths.
fn is_ordinary(raw: &str) -> bool {
    let mut before = 0;
    let mut ordinary = raw.starts_with('/');
    for byte in raw.bytes() {
        ordinary &= PLAIN[usize::from(byte)] & !(before == b'/' && (byte == b'/' || byte == b'.'));
        before = byte;
    }
    ordinary
}

#[derive(Debug, PartialEq, Eq)]
enum PathProblem {
    Relative,
    Control,
    Escape,
    NotText,
    Dots,
    EncodedSlash,
    EmptySegment,
}

impl PathProblem {
    fn message(&self, raw: &str) -> String {
        let what = match self {
            PathProblem::Relative => "it does not begin with a slash",
            PathProblem::Control => "it contains a control character",
            PathProblem::Escape => "it contains a percent sign that is not followed by two hexadecimal digits",
            PathProblem::NotText => "it is not UTF-8 when percent-decoded",
            PathProblem::Dots => "it contains a . or .. segment, plain or encoded",
            PathProblem::EncodedSlash => "it contains a percent-encoded slash, which cannot be part of a name",
            PathProblem::EmptySegment => "it contains an empty segment",
        };
        format!("the request path {} is not acceptable: {what}", super::go_quote::GoQuoted(raw))
    }
}

/// Server of a path, which determines the rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathRules {
    /// An API server. The part after a `proxy` subresource is another server's path.
    KubeApiserver,
    /// A server that may serve resources, without `proxy` subresources.
    WithoutProxy,
    /// A server without resources.
    NonKubernetes,
}

/// Decodes `raw`. Fails if the path is ambiguous.
fn decode_unambiguous(raw: &str, server: PathRules) -> Result<String, PathProblem> {
    if raw.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(PathProblem::Control);
    }
    if !percent::is_well_formed(raw) {
        return Err(PathProblem::Escape);
    }
    let below = raw.strip_prefix('/').ok_or(PathProblem::Relative)?;
    let mut decoded = String::with_capacity(raw.len());
    let mut position = PathPosition::default();
    let mut problem_of_resources = None;
    let mut rest = Some(below);
    while let Some(text) = rest {
        decoded.push('/');
        if server == PathRules::KubeApiserver && position.is_proxied() {
            decoded.push_str(text);
            break;
        }
        let (segment, after) = text.split_once('/').map_or((text, None), |(segment, after)| (segment, Some(after)));
        rest = after;
        let segment = match percent::decode(segment) {
            Some(Ok(segment)) => segment,
            Some(Err(_)) => return Err(PathProblem::NotText),
            None => return Err(PathProblem::Escape),
        };
        if segment.chars().any(char::is_control) {
            return Err(PathProblem::Control);
        }
        if has_dots(&segment) || has_double_encoded_dots(&segment) {
            return Err(PathProblem::Dots);
        }
        if segment.contains('/') {
            problem_of_resources.get_or_insert(PathProblem::EncodedSlash);
        }
        if segment.is_empty() && after.is_some() {
            problem_of_resources.get_or_insert(PathProblem::EmptySegment);
        }
        position.advance(&segment);
        decoded.push_str(&segment);
    }
    // Checked on the decoded text, so that `//apis/…` and `/apis%2F…` count as resource paths.
    match problem_of_resources {
        Some(problem)
            if server != PathRules::NonKubernetes && matches!(segments(&decoded).next(), Some("api" | "apis")) =>
        {
            Err(problem)
        }
        _ => Ok(decoded),
    }
}

/// Whether some server finds a `.` or `..` in a decoded segment: Tomcat removes `;` and what follows, IIS treats a
/// backslash as a slash.
fn has_dots(segment: &str) -> bool {
    segment.split(['/', '\\']).any(|part| matches!(part.split(';').next(), Some("." | "..")))
}

/// Whether a server that decodes twice finds a `.` or `..` in a decoded segment.
fn has_double_encoded_dots(segment: &str) -> bool {
    segment.contains('%') && matches!(percent::decode(segment), Some(Ok(again)) if has_dots(&again))
}

/// Position in `prefix[/group]/version[/verb][/namespaces/ns]/resource/name/subresource`, to find a `proxy`
/// subresource. Follows the steps of [`RequestInfo`](super::RequestInfo).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PathPosition {
    #[default]
    Prefix,
    Group,
    Version,
    Verb,
    Resource {
        proxied: bool,
    },
    Namespace {
        proxied: bool,
    },
    NamespaceOrResource {
        proxied: bool,
    },
    Name {
        proxied: bool,
    },
    Subresource,
    Proxied,
    Elsewhere,
}

impl PathPosition {
    fn is_proxied(self) -> bool {
        self == PathPosition::Proxied
    }

    fn advance(&mut self, segment: &str) {
        *self = match (*self, segment) {
            (PathPosition::Prefix, "api") => PathPosition::Version,
            (PathPosition::Prefix, "apis") => PathPosition::Group,
            (PathPosition::Group, _) => PathPosition::Version,
            (PathPosition::Version, _) => PathPosition::Verb,
            (PathPosition::Verb, "proxy") => PathPosition::Resource { proxied: true },
            (PathPosition::Verb, "watch") => PathPosition::Resource { proxied: false },
            (PathPosition::Verb, "namespaces") => PathPosition::Namespace { proxied: false },
            (PathPosition::Verb, _) => PathPosition::Name { proxied: false },
            (PathPosition::Resource { proxied }, "namespaces") => PathPosition::Namespace { proxied },
            (PathPosition::Resource { proxied }, _) => PathPosition::Name { proxied },
            (PathPosition::Namespace { proxied }, _) => PathPosition::NamespaceOrResource { proxied },
            // `namespaces/x/status`: the namespace itself is the resource.
            (PathPosition::NamespaceOrResource { .. }, "status" | "finalize") => PathPosition::Elsewhere,
            (PathPosition::NamespaceOrResource { proxied }, _) => PathPosition::Name { proxied },
            (PathPosition::Name { proxied: true }, _) => PathPosition::Proxied,
            (PathPosition::Name { proxied: false }, _) => PathPosition::Subresource,
            (PathPosition::Subresource, "proxy") => PathPosition::Proxied,
            (PathPosition::Proxied, _) => PathPosition::Proxied,
            (PathPosition::Prefix | PathPosition::Subresource | PathPosition::Elsewhere, _) => PathPosition::Elsewhere,
        };
    }
}

/// The raw path if its segments are those of `decoded`, else `decoded` encoded again.
fn wire_form<'p>(raw: &'p str, decoded: &str) -> Cow<'p, str> {
    let same_segments =
        raw.bytes().filter(|byte| *byte == b'/').count() == decoded.bytes().filter(|byte| *byte == b'/').count();
    if !same_segments {
        let mut wire = String::with_capacity(raw.len());
        percent::encode_into(&mut wire, decoded, &PLAIN);
        return Cow::Owned(wire);
    }
    escaped_form(raw)
}

/// The raw path with its escapes, and with others where they are needed.
fn escaped_form(raw: &str) -> Cow<'_, str> {
    if raw.bytes().all(|byte| ON_THE_WIRE[usize::from(byte)]) {
        return Cow::Borrowed(raw);
    }
    let mut wire = String::with_capacity(raw.len() + 8);
    percent::encode_into(&mut wire, raw, &ON_THE_WIRE);
    Cow::Owned(wire)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(raw: &str) -> String {
        let status = CanonicalPath::parse(raw).unwrap_err();
        assert_eq!((status.code, status.reason), (400, "BadRequest"));
        status.message
    }

    #[test]
    fn path_ordinary_not_copied() {
        for raw in ["/", "/api/v1/pods/", "/apis/a.b/v1/namespaces/x/things/y:z@w~(1)", "/healthz", "/a;b=c"] {
            let path = CanonicalPath::parse(raw).unwrap();
            assert!(
                matches!((&path.decoded, &path.wire), (Cow::Borrowed(a), Cow::Borrowed(b)) if *a == raw && *b == raw)
            );
        }
        assert_eq!(CanonicalPath::parse("").unwrap().wire(), "/");
    }

    #[test]
    fn path_escapes_authorized_decoded_and_forwarded_raw() {
        for (raw, decoded) in [
            ("/apis/g/v1/things/%61%20b", "/apis/g/v1/things/a b"),
            ("/apis/g/v1/things/system%3anode", "/apis/g/v1/things/system:node"),
            ("/apis/g/v1/things/a%252Fb", "/apis/g/v1/things/a%2Fb"),
            ("/apis/g/v1/things/.hidden/..data", "/apis/g/v1/things/.hidden/..data"),
            ("/apis/g/v1/things/...", "/apis/g/v1/things/..."),
            ("//static//x/", "//static//x/"),
        ] {
            let path = CanonicalPath::parse(raw).unwrap();
            assert_eq!((path.decoded(), path.wire(), path.raw()), (decoded, raw, raw));
        }
        let path = CanonicalPath::parse("/apis/g/v1/things/é\"\\x").unwrap();
        assert_eq!(path.decoded(), "/apis/g/v1/things/é\"\\x");
        assert_eq!(path.wire(), "/apis/g/v1/things/%C3%A9%22%5Cx");
    }

    #[test]
    fn path_keeps_escaped_slashes_on_the_wire_if_told() {
        for (raw, decoded, wire) in [
            ("/repos/group%2Fproject/x%20y", "/repos/group/project/x y", "/repos/group%2Fproject/x%20y"),
            ("/a%2fé", "/a/é", "/a%2f%C3%A9"),
            ("/plain", "/plain", "/plain"),
        ] {
            let path = CanonicalPath::parse_without_proxy(raw).unwrap().keep_escaped_slashes();
            assert_eq!((path.decoded(), path.wire()), (decoded, wire));
        }
    }

    #[test]
    fn path_trailing_slash_makes_no_segment() {
        for raw in ["/apis", "/apis/", "/%61pis/"] {
            assert_eq!(CanonicalPath::parse(raw).unwrap().segments().collect::<Vec<_>>(), ["apis"]);
        }
        assert_eq!(CanonicalPath::parse("/").unwrap().segments().count(), 0);
    }

    /// Pitfall 20: ambiguous resource paths are refused.
    #[test]
    fn path_encoded_slashes_and_empty_segments_of_resources_refused() {
        for raw in [
            "/apis/g/v1/things/a%2Fb",
            "/apis/g/v1/things/a%2fb",
            "/apis%2Fg/v1/things",
            "/api%2fv1",
            "/%2Fapi/v1/pods",
            "/apis/g%2Fv1/things",
        ] {
            assert!(
                problem(raw).ends_with("it contains a percent-encoded slash, which cannot be part of a name"),
                "{raw}"
            );
        }
        for raw in ["/apis//g/v1", "//api/v1/pods", "/apis//", "/api/v1//pods", "/api/v1/namespaces//pods", "///apis"] {
            assert!(problem(raw).ends_with("it contains an empty segment"), "{raw}");
        }
    }

    /// Pitfall 20, for every path.
    #[test]
    fn path_dot_segments_refused() {
        for raw in [
            "/apis/g/v1/../v2/things",
            "/apis/g/v1/./things",
            "/apis/g/v1/%2e%2E/v2",
            "/apis/g/v1/.%2e",
            "/openapi/../apis/g/v1/things",
            "/x%2F..%2Fapis/g/v1/things",
            "/..",
            "/.",
            "/x/..;/y",
            "/x/.;a=b/y",
            "/x/..%5cy",
            "/x/a%5C..%5cy",
            "/x/%252e%252e/y",
            "/x/..%252fy",
            "/x/%2e%2E%3by",
        ] {
            assert!(problem(raw).ends_with("it contains a . or .. segment, plain or encoded"), "{raw}");
        }
    }

    #[test]
    fn path_control_characters_and_malformed_escapes_refused() {
        for raw in ["/a%00b", "/a\0b", "/a%0d%0ab", "/a\nb", "/apis/g/v1/things/%7F", "/a%C2%85"] {
            assert!(problem(raw).ends_with("it contains a control character"), "{raw:?}");
        }
        for raw in ["/a%", "/a%2", "/a%zz", "/a%%20"] {
            assert!(problem(raw).contains("two hexadecimal digits"), "{raw}");
        }
        assert!(problem("/a%ff").contains("UTF-8"));
        assert!(problem("api/v1").contains("does not begin with a slash"));
        assert!(problem("*").contains("does not begin with a slash"));
    }

    #[test]
    fn path_encoded_slash_outside_resources_forwarded_decoded() {
        let path = CanonicalPath::parse("/static/a%2Fb%20c").unwrap();
        assert_eq!((path.decoded(), path.wire()), ("/static/a/b c", "/static/a/b%20c"));
    }

    #[test]
    fn path_after_proxy_subresource_untouched() {
        for raw in [
            "/api/v1/namespaces/x/services/https:y:443/proxy/a%2Fb/../c//d/%2e%2e/%00",
            "/api/v1/nodes/n/proxy//",
            "/api/v1/%6eodes/n/pro%78y/../x",
            "/apis/g/v1/namespaces/x/things/y/proxy/..",
            "/api/v1/proxy/namespaces/x/pods/y/a%2Fb/..",
            "/api/v1/proxy/nodes/y/..",
        ] {
            let path = CanonicalPath::parse(raw).unwrap();
            assert_eq!(path.wire(), raw);
            assert!(CanonicalPath::parse_without_proxy(raw).is_err(), "{raw}");
        }
        let path = CanonicalPath::parse_without_proxy("/api/v1/nodes/n/proxy/a%20b").unwrap();
        assert_eq!((path.decoded(), path.wire()), ("/api/v1/nodes/n/proxy/a b", "/api/v1/nodes/n/proxy/a%20b"));
        for raw in [
            "/api/v1/namespaces/x/services/proxy/a%2Fb",
            "/api/v1/namespaces/x/proxy/a/../b",
            "/api/v1/proxy/nodes/../y",
            "/api/v1/nodes/n/status/proxy/../x",
            "/api/v1/namespaces/x/status/proxy/../x",
            "/api/v1/watch/nodes/n/../proxy/x",
            "/openapi/v1/nodes/n/proxy/../x",
            "/api/v1/nodes/n/proxy/a\nb",
            "/api/v1/nodes/n/proxy/%zz",
        ] {
            assert!(CanonicalPath::parse(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn path_of_non_kubernetes_server_fully_checked() {
        let read = |raw| {
            CanonicalPath::parse_non_kubernetes(raw).map(|path| (path.decoded().to_owned(), path.wire().to_owned()))
        };
        for (raw, decoded, wire) in [
            ("/api/v1/label/a%2Fb/values", "/api/v1/label/a/b/values", "/api/v1/label/a/b/values"),
            ("/api/v1//query", "/api/v1//query", "/api/v1//query"),
            ("/api/v1/nodes/n/proxy/%61", "/api/v1/nodes/n/proxy/a", "/api/v1/nodes/n/proxy/%61"),
            ("/metrics", "/metrics", "/metrics"),
        ] {
            assert_eq!(read(raw), Ok((decoded.to_owned(), wire.to_owned())), "{raw}");
        }
        for raw in ["/api/v1/nodes/n/proxy/..", "/api/v1/proxy/nodes/y/%2e%2e", "/a%zz", "*", "/x/a%2F..%2Fb"] {
            assert!(read(raw).is_err(), "{raw}");
        }
    }

    proptest! {
        #[test]
        fn decoding_what_is_forwarded_gives_what_was_judged(raw in "/(apis?/|x)?[a-c./%2Feé]{0,24}") {
            if let Ok(path) = CanonicalPath::parse(&raw) {
                prop_assert!(path.wire().is_ascii());
                let again = CanonicalPath::parse(path.wire()).unwrap();
                prop_assert_eq!(again.decoded(), path.decoded());
                prop_assert_eq!(again.wire(), path.wire());
            }
        }
    }
}
