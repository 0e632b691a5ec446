//! What `/status.json`, the status page and `narthex status` show.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::process::Phase;

/// The state of the process at one moment. Fields are only ever added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusReport {
    /// Version of the program.
    pub version: String,
    /// When the process started, from [`timestamp`].
    pub started: String,
    /// `serving`, `leaving`, `draining` or `ending`; from [`StatusReport::phase_of`].
    pub phase: String,
    /// Addresses that clients connect to.
    pub listen: Vec<String>,
    /// By name.
    pub apiservices: Vec<ApiServiceReport>,
    /// By file.
    pub certificates: Vec<Certificate>,
    /// Certificates that servers presented, by address: backends, egress proxies, API servers.
    pub peer_certificates: Vec<PeerCertificateReport>,
    /// The kube-apiserver that the registry comes from, if one does.
    pub cluster: Option<ClusterReport>,
    /// Who decides what users may, in this order.
    pub authorizers: Vec<String>,
    /// Mistakes in other files that changed, each as it was logged; what they said before is in use.
    pub file_problems: Vec<String>,
    /// The last requests that were refused or failed, the newest first.
    pub refusals: Vec<RefusalReport>,
    /// TLS handshakes of clients that failed, by reason.
    pub handshake_failures: BTreeMap<String, u64>,
    /// Where audit events go; empty when nothing is audited.
    pub audit: Vec<AuditSink>,
    /// API servers, webhooks, token issuers and egress proxies that are called.
    pub remote_calls: Vec<RemoteCallReport>,
    /// The proxies of the egress selections; empty where all goes direct.
    pub egress: Vec<EgressReport>,
    /// Mistakes in the registry, each as it was logged; the last good state is in use.
    pub registry_problems: Vec<String>,
    /// What in the registry is allowed and works, but deserves a second look.
    pub registry_warnings: Vec<String>,
    /// What is wrong with the discovery and OpenAPI documents of backends, as `APIService: document: what`, and whether a
    /// last good answer is served.
    pub document_problems: Vec<String>,
    /// Readiness checks that fail, as `name: why`.
    pub not_ready: Vec<String>,
    /// The level of the log.
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
    /// What keeps requests from being served as they should be, each as a few words.
    pub failures: Vec<String>,
    /// What does not yet.
    pub warnings: Vec<String>,
    /// APIServices, or upstreams of a sidecar; without the delegate.
    pub apiservices: u64,
    /// Those that are not available, or whose circuit is open.
    pub unavailable: u64,
    /// Those that were not probed yet.
    pub unknown: u64,
    /// Remote calls that fail.
    pub failing_remote_calls: u64,
    /// Certificates that have expired.
    pub expired_certificates: u64,
    /// Certificates that expire within 30 days.
    pub expiring_certificates: u64,
}

/// One APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServiceReport {
    /// For example `v1.example.narthex.dev`.
    pub name: String,
    /// What stands behind it: `namespace/name:port`, a URL, or `Local`.
    pub service: String,
    /// `None` before the first judgement.
    pub available: Option<bool>,
    /// Reason of the condition `Available`.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when the condition is as it is, from [`timestamp`].
    pub since: String,
    /// Where its requests may go.
    pub endpoints: Vec<EndpointReport>,
    /// How they get there: `direct`, or an egress selection and what is spoken to its proxies; empty for one that leads
    /// nowhere.
    pub way: String,
    /// `closed`, `half-open` or `open`; empty for one without a backend.
    pub circuit: String,
    /// What its backend said it serves.
    pub discovery: DiscoveryReport,
    /// Requests that run now and are not long-running.
    pub inflight: u64,
    /// Watches that are open now.
    pub watches: u64,
}

/// What the backend of an APIService said it serves, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveryReport {
    /// `current`, `stale` (what it said before is served), or `unasked`; empty for one without a backend.
    pub state: String,
    /// When it last said so, from [`timestamp`]; empty if it has not since the process started.
    pub last: String,
    /// Since when it is in this state, from [`timestamp`].
    pub since: String,
    /// Why it is not current, or could not be asked the last time.
    pub problem: String,
    /// Resources that are served for it.
    pub resources: u64,
}

/// One endpoint of an APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointReport {
    /// Address and port.
    pub address: String,
    /// `ready`; `ejected` while it gets no requests because it failed them; `unreachable` while no connection to it can
    /// be opened.
    pub state: String,
    /// Why it is unreachable, for example `ConnectionRefused` or `CertificateExpired`.
    pub reason: String,
    /// Connections that stand now.
    pub connections: u64,
    /// Requests under way, watches among them.
    pub inflight: u64,
    /// From a request to the head of its answer, in microseconds, on average of the last seconds; null when there was
    /// none.
    pub latency_micros: Option<u64>,
}

