//! How long a request may take: as its client asks, and as what stands behind us allows.

use std::time::{Duration, Instant};

use crate::kubeapi::{Query, RequestInfo, Status, duration};
use crate::message::{Blame, Refusal};
use crate::process::within;
use crate::route::Route;

/// How long a discovery document of one version may take (`handler_proxy.go`).
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// How much sooner than its client's `timeout` a request ends: an eighth of it and no more than this. client-go sends its
/// own limit (`kubectl --request-timeout`), which began before ours does: an answer at its end comes too late to be read.
const AHEAD_OF_CLIENT: Duration = Duration::from_millis(600);

/// The `timeout` that the client asks for, less what our answer takes to reach it; `most` if it asks for none below that.
fn client_timeout(query: &Query<'_>, most: Duration) -> Result<Duration, Status> {
    let asked = duration::request_timeout(query, Duration::MAX)?;
    let ahead = if asked == Duration::MAX { Duration::ZERO } else { AHEAD_OF_CLIENT.min(asked / 8) };
    Ok((asked - ahead).min(most))
}

/// When a request is too late for its client, if that says so.
pub(super) fn due(query: &Query<'_>) -> Option<Instant> {
    let limit = client_timeout(query, Duration::MAX).ok().filter(|limit| *limit != Duration::MAX)?;
    Instant::now().checked_add(limit)
}

/// A decision that may have to be asked for, if it comes in the client's time.
pub(super) async fn in_time<T>(due: Instant, decision: impl Future<Output = T> + Unpin) -> Result<T, Refusal> {
    within(Some(due), decision).await.ok_or_else(|| {
        let status = Status::timeout("request did not complete within the allotted timeout");
        Refusal::new(Blame::Gateway, status).because("nobody said in time who asks, or whether they may")
    })
}

/// The time for a backend's answer: what the client asks, what the APIService allows, less for discovery. None when
/// the APIService has no limit and the client asks for none.
///
/// # Errors
/// 400 for a `timeout` that is none; before a `sidecar` it is for the server behind to say so.
pub(super) fn timeout(
    info: &RequestInfo<'_>,
    query: &Query<'_>,
    route: &Route,
    sidecar: bool,
) -> Result<Option<Duration>, Status> {
    let allowed = route.api_service.settings.request_timeout;
    let mut most = if allowed.is_zero() { Duration::MAX } else { allowed };
    if sidecar {
        let asked = if info.is_resource_request { client_timeout(query, most).ok() } else { None };
        return Ok(Some(asked.unwrap_or(most)).filter(|limit| *limit != Duration::MAX));
    }
    if !info.is_resource_request && info.path.starts_with("/api") && info.path.trim_matches('/').split('/').count() == 3
    {
        most = most.min(DISCOVERY_TIMEOUT);
    }
    Ok(Some(client_timeout(query, most)?).filter(|limit| *limit != Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_timeout_ends_before_its_client_stops_waiting() {
        let limit = |query: &str| client_timeout(&Query::parse(query), Duration::from_secs(60)).ok();
        assert_eq!(limit("timeout=8s"), Some(Duration::from_millis(7400)));
        assert_eq!(limit("timeout=800ms"), Some(Duration::from_millis(700)));
        assert_eq!(limit("timeout=2m"), Some(Duration::from_secs(60)));
        assert_eq!(limit(""), Some(Duration::from_secs(60)));
        assert_eq!(limit("timeout=nonsense"), None);
    }
}
