//! One probe of a backend.

use tokio::time::timeout;

use crate::egress::Address;
use crate::registry::{ApiService, ResolvedBackend};

/// Number of endpoints that may use up their `probe-timeout` before the probe fails. Endpoints that refuse at once cost
/// no time: one good endpoint is found among any number of these.
const MAX_TIMEOUTS: u32 = 3;

/// Probes a backend.
///
/// `GET` [`ApiService::discovery_path`] as `system:kube-aggregator` of `system:masters`, without following
/// a redirect; 2xx is an answer.
pub trait Probe {
    /// Probes one endpoint. The future is dropped after the APIService's `probe-timeout`.
    fn probe(
        &self,
        api_service: &ApiService,
        resolved: &ResolvedBackend,
        endpoint: &Address,
    ) -> impl Future<Output = Result<(), ProbeFailure>>;
}

/// Why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFailure {
    /// Message for clients, without addresses and library errors.
    pub message: String,
    /// Detail for logs and the status page.
    pub detail: String,
    /// Why no connection could be opened, for example `ConnectionRefused`; `None` if one was.
    pub dial_failure: Option<&'static str>,
}

impl ProbeFailure {
    /// The backend answered with this status. `untimely` names our certificate if its validity period is the likely
    /// cause.
    pub fn status(api_service: &ApiService, code: u16, untimely: Option<&str>) -> ProbeFailure {
        let path = api_service.discovery_path();
        let hint = match (code, untimely) {
            (401, Some(untimely)) => &*format!(": the backend does not accept {untimely}"),
            (401, None) => ": the backend does not accept our front-proxy certificate",
            (403, _) => ": the backend forbids system:kube-aggregator",
            (300..=399, _) => ": redirects are not followed",
            _ => "",
        };
        let message = format!("failing or missing response from {path}: bad status {code}{hint}");
        ProbeFailure { message, detail: String::new(), dial_failure: None }
    }

    /// No connection to the backend could be opened, for this `reason`.
    pub fn unreachable(api_service: &ApiService, reason: &'static str, detail: impl std::fmt::Display) -> ProbeFailure {
        ProbeFailure { dial_failure: Some(reason), ..ProbeFailure::no_answer(api_service, reason, detail) }
    }

    /// The connection was opened, but the backend gave no answer, for this `reason`.
    pub fn no_answer(api_service: &ApiService, reason: &str, detail: impl std::fmt::Display) -> ProbeFailure {
        let path = api_service.discovery_path();
        ProbeFailure {
            message: format!("failing or missing response from {path}: {reason}"),
            detail: detail.to_string(),
            dial_failure: None,
        }
    }

    fn timed_out(api_service: &ApiService, endpoint: &Address) -> ProbeFailure {
        let waited = api_service.settings.probe_timeout;
        let message = format!("timed out waiting for {}", api_service.discovery_path());
        ProbeFailure { message, detail: format!("{endpoint} did not answer within {waited:?}"), dial_failure: None }
    }
}

/// Probes endpoints one after the other until one answers, beginning with another one each time. Reports each result to
/// `on_result`.
pub(super) async fn probe_endpoints(
    api_service: &ApiService,
    resolved: &ResolvedBackend,
    turn: usize,
    probe: &impl Probe,
    on_result: impl Fn(&Address, Result<(), &ProbeFailure>),
) -> Result<(), ProbeFailure> {
    let (first, others) = resolved.endpoints.split_at(resolved.preferred_count.min(resolved.endpoints.len()));
    let start = if first.is_empty() { 0 } else { turn % first.len() };
    let order = first[start..].iter().chain(&first[..start]).chain(others);
    let mut failure = None;
    let until = tokio::time::Instant::now() + api_service.settings.probe_timeout * MAX_TIMEOUTS;
    for endpoint in order {
        if tokio::time::Instant::now() >= until {
            break;
        }
        let answer = timeout(api_service.settings.probe_timeout, probe.probe(api_service, resolved, endpoint)).await;
        let result = answer.unwrap_or_else(|_| Err(ProbeFailure::timed_out(api_service, endpoint)));
        on_result(endpoint, result.as_ref().copied());
        match result {
            Ok(()) => return Ok(()),
            Err(one) => failure = Some(one),
        }
    }
    failure.map_or(Ok(()), Err)
}
