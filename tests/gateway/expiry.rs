//! Certificate expiry warnings, and the first line of `narthex status`.

use std::time::{Duration, SystemTime};

use narthex::tls::{Authority, Issued, Request as CertificateRequest};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{admin, get, sample};
use crate::scene::register;
use crate::world::{Gateway, Pair, World, eventually, narthex};

/// A certificate of a year of which `days` are left.
fn ending_in(authority: &Authority, request: &CertificateRequest, days: u64) -> Issued {
    let past = Duration::from_secs((365 - days) * 86_400);
    let request = CertificateRequest { days: 365, ..request.clone() };
    authority.issue(&request, SystemTime::now() - past + Duration::from_secs(3600)).unwrap()
}

fn status(gateway: &Gateway, more: &[&str]) -> (Option<i32>, String) {
    let mut arguments = vec!["status".to_owned(), format!("--admin-address={}", gateway.admin)];
    arguments.extend(more.iter().map(|one| (*one).to_owned()));
    let output = narthex(&arguments);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

async fn first_line(gateway: &Gateway, wanted: &str) -> String {
    eventually(&format!("a verdict with {wanted:?}"), async || {
        let text = status(gateway, &[]).1;
        text.lines().next().unwrap().contains(wanted).then_some(text.clone())
    })
    .await
}

#[tokio::test]
async fn certificate_expiry_of_a_backend_and_of_a_client_certificate_is_warned_of() {
    let world = World::new();
    let names = ["things-v1.things.svc".to_owned()];
    let issued = ending_in(&world.backend, &CertificateRequest::serving(&names), 5);
    let settings = Settings { pair: Some(Pair::of(&issued)), ..Settings::default() };
    let backend = Backend::start(&world, settings, |_| async { answer(200, "{}") }).await;
    let special = CertificateRequest::client("narthex-front-proxy", &[]);
    let special = ending_in(&world.request_header, &special, 20);
    std::fs::write(world.path("registry/special.crt"), &special.certificate).unwrap();
    std::fs::write(world.path("registry/special.key"), &special.key).unwrap();
    register(&world, &[backend.address], &[("client-certificate", "special")]);
    let gateway = world.gateway(&[]);

    let wanted = "OK: 1 APIService available; 2 certificates expire within 30 days, the first in 5d";
    let text = first_line(&gateway, wanted).await;
    let row = text.lines().find(|line| line.starts_with(&backend.address.to_string())).unwrap();
    assert!(row.contains("things-v1.things.svc   v1.things.example.com") && row.ends_with("in 5d"), "{row}");
    assert!(text.contains("special.key (CN=narthex-front-proxy) expires in 20d"), "{text}");
    gateway.said(&["WARN", "certificate of", "expires in 5d", "replace it"]).await;
    gateway.said(&["WARN", "special.crt", "expires in 20d", "replace it"]).await;
    let report = admin(&gateway, get("/status.json", &[])).await.json();
    let peers = report["peerCertificates"].as_array().unwrap();
    assert_eq!((peers.len(), &peers[0]["usedBy"]), (1, &"v1.things.example.com".into()), "{report}");
    let series = format!(
        "narthex_peer_certificate_expiry_timestamp_seconds{{server=\"{}\",server_name=\"things-v1.things.svc\"}}",
        backend.address
    );
    assert!(sample(&gateway, &series).await.is_some());
    for (within, count) in [("0d", 0.0), ("1d", 0.0), ("7d", 1.0), ("30d", 2.0)] {
        let series = format!("narthex_certificates_expiring{{within=\"{within}\"}}");
        assert_eq!(sample(&gateway, &series).await, Some(count), "{series}");
    }
    let page = admin(&gateway, get("/", &[])).await.text();
    assert!(
        page.contains("2 certificates expire within 30 days") && page.contains("Certificates of servers"),
        "{page}"
    );
    assert_eq!(status(&gateway, &["--fail"]).0, Some(0), "nothing fails yet");
}

#[tokio::test]
async fn status_begins_with_what_fails_and_fails_if_asked_to() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), |_| async { answer(200, "{}") }).await;
    register(&world, &[backend.address], &[]);
    world.registry("nowhere.yaml", &world.manifests("aaa.example.com", "v1", &[], ""));
    let gateway = world.gateway(&[]);
    let bad = first_line(&gateway, "1 of 2 APIServices unavailable").await;
    let rows: Vec<&str> = bad.lines().filter(|line| line.starts_with("v1.")).collect();
    assert!(rows[0].starts_with("v1.aaa.example.com") && rows[1].starts_with("v1.things.example.com"), "{bad}");
    assert_eq!(status(&gateway, &[]).0, Some(0));
    for form in ["table", "wide", "json", "yaml"] {
        let (code, text) = status(&gateway, &["--fail", "-o", form]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("v1.aaa.example.com"), "{text}");
    }
    std::fs::remove_file(world.path("registry/nowhere.yaml")).unwrap();
    let good = first_line(&gateway, "OK: 1 APIService available").await;
    assert_eq!(good.lines().next(), Some("OK: 1 APIService available"));
    assert_eq!(status(&gateway, &["--fail"]).0, Some(0));
}

#[tokio::test]
async fn certificate_expired_of_the_gateway_is_logged_once() {
    let world = World::new();
    let mut request = CertificateRequest::serving(&["localhost".to_owned()]);
    request.days = 1;
    let ago = SystemTime::now() - Duration::from_secs(10 * 86_400);
    world.keep("serving", &world.serving.issue(&request, ago).unwrap());
    let gateway = world.gateway(&[]);
    gateway.said(&["WARN", "serving.crt", "expired", "replace it"]).await;
    let lines: Vec<String> = gateway.log().into_iter().filter(|line| line.contains("expired")).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
}
