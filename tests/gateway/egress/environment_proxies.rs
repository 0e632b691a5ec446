//! `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, which the programs obey that Narthex replaces.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use http::Request;
use hyper::body::Incoming;

use crate::konnectivity::fixture::{KonnectivityProcess, ServerProcess, agent_arguments, new_environment};
use crate::local_proxy::proxy::{ProxyProcess, environment_with_apiserver};
use crate::sidecar::delegated_auth::sidecar_arguments;
use crate::support::backend::{BackendResponse, json_response};
use crate::support::client::Client;
use crate::support::fake_egress_proxy::{EgressProxyRequest, FakeEgressProxy, ProxyAction};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};
use crate::support::plaintext_backend::{ListenAddress, PlaintextServer};

async fn start_proxy(target: SocketAddr) -> (FakeEgressProxy, String) {
    let connect = move |_: &EgressProxyRequest| ProxyAction::Connect(target);
    let proxy = FakeEgressProxy::start_connect(connect).await;
    let url = format!("http://user:hidden@{}", proxy.address);
    (proxy, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn local_proxy_obeys_https_proxy_and_no_proxy() {
    let (environment, server) = environment_with_apiserver().await;
    let (proxy, url) = start_proxy(server.address).await;
    let text = std::fs::read_to_string(environment.path("kubeconfig")).unwrap();
    let away = "\"tls-server-name\":\"127.0.0.1\",\"server\":\"https://api.test:6443\"";
    let away = text.replace(&format!("\"server\":\"https://{}\"", server.address), away);
    assert_ne!(away, text);
    std::fs::write(environment.path("away"), away).unwrap();
    let start = |kubeconfig: &str, variables: &[(&str, &str)]| {
        let kubeconfig = format!("--kubeconfig={}", environment.path(kubeconfig).display());
        let log = std::fs::File::create(environment.path("log")).unwrap();
        ProxyProcess::spawn(&[&kubeconfig, "--port=0"], variables, Stdio::from(log))
    };
    for name in ["HTTPS_PROXY", "https_proxy"] {
        let before = proxy.requests().len();
        assert_eq!(start("away", &[(name, &url)]).get("/version").await.status, 200, "{name}");
        let request = proxy.requests().pop().unwrap();
        assert_eq!((&*request.target, &*request.credentials), ("api.test:6443", "user:hidden"));
        assert_eq!(proxy.requests().len(), before + 1);
        let log = environment.read_file("log");
        let line = log.lines().find(|line| line.contains("HTTPS_PROXY")).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains(&proxy.address.to_string()) && !log.contains("hidden"), "{log}");
    }
    // Directly: a destination of NO_PROXY, whose name does not resolve, and loopback.
    let variables = [("HTTPS_PROXY", &*url), ("NO_PROXY", "other,.test:6443")];
    assert_ne!(start("away", &variables).get("/version").await.status, 200);
    assert_eq!(start("kubeconfig", &[("HTTPS_PROXY", &url)]).get("/version").await.status, 200);
    assert_eq!(proxy.requests().len(), 2);
    // A mistyped proxy is not bypassed, nor does it hide another one.
    let kubeconfig = format!("--kubeconfig={}", environment.path("kubeconfig").display());
    for (name, value) in [("HTTPS_PROXY", "ftp://x"), ("HTTP_PROXY", "http://a b")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(["proxy", &kubeconfig, "--port=0"]).env(name, value);
        let output = command.output().unwrap();
        assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains(name), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_obeys_https_proxy() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "grpc").await;
    let (proxy, url) = start_proxy(SocketAddr::from(([127, 0, 0, 1], server.agent_port))).await;
    let start = |no_proxy: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(agent_arguments(&environment, "agent", "konnectivity.test", server.agent_port));
        command.env_clear().env("HTTPS_PROXY", &url).env("NO_PROXY", no_proxy).stdout(Stdio::null());
        KonnectivityProcess::spawn_with_stdio(command)
    };
    let agent = start("");
    server.wait_for_agents(1).await;
    let target = format!("konnectivity.test:{}", server.agent_port);
    assert_eq!(proxy.targets(), [target.as_str()]);
    agent.wait_for_log(&["connected to a server", &target]).await;
    assert!(agent.log_lines().iter().all(|line| !line.contains("hidden")));
    drop(agent);
    let direct = start("konnectivity.test");
    direct.wait_for_log(&["cannot connect to a Konnectivity server", "konnectivity.test"]).await;
    assert_eq!(proxy.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_obeys_http_proxy_for_upstreams() {
    async fn answer(_: Request<Incoming>) -> BackendResponse {
        json_response(200, "{}")
    }
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::Port(0), answer).await;
    let address: SocketAddr = server.url().strip_prefix("http://").unwrap().parse().unwrap();
    let _reviewer = FakeReviewServer::start(&environment).await;
    let (proxy, url) = start_proxy(address).await;
    let mut arguments = sidecar_arguments(&environment, &[], &[]);
    arguments.push("--upstream=http://upstream.test:8080".to_owned());
    arguments.push(format!("--upstream=/local={}", server.url()));
    let sidecar = GatewayProcess::start_with_environment("sidecar", &arguments, &[("HTTP_PROXY", &url)]);
    let jane = environment.issue_user("jane", &["devs"]);
    let client = Client::http2(&environment, &sidecar, Some(&jane)).await;
    for path in ["/x", "/local/x"] {
        eventually(path, async || (client.get(path).await.status == 200).then_some(())).await;
    }
    assert_eq!(proxy.targets(), ["upstream.test:8080"]);
    sidecar.wait_for_log(&["connections use the proxies", &proxy.address.to_string()]).await;
    assert!(sidecar.log_lines().iter().all(|line| !line.contains("hidden")));
}
