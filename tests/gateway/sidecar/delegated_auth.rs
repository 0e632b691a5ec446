//! The sidecar in front of explicit upstreams, with authentication and authorization by a kube-apiserver.

use serde_json::json;

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, admin_request, get};
use crate::support::fake_review_server::{FakeReviewServer, access_review_reply, default_reply};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};

pub(crate) struct SidecarStage {
    pub(crate) environment: TestEnvironment,
    pub(crate) reviewer: FakeReviewServer,
    pub(crate) sidecar: GatewayProcess,
}

/// A sidecar's command line: `upstreams` by path, trusted as the environment's backends are.
pub(crate) fn sidecar_arguments(
    environment: &TestEnvironment,
    upstreams: &[(&str, &Backend)],
    more: &[&str],
) -> Vec<String> {
    let file = |name: &str| environment.path(name).display().to_string();
    let mut arguments = vec![
        "--secure-listen-address=127.0.0.1:0".to_owned(),
        "--admin-address=127.0.0.1:0".to_owned(),
        format!("--data-dir={}", file("data")),
        format!("--tls-cert-file={}", file("serving.crt")),
        format!("--tls-private-key-file={}", file("serving.key")),
        format!("--client-ca-file={}", file("client-ca.crt")),
        format!("--requestheader-client-ca-file={}", file("requestheader-ca.crt")),
        "--requestheader-allowed-names=narthex-front-proxy,outer-proxy".to_owned(),
        format!("--upstream-ca-file={}", file("backend-ca.crt")),
        format!("--upstream-client-cert-file={}", file("front-proxy.crt")),
        format!("--upstream-client-key-file={}", file("front-proxy.key")),
        format!("--kubeconfig={}", file("reviewer.kubeconfig")),
        "--log-format=json".to_owned(),
    ];
    for (path, backend) in upstreams {
        arguments.push(format!("--upstream={path}=https://{}", backend.address));
    }
    arguments.extend(more.iter().map(|more| (*more).to_owned()));
    arguments
}

/// A server that says which of several it is.
pub(crate) async fn start_named_server(environment: &TestEnvironment, name: &'static str) -> Backend {
    let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    Backend::start(environment, settings, move |_| async move { response(200, name) }).await
}

impl SidecarStage {
    async fn new(upstreams: &[(&str, &Backend)], environment: TestEnvironment, more: &[&str]) -> SidecarStage {
        SidecarStage::with_command("sidecar", upstreams, environment, more).await
    }

    /// The same under another name.
    pub(crate) async fn with_command(
        name: &str,
        upstreams: &[(&str, &Backend)],
        environment: TestEnvironment,
        more: &[&str],
    ) -> SidecarStage {
        let reviewer = FakeReviewServer::start(&environment).await;
        let sidecar = GatewayProcess::start_as(name, &sidecar_arguments(&environment, upstreams, more));
        SidecarStage { environment, reviewer, sidecar }
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> ClientResponse {
        Client::http1(&self.environment, &self.sidecar, None).await.send_and_read(get(path, headers)).await
    }
}

pub(crate) const TINA: (&str, &str) = ("authorization", "Bearer good");

#[tokio::test]
async fn sidecar_relays_authorized_request_with_identity_headers() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::new(&[("/", &server)], environment, &[]).await;
    let forged = [TINA, ("x-remote-user", "root"), ("x-remote-group", "system:masters"), ("x_remote_user", "root")];
    let reply = fixture.get("/apis/example.com/v1/namespaces/shop/things?limit=5", &forged).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let seen = server.last_request();
    assert_eq!(seen.uri.path_and_query().unwrap(), "/apis/example.com/v1/namespaces/shop/things?limit=5");
    assert_eq!(seen.header_values("x-remote-user"), ["tina"]);
    assert_eq!(seen.header_values("x-remote-uid"), ["t-1"]);
    assert_eq!(seen.header_values("x-remote-group"), ["devs", "system:authenticated"]);
    assert_eq!((seen.header_values("x_remote_user"), seen.header_values("authorization")), (vec![], vec![]));
    assert_eq!(seen.peer, "narthex-front-proxy");
    let recorded = fixture.reviewer.reviews("SubjectAccessReview").pop().unwrap();
    let expected = json!({"namespace": "shop", "verb": "list", "group": "example.com", "version": "v1",
        "resource": "things"});
    assert_eq!(recorded["spec"]["resourceAttributes"], expected);
}

