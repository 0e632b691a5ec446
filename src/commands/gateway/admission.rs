//! Limits of requests in flight, gateway-wide and per APIService.

use super::state::GatewayState;
use crate::kubeapi::{RequestInfo, Status, User};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{ExceededLimit, RejectReason};
use crate::route::{Hand, InflightPermit, Route};

/// A permit for a request in flight, or 429 if the limit is reached or the user exceeds a fair share.
/// `system:masters` is exempt, so that an administrator is never locked out.
pub(super) fn admit_request(
    shared: &GatewayState,
    user: &User,
    info: &RequestInfo<'_>,
    hand: Hand,
) -> Result<Option<InflightPermit>, Refusal> {
    if user.groups.iter().any(|group| group == "system:masters") {
        return Ok(None);
    }
    let (bound, limit) = if info.is_read_only() {
        (&shared.read_only_inflight, ExceededLimit::ReadOnly)
    } else {
        (&shared.mutating_inflight, ExceededLimit::Mutating)
    };
    bound.requests.try_acquire(hand, bound.max).map(Some).map_err(|turned| {
        shared.metrics.rejections().record(limit, turned);
        let status = Status::too_many_requests("Too many requests, please try again later.", 1);
        Refusal::new(Blame::Gateway, status).with_cause(match turned {
            RejectReason::LimitReached => "the limit of requests in flight is reached",
            RejectReason::FairShare => "the user exceeds a fair share of the requests in flight",
        })
    })
}

/// A permit for a request in flight at the APIService; `place` is the request's gateway-wide permit, if it has one.
pub(super) fn admit_to_apiservice(
    shared: &GatewayState,
    route: &Route,
    info: &RequestInfo<'_>,
    hand: Hand,
    place: Option<&InflightPermit>,
) -> Result<InflightPermit, RejectReason> {
    let reads = info.is_read_only();
    let bound = if reads { &shared.read_only_inflight } else { &shared.mutating_inflight };
    let free = place.and_then(|_| bound.requests.free(bound.max));
    route.try_acquire(hand, !reads, free)
}
