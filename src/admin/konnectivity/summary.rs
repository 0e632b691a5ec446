//! One-line summaries of Konnectivity servers and agents.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::super::expiry::{describe_expired, describe_expiring, expiring_certificates};
use super::super::summary::{StatusSummary, plural};
use super::attention::{is_slow, recent};
use crate::konnectivity::report::{FailureReport, KonnectivityAgentReport, KonnectivityServerReport};

impl KonnectivityServerReport {
    /// Failures and warnings of the server at `now`.
    pub fn summarize(&self, now: SystemTime) -> StatusSummary {
        let mut summary = StatusSummary::default();
        if self.phase != "serving" {
            summary.failures.push(self.phase.clone());
        }
        summary.failures.extend(self.missing_agent());
        let expiring = expiring_certificates(&self.certificates, now);
        summary.failures.extend(describe_expired(&expiring));
        summary.failures.extend(describe_file_problems(&self.file_problems));
        let tunnels = self.agents.iter().map(|agent| agent.tunnels).sum();
        summary.working =
            format!("{}, {}", plural(self.agents.len(), "agent", "agents"), plural(tunnels, "tunnel", "tunnels"));
        summary.warnings.extend(describe_expiring(&expiring, now));
        let draining = self.agents.iter().filter(|agent| agent.draining).count();
        if draining > 0 {
            summary.warnings.push(format!("{} draining", plural(draining, "agent", "agents")));
        }
        summary.warnings.extend(describe_stalled(self.agents.iter().map(|agent| agent.stalled_tunnels).sum()));
        let unanswered = self.pending_dials.iter().filter(|dial| is_slow(dial, now)).count();
        if unanswered > 0 {
            summary.warnings.push(format!("{} unanswered", plural(unanswered, "dial", "dials")));
        }
        summary.warnings.extend(describe_failed_dials(&self.failed_dials, now));
        let refused = count_addresses(&self.refused_connections, now);
        if refused > 0 {
            summary.warnings.push(format!("connections from {} refused", plural(refused, "address", "addresses")));
        }
        summary
    }

    /// Why the server cannot dial.
    pub(super) fn missing_agent(&self) -> Option<String> {
        if self.agents.is_empty() {
            return Some("no agent is connected".to_owned());
        }
        let strategy = self.strategies.first().map_or("", String::as_str);
        (!self.ready).then(|| format!("no agent for the first proxy strategy, {strategy}"))
    }
}

impl KonnectivityAgentReport {
    /// Failures and warnings of the agent at `now`.
    pub fn summarize(&self, now: SystemTime) -> StatusSummary {
        let mut summary = StatusSummary::default();
        if self.phase != "serving" {
            summary.failures.push(self.phase.clone());
        }
        summary.failures.extend(self.missing_server());
        let expiring = expiring_certificates(&self.certificates, now);
        summary.failures.extend(describe_expired(&expiring));
        summary.failures.extend(describe_file_problems(&self.file_problems));
        let tunnels = self.servers.iter().map(|server| server.tunnels).sum();
        let serving = self.count_serving();
        summary.working = format!("{}, {}", plural(serving, "server", "servers"), plural(tunnels, "tunnel", "tunnels"));
        summary.warnings.extend(describe_expiring(&expiring, now));
        let draining = self.servers.len() - serving;
        // Without a server that serves, the failure says it.
        if draining > 0 && serving > 0 {
            summary.warnings.push(format!("{} draining", plural(draining, "server", "servers")));
        }
        summary.warnings.extend(describe_stalled(self.servers.iter().map(|server| server.stalled_tunnels).sum()));
        summary.warnings.extend(describe_failed_dials(&self.failed_dials, now));
        summary
    }

    /// Why clients of some servers cannot use the agent.
    pub(super) fn missing_server(&self) -> Option<String> {
        let (serving, known) = (self.count_serving(), self.known_servers);
        if serving > 0 {
            return ((serving as u64) < known).then(|| format!("{serving} of {known} servers connected"));
        }
        let none =
            if self.servers.is_empty() { "no server is connected" } else { "all connected servers are draining" };
        Some(match self.failed_connections.first().filter(|_| self.failing) {
            Some(failure) => format!("{none}: {}", failure.error),
            None => none.to_owned(),
        })
    }

    /// Number of connected servers that do not drain.
    pub(super) fn count_serving(&self) -> usize {
        self.servers.iter().filter(|server| !server.draining).count()
    }
}

fn describe_failed_dials(dials: &[FailureReport], now: SystemTime) -> Option<String> {
    let count = count_addresses(dials, now);
    (count > 0).then(|| format!("dials of {} failed", plural(count, "target", "targets")))
}

/// Number of addresses with recent failures. How often each failed in that time is not recorded.
fn count_addresses(failures: &[FailureReport], now: SystemTime) -> usize {
    recent(failures, now).map(|failure| &failure.address).collect::<BTreeSet<_>>().len()
}

fn describe_stalled(count: usize) -> Option<String> {
    (count > 0).then(|| format!("{} stalled", plural(count, "tunnel", "tunnels")))
}

