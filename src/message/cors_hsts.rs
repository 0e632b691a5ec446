//! Response headers for browsers: cross-origin resource sharing (CORS) and strict transport security (HSTS).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN, STRICT_TRANSPORT_SECURITY, VARY,
};
use http::{HeaderMap, HeaderValue};
use regex::{Regex, RegexSet};

/// Allowed methods, as in `k8s.io/apiserver/pkg/server/filters/cors.go`.
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE, PATCH");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
);
/// `Date` as in Kubernetes, and headers that are useful for debugging and retries.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("Date, Audit-Id, Retry-After, Warning");

/// The allowed origins, and the HSTS header.
#[derive(Clone, Debug)]
pub struct BrowserPolicy {
    /// Allowed origins; none if CORS is disabled.
    origins: Option<RegexSet>,
    transport_security: Option<HeaderValue>,
}

/// An allowed origin of a request.
#[derive(Clone, Debug)]
pub struct AllowedOrigin(HeaderValue);

impl BrowserPolicy {
    /// Creates the headers of `--cors-allowed-origins`, checked by [`check_cors_origin`], and
    /// `--strict-transport-security-directives`, checked by [`check_hsts_directive`]; none if both are empty.
    ///
    /// # Errors
    /// When the expressions together are too large.
    pub fn new(origins: &[String], directives: &[String]) -> Result<Option<BrowserPolicy>, regex::Error> {
        let origins = if origins.is_empty() { None } else { Some(RegexSet::new(origins)?) };
        let transport_security = if directives.is_empty() { None } else { directives.join("; ").parse().ok() };
        let any = origins.is_some() || transport_security.is_some();
        Ok(any.then_some(BrowserPolicy { origins, transport_security }))
    }

    /// Returns the origin of a request, if it is allowed. A request with several `Origin` headers is not a browser's.
    pub fn allowed_origin(&self, request: &HeaderMap) -> Option<AllowedOrigin> {
        let origins = self.origins.as_ref()?;
        let mut origin_headers = request.get_all(ORIGIN).iter();
        let origin = origin_headers.next().filter(|_| origin_headers.next().is_none())?;
        origins.is_match(origin.to_str().ok()?).then(|| AllowedOrigin(origin.clone()))
    }

    /// Adds the headers to any response; a page may read refusals, too.
    pub fn add_headers(&self, answer: &mut HeaderMap, origin: Option<AllowedOrigin>) {
        if self.origins.is_some() {
            // On every response: a cache must not serve it to a page of another origin.
            answer.append(VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(AllowedOrigin(origin)) = origin {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            answer.insert(ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
            answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
            answer.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        if let Some(directives) = &self.transport_security {
            answer.insert(STRICT_TRANSPORT_SECURITY, directives.clone());
        }
    }
}

impl PartialEq for BrowserPolicy {
    fn eq(&self, other: &BrowserPolicy) -> bool {
        let patterns = |browsers: &BrowserPolicy| browsers.origins.as_ref().map(|set| set.patterns().to_vec());
        patterns(self) == patterns(other) && self.transport_security == other.transport_security
    }
}

/// Checks an expression of `--cors-allowed-origins`: it must be anchored at both ends of the host. Otherwise
/// `example.com` would also allow `example.com.evil.org` (CVE-2022-1996; `validateCorsAllowedOriginList`).
///
/// # Errors
/// Why it is invalid.
pub fn check_cors_origin(expression: &str) -> Result<(), String> {
    if expression.is_empty() {
        return Err("an empty expression allows every origin".to_owned());
    }
    Regex::new(expression).map_err(|error| format!("{expression:?}: {error}"))?;
    let begins = ["^", "//"].iter().any(|mark| expression.contains(mark));
    let ends = ["$", ":"].iter().any(|mark| expression.contains(mark));
    // The colon after the scheme does not end the host; Kubernetes accepts it.
    if begins && ends && (expression.contains('$') || expression.replace("://", "").contains(':')) {
        return Ok(());
    }
    Err(format!(
        "{expression:?} is not anchored at both ends of the host; begin it with ^ or // and end it with $ or a port, \
         as in ^https://example\\.com(:|$)"
    ))
}

/// Checks a directive of `--strict-transport-security-directives` (`validateHSTSDirectives`).
///
/// # Errors
/// The allowed directives.
pub fn check_hsts_directive(directive: &str) -> Result<(), String> {
    let age = |age: &str| !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit());
    if matches!(directive, "includeSubDomains" | "preload") || directive.strip_prefix("max-age=").is_some_and(age) {
        return Ok(());
    }
    Err(format!("{directive:?} is not a valid directive; use max-age=SECONDS, includeSubDomains or preload"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn asking(origins: &[&'static str]) -> HeaderMap {
        origins.iter().map(|origin| (ORIGIN, HeaderValue::from_static(origin))).collect()
    }

    #[test]
    fn cors_origins_match_like_kube_apiserver() {
        let browsers =
            BrowserPolicy::new(&list(&["^https://example\\.com(:|$)", "//localhost:"]), &[]).unwrap().unwrap();
        let cases: [(&[&str], bool); 9] = [
            (&["https://example.com"], true),
            (&["https://example.com:8443"], true),
            (&["http://localhost:3000"], true),
            (&["http://localhost"], false),
            (&["http://example.com"], false),
            (&["https://example.com.evil.org"], false),
            (&["null"], false),
            (&["https://example.com", "https://example.com"], false),
            (&[], false),
        ];
        for (origins, allowed) in cases {
            assert_eq!(browsers.allowed_origin(&asking(origins)).is_some(), allowed, "{origins:?}");
        }
    }

    #[test]
    fn cors_expressions_must_be_anchored_to_host() {
        for good in ["//example\\.com(:|$)", "^https://example\\.com(:|$)", "^https://x$", "//x:8080"] {
            assert_eq!(check_cors_origin(good), Ok(()), "{good}");
        }
        for bad in ["", "example.com", "//example.com", "example.com$", "https://example.com", "^//(", ".*"] {
            assert!(check_cors_origin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hsts_directives_validated() {
        for good in ["max-age=31536000", "includeSubDomains", "preload"] {
            assert_eq!(check_hsts_directive(good), Ok(()), "{good}");
        }
        for bad in ["", " ", "max-age", "max-age=", "max-age=x", "max-age=1=2", "includesubdomains", "preload\r\n"] {
            assert!(check_hsts_directive(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn cors_and_hsts_headers_added_to_responses() {
        assert!(BrowserPolicy::new(&[], &[]).unwrap().is_none());
        let browsers = BrowserPolicy::new(&[], &list(&["max-age=5", "preload"])).unwrap().unwrap();
        let mut answer = HeaderMap::new();
        browsers.add_headers(&mut answer, browsers.allowed_origin(&asking(&["https://a"])));
        assert_eq!((answer.len(), &answer[STRICT_TRANSPORT_SECURITY]), (1, &"max-age=5; preload".parse().unwrap()));

        let browsers = BrowserPolicy::new(&list(&["^https://a$"]), &[]).unwrap().unwrap();
        let mut other = HeaderMap::new();
        browsers.add_headers(&mut other, browsers.allowed_origin(&asking(&["https://b"])));
        assert_eq!((other.len(), &other[VARY]), (1, &HeaderValue::from_static("Origin")));
        let mut allowed = HeaderMap::new();
        allowed.insert(VARY, HeaderValue::from_static("Accept"));
        browsers.add_headers(&mut allowed, browsers.allowed_origin(&asking(&["https://a"])));
        assert_eq!(allowed[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a");
        assert_eq!(allowed.get_all(VARY).iter().count(), 2);
    }
}
