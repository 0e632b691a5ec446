//! Certificates of a Konnectivity server and an agent that expire soon, and their rotation.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use narthex::tls::{Authority, CertificateSpec, Issued};
use serde_json::Value;

use crate::konnectivity::fixture::{
    AgentProcess, KonnectivityProcess, ServerProcess, free_port, issue_agent, issue_server, new_environment,
    server_spec,
};
use crate::konnectivity::status::{narthex_status, status_json};
use crate::support::client::{get, plaintext_request};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::eventually;

const DAY: u64 = 86_400;

/// A certificate of a year of which 5 days are left.
fn issue_expiring(authority: &Authority, spec: CertificateSpec) -> Issued {
    let past = Duration::from_secs(360 * DAY - 3600);
    authority.issue(&CertificateSpec { days: 365, ..spec }, SystemTime::now() - past).unwrap()
}

async fn get_text(port: u16, path: &str) -> String {
    plaintext_request(SocketAddr::from(([127, 0, 0, 1], port)), get(path, &[])).await.text()
}

/// The end of the validity of `file` in `/status.json`.
fn not_after(admin: u16, file: &Path) -> SystemTime {
    let report = status_json(admin);
    let is_file = |one: &&Value| one["file"] == file.display().to_string();
    let found = report["certificates"].as_array().unwrap().iter().find(is_file).expect("the file to be reported");
    found["notAfter"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().into()
}

/// Asserts that the metrics have the time in `/status.json`, and the certificates that expire `within` each time.
async fn wait_for_metrics(admin: u16, metrics: u16, file: &Path, expiring: [u64; 4]) {
    let seconds = not_after(admin, file).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let series = "narthex_certificate_expiry_timestamp_seconds";
    let mut wanted = vec![format!("{series}{{file=\"{}\"}} {seconds}", file.display())];
    for (within, count) in ["0d", "1d", "7d", "30d"].iter().zip(expiring) {
        wanted.push(format!("narthex_certificates_expiring{{within=\"{within}\"}} {count}"));
    }
    eventually(&format!("{wanted:?}"), async || {
        let text = get_text(metrics, "/metrics").await;
        wanted.iter().all(|line| text.lines().any(|it| it == line)).then_some(())
    })
    .await;
}

/// What the status, the page and the log say of a certificate of which 5 days are left.
async fn assert_warned(process: &KonnectivityProcess, admin: u16, file: &Path, working: &str) {
    let (text, is_ok) = narthex_status(admin, &["--fail"]);
    let line = format!("{working}; 1 certificate expires within 30 days, the first in 5d\n");
    assert!(is_ok && text.starts_with(&line), "{text}");
    let file = file.display();
    assert!(text.contains(&format!("Needs attention:\n  warning: certificate: {file} (CN=")), "{text}");
    let page = get_text(admin, "/").await;
    for part in [
        format!("<a href=\"#certificates\">certificate</a> <span>{file} (CN="),
        "<section id=\"certificates\" aria-labelledby=\"certificates-title\">".to_owned(),
        format!("<th scope=\"row\">{file}</th>"),
        "<span class=\"warn\">in 5d</span>".to_owned(),
    ] {
        assert!(page.contains(&part), "{part}: {page}");
    }
    process.wait_for_log(&["WARN", &file.to_string(), "expires in 5d", "replace it"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_certificates_that_expire_are_warned_of_until_they_are_rotated() {
    let environment = new_environment();
    environment.write_pair("konnectivity", &issue_expiring(&environment.serving_ca, server_spec()));
    environment.write_pair("agent", &issue_expiring(&environment.client_ca, CertificateSpec::client("agent", &[])));
    let server = ServerProcess::start(&environment, "http-connect").await;
    let agent = AgentProcess::start(&environment, "node-1", server.agent_port, &[]);
    server.wait_for_agents(1).await;

    let (server_file, agent_file) = (environment.path("konnectivity.crt"), environment.path("agent.crt"));
    // The server's admin port serves the metrics, that of an agent redirects to its health port, as the reference.
    wait_for_metrics(server.admin, server.admin, &server_file, [0, 0, 1, 1]).await;
    wait_for_metrics(agent.admin, agent.health, &agent_file, [0, 0, 1, 1]).await;
    assert_warned(&server.process, server.admin, &server_file, "OK: 1 agent, 0 tunnels").await;
    assert_warned(&agent.process, agent.admin, &agent_file, "OK: 1 server, 0 tunnels").await;
    // The CA bundles are in the list, too.
    let year = SystemTime::now() + Duration::from_secs(365 * DAY);
    assert!(not_after(server.admin, &environment.path("client-ca.crt")) > year);
    assert!(not_after(agent.admin, &environment.path("serving-ca.crt")) > year);

    environment.write_pair("konnectivity", &issue_server(&environment.serving_ca));
    environment.write_pair("agent", &issue_agent(&environment.client_ca));
    let in_a_month = SystemTime::now() + Duration::from_secs(30 * DAY);
    for (admin, metrics, file) in [(server.admin, server.admin, &server_file), (agent.admin, agent.health, &agent_file)]
    {
        eventually("the rotated certificate", async || (not_after(admin, file) > in_a_month).then_some(())).await;
        wait_for_metrics(admin, metrics, file, [0, 0, 0, 0]).await;
        let (text, is_ok) = narthex_status(admin, &["--fail"]);
        assert!(is_ok && text.lines().next().unwrap().ends_with("0 tunnels"), "{text}");
        assert!(!get_text(admin, "/").await.contains("Needs attention"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_certificate_that_has_expired_is_a_failure() {
    let environment = new_environment();
    let expired = CertificateSpec { days: 1, ..CertificateSpec::client("agent", &[]) };
    let ago = SystemTime::now() - Duration::from_secs(10 * DAY);
    environment.write_pair("agent", &environment.client_ca.issue(&expired, ago).unwrap());
    let agent = AgentProcess::start(&environment, "node-1", free_port(), &["--sync-interval=60s"]);
    agent.process.wait_for_log(&["WARN", "agent.crt", "expired", "replace it"]).await;
    let (text, is_ok) = narthex_status(agent.admin, &["--fail"]);
    assert!(!is_ok && text.lines().next().unwrap().contains("1 certificate expired"), "{text}");
    let page = get_text(agent.admin, "/").await;
    assert!(page.contains("<li class=\"bad\"><span class=\"tag\">failure</span>"), "{page}");
    assert!(page.contains("<span class=\"bad\">expired "), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_server_lists_certificates_of_its_frontend_and_its_kubeconfig() {
    let environment = new_environment();
    environment.write_pair("frontend", &issue_server(&environment.serving_ca));
    let _reviewer = FakeReviewServer::start(&environment).await;
    let file = |name: &str| environment.path(name).display().to_string();
    let flags = [
        "--uds-name=".to_owned(),
        format!("--server-port={}", free_port()),
        "--server-bind-address=127.0.0.1".to_owned(),
        format!("--server-cert={}", file("frontend.crt")),
        format!("--server-key={}", file("frontend.key")),
        // The bundle of agents, too: it is listed once.
        format!("--server-ca-cert={}", file("client-ca.crt")),
        "--enable-lease-controller".to_owned(),
        format!("--kubeconfig={}", file("reviewer.kubeconfig")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = ServerProcess::start_at(&environment, "server", "grpc", ("127.0.0.1", free_port()), &flags).await;
    let report = status_json(server.admin);
    let files: Vec<&str> =
        report["certificates"].as_array().unwrap().iter().map(|one| one["file"].as_str().unwrap()).collect();
    let client = format!("{} with {}", file("reviewer-client.crt"), file("reviewer-client.key"));
    let names = ["backend-ca.crt", "client-ca.crt", "frontend.crt", "konnectivity.crt"];
    assert_eq!(files, [names.map(file).to_vec(), vec![client.clone()]].concat());

    // Files of the kubeconfig and of the frontend are followed, too.
    let spec = CertificateSpec::client("reviewer", &[]);
    environment.write_pair("reviewer-client", &issue_expiring(&environment.client_ca, spec));
    environment.write_pair("frontend", &issue_expiring(&environment.serving_ca, server_spec()));
    wait_for_expiring(server.admin, &["frontend.crt", "reviewer-client.crt"]).await;
}

/// Waits until `narthex status` lists these files as expiring.
async fn wait_for_expiring(admin: u16, files: &[&str]) {
    eventually(&format!("warnings of {files:?}"), async || {
        let (text, _) = narthex_status(admin, &[]);
        let lines = text.lines().filter(|line| line.contains(" expires in 5d "));
        let lines: Vec<&str> = lines.collect();
        (lines.len() == files.len() && lines.iter().zip(files).all(|(line, file)| line.contains(file))).then_some(())
    })
    .await;
}
