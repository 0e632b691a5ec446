//! Messages about backend TLS errors: logged once, with the names of both sides, and dates instead of numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use narthex::tls::CertificateSpec as CertificateRequest;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{admin_request, get};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment, eventually, run_narthex};

const NAME: &str = "v1.things.example.com";
const LONG_AGO: Duration = Duration::from_secs(10 * 86_400);

/// Passes connections on to `address`, and counts them.
async fn start_counting_relay(address: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut far = TcpStream::connect(address).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (at, count)
}

/// A serving certificate for the things, of one day, signed so long ago.
fn issue_backdated(authority: &narthex::tls::Authority, ago: Duration) -> CertKeyPair {
    let mut request = CertificateRequest::serving(&["things-v1.things.svc".to_owned()]);
    request.days = 1;
    CertKeyPair::from_issued(&authority.issue(&request, SystemTime::now() - ago).unwrap())
}

async fn start_backend(environment: &TestEnvironment, pair: CertKeyPair) -> Backend {
    Backend::start(environment, BackendSettings { pair: Some(pair), ..BackendSettings::default() }, async |_| {
        json_response(200, "{}")
    })
    .await
}

/// The row of the APIService, once it is unavailable.
async fn wait_until_unavailable(gateway: &GatewayProcess) -> Value {
    eventually("the APIService to be unavailable", async || {
        let report = admin_request(gateway, get("/status.json", &[])).await.json();
        let one = report["apiservices"].as_array().unwrap().iter().find(|one| one["name"] == NAME).cloned()?;
        (one["available"] == false).then_some(one)
    })
    .await
}

