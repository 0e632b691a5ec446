//! The status report shown by `/status.json`, the status page and `narthex status`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::attention_report::AttentionReport;
use super::control_plane_report::ControlPlaneReport;
use super::storage_report::StorageReport;
use super::traffic_report::TrafficReport;
use crate::observe::times::{format_age, format_expiry, format_latency};
use crate::process::ShutdownPhase;
use crate::tls::CertificateReport;

/// The state of the process at one moment. Fields are only added, never removed or renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusReport {
    /// Version of Narthex.
    pub version: String,
    /// When the process started, from [`timestamp`](super::timestamp).
    pub started: String,
    /// `serving`, `leaving`, `draining` or `ending`; from [`StatusReport::phase_name`].
    pub phase: String,
    /// Addresses of the client listeners.
    pub listen: Vec<String>,
    /// APIServices, sorted by name.
    pub apiservices: Vec<ApiServiceReport>,
    /// Configured certificates, sorted by file.
    pub certificates: Vec<CertificateReport>,
    /// Certificates that servers presented, by address: backends, egress proxies, API servers.
    pub peer_certificates: Vec<PeerCertificateReport>,
    /// The kube-apiserver that the registry is read from, if any.
    pub cluster: Option<ClusterReport>,
    /// The store of the embedded API server, if there is one.
    pub storage: Option<StorageReport>,
    /// Authorizers in the order in which they are asked.
    pub authorizers: Vec<String>,
    /// Mistakes in other files that changed, as logged; the last good content is in use.
    pub file_problems: Vec<String>,
    /// The last requests that were refused or failed, newest first.
    pub refusals: Vec<RefusalReport>,
    /// Failed TLS handshakes of clients, by reason.
    pub handshake_failures: BTreeMap<String, u64>,
    /// Open client connections.
    pub client_connections: ClientConnectionsReport,
    /// Audit sinks; empty if auditing is off.
    pub audit: Vec<AuditSinkReport>,
    /// Calls to API servers, webhooks, token issuers and egress proxies.
    pub remote_calls: Vec<RemoteCallReport>,
    /// Proxies of the egress selections; empty without selections.
    pub egress: Vec<EgressReport>,
    /// Mistakes in the registry, as logged; the last good state is in use.
    pub registry_problems: Vec<String>,
    /// Warnings about registry objects that are valid but probably not intended.
    pub registry_warnings: Vec<String>,
    /// Problems of the discovery and OpenAPI documents of backends, as `APIService: document: problem`, and whether the
    /// last good document is served.
    pub document_problems: Vec<String>,
    /// Failing readiness checks, as `name: reason`.
    pub not_ready: Vec<String>,
    /// Control planes behind the gateway, in the order of their file.
    pub control_planes: Vec<ControlPlaneReport>,
    /// Current log level.
    pub log_level: String,
    /// What all of this comes to, when the process says it itself.
    pub verdict: VerdictReport,
}

/// The state of the process in one line, and in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerdictReport {
    /// Whether nothing fails: the exit status of `narthex status --fail`.
    pub ok: bool,
    /// The first line of `narthex status`.
    pub text: String,
    /// Conditions that affect requests, each in a few words.
    pub failures: Vec<String>,
    /// Conditions that do not affect requests yet, each in a few words.
    pub warnings: Vec<String>,
    /// Number of APIServices, or of upstreams of a sidecar; without the delegate.
    pub apiservices: u64,
    /// Number of APIServices that are not available, or have an open circuit.
    pub unavailable: u64,
    /// Number of APIServices that were not probed yet.
    pub unknown: u64,
    /// Number of remote calls that fail.
    pub failing_remote_calls: u64,
    /// Number of certificates that have expired.
    pub expired_certificates: u64,
    /// Number of certificates that expire within 30 days.
    pub expiring_certificates: u64,
    /// What needs attention, failures first.
    pub attention: Vec<AttentionReport>,
}

/// Open client connections, and how many may be open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnectionsReport {
    /// Number of open connections.
    pub open: usize,
    /// How many may be open; 0 for no limit.
    pub limit: usize,
}

