//! Health of remote calls by this process: to API servers, webhooks, token issuers and egress proxies.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::observe::metrics::counters::StripedCounter;
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Maximum length of a stored error, in characters.
const MAX_ERROR_LENGTH: usize = 400;
/// Minimum interval between two log lines about failing calls to one server.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Kind of remote call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// `TokenReview` of an API server or a webhook.
    TokenReview,
    /// `SubjectAccessReview` of an API server or a webhook.
    SubjectAccessReview,
    /// Reads of the ConfigMap `kube-system/extension-apiserver-authentication`.
    ConfigMap,
    /// The keys of a token issuer.
    Issuer,
    /// APIServices, Services and EndpointSlices of a kube-apiserver.
    Registry,
    /// Lease of the leader election.
    Lease,
    /// Writes of APIService conditions to a kube-apiserver.
    ApiServiceStatus,
    /// The request for a serving certificate (`certificates.k8s.io`).
    CertificateSigningRequest,
    /// Audit webhook.
    AuditWebhook,
    /// The collector of traces.
    TraceCollector,
    /// A proxy of an egress selection.
    EgressProxy,
}

impl CallKind {
    /// Name in the log, in the status and in the label `call`.
    pub fn as_str(self) -> &'static str {
        match self {
            CallKind::TokenReview => "TokenReview",
            CallKind::SubjectAccessReview => "SubjectAccessReview",
            CallKind::ConfigMap => "ConfigMap",
            CallKind::Issuer => "issuer",
            CallKind::Registry => "registry",
            CallKind::Lease => "Lease",
            CallKind::ApiServiceStatus => "APIService status",
            CallKind::CertificateSigningRequest => "CertificateSigningRequest",
            CallKind::AuditWebhook => "audit webhook",
            CallKind::TraceCollector => "trace collector",
            CallKind::EgressProxy => "egress proxy",
        }
    }

    /// Whether the call is a TokenReview or SubjectAccessReview.
    pub fn is_review(self) -> bool {
        matches!(self, CallKind::TokenReview | CallKind::SubjectAccessReview)
    }
}

/// Health of the calls of one client to one server; its owner records each result.
pub struct CallHealth {
    kind: CallKind,
    name: String,
    cache_hits: StripedCounter,
    state: Mutex<CallState>,
}

#[derive(Default)]
struct CallState {
    server: String,
    successes: u64,
    errors: u64,
    last_success: Option<SystemTime>,
    failure: Option<CallFailure>,
    latency: Option<Duration>,
    has_open_watch: bool,
    /// Whether the last log line reported failing calls.
    logged_as_failing: bool,
    /// When failing calls were last logged.
    logged: Option<Instant>,
}

/// The current failure of calls to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// Time of the first failure since the last success.
    pub since: SystemTime,
    /// Time of the last failure.
    pub last: SystemTime,
    /// Error of the last failure.
    pub error: String,
    /// Duration of the last failed call; `None` for a watch.
    pub duration: Option<Duration>,
}

/// Snapshot of the health of calls to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStatus {
    /// Kind of call.
    pub kind: CallKind,
    /// Configured name (webhook, egress selection) if there are several; else empty.
    pub name: String,
    /// Address of the server; empty before the first call.
    pub server: String,
    /// Successful calls since the process started.
    pub successes: u64,
    /// Failed calls since the process started.
    pub errors: u64,
    /// Last success; now, while a watch is open.
    pub last_success: Option<SystemTime>,
    /// Set while calls fail.
    pub failure: Option<CallFailure>,
    /// Moving average of the duration of successful calls.
    pub latency: Option<Duration>,
    /// Decisions answered from the cache without a call.
    pub cache_hits: u64,
}

/// State change caused by a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallChange {
    /// The previous call had the same result.
    None,
    /// The call failed after a success.
    Failed,
    /// The call succeeded after a failure.
    Recovered,
}

impl CallHealth {
    /// Records one call to `server` with its result and duration. Logs a change of state.
    pub fn record(&self, server: impl std::fmt::Display, result: Result<(), &str>, duration: Duration) {
        self.record_quietly(server, result, duration);
        match (self.change_to_log(Instant::now()), self.status()) {
            (CallChange::Failed, CallStatus { kind, name, server, failure: Some(failure), .. }) => {
                let (call, error) = (kind.as_str(), failure.error);
                tracing::error!(call, name, server, error, "remote calls fail; see 'narthex status'");
            }
            (CallChange::Recovered, CallStatus { kind, name, server, .. }) => {
                tracing::info!(call = kind.as_str(), name, server, "remote calls succeed again");
            }
            _ => {}
        }
    }

