//! Bodies, refusals and headers: types shared by all stages of a request.

mod allowed_headers;
mod body;
/// CORS and HSTS headers for browsers.
pub mod cors_hsts;
/// Hop-by-hop headers, upgrades, and headers that are stripped.
pub mod hop_by_hop;
mod incoming_body;
/// Negotiation of the encoding of a Status.
pub mod negotiate;
mod rbac_proxy;
mod refusal;
mod respond;
mod watch_events;

pub use allowed_headers::AllowedHeaders;
pub use body::{Body, BodyError, StreamingBody, UnreadEnd};
pub use hop_by_hop::upgrade_protocol;
pub use incoming_body::IncomingBody;
pub use negotiate::Accept;
pub use refusal::{Blame, Refusal, ReviewedAttributes};
pub use respond::{ErrorFormat, respond, warning};
pub use watch_events::{WatchEvents, bookmark_metadata, split_watch_events};

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
