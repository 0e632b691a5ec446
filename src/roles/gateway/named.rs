//! What a request is called: the name of its own, and where it is counted.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::shared::Shared;
use crate::kubeapi::{Query, RequestInfo};
use crate::observe::metrics::{DryRun, Known, RequestLabels, Scope, Verb};
use crate::route::Route;

pub(super) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The longest `Audit-Id` taken from a client.
const AUDIT_ID_MOST: usize = 64;

/// The client's `Audit-Id` if it is short and clean, else one of ours.
pub(super) fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let clean = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty()
            && bytes.len() <= AUDIT_ID_MOST
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if let Some(theirs) = headers.get(AUDIT_ID).filter(clean) {
        return theirs.clone();
    }
    // Version 4 by a fast generator: it names a request, it guards nothing.
    let id = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let text: &str = id.hyphenated().encode_lower(&mut text);
    let mut id = HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""));
    // No secret, but never the same again: HPACK then leaves it out of the table that it would only crowd.
    id.set_sensitive(true);
    id
}

/// How it is counted.
pub(super) fn labels<'r>(
    method: &Method,
    info: &'r RequestInfo<'_>,
    query: &Query<'_>,
    headers: &HeaderMap,
) -> RequestLabels<'r> {
    if !info.is_resource_request {
        return RequestLabels::path(method, info.path);
    }
    let apply = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"));
    let dry_run = query.get("dryRun");
    RequestLabels {
        verb: Verb::of_resource(method, &info.verb, info.subresource, apply),
        group: info.api_group,
        version: info.api_version,
        resource: info.resource,
        subresource: info.subresource,
        scope: Scope::of(true, &info.verb, info.namespace, &info.name),
        dry_run: DryRun::of(dry_run.as_deref()),
    }
}

/// What is known of what it asks for.
pub(super) fn known(shared: &Shared, info: &RequestInfo<'_>, route: Option<&Arc<Route>>) -> Known {
    if route.is_none() {
        return Known::Nothing;
    }
    let documents = shared.documents.load();
    if documents.knows(info.api_group, info.api_version, info.resource, info.subresource) {
        Known::Resource
    } else {
        Known::GroupVersion
    }
}
