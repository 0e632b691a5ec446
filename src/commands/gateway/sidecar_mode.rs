//! Differences of the sidecar in request handling ([`super::request`]): parsing, and what is left to the upstream,
//! which need not be a Kubernetes API server.

use http::Method;

use super::state::GatewayState;
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status};
use crate::message::{Blame, Refusal};

/// Parses the path; the result is used for authorization, routing and forwarding.
///
/// # Errors
/// 400 for a path that an API server (or, with rules, any server) could interpret differently.
pub(super) fn parse_path<'u>(shared: &GatewayState, raw: &'u str) -> Result<CanonicalPath<'u>, Status> {
    match (shared.policy.rules.is_some(), shared.sidecar) {
        (true, _) => CanonicalPath::parse_non_kubernetes(raw),
        (false, true) => CanonicalPath::parse_without_proxy(raw),
        (false, false) => CanonicalPath::parse(raw),
    }
}

/// Parses the request info; only the path if kube-rbac-proxy rules define the attributes.
///
/// # Errors
/// 400 for a request that kube-apiserver rejects.
pub(super) fn parse_info<'r>(
    shared: &GatewayState,
    method: &Method,
    path: &'r CanonicalPath<'_>,
    query: &'r Query<'_>,
) -> Result<RequestInfo<'r>, Status> {
    if shared.policy.rules.is_some() {
        return Ok(RequestInfo::non_resource(method, path));
    }
    RequestInfo::parse(method, path, query)
}

/// Whether the query parameter `timeout` is honored. For other than resource requests of a sidecar it belongs to the
/// upstream.
pub(super) fn honors_timeout_parameter(shared: &GatewayState, info: &RequestInfo<'_>) -> bool {
    !shared.sidecar || info.is_resource_request
}

/// Whether responses are known by path, as a Kubernetes API server's; an upstream's are not.
pub(super) fn has_kubernetes_responses(shared: &GatewayState) -> bool {
    !shared.sidecar
}

/// The refusal for a path that no upstream owns.
pub(super) fn no_upstream() -> Refusal {
    Refusal::new(Blame::Client, Status::not_found()).with_cause("no upstream owns the path")
}
