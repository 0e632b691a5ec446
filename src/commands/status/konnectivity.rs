//! The tables of Konnectivity servers and agents.

use std::time::SystemTime;

use super::{append_attention, certificates, replace_control_characters, table};
use crate::admin::{AttentionReport, StatusReport, format_bytes};
use crate::konnectivity::report::{
    FailureReport, KonnectivityAgentReport, KonnectivityServerReport, StalledTunnelReport,
};

/// The report of a server as tables.
pub(super) fn server_tables(report: &KonnectivityServerReport, now: SystemTime, wide: bool) -> String {
    let mut out = heading(
        &report.summarize(now).line(),
        &report.attention(now),
        now,
        &format!(
            "Narthex {}, Konnectivity server {}, {}, up {}, listening on {}",
            report.version,
            report.server_id,
            report.phase,
            StatusReport::age(&report.started, now),
            report.listen.join(", "),
        ),
    );
    let mut columns =
        vec!["AGENT", "IDENTIFIERS", "STATE", "TUNNELS", "STALLED", "PENDING", "SENT", "RECEIVED", "SINCE"];
    columns.extend(wide.then_some(["REMOTE", "PROGRAM", "FLOW CONTROL"]).into_iter().flatten());
    let rows = report.agents.iter().map(|agent| {
        let mut row = vec![
            agent.agent_id.clone(),
            agent.identifiers.clone(),
            if agent.draining { "draining" } else { "serving" }.to_owned(),
            agent.tunnels.to_string(),
            agent.stalled_tunnels.to_string(),
            agent.pending_dials.to_string(),
            format_bytes(agent.bytes_to_agent),
            format_bytes(agent.bytes_from_agent),
            StatusReport::age(&agent.since, now),
        ];
        if wide {
            let flow_control = if agent.flow_control { "per tunnel" } else { "none" };
            row.extend([agent.remote.clone(), agent.program.clone(), flow_control.to_owned()]);
        }
        row
    });
    table(&mut out, &columns, rows.collect());
    let rows = report
        .pending_dials
        .iter()
        .map(|dial| vec![dial.address.clone(), dial.agent_id.clone(), StatusReport::age(&dial.since, now)]);
    table(&mut out, &["PENDING DIAL", "AGENT", "SINCE"], rows.collect());
    stalled_table(&mut out, "AGENT", &report.stalled_tunnels, now);
    certificates::append_configured(&mut out, &report.certificates, now, wide);
    out + &server_refusals(report, now)
}

/// The refused dials and connections of a server.
pub(super) fn server_refusals(report: &KonnectivityServerReport, now: SystemTime) -> String {
    let mut out = String::new();
    failure_table(&mut out, ["FAILED DIAL", "AGENT"], &report.failed_dials, now);
    let rows = report.refused_connections.iter().map(|refused| {
        let (age, count) = (StatusReport::age(&refused.last, now), refused.count.to_string());
        vec![format!("{} {}", refused.reason, refused.address), count, age, refused.error.clone()]
    });
    table(&mut out, &["REFUSED CONNECTION", "COUNT", "AGE", "ERROR"], rows.collect());
    out
}

/// The report of an agent as tables.
pub(super) fn agent_tables(report: &KonnectivityAgentReport, now: SystemTime, wide: bool) -> String {
    let mut out = heading(
        &report.summarize(now).line(),
        &report.attention(now),
        now,
        &format!(
            "Narthex {}, Konnectivity agent {}, {}, up {}, {} to targets, {} pending",
            report.version,
            report.agent_id,
            report.phase,
            StatusReport::age(&report.started, now),
            plural(usize::try_from(report.endpoint_connections).unwrap_or(usize::MAX), "connection"),
            plural(usize::try_from(report.pending_dials).unwrap_or(usize::MAX), "dial"),
        ),
    );
    let mut columns = vec!["SERVER", "ADDRESS", "STATE", "TUNNELS", "STALLED", "SENT", "RECEIVED", "SINCE"];
    columns.extend(wide.then_some("FLOW CONTROL"));
    let rows = report.servers.iter().map(|server| {
        let mut row = vec![
            server.server_id.clone(),
            server.address.clone(),
            if server.draining { "draining" } else { "serving" }.to_owned(),
            server.tunnels.to_string(),
            server.stalled_tunnels.to_string(),
            format_bytes(server.bytes_to_server),
            format_bytes(server.bytes_from_server),
            StatusReport::age(&server.since, now),
        ];
        row.extend(wide.then(|| if server.flow_control { "per tunnel" } else { "none" }.to_owned()));
        row
    });
    table(&mut out, &columns, rows.collect());
    stalled_table(&mut out, "SERVER", &report.stalled_tunnels, now);
    certificates::append_configured(&mut out, &report.certificates, now, wide);
    out + &agent_refusals(report, now)
}

