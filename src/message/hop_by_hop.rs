//! Hop-by-hop headers (RFC 9110 §7.6.1), upgrades, and headers that backends and clients must not set.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, HeaderValue, TE, UPGRADE};

/// Removes the hop-by-hop headers of a request (those named by `Connection` and the fixed list of Go's `ReverseProxy`),
/// and every header for which `also` returns true. `TE: trailers` stays, because trailers are relayed.
///
/// Identity headers are added afterwards, so that a client's `Connection: X-Remote-Group` cannot remove them. `Trailer`
/// stays: it is not hop-by-hop in RFC 9110, and on HTTP/1.1 hyper only sends trailers that it names.
pub fn strip_request(headers: &mut HeaderMap, also: impl Fn(&str) -> bool) {
    let Some(trailers) = strip_hop_by_hop(headers, also) else { return };
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes the hop-by-hop headers of a response, and every header for which `also` returns true.
pub fn strip_response(headers: &mut HeaderMap, also: impl Fn(&str) -> bool) {
    strip_hop_by_hop(headers, also);
}

/// Whether a response header or trailer of an aggregated backend affects the origin that all APIs share, or a proxy in
/// front of the gateway: CORS (Kubernetes removes it, too), cookies, authentication challenges, HSTS, service workers,
/// reporting, files for a proxy to send. Not used for a backend that owns its origin.
pub fn is_untrusted_response_header(name: &str) -> bool {
    // By first letter: this runs for every header of every response.
    match name.as_bytes().first() {
        Some(b'a') => {
            name.starts_with("access-control-")
                || name == "alt-svc"
                || matches!(name, "accept-ch" | "accept-ch-lifetime")
        }
        Some(b'c') => matches!(name, "clear-site-data" | "critical-ch") || name.starts_with("cross-origin-"),
        Some(b'e') => name == "expect-ct",
        Some(b'n') => name == "nel",
        Some(b'o') => matches!(name, "origin-agent-cluster" | "origin-trial"),
        Some(b'p') => matches!(name, "public-key-pins" | "public-key-pins-report-only"),
        Some(b'r') => matches!(name, "report-to" | "reporting-endpoints"),
        Some(b's') => matches!(
            name,
            "service-worker-allowed"
                | "set-cookie"
                | "set-cookie2"
                | "set-login"
                | "strict-transport-security"
                | "surrogate-control"
        ),
        Some(b't') => name == "timing-allow-origin",
        Some(b'u') => name == "use-as-dictionary",
        Some(b'w') => name == "www-authenticate",
        // A backend may control whether nginx buffers its response.
        Some(b'x') => {
            name.starts_with("x-accel-") && name != "x-accel-buffering"
                || name.starts_with("x-lighttpd-send-")
                || matches!(name, "x-sendfile" | "x-litespeed-location" | "x-reproxy-url")
        }
        _ => false,
    }
}

/// Whether a request header names the user or the client address, like headers of a reverse proxy: `X-Forwarded-User`,
/// `X-Auth-Request-*`, `Remote-*`, `X-Real-Ip`, `Forwarded` and similar, and those of cloud proxies (Google IAP, Amazon
/// ALB, Azure App Service, Cloudflare Access). Headers that the gateway sets itself (`X-Remote-*`, `X-Forwarded-For`)
/// are not included. Any character except letters and digits counts as `-`.
pub fn is_proxy_identity_header(name: &str) -> bool {
    // By first letter: this runs for every header of every request.
    match name.as_bytes().first() {
        Some(b'c') => is_normalized_name(name, "cf-connecting-ip") || has_normalized_prefix(name, "cf-access-"),
        Some(b'f') => name == "forwarded",
        Some(b'r') => has_normalized_prefix(name, "remote-"),
        Some(b't') => is_normalized_name(name, "true-client-ip"),
        Some(b'x') => match name.as_bytes().get(2) {
            Some(b'a') => {
                has_normalized_prefix(name, "x-auth-request-")
                    || has_normalized_prefix(name, "x-authenticated-")
                    || has_normalized_prefix(name, "x-amzn-oidc-")
            }
            Some(b'c') => is_normalized_name(name, "x-client-ip"),
            Some(b'f') => {
                has_normalized_prefix(name, "x-forwarded-user")
                    || has_normalized_prefix(name, "x-forwarded-email")
                    || has_normalized_prefix(name, "x-forwarded-group")
                    || has_normalized_prefix(name, "x-forwarded-preferred-username")
                    || has_normalized_prefix(name, "x-forwarded-access-token")
            }
            Some(b'g') => {
                has_normalized_prefix(name, "x-goog-authenticated-user-")
                    || is_normalized_name(name, "x-goog-iap-jwt-assertion")
            }
            Some(b'm') => {
                has_normalized_prefix(name, "x-ms-client-principal") || has_normalized_prefix(name, "x-ms-token-")
            }
            Some(b'o') => is_normalized_name(name, "x-original-forwarded-for"),
            Some(b'r') => is_normalized_name(name, "x-real-ip"),
            Some(b'w') => has_normalized_prefix(name, "x-webauth-"),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a request header must not reach a backend: cookies of the shared origin, client certificates in headers, the
/// mark of a peer kube-apiserver, and overrides of path or method, which some frameworks apply after authorization.
/// Cookies are allowed for a backend that owns its origin.
pub fn is_untrusted_request_header(name: &str) -> bool {
    // By first letter: this runs for every header of every request.
    match name.as_bytes().first() {
        Some(b'c') => name == "cookie" || name == "cookie2" || has_normalized_prefix(name, "client-cert"),
        Some(b's') => has_normalized_prefix(name, "ssl-client-"),
        Some(b'x') => {
            has_normalized_prefix(name, "x-client-cert")
                || has_normalized_prefix(name, "x-forwarded-client-cert")
                || has_normalized_prefix(name, "x-kubernetes-peer-proxied")
                || has_normalized_prefix(name, "x-ssl-client-")
                || has_normalized_prefix(name, "x-original-ur")
                || has_normalized_prefix(name, "x-rewrite-ur")
                || has_normalized_prefix(name, "x-http-method")
                || has_normalized_prefix(name, "x-method-override")
        }
        _ => false,
    }
}

/// Whether a header name is reserved, and so cannot be configured as an identity header: framing, routing, credentials,
/// impersonation, and headers that the gateway sets. Any character except letters and digits counts as `-`.
pub fn is_reserved(name: &str) -> bool {
    let dashed = |byte: u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' };
    let name: String = name.bytes().map(|byte| char::from(dashed(byte))).collect();
    is_hop_by_hop(&name)
        || matches!(&*name, "authorization" | "expect" | "host" | "trailer")
        || matches!(
            &*name,
            "audit-id" | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-proto" | "x-forwarded-uri"
        )
        || ["content-", "impersonate-", "sec-websocket-"].iter().any(|start| name.starts_with(start))
}

/// Whether `name` begins with `prefix`. Any character except letters and digits counts as `-`, as for servers behind
/// WSGI or CGI.
pub(crate) fn has_normalized_prefix(name: &str, prefix: &str) -> bool {
    let same = |(byte, expected): (u8, u8)| byte == expected || expected == b'-' && !byte.is_ascii_alphanumeric();
    name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(same)
}

/// Whether `name` equals `normalized_name`. Any character except letters and digits counts as `-`.
pub(crate) fn is_normalized_name(name: &str, normalized_name: &str) -> bool {
    name.len() == normalized_name.len() && has_normalized_prefix(name, normalized_name)
}

/// Whether servers behind WSGI or CGI treat two lower-case names alike: any character except letters and digits counts
/// as `-`.
pub(crate) fn is_same_normalized_name(one: &str, other: &str) -> bool {
    let dashed = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    one.len() == other.len() && one.bytes().map(dashed).eq(other.bytes().map(dashed))
}

/// Removes trailers that must not follow a body: framing, routing, caching, identity and credentials. Some servers and
/// clients merge trailers into headers.
pub fn strip_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers, |name| {
        let name = name.replace('_', "-");
        matches!(
            &*name,
            "audit-id"
                | "authorization"
                | "cache-control"
                | "content-encoding"
                | "content-length"
                | "content-range"
                | "content-type"
                | "cookie"
                | "host"
                | "location"
                | "set-cookie"
                | "trailer"
                | "x-content-type-options"
        ) || is_proxy_identity_header(&name)
            || name.starts_with("x-remote-")
            || name.starts_with("x-forwarded-")
            || name.starts_with("impersonate-")
    });
}

/// Returns the protocol of an HTTP/1.1 upgrade: the value of `Upgrade`, if `Connection` contains `upgrade`. None for
/// h2c, which is never relayed, and for an `Upgrade` that `Connection` does not name: the request is then served
/// without the upgrade.
pub fn upgrade_protocol(headers: &HeaderMap) -> Option<&str> {
    if !headers.contains_key(UPGRADE) || !has_token(headers, &CONNECTION, "upgrade") {
        return None;
    }
    let mut values = headers.get_all(UPGRADE).iter();
    let protocol = values.next()?.to_str().ok()?.trim();
    let acceptable = values.next().is_none()
        && !protocol.is_empty()
        && !protocol.split(',').any(|token| token.trim().to_ascii_lowercase().starts_with("h2c"));
    acceptable.then_some(protocol)
}

/// Whether a comma-separated header contains `token`, in any case; parameters after `;` are ignored.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .any(|value| tokens(value.as_bytes()).any(|it| it.eq_ignore_ascii_case(token.as_bytes())))
}

/// The items of a comma-separated value, without parameters.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    list_items(value).map(|item| {
        let end = item.iter().position(|byte| *byte == b';').unwrap_or(item.len());
        item[..end].trim_ascii()
    })
}

