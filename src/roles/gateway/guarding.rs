//! Where a sidecar does otherwise than a gateway: how it reads a request, and what it leaves to the server behind, which
//! need not be Kubernetes'. All else of a request's way is the same ([`super::request`]).

use http::Method;

use super::shared::Shared;
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status};
use crate::message::{Blame, Refusal};

/// The path, in the one way in which it is judged, routed and sent on.
///
/// # Errors
/// 400 for what others may read in another way: before an API server, or any.
pub(super) fn path<'u>(shared: &Shared, raw: &'u str) -> Result<CanonicalPath<'u>, Status> {
    match (shared.guard.rules.is_some(), shared.sidecar) {
        (true, _) => CanonicalPath::parse_anywhere(raw),
        (false, true) => CanonicalPath::parse_whole(raw),
        (false, false) => CanonicalPath::parse(raw),
    }
}

/// What is asked: nothing but a path, where rules say what is to be judged.
///
/// # Errors
/// 400 for what Kubernetes would not read.
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

/// Whether `timeout` in the query is for us. What a server that is not Kubernetes' means by it is between it and its
/// clients.
pub(super) fn has_timeout(shared: &Shared, info: &RequestInfo<'_>) -> bool {
    !shared.sidecar || info.is_resource_request
}

/// Whether paths say what is answered to them. What an upstream answers is its own affair.
pub(super) fn knows_answers(shared: &Shared) -> bool {
    !shared.sidecar
}

/// The answer where no upstream owns the path: a sidecar has nothing of its own to say.
pub(super) fn nowhere() -> Refusal {
    Refusal::new(Blame::Client, Status::not_found()).because("no upstream owns the path")
}