    /// The state change that has to be logged. A failure too soon after a logged one is logged later, if calls still
    /// fail then; a recovery is logged if its failure was.
    fn change_to_log(&self, now: Instant) -> CallChange {
        let mut state = self.state.lock();
        match (state.failure.is_some(), state.logged_as_failing) {
            (true, false) if state.logged.is_none_or(|last| now - last >= LOG_INTERVAL) => {
                (state.logged_as_failing, state.logged) = (true, Some(now));
                CallChange::Failed
            }
            (false, true) => {
                state.logged_as_failing = false;
                CallChange::Recovered
            }
            _ => CallChange::None,
        }
    }

    /// Like [`CallHealth::record`], for callers that log changes themselves.
    pub fn record_quietly(
        &self,
        server: impl std::fmt::Display,
        result: Result<(), &str>,
        duration: Duration,
    ) -> CallChange {
        let (server, now) = (server.to_string(), SystemTime::now());
        let mut state = self.state.lock();
        if state.server != server {
            state.server = server;
        }
        match result {
            Ok(()) => {
                state.successes += 1;
                state.last_success = Some(now);
                state.latency = Some(state.latency.map_or(duration, |before| (before * 7 + duration) / 8));
                if state.failure.take().is_some() { CallChange::Recovered } else { CallChange::None }
            }
            Err(error) => {
                state.errors += 1;
                let error = error.chars().take(MAX_ERROR_LENGTH).collect();
                let since = state.failure.as_ref().map_or(now, |failure| failure.since);
                let before = state.failure.replace(CallFailure { since, last: now, error, duration: Some(duration) });
                if before.is_none() { CallChange::Failed } else { CallChange::None }
            }
        }
    }

    /// Records that a watch of `server` is open, or since when and why it fails.
    pub fn record_watch(&self, server: &str, failure: Option<(SystemTime, &str)>) {
        let now = SystemTime::now();
        let mut state = self.state.lock();
        server.clone_into(&mut state.server);
        if state.has_open_watch || failure.is_none() {
            state.last_success = Some(now);
        }
        state.has_open_watch = failure.is_none();
        match failure {
            None => state.successes += u64::from(state.failure.take().is_some() || state.successes == 0),
            Some((since, error)) => {
                state.errors += 1;
                let error = error.chars().take(MAX_ERROR_LENGTH).collect();
                state.failure = Some(CallFailure { since, last: now, error, duration: None });
            }
        }
    }

    /// Counts a decision answered from the cache. Counts on several threads do not contend.
    pub fn record_cache_hit(&self) {
        self.cache_hits.increment();
    }

    /// Whether no call has succeeded yet, or the last one failed.
    pub fn is_unproven(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_some() || state.successes == 0
    }

    /// Snapshot of the current state.
    pub fn status(&self) -> CallStatus {
        let state = self.state.lock();
        CallStatus {
            kind: self.kind,
            name: self.name.clone(),
            server: state.server.clone(),
            successes: state.successes,
            errors: state.errors,
            last_success: if state.has_open_watch { Some(SystemTime::now()) } else { state.last_success },
            failure: state.failure.clone(),
            latency: state.latency,
            cache_hits: self.cache_hits.get(),
        }
    }
}

/// Registry of all [`CallHealth`]s that are in use.
#[derive(Default)]
pub struct Calls(Mutex<Vec<Weak<CallHealth>>>);

