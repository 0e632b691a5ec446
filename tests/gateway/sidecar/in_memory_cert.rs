//! The sidecar as kube-rbac-proxy without certificate files: certificate in memory, nothing written. And its second
//! port.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;

use crate::authn::certificate_trust::CertificateRecorder;
use crate::sidecar::delegated_auth::{TINA, sidecar_arguments, start_named_server};
use crate::support::client::{Client, connect, get};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};

const NAME: &str = "kube-rbac-proxy";

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The certificate chain presented at `address`, and a client there, without verification.
async fn served_chain(address: SocketAddr) -> (Vec<CertificateDer<'static>>, Client) {
    let config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(CertificateRecorder(Arc::default())))
        .with_no_client_auth();
    let socket = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap().to_vec();
    (chain, Client::from_stream(stream, true).await)
}

#[tokio::test]
async fn rbac_proxy_generates_certificate_in_memory() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let _reviewer = FakeReviewServer::start(&environment).await;
    let mut line = sidecar_arguments(&environment, &[("/", &server)], &[]);
    line.retain(|argument| !argument.starts_with("--data-dir") && !argument.starts_with("--tls-"));
    let home = environment.path("home");
    std::fs::create_dir(&home).unwrap();
    let sidecar = GatewayProcess::start_with_environment(NAME, &line, &[("HOME", home.to_str().unwrap())]);
    let (chain, client) = served_chain(sidecar.address).await;
    assert_eq!(chain.len(), 2, "with its authority, as kube-rbac-proxy shows it");
    let leaf = narthex::tls::PeerCertificate::parse(&chain[0]).unwrap();
    assert_eq!(leaf.common_name, narthex::tls::in_memory_serving_names().first().cloned());
    assert_eq!(client.send_and_read(get("/metrics", &[TINA])).await.status, 200);
    assert_eq!(served_chain(sidecar.address).await.0, chain, "it stays the same");
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
}

#[tokio::test]
async fn rbac_proxy_proxy_endpoints_port_serves_health() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let _reviewer = FakeReviewServer::start(&environment).await;
    let port = free_port();
    let line = sidecar_arguments(&environment, &[("/", &server)], &[&format!("--proxy-endpoints-port={port}")]);
    let sidecar = GatewayProcess::start_as(NAME, &line);
    let address = SocketAddr::new(sidecar.address.ip(), port);
    let ask = async |path: &str| {
        let stream = connect(&environment, address, None, &["http/1.1"]).await;
        Client::from_stream(stream, true).await.send_and_read(get(path, &[])).await
    };
    let output = ask("/healthz").await;
    assert_eq!((output.status.as_u16(), &*output.text()), (200, "ok"));
    assert_eq!(output.headers["content-type"], "text/plain; charset=utf-8");
    for path in ["/", "/metrics", "/healthz/", "/books"] {
        let output = ask(path).await;
        assert_eq!((output.status.as_u16(), &*output.text()), (404, "404 page not found\n"), "{path}");
    }
    eventually("readiness", async || (ask("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(ask("/livez").await.text(), "ok");
    // More than the listener keeps open. Probes find a place.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(ask("/healthz").await.text(), "ok");
    server.stop().await;
    eventually("its end", async || (ask("/readyz").await.status == 500).then_some(())).await;
    assert_eq!(ask("/healthz").await.text(), "ok");
    // At the first port all of it is the server's behind.
    let client = Client::http1(&environment, &sidecar, None).await;
    assert_eq!(client.send_and_read(get("/healthz", &[])).await.status, 401);
}
