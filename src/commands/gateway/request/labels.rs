//! The audit ID and the metric labels of a request.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use kubeapi::{Query, RequestInfo};

use crate::commands::gateway::state::GatewayState;
use crate::observe::metrics::{DryRun, KnownLabels, RequestLabels, Scope, Verb};
use crate::route::Route;

pub(super) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Length limit of an `Audit-Id` from a client.
const MAX_AUDIT_ID_LENGTH: usize = 64;

/// The client's `Audit-Id` if it is short and harmless, else a generated one.
pub(super) fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let clean = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty()
            && bytes.len() <= MAX_AUDIT_ID_LENGTH
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if let Some(theirs) = headers.get(AUDIT_ID).filter(clean) {
        return theirs.clone();
    }
    // Version 4 from a fast generator: it identifies a request and protects nothing.
    let id = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let text: &str = id.hyphenated().encode_lower(&mut text);
    let mut id = HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""));
    // No secret, but unique: marked sensitive, it does not fill the HPACK table.
    id.set_sensitive(true);
    id
}

/// The labels of the request metrics.
pub(super) fn request_labels<'r>(
    method: &Method,
    info: &'r RequestInfo<'_>,
    query: &Query<'_>,
    headers: &HeaderMap,
) -> RequestLabels<'r> {
    if !info.is_resource_request {
        return RequestLabels::for_path(method, info.path);
    }
    let apply = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"));
    let dry_run = query.get("dryRun");
    RequestLabels {
        verb: Verb::from_resource_request(method, &info.verb, info.subresource, apply),
        group: info.api_group,
        version: info.api_version,
        resource: info.resource,
        subresource: info.subresource,
        scope: Scope::from_request(true, &info.verb, info.namespace, &info.name),
        dry_run: DryRun::from_values(dry_run.as_deref()),
    }
}

/// Determines the labels that are known to exist and may be used as they are.
pub(super) fn known_labels(shared: &GatewayState, info: &RequestInfo<'_>, route: Option<&Arc<Route>>) -> KnownLabels {
    let documents = shared.documents.discovery.load();
    if documents.has_resource(info.api_group, info.api_version, info.resource, info.subresource) {
        KnownLabels::Resource
    } else if route.is_some() {
        KnownLabels::GroupVersion
    } else {
        KnownLabels::Nothing
    }
}