/// One proxy of an egress selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressReport {
    /// The selection; `otherwise` for what no selection is for.
    pub selection: String,
    /// `direct`, `socks5`, `http_connect` or `grpc`.
    pub protocol: String,
    /// Where the proxy is; empty for `direct`.
    pub proxy: String,
    /// `untried`, `serves`, or `fails` and why; empty for `direct`.
    pub state: String,
}

/// The calls to one API server, webhook, token issuer or egress proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteCallReport {
    /// `TokenReview`, `SubjectAccessReview`, `ConfigMap`, `issuer`, `registry`, `Lease`, `APIService status`,
    /// `CertificateSigningRequest`, `audit webhook` or `egress proxy`.
    pub call: String,
    /// Which of several, as configured; else empty.
    pub name: String,
    /// Its address; empty before the first call.
    pub server: String,
    /// When a call last succeeded, from [`timestamp`]; empty if none has.
    pub last_success: String,
    /// Since when calls fail, from [`timestamp`]; empty while they do not.
    pub failing_since: String,
    /// When the last call failed, from [`timestamp`]; empty while calls do not fail.
    pub last_failure: String,
    /// Error of the last call; empty while calls do not fail.
    pub error: String,
    /// Duration in microseconds: of successful calls, on a moving average; while calls fail, of the last one. Null before
    /// the first, and of watches.
    pub latency_micros: Option<u64>,
    /// Calls that succeeded since the process started.
    pub successes: u64,
    /// Calls that failed since the process started.
    pub errors: u64,
    /// Decisions that needed no call because they were cached; null where nothing is cached.
    pub cache_hits: Option<u64>,
}

impl RemoteCallReport {
    /// What is called, with its name if it has one.
    pub fn title(&self) -> String {
        if self.name.is_empty() { self.call.clone() } else { format!("{} {}", self.call, self.name) }
    }

    /// `untried`, `ok`, or since when it fails.
    pub fn state(&self, now: SystemTime) -> String {
        match (self.failing_since.as_str(), self.last_success.as_str()) {
            ("", "") => "untried".to_owned(),
            ("", _) => "ok".to_owned(),
            (since, _) => format!("failing for {}", StatusReport::age(since, now)),
        }
    }

    /// How long ago a call last succeeded.
    pub fn succeeded(&self, now: SystemTime) -> String {
        match self.last_success.as_str() {
            "" => "never".to_owned(),
            last => format!("{} ago", StatusReport::age(last, now)),
        }
    }

    /// Its latency as `0.7ms`, `12ms` or `3.4s`; empty when there is none.
    pub fn latency(&self) -> String {
        latency(self.latency_micros)
    }

    /// How many decisions were cached; empty where nothing is.
    pub fn hits(&self) -> String {
        self.cache_hits.map(|hits| hits.to_string()).unwrap_or_default()
    }
}

/// A request that was refused or failed. Its query is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusalReport {
    /// When it ended, from [`timestamp`]; of several that are alike, the last.
    pub time: String,
    /// Address of the client.
    pub client: String,
    /// Name of the user; empty if nobody was authenticated.
    pub user: String,
    /// Name of the impersonated user; empty if there is none.
    pub impersonated: String,
    /// The verb, for example `LIST`.
    pub verb: String,
    /// The path, which names the resource.
    pub path: String,
    /// Status code that the client got; 0 if it got none.
    pub status: u16,
    /// The reason of the Status, or how the response ended.
    pub reason: String,
    /// Why, in words for the operator.
    pub cause: String,
    /// Audit ID of the last one.
    pub audit_id: String,
    /// How many there were that differ in nothing but time and audit ID.
    pub count: u64,
}

impl RefusalReport {
    /// `jane`, `jane as john`, or the client's address if nobody was authenticated.
    pub fn who(&self) -> String {
        match (self.user.as_str(), self.impersonated.as_str()) {
            ("", _) => self.client.clone(),
            (user, "") => user.to_owned(),
            (user, impersonated) => format!("{user} as {impersonated}"),
        }
    }
}

