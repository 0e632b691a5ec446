//! Time limits of a request: from the client's `timeout`, and from the APIService.

use std::time::{Duration, Instant};

use kubeapi::{Query, RequestInfo, Status, duration};

use crate::commands::gateway::request_policy::RequestPolicy;
use crate::message::{Blame, Refusal};
use crate::process::with_deadline;
use crate::route::Route;

/// Timeout of a group-version discovery document (`handler_proxy.go`).
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A request ends before its client's `timeout` by an eighth of it and at most this. client-go sends its own limit
/// (`kubectl --request-timeout`), which starts earlier: a response at its end would arrive too late.
const CLIENT_TIMEOUT_MARGIN: Duration = Duration::from_millis(600);

/// The client's `timeout` less the time its response needs to arrive; at most `max_timeout`, also without a `timeout`.
fn client_timeout(query: &Query<'_>, max_timeout: Duration) -> Result<Duration, Status> {
    let requested = duration::request_timeout(query, Duration::MAX)?;
    let ahead = if requested == Duration::MAX { Duration::ZERO } else { CLIENT_TIMEOUT_MARGIN.min(requested / 8) };
    Ok((requested - ahead).min(max_timeout))
}

/// The deadline from the client's `timeout`, if it has one.
pub(super) fn client_deadline(query: &Query<'_>) -> Option<Instant> {
    let limit = client_timeout(query, Duration::MAX).ok().filter(|limit| *limit != Duration::MAX)?;
    Instant::now().checked_add(limit)
}

/// The deadline of a request that is answered locally: the client's `timeout`, at most `max_timeout`.
///
/// # Errors
/// 400 for an invalid `timeout`.
pub(super) fn local_deadline(query: &Query<'_>, max_timeout: Duration) -> Result<Option<Instant>, Status> {
    Ok(Instant::now().checked_add(local_timeout(query, max_timeout)?))
}

/// The time limit of a request that is answered locally: the client's `timeout`, at most `max_timeout`.
///
/// # Errors
/// 400 for an invalid `timeout`.
pub(super) fn local_timeout(query: &Query<'_>, max_timeout: Duration) -> Result<Duration, Status> {
    client_timeout(query, max_timeout)
}

/// Awaits an authentication or authorization decision until the client's deadline, if there is one.
pub(super) async fn before_deadline<T>(
    deadline: Option<Instant>,
    decision: impl Future<Output = T> + Unpin,
) -> Result<T, Refusal> {
    with_deadline(deadline, decision).await.ok_or_else(|| {
        let status = Status::timeout("request did not complete within the allotted timeout");
        Refusal::new(Blame::Gateway, status)
            .with_cause("authentication or authorization did not finish before the request deadline")
    })
}

/// The timeout of the backend's response: the least of the client's, the APIService's and the one for discovery. None
/// if neither the APIService nor the client has one.
///
/// # Errors
/// 400 for an invalid `timeout` that is not left to the upstream.
pub(super) fn backend_timeout(
    policy: &RequestPolicy,
    info: &RequestInfo<'_>,
    query: &Query<'_>,
    route: &Route,
) -> Result<Option<Duration>, Status> {
    let configured = route.api_service.settings.request_timeout;
    let mut max = if configured.is_zero() { Duration::MAX } else { configured };
    let timeout = if policy.validates_timeout_parameter() {
        let path = info.path;
        if !info.is_resource_request && path.starts_with("/api") && path.trim_matches('/').split('/').count() == 3 {
            max = max.min(DISCOVERY_TIMEOUT);
        }
        client_timeout(query, max)?
    } else if policy.honors_timeout_parameter(info) {
        client_timeout(query, max).unwrap_or(max)
    } else {
        max
    };
    Ok(Some(timeout).filter(|timeout| *timeout != Duration::MAX))
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
