//! One-line summaries of Konnectivity servers and agents.

use super::super::summary::{StatusSummary, plural};
use crate::konnectivity::report::{KonnectivityAgentReport, KonnectivityServerReport};

impl KonnectivityServerReport {
    /// Failures and warnings of the server.
    pub fn summarize(&self) -> StatusSummary {
        let mut summary = StatusSummary::default();
        if self.phase != "serving" {
            summary.failures.push(self.phase.clone());
        }
        summary.failures.extend(self.missing_agent());
        let tunnels = self.agents.iter().map(|agent| agent.tunnels).sum();
        summary.working =
            format!("{}, {}", plural(self.agents.len(), "agent", "agents"), plural(tunnels, "tunnel", "tunnels"));
        let draining = self.agents.iter().filter(|agent| agent.draining).count();
        if draining > 0 {
            summary.warnings.push(format!("{} draining", plural(draining, "agent", "agents")));
        }
        summary.warnings.extend(describe_stalled(self.agents.iter().map(|agent| agent.stalled_tunnels).sum()));
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
    /// Failures and warnings of the agent.
    pub fn summarize(&self) -> StatusSummary {
        let mut summary = StatusSummary::default();
        if self.phase != "serving" {
            summary.failures.push(self.phase.clone());
        }
        summary.failures.extend(self.missing_server());
        let tunnels = self.servers.iter().map(|server| server.tunnels).sum();
        summary.working =
            format!("{}, {}", plural(self.servers.len(), "server", "servers"), plural(tunnels, "tunnel", "tunnels"));
        summary.warnings.extend(describe_stalled(self.servers.iter().map(|server| server.stalled_tunnels).sum()));
        summary
    }

    /// Why clients of some servers cannot use the agent.
    pub(super) fn missing_server(&self) -> Option<String> {
        let (connected, known) = (self.servers.len(), self.known_servers);
        match self.failed_connections.first().filter(|_| self.failing) {
            Some(failure) if connected == 0 => Some(format!("no server is connected: {}", failure.error)),
            None if connected == 0 => Some("no server is connected".to_owned()),
            _ if (connected as u64) < known => Some(format!("{connected} of {known} servers connected")),
            _ => None,
        }
    }
}

fn describe_stalled(count: usize) -> Option<String> {
    (count > 0).then(|| format!("{} stalled", plural(count, "tunnel", "tunnels")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::konnectivity::report::{ConnectedServerReport, FailureReport};

    #[test]
    fn konnectivity_server_without_agents_fails() {
        let report = KonnectivityServerReport { phase: "serving".into(), ..Default::default() };
        assert_eq!(report.summarize().failures, ["no agent is connected"]);
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
        assert_eq!(report.summarize().failures, ["no server is connected: refused"]);
        report.servers.push(ConnectedServerReport { server_id: "s".into(), tunnels: 1, ..Default::default() });
        assert_eq!(report.summarize().failures, ["1 of 2 servers connected"]);
        report.known_servers = 1;
        assert_eq!(report.summarize().line(), "OK: 1 server, 1 tunnel");
    }
}
