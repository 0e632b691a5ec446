//! Limits of requests in flight, gateway-wide and per APIService.

use kubeapi::{RequestInfo, RetryAfter, Status, User};

use super::access::Access;
use super::target::ParsedRequest;
use crate::commands::gateway::state::GatewayState;
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{ExceededLimit, RejectReason};
use crate::route::{Hand, InflightPermit, Route};

/// A request within the gateway-wide limits.
pub(super) struct Admission {
    /// The counters of its user; none for a request that is exempt from all limits.
    pub(super) hand: Option<Hand>,
    permit: Option<InflightPermit>,
}

/// Counts an authorized request as in flight. `is_exempt` says that a backend sent it for a request that already counts
/// and waits for it. Long-running requests are exempt, too. Upgrade requests are not: they count until the upgrade
/// succeeds. Asks the client of an admitted request by chance to use another connection.
///
/// # Errors
/// 429 if a limit is reached or the user exceeds a fair share.
pub(super) fn admit(parsed: &ParsedRequest<'_>, access: &Access<'_>, is_exempt: bool) -> Result<Admission, Refusal> {
    let (shared, permit) = (parsed.shared, &access.permit);
    let admission = if is_exempt || parsed.is_long_running {
        Admission { hand: None, permit: None }
    } else {
        let hand = shared.inflight.dealer.hand(&permit.user().name);
        Admission { hand: Some(hand), permit: admit_request(shared, permit.user(), permit.request(), hand)? }
    };
    parsed.connection.send_goaway_by_chance(access.is_anonymous);
    Ok(admission)
}

impl Admission {
    /// Counts the request as in flight at the APIService, too, and returns both permits.
    ///
    /// # Errors
    /// 429 if its limit is reached or the user exceeds a fair share.
    pub(super) fn admit_to_apiservice(
        self,
        shared: &GatewayState,
        route: &Route,
        info: &RequestInfo<'_>,
    ) -> Result<[Option<InflightPermit>; 2], Refusal> {
        let Some(hand) = self.hand else { return Ok([None, None]) };
        let permit = acquire_apiservice_permit(shared, route, info, hand, self.permit.as_ref()).map_err(|reason| {
            shared.metrics.rejections().record(ExceededLimit::ApiService, reason);
            route.too_many_requests(reason)
        })?;
        Ok([self.permit, Some(permit)])
    }
}

/// An in-flight permit for the request, or 429 if the limit is reached or the user exceeds a fair share.
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
    let (pool, limit) = if info.is_read_only() {
        (&shared.inflight.read_only, ExceededLimit::ReadOnly)
    } else {
        (&shared.inflight.mutating, ExceededLimit::Mutating)
    };
    pool.requests.try_acquire(hand, pool.max).map(Some).map_err(|reason| {
        shared.metrics.rejections().record(limit, reason);
        let status = Status::too_many_requests("Too many requests, please try again later.", RetryAfter::Overloaded);
        Refusal::new(Blame::Gateway, status).with_cause(match reason {
            RejectReason::LimitReached => "the limit of requests in flight is reached",
            RejectReason::FairShare => "the user exceeds a fair share of the requests in flight",
        })
    })
}

/// Acquires the in-flight permit of the APIService for a request; `permit` is the request's gateway-wide permit, if it
/// has one.
///
/// # Errors
/// The limit that is reached.
pub(super) fn acquire_apiservice_permit(
    shared: &GatewayState,
    route: &Route,
    info: &RequestInfo<'_>,
    hand: Hand,
    permit: Option<&InflightPermit>,
) -> Result<InflightPermit, RejectReason> {
    let is_read_only = info.is_read_only();
    let pool = if is_read_only { &shared.inflight.read_only } else { &shared.inflight.mutating };
    let free = permit.and_then(|_| pool.requests.free(pool.max));
    route.try_acquire(hand, !is_read_only, free)
}
