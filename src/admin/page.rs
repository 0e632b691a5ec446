//! The status page: one self-contained HTML document without scripts.

use std::fmt::{Display, Write};
use std::sync::LazyLock;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::expiry::ExpiryWarning;
use super::status_report::StatusReport;

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
    let mut page = StatusPage(String::with_capacity(16 * 1024));
    page.raw("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Narthex</title>");
    page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    page.raw("<meta http-equiv=\"refresh\" content=\"10\"><style>");
    page.raw(STYLESHEET);
    page.raw("</style></head><body><main>");
    page.head(report, now);
    page.apiservices(report, now);
    page.endpoints(report);
    page.remote_calls(report, now);
    page.egress(report);
    page.certificates(report, now);
    page.peer_certificates(report, now);
    page.audit(report);
    page.refusals(report, now);
    page.problems(report);
    page.raw("<h2>More</h2><p>");
    for path in ["/readyz?verbose", "/livez?verbose", "/metrics", "/status.json", "/debug/connections", "/debug/tasks"]
    {
        page.raw("<a href=\"");
        page.raw(path);
        page.raw("\"><code>");
        page.raw(path);
        page.raw("</code></a> ");
    }
    page.raw("</p></main></body></html>\n");
    page.0
}

struct StatusPage(String);

impl StatusPage {
    fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// Appends `value` as escaped text.
    fn text(&mut self, value: impl Display) {
        let _ = write!(HtmlEscaper(&mut self.0), "{value}");
    }

    fn cell(&mut self, class: &str, value: impl Display) {
        self.raw("<td class=\"");
        self.raw(class);
        self.raw("\">");
        self.text(value);
        self.raw("</td>");
    }

    fn table(&mut self, title: &str, columns: &[&str]) {
        self.raw("<h2>");
        self.text(title);
        self.raw("</h2><div class=\"scroll\"><table><thead><tr>");
        for column in columns {
            let number = matches!(*column, "Inflight" | "Watches" | "Connections" | "Latency" | "Cache hits" | "Count");
            self.raw(if number { "<th class=\"n\">" } else { "<th>" });
            self.text(column);
            self.raw("</th>");
        }
        self.raw("</tr></thead><tbody>");
    }

    fn end_table(&mut self) {
        self.raw("</tbody></table></div>");
    }

    fn head(&mut self, report: &StatusReport, now: SystemTime) {
        let ready = report.phase == "serving" && report.not_ready.is_empty();
        self.raw("<h1>Narthex <span class=\"");
        self.raw(if ready { "good" } else { "warn" });
        self.raw("\">");
        self.text(&report.phase);
        self.raw(if ready { "" } else { ", not ready" });
        self.raw("</span></h1><p class=\"");
        let verdict = report.summarize(now);
        self.raw(match (verdict.is_ok(), verdict.warnings.is_empty()) {
            (true, true) => "good",
            (true, false) => "warn",
            (false, _) => "bad",
        });
        self.raw("\"><strong>");
        self.text(verdict.line());
        self.raw("</strong></p><p class=\"dim\">version ");
        self.text(&report.version);
        self.raw(", up ");
        self.text(StatusReport::age(&report.started, now));
        self.raw(" (since ");
        self.text(&report.started);
        self.raw("), log level ");
        self.text(&report.log_level);
        self.raw("</p><p>Clients connect to <code>");
        self.text(report.listen.join(", "));
        self.raw("</code>");
        if !report.authorizers.is_empty() {
            self.raw(", authorized by <code>");
            self.text(report.authorizers.join(", "));
            self.raw("</code>");
        }
        self.raw("</p>");
        if let Some(cluster) = &report.cluster {
            self.raw(if cluster.failing_since.is_empty() { "<p>" } else { "<p class=\"warn\">" });
            self.text(cluster.describe(now));
            self.raw("</p>");
        }
        for check in report.unready_checks() {
            self.raw("<p class=\"warn\">Not ready: ");
            self.text(check);
            self.raw("</p>");
        }
    }

