//! One-line summary of the status report.

use std::time::{Duration, SystemTime};

use super::control_plane_report::ControlPlaneReport;
use super::expiry::{count_expired, describe_expired, describe_expiring};
use super::status_report::{ApiServiceReport, RemoteCallReport, StatusReport, VerdictReport};
use crate::registry::DELEGATE;

/// Failures and warnings, each in a few words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusSummary {
    /// Conditions that affect requests.
    pub failures: Vec<String>,
    /// Conditions that do not affect requests yet.
    pub warnings: Vec<String>,
    /// Summary of what works.
    pub working: String,
    /// Number of backends that were not probed yet.
    pub unprobed: usize,
}

impl StatusSummary {
    /// Whether nothing fails.
    pub fn is_ok(&self) -> bool {
        self.failures.is_empty()
    }

    /// Class of the status page's first section.
    pub(super) fn class(&self) -> &'static str {
        match (self.is_ok(), self.warnings.is_empty()) {
            (true, true) => "good",
            (true, false) => "warn",
            (false, _) => "bad",
        }
    }

    /// Formats everything as one line.
    pub fn line(&self) -> String {
        let head = if self.is_ok() { format!("OK: {}", self.working) } else { self.failures.join("; ") };
        std::iter::once(&head).chain(&self.warnings).cloned().collect::<Vec<_>>().join("; ")
    }
}

impl ApiServiceReport {
    /// Whether requests to this APIService fail: its condition is `False`, or its circuit is open.
    pub fn is_failing(&self) -> bool {
        self.available == Some(false) || self.circuit == "open"
    }

    /// Whether this is a local APIService (without a backend) that is available.
    pub fn is_available_local(&self) -> bool {
        self.service == "Local" && !self.is_failing() && self.available.is_some()
    }
}

impl StatusReport {
    /// APIServices, failing ones first.
    pub fn apiservices_in_order(&self) -> impl Iterator<Item = &ApiServiceReport> {
        let (failing, good): (Vec<_>, Vec<_>) = self.apiservices.iter().partition(|one| one.is_failing());
        failing.into_iter().chain(good)
    }

    /// Control planes, failed ones first.
    pub fn control_planes_in_order(&self) -> impl Iterator<Item = &ControlPlaneReport> {
        let (failed, good): (Vec<_>, Vec<_>) = self.control_planes.iter().partition(|one| one.is_failed());
        failed.into_iter().chain(good)
    }

    /// Failing readiness checks that the report does not show otherwise. `shutdown` repeats the phase, and `reviews`
    /// repeats the failing reviews among the remote calls.
    pub fn unready_checks(&self) -> impl Iterator<Item = &str> {
        let is_review = |of: &&RemoteCallReport| matches!(&*of.call, "TokenReview" | "SubjectAccessReview");
        let is_failing = self.remote_calls.iter().filter(is_review).any(|of| !of.failing_since.is_empty());
        self.not_ready.iter().map(String::as_str).filter(move |check| match check.split(": ").next() {
            Some("shutdown") => false,
            Some("reviews") => !is_failing,
            _ => true,
        })
    }

