//! Limits of requests in flight, gateway-wide and per APIService.

use super::shared::Shared;
use crate::kubeapi::{RequestInfo, Status, User};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{Limit, Turned};
use crate::route::{Hand, Place, Route};

/// A permit for a request in flight, or 429 if the limit is reached or the user exceeds a fair share.
/// `system:masters` is exempt, so that an administrator is never locked out.
pub(super) fn admit(
    shared: &Shared,
    user: &User,
    info: &RequestInfo<'_>,
    hand: Hand,
) -> Result<Option<Place>, Refusal> {
    if user.groups.iter().any(|group| group == "system:masters") {
        return Ok(None);
    }
    let (bound, limit) =
        if info.is_read_only() { (&shared.reading, Limit::ReadOnly) } else { (&shared.mutating, Limit::Mutating) };
    bound.running.enter(hand, bound.most).map(Some).map_err(|turned| {
        shared.metrics.rejections().count(limit, turned);
        let status = Status::too_many_requests("Too many requests, please try again later.", 1);
        Refusal::new(Blame::Gateway, status).because(match turned {
            Turned::Full => "the limit of requests in flight is reached",
            Turned::Share => "the user exceeds a fair share of the requests in flight",
        })
    })
}

/// A permit for a request in flight at the APIService; `place` is the request's gateway-wide permit, if it has one.
pub(super) fn enter(
    shared: &Shared,
    route: &Route,
    info: &RequestInfo<'_>,
    hand: Hand,
    place: Option<&Place>,
) -> Result<Place, Turned> {
    let reads = info.is_read_only();
    let bound = if reads { &shared.reading } else { &shared.mutating };
    let free = place.and_then(|_| bound.running.free(bound.most));
    route.enter(hand, !reads, free)
}
