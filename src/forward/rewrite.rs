//! What happens to headers on the way in and on the way out.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HOST, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::identity::Stamp;
use crate::message::hop_by_hop;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Where a request came from and who sent it.
pub struct Origin<'o> {
    /// The headers that say who the caller is.
    pub stamp: &'o Stamp,
    /// The client's address.
    pub remote: &'o HeaderValue,
    /// The host the client asked for.
    pub host: Option<HeaderValue>,
    /// The path the client asked for, as it came.
    pub path: &'o str,
    /// The `Audit-Id` of the request.
    pub audit_id: &'o HeaderValue,
}

/// Takes from a client's headers what no backend gets: what concerns only the client's connection, and its host.
///
/// Cookies are the client's secrets of this origin and stay here, like its `Authorization`, which
/// authentication has removed already; so does what only a proxy in front of us may say.
pub(super) fn clean(headers: &mut HeaderMap) {
    hop_by_hop::strip_request(headers, |name| HOST == name || hop_by_hop::is_untrusted_in_request(name));
}

/// Puts our headers onto a client's that are [`clean`], the identity last.
pub(super) fn sign(headers: &mut HeaderMap, origin: &Origin<'_>) {
    // As many as follow, so that the map grows once.
    headers.reserve(5 + origin.stamp.len());
    forwarded_for(headers, origin.remote);
    match &origin.host {
        Some(host) => headers.insert(X_FORWARDED_HOST, host.clone()),
        None => headers.remove(X_FORWARDED_HOST),
    };
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("https"));
    match HeaderValue::from_str(origin.path) {
        Ok(path) => headers.insert(X_FORWARDED_URI, path),
        Err(_) => headers.remove(X_FORWARDED_URI),
    };
    headers.insert(AUDIT_ID, origin.audit_id.clone());
    origin.stamp.put(headers);
}

/// Appends the client's address to the chain it came with.
fn forwarded_for(headers: &mut HeaderMap, remote: &HeaderValue) {
    if !headers.contains_key(X_FORWARDED_FOR) {
        headers.insert(X_FORWARDED_FOR, remote.clone());
        return;
    }
    let mut chain = Vec::new();
    for link in headers.get_all(X_FORWARDED_FOR).iter().chain([remote]) {
        if !chain.is_empty() {
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(link.as_bytes());
    }
    // Joined from values that were valid: the fallback only keeps us from having to prove it.
    headers.insert(X_FORWARDED_FOR, HeaderValue::from_bytes(&chain).unwrap_or_else(|_| remote.clone()));
}

/// Makes a backend's headers ours. What would act on the whole origin the backend is served from is not
/// its to say: cookies, HSTS, alternative services, credentials' schemes, cross-origin rights.
pub(super) fn response(headers: &mut HeaderMap) {
    hop_by_hop::strip_response(headers, hop_by_hop::is_untrusted);
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Moves the values of `headers` into a buffer of their own.
///
/// They are parts of the buffer they were read into, 8 KiB or more, and HTTP/2's compression remembers values for
/// as long as the client's connection lasts: each watch would hold such a buffer, a busy connection dozens.
pub(super) fn compact(headers: &mut HeaderMap) {
    let mut all = Vec::with_capacity(headers.values().map(HeaderValue::len).sum());
    headers.values().for_each(|value| all.extend_from_slice(value.as_bytes()));
    let mut rest = Bytes::from(all);
    for value in headers.values_mut() {
        let moved = rest.split_to(value.len());
        // It was a value before; were it none now, it would stay where it is.
        if let Ok(mut moved) = HeaderValue::from_maybe_shared(moved) {
            moved.set_sensitive(value.is_sensitive());
            *value = moved;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeapi::User;

    fn rewritten(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let stamp = Stamp::new(&User { name: "jane".into(), groups: vec!["devs".into()], ..User::default() }, true);
        let origin = Origin {
            stamp: &stamp.unwrap(),
            remote: &HeaderValue::from_static("192.0.2.1"),
            host: Some(HeaderValue::from_static("api.example.com")),
            path: "/apis/a/v1",
            audit_id: &HeaderValue::from_static("id"),
        };
        clean(&mut headers);
        sign(&mut headers, &origin);
        headers
    }

    #[test]
    fn connection_tokens_cannot_take_our_identity_away() {
        let headers = rewritten(&[("connection", "X-Remote-Group, x-remote-user, keep-alive")]);
        assert_eq!(headers["x-remote-user"], "jane");
        assert_eq!(headers["x-remote-group"], "devs");
        assert!(!headers.contains_key("connection"));
    }

    #[test]
    fn the_chain_of_addresses_grows_by_one() {
        let headers = rewritten(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")]);
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(lines, ["10.0.0.1, 10.0.0.2, 192.0.2.1"]);
    }

    #[test]
    fn compact_values_are_the_same() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("a", "1"), ("b", ""), ("a", "\u{e9}2"), ("content-type", "application/json"), ("a", "3")]
        {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers.get_mut("content-type").unwrap().set_sensitive(true);
        let before = headers.clone();
        compact(&mut headers);
        assert_eq!(headers, before);
        assert!(headers["content-type"].is_sensitive());
        assert!(!headers["a"].is_sensitive());
    }

    #[test]
    fn what_a_client_says_of_the_host_is_replaced() {
        let headers = rewritten(&[
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-uri", "/x"),
            ("cookie", "a=b"),
        ]);
        assert_eq!(headers["x-forwarded-host"], "api.example.com");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-uri"], "/apis/a/v1");
        assert!(!headers.contains_key("cookie"));
    }

    #[test]
    fn an_answer_cannot_speak_for_the_whole_origin() {
        let mut headers = HeaderMap::new();
        for name in ["set-cookie", "strict-transport-security", "access-control-allow-origin", "alt-svc", "connection"]
        {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        headers.insert("warning", HeaderValue::from_static("299 - \"old\""));
        response(&mut headers);
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["cache-control", "warning", "x-content-type-options"]);
    }
}
