//! Errors of unusable egress proxies and unreadable egress configuration files.

use std::time::SystemTime;

use crate::egress::selections::{UNROUTABLE, connect_to, tcp_selection, write_selections};
use crate::support::assert_refused::assert_cause;
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{admin_request, get};
use crate::support::fake_egress_proxy::{FakeEgressProxy, ProxyProtocol};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, register_things};

fn start_gateway(environment: TestEnvironment, text: &str) -> GatewayFixture {
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    let flag = format!("--egress-selector-config-file={}", write_selections(&environment, text).display());
    GatewayFixture::from_registry(environment, &[&flag])
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_proxy_rejecting_client_certificate_reported() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let pair = environment.issue_backend(&["proxy.example"]);
    let address = "127.0.0.1:0".parse().unwrap();
    let proxy = FakeEgressProxy::start_tcp(
        ProxyProtocol::HttpConnect,
        Some((&environment, &pair)),
        address,
        connect_to(backend.address),
    )
    .await;
    // It believes those of the client authority.
    let request = narthex::tls::CertificateSpec::client("narthex", &[]);
    environment.write_pair("egress", &environment.request_header_ca.issue(&request, SystemTime::now()).unwrap());
    let tls = ", tlsConfig: {caBundle: backend-ca.crt, clientCert: egress.crt, clientKey: egress.key, tlsServerName: proxy.example}";
    let url = format!("https://{}", proxy.address);
    let fixture = start_gateway(environment, &tcp_selection("cluster", "HTTPConnect", &url, tls));
    let refused = fixture.http2().await.get(THINGS).await;
    assert!(refused.status.is_server_error(), "{}", refused.status);
    assert_cause(&refused.json(), "ProxyCredentialsRefused");
    let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    let state = report["egress"][0]["state"].as_str().unwrap();
    assert!(state.contains("ProxyCredentialsRefused") && state.contains("our client certificate"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_proxy_unreachable_named_once() {
    let environment = TestEnvironment::new();
    let gone = FakeEgressProxy::start_connect(|_| unreachable!("it is gone")).await.stop().await;
    let fixture = start_gateway(environment, &tcp_selection("cluster", "HTTPConnect", &format!("http://{gone}"), ""));
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 503);
    let state = eventually("the proxy to be known to fail", async || {
        let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
        report["egress"][0]["state"].as_str().filter(|state| state.starts_with("fails")).map(str::to_owned)
    })
    .await;
    assert_eq!(state.matches(&gone.to_string()).count(), 1, "{state}");
    assert!(state.contains("refused"), "{state}");
}

#[test]
fn egress_unreadable_file_reported_with_field() {
    let environment = TestEnvironment::new();
    let tls = ", tlsConfig: {caBundle: nowhere.crt}";
    let path = write_selections(&environment, &tcp_selection("cluster", "HTTPConnect", "https://proxy.example", tls));
    let mut arguments = vec!["gateway".to_owned()];
    arguments.extend(environment.gateway_arguments(&[&format!("--egress-selector-config-file={}", path.display())]));
    let output = run_narthex(&arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let field = "egressSelections[cluster].connection.transport.tcp.tlsConfig.caBundle";
    let file = environment.path("nowhere.crt");
    assert!(text.contains(&format!("{}: {field}: {}: cannot be read", path.display(), file.display())), "{text}");
}
