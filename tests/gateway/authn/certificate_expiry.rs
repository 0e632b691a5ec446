//! Certificate expiry warnings, and the first line of `run_narthex status`.

use std::time::{Duration, SystemTime};

use narthex::tls::{Authority, CertificateSpec as CertificateRequest, Issued};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{admin_request, get, metric_value};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::register_things;

/// A certificate of a year of which `days` are left.
fn issue_expiring_in(authority: &Authority, request: &CertificateRequest, days: u64) -> Issued {
    let past = Duration::from_secs((365 - days) * 86_400);
    let request = CertificateRequest { days: 365, ..request.clone() };
    authority.issue(&request, SystemTime::now() - past + Duration::from_secs(3600)).unwrap()
}

fn run_status(gateway: &GatewayProcess, more: &[&str]) -> (Option<i32>, String) {
    let mut arguments = vec!["status".to_owned(), format!("--admin-address={}", gateway.admin)];
    arguments.extend(more.iter().map(|one| (*one).to_owned()));
    let output = run_narthex(&arguments);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

async fn wait_for_first_line(gateway: &GatewayProcess, wanted: &str) -> String {
    eventually(&format!("a verdict with {wanted:?}"), async || {
        let text = run_status(gateway, &[]).1;
        text.lines().next().unwrap().contains(wanted).then_some(text.clone())
    })
    .await
}

#[tokio::test]
async fn certificate_expiry_of_backend_and_client_warned() {
    let environment = TestEnvironment::new();
    let names = ["things-v1.things.svc".to_owned()];
    let issued = issue_expiring_in(&environment.backend_ca, &CertificateRequest::serving(&names), 5);
    let settings = BackendSettings { pair: Some(CertKeyPair::from_issued(&issued)), ..BackendSettings::default() };
    let backend = Backend::start(&environment, settings, |_| async { response(200, "{}") }).await;
    let special = CertificateRequest::client("narthex-front-proxy", &[]);
    let special = issue_expiring_in(&environment.request_header_ca, &special, 20);
    std::fs::write(environment.path("registry/special.crt"), &special.certificate).unwrap();
    std::fs::write(environment.path("registry/special.key"), &special.key).unwrap();
    register_things(&environment, &[backend.address], &[("client-certificate", "special")]);
    let gateway = environment.start_gateway(&[]);

    let wanted = "OK: 1 APIService available; 2 certificates expire within 30 days, the first in 5d";
    let text = wait_for_first_line(&gateway, wanted).await;
    let row = text.lines().find(|line| line.starts_with(&backend.address.to_string())).unwrap();
    assert!(row.contains("things-v1.things.svc   v1.things.example.com") && row.ends_with("in 5d"), "{row}");
    assert!(text.contains("special.key (CN=narthex-front-proxy) expires in 20d"), "{text}");
    gateway.wait_for_log(&["WARN", "certificate of", "expires in 5d", "replace it"]).await;
    gateway.wait_for_log(&["WARN", "special.crt", "expires in 20d", "replace it"]).await;
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    let peers = report["peerCertificates"].as_array().unwrap();
    assert_eq!((peers.len(), &peers[0]["usedBy"]), (1, &"v1.things.example.com".into()), "{report}");
    let series = format!(
        "narthex_peer_certificate_expiry_timestamp_seconds{{server=\"{}\",server_name=\"things-v1.things.svc\"}}",
        backend.address
    );
    assert!(metric_value(&gateway, &series).await.is_some());
    for (within, count) in [("0d", 0.0), ("1d", 0.0), ("7d", 1.0), ("30d", 2.0)] {
        let series = format!("narthex_certificates_expiring{{within=\"{within}\"}}");
        assert_eq!(metric_value(&gateway, &series).await, Some(count), "{series}");
    }
    let page = admin_request(&gateway, get("/", &[])).await.text();
    assert!(
        page.contains("2 certificates expire within 30 days") && page.contains(&format!("server {}", backend.address)),
        "{page}"
    );
    assert_eq!(run_status(&gateway, &["--fail"]).0, Some(0), "nothing fails yet");
}

#[tokio::test]
async fn status_lists_failures_first_and_exits_1_with_fail_flag() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), |_| async { response(200, "{}") }).await;
    register_things(&environment, &[backend.address], &[]);
    environment.write_registry("nowhere.yaml", &environment.apiservice_manifests("aaa.example.com", "v1", &[], ""));
    let gateway = environment.start_gateway(&[]);
    let bad = wait_for_first_line(&gateway, "1 of 2 APIServices unavailable").await;
    let rows: Vec<&str> = bad.lines().filter(|line| line.starts_with("v1.")).collect();
    assert!(rows[0].starts_with("v1.aaa.example.com") && rows[1].starts_with("v1.things.example.com"), "{bad}");
    assert_eq!(run_status(&gateway, &[]).0, Some(0));
    for form in ["table", "wide", "json", "yaml"] {
        let (code, text) = run_status(&gateway, &["--fail", "-o", form]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("v1.aaa.example.com"), "{text}");
    }
    std::fs::remove_file(environment.path("registry/nowhere.yaml")).unwrap();
    // Some moments it says that one is not probed yet.
    eventually("a verdict without failures", async || {
        (run_status(&gateway, &[]).1.lines().next() == Some("OK: 1 APIService available")).then_some(())
    })
    .await;
    assert_eq!(run_status(&gateway, &["--fail"]).0, Some(0));
}

#[tokio::test]
async fn certificate_expired_of_the_gateway_is_logged_once() {
    let environment = TestEnvironment::new();
    let mut request = CertificateRequest::serving(&["localhost".to_owned()]);
    request.days = 1;
    let ago = SystemTime::now() - Duration::from_secs(10 * 86_400);
    environment.write_pair("serving", &environment.serving_ca.issue(&request, ago).unwrap());
    let gateway = environment.start_gateway(&[]);
    gateway.wait_for_log(&["WARN", "serving.crt", "expired", "replace it"]).await;
    let lines: Vec<String> = gateway.log_lines().into_iter().filter(|line| line.contains("expired")).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
}
