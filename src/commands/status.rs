//! `narthex status`: prints the state of a running process, fetched from its admin listener.

mod calls;
mod certificates;
mod fetch;
mod konnectivity;
mod refusals;
mod traffic;
mod wait;
mod watch;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use kubeapi::duration;
use serde::Deserialize;

use crate::admin::{self, AdminToken, ApiServiceReport, AttentionReport, StatusReport, StatusSummary};
use crate::konnectivity::report::{AGENT_ROLE, KonnectivityAgentReport, KonnectivityServerReport, SERVER_ROLE};
use crate::process::WatchedFileContent;

/// Show the state of a running process: APIServices, endpoints, certificates; agents and tunnels of Konnectivity
#[derive(Clone, Debug, clap::Args)]
pub struct StatusCommand {
    /// Show only this section
    #[arg(value_enum)]
    pub part: Option<StatusSection>,
    /// Admin address of the running process
    #[arg(long, value_name = "HOST:PORT", env = "NARTHEX_ADMIN_ADDRESS", default_value = admin::DEFAULT_ADDRESS)]
    pub admin_address: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    pub output: StatusFormat,
    /// Exit with 1 if anything fails: an APIService is unavailable, a remote call fails, a certificate has expired, …
    #[arg(long)]
    pub fail: bool,
    /// File with the bearer token of the admin listener (the process's --admin-token-file)
    #[arg(long, value_name = "FILE", env = "NARTHEX_ADMIN_TOKEN_FILE", visible_alias = "token-file")]
    pub admin_token_file: Option<PathBuf>,
    /// Show the state until Ctrl-C, also while the process restarts; a terminal is redrawn
    #[arg(short, long)]
    pub watch: bool,
    /// Wait until the process is ready and nothing fails: every APIService is available, no remote call fails. Exit with 1
    /// after this time
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "60s",
        value_parser = parse_wait, conflicts_with = "watch")]
    pub wait: Option<Duration>,
    /// Seconds between two reports of --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
}

/// A section of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusSection {
    /// The last refused or failed requests, and failed TLS handshakes of clients.
    Refusals,
}

/// The output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// One table per section.
    #[default]
    Table,
    /// The tables with endpoints and messages.
    Wide,
    /// The report as JSON.
    Json,
    /// The report as YAML.
    Yaml,
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|_| "use a duration such as 30s or 2m".to_owned())
}

impl StatusCommand {
    /// Fetches the report and prints it to standard output. Exit status 1 without a report, and with `--fail` when
    /// anything in it fails.
    pub fn run(&self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = runtime.map_err(|error| format!("cannot start: {error}")).and_then(|runtime| {
            runtime.block_on(async {
                if self.watch {
                    return watch::run(self, Duration::from_secs(self.interval)).await;
                }
                if let Some(longest) = self.wait {
                    return wait::run(self, longest).await;
                }
                let (text, verdict) = self.fetch_output(self.output == StatusFormat::Wide).await?;
                // A closed pipe is not a failure.
                let _ = std::io::stdout().write_all(text.as_bytes());
                Ok(if self.fail && !verdict.is_ok() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
            })
        });
        result.unwrap_or_else(|error| {
            eprintln!("narthex status: {error}");
            ExitCode::FAILURE
        })
    }

    /// Fetches the report and formats it; tables have the recent requests if `with_traffic`.
    async fn fetch_output(&self, with_traffic: bool) -> Result<(String, StatusSummary), String> {
        let token = self.admin_token_file.as_deref().map(AdminToken::read).transpose();
        let token = token.map_err(|problems| problems.to_string())?;
        let text = fetch::fetch_report(&self.admin_address, token.as_ref()).await?;
        let not_ours = |error: &dyn std::fmt::Display| {
            format!("response of {} is not a narthex status report of this version: {error}", self.admin_address)
        };
        let (now, wide) = (SystemTime::now(), self.output == StatusFormat::Wide);
        let report = ProcessReport::parse(&text).map_err(|error| not_ours(&error))?;
        // Printed as received: a newer process may send fields that this version does not know.
        let value = || {
            let mut value = serde_json::from_slice::<serde_json::Value>(&text).map_err(|error| not_ours(&error))?;
            if let (Some(StatusSection::Refusals), Some(fields)) = (self.part, value.as_object_mut()) {
                fields.retain(|name, _| REFUSAL_FIELDS.contains(&name.as_str()));
            }
            Ok::<_, String>(value)
        };
        let shown = match self.output {
            StatusFormat::Table | StatusFormat::Wide if self.part.is_some() => report.refusal_tables(now),
            StatusFormat::Table | StatusFormat::Wide => report.tables(now, wide, with_traffic),
            StatusFormat::Json => format!("{:#}\n", value()?),
            StatusFormat::Yaml => serde_saphyr::to_string(&value()?).map_err(|error| not_ours(&error))?,
        };
        Ok((shown, report.summarize(now)))
    }

    /// The command that prints the whole report once.
    fn one_shot_command(&self) -> String {
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        let part = self.part.and_then(|part| name(part.to_possible_value())).map(|part| format!(" {part}"));
        let form = Some(self.output).filter(|form| *form != StatusFormat::Table);
        let form = form.and_then(|form| name(form.to_possible_value())).map(|form| format!(" -o {form}"));
        format!("narthex status{}{}", part.unwrap_or_default(), form.unwrap_or_default())
    }
}

/// Fields of the section [`StatusSection::Refusals`].
const REFUSAL_FIELDS: [&str; 5] =
    ["refusals", "handshakeFailures", "failedDials", "refusedConnections", "failedConnections"];

/// The report of a process.
enum ProcessReport {
    Gateway(Box<StatusReport>),
    KonnectivityServer(KonnectivityServerReport),
    KonnectivityAgent(KonnectivityAgentReport),
}

impl ProcessReport {
    fn parse(text: &[u8]) -> serde_json::Result<ProcessReport> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ProcessRole {
            role: String,
        }
        let ProcessRole { role } = serde_json::from_slice(text)?;
        Ok(match role.as_str() {
            SERVER_ROLE => ProcessReport::KonnectivityServer(serde_json::from_slice(text)?),
            AGENT_ROLE => ProcessReport::KonnectivityAgent(serde_json::from_slice(text)?),
            _ => ProcessReport::Gateway(serde_json::from_slice(text)?),
        })
    }