/// The certificate of the server at `address` is listed, with why it was refused.
async fn assert_refused(gateway: &GatewayProcess, address: SocketAddr, reason: &str) {
    let report = admin_request(gateway, get("/status.json", &[])).await.json();
    let all = report["peerCertificates"].as_array().unwrap();
    let one = all.iter().find(|one| one["server"] == address.to_string()).unwrap_or_else(|| panic!("{report}"));
    assert_eq!((&one["refused"], &one["usedBy"]), (&reason.into(), &NAME.into()), "{one}");
    assert!(one["subject"].as_str().unwrap().starts_with("CN=") && one["notAfter"] != "", "{one}");
    let verdict = &report["verdict"];
    assert_eq!((&verdict["ok"], &verdict["unavailable"]), (&false.into(), &1.into()), "{verdict}");
    assert!(verdict["text"].as_str().unwrap().starts_with("1 of 1 APIService unavailable"), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_certificate_of_another_name_is_listed_as_refused() {
    let environment = TestEnvironment::new();
    let request = CertificateRequest::serving(&["other.svc".to_owned()]);
    let pair = CertKeyPair::from_issued(&environment.backend_ca.issue(&request, SystemTime::now()).unwrap());
    let backend = start_backend(&environment, pair).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    wait_until_unavailable(&gateway).await;
    assert_refused(&gateway, backend.address, "NameMismatch").await;
}

fn run_status(gateway: &GatewayProcess) -> String {
    let arguments = ["status".to_owned(), format!("--admin-address={}", gateway.admin), "-owide".to_owned()];
    String::from_utf8(run_narthex(&arguments).stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_certificate_expired_is_logged_once_and_shown_once() {
    let environment = TestEnvironment::new();
    let backend = start_backend(&environment, issue_backdated(&environment.backend_ca, LONG_AGO)).await;
    let (address, probes) = start_counting_relay(backend.address).await;
    let annotations = "  annotations: {narthex.dev/probe-interval: 100ms}\n";
    environment.write_registry(
        "things.yaml",
        &environment.apiservice_manifests("things.example.com", "v1", &[address], annotations),
    );
    let gateway = environment.start_gateway(&[]);
    let row = wait_until_unavailable(&gateway).await;
    let message = row["message"].as_str().unwrap();
    assert!(message.contains("CertificateExpired") && message.contains("it expired on 20"), "{message}");
    let date = message.split("expired on ").nth(1).unwrap().split([' ', ')']).next().unwrap();
    assert!(date.ends_with('Z') && date.contains('T') && !message.contains("UNIX"), "{message}");
    // Of a certificate with an end in its text, each probe would say something else.
    let before = probes.load(Ordering::SeqCst);
    eventually("more probes", async || (probes.load(Ordering::SeqCst) > before + 10).then_some(())).await;
    let error_text: Vec<String> = gateway.log_lines().into_iter().filter(|line| line.contains("expired on")).collect();
    assert_eq!(error_text.len(), 1, "{error_text:#?}");
    let shown = run_status(&gateway);
    let attention = shown.lines().filter(|line| line.starts_with("  failure: v1.things.example.com: unavailable: "));
    assert_eq!(attention.filter(|line| line.contains("expired on")).count(), 1, "{shown}");
    assert_eq!(shown.matches("expired on").count(), 2, "once in the list, and once in the table: {shown}");
    let endpoint = &row["endpoints"][0];
    assert_eq!((&endpoint["state"], &endpoint["reason"]), (&"unreachable".into(), &"CertificateExpired".into()));
    assert!(shown.contains("unreachable (CertificateExpired)") && shown.contains("0/1"), "{shown}");
    assert_refused(&gateway, address, "CertificateExpired").await;
    // It is not in use, so it is none to be replaced beside what its APIService says.
    assert!(!shown.contains("warning: certificate: ") && shown.contains("REFUSED"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_certificate_of_unknown_issuer_reported_with_issuer_and_trusted_cas() {
    let environment = TestEnvironment::new();
    let backend = start_backend(&environment, issue_backdated(&environment.client_ca, Duration::ZERO)).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let message = wait_until_unavailable(&gateway).await["message"].as_str().unwrap().to_owned();
    assert_refused(&gateway, backend.address, "UnknownIssuer").await;
    let (presented, trusted) = message.split_once("is not trusted by").unwrap();
    assert!(presented.contains("issued by \"CN=client-ca"), "{message}");
    assert!(trusted.contains("\"CN=backend-ca") && trusted.contains("caBundle"), "{message}");
}

/// Answers as a server of plain HTTP that got a TLS record.
async fn plain_http() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut some = [0; 4096];
            let _ = socket.read(&mut some).await;
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n400 Bad Request").await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_that_answers_without_tls_is_named_as_such() {
    let environment = TestEnvironment::new();
    environment.write_registry(
        "things.yaml",
        &environment.apiservice_manifests("things.example.com", "v1", &[plain_http().await], ""),
    );
    let gateway = environment.start_gateway(&[]);
    let message = wait_until_unavailable(&gateway).await["message"].as_str().unwrap().to_owned();
    assert!(message.contains("it answered without TLS; is this a port for plain HTTP?"), "{message}");
    assert!(!message.contains("InvalidContentType"), "{message}");
}

/// Answers everything 401, and asks for no certificate.
async fn start_unauthorized_backend(environment: &TestEnvironment) -> SocketAddr {
    let (chain, key) = &*environment.issue_backend(&["things-v1.things.svc"]).0;
    let config = rustls::ServerConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.clone(), key.clone_key())
        .unwrap();
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = tls.accept(socket).await else { return };
                let mut some = [0; 4096];
                while let Ok(1..) = stream.read(&mut some).await {
                    let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn front_proxy_certificate_expired_reported_when_rejected_by_backend() {
    let environment = TestEnvironment::new();
    let mut request = CertificateRequest::client("narthex-front-proxy", &[]);
    request.days = 1;
    environment.write_pair(
        "front-proxy",
        &environment.request_header_ca.issue(&request, SystemTime::now() - LONG_AGO).unwrap(),
    );
    // One that judges it in the handshake, and one that answers.
    let judges = start_backend(&environment, environment.issue_backend(&["things-v1.things.svc"])).await;
    for address in [judges.address, start_unauthorized_backend(&environment).await] {
        environment.write_registry(
            "things.yaml",
            &environment.apiservice_manifests("things.example.com", "v1", &[address], ""),
        );
        let gateway = environment.start_gateway(&[]);
        let message = wait_until_unavailable(&gateway).await["message"].as_str().unwrap().to_owned();
        let actual = "the gateway's front-proxy certificate \"CN=narthex-front-proxy\": it expired on 20";
        assert!(message.contains(actual), "{message}");
    }
}
