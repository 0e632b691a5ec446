//! The tables of Konnectivity servers and agents.

use std::time::SystemTime;

use super::{replace_control_characters, table};
use crate::admin::{StatusReport, StatusSummary, format_bytes};
use crate::konnectivity::report::{
    FailureReport, KonnectivityAgentReport, KonnectivityServerReport, StalledTunnelReport,
};

/// Failures and warnings of a server.
pub(super) fn summarize_server(report: &KonnectivityServerReport) -> StatusSummary {
    let mut summary = StatusSummary::default();
    if report.phase != "serving" {
        summary.failures.push(report.phase.clone());
    }
    if report.agents.is_empty() {
        summary.failures.push("no agent is connected".to_owned());
    } else if !report.ready {
        let strategy = report.strategies.first().map_or("", String::as_str);
        summary.failures.push(format!("no agent for the first proxy strategy, {strategy}"));
    }
    let tunnels: usize = report.agents.iter().map(|agent| agent.tunnels).sum();
    summary.working = format!("{}, {}", plural(report.agents.len(), "agent"), plural(tunnels, "tunnel"));
    let draining = report.agents.iter().filter(|agent| agent.draining).count();
    if draining > 0 {
        summary.warnings.push(format!("{} draining", plural(draining, "agent")));
    }
    let stalled = report.agents.iter().map(|agent| agent.stalled_tunnels).sum();
    summary.warnings.extend((stalled > 0).then(|| format!("{} stalled", plural(stalled, "tunnel"))));
    summary
}

/// Failures and warnings of an agent.
pub(super) fn summarize_agent(report: &KonnectivityAgentReport) -> StatusSummary {
    let mut summary = StatusSummary::default();
    if report.phase != "serving" {
        summary.failures.push(report.phase.clone());
    }
    let (connected, known) = (report.servers.len(), report.known_servers);
    let last_error = report.failed_connections.first().filter(|_| report.failing);
    match last_error {
        Some(failure) if connected == 0 => summary.failures.push(format!("no server is connected: {}", failure.error)),
        None if connected == 0 => summary.failures.push("no server is connected".to_owned()),
        _ if (connected as u64) < known => summary.failures.push(format!("{connected} of {known} servers connected")),
        _ => {}
    }
    let tunnels: usize = report.servers.iter().map(|server| server.tunnels).sum();
    summary.working = format!("{}, {}", plural(connected, "server"), plural(tunnels, "tunnel"));
    let stalled = report.servers.iter().map(|server| server.stalled_tunnels).sum();
    summary.warnings.extend((stalled > 0).then(|| format!("{} stalled", plural(stalled, "tunnel"))));
    summary
}

/// The report of a server as tables.
pub(super) fn server_tables(report: &KonnectivityServerReport, now: SystemTime, wide: bool) -> String {
    let mut out = heading(
        &summarize_server(report).line(),
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
            let flow_control = if agent.flow_control { "by tunnel" } else { "none" };
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
        &summarize_agent(report).line(),
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
    let mut columns = vec!["SERVER", "ADDRESS", "TUNNELS", "STALLED", "SENT", "RECEIVED", "SINCE"];
    columns.extend(wide.then_some("FLOW CONTROL"));
    let rows = report.servers.iter().map(|server| {
        let mut row = vec![
            server.server_id.clone(),
            server.address.clone(),
            server.tunnels.to_string(),
            server.stalled_tunnels.to_string(),
            format_bytes(server.bytes_to_server),
            format_bytes(server.bytes_from_server),
            StatusReport::age(&server.since, now),
        ];
        row.extend(wide.then(|| if server.flow_control { "by tunnel" } else { "none" }.to_owned()));
        row
    });
    table(&mut out, &columns, rows.collect());
    stalled_table(&mut out, "SERVER", &report.stalled_tunnels, now);
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

fn heading(summary: &str, process: &str) -> String {
    format!("{}\n{}\n", replace_control_characters(summary), replace_control_characters(process))
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
OK: 1 agent, 3 tunnels; 1 tunnel stalled
Narthex 0.1.0, Konnectivity server server-1, serving, up 60m, listening on /run/front.sock (grpc), 0.0.0.0:8132 (agents)

AGENT    IDENTIFIERS   STATE     TUNNELS   STALLED   PENDING   SENT      RECEIVED   SINCE
node-1   host=node-1   serving   3         1         1         2.0 KiB   5 B        30s

PENDING DIAL   AGENT    SINCE
10.1.0.1:443   node-1   30s

STALLED TUNNEL   AGENT    ID   WAITS FOR   QUEUED    SINCE
10.1.0.2:443     node-1   7    client      4.0 MiB   30s

FAILED DIAL    AGENT    REASON           COUNT   AGE   ERROR
10.1.0.3:443   node-1   error_response   2       30s   dial tcp 10.1.0.3:443:\u{fffd}refused

REFUSED CONNECTION   COUNT   AGE   ERROR
agent 10.0.0.9       1       30s   TLS handshake failed
"
        );
        let wide = server_tables(&report, now(), true);
        assert!(wide.contains("10.0.0.1:4711   narthex/0.1.0   by tunnel\n"), "{wide}");
        let summary = summarize_server(&KonnectivityServerReport { phase: "serving".into(), ..Default::default() });
        assert_eq!(summary.failures, ["no agent is connected"]);
    }

    #[test]
    fn status_of_a_konnectivity_agent_says_why_it_has_no_server() {
        let mut report = KonnectivityAgentReport {
            phase: "serving".into(),
            known_servers: 2,
            failing: true,
            failed_connections: vec![FailureReport { error: "refused".into(), ..FailureReport::default() }],
            ..KonnectivityAgentReport::default()
        };
        assert_eq!(summarize_agent(&report).failures, ["no server is connected: refused"]);
        report.servers.push(ConnectedServerReport { server_id: "s".into(), tunnels: 1, ..Default::default() });
        assert_eq!(summarize_agent(&report).failures, ["1 of 2 servers connected"]);
        report.known_servers = 1;
        assert_eq!(summarize_agent(&report).line(), "OK: 1 server, 1 tunnel");
    }
}