    fn tables(&self, now: SystemTime, wide: bool, with_traffic: bool) -> String {
        match self {
            ProcessReport::Gateway(report) => {
                tables(report, now, TableColumns { wide, traffic: with_traffic && traffic::has_traffic(report) })
            }
            ProcessReport::KonnectivityServer(report) => konnectivity::server_tables(report, now, wide),
            ProcessReport::KonnectivityAgent(report) => konnectivity::agent_tables(report, now, wide),
        }
    }

    fn refusal_tables(&self, now: SystemTime) -> String {
        let text = match self {
            ProcessReport::Gateway(report) => return refusal_tables(report, now),
            ProcessReport::KonnectivityServer(report) => konnectivity::server_refusals(report, now),
            ProcessReport::KonnectivityAgent(report) => konnectivity::agent_refusals(report, now),
        };
        if text.is_empty() { "nothing was refused or failed\n".to_owned() } else { text.trim_start().to_owned() }
    }

    fn summarize(&self, now: SystemTime) -> StatusSummary {
        match self {
            ProcessReport::Gateway(report) => report.summarize(now),
            ProcessReport::KonnectivityServer(report) => report.summarize(now),
            ProcessReport::KonnectivityAgent(report) => report.summarize(now),
        }
    }
}

/// Which columns and tables are shown.
#[derive(Clone, Copy, Default)]
struct TableColumns {
    wide: bool,
    /// Recent requests.
    traffic: bool,
}

/// The report as tables in kubectl's layout.
fn tables(report: &StatusReport, now: SystemTime, columns: TableColumns) -> String {
    let mut out = heading(report, now);
    api_service_table(&mut out, report, now, columns);
    control_plane_table(&mut out, report);
    stored_object_table(&mut out, report);
    let wide = columns.wide;
    if wide {
        controller_table(&mut out, report);
        token_key_table(&mut out, report);
        endpoint_table(&mut out, report, columns.traffic);
    }
    table(&mut out, &calls::COLUMNS, calls::rows(report, now));
    let rows = report
        .egress
        .iter()
        .map(|one| vec![one.selection.clone(), one.protocol.clone(), one.proxy.clone(), one.describe_state()]);
    table(&mut out, &["EGRESS", "PROTOCOL", "PROXY", "STATE"], rows.collect());
    certificates::append_configured(&mut out, &report.certificates, now, wide);
    table(&mut out, &certificates::COLUMNS, certificates::rows(report, now, wide));
    let rows =
        report.audit.iter().map(|sink| vec![sink.name.clone(), sink.waiting.to_string(), sink.dropped.to_string()]);
    table(&mut out, &["AUDIT", "WAITING", "DROPPED"], rows.collect());
    out
}