    fn apiservices(&mut self, report: &StatusReport, now: SystemTime) {
        if report.apiservices.is_empty() {
            // A SOCKS5 server has no APIServices and no flag for them.
            if report.listen.iter().any(|address| address.starts_with("https://")) {
                self.raw("<h2>APIServices</h2><p class=\"dim\">None. Give some with <code>--registry-dir</code>.</p>");
            }
            return;
        }
        let (title, name, service) = match report.is_sidecar() {
            true => ("Upstreams", "Path", "Upstream"),
            false => ("APIServices", "Name", "Service"),
        };
        let mut columns = vec![name, service, "Available", "Since", "Endpoints", "Inflight", "Watches", "Circuit"];
        // Without egress selections every service is reached directly.
        let routes = !report.egress.is_empty();
        columns.extend(routes.then_some("Egress"));
        columns.extend(["Discovery", "Message"]);
        self.table(title, &columns);
        for service in report.apiservices_in_order().filter(|service| !service.is_available_local()) {
            self.raw("<tr>");
            self.cell("", &service.name);
            self.cell("", &service.service);
            let class = match service.available {
                Some(true) => "good",
                Some(false) => "bad",
                None => "dim",
            };
            self.cell(class, service.availability());
            self.cell("", StatusReport::age(&service.since, now));
            self.cell("", service.ready_endpoints());
            self.cell("n", service.inflight);
            self.cell("n", service.watches);
            self.cell(if matches!(&*service.circuit, "" | "closed") { "" } else { "bad" }, &service.circuit);
            if routes {
                self.cell("", &service.way);
            }
            let stale = service.discovery.state == "stale";
            self.cell(if stale { "warn" } else { "" }, service.discovery.describe(now));
            self.cell("dim", &service.message);
            self.raw("</tr>");
        }
        self.end_table();
        let local = report.apiservices.iter().filter(|service| service.is_available_local()).count();
        if local > 0 {
            self.raw("<p class=\"dim\">Local APIServices, all available: ");
            self.text(local);
            self.raw("</p>");
        }
    }

    fn endpoints(&mut self, report: &StatusReport) {
        if report.apiservices.iter().all(|service| service.endpoints.is_empty()) {
            return;
        }
        let of = if report.is_sidecar() { "Path" } else { "APIService" };
        self.table("Endpoints", &[of, "Address", "State", "Connections", "In flight", "Latency"]);
        for (name, endpoint) in report.endpoints_in_order() {
            self.raw("<tr>");
            self.cell("", name);
            self.cell("", &endpoint.address);
            self.cell(if endpoint.state == "ready" { "good" } else { "bad" }, endpoint.describe());
            self.cell("n", endpoint.connections);
            self.cell("n", endpoint.inflight);
            self.cell("n", endpoint.latency());
            self.raw("</tr>");
        }
        self.end_table();
    }

    fn remote_calls(&mut self, report: &StatusReport, now: SystemTime) {
        if report.remote_calls.is_empty() {
            return;
        }
        let columns = ["Call", "Server", "State", "Last success", "Latency", "Cache hits", "Error"];
        self.table("Remote calls", &columns);
        for of in report.remote_calls_in_order() {
            self.raw("<tr>");
            self.cell("", of.title());
            self.cell("", &of.server);
            let class = match (of.failing_since.as_str(), of.last_success.as_str()) {
                ("", "") => "dim",
                ("", _) => "good",
                _ => "bad",
            };
            self.cell(class, of.state(now));
            self.cell("", of.last_success_age(now));
            self.cell("n", of.latency());
            self.cell("n", of.cache_hits_display());
            self.cell("dim", &of.error);
            self.raw("</tr>");
        }
        self.end_table();
    }

    fn egress(&mut self, report: &StatusReport) {
        if report.egress.is_empty() {
            return;
        }
        self.table("Egress", &["Selection", "Protocol", "Proxy", "State"]);
        for one in &report.egress {
            self.raw("<tr>");
            self.cell("", &one.selection);
            self.cell("", &one.protocol);
            self.cell("", &one.proxy);
            self.cell(if one.state.starts_with("fails") { "bad" } else { "" }, &one.state);
            self.raw("</tr>");
        }
        self.end_table();
    }

    fn certificates(&mut self, report: &StatusReport, now: SystemTime) {
        if report.certificates.is_empty() {
            return;
        }
        self.table("Certificates", &["File", "Subject", "Names", "Ends"]);
        for certificate in &report.certificates {
            self.raw("<tr>");
            self.cell("", &certificate.file);
            self.cell("", &certificate.subject);
            self.cell("dim", certificate.names.join(", "));
            let class = expiry_class(certificate.expiry_warning(now));
            let expiry = StatusReport::expiry(&certificate.not_after, now);
            self.cell(class, format_args!("{expiry} ({})", certificate.not_after));
            self.raw("</tr>");
        }
        self.end_table();
    }

