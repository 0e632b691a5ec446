//! One look whether a backend is there.

use tokio::time::timeout;

use crate::egress::Address;
use crate::registry::{ApiService, Resolved};

/// How many endpoints may use up their `probe-timeout` before a backend counts as not answering. Those that fail
/// at once cost no time: one good endpoint is found among any number that refuse.
const TRIES: u32 = 3;

/// Asks a backend whether it is there.
///
/// `GET` [`ApiService::discovery_path`] as `system:kube-aggregator` of `system:masters`, without following
/// a redirect; 2xx is an answer.
pub trait Probe {
    /// Asks one endpoint. It is dropped after the APIService's `probe-timeout`.
    fn probe(
        &self,
        api_service: &ApiService,
        resolved: &Resolved,
        endpoint: &Address,
    ) -> impl Future<Output = Result<(), ProbeFailure>>;
}

/// Why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFailure {
    /// For clients: without addresses and without a library's words.
    pub message: String,
    /// For logs and the status page.
    pub detail: String,
    /// Why no connection could be opened, for example `ConnectionRefused`; none if one was.
    pub dial_failure: Option<&'static str>,
}

impl ProbeFailure {
    /// The backend answered with this status. `untimely` says what is wrong with the dates of our certificate for it.
    pub fn status(api_service: &ApiService, code: u16, untimely: Option<&str>) -> ProbeFailure {
        let path = api_service.discovery_path();
        let hint = match (code, untimely) {
            (401, Some(untimely)) => &*format!(": the backend does not believe {untimely}"),
            (401, None) => ": the backend does not believe our front-proxy certificate",
            (403, _) => ": the backend does not let system:kube-aggregator in",
            (300..=399, _) => ": redirects are not followed",
            _ => "",
        };
        let message = format!("failing or missing response from {path}: bad status {code}{hint}");
        ProbeFailure { message, detail: String::new(), dial_failure: None }
    }

    /// No connection to the backend could be opened, for this `reason`.
    pub fn unreachable(api_service: &ApiService, reason: &'static str, detail: impl std::fmt::Display) -> ProbeFailure {
        ProbeFailure { dial_failure: Some(reason), ..ProbeFailure::broken(api_service, reason, detail) }
    }

    /// The backend was connected to, and gave no answer, for this `reason`.
    pub fn broken(api_service: &ApiService, reason: &str, detail: impl std::fmt::Display) -> ProbeFailure {
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

/// Asks endpoints one after the other, another one first each time, until one answers; says how each did.
pub(super) async fn one_probe(
    api_service: &ApiService,
    resolved: &Resolved,
    turn: usize,
    probe: &impl Probe,
    heard: impl Fn(&Address, Result<(), &ProbeFailure>),
) -> Result<(), ProbeFailure> {
    let (first, others) = resolved.endpoints.split_at(resolved.preferred.min(resolved.endpoints.len()));
    let start = if first.is_empty() { 0 } else { turn % first.len() };
    let order = first[start..].iter().chain(&first[..start]).chain(others);
    let mut failure = None;
    let until = tokio::time::Instant::now() + api_service.settings.probe_timeout * TRIES;
    for endpoint in order {
        if tokio::time::Instant::now() >= until {
            break;
        }
        let asked = timeout(api_service.settings.probe_timeout, probe.probe(api_service, resolved, endpoint)).await;
        let asked = asked.unwrap_or_else(|_| Err(ProbeFailure::timed_out(api_service, endpoint)));
        heard(endpoint, asked.as_ref().copied());
        match asked {
            Ok(()) => return Ok(()),
            Err(one) => failure = Some(one),
        }
    }
    failure.map_or(Ok(()), Err)
}