    /// Summarizes the state at `now`.
    pub fn summarize(&self, now: SystemTime) -> StatusSummary {
        let (what, many) = if self.is_sidecar() { ("upstream", "upstreams") } else { ("APIService", "APIServices") };
        // What has all else is none of those that are counted.
        let (delegate, counted): (Vec<_>, Vec<_>) = self.apiservices.iter().partition(|one| one.name == DELEGATE);
        let all = counted.len();
        let mut failures = Vec::new();
        if self.phase != "serving" {
            failures.push(self.phase.clone());
        }
        match counted.iter().filter(|one| one.is_failing()).count() {
            0 => {}
            failing => failures.push(format!("{failing} of {} unavailable", plural(all, what, many))),
        }
        if delegate.iter().any(|one| one.is_failing()) {
            failures.push("delegate unavailable".to_owned());
        }
        let failed = self.control_planes.iter().filter(|one| one.is_failed()).count();
        if failed > 0 {
            let all = plural(self.control_planes.len(), "control plane", "control planes");
            failures.push(format!("{failed} of {all} failed"));
        }
        if let Some(storage) = self.storage.as_ref().filter(|storage| !storage.refusal.is_empty()) {
            failures.push(format!("store refuses writes: {}", storage.refusal));
        }
        for call in self.remote_calls_in_order().filter(|of| !of.failing_since.is_empty()) {
            failures.push(describe_failing_call(call, now));
        }
        if self.client_connections.are_at_limit() {
            failures
                .push(format!("client connections wait: the limit of {} is reached", self.client_connections.limit));
        }
        for check in self.unready_checks() {
            failures.push(format!("not ready: {}", check.split(": ").next().unwrap_or(check)));
        }
        let expiring = self.expiring_certificates(now);
        failures.extend(describe_expired(&expiring));
        for (problems, place) in [(&self.registry_problems, "the registry"), (&self.file_problems, "files")] {
            if !problems.is_empty() {
                failures.push(format!("{} in {place}", plural(problems.len(), "mistake", "mistakes")));
            }
        }
        let mut warnings = Vec::new();
        warnings.extend(describe_expiring(&expiring, now));
        if !self.document_problems.is_empty() {
            let count = plural(self.document_problems.len(), "document", "documents");
            warnings.push(format!("{count} of backends failing"));
        }
        let unenforced = self.storage.as_ref().map_or(0, |storage| storage.unenforced_crds.len());
        if unenforced > 0 {
            let what = plural(unenforced, "CustomResourceDefinition has", "CustomResourceDefinitions have");
            warnings.push(format!("{what} rules that are not enforced"));
        }
        let kinds = self.storage.as_ref().map_or(0, |storage| storage.unenforced_kinds.len());
        if kinds > 0 {
            warnings.push(format!("{} stored and not enforced", plural(kinds, "kind", "kinds")));
        }
        for sink in self.audit.iter().filter(|sink| sink.dropped > 0) {
            warnings.push(format!("audit {} dropped {}", sink.name, plural(sink.dropped as usize, "event", "events")));
        }
        let unknown = counted.iter().filter(|one| one.available.is_none()).count();
        if unknown > 0 {
            warnings.push(format!("{} not probed yet", plural(unknown, what, many)));
        }
        // A SOCKS5 server has no APIServices.
        let delegated = delegate.iter().any(|one| one.available == Some(true));
        let summary = match (all, delegated) {
            (0, false) => self.phase.clone(),
            (0, true) => "delegate available".to_owned(),
            (_, false) => format!("{} available", plural(all - unknown, what, many)),
            (_, true) => format!("{} and the delegate available", plural(all - unknown, what, many)),
        };
        let working = match &self.storage {
            Some(storage) => {
                format!("{summary}, {} stored", plural(storage.objects() as usize, "object", "objects"))
            }
            None => summary,
        };
        StatusSummary { failures, warnings, working, unprobed: unknown }
    }

    /// The report with the verdict of `now` in it.
    #[must_use]
    pub fn with_verdict(mut self, now: SystemTime) -> StatusReport {
        let verdict = self.summarize(now);
        let count = |is: &dyn Fn(&ApiServiceReport) -> bool| {
            self.apiservices.iter().filter(|one| one.name != DELEGATE && is(one)).count() as u64
        };
        let expiring = self.expiring_certificates(now);
        let expired = count_expired(&expiring);
        self.verdict = VerdictReport {
            ok: verdict.is_ok(),
            text: verdict.line(),
            apiservices: count(&|_| true),
            unavailable: count(&ApiServiceReport::is_failing),
            unknown: count(&|one| one.available.is_none()),
            failing_remote_calls: self.remote_calls.iter().filter(|of| !of.failing_since.is_empty()).count() as u64,
            expired_certificates: expired as u64,
            expiring_certificates: (expiring.len() - expired) as u64,
            attention: self.attention(now),
            failures: verdict.failures,
            warnings: verdict.warnings,
        };
        self
    }
}

/// `SubjectAccessReview describe_failing_call since 13:48 UTC`; with the date if it is more than a day ago.
fn describe_failing_call(call: &RemoteCallReport, now: SystemTime) -> String {
    let time = call.failing_since.parse::<jiff::Timestamp>().ok();
    let recent = time.is_some_and(|time| {
        now.duration_since(SystemTime::from(time)).is_ok_and(|age| age < Duration::from_secs(86_400))
    });
    let since = match time.filter(|_| recent) {
        Some(time) => time.strftime("%H:%M UTC").to_string(),
        None => call.failing_since.clone(),
    };
    format!("{} failing since {since}", call.title())
}