/// The failed dials and connections of an agent.
pub(super) fn agent_refusals(report: &KonnectivityAgentReport, now: SystemTime) -> String {
    let mut out = String::new();
    let rows = report
        .failed_connections
        .iter()
        .map(|failure| vec![failure.error.clone(), failure.count.to_string(), StatusReport::age(&failure.last, now)]);
    table(&mut out, &["FAILED CONNECTION TO A SERVER", "COUNT", "AGE"], rows.collect());
    failure_table(&mut out, ["FAILED DIAL", ""], &report.failed_dials, now);
    out
}

/// The lines above the tables: summary, what needs attention, the process.
fn heading(summary: &str, attention: &[AttentionReport], now: SystemTime, process: &str) -> String {
    let mut out = format!("{}\n", replace_control_characters(summary));
    append_attention(&mut out, attention, now);
    out.push_str(&format!("{}\n", replace_control_characters(process)));
    out
}

fn stalled_table(out: &mut String, peer: &str, tunnels: &[StalledTunnelReport], now: SystemTime) {
    let rows = tunnels.iter().map(|tunnel| {
        vec![
            tunnel.address.clone(),
            tunnel.peer.clone(),
            tunnel.connection.to_string(),
            tunnel.waits_for.clone(),
            format_bytes(tunnel.bytes),
            StatusReport::age(&tunnel.since, now),
        ]
    });
    table(out, &["STALLED TUNNEL", peer, "ID", "WAITS FOR", "QUEUED", "SINCE"], rows.collect());
}

