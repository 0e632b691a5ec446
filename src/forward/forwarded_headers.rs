//! Headers that the gateway adds to requests: identity, forwarding, Audit-Id.

use std::rc::Rc;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::user_headers::{REMOTE_PREFIX, UserHeaders};
use crate::message::hop_by_hop::{has_normalized_prefix, is_normalized_name};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Headers added to all requests of one user on one connection.
///
/// They are most of the headers of a request. Copying them as a whole is much cheaper than adding each one to each
/// request.
pub struct ConnectionHeaders {
    headers: HeaderMap,
    client_address: HeaderValue,
    host: Option<HeaderValue>,
    /// Names added by the gateway that [`is_gateway_header`] does not cover.
    custom_names: Vec<HeaderName>,
}

/// Number of header lines that nearly no request exceeds.
const INITIAL_CAPACITY: usize = 24;

/// Headers added to one request.
pub struct ForwardedHeaders<'o> {
    /// Headers common to all requests of its user and connection.
    pub connection_headers: Rc<ConnectionHeaders>,
    /// Path requested by the client, unchanged.
    pub path: &'o str,
    /// `Audit-Id` of the request.
    pub audit_id: &'o HeaderValue,
}

impl ConnectionHeaders {
    /// Headers for the user of `stamp`, connected from the address `remote` to `host`.
    pub fn new(stamp: &UserHeaders, remote: &HeaderValue, host: Option<&HeaderValue>) -> ConnectionHeaders {
        // A copy keeps the size of the hash table, which then need not grow.
        let mut headers = HeaderMap::with_capacity(INITIAL_CAPACITY);
        headers.insert(X_FORWARDED_FOR, remote.clone());
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("https"));
        if let Some(host) = host {
            headers.insert(X_FORWARDED_HOST, host.clone());
        }
        stamp.apply(&mut headers);
        let others = stamp.custom_names().cloned().collect();
        ConnectionHeaders { headers, client_address: remote.clone(), host: host.cloned(), custom_names: others }
    }
}

