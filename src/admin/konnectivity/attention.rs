//! What needs attention at a Konnectivity server or agent.

use std::time::{Duration, SystemTime};

use super::super::attention_report::AttentionReport;
use super::super::expiry::{certificate_attention, expiring_certificates};
use super::super::storage_report::format_bytes;
use crate::konnectivity::report::{
    FailureReport, KonnectivityAgentReport, KonnectivityServerReport, PendingDialReport, StalledTunnelReport,
};
use crate::observe::times::{TimeOffset, format_age, time_offset};

/// For how long a failure needs attention. It stays in the table of failures until others replace it.
const RECENT: Duration = Duration::from_secs(300);
/// Age at which a dial without an answer needs attention: that of a stalled tunnel.
const SLOW_DIAL: Duration = Duration::from_secs(5);

impl KonnectivityServerReport {
    /// What needs attention at `now`, failures first.
    pub fn attention(&self, now: SystemTime) -> Vec<AttentionReport> {
        let mut found = Vec::from_iter(shutdown(&self.phase));
        found.extend(file_failures(&self.file_problems, "the last good content is in use"));
        found.extend(self.missing_agent().map(|text| AttentionReport::failure("agents", "agents", text)));
        found.extend(certificate_attention(expiring_certificates(&self.certificates, now)));
        found.extend(self.stalled_tunnels.iter().map(|tunnel| stalled("agent", tunnel)));
        found.extend(self.pending_dials.iter().filter_map(|dial| slow_dial(dial, now)));
        found.extend(failures("failed-dials", "dial failed", &self.failed_dials, now));
        for refused in &self.refused_connections {
            let what = format!("connection of {} refused", with_article(&refused.reason));
            let reason = FailureReport { reason: String::new(), ..refused.clone() };
            found.extend(failures("refused-connections", &what, &[reason], now));
        }
        for agent in self.agents.iter().filter(|agent| agent.draining) {
            let text = "draining: gets new dials only if no other agent is available";
            found.push(AttentionReport::warning("agents", &agent.agent_id, text));
        }
        found
    }
}

impl KonnectivityAgentReport {
    /// What needs attention at `now`, failures first.
    pub fn attention(&self, now: SystemTime) -> Vec<AttentionReport> {
        let mut found = Vec::from_iter(shutdown(&self.phase));
        found.extend(file_failures(&self.file_problems, "further connections to servers fail"));
        found.extend(self.missing_server().map(|text| AttentionReport::failure("servers", "servers", text)));
        found.extend(certificate_attention(expiring_certificates(&self.certificates, now)));
        // Without a server that serves, that line has the last error.
        let shown = usize::from(self.failing && self.count_serving() == 0);
        let others = self.failed_connections.get(shown..).unwrap_or_default();
        found.extend(failures("failed-connections", "connection failed", others, now));
        found.extend(self.stalled_tunnels.iter().map(|tunnel| stalled("server", tunnel)));
        found.extend(failures("failed-dials", "dial failed", &self.failed_dials, now));
        for server in self.servers.iter().filter(|server| server.draining) {
            let text = format!("draining: opens no further tunnels; {} open", server.tunnels);
            found.push(AttentionReport::warning("servers", &server.server_id, text));
        }
        found
    }
}

fn shutdown(phase: &str) -> Option<AttentionReport> {
    let text = format!("shutting down: {phase}");
    (!matches!(phase, "" | "serving")).then(|| AttentionReport::failure("process", "process", text))
}

fn file_failures(problems: &[String], effect: &str) -> impl Iterator<Item = AttentionReport> {
    problems.iter().map(move |problem| AttentionReport::failure("process", "file", format!("{problem} ({effect})")))
}

fn stalled(peer: &str, tunnel: &StalledTunnelReport) -> AttentionReport {
    let (id, size) = (tunnel.connection, format_bytes(tunnel.bytes));
    let text = format!("tunnel {id} of {peer} {}: {size} wait for the {}", tunnel.peer, tunnel.waits_for);
    AttentionReport::warning("stalled-tunnels", &tunnel.address, text).since(&tunnel.since)
}