/// Entries of one kind in the list of what needs attention, at most.
const MAX_ATTENTION: usize = 10;

/// Rows of APIServices that are unavailable for the same reason, at most.
const MAX_UNAVAILABLE: usize = 20;

/// The lines above the tables: summary, what needs attention, version, phase, addresses.
fn heading(report: &StatusReport, now: SystemTime) -> String {
    let mut out = format!("{}\n", replace_control_characters(&report.summarize(now).line()));
    append_attention(&mut out, &report.attention(now), now);
    let ready = if report.not_ready.is_empty() { "" } else { ", not ready" };
    out.push_str(&replace_control_characters(&format!(
        "Narthex {}, {}{ready}, up {}, listening on {}\n",
        report.version,
        report.phase,
        StatusReport::age(&report.started, now),
        report.listen.join(", "),
    )));
    if !report.authorizers.is_empty() {
        out.push_str(&format!("authorizers: {}\n", replace_control_characters(&report.authorizers.join(", "))));
    }
    if let Some(cluster) = &report.cluster {
        out.push_str(&format!("{}\n", replace_control_characters(&cluster.describe(now))));
    }
    if let Some(storage) = &report.storage {
        out.push_str(&format!("{}\n", replace_control_characters(&storage.describe())));
    }
    out
}

/// Appends what needs attention as a list between blank lines; nothing if there is none.
fn append_attention(out: &mut String, entries: &[AttentionReport], now: SystemTime) {
    if entries.is_empty() {
        return;
    }
    out.push_str("\nNeeds attention:\n");
    let mut counts = BTreeMap::<&str, usize>::new();
    for AttentionReport { severity, section, subject, text, since } in entries {
        // The section of the process has entries of several kinds.
        let kind = if section == "process" { subject } else { section };
        let count = counts.entry(kind).or_default();
        *count += 1;
        if *count > MAX_ATTENTION {
            continue;
        }
        // Warnings without an object have the severity as their subject.
        let subject = if subject == severity { String::new() } else { format!(" {subject}:") };
        let age = if since.is_empty() { String::new() } else { format!(" (for {})", StatusReport::age(since, now)) };
        out.push_str(&replace_control_characters(&format!("  {severity}:{subject} {}{age}", text.trim_end())));
        out.push('\n');
    }
    for (kind, count) in counts.into_iter().filter(|(_, count)| *count > MAX_ATTENTION) {
        let more = count - MAX_ATTENTION;
        let kind = replace_control_characters(kind);
        out.push_str(&format!("  and {more} more ({kind}): narthex status -o json\n"));
    }
    out.push('\n');
}

/// Appends the table of APIServices, or of the upstreams of a sidecar.
fn api_service_table(out: &mut String, report: &StatusReport, now: SystemTime, shown: TableColumns) {
    let TableColumns { wide, traffic } = shown;
    let (name, service) = if report.is_sidecar() { ("PATH", "UPSTREAM") } else { ("NAME", "SERVICE") };
    let mut columns = vec![name, service, "AVAILABLE", "ENDPOINTS", "INFLIGHT", "WATCHES"];
    columns.extend(traffic.then_some(traffic::COLUMNS).into_iter().flatten());
    columns.push("SINCE");
    // Without egress routes all connections are direct: no column.
    let has_egress = !report.egress.is_empty();
    columns.extend(has_egress.then_some("EGRESS"));
    columns.extend(wide.then_some(["CIRCUIT", "DISCOVERY", "MESSAGE"]).into_iter().flatten());
    // Available local APIServices are only counted: they have no backend that can fail, and a cluster has many.
    let folded =
        |service: &&ApiServiceReport| !wide && service.is_available_local() && !(traffic && service.has_traffic());
    // A thousand with the same defect are told in one line.
    let mut unavailable = BTreeMap::<&str, usize>::new();
    let mut shown = Vec::new();
    for service in report.apiservices_in_order().filter(|service| !folded(service)) {
        let count = unavailable.entry(&service.reason).or_default();
        *count += usize::from(service.available == Some(false));
        if wide || service.available != Some(false) || *count <= MAX_UNAVAILABLE {
            shown.push(service);
        }
    }
    let rows = shown.into_iter().map(|service| {
        let mut row = vec![
            service.name.clone(),
            service.service.clone(),
            service.availability(),
            service.ready_endpoints(),
            service.inflight.to_string(),
            service.watches.to_string(),
        ];
        row.extend(traffic.then(|| traffic::cells(&service.traffic)).into_iter().flatten());
        row.push(StatusReport::age(&service.since, now));
        row.extend(has_egress.then(|| service.egress_route.clone()));
        if wide {
            row.extend([service.circuit.clone(), service.discovery.describe(now), service.message.clone()]);
        }
        row
    });
    let rows = rows.collect();
    table(out, &columns, rows);
    for (reason, count) in unavailable.into_iter().filter(|(_, count)| !wide && *count > MAX_UNAVAILABLE) {
        let more = count - MAX_UNAVAILABLE;
        out.push_str(&replace_control_characters(&format!(
            "{more} more are unavailable ({reason}): narthex status -o wide\n"
        )));
    }
    match report.apiservices.iter().filter(folded).count() {
        0 => {}
        1 => out.push_str("1 Local APIService, available\n"),
        more => out.push_str(&format!("{more} Local APIServices, all available\n")),
    }
}

