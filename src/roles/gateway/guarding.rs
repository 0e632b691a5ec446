//! Differences of the sidecar in request handling ([`super::request`]): parsing, and what is left to the upstream,
//! which need not be a Kubernetes API server.

use http::Method;

use super::shared::Shared;
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status};
use crate::message::{Blame, Refusal};

/// Parses the path; the result is used for authorization, routing and forwarding.
///
/// # Errors
/// 400 for a path that an API server (or, with rules, any server) could interpret differently.
pub(super) fn path<'u>(shared: &Shared, raw: &'u str) -> Result<CanonicalPath<'u>, Status> {
    match (shared.guard.rules.is_some(), shared.sidecar) {
        (true, _) => CanonicalPath::parse_anywhere(raw),
        (false, true) => CanonicalPath::parse_whole(raw),
        (false, false) => CanonicalPath::parse(raw),
    }
}

/// Parses the request info; only the path if kube-rbac-proxy rules define the attributes.
///
/// # Errors
/// 400 for a request that kube-apiserver rejects.
pub(super) fn info<'r>(
    shared: &Shared,
    method: &Method,
    path: &'r CanonicalPath<'_>,
    query: &'r Query<'_>,
) -> Result<RequestInfo<'r>, Status> {
    if shared.guard.rules.is_some() {
        return Ok(RequestInfo::of_path(method, path));
    }
    RequestInfo::parse(method, path, query)
}

/// Whether the query parameter `timeout` is honored. For other than resource requests of a sidecar it belongs to the
/// upstream.
pub(super) fn has_timeout(shared: &Shared, info: &RequestInfo<'_>) -> bool {
    !shared.sidecar || info.is_resource_request
}

/// Whether responses are known by path, as a Kubernetes API server's; an upstream's are not.
pub(super) fn knows_answers(shared: &Shared) -> bool {
    !shared.sidecar
}

/// The refusal for a path that no upstream owns.
pub(super) fn nowhere() -> Refusal {
    Refusal::new(Blame::Client, Status::not_found()).because("no upstream owns the path")
}