fn slow_dial(dial: &PendingDialReport, now: SystemTime) -> Option<AttentionReport> {
    let text = format!("agent {} has not answered the dial", dial.agent_id);
    is_slow(dial, now).then(|| AttentionReport::warning("pending-dials", &dial.address, text).since(&dial.since))
}

/// Whether the dial waits for its answer for too long.
pub(super) fn is_slow(dial: &PendingDialReport, now: SystemTime) -> bool {
    age(&dial.since, now) >= SLOW_DIAL
}

/// Failures that need attention.
pub(super) fn recent(failures: &[FailureReport], now: SystemTime) -> impl Iterator<Item = &FailureReport> {
    failures.iter().filter(move |failure| age(&failure.last, now) <= RECENT)
}

/// Recent failures as warnings.
fn failures(
    section: &str,
    what: &str,
    failures: &[FailureReport],
    now: SystemTime,
) -> impl Iterator<Item = AttentionReport> {
    recent(failures, now).map(move |failure| {
        let FailureReport { last, count, reason, address, agent_id, error } = failure;
        let times = if *count > 1 { format!(" {count} times") } else { String::new() };
        let agent = if agent_id.is_empty() { String::new() } else { format!(" at agent {agent_id}") };
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        let text = format!("{what}{times}{agent}, last {} ago{reason}: {error}", format_age(last, now));
        // The error of a connection to a server has its address.
        let subject = if address.is_empty() { "connection" } else { address };
        AttentionReport::warning(section, subject, text)
    })
}

/// What cannot be parsed is old.
fn age(timestamp: &str, now: SystemTime) -> Duration {
    match time_offset(timestamp, now) {
        Some(TimeOffset::Past(past)) => past,
        Some(TimeOffset::Future(_)) => Duration::ZERO,
        None => Duration::MAX,
    }
}

