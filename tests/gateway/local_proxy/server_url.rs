//! A kubeconfig's `proxy-url`: used for all connections to its API server, and for no others.

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, get};
use crate::support::fake_egress_proxy::{EgressProxyRequest, FakeEgressProxy, ProxyAction};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, register_things};

/// Where no packet gets (RFC 5737).
const UNROUTABLE: &str = "192.0.2.20:6443";

/// Writes `kubeconfig` anew with another server, expected to be called 127.0.0.1 all the same, and this proxy.
fn make_unroutable(environment: &TestEnvironment, kubeconfig: &str, proxy_url: &str) {
    let path = environment.path(kubeconfig);
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let cluster = &mut document["clusters"][0]["cluster"];
    cluster["server"] = json!(format!("https://{UNROUTABLE}"));
    cluster["tls-server-name"] = json!("127.0.0.1");
    cluster["proxy-url"] = json!(proxy_url);
    let hidden = environment.path(&format!(".{kubeconfig}.tmp"));
    std::fs::write(&hidden, document.to_string()).unwrap();
    std::fs::rename(hidden, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_url_used_for_reviews_and_delegate() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
    let reviewer = FakeReviewServer::start(&environment).await;
    let delegate = Backend::start(
        &environment,
        BackendSettings { names: vec!["127.0.0.1"], ..BackendSettings::http2() },
        |_| async { response(200, "the delegate") },
    )
    .await;
    let (to_reviewer, to_delegate) = (reviewer.address(), delegate.address);
    let first = FakeEgressProxy::start_socks5(move |_: &EgressProxyRequest| ProxyAction::Connect(to_reviewer)).await;
    let second = FakeEgressProxy::start_connect(move |_: &EgressProxyRequest| ProxyAction::Connect(to_delegate)).await;
    reviewer.write_kubeconfig(&environment, "delegate", "");
    make_unroutable(&environment, "reviewer.kubeconfig", &format!("socks5h://al%20ice:p%40ss@{}", first.address));
    make_unroutable(&environment, "delegate.kubeconfig", &format!("http://{}/ignored", second.address));
    let flags = ["authentication", "delegate"].map(|flag| {
        let file = if flag == "delegate" { flag } else { "reviewer" };
        format!("--{flag}-kubeconfig={}", environment.path(&format!("{file}.kubeconfig")).display())
    });
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
    let token = [("authorization", "Bearer good")];
    let client = fixture.http1().await;
    assert_eq!(client.send_and_read(get(THINGS, &[])).await.status, 200);
    let anonymous = Client::http1(&fixture.environment, &fixture.gateway, None).await;
    assert_eq!(anonymous.send_and_read(get(THINGS, &token)).await.status, 200);
    assert_eq!(first.targets(), [UNROUTABLE]);
    assert!(first.requests().iter().all(|recorded| recorded.credentials == "al ice:p@ss"), "{:?}", first.requests());
    let response = client.send_and_read(get("/version", &[])).await;
    assert_eq!(response.text(), "the delegate");
    assert_eq!(second.targets(), [UNROUTABLE]);

    // The file is followed, and the proxy with it.
    let third = FakeEgressProxy::start_connect(move |_: &EgressProxyRequest| ProxyAction::Connect(to_delegate)).await;
    make_unroutable(&fixture.environment, "delegate.kubeconfig", &format!("http://jane:secret@{}", third.address));
    eventually("the other proxy to be used", async || {
        assert_eq!(client.send_and_read(get("/version", &[])).await.text(), "the delegate");
        third.requests().first().map(|recorded| assert_eq!(recorded.credentials, "jane:secret"))
    })
    .await;
    assert!(!fixture.gateway.log_lines().join("\n").contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_from_environment_used_with_flag() {
    let environment = TestEnvironment::new();
    let backend =
        Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "from afar") }).await;
    let near = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "from here") }).await;
    let to = backend.address;
    let proxy = FakeEgressProxy::start_connect(move |_: &EgressProxyRequest| ProxyAction::Connect(to)).await;
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    let url = format!("jane:p%40ss@{}", proxy.address);
    let env_vars = [("https_proxy", url.as_str()), ("NO_PROXY", ".example,192.0.2.99")];
    let jane = environment.issue_user("jane", &[]);
    let arguments = environment.gateway_arguments(&["--proxy-from-environment"]);
    let gateway = GatewayProcess::start_with_environment("gateway", &arguments, &env_vars);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.text(), "from afar");
    assert_eq!(proxy.targets(), [UNROUTABLE]);
    assert!(proxy.requests().iter().all(|recorded| recorded.credentials == "jane:p@ss"));
    // This machine itself is never asked of it.
    register_things(&environment, &[near.address], &[]);
    eventually("the backend on this machine to answer", async || {
        (client.get(THINGS).await.text() == "from here").then_some(())
    })
    .await;
    assert_eq!(proxy.targets(), [UNROUTABLE]);
    drop(gateway);

    // A selection of that name comes first.
    let direct = "egressSelections: [{name: cluster, connection: {proxyProtocol: Direct}}]";
    let text = format!("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n{direct}\n");
    std::fs::write(environment.path("egress.yaml"), text).unwrap();
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[("connect-timeout", "100ms")]);
    let file = format!("--egress-selector-config-file={}", environment.path("egress.yaml").display());
    let gateway = GatewayProcess::start_with_environment(
        "gateway",
        &environment.gateway_arguments(&["--proxy-from-environment", &file]),
        &env_vars,
    );
    let before = proxy.requests().len();
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.status, 503);
    assert_eq!(proxy.requests().len(), before);
}

#[tokio::test]
async fn proxy_url_invalid_reported_as_kubectl() {
    let environment = TestEnvironment::new();
    FakeReviewServer::start(&environment).await;
    for (url, expected) in [
        ("127.0.0.1:18802", "could not parse: 127.0.0.1:18802"),
        ("socks4://u:secret@h", "unsupported scheme \"socks4\", must be http, https, or socks5"),
    ] {
        make_unroutable(&environment, "reviewer.kubeconfig", url);
        let kubeconfig = environment.path("reviewer.kubeconfig").display().to_string();
        let flags = environment.gateway_arguments(&[&format!("--authentication-kubeconfig={kubeconfig}")]);
        let line: Vec<String> = ["check".to_owned(), "gateway".to_owned()].into_iter().chain(flags).collect();
        let output = run_narthex(&line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("{kubeconfig}: clusters[0].cluster.proxy-url: {expected}")), "{text}");
    }
}
