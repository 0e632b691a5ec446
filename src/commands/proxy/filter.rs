//! Request filters: the patterns of the flags, and protection against cross-origin requests of browsers.

use std::fmt;

use http::header::ORIGIN;
use http::{HeaderMap, HeaderValue, Method};
use regex::bytes::Regex;

use crate::config::proxy::RequestFilter;

/// The filter that rejected a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterDenial {
    /// The path matches a pattern of `--reject-paths`.
    RejectPaths(String),
    /// The method matches a pattern of `--reject-methods`.
    RejectMethods(String),
    /// The path matches no pattern of `--accept-paths`.
    AcceptPaths,
    /// The host matches no pattern of `--accept-hosts`.
    AcceptHosts(String),
    /// A web page of another origin sent the request. kubectl has no such filter.
    CrossOrigin,
}

impl fmt::Display for FilterDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterDenial::RejectPaths(pattern) => write!(f, "--reject-paths: the path matches {pattern}"),
            FilterDenial::RejectMethods(pattern) => write!(f, "--reject-methods: the method matches {pattern}"),
            FilterDenial::AcceptPaths => f.write_str("--accept-paths: no pattern matches the path"),
            FilterDenial::AcceptHosts(host) => write!(f, "--accept-hosts: no pattern matches the host {host:?}"),
            FilterDenial::CrossOrigin => {
                f.write_str("cross-origin request: only pages with the requested host and port as origin are allowed")
            }
        }
    }
}

/// Applies the filters. `path` is decoded, `host` is the requested host.
///
/// Order and meaning are those of `kubectl proxy` (`k8s.io/kubectl/pkg/proxy/proxy_server.go`). In addition, requests
/// of web pages of other origins are rejected, because a browser sends them to any name that resolves to the proxy.
pub(super) fn check(
    patterns: &RequestFilter,
    method: &Method,
    path: &[u8],
    host: &str,
    headers: &HeaderMap,
) -> Result<(), FilterDenial> {
    if let Some(pattern) = first_match(&patterns.reject_paths, path) {
        return Err(FilterDenial::RejectPaths(pattern.to_string()));
    }
    if let Some(pattern) = first_match(&patterns.reject_methods, method.as_str().as_bytes()) {
        return Err(FilterDenial::RejectMethods(pattern.to_string()));
    }
    if !any_matches(&patterns.accept_paths, path) {
        return Err(FilterDenial::AcceptPaths);
    }
    if !accepts_host(patterns, host) {
        return Err(FilterDenial::AcceptHosts(without_port(host).to_owned()));
    }
    if !is_same_origin(patterns, method, host, headers) {
        return Err(FilterDenial::CrossOrigin);
    }
    Ok(())
}

/// Whether `host`, without its port, matches `--accept-hosts`.
fn accepts_host(patterns: &RequestFilter, host: &str) -> bool {
    let name = without_port(host);
    // kubectl's default is `^\[::1\]$`, but it matches against `::1`: both spellings are accepted here.
    any_matches(&patterns.accept_hosts, name.as_bytes())
        || name.contains(':') && any_matches(&patterns.accept_hosts, format!("[{name}]").as_bytes())
}

/// Whether the request is not from a web page, or from one with the requested host and port as origin. Another port is
/// another origin.
fn is_same_origin(patterns: &RequestFilter, method: &Method, host: &str, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (None, _) => None,
        // A page with the opaque origin `null` is rejected.
        (Some(origin), None) => match origin.to_str().ok().and_then(|origin| origin.split_once("://")) {
            Some((_, origin_host)) => Some(origin_host),
            None => return false,
        },
        (Some(_), Some(_)) => return false,
    };
    match fetch_site(headers) {
        FetchSite::NoPage => origin.is_none_or(|origin_host| origin_host == host),
        // A development server that serves the page and forwards its requests has another port or accepted name.
        FetchSite::SameOrigin => {
            origin.is_none_or(|origin_host| origin_host == host || accepts_host(patterns, origin_host))
        }
        // Requests that need no CORS permission (images, scripts, forms) have no Origin header.
        FetchSite::CrossOrigin => origin.is_none() && is_navigation(method, headers),
    }
}

/// The header `Sec-Fetch-Site` (Fetch Metadata), which browsers set and pages cannot.
enum FetchSite {
    /// `none`, or the header is absent.
    NoPage,
    /// The page has the origin of the requested server.
    SameOrigin,
    CrossOrigin,
}

fn fetch_site(headers: &HeaderMap) -> FetchSite {
    let mut values = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
    match (values.next(), values.next()) {
        (None | Some(b"none"), None) => FetchSite::NoPage,
        (Some(b"same-origin"), None) => FetchSite::SameOrigin,
        _ => FetchSite::CrossOrigin,
    }
}

