//! The token in the WebSocket protocols, for browsers, which cannot set `Authorization`.

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{alphabet, engine::DecodePaddingMode};
use http::header::{SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};

use crate::message::upgrade_protocol;

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Like Go's `RawURLEncoding`: no padding, and trailing bits are ignored.
const RAW_URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// The parsed `Sec-WebSocket-Protocol`.
#[derive(PartialEq, Eq)]
pub struct WebSocketProtocols<'a> {
    /// The token, if there is one; the error is Kubernetes'.
    pub token: Result<Option<String>, &'static str>,
    /// The other protocols, in order, for the backend.
    pub others: Vec<&'a str>,
    /// Whether a token was removed.
    pub changed: bool,
}

/// Parses all lines of the header, like `k8s.io/apiserver/pkg/authentication/request/websocket`.
pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> WebSocketProtocols<'a> {
    let mut protocols = WebSocketProtocols { token: Ok(None), others: Vec::new(), changed: false };
    for protocol in lines.into_iter().flat_map(|line| line.split(',')).map(str::trim) {
        match protocol.strip_prefix(PREFIX) {
            None => protocols.others.push(protocol),
            Some(encoded) => {
                protocols.token = match protocols.token {
                    Err(known) => Err(known),
                    Ok(_) if protocols.changed => Err("multiple base64.bearer.authorization tokens specified"),
                    Ok(_) => decode(encoded),
                };
                protocols.changed = true;
            }
        }
    }
    if matches!(&protocols.token, Ok(Some(_))) && protocols.others.is_empty() {
        protocols.token = Err("missing additional subprotocol");
    }
    protocols
}

/// Whether a request is a WebSocket upgrade: only then Kubernetes looks for a token in the protocols.
pub(super) fn is_websocket_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE)
        && upgrade_protocol(headers).is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Returns the token in a request's protocols.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    parse(lines(headers)).token
}

/// Removes the token from the WebSocket protocols, also if another authenticator succeeded or the request is no
/// upgrade: the backend must not see it.
pub(super) fn strip_token(headers: &mut HeaderMap) {
    let readable = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().all(|value| value.to_str().is_ok());
    let protocols = parse(lines(headers));
    if readable && !protocols.changed {
        return;
    }
    let others = HeaderValue::try_from(protocols.others.join(",")).ok().filter(|value| !value.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Some(others) = others {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    }
}

fn lines(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok())
}

/// Decodes a token; none if it is empty.
fn decode(encoded: &str) -> Result<Option<String>, &'static str> {
    let bytes = RAW_URL.decode(encoded).map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(bytes).map_err(|_| "invalid base64.bearer.authorization token")?;
    Ok(Some(token).filter(|token| !token.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&'static str]) -> (Result<Option<String>, &'static str>, Vec<&'static str>) {
        let protocols = parse(lines.iter().copied());
        (protocols.token, protocols.others)
    }

    #[test]
    fn websocket_protocols_parsed_like_upstream() {
        // dG9rZW4 is "token"
        for (lines, token, others) in [
            (&["base64url.bearer.authorization.k8s.io.dG9rZW4,chat"][..], Ok(Some("token")), vec!["chat"]),
            (&["a , base64url.bearer.authorization.k8s.io.dG9rZW4", "b"], Ok(Some("token")), vec!["a", "b"]),
            (&["chat"], Ok(None), vec!["chat"]),
            (&["base64url.bearer.authorization.k8s.io.,chat"], Ok(None), vec!["chat"]),
            (&["base64url.bearer.authorization.k8s.io.dG9rZW4"], Err("missing additional subprotocol"), vec![]),
            (
                &["base64url.bearer.authorization.k8s.io.dG9rZW4,base64url.bearer.authorization.k8s.io.dG9rZW4,a"],
                Err("multiple base64.bearer.authorization tokens specified"),
                vec!["a"],
            ),
            (
                &["base64url.bearer.authorization.k8s.io.,base64url.bearer.authorization.k8s.io.dG9rZW4,a"],
                Err("multiple base64.bearer.authorization tokens specified"),
                vec!["a"],
            ),
            (
                &["base64url.bearer.authorization.k8s.io.dG9rZW4=,a"],
                Err("invalid base64.bearer.authorization token encoding"),
                vec!["a"],
            ),
            (
                &["base64url.bearer.authorization.k8s.io._w,a"],
                Err("invalid base64.bearer.authorization token"),
                vec!["a"],
            ),
        ] {
            assert_eq!(read(lines), (token.map(|token: Option<&str>| token.map(str::to_owned)), others), "{lines:?}");
        }
    }
}