/// One certificate that we present or trust.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Certificate {
    /// Where it was read from.
    pub file: String,
    /// Its subject.
    pub subject: String,
    /// Its subject alternative names.
    pub names: Vec<String>,
    /// When it begins to be valid, from [`timestamp`].
    pub not_before: String,
    /// When it ends, from [`timestamp`].
    pub not_after: String,
}

/// The certificate that a server presented in the last handshake of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerCertificateReport {
    /// Address and port of the server.
    pub server: String,
    /// The name it was asked to have.
    pub server_name: String,
    /// What it is to us: APIServices, egress selections and remote calls, separated by commas; empty if that is not known
    /// any more.
    pub used_by: String,
    /// Its subject.
    pub subject: String,
    /// When it begins to be valid, from [`timestamp`].
    pub not_before: String,
    /// When it ends, from [`timestamp`].
    pub not_after: String,
    /// Why it was refused, for example `UnknownIssuer` or `CertificateExpired`; empty if it was accepted.
    pub refused: String,
}

/// The kube-apiserver that the registry comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterReport {
    /// Its address.
    pub server: String,
    /// Whether it has said all there is at least once.
    pub complete: bool,
    /// Since when it cannot be followed, from [`timestamp`]; empty while it can.
    pub failing_since: String,
    /// Why.
    pub failure: String,
    /// Who we are among those who may write conditions; empty when nobody is elected.
    pub identity: String,
    /// Whether we write them.
    pub leads: bool,
    /// Who does, as far as is known.
    pub leader: String,
}

impl ClusterReport {
    /// How it goes, as a sentence without an end.
    pub fn describe(&self, now: SystemTime) -> String {
        let following = match (self.complete, self.failing_since.is_empty()) {
            (_, false) => {
                let since = StatusReport::age(&self.failing_since, now);
                let used = if self.complete { "; what it said last is used" } else { "" };
                format!("cannot be followed for {since}{used} ({})", self.failure)
            }
            (false, true) => "is being read".to_owned(),
            (true, true) => "is followed".to_owned(),
        };
        let writing = match (self.leads, self.leader.as_str()) {
            (true, _) => "written by this gateway".to_owned(),
            (false, "") => "written by nobody".to_owned(),
            (false, leader) => format!("written by {leader}"),
        };
        format!("the registry of {} {following}; conditions are {writing}", self.server)
    }
}

/// One place where audit events go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditSink {
    /// `log` or `webhook`.
    pub name: String,
    /// Events that are not written or delivered yet.
    pub waiting: u64,
    /// Events for which there was no room, since the process started.
    pub dropped: u64,
}

impl StatusReport {
    /// The word for a phase of the process.
    pub fn phase_of(phase: Phase) -> &'static str {
        match phase {
            Phase::Serving => "serving",
            Phase::Leaving => "leaving",
            Phase::Draining => "draining",
            Phase::Ending | Phase::Over => "ending",
        }
    }

    /// The remote calls, those that fail first.
    pub fn remote_calls_in_order(&self) -> impl Iterator<Item = &RemoteCallReport> {
        let (good, failing): (Vec<_>, Vec<_>) = self.remote_calls.iter().partition(|of| of.failing_since.is_empty());
        failing.into_iter().chain(good)
    }

    /// Each endpoint with the name of its APIService, those that are not ready first.
    pub fn endpoints_in_order(&self) -> impl Iterator<Item = (&str, &EndpointReport)> {
        let all = self.apiservices_in_order().flat_map(|one| one.endpoints.iter().map(|of| (one.name.as_str(), of)));
        let (ready, failing): (Vec<_>, Vec<_>) = all.partition(|(_, of)| of.state == "ready");
        failing.into_iter().chain(ready)
    }

    /// Whether what stands behind are the upstreams of a sidecar, by the paths they own, and no APIServices.
    pub fn guards_upstreams(&self) -> bool {
        !self.apiservices.is_empty() && self.apiservices.iter().all(|one| one.name.starts_with('/'))
    }
}

impl ApiServiceReport {
    /// The column AVAILABLE as `kubectl get apiservices` prints it: `True`, `False (Reason)`, `Unknown`; and whether
    /// the circuit is not closed, which is no part of the condition.
    pub fn availability(&self) -> String {
        match self.available {
            Some(true) if !matches!(&*self.circuit, "" | "closed") => format!("True (circuit {})", self.circuit),
            Some(true) => "True".to_owned(),
            Some(false) if self.reason.is_empty() => "False".to_owned(),
            Some(false) => format!("False ({})", self.reason),
            None => "Unknown".to_owned(),
        }
    }