impl ClientConnectionsReport {
    /// Whether further connections have to wait.
    pub fn are_at_limit(&self) -> bool {
        self.limit > 0 && self.open >= self.limit
    }
}

/// State of one APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServiceReport {
    /// Name, for example `v1.example.narthex.dev`.
    pub name: String,
    /// Backend: `namespace/name:port`, a URL, or `Local`.
    pub service: String,
    /// Status of the condition `Available`; `None` before the first probe.
    pub available: Option<bool>,
    /// Reason of the condition `Available`.
    pub reason: String,
    /// Message of the condition `Available`.
    pub message: String,
    /// Last transition of the condition, from [`timestamp`](super::timestamp).
    pub since: String,
    /// Endpoints of the backend.
    pub endpoints: Vec<EndpointReport>,
    /// Egress route: `direct`, or the egress selection and the protocol of its proxies; empty without a backend.
    pub egress_route: String,
    /// State of the circuit breaker: `closed`, `half-open` or `open`; empty without a backend.
    pub circuit: String,
    /// Discovery of its backend.
    pub discovery: DiscoveryReport,
    /// Requests in flight, without long-running ones.
    pub inflight: u64,
    /// Open watches.
    pub watches: u64,
    /// Requests of the last 15 minutes; left out without requests.
    #[serde(skip_serializing_if = "TrafficReport::is_empty")]
    pub traffic: TrafficReport,
}

/// State of the discovery document of an APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveryReport {
    /// `current`, `stale` (the last good document is served), or `notFetched`; empty without a backend.
    pub state: String,
    /// Last successful fetch since the process started, from [`timestamp`](super::timestamp); empty if there was none.
    pub last: String,
    /// Start of this state, from [`timestamp`](super::timestamp).
    pub since: String,
    /// Why the document is not current, or why the last fetch failed.
    pub problem: String,
    /// Number of resources served.
    pub resources: u64,
}

/// One endpoint of an APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointReport {
    /// Address and port.
    pub address: String,
    /// `ready`; `ejected` by outlier detection; `unreachable` while no connection can be opened.
    pub state: String,
    /// Reason of `unreachable`, for example `ConnectionRefused` or `CertificateExpired`.
    pub reason: String,
    /// Open connections.
    pub connections: u64,
    /// Requests in flight, including watches.
    pub inflight: u64,
    /// Average time to response headers over the last seconds, in microseconds; null if there was no request.
    pub latency_micros: Option<u64>,
    /// Requests of the last 15 minutes; left out without requests.
    #[serde(skip_serializing_if = "TrafficReport::is_empty")]
    pub traffic: TrafficReport,
}

/// One proxy of an egress selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressReport {
    /// Name of the selection; `otherwise` for destinations without one.
    pub selection: String,
    /// `direct`, `socks5`, `http_connect` or `grpc`.
    pub protocol: String,
    /// Address of the proxy; empty for `direct`.
    pub proxy: String,
    /// `untried`, `serves`, or `fails` with the reason; empty for `direct`.
    pub state: String,
    /// Tunnels of the selection with a Konnectivity agent that does not read.
    pub stalled_tunnels: u64,
}

impl EgressReport {
    /// The state, with stalled tunnels.
    pub fn describe_state(&self) -> String {
        match self.stalled_tunnels {
            0 => self.state.clone(),
            1 => format!("{}, 1 tunnel stalled", self.state),
            more => format!("{}, {more} tunnels stalled", self.state),
        }
    }
}

/// Calls to one API server, webhook, token issuer or egress proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteCallReport {
    /// `TokenReview`, `SubjectAccessReview`, `ConfigMap`, `issuer`, `registry`, `Lease`, `APIService status`,
    /// `CertificateSigningRequest`, `audit webhook`, `trace collector` or `egress proxy`.
    pub call: String,
    /// Configured name if there are several; else empty.
    pub name: String,
    /// Address of the server; empty before the first call.
    pub server: String,
    /// Last success, from [`timestamp`](super::timestamp); empty if there was none.
    pub last_success: String,
    /// First of the current failures, from [`timestamp`](super::timestamp); empty while calls succeed.
    pub failing_since: String,
    /// Last of the current failures, from [`timestamp`](super::timestamp); empty while calls succeed.
    pub last_failure: String,
    /// Error of the last call; empty while calls succeed.
    pub error: String,
    /// Duration in microseconds: moving average of successful calls; while calls fail, that of the last call. Null
    /// before the first call, and for watches.
    pub latency_micros: Option<u64>,
    /// Successful calls since the process started.
    pub successes: u64,
    /// Failed calls since the process started.
    pub errors: u64,
    /// Decisions answered from the cache; null without a cache.
    pub cache_hits: Option<u64>,
}

