//! What spans show of a request.

use std::net::SocketAddr;
use std::time::Instant;

use http::{HeaderValue, Method, Version};

use super::tracer::SampledTrace;
use crate::observe::metrics::Retry;

/// A sampled request, as far as its access record does not have it.
pub(super) struct TracedRequest {
    pub(super) sampled: SampledTrace,
    /// Name of the server span.
    pub(super) name: String,
    /// The requested host.
    pub(super) host: Option<HeaderValue>,
    /// The first address of `X-Forwarded-For`.
    pub(super) forwarded_for: Option<String>,
    /// When it was retried, and why.
    pub(super) retries: Vec<(Instant, Retry)>,
}

/// The request's access record, as far as spans show it.
pub(in crate::observe) struct SpanRecord<'r> {
    pub(in crate::observe) started_at: Instant,
    pub(in crate::observe) ended_at: Instant,
    pub(in crate::observe) client: SocketAddr,
    pub(in crate::observe) method: &'r Method,
    pub(in crate::observe) path: &'r str,
    /// Path and query, without secrets.
    pub(in crate::observe) target: String,
    pub(in crate::observe) version: Version,
    /// The control plane that got the request.
    pub(in crate::observe) control_plane: Option<&'r str>,
    pub(in crate::observe) agent: Option<&'r HeaderValue>,
    pub(in crate::observe) audit_id: Option<&'r HeaderValue>,
    /// Status code; 0 if none was sent.
    pub(in crate::observe) status: u16,
    /// Bytes of the request body.
    pub(in crate::observe) received: u64,
    /// Bytes of the response body.
    pub(in crate::observe) sent: u64,
    /// Why the request failed, if it did: reason and cause.
    pub(in crate::observe) failure: Option<(&'r str, &'r str)>,
    /// The request to the backend, if it was sent.
    pub(in crate::observe) backend: Option<BackendSpanRecord<'r>>,
}

/// A request to a backend, for its client span.
pub(in crate::observe) struct BackendSpanRecord<'r> {
    pub(in crate::observe) started_at: Instant,
    pub(in crate::observe) service: &'r str,
    /// Address of the endpoint that responded.
    pub(in crate::observe) endpoint: Option<&'r str>,
    /// Whether the backend's response was passed on.
    pub(in crate::observe) responded: bool,
}