    /// How many of how many endpoints take requests, as `1/2`.
    pub fn ready_endpoints(&self) -> String {
        let ready = self.endpoints.iter().filter(|endpoint| endpoint.state == "ready").count();
        format!("{ready}/{}", self.endpoints.len())
    }
}

impl DiscoveryReport {
    /// As `12s ago`, `stale, 5m ago` or `stale, never`: how long ago its backend last said what it serves.
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

    /// Its latency as `0.7ms`, `12ms` or `3.4s`; empty when there is none.
    pub fn latency(&self) -> String {
        latency(self.latency_micros)
    }
}

fn latency(micros: Option<u64>) -> String {
    match micros.map(|micros| micros as f64 / 1000.0) {
        None => String::new(),
        Some(millis) if millis < 10.0 => format!("{millis:.1}ms"),
        Some(millis) if millis < 1000.0 => format!("{millis:.0}ms"),
        Some(millis) => format!("{:.1}s", millis / 1000.0),
    }
}

/// A moment as RFC 3339 with whole seconds, as `metav1.Time` has it.
pub fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map(|time| time.strftime("%FT%TZ").to_string()).unwrap_or_default()
}

/// How long before (or after) `now` the moment `timestamp` is; `None` if it is no moment.
pub(super) fn distance(timestamp: &str, now: SystemTime) -> Option<Distance> {
    let time = SystemTime::from(timestamp.parse::<jiff::Timestamp>().ok()?);
    Some(match now.duration_since(time) {
        Ok(past) => Distance::Past(past),
        Err(future) => Distance::Future(future.duration()),
    })
}

/// On which side of now a moment is.
pub(super) enum Distance {
    Past(Duration),
    Future(Duration),
}

impl StatusReport {
    /// How long ago `timestamp` was, for a column AGE; `<unknown>` if it does not say.
    pub fn age(timestamp: &str, now: SystemTime) -> String {
        match distance(timestamp, now) {
            Some(Distance::Past(past)) => human_duration(past),
            Some(Distance::Future(_)) => human_duration(Duration::ZERO),
            None => "<unknown>".to_owned(),
        }
    }

    /// When `timestamp` will be: `in 89d`, `expired 5m ago`.
    pub fn expiry(timestamp: &str, now: SystemTime) -> String {
        match distance(timestamp, now) {
            Some(Distance::Past(past)) => format!("expired {} ago", human_duration(past)),
            Some(Distance::Future(left)) => format!("in {}", human_duration(left)),
            None => "<unknown>".to_owned(),
        }
    }
}

/// A duration in the few characters that kubectl's tables use (apimachinery's `HumanDuration`):
/// finer the shorter it is.
pub fn human_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let years = days / 365;
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if years < 8 => two(years, "y", days % 365, "d"),
        () => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
        ] {
            assert_eq!(human_duration(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn moments_are_told_from_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        assert_eq!(timestamp(now), "2026-11-20T00:00:00Z");
        assert_eq!(StatusReport::age("2026-11-19T23:59:00Z", now), "60s");
        assert_eq!(StatusReport::expiry("2026-11-19T23:59:00Z", now), "expired 60s ago");
        assert_eq!(StatusReport::expiry("2026-12-20T00:00:00Z", now), "in 30d");
        assert_eq!(StatusReport::age("yesterday", now), "<unknown>");
    }

    #[test]
    fn what_was_said_of_discovery_and_when() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let said = |state: &str, last: &str| {
            DiscoveryReport { state: state.into(), last: last.into(), ..DiscoveryReport::default() }.describe(now)
        };
        assert_eq!(said("current", "2026-11-19T23:59:48Z"), "12s ago");
        assert_eq!(said("stale", "2026-11-19T23:55:00Z"), "stale, 5m ago");
        assert_eq!(
            (said("stale", ""), said("unasked", ""), said("", "")),
            ("stale, never".into(), "unasked".into(), "".into())
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
    fn the_report_keeps_the_names_of_its_fields() {
        let report = StatusReport {
            apiservices: vec![ApiServiceReport { available: Some(false), ..Default::default() }],
            certificates: vec![Certificate::default()],
            ..Default::default()
        };
        let value = serde_json::to_value(&report).unwrap();
        for pointer in ["/logLevel", "/registryProblems", "/certificates/0/notAfter", "/apiservices/0/inflight"] {
            assert!(value.pointer(pointer).is_some(), "{pointer} of {value}");
        }
        assert_eq!(serde_json::from_value::<StatusReport>(value).unwrap(), report);
    }
}
