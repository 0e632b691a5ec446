//! Reported health of the calls to API servers and webhooks.

use serde_json::{Value, json};

use crate::authz::authorization_config::{webhook_entry, write_configuration};
use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, admin_request, get, metric_value};
use crate::support::fake_review_server::{FakeReviewServer, default_reply, failure_reply};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

struct RemoteCallsFixture {
    setup: GatewayFixture,
    reviewer: FakeReviewServer,
    _backend: Backend,
}

impl RemoteCallsFixture {
    /// A gateway that asks the API server of `NAME.kubeconfig` for reviews.
    async fn new(kubeconfig: &str, prepare: impl FnOnce(&TestEnvironment), more: &[&str]) -> RemoteCallsFixture {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        let reviewer = FakeReviewServer::start(&environment).await;
        prepare(&environment);
        let kubeconfig = environment.path(kubeconfig).display().to_string();
        let named = [
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--authorization-mode=Webhook".to_owned(),
            "--authorization-webhook-cache-unauthorized-ttl=0s".to_owned(),
        ];
        let flags: Vec<&str> = named.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        RemoteCallsFixture { setup, reviewer, _backend: backend }
    }

    /// One request that needs a TokenReview, and one that needs a SubjectAccessReview.
    async fn request_both(&self) -> [u16; 2] {
        let anonymous = Client::http1(&self.setup.environment, &self.setup.gateway, None).await;
        let token = anonymous.send_and_read(get("/apis", &[("authorization", "Bearer good")])).await.status;
        [token.as_u16(), self.setup.http1().await.get(THINGS).await.status.as_u16()]
    }

    async fn remote_call(&self, kind: &str) -> Value {
        let report = admin_request(&self.setup.gateway, get("/status.json", &[])).await.json();
        let calls = report["remoteCalls"].as_array().unwrap();
        calls.iter().find(|call| call["call"] == kind).unwrap_or_else(|| panic!("{report}")).clone()
    }

    async fn readyz(&self) -> (u16, String) {
        let read = admin_request(&self.setup.gateway, get("/readyz?verbose", &[])).await;
        (read.status.as_u16(), read.text())
    }

    fn run_status(&self) -> String {
        let address = format!("--admin-address={}", self.setup.gateway.admin);
        let output = run_narthex(&["status".to_owned(), address]);
        String::from_utf8(output.stdout).unwrap()
    }

    /// The operator is told everywhere that both reviews fail, and why.
    async fn assert_failing(&self, error: &str, server: &str) {
        for kind in ["TokenReview", "SubjectAccessReview"] {
            let call = self.remote_call(kind).await;
            assert!(call["error"].as_str().unwrap().contains(error), "{error} in {call}");
            assert!(call["failingSince"].as_str().unwrap().ends_with('Z') && call["server"] == server, "{call}");
            assert!(call["latencyMicros"].is_u64(), "how long the last attempt took: {call}");
            let series = format!("narthex_remote_call_failing{{call=\"{kind}\",name=\"\",server=\"{server}\"}}");
            assert_eq!(metric_value(&self.setup.gateway, &series).await, Some(1.0), "{series}");
            let status = self.run_status();
            let mut rows = status.lines().filter(|line| line.starts_with(kind) && line.contains(server));
            let row = rows.next().unwrap_or_else(|| panic!("{status}"));
            assert!(row.contains("failing for") && row.contains(error), "{row}");
            self.setup.gateway.wait_for_log(&["calls fail", kind, error]).await;
        }
        let (code, text) = self.readyz().await;
        assert_eq!(code, 200, "{text}");
        assert!(text.contains("[+]reviews excluded: TokenReview failing since 20"), "{text}");
        assert!(text.contains("; SubjectAccessReview failing since 20") && !text.contains(server), "{text}");
        // An unavailable token review is a server error, not the client's.
        let line = self.setup.gateway.wait_for_log(&[" access ", "status=401"]).await;
        assert!(line.contains("blame=gateway") && line.contains("TokenReview failed: "), "{line}");
        let page = admin_request(&self.setup.gateway, get("/", &[])).await.text();
        assert!(page.contains("SubjectAccessReview") && page.contains("failing for"), "{page}");
    }
}

#[tokio::test]
async fn remote_calls_refused_by_the_api_server_are_shown_until_one_succeeds() {
    let fixture = RemoteCallsFixture::new("reviewer.kubeconfig", |_| {}, &[]).await;
    let server = fixture.reviewer.address().to_string();
    assert_eq!(fixture.remote_call("TokenReview").await["lastSuccess"], "");
    assert!(fixture.readyz().await.1.contains("[+]reviews ok\n"));
    fixture.reviewer.set_behavior(|_| failure_reply(403, "Forbidden"));
    assert_eq!(fixture.request_both().await, [401, 500]);
    fixture.assert_failing("the API server answered 403", &server).await;
    fixture.reviewer.set_behavior(default_reply);
    assert_eq!(fixture.request_both().await, [200, 200]);
    for kind in ["TokenReview", "SubjectAccessReview"] {
        let call = fixture.remote_call(kind).await;
        assert_eq!((&call["failingSince"], &call["error"]), (&"".into(), &"".into()), "{call}");
        assert!(call["lastSuccess"] != "" && call["latencyMicros"].as_u64().is_some(), "{call}");
        fixture.setup.gateway.wait_for_log(&["calls succeed again", kind]).await;
    }
    let (code, text) = fixture.readyz().await;
    assert!(code == 200 && text.contains("[+]reviews ok\n"), "{text}");
    fixture.request_both().await;
    for kind in ["TokenReview", "SubjectAccessReview"] {
        assert!(fixture.remote_call(kind).await["cacheHits"].as_u64().unwrap() > 0, "{kind}");
    }
    let output_text = fixture.setup.gateway.log_lines().iter().filter(|line| line.contains("calls fail;")).count();
    assert_eq!(output_text, 2, "one line for each change of state");
}

