//! Headers that carry an identity or credentials: found in one pass, and stripped before later stages see them.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

use super::request_header::RequestHeaderNames;
use super::websocket;
use crate::message::hop_by_hop::remove_where;

/// Kubernetes' default front-proxy headers, and the plural that kube-rbac-proxy uses. They are stripped even if other
/// names are configured: a backend trusts the defaults.
const STANDARD_NAMES: [&str; 4] = ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-groups"];
const STANDARD_PREFIX: &str = "x-remote-extra-";
const WEBSOCKET_PROTOCOL: &str = "sec-websocket-protocol";

/// Matches the names of headers that carry an identity.
///
/// Names are compared after replacing every character except letters and digits by `-`: servers behind WSGI, CGI or
/// nginx treat `_` the same, and old CGI any such character.
#[derive(Clone, Debug)]
pub struct IdentityHeaderMatcher {
    names: Vec<(Box<[u8]>, Kind)>,
    prefixes: Vec<(Box<[u8]>, Kind)>,
    /// The possible first bytes of a matching name: most names are rejected by this.
    first_bytes: [bool; 256],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Credential,
    FrontProxy,
    WebSocket,
    Impersonation,
}

/// The kinds of identity headers in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IdentityHeaderPresence {
    pub(super) credential: bool,
    pub(super) front_proxy: bool,
    pub(super) websocket: bool,
    pub(super) impersonation: bool,
    /// A credential or front-proxy header other than `Authorization`.
    pub(super) other_name: bool,
}

impl IdentityHeaderMatcher {
    /// Creates a matcher of the standard and the configured names.
    pub fn new(configured: &RequestHeaderNames) -> IdentityHeaderMatcher {
        let mut headers = IdentityHeaderMatcher { names: Vec::new(), prefixes: Vec::new(), first_bytes: [false; 256] };
        headers.add_name("authorization", Kind::Credential);
        headers.add_name(WEBSOCKET_PROTOCOL, Kind::WebSocket);
        headers.add_prefix("impersonate-", Kind::Impersonation);
        headers.add_prefix(STANDARD_PREFIX, Kind::FrontProxy);
        STANDARD_NAMES.into_iter().for_each(|name| headers.add_name(name, Kind::FrontProxy));
        for name in configured.names() {
            headers.add_name(name.as_str(), Kind::FrontProxy);
        }
        for prefix in configured.prefixes() {
            headers.add_prefix(prefix, Kind::FrontProxy);
        }
        headers
    }

    /// Adds names of headers that carry the identity to backends (`--auth-header-*`).
    #[must_use]
    pub fn with_names(mut self, names: &[HeaderName]) -> IdentityHeaderMatcher {
        names.iter().for_each(|name| self.add_name(name.as_str(), Kind::FrontProxy));
        self
    }

    /// Removes credentials, identities and WebSocket protocols from `trailers`: none of these belongs after a body.
    pub fn strip_trailers(&self, trailers: &mut HeaderMap) {
        remove_where(trailers, |name| self.kind(name).is_some());
    }

    /// Removes credentials, identities and `Impersonate-*` from a request that is served without authentication.
    pub fn strip(&self, headers: &mut HeaderMap) {
        let found = self.find(headers);
        self.strip_found(headers, found);
        if found.impersonation {
            remove_where(headers, |name| self.kind(name) == Some(Kind::Impersonation));
        }
    }

    /// Removes credentials and front-proxy headers from a request in which `found` was found. Of the WebSocket
    /// protocols only the token is removed. `Impersonate-*` stays for authorization.
    pub(super) fn strip_found(&self, headers: &mut HeaderMap, found: IdentityHeaderPresence) {
        if found.other_name {
            remove_where(headers, |name| match self.kind(name) {
                Some(Kind::Credential | Kind::FrontProxy) => true,
                Some(Kind::WebSocket) => name != WEBSOCKET_PROTOCOL,
                Some(Kind::Impersonation) | None => false,
            });
        } else if found.credential {
            // The usual case: no second pass over the names.
            headers.remove(AUTHORIZATION);
        }
        if found.websocket {
            websocket::strip_token(headers);
        }
    }

    pub(super) fn find(&self, headers: &HeaderMap) -> IdentityHeaderPresence {
        let mut found = IdentityHeaderPresence::default();
        for name in headers.keys() {
            let Some(kind) = self.kind(name.as_str()) else { continue };
            match kind {
                Kind::Credential => found.credential = true,
                Kind::FrontProxy => found.front_proxy = true,
                Kind::WebSocket => found.websocket = true,
                Kind::Impersonation => found.impersonation = true,
            }
            found.other_name |= kind != Kind::Impersonation && *name != AUTHORIZATION;
        }
        found
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        let name = name.as_bytes();
        if !self.first_bytes[usize::from(*name.first()?)] {
            return None;
        }
        let exact = self
            .names
            .iter()
            .find(|(candidate, _)| candidate.len() == name.len() && has_canonical_prefix(name, candidate));
        exact
            .or_else(|| self.prefixes.iter().find(|(candidate, _)| has_canonical_prefix(name, candidate)))
            .map(|(_, kind)| *kind)
    }

