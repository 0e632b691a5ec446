//! Time limits of a request: from the client's `timeout`, and from the APIService.

use std::time::{Duration, Instant};

use crate::kubeapi::{Query, RequestInfo, Status, duration};
use crate::message::{Blame, Refusal};
use crate::process::with_deadline;
use crate::route::Route;

/// Timeout of a group-version discovery document (`handler_proxy.go`).
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A request ends before its client's `timeout` by an eighth of it and at most this. client-go sends its own limit
/// (`kubectl --request-timeout`), which starts earlier: a response at its end would arrive too late.
const CLIENT_TIMEOUT_MARGIN: Duration = Duration::from_millis(600);

/// The client's `timeout` less the time its response needs to arrive; at most `most`, also without a `timeout`.
fn client_timeout(query: &Query<'_>, most: Duration) -> Result<Duration, Status> {
    let asked = duration::request_timeout(query, Duration::MAX)?;
    let ahead = if asked == Duration::MAX { Duration::ZERO } else { CLIENT_TIMEOUT_MARGIN.min(asked / 8) };
    Ok((asked - ahead).min(most))
}

/// The deadline from the client's `timeout`, if it has one.
pub(super) fn client_deadline(query: &Query<'_>) -> Option<Instant> {
    let limit = client_timeout(query, Duration::MAX).ok().filter(|limit| *limit != Duration::MAX)?;
    Instant::now().checked_add(limit)
}

/// Awaits an authentication or authorization decision until the client's deadline.
pub(super) async fn before_deadline<T>(due: Instant, decision: impl Future<Output = T> + Unpin) -> Result<T, Refusal> {
    with_deadline(Some(due), decision).await.ok_or_else(|| {
        let status = Status::timeout("request did not complete within the allotted timeout");
        Refusal::new(Blame::Gateway, status)
            .with_cause("authentication or authorization did not finish before the request deadline")
    })
}

/// The timeout of the backend's response: the least of the client's, the APIService's and the one for discovery. None
/// if neither the APIService nor the client has one.
///
/// # Errors
/// 400 for an invalid `timeout`; with a `sidecar` this is up to the upstream.
pub(super) fn backend_timeout(
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
