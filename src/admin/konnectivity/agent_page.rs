//! The status page of a Konnectivity agent.

use std::time::SystemTime;

use askama::Template;

use super::super::attention_report::AttentionList;
use super::super::certificate_list::{CertificateRow, file_rows};
use super::super::page::PageReport;
use super::super::storage_report::format_bytes;
use super::super::summary::StatusSummary;
use super::{LINKS, MAX_ROWS, describe_flow_control};
use crate::konnectivity::report::{ConnectedServerReport, KonnectivityAgentReport};
use crate::observe::times::format_age;

impl PageReport for KonnectivityAgentReport {
    const HEADING: &'static str = "Narthex Konnectivity agent";
    const LINKS: &'static [&'static str] = LINKS;

    fn headline(&self, now: SystemTime) -> String {
        self.summarize(now).line()
    }

    fn render_content(&self, now: SystemTime) -> String {
        let mut servers = Vec::from_iter(&self.servers);
        servers.sort_by_key(|server| (server.stalled_tunnels == 0, !server.draining));
        let content = AgentContent {
            report: self,
            now,
            summary: self.summarize(now),
            certificates: file_rows(&self.certificates, now),
            attention: AttentionList::new(self.attention(now), now),
            servers,
        };
        content.render().unwrap_or_default()
    }

    fn with_verdict(self, _: SystemTime) -> KonnectivityAgentReport {
        self
    }
}

#[derive(Template)]
#[template(path = "konnectivity_agent.html", whitespace = "minimize", config = "src/admin/askama.toml")]
struct AgentContent<'r> {
    report: &'r KonnectivityAgentReport,
    now: SystemTime,
    summary: StatusSummary,
    attention: AttentionList,
    certificates: Vec<CertificateRow<'r>>,
    /// Those with stalled tunnels first, then draining ones.
    servers: Vec<&'r ConnectedServerReport>,
}

impl AgentContent<'_> {
    fn shown_servers(&self) -> &[&ConnectedServerReport] {
        &self.servers[..self.servers.len().min(MAX_ROWS)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::page::render;
    use super::*;
    use crate::konnectivity::report::{FailureReport, StalledTunnelReport};
    use crate::tls::CertificateReport;

    #[test]
    fn konnectivity_agent_page_escapes_every_field() {
        let hostile = "</td><script>alert('1')</script>\"&".to_owned();
        let failure = FailureReport {
            last: hostile.clone(),
            reason: hostile.clone(),
            address: hostile.clone(),
            error: hostile.clone(),
            ..FailureReport::default()
        };
        let certificate = CertificateReport {
            file: hostile.clone(),
            subject: hostile.clone(),
            names: vec![hostile.clone()],
            not_before: hostile.clone(),
            not_after: hostile.clone(),
        };
        let report = KonnectivityAgentReport {
            role: hostile.clone(),
            version: hostile.clone(),
            started: hostile.clone(),
            phase: hostile.clone(),
            agent_id: hostile.clone(),
            identifiers: hostile.clone(),
            servers: vec![ConnectedServerReport {
                server_id: hostile.clone(),
                address: hostile.clone(),
                since: hostile.clone(),
                ..ConnectedServerReport::default()
            }],
            failed_connections: vec![failure.clone()],
            stalled_tunnels: vec![StalledTunnelReport {
                peer: hostile.clone(),
                address: hostile.clone(),
                waits_for: hostile.clone(),
                since: hostile,
                ..StalledTunnelReport::default()
            }],
            failed_dials: vec![failure],
            certificates: vec![certificate],
            file_problems: vec!["</td><script>alert('1')</script>".into()],
            ..KonnectivityAgentReport::default()
        };
        let page = render(&report, SystemTime::UNIX_EPOCH);
        assert!(page.matches("<script").count() == 1 && !page.contains("alert('"), "{page}");
        assert!(page.matches("&#60;script&#62;alert(&#39;1&#39;)").count() > 19, "{page}");
    }

    #[test]
    fn konnectivity_agent_page_without_servers_says_why() {
        let report = KonnectivityAgentReport {
            phase: "serving".into(),
            failing: true,
            failed_connections: vec![FailureReport {
                reason: "refused".into(),
                error: "10.0.0.1:8132: bad certificate".into(),
                ..FailureReport::default()
            }],
            ..KonnectivityAgentReport::default()
        };
        let page = render(&report, SystemTime::UNIX_EPOCH);
        let headline = "no server is connected: 10.0.0.1:8132: bad certificate";
        assert!(page.contains(&format!("<title>Narthex Konnectivity agent: {headline}</title>")), "{page}");
        assert!(page.contains(&format!("data-announce>{headline}</h2>")), "{page}");
        assert!(page.contains("None is connected.") && page.contains("id=\"failed-connections\""), "{page}");
    }
}