impl RemoteCallReport {
    /// Kind of call, with the configured name if there is one.
    pub fn title(&self) -> String {
        if self.name.is_empty() { self.call.clone() } else { format!("{} {}", self.call, self.name) }
    }

    /// Whether there was a call since the process started, which succeeded or failed.
    pub fn is_tried(&self) -> bool {
        !self.last_success.is_empty() || !self.failing_since.is_empty() || self.successes + self.errors > 0
    }

    /// `untried`, `ok`, or `failing for 5m`.
    pub fn state(&self, now: SystemTime) -> String {
        match (self.failing_since.as_str(), self.last_success.as_str()) {
            ("", "") => "untried".to_owned(),
            ("", _) => "ok".to_owned(),
            (since, _) => format!("failing for {}", StatusReport::age(since, now)),
        }
    }

    /// Age of the last success, or `never`.
    pub fn last_success_age(&self, now: SystemTime) -> String {
        match self.last_success.as_str() {
            "" => "never".to_owned(),
            last => format!("{} ago", StatusReport::age(last, now)),
        }
    }

    /// Latency as `0.7ms`, `12ms` or `3.4s`; empty when there is none.
    pub fn latency(&self) -> String {
        format_latency(self.latency_micros)
    }

    /// Number of cache hits; empty without a cache.
    pub fn cache_hits_display(&self) -> String {
        self.cache_hits.map(|hits| hits.to_string()).unwrap_or_default()
    }
}

/// A request that was refused or failed, without its query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusalReport {
    /// When the request ended, from [`timestamp`](super::timestamp); of several equal ones, the last.
    pub time: String,
    /// Address of the client.
    pub client: String,
    /// Name of the user; empty if the request was not authenticated.
    pub user: String,
    /// Name of the impersonated user; empty if there is none.
    pub impersonated: String,
    /// Verb, for example `LIST`.
    pub verb: String,
    /// Path of the request, after the name of its control plane if it has one.
    pub path: String,
    /// Status code sent to the client; 0 if none was sent.
    pub status: u16,
    /// Reason of the Status, or how the response ended.
    pub reason: String,
    /// Cause, for the operator.
    pub cause: String,
    /// Audit ID of the last of these requests.
    pub audit_id: String,
    /// Number of requests that differ only in time and audit ID.
    pub count: u64,
}

impl RefusalReport {
    /// `jane`, `jane as john`, or the client's address for an unauthenticated request.
    pub fn user_display(&self) -> String {
        match (self.user.as_str(), self.impersonated.as_str()) {
            ("", _) => self.client.clone(),
            (user, "") => user.to_owned(),
            (user, impersonated) => format!("{user} as {impersonated}"),
        }
    }
}

/// The certificate that a server presented in the last TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerCertificateReport {
    /// Address and port of the server.
    pub server: String,
    /// Server name (SNI) requested in the handshake.
    pub server_name: String,
    /// Users of the connection: APIServices, egress selections and remote calls, separated by commas; empty if they are
    /// not known any more.
    pub used_by: String,
    /// Subject of the certificate.
    pub subject: String,
    /// Begin of the validity, from [`timestamp`](super::timestamp).
    pub not_before: String,
    /// End of the validity, from [`timestamp`](super::timestamp).
    pub not_after: String,
    /// Reason if the certificate was refused, for example `UnknownIssuer` or `CertificateExpired`; else empty.
    pub refused: String,
}

