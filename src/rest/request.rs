//! A request for objects.

use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use kubeapi::{Query, RequestInfo, Status};

use crate::authorize::CreateAuthorization;
use crate::observe::audit::AuditAnnotations;
use crate::route::Hand;

/// A request for objects, with the whole body.
pub struct ApiRequest<'r> {
    /// Request info that was authorized: verb, resource, namespace, name.
    pub info: &'r RequestInfo<'r>,
    /// The query.
    pub query: &'r Query<'r>,
    /// Headers of the request.
    pub headers: &'r HeaderMap,
    /// The body, at most [`MAX_BODY_BYTES`](crate::resources::MAX_BODY_BYTES).
    pub body: Bytes,
    /// Whether the request may create an object, whatever its verb is.
    pub creation: &'r CreateAuthorization<'r>,
    /// The user, who shares compute threads with others.
    pub hand: Hand,
    /// When the request is given up.
    pub deadline: Option<Instant>,
    /// Annotations of the audit events.
    pub audit: &'r AuditAnnotations,
}

/// A request that failed.
#[derive(Debug)]
pub struct FailedRequest {
    /// What the client gets, with Kubernetes' reason and text.
    pub status: Status,
    /// Texts of `Warning` headers.
    pub warnings: Vec<String>,
}