    fn peer_certificates(&mut self, report: &StatusReport, now: SystemTime) {
        if report.peer_certificates.is_empty() {
            return;
        }
        self.table("Certificates of servers", &["Server", "Server name", "Used by", "Subject", "Ends", "Refused"]);
        let (soon, late): (Vec<_>, Vec<_>) =
            report.peer_certificates.iter().partition(|certificate| certificate.is_remarkable(now));
        for certificate in soon.into_iter().chain(late) {
            self.raw("<tr>");
            self.cell("", &certificate.server);
            self.cell("", &certificate.server_name);
            self.cell("", &certificate.used_by);
            self.cell("", &certificate.subject);
            let expiry = StatusReport::expiry(&certificate.not_after, now);
            self.cell(
                expiry_class(certificate.expiry_warning(now)),
                format_args!("{expiry} ({})", certificate.not_after),
            );
            self.cell("bad", &certificate.refused);
            self.raw("</tr>");
        }
        self.end_table();
    }

    fn audit(&mut self, report: &StatusReport) {
        if report.audit.is_empty() {
            return;
        }
        self.table("Audit", &["Sink", "Waiting", "Dropped"]);
        for sink in &report.audit {
            self.raw("<tr>");
            self.cell("", &sink.name);
            self.cell("n", sink.waiting);
            self.cell(if sink.dropped == 0 { "n" } else { "n bad" }, sink.dropped);
            self.raw("</tr>");
        }
        self.end_table();
    }

    fn refusals(&mut self, report: &StatusReport, now: SystemTime) {
        if !report.refusals.is_empty() {
            let columns = ["Age", "User", "Verb", "Path", "Status", "Reason", "Count", "Cause", "Audit ID"];
            self.table("Refused and failed requests", &columns);
            for of in &report.refusals {
                self.raw("<tr>");
                self.cell("", StatusReport::age(&of.time, now));
                self.cell("", of.user_display());
                self.cell("", &of.verb);
                self.cell("", &of.path);
                self.cell(if of.status >= 500 { "bad" } else { "" }, of.status);
                self.cell("", &of.reason);
                self.cell("n", of.count);
                self.cell("dim", &of.cause);
                self.cell("dim", &of.audit_id);
                self.raw("</tr>");
            }
            self.end_table();
        }
        let failures = report.handshake_failures.iter().filter(|(_, count)| **count > 0);
        let failures: Vec<String> = failures.map(|(reason, count)| format!("{reason} {count}")).collect();
        if !failures.is_empty() {
            self.raw("<h2>Failed TLS handshakes of clients</h2><p>");
            self.text(failures.join(", "));
            self.raw("</p>");
        }
    }

    fn problems(&mut self, report: &StatusReport) {
        let registry =
            "<h2>Mistakes in the registry</h2><p class=\"dim\">The last good state of these objects is in use.</p>";
        let files = "<h2>Mistakes in files</h2><p class=\"dim\">The last good content is in use.</p>";
        let documents = "<h2>Discovery and OpenAPI documents of backends</h2><p class=\"dim\">Could not be fetched or are invalid.</p>";
        for (head, problems) in [
            (registry, &report.registry_problems),
            (files, &report.file_problems),
            (documents, &report.document_problems),
            ("<h2>Warnings</h2>", &report.registry_warnings),
        ] {
            if problems.is_empty() {
                continue;
            }
            self.raw(head);
            self.raw("<ul>");
            for problem in problems {
                self.raw("<li class=\"bad\">");
                self.text(problem);
                self.raw("</li>");
            }
            self.raw("</ul>");
        }
    }
}

fn expiry_class(warning: Option<ExpiryWarning>) -> &'static str {
    match warning {
        None => "",
        Some(ExpiryWarning::Month | ExpiryWarning::Week) => "warn",
        Some(ExpiryWarning::Day | ExpiryWarning::Expired) => "bad",
    }
}

struct HtmlEscaper<'p>(&'p mut String);

impl Write for HtmlEscaper<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::status_report::{
        ApiServiceReport, AuditSinkReport, CertificateReport, ClusterReport, EgressReport, EndpointReport,
        PeerCertificateReport, RefusalReport, RemoteCallReport, VerdictReport,
    };
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
        assert!(page.contains("&lt;script&gt;alert(&#39;1&#39;)"));
    }

    #[test]
    fn status_page_egress_column_only_with_selections() {
        let service = ApiServiceReport { name: "v1.a.io".into(), way: "cluster (socks5)".into(), ..Default::default() };
        let mut report = StatusReport { apiservices: vec![service], ..StatusReport::default() };
        let page = |report: &StatusReport| render(report, SystemTime::UNIX_EPOCH);
        assert!(!page(&report).contains("cluster (socks5)"));
        report.egress.push(EgressReport { selection: "cluster".into(), ..EgressReport::default() });
        assert!(
            page(&report).contains("<th>Egress</th>") && page(&report).contains("<td class=\"\">cluster (socks5)</td>")
        );
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