#[tokio::test]
async fn remote_calls_unauthorized_or_to_an_untrusted_server_are_shown() {
    let fixture = RemoteCallsFixture::new("reviewer.kubeconfig", |_| {}, &[]).await;
    fixture.reviewer.set_behavior(move |_| failure_reply(401, "Unauthorized"));
    assert_eq!(fixture.request_both().await, [401, 500]);
    fixture.assert_failing("the API server answered 401", &fixture.reviewer.address().to_string()).await;

    let untrusted = |environment: &TestEnvironment| {
        let text = environment.read_file("reviewer.kubeconfig").replace("backend-ca.crt", "serving-ca.crt");
        std::fs::write(environment.path("untrusted.kubeconfig"), text).unwrap();
    };
    let fixture = RemoteCallsFixture::new("untrusted.kubeconfig", untrusted, &[]).await;
    assert_eq!(fixture.request_both().await, [401, 500]);
    fixture.assert_failing("the API server cannot be reached", &fixture.reviewer.address().to_string()).await;
}

/// The webhooks of a configuration are probed, too.
#[tokio::test]
async fn readiness_requires_reviews_of_configured_webhooks() {
    let environment = TestEnvironment::new();
    let reviewer = FakeReviewServer::start(&environment).await;
    reviewer.set_behavior(|_| failure_reply(403, "Forbidden"));
    let kubeconfig = reviewer.write_kubeconfig(&environment, "guard", "/authorize");
    let file = environment.path("authorization.yaml");
    write_configuration(&file, &[webhook_entry("guard", &kubeconfig, &json!({}))]);
    let flag = format!("--authorization-config={}", file.display());
    let gateway = environment.start_gateway(&[&flag, "--readiness-requires-reviews"]);
    let reviews = async || admin_request(&gateway, get("/readyz/reviews", &[])).await;
    eventually("a probe to fail", async || {
        reviews().await.text().contains("SubjectAccessReview failing since").then_some(())
    })
    .await;
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    assert_eq!(report["remoteCalls"][0]["name"], "guard", "{report}");
    reviewer.set_behavior(default_reply);
    eventually("a probe to succeed", async || (reviews().await.status == 200).then_some(())).await;
}

/// Without a request, too: a gateway that is not ready gets none.
#[tokio::test]
async fn readiness_requires_reviews_fails_until_a_probe_succeeds() {
    let fixture = RemoteCallsFixture::new("reviewer.kubeconfig", |_| {}, &["--readiness-requires-reviews"]).await;
    fixture.reviewer.set_behavior(|_| failure_reply(403, "Forbidden"));
    let cause = async || admin_request(&fixture.setup.gateway, get("/readyz/reviews", &[])).await.text();
    // A probe may have come before the refusals.
    fixture.request_both().await;
    eventually("readiness to fail", async || {
        let text = cause().await;
        (fixture.readyz().await.0 == 500 && text.contains("SubjectAccessReview failing since")).then_some(())
    })
    .await;
    // In the verdict, in the list of what needs attention, and in its row.
    let status = fixture.run_status();
    assert_eq!(status.matches("SubjectAccessReview").count(), 3, "{status}");
    assert!(!status.contains("not ready: ") && status.contains(", not ready,"), "{status}");
    fixture.reviewer.set_behavior(default_reply);
    eventually("a probe to succeed", async || (fixture.readyz().await.0 == 200).then_some(())).await;
    assert!(fixture.remote_call("SubjectAccessReview").await["successes"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn remote_calls_list_the_request_for_a_serving_certificate() {
    let environment = TestEnvironment::new();
    let reviewer = FakeReviewServer::start(&environment).await;
    reviewer.set_behavior(|_| failure_reply(403, "Forbidden"));
    let mut arguments = crate::sidecar::delegated_auth::sidecar_arguments(
        &environment,
        &[],
        &["--request-serving-certificate=example.com/serving"],
    );
    arguments.retain(|argument| !argument.starts_with("--tls-"));
    arguments.extend(["--serving-certificate-names=a.b.svc".to_owned(), "--upstream=/=http://127.0.0.1:1".to_owned()]);
    let sidecar = GatewayProcess::start_as("sidecar", &arguments);
    let call = eventually("a call that fails", async || {
        let report = admin_request(&sidecar, get("/status.json", &[])).await.json();
        let calls = report["remoteCalls"].as_array()?;
        let call = calls.iter().find(|call| call["call"] == "CertificateSigningRequest")?;
        (call["error"] != "").then(|| call.clone())
    })
    .await;
    assert!(call["error"].as_str().unwrap().contains("answered 403"), "{call}");
    assert_eq!(call["server"], reviewer.address().to_string(), "{call}");
}