/// Appends the table of control planes.
fn control_plane_table(out: &mut String, report: &StatusReport) {
    let rows = report.control_planes_in_order().map(|one| {
        vec![
            one.name.clone(),
            one.requests.clone(),
            one.state.clone(),
            one.apiservices.to_string(),
            one.inflight.to_string(),
            one.problem_line(),
        ]
    });
    table(out, &["CONTROL PLANE", "REQUESTS", "STATE", "APISERVICES", "INFLIGHT", "PROBLEMS"], rows.collect());
}

/// Appends the table of the objects in the store.
fn stored_object_table(out: &mut String, report: &StatusReport) {
    let rows = report.storage.iter().flat_map(|storage| storage.resources_in_use()).map(|one| {
        vec![
            one.resource.clone(),
            one.objects.to_string(),
            one.size(),
            one.watches.to_string(),
            one.history.to_string(),
        ]
    });
    table(out, &["RESOURCE", "OBJECTS", "SIZE", "WATCHES", "HISTORY"], rows.collect());
}

/// Appends the table of the controllers of the embedded API server.
fn controller_table(out: &mut String, report: &StatusReport) {
    let rows = report.storage.iter().flat_map(|storage| &storage.controllers).map(|one| {
        let counts = [one.queued, one.running, one.failing, one.failures].map(|count| count.to_string());
        [one.name.clone()].into_iter().chain(counts).chain([one.error.clone()]).collect()
    });
    table(out, &["CONTROLLER", "QUEUED", "RUNNING", "FAILING", "FAILED ATTEMPTS", "ERROR"], rows.collect());
}

/// Appends the table of the keys of service account tokens.
fn token_key_table(out: &mut String, report: &StatusReport) {
    let keys = report.storage.iter().flat_map(|storage| &storage.token_keys);
    table(out, &["TOKEN KEY", "STATE"], keys.map(|one| vec![one.key_id.clone(), one.state.clone()]).collect());
}

/// Appends the table of endpoints.
fn endpoint_table(out: &mut String, report: &StatusReport, traffic: bool) {
    let rows = report.endpoints_in_order().map(|(name, endpoint)| {
        let mut row = vec![
            name.to_owned(),
            endpoint.address.clone(),
            endpoint.describe(),
            endpoint.connections.to_string(),
            endpoint.inflight.to_string(),
            endpoint.latency(),
        ];
        row.extend(traffic.then(|| traffic::cells(&endpoint.traffic)).into_iter().flatten());
        row
    });
    let name = if report.is_sidecar() { "PATH" } else { "APISERVICE" };
    let mut columns = vec![name, "ENDPOINT", "STATE", "CONNECTIONS", "INFLIGHT", "LATENCY"];
    columns.extend(traffic.then_some(traffic::COLUMNS).into_iter().flatten());
    table(out, &columns, rows.collect());
}

/// The tables of refused requests and failed handshakes.
fn refusal_tables(report: &StatusReport, now: SystemTime) -> String {
    let mut out = String::new();
    table(&mut out, &refusals::REFUSAL_COLUMNS, refusals::refusal_rows(report, now));
    table(&mut out, &refusals::HANDSHAKE_COLUMNS, refusals::handshake_rows(report));
    if out.is_empty() { "no request was refused or failed\n".to_owned() } else { out.trim_start().to_owned() }
}

