//! The status page of a Konnectivity server.

use std::time::SystemTime;

use askama::Template;

use super::super::attention_report::AttentionList;
use super::super::certificate_list::{CertificateRow, file_rows};
use super::super::page::PageReport;
use super::super::storage_report::format_bytes;
use super::super::summary::StatusSummary;
use super::{LINKS, MAX_ROWS, describe_flow_control};
use crate::konnectivity::report::{ConnectedAgentReport, KonnectivityServerReport};
use crate::observe::times::format_age;

impl PageReport for KonnectivityServerReport {
    const HEADING: &'static str = "Narthex Konnectivity server";
    const LINKS: &'static [&'static str] = LINKS;

    fn headline(&self, now: SystemTime) -> String {
        self.summarize(now).line()
    }

    fn render_content(&self, now: SystemTime) -> String {
        let content = ServerContent {
            report: self,
            now,
            summary: self.summarize(now),
            certificates: file_rows(&self.certificates, now),
            attention: AttentionList::new(self.attention(now), now),
            agents: agents_in_order(&self.agents),
        };
        content.render().unwrap_or_default()
    }

    fn with_verdict(self, _: SystemTime) -> KonnectivityServerReport {
        self
    }
}

#[derive(Template)]
#[template(path = "konnectivity_server.html", whitespace = "minimize", config = "src/admin/askama.toml")]
struct ServerContent<'r> {
    report: &'r KonnectivityServerReport,
    now: SystemTime,
    summary: StatusSummary,
    attention: AttentionList,
    certificates: Vec<CertificateRow<'r>>,
    agents: Vec<&'r ConnectedAgentReport>,
}

impl ServerContent<'_> {
    fn is_ready(&self) -> bool {
        self.report.phase == "serving" && self.report.ready
    }

    fn shown_agents(&self) -> &[&ConnectedAgentReport] {
        &self.agents[..self.agents.len().min(MAX_ROWS)]
    }
}

/// Those with stalled tunnels first, then draining ones, then those with pending dials.
fn agents_in_order(agents: &[ConnectedAgentReport]) -> Vec<&ConnectedAgentReport> {
    let mut agents = Vec::from_iter(agents);
    agents.sort_by_key(|agent| (agent.stalled_tunnels == 0, !agent.draining, agent.pending_dials == 0));
    agents
}

#[cfg(test)]
mod tests {
    use super::super::super::page::render;
    use super::*;
    use crate::konnectivity::report::{FailureReport, PendingDialReport, StalledTunnelReport};
    use crate::tls::CertificateReport;

    #[test]
    fn konnectivity_server_page_escapes_every_field() {
        let hostile = "</td><script>alert('1')</script>\"&".to_owned();
        let failure = FailureReport {
            last: hostile.clone(),
            reason: hostile.clone(),
            address: hostile.clone(),
            agent_id: hostile.clone(),
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
        let report = KonnectivityServerReport {
            role: hostile.clone(),
            version: hostile.clone(),
            started: hostile.clone(),
            phase: hostile.clone(),
            server_id: hostile.clone(),
            listen: vec![hostile.clone()],
            strategies: vec![hostile.clone()],
            agents: vec![ConnectedAgentReport {
                agent_id: hostile.clone(),
                identifiers: hostile.clone(),
                program: hostile.clone(),
                remote: hostile.clone(),
                since: hostile.clone(),
                draining: true,
                ..ConnectedAgentReport::default()
            }],
            pending_dials: vec![PendingDialReport {
                agent_id: hostile.clone(),
                address: hostile.clone(),
                since: hostile.clone(),
            }],
            stalled_tunnels: vec![StalledTunnelReport {
                peer: hostile.clone(),
                address: hostile.clone(),
                waits_for: hostile.clone(),
                since: hostile,
                ..StalledTunnelReport::default()
            }],
            failed_dials: vec![failure.clone()],
            refused_connections: vec![failure],
            certificates: vec![certificate],
            file_problems: vec!["</td><script>alert('1')</script>".into()],
            ..KonnectivityServerReport::default()
        };
        let page = render(&report, SystemTime::UNIX_EPOCH);
        assert!(page.matches("<script").count() == 1 && !page.contains("alert('"), "{page}");
        assert!(page.matches("&#60;script&#62;alert(&#39;1&#39;)").count() > 24, "{page}");
    }

    #[test]
    fn konnectivity_server_page_lists_agents_that_need_attention_first() {
        let agent = |id: &str, stalled_tunnels: usize, draining: bool, pending_dials: usize| ConnectedAgentReport {
            agent_id: id.into(),
            stalled_tunnels,
            draining,
            pending_dials,
            ..ConnectedAgentReport::default()
        };
        let mut agents = vec![agent("good", 0, false, 0); MAX_ROWS];
        agents.extend([agent("pending", 0, false, 1), agent("draining", 0, true, 0), agent("stalled", 1, false, 0)]);
        let report = KonnectivityServerReport { agents, ..KonnectivityServerReport::default() };
        let ids = agents_in_order(&report.agents).into_iter().map(|agent| agent.agent_id.as_str());
        assert_eq!(ids.take(4).collect::<Vec<_>>(), ["stalled", "draining", "pending", "good"]);
        let content = report.render_content(SystemTime::UNIX_EPOCH);
        assert_eq!(content.matches("<tr data-key=").count(), MAX_ROWS);
        assert!(content.contains("3 more in /status.json"), "{content}");
    }

    #[test]
    fn konnectivity_server_page_lists_certificates_by_days_left() {
        let certificate = |file: &str, not_after: &str| CertificateReport {
            file: file.into(),
            not_before: "1969-01-01T00:00:00Z".into(),
            not_after: not_after.into(),
            ..CertificateReport::default()
        };
        let certificates = vec![
            certificate("later.crt", "1971-01-01T00:00:00Z"),
            certificate("soon.crt", "1970-01-06T00:00:00Z"),
            certificate("today.crt", "1970-01-01T12:00:00Z"),
        ];
        let report = KonnectivityServerReport { certificates, ..KonnectivityServerReport::default() };
        let content = report.render_content(SystemTime::UNIX_EPOCH);
        let section = &content[content.find("<section id=\"certificates\"").unwrap()..];
        let places = ["today.crt", "soon.crt", "later.crt"].map(|file| section.find(file).unwrap());
        assert!(places.is_sorted(), "{section}");
        for cell in
            ["<span class=\"bad\">in 12h</span>", "<span class=\"warn\">in 5d</span>", "<span class=\"\">in 365d"]
        {
            assert!(section.contains(cell), "{cell}: {section}");
        }
    }

    #[test]
    fn konnectivity_server_page_without_agents_says_so() {
        let report = KonnectivityServerReport { phase: "serving".into(), ..KonnectivityServerReport::default() };
        let content = report.render_content(SystemTime::UNIX_EPOCH);
        assert!(content.contains("data-announce>no agent is connected</h2>"), "{content}");
        assert!(content.contains("None is connected.") && !content.contains("<table"), "{content}");
    }
}