pub(super) fn plural(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

#[cfg(test)]
mod tests {
    use super::super::status_report::AuditSinkReport;
    use super::*;
    use crate::tls::CertificateReport;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800)
    }

    fn service(name: &str, service: &str, available: Option<bool>) -> ApiServiceReport {
        ApiServiceReport { name: name.into(), service: service.into(), available, ..ApiServiceReport::default() }
    }

    fn report(apiservices: Vec<ApiServiceReport>) -> StatusReport {
        StatusReport { phase: "serving".into(), apiservices, ..StatusReport::default() }
    }

    #[test]
    fn status_summary_names_failures_or_says_ok() {
        let good = report(vec![service("a", "Local", Some(true)), service("b", "n/s:443", Some(true))]);
        assert_eq!(
            (good.summarize(now()).line().as_str(), good.summarize(now()).is_ok()),
            ("OK: 2 APIServices available", true)
        );
        let open = ApiServiceReport { circuit: "open".into(), ..service("c", "n/s:443", Some(true)) };
        let call = |since: &str| RemoteCallReport {
            call: "SubjectAccessReview".into(),
            failing_since: since.into(),
            ..RemoteCallReport::default()
        };
        let bad = StatusReport {
            remote_calls: vec![call("2026-11-19T13:48:07Z"), call("2026-11-18T13:48:07Z"), call("")],
            not_ready: vec!["registry: y".into()],
            registry_problems: vec!["x".into()],
            certificates: vec![CertificateReport {
                not_after: "2026-11-19T00:00:00Z".into(),
                ..CertificateReport::default()
            }],
            ..report(vec![service("a", "Local", Some(true)), service("b", "n/s:443", Some(false)), open])
        };
        let verdict = bad.summarize(now());
        assert_eq!(
            verdict.line(),
            "2 of 3 APIServices unavailable; SubjectAccessReview failing since 13:48 UTC; SubjectAccessReview failing \
             since 2026-11-18T13:48:07Z; not ready: registry; 1 certificate expired; 1 mistake in the registry"
        );
        assert!(!verdict.is_ok());
        assert_eq!(bad.apiservices_in_order().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["b", "c", "a"]);
    }

    #[test]
    fn verdict_counts_the_delegate_apart() {
        let delegate = |available| service(DELEGATE, "https://10.0.0.1", Some(available));
        let line = |apiservices| report(apiservices).summarize(now()).line();
        assert_eq!(
            line(vec![service("a", "n/s", Some(true)), delegate(true)]),
            "OK: 1 APIService and the delegate available"
        );
        assert_eq!(line(vec![service("a", "n/s", Some(true)), delegate(false)]), "delegate unavailable");
        assert_eq!(line(vec![delegate(true)]), "OK: delegate available");
        let verdict = report(vec![service("a", "n/s", Some(false)), delegate(false)]).with_verdict(now()).verdict;
        assert_eq!((verdict.apiservices, verdict.unavailable, verdict.ok), (1, 1, false));
        assert_eq!(verdict.failures, ["1 of 1 APIService unavailable", "delegate unavailable"]);
    }

    #[test]
    fn verdict_speaks_of_reviews_that_fail_readiness_once() {
        let failing = RemoteCallReport {
            call: "TokenReview".into(),
            failing_since: "2026-11-19T13:48:07Z".into(),
            ..RemoteCallReport::default()
        };
        let not_ready = vec!["reviews: TokenReview failing since x".into(), "registry: y".into()];
        let both = StatusReport { not_ready, remote_calls: vec![failing], ..report(Vec::new()) };
        assert_eq!(both.summarize(now()).line(), "TokenReview failing since 13:48 UTC; not ready: registry");
        assert_eq!(both.unready_checks().collect::<Vec<_>>(), ["registry: y"]);
    }

    #[test]
    fn status_summary_with_only_warnings_is_ok() {
        let warned = StatusReport {
            certificates: vec![CertificateReport {
                not_after: "2026-11-25T00:00:00Z".into(),
                ..CertificateReport::default()
            }],
            audit: vec![AuditSinkReport { name: "log".into(), dropped: 1, ..AuditSinkReport::default() }],
            ..report(vec![service("/", "http://a", None)])
        };
        let verdict = warned.summarize(now());
        assert_eq!(
            verdict.line(),
            "OK: 0 upstreams available; 1 certificate expires within 30 days, the first in 5d; audit log dropped 1 \
             event; 1 upstream not probed yet"
        );
        assert!(verdict.is_ok());
    }
}
