//! The status page: one self-contained HTML document without scripts.

use std::sync::LazyLock;
use std::time::SystemTime;

use askama::Template;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::expiry::ExpiryWarning;
use super::status_report::{PeerCertificateReport, StatusReport};
use super::summary::StatusSummary;

const STYLESHEET: &str = "\
:root{color-scheme:light dark;--fg:#1c2024;--dim:#60646c;--bg:#fcfcfd;--line:#d9d9e0;--good:#18794e;--bad:#b42318;--warn:#9a5b00}\
@media (prefers-color-scheme:dark){:root{--fg:#edeef0;--dim:#b0b4ba;--bg:#111113;--line:#363a3f;--good:#3dd68c;--bad:#ff9592;--warn:#ffca16}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:2rem auto;max-width:72rem;padding:0 1rem}\
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p{margin:.25rem 0}.dim{color:var(--dim)}\
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}\
th{font-weight:600;color:var(--dim)}td.n,th.n{text-align:right}code{font:13px/1.5 ui-monospace,monospace}a{color:inherit}";

/// Content security policy of the page: allows its one inline style sheet and nothing else.
pub(super) static PAGE_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, STYLESHEET.as_bytes());
    format!(
        "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        STANDARD.encode(digest)
    )
});

/// Renders `report` as of `now`.
pub(super) fn render(report: &StatusReport, now: SystemTime) -> String {
    // Only a `Display` that fails is an error.
    StatusPage { report, now, summary: report.summarize(now) }.render().unwrap_or_default()
}

#[derive(Template)]
#[template(path = "status_page.html", whitespace = "minimize")]
struct StatusPage<'r> {
    report: &'r StatusReport,
    now: SystemTime,
    summary: StatusSummary,
}

impl StatusPage<'_> {
    fn is_ready(&self) -> bool {
        self.report.phase == "serving" && self.report.not_ready.is_empty()
    }

    fn summary_class(&self) -> &'static str {
        match (self.summary.is_ok(), self.summary.warnings.is_empty()) {
            (true, true) => "good",
            (true, false) => "warn",
            (false, _) => "bad",
        }
    }

    fn age(&self, timestamp: &str) -> String {
        StatusReport::age(timestamp, self.now)
    }

    fn expiry(&self, timestamp: &str) -> String {
        StatusReport::expiry(timestamp, self.now)
    }

    fn serves_https(&self) -> bool {
        self.report.listen.iter().any(|address| address.starts_with("https://"))
    }

    fn local_apiservices(&self) -> usize {
        self.report.apiservices.iter().filter(|service| service.is_available_local()).count()
    }

    /// Remarkable ones first.
    fn peer_certificates(&self) -> impl Iterator<Item = &PeerCertificateReport> {
        let (first, rest): (Vec<_>, Vec<_>) =
            self.report.peer_certificates.iter().partition(|certificate| certificate.is_remarkable(self.now));
        first.into_iter().chain(rest)
    }

    fn handshake_failures(&self) -> String {
        let failures = self.report.handshake_failures.iter().filter(|(_, count)| **count > 0);
        failures.map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Title, explanation and entries of each list of problems.
    fn problems(&self) -> [(&'static str, &'static str, &[String]); 4] {
        let report = self.report;
        [
            ("Mistakes in the registry", "The last good state of these objects is in use.", &report.registry_problems),
            ("Mistakes in files", "The last good content is in use.", &report.file_problems),
            (
                "Discovery and OpenAPI documents of backends",
                "Could not be fetched or are invalid.",
                &report.document_problems,
            ),
            ("Warnings", "", &report.registry_warnings),
        ]
    }
}

fn expiry_class(warning: Option<ExpiryWarning>) -> &'static str {
    match warning {
        None => "",
        Some(ExpiryWarning::Month | ExpiryWarning::Week) => "warn",
        Some(ExpiryWarning::Day | ExpiryWarning::Expired) => "bad",
    }
}

#[cfg(test)]
mod tests {
    use super::super::status_report::{
        ApiServiceReport, AuditSinkReport, CertificateReport, ClusterReport, EgressReport, EndpointReport,
        RefusalReport, RemoteCallReport, VerdictReport,
    };
    use super::super::storage_report::{StorageReport, StoredResourceReport};
    use super::*;

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
                file: hostile.clone(),
                refusal: hostile.clone(),
                resources: vec![StoredResourceReport { resource: hostile.clone(), objects: 1, ..Default::default() }],
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
            audit: vec![AuditSinkReport { name: hostile.clone(), ..AuditSinkReport::default() }],
            registry_problems: vec![hostile.clone()],
            registry_warnings: vec![hostile.clone()],
            document_problems: vec![hostile.clone()],
            not_ready: vec![hostile.clone()],
            log_level: hostile,
            verdict: VerdictReport::default(),
        };
        let page = render(&report, SystemTime::UNIX_EPOCH);
        assert!(!page.contains("<script") && !page.contains("alert('"), "{page}");
        assert!(page.contains("&#60;script&#62;alert(&#39;1&#39;)"));
    }

    #[test]
    fn status_page_egress_column_only_with_selections() {
        let service = ApiServiceReport { name: "v1.a.io".into(), way: "cluster (socks5)".into(), ..Default::default() };
        let mut report = StatusReport { apiservices: vec![service], ..StatusReport::default() };
        let page = |report: &StatusReport| render(report, SystemTime::UNIX_EPOCH);
        assert!(!page(&report).contains("cluster (socks5)"));
        report.egress.push(EgressReport { selection: "cluster".into(), ..EgressReport::default() });
        assert!(page(&report).contains("<th>Egress</th>") && page(&report).contains("<td>cluster (socks5)</td>"));
    }

    #[test]
    fn status_page_of_socks5_server_has_no_apiservices() {
        let page = |address: &str| {
            render(&StatusReport { listen: vec![address.into()], ..Default::default() }, SystemTime::UNIX_EPOCH)
        };
        assert!(page("https://0.0.0.0:6443").contains("--registry-dir"));
        assert!(!page("socks5://0.0.0.0:1080").contains("APIServices"));
    }

    #[test]
    fn status_page_loads_nothing_external() {
        let page = render(&StatusReport::default(), SystemTime::UNIX_EPOCH);
        for elsewhere in ["http://", "https://", "src=", "url(", "@import", "<script", "style="] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        assert!(PAGE_SECURITY_POLICY.starts_with("default-src 'none'; style-src 'sha256-"));
    }
}
