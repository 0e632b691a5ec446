//! Who may ask for what: the patterns of the operator, and what a browser says of the page that asks.

use http::header::ORIGIN;
use http::{HeaderMap, Method};
use regex::bytes::Regex;

use crate::config::proxy::Patterns;

/// Whether a request is served. `path` is decoded, `host` is what the client calls us.
///
/// The order and the meaning are those of `kubectl proxy` (`k8s.io/kubectl/pkg/proxy/proxy_server.go`); the pages of
/// others are kept out in addition, because a browser sends what they ask for with whatever name we have.
pub(super) fn accepts(patterns: &Patterns, method: &Method, path: &[u8], host: &str, headers: &HeaderMap) -> bool {
    !finds(&patterns.reject_paths, path)
        && !finds(&patterns.reject_methods, method.as_str().as_bytes())
        && finds(&patterns.accept_paths, path)
        && is_ours(patterns, host)
        && is_from_us(patterns, method, headers)
}

/// Whether `host`, whatever port behind it, is a name of ours.
fn is_ours(patterns: &Patterns, host: &str) -> bool {
    let name = without_port(host);
    // kubectl's own default says `^\[::1\]$` and is then asked for `::1`: both spellings count here.
    finds(&patterns.accept_hosts, name.as_bytes())
        || name.contains(':') && finds(&patterns.accept_hosts, format!("[{name}]").as_bytes())
}

/// Whether the page that a browser asks for, if it is one, is one of ours.
fn is_from_us(patterns: &Patterns, method: &Method, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    if let Some(origin) = origins.next() {
        // A page without an origin of its own (`null`) is nobody's.
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        return origins.next().is_none() && host.is_some_and(|host| is_ours(patterns, host));
    }
    let says = |name, word: &str| headers.get(name).is_some_and(|value| value.as_bytes() == word.as_bytes());
    let follows_a_link = matches!(*method, Method::GET | Method::HEAD) && says("sec-fetch-mode", "navigate");
    // What needs no permission to be sent (pictures, scripts, forms) comes without an origin.
    !says("sec-fetch-site", "cross-site") || follows_a_link && says("sec-fetch-dest", "document")
}

fn finds(patterns: &[Regex], text: &[u8]) -> bool {
    patterns.iter().any(|pattern| pattern.is_match(text))
}

/// As Go's `net.SplitHostPort`, which loses the brackets of an address with a port and keeps them without one; but what
/// is no number is no port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some((name, _)) if name.starts_with('[') && name.ends_with(']') => &name[1..name.len() - 1],
        Some((name, _)) if !name.contains([':', '[', ']']) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn patterns(hosts: &[&str], accept: &str, reject: &[&str], methods: &str) -> Patterns {
        let of = |texts: &[&str]| texts.iter().map(|text| Regex::new(text).unwrap()).collect();
        Patterns {
            accept_hosts: of(hosts),
            accept_paths: of(&[accept]),
            reject_paths: of(reject),
            reject_methods: of(&[methods]),
        }
    }

    fn usual() -> Patterns {
        let exec = ["^/api/.*/pods/.*/exec", "^/api/.*/pods/.*/attach"];
        patterns(&["^localhost$", r"^127\.0\.0\.1$", r"^\[::1\]$"], "^.*", &exec, "^$")
    }

    fn get(path: &str, host: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        accepts(&usual(), &Method::GET, path.as_bytes(), host, &headers.collect())
    }

    #[test]
    fn names_of_this_machine_and_no_others() {
        for host in ["localhost", "localhost:9999", "127.0.0.1:8001", "[::1]:8001", "[::1]"] {
            assert!(get("/api", host, &[]), "{host}");
        }
        for host in [
            "",
            "example.com",
            "example.com:8001",
            "localhost.example.com",
            "LOCALHOST",
            "127.0.0.2",
            "a:b:c",
            "localhost:x",
        ] {
            assert!(!get("/api", host, &[]), "{host}");
        }
    }

    #[test]
    fn pages_of_others_may_not_ask() {
        for headers in [
            &[("origin", "http://localhost:8001")][..],
            &[("origin", "http://127.0.0.1:3000"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://[::1]:8001")],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
        ] {
            assert!(get("/api", "localhost:8001", headers), "{headers:?}");
        }
        for headers in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "")],
            &[("origin", "http://localhost.evil.example:8001")],
            &[("origin", "http://localhost"), ("origin", "http://evil.example")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
        ] {
            assert!(!get("/api", "localhost:8001", headers), "{headers:?}");
        }
    }

    #[test]
    fn what_is_rejected_stands_over_what_is_accepted() {
        assert!(!get("/api/v1/namespaces/a/pods/b/exec", "localhost", &[]));
        assert!(get("/api/v1/namespaces/a/pods/b/log", "localhost", &[]));
        let strict = patterns(&["."], "^/api/", &["secret"], "^(POST|PUT)$");
        for (method, path, expected) in [
            (Method::GET, &b"/api/v1/pods"[..], true),
            (Method::GET, b"/apis", false),
            (Method::GET, b"/api/v1/secrets", false),
            (Method::POST, b"/api/v1/pods", false),
            (Method::DELETE, b"/api/\xff", true),
        ] {
            assert_eq!(accepts(&strict, &method, path, "h", &HeaderMap::new()), expected, "{method} {path:?}");
        }
    }
}
