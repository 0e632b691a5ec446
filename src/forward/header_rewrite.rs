//! Rewrites request and response headers.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, COOKIE, HOST, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::message::{AllowedHeaders, hop_by_hop};

/// Removes client headers that no backend gets: hop-by-hop headers and Host.
///
/// Cookies are secrets of the client for this origin and are removed unless the backend owns it (`owns_origin`);
/// `Authorization` was removed by authentication. Claims that only a trusted proxy in front may make are removed unless
/// `allowed`.
pub(super) fn clean(headers: &mut HeaderMap, owns_origin: bool, allowed: &AllowedHeaders) {
    hop_by_hop::strip_request(headers, |name| {
        HOST == name
            || hop_by_hop::is_untrusted_request_header(name) && !(owns_origin && COOKIE == name)
            || hop_by_hop::is_proxy_identity_header(name) && !allowed.allows(name)
    });
}

/// Which headers and trailers of a backend's responses reach clients.
///
/// Headers that act on the whole origin are removed, because the origin serves other backends, too: cookies, HSTS,
/// alternative services, authentication schemes, cross-origin rights. A backend that owns its origin keeps all but
/// hop-by-hop headers.
#[derive(Debug)]
pub(super) struct ResponseHeaderPolicy {
    pub(super) owns_origin: bool,
    /// Headers allowed although they act on the origin.
    pub(super) allowed: AllowedHeaders,
}

impl ResponseHeaderPolicy {
    fn removes(&self, name: &str) -> bool {
        !self.owns_origin && hop_by_hop::is_untrusted_response_header(name) && !self.allowed.allows(name)
    }

    /// Applies the policy to response headers.
    pub(super) fn apply(&self, status: StatusCode, headers: &mut HeaderMap) {
        hop_by_hop::strip_response(headers, |name| self.removes(name));
        // RFC 9110, section 8.6. A 304 may state the length of the body that it omits.
        if status == StatusCode::NO_CONTENT {
            headers.remove(CONTENT_LENGTH);
        }
        if self.owns_origin {
            return;
        }
        if !headers.contains_key(CACHE_CONTROL) {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        }
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }

    /// Applies the policy to trailers, which are restricted further than headers.
    pub(super) fn apply_to_trailers(&self, trailers: &mut HeaderMap) {
        hop_by_hop::strip_trailers(trailers);
        hop_by_hop::remove_where(trailers, |name| self.removes(name));
    }
}

/// Copies the values of `headers` to a buffer of their own.
///
/// They are slices of the read buffer, 8 KiB or more, and HPACK keeps values for the lifetime of the client's
/// connection: each watch would hold such a buffer, a busy connection dozens.
pub(super) fn compact_values(headers: &mut HeaderMap) {
    let mut all = Vec::with_capacity(headers.values().map(HeaderValue::len).sum());
    headers.values().for_each(|value| all.extend_from_slice(value.as_bytes()));
    let mut rest = Bytes::from(all);
    for value in headers.values_mut() {
        let moved = rest.split_to(value.len());
        // The bytes were a valid value before; otherwise the old value would stay.
        if let Ok(mut moved) = HeaderValue::from_maybe_shared(moved) {
            moved.set_sensitive(value.is_sensitive());
            *value = moved;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn header_rewrite_compact_keeps_values() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("a", "1"), ("b", ""), ("a", "\u{e9}2"), ("content-type", "application/json"), ("a", "3")]
        {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers.get_mut("content-type").unwrap().set_sensitive(true);
        let before = headers.clone();
        compact_values(&mut headers);
        assert_eq!(headers, before);
        assert!(headers["content-type"].is_sensitive());
        assert!(!headers["a"].is_sensitive());
    }

    #[test]
    fn header_rewrite_cookies_only_to_origin_owner() {
        let sent = |owns_origin| {
            let mut headers = HeaderMap::new();
            for name in ["cookie", "host", "x-forwarded-client-cert", "connection", "accept"] {
                headers.insert(name, HeaderValue::from_static("x"));
            }
            clean(&mut headers, owns_origin, &AllowedHeaders::default());
            let mut names: Vec<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(sent(false), ["accept"]);
        assert_eq!(sent(true), ["accept", "cookie"]);
    }

    #[test]
    fn header_rewrite_response_strips_origin_wide_headers() {
        let mut headers = HeaderMap::new();
        for name in ["set-cookie", "strict-transport-security", "access-control-allow-origin", "alt-svc", "connection"]
        {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        headers.insert("warning", HeaderValue::from_static("299 - \"old\""));
        let mut own = headers.clone();
        let all = ResponseHeaderPolicy { owns_origin: true, allowed: AllowedHeaders::default() };
        all.apply(StatusCode::OK, &mut own);
        assert_eq!((own.len(), own.contains_key("connection")), (headers.len() - 1, false));
        let sorted = |headers: &HeaderMap| {
            let mut names: Vec<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
            names.sort_unstable();
            names
        };
        let mut some = headers.clone();
        let allowed = AllowedHeaders::Only(vec![HeaderName::from_static("alt-svc")]);
        let none = ResponseHeaderPolicy { owns_origin: false, allowed: AllowedHeaders::default() };
        ResponseHeaderPolicy { owns_origin: false, allowed }.apply(StatusCode::OK, &mut some);
        none.apply(StatusCode::OK, &mut headers);
        assert_eq!(sorted(&headers), ["cache-control", "warning", "x-content-type-options"]);
        assert_eq!(sorted(&some), ["alt-svc", "cache-control", "warning", "x-content-type-options"]);
    }

    #[test]
    fn header_rewrite_removes_content_length_of_204() {
        let own = ResponseHeaderPolicy { owns_origin: true, allowed: AllowedHeaders::default() };
        for (status, kept) in [(204, false), (200, true), (304, true)] {
            let mut headers = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static("5"))]);
            own.apply(StatusCode::from_u16(status).unwrap(), &mut headers);
            assert_eq!(headers.contains_key(CONTENT_LENGTH), kept, "{status}");
        }
    }
}