/// Appends a table: columns as wide as their cells, three spaces apart; nothing if there are no rows.
fn table(out: &mut String, columns: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let rows: Vec<Vec<String>> = std::iter::once(columns.iter().map(|column| (*column).to_owned()).collect())
        .chain(rows.into_iter().map(|row| row.iter().map(|cell| replace_control_characters(cell)).collect()))
        .collect();
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| rows.iter().map(|row: &Vec<String>| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    out.push('\n');
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}   "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// Replaces control characters, so that text from the network cannot control the terminal; keeps a final newline.
fn replace_control_characters(text: &str) -> String {
    let (text, end) = text.strip_suffix('\n').map_or((text, ""), |text| (text, "\n"));
    let mut clean: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    clean.push_str(end);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{
        AuditSinkReport, ClusterReport, DiscoveryReport, EgressReport, EndpointReport, PeerCertificateReport,
        RemoteCallReport,
    };
    use crate::tls::CertificateReport;

    #[test]
    fn many_unavailable_apiservices_are_told_in_one_line() {
        let service = |number| ApiServiceReport {
            name: format!("v1.g{number:04}.example.com"),
            available: Some(false),
            reason: "ServiceNotFound".into(),
            ..ApiServiceReport::default()
        };
        let report = StatusReport { apiservices: (0..1_000).map(service).collect(), ..report() };
        let text = tables(&report, SystemTime::UNIX_EPOCH, TableColumns::default());
        assert!(text.lines().count() < 120, "{} lines", text.lines().count());
        assert!(text.contains("\n980 more are unavailable (ServiceNotFound): narthex status -o wide\n"), "{text}");
        assert!(text.contains("\n  and 990 more (backends): narthex status -o json\n"), "{text}");
        let wide = tables(&report, SystemTime::UNIX_EPOCH, TableColumns { wide: true, traffic: false });
        assert!(wide.contains("\nv1.g0999.example.com "), "every one is there");
    }

    fn report() -> StatusReport {
        StatusReport {
            version: "0.1.0".into(),
            started: "2026-11-19T23:00:00Z".into(),
            phase: "serving".into(),
            listen: vec!["0.0.0.0:6443".into()],
            apiservices: vec![
                ApiServiceReport {
                    name: "v1.example.narthex.dev".into(),
                    service: "default/greetings:443".into(),
                    available: Some(true),
                    reason: "Passed".into(),
                    message: "all checks passed".into(),
                    since: "2026-11-19T23:01:00Z".into(),
                    endpoints: vec![
                        EndpointReport {
                            address: "10.0.0.1:443".into(),
                            state: "ready".into(),
                            reason: String::new(),
                            connections: 3,
                            inflight: 41,
                            latency_micros: Some(730),
                            ..EndpointReport::default()
                        },
                        EndpointReport {
                            address: "10.0.0.2:443".into(),
                            state: "ejected".into(),
                            ..EndpointReport::default()
                        },
                    ],
                    egress_route: "cluster (socks5)".into(),
                    circuit: "half-open".into(),
                    discovery: DiscoveryReport {
                        state: "stale".into(),
                        last: "2026-11-19T23:55:00Z".into(),
                        problem: "no answer to GET /apis within 5 s".into(),
                        ..DiscoveryReport::default()
                    },
                    inflight: 2,
                    watches: 40,
                    ..ApiServiceReport::default()
                },
                ApiServiceReport {
                    name: "v1alpha1.example.narthex.dev".into(),
                    service: "default/doors:443".into(),
                    available: Some(false),
                    reason: "MissingEndpoints".into(),
                    message: "no endpoints\u{1b}[2J".into(),
                    since: "2026-11-19T23:59:30Z".into(),
                    ..ApiServiceReport::default()
                },
            ],
            certificates: vec![CertificateReport {
                file: "/etc/narthex/serving.crt".into(),
                subject: "CN=gateway".into(),
                names: vec!["localhost".into(), "127.0.0.1".into()],
                not_before: "2026-03-20T00:00:00Z".into(),
                not_after: "2026-12-20T00:00:00Z".into(),
            }],
            peer_certificates: vec![
                PeerCertificateReport {
                    server: "10.0.0.1:443".into(),
                    server_name: "doors.default.svc".into(),
                    used_by: "v1alpha1.example.narthex.dev".into(),
                    subject: "CN=doors".into(),
                    not_before: "2025-11-24T00:00:00Z".into(),
                    not_after: "2026-11-24T00:00:00Z".into(),
                    refused: String::new(),
                },
                PeerCertificateReport { not_after: "2036-11-24T00:00:00Z".into(), ..PeerCertificateReport::default() },
                PeerCertificateReport {
                    server: "10.0.0.3:443".into(),
                    subject: "CN=other".into(),
                    not_after: "2036-11-24T00:00:00Z".into(),
                    refused: "UnknownIssuer".into(),
                    ..PeerCertificateReport::default()
                },
            ],
            cluster: Some(ClusterReport {
                server: "10.0.0.1:443".into(),
                complete: true,
                failing_since: "2026-11-19T23:58:00Z".into(),
                failure: "refused".into(),
                leader: "other_1".into(),
                ..ClusterReport::default()
            }),
            authorizers: vec!["Webhook guard".into(), "RBAC rbac".into()],
            file_problems: vec!["authorization.yaml: authorizers[0].name: needed".into()],
            audit: vec![AuditSinkReport { name: "webhook".into(), waiting: 12, dropped: 3 }],
            remote_calls: vec![
                RemoteCallReport {
                    call: "SubjectAccessReview".into(),
                    name: "guard".into(),
                    server: "10.0.0.1:443".into(),
                    last_success: "2026-11-19T23:59:58Z".into(),
                    latency_micros: Some(12_000),
                    cache_hits: Some(7),
                    ..RemoteCallReport::default()
                },
                RemoteCallReport {
                    call: "TokenReview".into(),
                    server: "10.0.0.1:443".into(),
                    failing_since: "2026-11-19T23:58:00Z".into(),
                    last_failure: "2026-11-19T23:59:00Z".into(),
                    error: "the API server answered 403".into(),
                    ..RemoteCallReport::default()
                },
            ],
            egress: vec![EgressReport {
                selection: "cluster".into(),
                protocol: "socks5".into(),
                proxy: "10.0.0.9:1080".into(),
                state: "serves".into(),
                stalled_tunnels: 2,
            }],
            registry_problems: vec!["bad.yaml#2: spec.group: missing".into()],
            registry_warnings: vec!["the backend is not verified".into()],
            log_level: "info".into(),
            ..StatusReport::default()
        }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800)
    }

    #[test]
    fn status_tables_layout() {
        // What needs attention is at the top, where a terminal of 24 lines shows it.
        assert_eq!(
            tables(&report(), now(), TableColumns::default()),
            "\
1 of 2 APIServices unavailable; TokenReview failing since 23:58 UTC; 1 mistake in the registry; 1 mistake in files; 2 certificates expire within 30 days, the first in 4d; audit webhook dropped 3 events

Needs attention:
  failure: v1alpha1.example.narthex.dev: unavailable: MissingEndpoints: no endpoints\u{fffd}[2J (for 30s)
  failure: TokenReview: calls to 10.0.0.1:443 fail: the API server answered 403 (for 2m)
  failure: registry: bad.yaml#2: spec.group: missing (the last good state of the object is in use)
  failure: file: authorization.yaml: authorizers[0].name: needed (the last good content is in use)
  failure: 10.0.0.3:443: certificate refused: UnknownIssuer
  warning: certificate: certificate of 10.0.0.1:443, v1alpha1.example.narthex.dev (CN=doors) expires in 4d (2026-11-24T00:00:00Z)
  warning: certificate: /etc/narthex/serving.crt (CN=gateway) expires in 30d (2026-12-20T00:00:00Z)
  warning: 10.0.0.2:443: endpoint of v1.example.narthex.dev is ejected
  warning: 10.0.0.1:443: watch of the registry fails: refused (for 2m)
  warning: the backend is not verified
  warning: audit webhook: 3 events dropped, 12 waiting

Narthex 0.1.0, serving, up 60m, listening on 0.0.0.0:6443
authorizers: Webhook guard, RBAC rbac
registry of 10.0.0.1:443: watch failing for 2m; the last known state is in use (refused); APIService conditions are written by other_1

NAME                           SERVICE                 AVAILABLE                  ENDPOINTS   INFLIGHT   WATCHES   SINCE   EGRESS
v1alpha1.example.narthex.dev   default/doors:443       False (MissingEndpoints)   0/0         0          0         30s
v1.example.narthex.dev         default/greetings:443   True (circuit half-open)   1/2         2          40        59m     cluster (socks5)

REMOTE CALL                 SERVER         STATE            LAST SUCCESS   LATENCY   CACHE HITS   ERROR
TokenReview                 10.0.0.1:443   failing for 2m   never                                 the API server answered 403
SubjectAccessReview guard   10.0.0.1:443   ok               2s ago         12ms      7

EGRESS    PROTOCOL   PROXY           STATE
cluster   socks5     10.0.0.9:1080   serves, 2 tunnels stalled

CERTIFICATE                SUBJECT      ENDS
/etc/narthex/serving.crt   CN=gateway   in 30d

SERVER CERTIFICATE   SERVER NAME         USED BY                        SUBJECT    ENDS     REFUSED
10.0.0.3:443                                                            CN=other   in 10y   UnknownIssuer
10.0.0.1:443         doors.default.svc   v1alpha1.example.narthex.dev   CN=doors   in 4d

AUDIT     WAITING   DROPPED
webhook   12        3
"
        );
    }

    #[test]
    fn status_wide_shows_endpoints_and_messages_without_escape_sequences() {
        let text = tables(&report(), now(), TableColumns { wide: true, ..TableColumns::default() });
        assert!(text.matches("no endpoints\u{fffd}[2J").count() == 2 && !text.contains('\u{1b}'), "{text}");
        let discovery = "half-open   stale, 5m ago   all checks passed\n";
        assert!(text.contains(discovery), "{text}");
        assert!(text.contains("10.0.0.1:443   ready     3             41         0.7ms\n"), "{text}");
        assert!(text.contains("10.0.0.2:443   ejected   0             0"), "{text}");
        assert!(text.contains("in 30d   localhost,127.0.0.1\n"), "{text}");
    }

    #[test]
    fn status_folds_available_local_apiservices_unless_wide() {
        let one = |name: &str, service: &str, available| ApiServiceReport {
            name: name.into(),
            service: service.into(),
            available: Some(available),
            ..ApiServiceReport::default()
        };
        let apiservices =
            vec![one("v1.", "Local", true), one("v1.apps", "Local", true), one("v1.a.io", "Local", false)];
        let report = StatusReport { phase: "serving".into(), apiservices, ..StatusReport::default() };
        let text = tables(&report, now(), TableColumns::default());
        assert!(text.contains("\nv1.a.io   Local     False") && !text.contains("v1.apps"), "{text}");
        assert!(text.contains("\n2 Local APIServices, all available\n"), "{text}");
        let text = tables(&report, now(), TableColumns { wide: true, ..TableColumns::default() });
        assert!(text.contains("v1.apps") && !text.contains("all available"), "{text}");
    }

    #[test]
    fn status_fetches_report_from_admin_listener() {
        use crate::admin::{AdminSocket, AdminState, spawn};
        use crate::observe::{LogLevel, Metrics};
        let state = AdminState {
            report: std::sync::Arc::new(report),
            metrics: Metrics::new(),
            health: Vec::new(),
            log_level: LogLevel::detached(),
            connections: Box::new(|| serde_json::Value::Null),
            tasks: Box::new(|| serde_json::Value::Null),
            token: None,
            drain: crate::process::Drain::new().1,
        };
        let admin = spawn(AdminSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap(), state).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |output| {
            let admin_address = admin.local_addr.to_string();
            let command = StatusCommand {
                part: None,
                admin_address,
                output,
                fail: false,
                admin_token_file: None,
                watch: false,
                wait: None,
                interval: 2,
            };
            runtime.block_on(command.fetch_output(false)).unwrap().0
        };
        assert!(ask(StatusFormat::Table).contains("v1.example.narthex.dev"));
        let mut read: StatusReport = serde_json::from_str(&ask(StatusFormat::Json)).unwrap();
        let verdict = std::mem::take(&mut read.verdict);
        assert_eq!(read, report());
        assert_eq!((verdict.ok, verdict.apiservices, verdict.unavailable), (false, 2, 1), "{verdict:?}");
        assert_eq!(
            (verdict.failing_remote_calls, &verdict.failures[0]),
            (1, &"1 of 2 APIServices unavailable".to_owned())
        );
        assert!(verdict.text.starts_with("1 of 2 APIServices unavailable; TokenReview failing since "), "{verdict:?}");
        assert!(ask(StatusFormat::Yaml).contains("notAfter: "));
    }
}