/// The kube-apiserver that the registry is read from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterReport {
    /// Address of the kube-apiserver.
    pub server: String,
    /// Whether the registry was read completely at least once.
    pub complete: bool,
    /// Since when watching fails, from [`timestamp`](super::timestamp); empty while it works.
    pub failing_since: String,
    /// Why watching fails.
    pub failure: String,
    /// Identity of this process in the leader election; empty without one.
    pub identity: String,
    /// Whether this process is the leader and writes conditions.
    pub leads: bool,
    /// Identity of the current leader, if known.
    pub leader: String,
}

impl ClusterReport {
    /// Describes the state of the watch and of the leader election in one line.
    pub fn describe(&self, now: SystemTime) -> String {
        let following = match (self.complete, self.failing_since.is_empty()) {
            (_, false) => {
                let since = StatusReport::age(&self.failing_since, now);
                let used = if self.complete { "; the last known state is in use" } else { "" };
                format!("watch failing for {since}{used} ({})", self.failure)
            }
            (false, true) => "initial list in progress".to_owned(),
            (true, true) => "watched".to_owned(),
        };
        let writing = match (self.leads, self.leader.as_str()) {
            (true, _) => "written by this gateway".to_owned(),
            (false, "") => "written by no gateway".to_owned(),
            (false, leader) => format!("written by {leader}"),
        };
        format!("registry of {}: {following}; APIService conditions are {writing}", self.server)
    }
}

/// One audit sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditSinkReport {
    /// `log` or `webhook`.
    pub name: String,
    /// Events not written or delivered yet.
    pub waiting: u64,
    /// Events dropped because the queue was full, since the process started.
    pub dropped: u64,
}

impl StatusReport {
    /// Name of a shutdown phase.
    pub fn phase_name(phase: ShutdownPhase) -> &'static str {
        match phase {
            ShutdownPhase::Serving => "serving",
            ShutdownPhase::Leaving => "leaving",
            ShutdownPhase::Draining => "draining",
            ShutdownPhase::Ending | ShutdownPhase::TimedOut => "ending",
        }
    }

    /// Remote calls, failing ones first; without those that were not tried yet, of which there is nothing to tell.
    pub fn remote_calls_in_order(&self) -> impl Iterator<Item = &RemoteCallReport> {
        let tried = self.remote_calls.iter().filter(|of| of.is_tried());
        let (good, failing): (Vec<_>, Vec<_>) = tried.partition(|of| of.failing_since.is_empty());
        failing.into_iter().chain(good)
    }

    /// Each endpoint with the name of its APIService, those that are not ready first.
    pub fn endpoints_in_order(&self) -> impl Iterator<Item = (&str, &EndpointReport)> {
        let all = self.apiservices_in_order().flat_map(|one| one.endpoints.iter().map(|of| (one.name.as_str(), of)));
        let (ready, failing): (Vec<_>, Vec<_>) = all.partition(|(_, of)| of.state == "ready");
        failing.into_iter().chain(ready)
    }

    /// Whether the entries are the upstreams of a sidecar, named by path, instead of APIServices.
    pub fn is_sidecar(&self) -> bool {
        !self.apiservices.is_empty() && self.apiservices.iter().all(|one| one.name.starts_with('/'))
    }
}

impl ApiServiceReport {
    /// The column AVAILABLE as `kubectl get apiservices` prints it: `True`, `False (Reason)`, `Unknown`. Also shows a
    /// circuit that is not closed, which is not part of the condition.
    pub fn availability(&self) -> String {
        match self.available {
            Some(true) if !matches!(&*self.circuit, "" | "closed") => format!("True (circuit {})", self.circuit),
            Some(true) => "True".to_owned(),
            Some(false) if self.reason.is_empty() => "False".to_owned(),
            Some(false) => format!("False ({})", self.reason),
            None => "Unknown".to_owned(),
        }
    }

    /// Whether it had requests in the last 15 minutes.
    pub fn has_traffic(&self) -> bool {
        !self.traffic.is_empty()
    }

    /// Ready and total endpoints, as `1/2`.
    pub fn ready_endpoints(&self) -> String {
        let ready = self.endpoints.iter().filter(|endpoint| endpoint.state == "ready").count();
        format!("{ready}/{}", self.endpoints.len())
    }
}