impl ForwardedHeaders<'_> {
    /// Sets the client's Host header, for backends that get it.
    pub(super) fn set_host(&self, headers: &mut HeaderMap) {
        if let Some(host) = &self.connection_headers.host {
            headers.insert(HOST, host.clone());
        }
    }

    /// Builds the headers for the backend: the gateway's, and those of `client` (already stripped) that are not
    /// reserved for the gateway. No client header can replace one of the gateway's or stand beside it.
    pub(super) fn build(&self, client: &HeaderMap) -> HeaderMap {
        let mut headers = self.connection_headers.headers.clone();
        headers.reserve(client.len() + 2);
        for (name, value) in client {
            if !is_gateway_header(name) && !self.connection_headers.custom_names.contains(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        if client.contains_key(X_FORWARDED_FOR) {
            headers.insert(X_FORWARDED_FOR, append_forwarded_for(client, &self.connection_headers.client_address));
        }
        if let Ok(path) = HeaderValue::from_str(self.path) {
            headers.insert(X_FORWARDED_URI, path);
        }
        headers.insert(AUDIT_ID, self.audit_id.clone());
        headers
    }
}

/// Whether only the gateway may send `name`, in any spelling: WSGI and CGI servers take `_` for `-`. Authentication has
/// removed claimed identities, under these names and all configured ones; this is the last line of defense.
fn is_gateway_header(name: &HeaderName) -> bool {
    let text = name.as_str();
    // By first letter: this runs for every header of every request.
    match text.as_bytes().first() {
        Some(b'a') => is_normalized_name(text, AUDIT_ID.as_str()),
        Some(b'x') => {
            has_normalized_prefix(text, REMOTE_PREFIX)
                || has_normalized_prefix(text, "x-forwarded-")
                    && [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_FORWARDED_URI]
                        .iter()
                        .any(|header| is_normalized_name(text, header.as_str()))
        }
        _ => false,
    }
}

/// Appends the client's address to its `X-Forwarded-For`.
fn append_forwarded_for(client: &HeaderMap, remote: &HeaderValue) -> HeaderValue {
    let mut chain = Vec::new();
    for link in client.get_all(X_FORWARDED_FOR).iter().chain([remote]) {
        if !chain.is_empty() {
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(link.as_bytes());
    }
    // Joined from valid values: the fallback only avoids a panic path.
    HeaderValue::from_bytes(&chain).unwrap_or_else(|_| remote.clone())
}

#[cfg(test)]
mod tests {
    use kubeapi::User;

    use super::super::header_rewrite::clean;
    use super::*;
    use crate::message::AllowedHeaders;

    fn signature(host: Option<&'static str>) -> Rc<ConnectionHeaders> {
        let stamp =
            UserHeaders::new(&User { name: "jane".into(), groups: vec!["devs".into()], ..User::default() }, true);
        let host = host.map(HeaderValue::from_static);
        Rc::new(ConnectionHeaders::new(&stamp.unwrap(), &HeaderValue::from_static("192.0.2.1"), host.as_ref()))
    }

    fn sent(lines: &[(&'static str, &'static str)], host: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let signature = signature(host);
        clean(&mut headers, false, &AllowedHeaders::default());
        ForwardedHeaders {
            connection_headers: signature,
            path: "/apis/a/v1",
            audit_id: &HeaderValue::from_static("id"),
        }
        .build(&headers)
    }

    fn lines<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h HeaderValue> {
        headers.get_all(name).iter().collect()
    }

    #[test]
    fn forwarded_headers_identity_survives_connection_tokens() {
        let headers = sent(&[("connection", "X-Remote-Group, x-remote-user, keep-alive")], None);
        assert_eq!(headers["x-remote-user"], "jane");
        assert_eq!(headers["x-remote-group"], "devs");
        assert!(!headers.contains_key("connection"));
    }

    #[test]
    fn forwarded_headers_replace_identity_sent_by_client() {
        let headers = sent(
            &[
                ("x-remote-user", "admin"),
                ("x-remote-group", "system:masters"),
                ("x-remote-uid", "0"),
                ("x-remote-extra-scope", "all"),
                ("audit-id", "theirs"),
            ],
            None,
        );
        assert_eq!(lines(&headers, "x-remote-user"), ["jane"]);
        assert_eq!(lines(&headers, "x-remote-group"), ["devs"]);
        assert_eq!(lines(&headers, "audit-id"), ["id"]);
        assert!(!headers.contains_key("x-remote-uid"));
        assert!(!headers.contains_key("x-remote-extra-scope"));
    }

    #[test]
    fn forwarded_headers_keep_client_headers() {
        let headers =
            sent(&[("accept", "a"), ("accept", "b"), ("x-forwarded-prefix", "/x"), ("user-agent", "u")], None);
        assert_eq!(lines(&headers, "accept"), ["a", "b"]);
        assert_eq!(headers["x-forwarded-prefix"], "/x");
        assert_eq!(headers["user-agent"], "u");
    }

    #[test]
    fn forwarded_headers_x_forwarded_for_appends_client() {
        let headers = sent(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")], None);
        assert_eq!(lines(&headers, "x-forwarded-for"), ["10.0.0.1, 10.0.0.2, 192.0.2.1"]);
        assert_eq!(lines(&sent(&[], None), "x-forwarded-for"), ["192.0.2.1"]);
    }

    #[test]
    fn forwarded_headers_replace_host_sent_by_client() {
        let said =
            [("x-forwarded-host", "evil"), ("x-forwarded-proto", "http"), ("x-forwarded-uri", "/x"), ("cookie", "a=b")];
        let headers = sent(&said, Some("api.example.com"));
        assert_eq!(lines(&headers, "x-forwarded-host"), ["api.example.com"]);
        assert_eq!(lines(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(lines(&headers, "x-forwarded-uri"), ["/apis/a/v1"]);
        assert!(!headers.contains_key("cookie"));
        assert!(!sent(&said, None).contains_key("x-forwarded-host"));
    }

    #[test]
    fn forwarded_headers_host_is_the_verified_one() {
        let put = |host: Option<&'static str>| {
            let (signature, mut headers) = (signature(host), HeaderMap::new());
            let origin = ForwardedHeaders {
                connection_headers: signature,
                path: "/",
                audit_id: &HeaderValue::from_static("id"),
            };
            origin.set_host(&mut headers);
            headers.remove(HOST)
        };
        assert_eq!(put(Some("app.example")).unwrap(), "app.example");
        assert_eq!(put(None), None);
    }
}