/// The items of a comma-separated value, with parameters.
pub(crate) fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Strips headers in one pass over the names, which usually finds and allocates nothing. Returns whether `TE: trailers`
/// was stripped; none if nothing was.
fn strip_hop_by_hop(headers: &mut HeaderMap, also: impl Fn(&str) -> bool) -> Option<bool> {
    let found: Vec<HeaderName> =
        headers.keys().filter(|name| is_hop_by_hop(name.as_str()) || also(name.as_str())).cloned().collect();
    if found.is_empty() {
        return None;
    }
    let trailers = found.contains(&TE) && has_token(headers, &TE, "trailers");
    let mut named = Vec::new();
    if found.contains(&CONNECTION) {
        for value in headers.get_all(CONNECTION) {
            named.extend(tokens(value.as_bytes()).filter_map(|token| HeaderName::from_bytes(token).ok()));
        }
    }
    for name in found.into_iter().chain(named) {
        headers.remove(name);
    }
    Some(trailers)
}

fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes every header whose (lower-case) name matches, in one pass over the names, which usually finds and allocates
/// nothing. Linear in the number of headers, in any order.
pub(crate) fn remove_where(headers: &mut HeaderMap, matches: impl Fn(&str) -> bool) {
    let found: Vec<HeaderName> = headers.keys().filter(|name| matches(name.as_str())).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::test_headers;

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn hop_by_hop_headers_and_connection_tokens_stripped() {
        let mut headers = test_headers(&[
            ("connection", "close, X-One ,x-two"),
            ("connection", "x-three;q=1, keep-alive"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("x-four", "4"),
            ("keep-alive", "5"),
            ("proxy-connection", "6"),
            ("proxy-authenticate", "7"),
            ("proxy-authorization", "8"),
            ("te", "gzip"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
        ]);
        strip_request(&mut headers, |_| false);
        assert_eq!(names(&headers), ["trailer", "x-four"]);
    }

    /// Trailers must work.
    #[test]
    fn hop_by_hop_te_trailers_is_kept() {
        for (te, kept) in [("trailers", true), ("gzip, Trailers;q=0.5", true), ("gzip", false)] {
            let mut headers = test_headers(&[("te", te), ("connection", "te")]);
            strip_request(&mut headers, |_| false);
            assert_eq!(headers.get(TE).map(HeaderValue::as_bytes), kept.then_some(&b"trailers"[..]), "{te}");
        }
    }

    /// A client cannot start HTTP/2 on a connection to a backend.
    #[test]
    fn hop_by_hop_h2c_upgrade_stripped() {
        let mut headers = test_headers(&[
            ("connection", "Upgrade, HTTP2-Settings"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
        ]);
        assert_eq!(upgrade_protocol(&headers), None);
        strip_request(&mut headers, |_| false);
        assert!(headers.is_empty());
        let mut headers = test_headers(&[("http2-settings", "AAMAAABk")]);
        strip_request(&mut headers, |_| false);
        assert!(headers.is_empty());
    }

    #[test]
    fn upgrade_needs_both_headers() {
        for (lines, expected) in [
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")][..], Some("SPDY/3.1")),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", " websocket ")], Some("websocket")),
            (&[("upgrade", "websocket")], None),
            (&[("connection", "Upgrade")], None),
            (&[("connection", "not-upgrade"), ("upgrade", "websocket")], None),
            (&[("connection", "Upgrade"), ("upgrade", "websocket"), ("upgrade", "SPDY/3.1")], None),
            (&[("connection", "Upgrade"), ("upgrade", "websocket, h2c")], None),
            (&[("connection", "Upgrade"), ("upgrade", "")], None),
        ] {
            assert_eq!(upgrade_protocol(&test_headers(lines)), expected, "{lines:?}");
        }
    }

    /// A backend must not change the behavior of the origin that all APIs share.
    #[test]
    fn untrusted_response_headers_stripped() {
        let mut headers = test_headers(&[
            ("access-control-allow-origin", "*"),
            ("set-cookie", "a=b"),
            ("set-cookie", "c=d"),
            ("alt-svc", "h3"),
            ("strict-transport-security", "max-age=1"),
            ("www-authenticate", "Basic"),
            ("clear-site-data", "*"),
            ("access-control-allow-private-network", "true"),
            ("access-control-expose-headers", "*"),
            ("timing-allow-origin", "*"),
            ("cross-origin-resource-policy", "cross-origin"),
            ("service-worker-allowed", "/"),
            ("nel", "{}"),
            ("report-to", "{}"),
            ("reporting-endpoints", "a"),
            ("use-as-dictionary", "match=\"/\""),
            ("origin-agent-cluster", "?1"),
            ("origin-trial", "a"),
            ("x-accel-redirect", "/internal"),
            ("x-sendfile", "/etc/passwd"),
            ("set-login", "logged-in"),
            ("x-accel-buffering", "no"),
            ("warning", "299 - \"deprecated\""),
            ("content-type", "application/json"),
        ]);
        strip_response(&mut headers, is_untrusted_response_header);
        assert_eq!(names(&headers), ["content-type", "warning", "x-accel-buffering"]);
    }

    #[test]
    fn proxy_identity_headers_detected_in_every_spelling() {
        for name in [
            "forwarded",
            "remote-user",
            "remote_groups",
            "x-real-ip",
            "x_real_ip",
            "x-forwarded-user",
            "x_forwarded-email",
            "x-forwarded-groups",
            "x-auth-request-redirect",
            "x.client.ip",
            "true-client-ip",
            "x-goog-authenticated-user-email",
            "x_goog_authenticated_user_id",
            "x-goog-iap-jwt-assertion",
            "x-amzn-oidc-identity",
            "x_amzn_oidc_data",
            "x-ms-client-principal",
            "x-ms-client-principal-name",
            "x_ms_client_principal_id",
            "x-ms-token-aad-id-token",
            "cf-access-jwt-assertion",
            "cf_access_authenticated_user_email",
        ] {
            assert!(is_proxy_identity_header(name), "{name}");
        }
        for name in [
            "x-forwarded-for",
            "x-forwarded-prefix",
            "x-remote-user",
            "x-real-ipx",
            "remote",
            "forwarded-for",
            "x-amzn-trace-id",
            "x-goog-api-client",
            "x-ms-client-request-id",
            "cf-ray",
            "x-",
        ] {
            assert!(!is_proxy_identity_header(name), "{name}");
        }
    }

    /// Headers meant for the gateway are not sent to the backend of one API.
    #[test]
    fn untrusted_request_headers_stripped() {
        let mut headers = test_headers(&[
            ("cookie", "session=1"),
            ("x-forwarded-client-cert", "Subject=root"),
            ("client-cert", ":AAAA:"),
            ("x-kubernetes-peer-proxied", "true"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut headers, is_untrusted_request_header);
        assert_eq!(names(&headers), ["accept"]);
    }

    #[test]
    fn reserved_header_names_detected() {
        for name in ["Content-Length", "content_length", "te", "Host", "x.forwarded.for", "Impersonate-Extra-a"] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["x-remote-user", "x-forwarded-user", "x-ssl-client-cn", "team", "hosts", ""] {
            assert!(!is_reserved(name), "{name}");
        }
    }

    /// Trailers cannot spoof an identity.
    #[test]
    fn trailers_identity_fields_stripped() {
        let mut trailers = test_headers(&[
            ("x-remote-user", "root"),
            ("x_remote_group", "system:masters"),
            ("authorization", "Bearer x"),
            ("transfer-encoding", "chunked"),
            ("audit-id", "x"),
            ("x_real_ip", "192.0.2.1"),
            ("grpc-status", "0"),
            ("content-digest", "sha-256=:x:"),
        ]);
        strip_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["content-digest", "grpc-status"]);
    }
}
