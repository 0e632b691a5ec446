//! Bodies, refusals and headers: types shared by all stages of a request.

mod allowed_headers;
mod authority;
mod body;
/// CORS and HSTS headers for browsers.
pub mod cors_hsts;
mod document;
/// Hop-by-hop headers, upgrades, and headers that are stripped.
pub mod hop_by_hop;
mod incoming_body;
mod malformed_request;
/// Negotiation of the encoding of a Status.
pub mod negotiate;
mod rbac_proxy;
mod refusal;
mod respond;
mod watch_events;
/// Frames of a WebSocket server.
pub mod websocket;

pub use allowed_headers::AllowedHeaders;
pub use authority::split_authority;
pub use body::{Body, BodyError, StreamingBody, UnreadEnd};
pub use document::{DocumentError, read_document, unpack};
pub use hop_by_hop::upgrade_protocol;
pub use incoming_body::IncomingBody;
pub use malformed_request::MalformedRequest;
pub use negotiate::Accept;
pub use refusal::{Blame, Refusal, ReviewedAttributes};
pub use respond::{ErrorFormat, respond, warning};
pub use watch_events::split_watch_events;

/// Headers of a test, line by line. A value may be any bytes that a header can have.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) fn test_headers(lines: &[(&str, &str)]) -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    for (name, value) in lines {
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}