fn describe_file_problems(problems: &[String]) -> Option<String> {
    (!problems.is_empty()).then(|| format!("{} in files", plural(problems.len(), "mistake", "mistakes")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::konnectivity::report::{ConnectedAgentReport, ConnectedServerReport, PendingDialReport};
    use crate::tls::CertificateReport;

    #[test]
    fn konnectivity_server_without_agents_fails() {
        let report = KonnectivityServerReport { phase: "serving".into(), ..Default::default() };
        assert_eq!(report.summarize(SystemTime::UNIX_EPOCH).failures, ["no agent is connected"]);
    }

    #[test]
    fn konnectivity_agent_says_why_it_has_no_server() {
        let mut report = KonnectivityAgentReport {
            phase: "serving".into(),
            known_servers: 2,
            failing: true,
            failed_connections: vec![FailureReport { error: "refused".into(), ..FailureReport::default() }],
            ..KonnectivityAgentReport::default()
        };
        assert_eq!(report.summarize(SystemTime::UNIX_EPOCH).failures, ["no server is connected: refused"]);
        report.servers.push(ConnectedServerReport { server_id: "s".into(), tunnels: 1, ..Default::default() });
        assert_eq!(report.summarize(SystemTime::UNIX_EPOCH).failures, ["1 of 2 servers connected"]);
        report.known_servers = 1;
        assert_eq!(report.summarize(SystemTime::UNIX_EPOCH).line(), "OK: 1 server, 1 tunnel");
    }

    #[test]
    fn konnectivity_agent_counts_servers_that_do_not_drain() {
        let server = |id: &str, draining| ConnectedServerReport {
            server_id: id.into(),
            tunnels: 2,
            draining,
            ..ConnectedServerReport::default()
        };
        let mut report = KonnectivityAgentReport {
            phase: "serving".into(),
            known_servers: 1,
            servers: vec![server("old", true)],
            failed_connections: vec![FailureReport { error: "refused".into(), ..FailureReport::default() }],
            ..KonnectivityAgentReport::default()
        };
        let line = |report: &KonnectivityAgentReport| report.summarize(SystemTime::UNIX_EPOCH).line();
        assert_eq!(line(&report), "all connected servers are draining");
        report.failing = true;
        assert_eq!(line(&report), "all connected servers are draining: refused");
        report.servers.push(server("new", false));
        assert_eq!(line(&report), "OK: 1 server, 4 tunnels; 1 server draining");
        report.known_servers = 2;
        assert_eq!(line(&report), "1 of 2 servers connected; 1 server draining");
        let attention = report.attention(SystemTime::UNIX_EPOCH);
        assert!(
            attention.iter().any(|entry| entry.subject == "old" && entry.text.starts_with("draining")),
            "{attention:?}"
        );
    }

    #[test]
    fn konnectivity_summary_counts_certificates_that_expire() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let certificate = |not_after: &str| CertificateReport {
            not_before: "2026-01-01T00:00:00Z".into(),
            not_after: not_after.into(),
            ..CertificateReport::default()
        };
        let soon = vec![certificate("2026-11-25T00:00:00Z"), certificate("2027-11-25T00:00:00Z")];
        let server = KonnectivityServerReport {
            phase: "serving".into(),
            ready: true,
            agents: vec![ConnectedAgentReport::default()],
            certificates: soon.clone(),
            ..KonnectivityServerReport::default()
        };
        assert_eq!(
            server.summarize(now).line(),
            "OK: 1 agent, 0 tunnels; 1 certificate expires within 30 days, the first in 5d"
        );
        let agent = KonnectivityAgentReport {
            phase: "serving".into(),
            servers: vec![ConnectedServerReport::default()],
            certificates: [soon, vec![certificate("2026-11-19T00:00:00Z")]].concat(),
            ..KonnectivityAgentReport::default()
        };
        let line = "1 certificate expired; 1 certificate expires within 30 days, the first in 5d";
        assert_eq!((agent.summarize(now).line().as_str(), agent.summarize(now).is_ok()), (line, false));
    }

    #[test]
    fn konnectivity_summary_warns_of_recent_failures() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let failure = |last: &str, address: &str, error: &str| FailureReport {
            last: last.into(),
            address: address.into(),
            error: error.into(),
            ..FailureReport::default()
        };
        let (old, recent) = ("2026-11-19T23:54:59Z", "2026-11-19T23:59:00Z");
        let dial = |since: &str| PendingDialReport { since: since.into(), ..PendingDialReport::default() };
        let mut report = KonnectivityServerReport {
            phase: "serving".into(),
            ready: true,
            agents: vec![ConnectedAgentReport::default()],
            failed_dials: vec![failure(old, "10.1.0.1:443", "refused")],
            refused_connections: vec![failure(old, "10.0.0.1", "expired")],
            pending_dials: vec![dial("2026-11-19T23:59:56Z")],
            ..KonnectivityServerReport::default()
        };
        assert_eq!(report.summarize(now).line(), "OK: 1 agent, 0 tunnels");
        report.failed_dials.push(failure(recent, "10.1.0.2:443", "refused"));
        report.refused_connections.extend([
            failure(recent, "10.0.0.2", "expired"),
            failure(recent, "10.0.0.2", "unknown CA"),
            failure(recent, "10.0.0.3", "expired"),
        ]);
        report.pending_dials.push(dial("2026-11-19T23:59:55Z"));
        let summary = report.summarize(now);
        assert_eq!(
            (summary.line().as_str(), summary.class()),
            (
                "OK: 1 agent, 0 tunnels; 1 dial unanswered; dials of 1 target failed; connections from 2 addresses refused",
                "warn"
            )
        );
        let agent = KonnectivityAgentReport {
            phase: "serving".into(),
            known_servers: 1,
            servers: vec![ConnectedServerReport::default()],
            failed_dials: report.failed_dials,
            ..KonnectivityAgentReport::default()
        };
        assert_eq!(agent.summarize(now).line(), "OK: 1 server, 0 tunnels; dials of 1 target failed");
    }
}