/// Whether the request is a top-level navigation, for example by a link: the linking page cannot read the response.
fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    let says = |name, word: &str| headers.get(name).is_some_and(|value| value.as_bytes() == word.as_bytes());
    matches!(*method, Method::GET | Method::HEAD)
        && says("sec-fetch-mode", "navigate")
        && says("sec-fetch-dest", "document")
}

fn any_matches(patterns: &[Regex], text: &[u8]) -> bool {
    first_match(patterns, text).is_some()
}

/// The first pattern that matches.
fn first_match<'p>(patterns: &'p [Regex], text: &[u8]) -> Option<&'p Regex> {
    patterns.iter().find(|pattern| pattern.is_match(text))
}

/// The host without its port, as Go's `net.SplitHostPort`: removes the brackets of an address with a port and keeps
/// them without one. Differs from Go in that a port must be a number.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some((name, _)) if name.starts_with('[') && name.ends_with(']') => &name[1..name.len() - 1],
        Some((name, _)) if !name.contains([':', '[', ']']) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(hosts: &[&str], accept: &str, reject: &[&str], methods: &str) -> RequestFilter {
        let of = |texts: &[&str]| texts.iter().map(|text| Regex::new(text).unwrap()).collect();
        RequestFilter {
            accept_hosts: of(hosts),
            accept_paths: of(&[accept]),
            reject_paths: of(reject),
            reject_methods: of(&[methods]),
        }
    }

    fn usual() -> RequestFilter {
        let exec = ["^/api/.*/pods/.*/exec", "^/api/.*/pods/.*/attach"];
        patterns(&["^localhost$", r"^127\.0\.0\.1$", r"^\[::1\]$"], "^.*", &exec, "^$")
    }

    fn get(path: &str, host: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        check(&usual(), &Method::GET, path.as_bytes(), host, &headers.collect()).is_ok()
    }

    #[test]
    fn accept_hosts_default_allows_loopback_only() {
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
    fn cross_origin_requests_denied() {
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        for headers in [
            &[("origin", "http://localhost:8001")][..],
            &[("origin", "http://localhost:8001"), ("sec-fetch-site", "same-origin")],
            // Forwarded by a development server.
            &[("origin", "http://127.0.0.1:3000"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "cross-site"), link[0], link[1]],
            &[("sec-fetch-site", "same-site"), link[0], link[1]],
        ] {
            assert!(get("/api", "localhost:8001", headers), "{headers:?}");
        }
        for headers in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "")],
            &[("origin", "http://localhost.evil.example:8001")],
            &[("origin", "http://localhost:8001"), ("origin", "http://evil.example")],
            &[("origin", "http://localhost")],
            &[("origin", "http://localhost:3000")],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            &[("origin", "http://127.0.0.1:8001")],
            &[("origin", "http://127.0.0.1:8001"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "cross-site"), link[0], ("sec-fetch-dest", "iframe")],
            &[("origin", "http://evil.example"), ("sec-fetch-site", "cross-site"), link[0], link[1]],
        ] {
            assert!(!get("/api", "localhost:8001", headers), "{headers:?}");
        }
    }

    #[test]
    fn cross_origin_requests_denied_with_any_accept_hosts() {
        let any = patterns(&[".*"], ".*", &["^$"], "^$");
        let asked = |host: &str, headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            check(&any, &Method::POST, b"/api", host, &headers.collect()).is_ok()
        };
        assert!(asked("rebind.evil.example", &[]));
        assert!(asked("proxy.example:8001", &[("origin", "http://proxy.example:8001")]));
        assert!(!asked("proxy.example:8001", &[("origin", "http://evil.example")]));
        let said = [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")];
        assert!(!asked("rebind.evil.example", &said) && !asked("evil.example", &said));
    }

    #[test]
    fn reject_paths_override_accept_paths() {
        assert!(!get("/api/v1/namespaces/a/pods/b/exec", "localhost", &[]));
        assert!(get("/api/v1/namespaces/a/pods/b/log", "localhost", &[]));
        let strict = patterns(&["."], "^/api/", &["secret"], "^(POST|PUT)$");
        for (method, path, expected) in [
            (Method::GET, &b"/api/v1/pods"[..], Ok(())),
            (Method::GET, b"/apis", Err(FilterDenial::AcceptPaths)),
            (Method::GET, b"/api/v1/secrets", Err(FilterDenial::RejectPaths("secret".to_owned()))),
            (Method::POST, b"/api/v1/pods", Err(FilterDenial::RejectMethods("^(POST|PUT)$".to_owned()))),
            (Method::DELETE, b"/api/\xff", Ok(())),
        ] {
            assert_eq!(check(&strict, &method, path, "h", &HeaderMap::new()), expected, "{method} {path:?}");
        }
    }
}