#[tokio::test]
async fn sidecar_refuses_unauthenticated_and_unauthorized_requests() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::new(&[("/", &server)], environment, &[]).await;
    fixture.get("/metrics", &[]).await.assert_failure(401, "Unauthorized");
    fixture.get("/metrics", &[("authorization", "Bearer wrong")]).await.assert_failure(401, "Unauthorized");
    fixture.reviewer.set_behavior(|question| match question["kind"].as_str() {
        Some("SubjectAccessReview") => access_review_reply(json!({"allowed": false, "reason": "not hers"})),
        _ => default_reply(question),
    });
    let status = fixture.get("/metrics", &[TINA]).await.assert_failure(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("User \"tina\" cannot get path \"/metrics\"") && message.contains("not hers"),
        "{message}"
    );
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn sidecar_accepts_request_header_identity_of_front_proxy() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let outer = environment.issue_front_proxy("outer-proxy");
    let fixture = SidecarStage::new(&[("/", &server)], environment, &[]).await;
    let client = Client::http2(&fixture.environment, &fixture.sidecar, Some(&outer)).await;
    let reply = client
        .send_and_read(get("/apis/example.com/v1", &[("x-remote-user", "jane"), ("x-remote-group", "devs")]))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(server.last_request().header_values("x-remote-user"), ["jane"]);
    assert_eq!(fixture.reviewer.reviews("TokenReview").len(), 0);
}

#[tokio::test]
async fn sidecar_upstream_chosen_by_longest_path_prefix() {
    let environment = TestEnvironment::new();
    let (all, metrics, deep) = (
        start_named_server(&environment, "all").await,
        start_named_server(&environment, "metrics").await,
        start_named_server(&environment, "deep").await,
    );
    let upstreams = [("/", &all), ("/metrics/deep", &deep), ("/metrics/", &metrics)];
    let fixture = SidecarStage::new(&upstreams, environment, &[]).await;
    for (path, owner) in [
        ("/", "all"),
        ("/metric", "all"),
        ("/metricsx", "all"),
        ("/metrics", "metrics"),
        ("/metrics?a=/metrics/deep", "metrics"),
        ("/metrics/deeper", "metrics"),
        ("/metrics/deep", "deep"),
        ("/metrics/deep/er", "deep"),
        ("/apis", "all"),
        ("/openapi/v2", "all"),
        ("/version", "all"),
        ("/apis/apiregistration.k8s.io/v1/apiservices", "all"),
    ] {
        let reply = fixture.get(path, &[TINA]).await;
        assert_eq!((reply.status.as_u16(), &*reply.text()), (200, owner), "{path}");
    }
}

#[tokio::test]
async fn sidecar_writes_no_files_with_given_certificate() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let reviewer = FakeReviewServer::start(&environment).await;
    let mut line = sidecar_arguments(&environment, &[("/", &server)], &[]);
    line.retain(|argument| !argument.starts_with("--data-dir"));
    // Nowhere to write to is known, either.
    let sidecar = GatewayProcess::start_with_environment("sidecar", &line, &[]);
    let fixture = SidecarStage { environment, reviewer, sidecar };
    assert_eq!(fixture.get("/books", &[TINA]).await.status, 200);
    assert!(!fixture.environment.path("data").exists());
    assert_eq!(fixture.reviewer.reviews("TokenReview").len(), 1);
}

#[tokio::test]
async fn sidecar_path_without_upstream_is_404() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::new(&[("/metrics", &server)], environment, &[]).await;
    for path in ["/", "/apis", "/version", "/api/v1/pods", "/openapi/v3"] {
        fixture.get(path, &[TINA]).await.assert_failure(404, "NotFound");
    }
    assert_eq!(fixture.get("/metrics", &[TINA]).await.status, 200);
}