    fn add_name(&mut self, name: &str, kind: Kind) {
        self.add_first_byte(name);
        self.names.push((canonical_name(name), kind));
    }

    fn add_prefix(&mut self, prefix: &str, kind: Kind) {
        self.add_first_byte(prefix);
        self.prefixes.push((canonical_name(prefix), kind));
    }

    fn add_first_byte(&mut self, name: &str) {
        match canonical_name(name).first().copied() {
            Some(b'-') => (0..=255u8)
                .filter(|byte| canonical_byte(*byte) == b'-')
                .for_each(|byte| self.first_bytes[usize::from(byte)] = true),
            Some(byte) => self.first_bytes[usize::from(byte)] = true,
            // An empty prefix matches every header.
            None => self.first_bytes = [true; 256],
        }
    }
}

fn canonical_name(name: &str) -> Box<[u8]> {
    name.bytes().map(|byte| canonical_byte(byte.to_ascii_lowercase())).collect()
}

fn has_canonical_prefix(name: &[u8], prefix: &[u8]) -> bool {
    name.len() >= prefix.len()
        && name.iter().zip(prefix).all(|(byte, expected_byte)| canonical_byte(*byte) == *expected_byte)
}

fn canonical_byte(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte } else { b'-' }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn stripped(headers: &IdentityHeaderMatcher, names: &[&str]) -> Vec<String> {
        let mut map = HeaderMap::new();
        for name in names {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("x"));
        }
        headers.strip(&mut map);
        let mut left: Vec<_> = map.keys().map(|name| name.as_str().to_owned()).collect();
        left.sort();
        left
    }

    #[test]
    fn identity_headers_stripped_in_every_spelling() {
        let configured = RequestHeaderNames {
            usernames: vec!["X-Corp-User".parse().unwrap()],
            uids: vec!["X-Corp-Uid".parse().unwrap()],
            groups: vec!["X-Corp-Group".parse().unwrap()],
            extra_prefixes: vec!["X-Corp-Extra-".to_owned()],
        };
        let headers = IdentityHeaderMatcher::new(&configured).with_names(&["X-Auth-Name".parse().unwrap()]);
        let names = [
            "x_auth-name",
            "Authorization",
            "X-Remote-User",
            "X-REMOTE-UID",
            "x-remote-group",
            "X-Remote-Groups",
            "X-Remote-Extra-Scopes",
            "X-Remote-Extra-",
            "X_Remote_User",
            "X.Remote.User",
            "x~remote!extra-scopes",
            "X_REMOTE_UID",
            "X-Remote_Group",
            "x_remote_extra_scopes",
            "X-Corp-User",
            "x_corp_uid",
            "x-corp_group",
            "X-CORP_EXTRA-foo",
            "sec_websocket-protocol",
            "Impersonate-User",
            "impersonate_extra-a",
        ];
        assert!(stripped(&headers, &names).is_empty());
        let kept = ["accept", "x-corp-users", "x-remote", "x-remote-addr", "x-requested-with"];
        assert_eq!(stripped(&headers, &kept), kept);
    }

    #[test]
    fn identity_headers_found_by_kind() {
        let headers = IdentityHeaderMatcher::new(&RequestHeaderNames::default());
        for (name, expected) in [
            ("accept", IdentityHeaderPresence::default()),
            ("authorization", IdentityHeaderPresence { credential: true, ..IdentityHeaderPresence::default() }),
            (
                "x_remote-user",
                IdentityHeaderPresence { front_proxy: true, other_name: true, ..IdentityHeaderPresence::default() },
            ),
            ("authorization_", IdentityHeaderPresence::default()),
            (
                "x-remote-group",
                IdentityHeaderPresence { front_proxy: true, other_name: true, ..IdentityHeaderPresence::default() },
            ),
            (
                "sec-websocket-protocol",
                IdentityHeaderPresence { websocket: true, other_name: true, ..IdentityHeaderPresence::default() },
            ),
            ("impersonate_user", IdentityHeaderPresence { impersonation: true, ..IdentityHeaderPresence::default() }),
            (
                "Impersonate-Extra-x",
                IdentityHeaderPresence { impersonation: true, ..IdentityHeaderPresence::default() },
            ),
            ("impersonated", IdentityHeaderPresence::default()),
        ] {
            let mut map = HeaderMap::new();
            map.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("x"));
            assert_eq!(headers.find(&map), expected, "{name}");
        }
    }

    #[test]
    fn identity_headers_stripped_from_trailers() {
        let headers = IdentityHeaderMatcher::new(&RequestHeaderNames::default());
        let mut trailers = HeaderMap::new();
        for name in ["authorization", "x-remote-user", "sec-websocket-protocol", "impersonate-user", "grpc-status"] {
            trailers.insert(name, HeaderValue::from_static("x"));
        }
        headers.strip_trailers(&mut trailers);
        assert_eq!(trailers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["grpc-status"]);
    }
}