/// Appends failed dials. The column of agents is omitted if it has no title.
fn failure_table(out: &mut String, [title, agent]: [&str; 2], failures: &[FailureReport], now: SystemTime) {
    let mut columns = vec![title];
    columns.extend((!agent.is_empty()).then_some(agent));
    columns.extend(["REASON", "COUNT", "AGE", "ERROR"]);
    let rows = failures.iter().map(|failure| {
        let mut row = vec![failure.address.clone()];
        row.extend((!agent.is_empty()).then(|| failure.agent_id.clone()));
        let (count, age) = (failure.count.to_string(), StatusReport::age(&failure.last, now));
        row.extend([failure.reason.clone(), count, age, failure.error.clone()]);
        row
    });
    table(out, &columns, rows.collect());
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::konnectivity::report::{ConnectedAgentReport, ConnectedServerReport, PendingDialReport};
    use crate::tls::CertificateReport;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800)
    }

    #[test]
    fn status_of_a_konnectivity_server_layout() {
        let since = || "2026-11-19T23:59:30Z".to_owned();
        let report = KonnectivityServerReport {
            version: "0.1.0".into(),
            started: "2026-11-19T23:00:00Z".into(),
            phase: "serving".into(),
            server_id: "server-1".into(),
            listen: vec!["/run/front.sock (grpc)".into(), "0.0.0.0:8132 (agents)".into()],
            ready: true,
            agents: vec![ConnectedAgentReport {
                agent_id: "node-1".into(),
                identifiers: "host=node-1".into(),
                program: "narthex/0.1.0".into(),
                remote: "10.0.0.1:4711".into(),
                since: since(),
                flow_control: true,
                tunnels: 3,
                stalled_tunnels: 1,
                pending_dials: 1,
                bytes_to_agent: 2048,
                bytes_from_agent: 5,
                ..ConnectedAgentReport::default()
            }],
            pending_dials: vec![PendingDialReport {
                agent_id: "node-1".into(),
                address: "10.1.0.1:443".into(),
                since: since(),
            }],
            stalled_tunnels: vec![StalledTunnelReport {
                peer: "node-1".into(),
                connection: 7,
                address: "10.1.0.2:443".into(),
                waits_for: "client".into(),
                bytes: 4 << 20,
                since: since(),
            }],
            failed_dials: vec![FailureReport {
                last: since(),
                count: 2,
                reason: "error_response".into(),
                address: "10.1.0.3:443".into(),
                agent_id: "node-1".into(),
                error: "dial tcp 10.1.0.3:443:\u{1b}refused".into(),
            }],
            certificates: vec![CertificateReport {
                file: "cluster.crt".into(),
                subject: "CN=server".into(),
                names: vec!["konnectivity.example".into(), "10.0.0.1".into()],
                not_before: "2026-01-01T00:00:00Z".into(),
                not_after: "2026-11-25T00:00:00Z".into(),
            }],
            refused_connections: vec![FailureReport {
                last: since(),
                count: 1,
                reason: "agent".into(),
                address: "10.0.0.9".into(),
                error: "TLS handshake failed".into(),
                ..FailureReport::default()
            }],
            ..KonnectivityServerReport::default()
        };
        assert_eq!(
            server_tables(&report, now(), false),
            "\
OK: 1 agent, 3 tunnels; 1 certificate expires within 30 days, the first in 5d; 1 tunnel stalled; 1 dial unanswered; dials of 1 target failed; connections from 1 address refused

Needs attention:
  warning: certificate: cluster.crt (CN=server) expires in 5d (2026-11-25T00:00:00Z)
  warning: 10.1.0.2:443: tunnel 7 of agent node-1: 4.0 MiB wait for the client (for 30s)
  warning: 10.1.0.1:443: agent node-1 has not answered the dial (for 30s)
  warning: 10.1.0.3:443: dial failed 2 times at agent node-1, last 30s ago (error_response): dial tcp 10.1.0.3:443:\u{fffd}refused
  warning: 10.0.0.9: connection of an agent refused, last 30s ago: TLS handshake failed

Narthex 0.1.0, Konnectivity server server-1, serving, up 60m, listening on /run/front.sock (grpc), 0.0.0.0:8132 (agents)

AGENT    IDENTIFIERS   STATE     TUNNELS   STALLED   PENDING   SENT      RECEIVED   SINCE
node-1   host=node-1   serving   3         1         1         2.0 KiB   5 B        30s

PENDING DIAL   AGENT    SINCE
10.1.0.1:443   node-1   30s

STALLED TUNNEL   AGENT    ID   WAITS FOR   QUEUED    SINCE
10.1.0.2:443     node-1   7    client      4.0 MiB   30s

CERTIFICATE   SUBJECT     ENDS
cluster.crt   CN=server   in 5d

FAILED DIAL    AGENT    REASON           COUNT   AGE   ERROR
10.1.0.3:443   node-1   error_response   2       30s   dial tcp 10.1.0.3:443:\u{fffd}refused

REFUSED CONNECTION   COUNT   AGE   ERROR
agent 10.0.0.9       1       30s   TLS handshake failed
"
        );
        let wide = server_tables(&report, now(), true);
        assert!(wide.contains("cluster.crt   CN=server   in 5d   konnectivity.example,10.0.0.1\n"), "{wide}");
        assert!(wide.contains("10.0.0.1:4711   narthex/0.1.0   per tunnel\n"), "{wide}");
    }

    #[test]
    fn status_of_a_konnectivity_agent_layout() {
        let server = |address: &str, draining| ConnectedServerReport {
            server_id: "server-1".into(),
            address: address.into(),
            since: "2026-11-19T23:59:30Z".into(),
            draining,
            flow_control: true,
            tunnels: 2,
            bytes_to_server: 2048,
            bytes_from_server: 5,
            ..ConnectedServerReport::default()
        };
        let report = KonnectivityAgentReport {
            version: "0.1.0".into(),
            started: "2026-11-19T23:00:00Z".into(),
            phase: "serving".into(),
            agent_id: "node-1".into(),
            known_servers: 1,
            servers: vec![server("10.0.0.1:8132", true), server("10.0.0.2:8132", false)],
            endpoint_connections: 4,
            ..KonnectivityAgentReport::default()
        };
        assert_eq!(
            agent_tables(&report, now(), true),
            "\
OK: 1 server, 4 tunnels; 1 server draining

Needs attention:
  warning: server-1: draining: opens no further tunnels; 2 open

Narthex 0.1.0, Konnectivity agent node-1, serving, up 60m, 4 connections to targets, 0 dials pending

SERVER     ADDRESS         STATE      TUNNELS   STALLED   SENT      RECEIVED   SINCE   FLOW CONTROL
server-1   10.0.0.1:8132   draining   2         0         2.0 KiB   5 B        30s     per tunnel
server-1   10.0.0.2:8132   serving    2         0         2.0 KiB   5 B        30s     per tunnel
"
        );
    }
}
