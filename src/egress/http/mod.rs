//! HTTP/1.1 and HTTP/2 connections to endpoints, and their pool.

pub(in crate::egress) mod endpoint;
pub(in crate::egress) mod error_classification;
pub mod http1;
pub(in crate::egress) mod http2;
pub(in crate::egress) mod liveness;
pub(in crate::egress) mod pool;
pub(in crate::egress) mod upload_task;

/// Whether a request of this method states the length of an empty body, as Go's `net/http` does; RFC 9110, section 8.6,
/// leaves it open.
pub(in crate::egress) fn has_payload(method: &http::Method) -> bool {
    matches!(*method, http::Method::POST | http::Method::PUT | http::Method::PATCH)
}
