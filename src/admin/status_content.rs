//! The status page of a gateway, sidecar or proxy.

use std::time::SystemTime;

use askama::Template;

use super::attention_report::AttentionList;
use super::certificate_list::CertificateRow;
use super::page::PageReport;
use super::sparkline::Sparkline;
use super::status_report::{ApiServiceReport, EgressReport, StatusReport};
use super::summary::StatusSummary;

impl PageReport for StatusReport {
    const HEADING: &'static str = "Narthex";
    const LINKS: &'static [&'static str] =
        &["readyz?verbose", "livez?verbose", "metrics", "status.json", "debug/connections", "debug/tasks"];

    fn headline(&self, now: SystemTime) -> String {
        self.summarize(now).line()
    }

    fn render_content(&self, now: SystemTime) -> String {
        StatusContent::new(self, now).render().unwrap_or_default()
    }

    fn with_verdict(self, now: SystemTime) -> StatusReport {
        StatusReport::with_verdict(self, now)
    }
}

/// What changes while the page is open.
#[derive(Template)]
#[template(path = "status_content.html", whitespace = "minimize", config = "src/admin/askama.toml")]
struct StatusContent<'r> {
    report: &'r StatusReport,
    now: SystemTime,
    summary: StatusSummary,
    attention: AttentionList,
    certificates: Vec<CertificateRow<'r>>,
}

impl<'r> StatusContent<'r> {
    fn new(report: &'r StatusReport, now: SystemTime) -> StatusContent<'r> {
        StatusContent {
            report,
            now,
            summary: report.summarize(now),
            attention: AttentionList::new(report.attention(now), now),
            certificates: report.certificates_in_order(now),
        }
    }

    fn is_ready(&self) -> bool {
        self.report.phase == "serving" && self.report.not_ready.is_empty()
    }

    fn age(&self, timestamp: &str) -> String {
        StatusReport::age(timestamp, self.now)
    }

    fn serves_https(&self) -> bool {
        self.report.listen.iter().any(|address| address.starts_with("https://"))
    }

    /// Available Local APIServices without requests are only counted: they have no backend that can fail.
    fn shown_apiservices(&self) -> impl Iterator<Item = &ApiServiceReport> {
        self.report.apiservices_in_order().filter(|service| !is_folded(service))
    }

    fn local_apiservices(&self) -> usize {
        self.report.apiservices.iter().filter(|service| is_folded(service)).count()
    }

    /// Failing ones first.
    fn egress_in_order(&self) -> impl Iterator<Item = &EgressReport> {
        let (failing, good): (Vec<_>, Vec<_>) = self.report.egress.iter().partition(|proxy| proxy.is_failing());
        failing.into_iter().chain(good)
    }

    fn handshake_failures(&self) -> String {
        let failures = self.report.handshake_failures.iter().filter(|(_, count)| **count > 0);
        failures.map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ")
    }
}

fn is_folded(service: &ApiServiceReport) -> bool {
    service.is_available_local() && !service.has_traffic()
}

#[cfg(test)]
mod tests {
    use super::super::page::render;
    use super::super::status_report::{
        ApiServiceReport, AuditSinkReport, ClusterReport, EgressReport, EndpointReport, PeerCertificateReport,
        RefusalReport, RemoteCallReport, VerdictReport,
    };
    use super::super::storage_report::{ControllerReport, StorageReport, StoredResourceReport};
    use super::*;
    use crate::tls::CertificateReport;

    #[test]
    fn status_page_escapes_every_field() {
        let hostile = "</td><script>alert('1')</script>\"&".to_owned();
        let report = StatusReport {
            version: hostile.clone(),
            started: hostile.clone(),
            phase: hostile.clone(),
            listen: vec![hostile.clone()],
            apiservices: vec![ApiServiceReport {
                name: hostile.clone(),
                service: hostile.clone(),
                available: Some(false),
                reason: hostile.clone(),
                message: hostile.clone(),
                since: hostile.clone(),
                endpoints: vec![EndpointReport {
                    address: hostile.clone(),
                    state: hostile.clone(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            certificates: vec![CertificateReport {
                file: hostile.clone(),
                subject: hostile.clone(),
                names: vec![hostile.clone()],
                not_before: hostile.clone(),
                not_after: hostile.clone(),
            }],
            peer_certificates: vec![PeerCertificateReport {
                server: hostile.clone(),
                server_name: hostile.clone(),
                used_by: hostile.clone(),
                subject: hostile.clone(),
                ..PeerCertificateReport::default()
            }],
            authorizers: vec![hostile.clone()],
            storage: Some(StorageReport {
                location: hostile.clone(),
                refusal: hostile.clone(),
                resources: vec![StoredResourceReport { resource: hostile.clone(), objects: 1, ..Default::default() }],
                controllers: vec![ControllerReport {
                    name: hostile.clone(),
                    error: hostile.clone(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            cluster: Some(ClusterReport { server: hostile.clone(), ..ClusterReport::default() }),
            remote_calls: vec![RemoteCallReport {
                call: hostile.clone(),
                name: hostile.clone(),
                server: hostile.clone(),
                error: hostile.clone(),
                ..RemoteCallReport::default()
            }],
            egress: vec![EgressReport { proxy: hostile.clone(), state: hostile.clone(), ..EgressReport::default() }],
            file_problems: vec![hostile.clone()],
            refusals: vec![RefusalReport {
                time: hostile.clone(),
                user: hostile.clone(),
                impersonated: hostile.clone(),
                verb: hostile.clone(),
                path: hostile.clone(),
                reason: hostile.clone(),
                cause: hostile.clone(),
                audit_id: hostile.clone(),
                ..RefusalReport::default()
            }],
            handshake_failures: [(hostile.clone(), 1)].into(),
            client_connections: Default::default(),
            audit: vec![AuditSinkReport { name: hostile.clone(), ..AuditSinkReport::default() }],
            registry_problems: vec![hostile.clone()],
            registry_warnings: vec![hostile.clone()],
            document_problems: vec![hostile.clone()],
            not_ready: vec![hostile.clone()],
            control_planes: vec![crate::admin::ControlPlaneReport {
                name: hostile.clone(),
                requests: hostile.clone(),
                problems: vec![hostile.clone()],
                ..Default::default()
            }],
            log_level: hostile,
            verdict: VerdictReport::default(),
        };
        let page = render(&report, SystemTime::UNIX_EPOCH);
        assert!(page.matches("<script").count() == 1 && !page.contains("alert('"), "{page}");
        assert!(page.contains("&#60;script&#62;alert(&#39;1&#39;)"));
    }

    #[test]
    fn status_page_egress_column_only_with_selections() {
        let service =
            ApiServiceReport { name: "v1.a.io".into(), egress_route: "cluster (socks5)".into(), ..Default::default() };
        let mut report = StatusReport { apiservices: vec![service], ..StatusReport::default() };
        let page = |report: &StatusReport| render(report, SystemTime::UNIX_EPOCH);
        assert!(!page(&report).contains("cluster (socks5)"));
        report.egress.push(EgressReport { selection: "cluster".into(), ..EgressReport::default() });
        assert!(page(&report).contains(">Egress</th>") && page(&report).contains(">cluster (socks5)</td>"));
    }

    #[test]
    fn status_page_of_socks5_server_has_no_apiservices() {
        let page = |address: &str| {
            render(&StatusReport { listen: vec![address.into()], ..Default::default() }, SystemTime::UNIX_EPOCH)
        };
        assert!(page("https://0.0.0.0:6443").contains("--registry-dir"));
        assert!(!page("socks5://0.0.0.0:1080").contains("APIServices"));
    }
}