impl DiscoveryReport {
    /// Age of the last successful fetch: `12s ago`, `stale, 5m ago` or `stale, never`.
    pub fn describe(&self, now: SystemTime) -> String {
        let last = match self.last.as_str() {
            "" => "never".to_owned(),
            last => format!("{} ago", StatusReport::age(last, now)),
        };
        match self.state.as_str() {
            "" => String::new(),
            "current" => last,
            "stale" => format!("stale, {last}"),
            other => other.to_owned(),
        }
    }
}

impl EndpointReport {
    /// The column STATE: `ready`, `ejected`, `unreachable (Reason)`.
    pub fn describe(&self) -> String {
        if self.reason.is_empty() { self.state.clone() } else { format!("{} ({})", self.state, self.reason) }
    }

    /// Latency as `0.7ms`, `12ms` or `3.4s`; empty when there is none.
    pub fn latency(&self) -> String {
        format_latency(self.latency_micros)
    }
}

impl StatusReport {
    /// Age of `timestamp`, for a column AGE; `<unknown>` if it cannot be parsed.
    pub fn age(timestamp: &str, now: SystemTime) -> String {
        format_age(timestamp, now)
    }

    /// Time until `timestamp`: `in 89d`, `expired 5m ago`.
    pub fn expiry(timestamp: &str, now: SystemTime) -> String {
        format_expiry(timestamp, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::times::timestamp;

    #[test]
    fn status_report_ages_are_relative_to_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        assert_eq!(timestamp(now), "2026-11-20T00:00:00Z");
        assert_eq!(StatusReport::age("2026-11-19T23:59:00Z", now), "60s");
        assert_eq!(StatusReport::expiry("2026-11-19T23:59:00Z", now), "expired 60s ago");
        assert_eq!(StatusReport::expiry("2026-12-20T00:00:00Z", now), "in 30d");
        assert_eq!(StatusReport::age("yesterday", now), "<unknown>");
    }

    #[test]
    fn discovery_report_describes_state_and_age() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let said = |state: &str, last: &str| {
            DiscoveryReport { state: state.into(), last: last.into(), ..DiscoveryReport::default() }.describe(now)
        };
        assert_eq!(said("current", "2026-11-19T23:59:48Z"), "12s ago");
        assert_eq!(said("stale", "2026-11-19T23:55:00Z"), "stale, 5m ago");
        assert_eq!(
            (said("stale", ""), said("notFetched", ""), said("", "")),
            ("stale, never".into(), "notFetched".into(), "".into())
        );
    }

    #[test]
    fn endpoints_that_fail_come_first() {
        let endpoint = |address: &str, state: &str| EndpointReport {
            address: address.into(),
            state: state.into(),
            ..EndpointReport::default()
        };
        let one =
            |name: &str, endpoints| ApiServiceReport { name: name.into(), endpoints, ..ApiServiceReport::default() };
        let apiservices = vec![
            one("a", vec![endpoint("1", "ready"), endpoint("2", "ejected")]),
            one("b", vec![endpoint("3", "ready"), endpoint("4", "unreachable")]),
        ];
        let report = StatusReport { apiservices, ..StatusReport::default() };
        let order: Vec<_> = report.endpoints_in_order().map(|(name, of)| format!("{name}{}", of.address)).collect();
        assert_eq!(order, ["a2", "b4", "a1", "b3"]);
    }

    #[test]
    fn status_report_json_field_names() {
        let report = StatusReport {
            apiservices: vec![ApiServiceReport { available: Some(false), ..Default::default() }],
            certificates: vec![CertificateReport::default()],
            ..Default::default()
        };
        let value = serde_json::to_value(&report).unwrap();
        for pointer in ["/logLevel", "/registryProblems", "/certificates/0/notAfter", "/apiservices/0/inflight"] {
            assert!(value.pointer(pointer).is_some(), "{pointer} of {value}");
        }
        assert_eq!(serde_json::from_value::<StatusReport>(value).unwrap(), report);
    }
}