#[tokio::test]
async fn sidecar_health_served_without_authentication() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::new(&[("/", &server)], environment, &[]).await;
    eventually("readiness", async || (fixture.get("/readyz", &[]).await.status == 200).then_some(())).await;
    assert_eq!(fixture.get("/livez", &[]).await.text(), "ok");
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn sidecar_stays_live_while_upstream_is_down() {
    let environment = TestEnvironment::new();
    let first = start_named_server(&environment, "first").await;
    let fixture = SidecarStage::new(&[("/", &first)], environment, &[]).await;
    let ready = async |code: u16| {
        eventually("what /readyz says", async || {
            let reply = fixture.get("/readyz", &[]).await;
            (reply.status == code).then(|| reply.text())
        })
        .await
    };
    assert_eq!(ready(200).await, "ok");
    let address = first.stop().await;
    let reply = ready(500).await;
    assert!(reply.contains("[-]upstream failed"), "{reply}");
    assert_eq!(fixture.get("/livez", &[]).await.status, 200);
    let status = fixture.get("/books", &[TINA]).await.assert_failure(503, "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "ConnectionRefused", "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("(upstream /: ConnectionRefused)"), "{message}");
    let error_text: serde_json::Value = admin_request(&fixture.sidecar, get("/status.json", &[])).await.json();
    assert_eq!(
        (&error_text["apiservices"][0]["name"], &error_text["apiservices"][0]["available"]),
        (&json!("/"), &json!(false)),
        "{error_text}"
    );
    assert_eq!(
        error_text["notReady"],
        json!(["upstream: /: ConnectionRefused (it accepts no connections)"]),
        "{error_text}"
    );
    let settings =
        BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, address, ..BackendSettings::default() };
    let _again = Backend::start(&fixture.environment, settings, |_| async { response(200, "again") }).await;
    ready(200).await;
    let reply = fixture.get("/books", &[TINA]).await;
    assert_eq!((reply.status.as_u16(), &*reply.text()), (200, "again"));
}

/// The documented steps give a sidecar that authenticates requests.
#[test]
fn sidecar_missing_kubeconfig_reported_with_flag() {
    let environment = TestEnvironment::new();
    std::fs::write(environment.path("a.sock"), "").unwrap();
    let check = |more: &[&str]| {
        let mut line = ["check", "sidecar"].map(str::to_owned).to_vec();
        line.push(format!("--upstream=unix:{}", environment.path("a.sock").display()));
        line.push(format!("--data-dir={}", environment.path("data").display()));
        line.extend(more.iter().map(|more| (*more).to_owned()));
        let output = run_narthex(&line);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, reply) = check(&[]);
    assert_eq!(status, Some(1), "{reply}");
    assert!(reply.contains("--kubeconfig: required outside a pod") && reply.lines().count() == 1, "{reply}");
    let cluster = environment.path("cluster.kubeconfig");
    let text = "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: \
                {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: secret}}]}";
    std::fs::write(&cluster, text).unwrap();
    let recorded = |flag: &str| format!("--{flag}={}", cluster.display());
    // Authentication is unavailable.
    let (status, reply) = check(&[&recorded("authorization-kubeconfig")]);
    assert_eq!(status, Some(1), "{reply}");
    assert!(reply.contains("--kubeconfig: required for authentication") && reply.lines().count() == 1, "{reply}");
    // A webhook is available, but it is not of that cluster.
    let authority = format!("--client-ca-file={}", environment.path("client-ca.crt").display());
    let (status, reply) = check(&[&recorded("authorization-kubeconfig"), &authority]);
    assert_eq!(status, Some(0), "{reply}");
    assert!(reply.contains("warning: --authorization-kubeconfig: tokens of that cluster are refused"), "{reply}");
    for more in [
        vec![recorded("kubeconfig")],
        vec![recorded("authorization-kubeconfig"), recorded("authentication-kubeconfig")],
    ] {
        let more: Vec<_> = more.iter().map(String::as_str).collect();
        assert_eq!(check(&more), (Some(0), String::new()));
    }
}

#[test]
fn sidecar_configuration_errors_all_reported() {
    let environment = TestEnvironment::new();
    let line: Vec<String> = [
        "check",
        "sidecar",
        "--upstream=ftp://a",
        "--upstream=/a/../b=https://a",
        "--upstream=/x=https://a",
        "--upstream=/x/=https://b",
        "--upstream-timeout=/y=5s",
        "--upstream-timeout=soon",
        "--upstream-ca-file=/nowhere/ca.crt",
        "--upstream-client-cert-file=/nowhere/a.crt",
        "--secure-listen-address=here",
    ]
    .iter()
    .map(|word| (*word).to_owned())
    .chain([format!("--data-dir={}", environment.path("data").display())])
    .collect();
    let output = run_narthex(&line);
    let reply = String::from_utf8_lossy(&output.stderr).into_owned();
    for words in [
        "--upstream: \"ftp://a\"",
        "--upstream: \"/a/../b=https://a\"",
        "/x has more than one upstream",
        "--upstream-timeout: no --upstream has the path /y",
        "--upstream-timeout: \"soon\"",
        "/nowhere/ca.crt",
        "--upstream-client-cert-file: /nowhere/a.crt needs its key",
        "--secure-listen-address: \"here\"",
        "--kubeconfig: required outside a pod",
    ] {
        assert!(reply.contains(words), "{words} is not in\n{reply}");
    }
    assert_eq!(output.status.code(), Some(1), "{reply}");
}