fn with_article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::konnectivity::report::{ConnectedAgentReport, ConnectedServerReport};
    use crate::tls::CertificateReport;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800)
    }

    /// `now` is 2026-11-20T00:00:00Z.
    fn failure(last: &str, address: &str, reason: &str, error: &str) -> FailureReport {
        FailureReport {
            last: last.into(),
            count: 2,
            reason: reason.into(),
            address: address.into(),
            error: error.into(),
            ..FailureReport::default()
        }
    }

    fn lines(found: &[AttentionReport]) -> Vec<String> {
        let line = |one: &AttentionReport| format!("{} {} {}: {}", one.severity, one.section, one.subject, one.text);
        found.iter().map(line).collect()
    }

    #[test]
    fn konnectivity_server_attention_lists_stalled_tunnels_then_recent_failures() {
        let dial = |address: &str, since: &str| PendingDialReport {
            agent_id: "node-1".into(),
            address: address.into(),
            since: since.into(),
        };
        let report = KonnectivityServerReport {
            phase: "draining".into(),
            ready: true,
            file_problems: vec!["server.crt: expired".into()],
            agents: vec![ConnectedAgentReport {
                agent_id: "node-1".into(),
                draining: true,
                ..ConnectedAgentReport::default()
            }],
            pending_dials: vec![
                dial("10.1.0.1:443", "2026-11-19T23:59:55Z"),
                dial("10.1.0.2:443", "2026-11-19T23:59:56Z"),
            ],
            stalled_tunnels: vec![StalledTunnelReport {
                peer: "node-1".into(),
                connection: 7,
                address: "10.1.0.3:443".into(),
                waits_for: "client".into(),
                bytes: 4 << 20,
                since: "2026-11-19T23:59:30Z".into(),
            }],
            failed_dials: vec![
                failure("2026-11-19T23:59:50Z", "10.1.0.4:443", "error_response", "refused"),
                failure("2026-11-19T23:54:59Z", "10.1.0.5:443", "error_response", "refused"),
            ],
            refused_connections: vec![failure("2026-11-19T23:55:00Z", "10.0.0.9", "agent", "TLS handshake failed")],
            ..KonnectivityServerReport::default()
        };
        let found = report.attention(now());
        assert_eq!(
            lines(&found),
            [
                "failure process process: shutting down: draining",
                "failure process file: server.crt: expired (the last good content is in use)",
                "warning stalled-tunnels 10.1.0.3:443: tunnel 7 of agent node-1: 4.0 MiB wait for the client",
                "warning pending-dials 10.1.0.1:443: agent node-1 has not answered the dial",
                "warning failed-dials 10.1.0.4:443: dial failed 2 times, last 10s ago (error_response): refused",
                "warning refused-connections 10.0.0.9: connection of an agent refused 2 times, last 5m ago: TLS handshake \
                 failed",
                "warning agents node-1: draining: gets new dials only if no other agent is available",
            ]
        );
        assert_eq!(found[2].since, "2026-11-19T23:59:30Z");
        let empty = KonnectivityServerReport { phase: "serving".into(), ..KonnectivityServerReport::default() };
        assert_eq!(lines(&empty.attention(now())), ["failure agents agents: no agent is connected"]);
    }

    #[test]
    fn konnectivity_attention_lists_certificates_that_expire_between_failures_and_warnings() {
        let certificate = |file: &str, not_after: &str| CertificateReport {
            file: file.into(),
            subject: "CN=agent".into(),
            not_before: "2026-01-01T00:00:00Z".into(),
            not_after: not_after.into(),
            ..CertificateReport::default()
        };
        let certificates = vec![
            certificate("agent.crt", "2026-11-25T00:00:00Z"),
            certificate("ca.crt", "2027-11-25T00:00:00Z"),
            certificate("old.crt", "2026-11-19T00:00:00Z"),
        ];
        let dials = vec![failure("2026-11-19T23:59:50Z", "10.1.0.4:443", "refused", "refused")];
        let expected = [
            "failure certificates certificate: old.crt (CN=agent) expired 24h ago (2026-11-19T00:00:00Z)",
            "warning certificates certificate: agent.crt (CN=agent) expires in 5d (2026-11-25T00:00:00Z)",
            "warning failed-dials 10.1.0.4:443: dial failed 2 times, last 10s ago (refused): refused",
        ];
        let agent = KonnectivityAgentReport {
            servers: vec![ConnectedServerReport::default()],
            certificates: certificates.clone(),
            failed_dials: dials.clone(),
            ..KonnectivityAgentReport::default()
        };
        assert_eq!(lines(&agent.attention(now())), expected);
        let server = KonnectivityServerReport {
            ready: true,
            agents: vec![ConnectedAgentReport::default()],
            certificates,
            failed_dials: dials,
            ..KonnectivityServerReport::default()
        };
        assert_eq!(lines(&server.attention(now())), expected);
    }

    #[test]
    fn konnectivity_agent_attention_says_each_connection_failure_once() {
        let mut report = KonnectivityAgentReport {
            phase: "serving".into(),
            known_servers: 2,
            failing: true,
            failed_connections: vec![
                failure("2026-11-19T23:59:50Z", "", "refused", "10.0.0.1:8132: bad certificate"),
                failure("2026-11-19T23:59:00Z", "", "broken", "connection to server a broke"),
            ],
            ..KonnectivityAgentReport::default()
        };
        let broken = "warning failed-connections connection: connection failed 2 times, last 60s ago (broken): connection to server \
             a broke";
        assert_eq!(
            lines(&report.attention(now())),
            ["failure servers servers: no server is connected: 10.0.0.1:8132: bad certificate", broken]
        );
        report.servers.push(ConnectedServerReport::default());
        assert_eq!(
            lines(&report.attention(now())),
            [
                "failure servers servers: 1 of 2 servers connected",
                "warning failed-connections connection: connection failed 2 times, last 10s ago (refused): 10.0.0.1:8132: \
                 bad certificate",
                broken
            ]
        );
    }
}