impl Calls {
    /// Registers calls of `kind` to the server configured as `name` (empty if there is only one). They are shown until
    /// the returned reference is dropped.
    pub fn register(&self, kind: CallKind, name: &str) -> Arc<CallHealth> {
        let health =
            CallHealth { kind, name: name.to_owned(), cache_hits: StripedCounter::default(), state: Mutex::default() };
        let health = Arc::new(health);
        let mut all = self.0.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&health));
        health
    }

    /// Snapshots of all registered calls, sorted by kind and name.
    pub fn status(&self) -> Vec<CallStatus> {
        let all: Vec<Arc<CallHealth>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let mut all: Vec<CallStatus> = all.iter().map(|health| health.status()).collect();
        all.sort_by(|a, b| (a.kind, &a.name, &a.server).cmp(&(b.kind, &b.name, &b.server)));
        all
    }

    /// Families `narthex_remote_call*`.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        let all = self.status();
        text.family(
            "narthex_remote_call_failing",
            MetricType::Gauge,
            "1 while the last call to an API server, webhook, token issuer or egress proxy failed.",
        );
        for of in &all {
            text.sample(&of.labels(), u64::from(of.failure.is_some()));
        }
        text.family(
            "narthex_remote_call_last_success_timestamp_seconds",
            MetricType::Gauge,
            "When a call last succeeded, in seconds since 1970.",
        );
        for of in &all {
            let seconds = of.last_success.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            if let Some(seconds) = seconds {
                text.sample(&of.labels(), seconds.as_secs());
            }
        }
        text.family("narthex_remote_calls_total", MetricType::Counter, "Calls by their result.");
        for of in &all {
            let [call, name, server] = of.labels();
            for (result, count) in [("success", of.successes), ("error", of.errors)] {
                text.sample(&[call, name, ("result", result), server], count);
            }
        }
    }
}

impl CallStatus {
    fn labels(&self) -> [(&'static str, &str); 3] {
        [("call", self.kind.as_str()), ("name", &self.name), ("server", &self.server)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_health_keeps_the_first_failure_until_a_success() {
        let calls = Calls::default();
        let health = calls.register(CallKind::TokenReview, "");
        assert!(health.is_unproven());
        let record = |result| health.record_quietly("10.0.0.1:443", result, Duration::from_millis(8));
        assert_eq!([record(Err("no")), record(Err("never"))], [CallChange::Failed, CallChange::None]);
        let failure = health.status().failure.unwrap();
        assert_eq!((failure.error.as_str(), failure.duration), ("never", Some(Duration::from_millis(8))));
        assert!(failure.since <= failure.last);
        assert_eq!(health.status().last_success, None);
        assert_eq!([record(Ok(())), record(Ok(()))], [CallChange::Recovered, CallChange::None]);
        let status = health.status();
        assert_eq!((status.successes, status.errors, status.failure), (2, 2, None));
        assert_eq!((status.latency, status.server.as_str()), (Some(Duration::from_millis(8)), "10.0.0.1:443"));
        assert!(status.last_success.is_some() && !health.is_unproven());
    }

    #[test]
    fn call_health_logs_failures_at_intervals_and_each_recovery_of_one() {
        let calls = Calls::default();
        let health = calls.register(CallKind::TokenReview, "");
        let now = Instant::now();
        let after = |result, millis| {
            health.record_quietly("a", result, Duration::ZERO);
            health.change_to_log(now + Duration::from_millis(millis))
        };
        assert_eq!(
            [after(Ok(()), 0), after(Err("no"), 0), after(Err("no"), 10), after(Ok(()), 20), after(Ok(()), 30)],
            [CallChange::None, CallChange::Failed, CallChange::None, CallChange::Recovered, CallChange::None]
        );
        // The next failure is too soon after the first; it is logged later while calls still fail.
        assert_eq!(
            [
                after(Err("no"), 40),
                after(Ok(()), 50),
                after(Err("no"), 60),
                after(Err("no"), 1000),
                after(Ok(()), 1001)
            ],
            [CallChange::None, CallChange::None, CallChange::None, CallChange::Failed, CallChange::Recovered]
        );
    }

    #[test]
    fn call_health_bounds_errors_and_ends_with_its_owner() {
        let calls = Calls::default();
        let health = calls.register(CallKind::SubjectAccessReview, "guard");
        health.record_quietly("a", Err(&"x".repeat(10_000)), Duration::ZERO);
        assert_eq!(health.status().failure.unwrap().error.len(), MAX_ERROR_LENGTH);
        assert_eq!(calls.status().len(), 1);
        drop(health);
        assert_eq!(calls.status(), []);
    }

    #[test]
    fn call_health_of_a_watch_succeeds_while_it_is_open() {
        let calls = Calls::default();
        let health = calls.register(CallKind::Registry, "");
        health.record_watch("a", None);
        assert!(health.status().last_success.is_some_and(|at| at <= SystemTime::now()));
        let since = SystemTime::UNIX_EPOCH;
        health.record_watch("a", Some((since, "403")));
        assert_eq!(health.status().failure.map(|failure| failure.since), Some(since));
        health.record_watch("a", None);
        assert_eq!((health.status().failure, health.status().successes), (None, 2));
    }
}
