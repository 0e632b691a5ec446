//! Webhook reviews: TokenReview and SubjectAccessReview with a review server that answers, fails or hangs.

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, get, metric_value};
use crate::support::fake_review_server::{
    FakeReviewServer, ReviewReply, access_review_reply, default_reply, failure_reply, tina_reply, token_review_reply,
};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

const LONG_CACHE_FLAGS: [&str; 2] =
    ["--authentication-token-webhook-cache-ttl=1h", "--authorization-webhook-cache-authorized-ttl=1h"];

struct WebhookReviewFixture {
    setup: GatewayFixture,
    reviewer: FakeReviewServer,
    backend: Backend,
}

impl WebhookReviewFixture {
    async fn new(more: &[&str]) -> WebhookReviewFixture {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        let reviewer = FakeReviewServer::start(&environment).await;
        let kubeconfig = environment.path("reviewer.kubeconfig").display().to_string();
        let named = [
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--authorization-mode=Webhook".to_owned(),
        ];
        let flags: Vec<&str> = named.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        WebhookReviewFixture { setup, reviewer, backend }
    }

    /// A client without a certificate.
    async fn client_without_certificate(&self) -> Client {
        Client::http1(&self.setup.environment, &self.setup.gateway, None).await
    }

    /// Over a connection of its own: 401 may end it.
    async fn get_with_token(&self, token: &str, path: &str) -> ClientResponse {
        self.client_without_certificate()
            .await
            .send_and_read(get(path, &[("authorization", &format!("Bearer {token}"))]))
            .await
    }

    async fn metric(&self, name: &str) -> f64 {
        metric_value(&self.setup.gateway, name).await.unwrap_or_default()
    }
}

/// The exact text of Kubernetes.
#[track_caller]
fn assert_unauthorized(response: &ClientResponse) {
    let status = response.assert_failure(401, "Unauthorized");
    let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    assert_eq!(status, expected);
}

#[tokio::test]
async fn reviews_cached_and_identity_headers_set() {
    let fixture = WebhookReviewFixture::new(&LONG_CACHE_FLAGS).await;
    for _ in 0..3 {
        let response = fixture.get_with_token("good", THINGS).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(
        fixture.reviewer.reviews("TokenReview"),
        [json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
            "spec": {"token": "good"}, "status": {"user": {}}})]
    );
    assert_eq!(
        fixture.reviewer.reviews("SubjectAccessReview"),
        [json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {
            "resourceAttributes": {"namespace": "default", "verb": "list", "group": "things.example.com",
                "version": "v1", "resource": "things"},
            "user": "tina", "uid": "t-1", "groups": ["devs", "system:authenticated"],
            "extra": {"example.com/scopes": ["a", "b"]}}, "status": {"allowed": false}})]
    );
    assert_eq!(fixture.reviewer.credentials(), ("narthex".to_owned(), "Bearer first".to_owned()));
    assert_eq!(fixture.reviewer.connections(), 2, "one for each kubeconfig's client");
    let seen = fixture.backend.last_request();
    assert_eq!(seen.header_values("x-remote-user"), ["tina"]);
    assert_eq!(seen.header_values("x-remote-uid"), ["t-1"]);
    assert_eq!(seen.header_values("x-remote-group"), ["devs", "system:authenticated"]);
    assert_eq!(seen.header_values("x-remote-extra-example.com%2fscopes"), ["a", "b"]);
    assert_eq!(seen.header_values("authorization"), [""; 0]);
    for (name, expected) in [
        ("authentication_token_cache_request_total{status=\"hit\"}", 2.0),
        ("authentication_token_cache_request_total{status=\"miss\"}", 1.0),
        ("authentication_token_cache_fetch_total{status=\"ok\"}", 1.0),
        ("apiserver_delegated_authn_request_total{code=\"201\"}", 1.0),
        ("apiserver_delegated_authz_request_total{code=\"201\"}", 1.0),
        ("narthex_decision_cache_requests_total{cache=\"access\",result=\"hit\"}", 2.0),
        ("narthex_decision_cache_entries{cache=\"token\"}", 1.0),
    ] {
        assert_eq!(fixture.metric(name).await, expected, "{name}");
    }
}

#[tokio::test]
async fn reviews_single_flight_for_concurrent_requests() {
    let fixture = WebhookReviewFixture::new(&LONG_CACHE_FLAGS).await;
    let (release, until) = tokio::sync::watch::channel(());
    fixture.reviewer.set_behavior(move |question| ReviewReply::Delay(until.clone(), Box::new(default_reply(question))));
    let pending: Vec<_> = futures_util::future::join_all((0..20).map(|_| fixture.client_without_certificate())).await;
    let all = futures_util::future::join_all(
        pending.iter().map(|client| client.send_and_read(get(THINGS, &[("authorization", "Bearer good")]))),
    );
    let release = async {
        eventually("all to wait", async || {
            let waiting = fixture.metric("authentication_token_cache_active_fetch_count{status=\"blocked\"}").await;
            (waiting == 20.0).then_some(())
        })
        .await;
        drop(release);
    };
    let (responses, ()) = tokio::join!(all, release);
    assert!(responses.iter().all(|response| response.status == 200));
    assert_eq!(fixture.reviewer.reviews("TokenReview").len(), 1);
    assert_eq!(fixture.reviewer.reviews("SubjectAccessReview").len(), 1);
}

#[tokio::test]
async fn reviews_single_flight_survives_disconnect_of_first_waiter() {
    let fixture = WebhookReviewFixture::new(&LONG_CACHE_FLAGS).await;
    let (release, until) = tokio::sync::watch::channel(());
    fixture.reviewer.set_behavior(move |question| ReviewReply::Delay(until.clone(), Box::new(default_reply(question))));
    let first = fixture.client_without_certificate().await;
    let blocked = "authentication_token_cache_active_fetch_count{status=\"blocked\"}";
    tokio::select! {
        _ = first.send_and_read(get(THINGS, &[("authorization", "Bearer good")])) => panic!("response without a review"),
        () = eventually("the first to wait", async || (fixture.metric(blocked).await == 1.0).then_some(())) => {}
    }
    drop(first);
    eventually("the first to leave", async || (fixture.metric(blocked).await == 0.0).then_some(())).await;
    let (second, ()) = tokio::join!(fixture.get_with_token("good", THINGS), async {
        eventually("the second to wait", async || (fixture.metric(blocked).await == 1.0).then_some(())).await;
        drop(release);
    });
    assert_eq!(second.status, 200, "{}", second.text());
    assert_eq!(fixture.reviewer.reviews("TokenReview").len(), 1);
}

/// Any invalid review rejects the token: the request is never anonymous and never forwarded.
#[tokio::test]
async fn token_review_failure_is_401_and_never_anonymous() {
    let fixture = WebhookReviewFixture::new(&["--anonymous-auth", "--api-audiences=us,others"]).await;
    let user = json!({"username": "tina"});
    let cases: Vec<(&str, ReviewReply, usize)> = vec![
        ("not authenticated", token_review_reply(json!({"authenticated": false})), 1),
        ("an error", token_review_reply(json!({"error": "secret words"})), 1),
        (
            "for somebody else",
            token_review_reply(json!({"authenticated": true, "user": user, "audiences": ["them"]})),
            1,
        ),
        ("no name", token_review_reply(json!({"authenticated": true, "user": {"uid": "7"}, "audiences": ["us"]})), 1),
        ("an empty name", token_review_reply(json!({"authenticated": true, "user": {"username": ""}})), 1),
        (
            "a name nobody can say",
            token_review_reply(json!({"authenticated": true, "user": {"username": "a\r\nb"}})),
            1,
        ),
        ("an answer to another question", access_review_reply(json!({"allowed": true})), 1),
        ("an empty object", ReviewReply::Text(201, "{}"), 1),
        ("no JSON", ReviewReply::Text(200, "<html>secret words</html>"), 1),
        ("nothing", ReviewReply::Text(200, ""), 1),
        ("we may not ask", failure_reply(403, "Forbidden"), 1),
        ("we are not known", failure_reply(401, "Unauthorized"), 1),
        ("no such API", ReviewReply::Text(404, "404 page not found"), 1),
        ("not available", failure_reply(503, "ServiceUnavailable"), 1),
        ("a redirect", ReviewReply::Text(302, ""), 1),
        ("broken off", ReviewReply::Break, 5),
        ("an internal error", failure_reply(500, "InternalError"), 5),
        ("too many", failure_reply(429, "TooManyRequests"), 5),
    ];
    let pending = cases.iter().enumerate().map(|(number, (name, _, _))| {
        let (fixture, token) = (&fixture, format!("case-{number}"));
        async move { (*name, fixture.get_with_token(&token, THINGS).await) }
    });
    let replies: Vec<ReviewReply> = cases.iter().map(|(_, reply, _)| reply.clone()).collect();
    fixture.reviewer.set_behavior(move |question| {
        let token = question["spec"]["token"].as_str().unwrap_or_default();
        match token.strip_prefix("case-").and_then(|number| replies.get(number.parse::<usize>().ok()?)) {
            Some(reply) => reply.clone(),
            None => default_reply(question),
        }
    });
    for (name, response) in futures_util::future::join_all(pending).await {
        assert_eq!(response.status, 401, "{name}");
        assert_unauthorized(&response);
    }
    let recorded = fixture.reviewer.reviews("TokenReview");
    for (number, (name, _, times)) in cases.iter().enumerate() {
        let token = json!(format!("case-{number}"));
        assert_eq!(recorded.iter().filter(|question| question["spec"]["token"] == token).count(), *times, "{name}");
    }
    assert_eq!(recorded[0]["spec"]["audiences"], json!(["us", "others"]));
    // No credentials at all is another thing.
    assert_eq!(fixture.client_without_certificate().await.get(THINGS).await.status, 200);
    assert_eq!(fixture.backend.last_request().header_values("x-remote-user"), ["system:anonymous"]);
    assert_eq!(fixture.backend.received().len(), 1);
    // What was an error is asked anew; what was no is remembered.
    fixture.get_with_token("case-1", THINGS).await;
    fixture.get_with_token("case-0", THINGS).await;
    let again = fixture.reviewer.reviews("TokenReview").len();
    assert_eq!(again, recorded.len() + 1);
}

#[tokio::test]
async fn access_review_denied_is_403_and_failed_is_500() {
    let fixture = WebhookReviewFixture::new(&[]).await;
    let cases: Vec<(&str, ReviewReply, u16, &str)> = vec![
        ("no", access_review_reply(json!({"allowed": false})), 403, ""),
        ("no, with a reason", access_review_reply(json!({"allowed": false, "reason": "go away"})), 403, ": go away"),
        ("never", access_review_reply(json!({"allowed": false, "denied": true, "reason": "never"})), 403, ": never"),
        (
            "a mistake beside",
            access_review_reply(json!({"allowed": false, "evaluationError": "secret words"})),
            403,
            "",
        ),
        ("yes and no", access_review_reply(json!({"allowed": true, "denied": true})), 500, ""),
        ("an answer to another question", tina_reply(), 500, ""),
        ("no status", ReviewReply::Text(201, r#"{"kind":"SubjectAccessReview"}"#), 500, ""),
        ("no JSON", ReviewReply::Text(200, "<html>secret words</html>"), 500, ""),
        ("we may not ask", failure_reply(403, "Forbidden"), 500, ""),
        ("an internal error", failure_reply(500, "InternalError"), 500, ""),
    ];
    let replies: Vec<ReviewReply> = cases.iter().map(|(_, reply, ..)| reply.clone()).collect();
    fixture.reviewer.set_behavior(move |question| {
        let namespace = question["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or_default();
        match namespace.strip_prefix("case-").and_then(|number| replies.get(number.parse::<usize>().ok()?)) {
            Some(reply) => reply.clone(),
            None => default_reply(question),
        }
    });
    let jane = fixture.setup.http2().await;
    let path = |number: usize| format!("/apis/things.example.com/v1/namespaces/case-{number}/things/x");
    let pending = (0..cases.len()).map(|number| {
        let (jane, path) = (jane.clone(), path(number));
        async move { jane.get(&path).await }
    });
    let responses = futures_util::future::join_all(pending).await;
    for (number, ((name, _, code, reason), response)) in cases.iter().zip(responses).enumerate() {
        if *code == 403 {
            let status = response.assert_failure(403, "Forbidden");
            let message = format!(
                "things.things.example.com \"x\" is forbidden: User \"jane\" cannot get resource \"things\" in API group \
                 \"things.example.com\" in the namespace \"case-{number}\"{reason}"
            );
            assert_eq!(status["message"], message, "{name}");
        } else {
            response.assert_failure(500, "InternalError");
        }
        assert!(!response.text().contains("secret") && !response.text().contains("127.0.0.1"), "{}", response.text());
    }
    assert!(fixture.backend.received().is_empty());
    // A no is remembered, a failure is not.
    let recorded = fixture.reviewer.reviews("SubjectAccessReview").len();
    jane.get(&path(0)).await.assert_failure(403, "Forbidden");
    jane.get(&path(5)).await.assert_failure(500, "InternalError");
    assert_eq!(fixture.reviewer.reviews("SubjectAccessReview").len(), recorded + 1);
}

/// As Kubernetes' union: an error and no opinion leave it to the next mode, a denial and nonsense do not.
#[tokio::test]
async fn authorization_mode_falls_through_only_without_decision() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
    let reviewer = FakeReviewServer::start(&environment).await;
    let kubeconfig = format!("--authorization-kubeconfig={}", environment.path("reviewer.kubeconfig").display());
    let flags = [kubeconfig.as_str(), "--authorization-mode=Webhook,AlwaysAllow"];
    let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
    reviewer.set_behavior(|question| match question["spec"]["resourceAttributes"]["name"].as_str() {
        Some("open") => access_review_reply(json!({"allowed": false})),
        Some("error") => failure_reply(403, "Forbidden"),
        Some("denied") => access_review_reply(json!({"allowed": false, "denied": true})),
        _ => access_review_reply(json!({"allowed": true, "denied": true})),
    });
    let jane = setup.http2().await;
    for (name, code) in [("open", 200), ("error", 200), ("denied", 403), ("nonsense", 500)] {
        assert_eq!(jane.get(&format!("{THINGS}/{name}")).await.status, code, "{name}");
    }
}

#[tokio::test]
async fn access_review_has_selectors_and_long_attributes_are_not_cached() {
    let fixture = WebhookReviewFixture::new(&LONG_CACHE_FLAGS).await;
    let jane = fixture.setup.http2().await;
    let list = |query: &str| format!("{THINGS}?{query}");
    jane.get(&list("labelSelector=a+in+(b,c)&fieldSelector=spec.x!%3Dy")).await;
    jane.get(&list("labelSelector=a")).await;
    jane.get(&list("limit=500")).await;
    jane.get(&list("limit=1")).await;
    let recorded: Vec<Value> = fixture
        .reviewer
        .reviews("SubjectAccessReview")
        .iter()
        .map(|it| it["spec"]["resourceAttributes"].clone())
        .collect();
    assert_eq!(recorded.len(), 3, "limits are not part of the review");
    assert_eq!(
        recorded[0]["labelSelector"],
        json!({"requirements": [{"key": "a", "operator": "In", "values": ["b", "c"]}]})
    );
    assert_eq!(
        recorded[0]["fieldSelector"],
        json!({"requirements": [{"key": "spec.x", "operator": "NotIn", "values": ["y"]}]})
    );
    assert_eq!(recorded[1]["labelSelector"], json!({"requirements": [{"key": "a", "operator": "Exists"}]}));
    assert!(recorded[2].get("labelSelector").is_none());
    // What a client made long is asked each time.
    let long = format!("{THINGS}/{}", "x".repeat(10_000));
    jane.get(&long).await;
    jane.get(&long).await;
    assert_eq!(fixture.reviewer.reviews("SubjectAccessReview").len(), 5);
}

#[tokio::test]
async fn authorization_always_allow_paths_and_system_masters_skip_reviews() {
    let fixture = WebhookReviewFixture::new(&["--authorization-always-allow-paths=/version,/apis/*"]).await;
    fixture.reviewer.set_behavior(|_| access_review_reply(json!({"allowed": false})));
    let jane = fixture.setup.http2().await;
    for (path, code) in [("/version", 200), ("/apis/things.example.com/v1", 200), ("/metrics", 403), (THINGS, 403)] {
        assert_eq!(jane.get(path).await.status, code, "{path}");
    }
    assert_eq!(
        jane.get("/metrics").await.assert_failure(403, "Forbidden")["message"],
        "forbidden: User \"jane\" cannot get path \"/metrics\""
    );
    let recorded = fixture.reviewer.reviews("SubjectAccessReview");
    assert_eq!(recorded.len(), 2);
    assert_eq!(recorded[0]["spec"]["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
    let root = fixture.setup.environment.issue_user("root", &["system:masters"]);
    let root = Client::http2(&fixture.setup.environment, &fixture.setup.gateway, Some(&root)).await;
    assert_eq!(root.get(THINGS).await.status, 200);
    assert_eq!(fixture.reviewer.reviews("SubjectAccessReview").len(), 2);
}

/// The reviewer hangs: an answer comes all the same, in the time that is stated, and the right one.
#[tokio::test]
async fn review_timeout_bounds_request_time() {
    let fixture = WebhookReviewFixture::new(&["--anonymous-auth"]).await;
    fixture.reviewer.set_behavior(|_| ReviewReply::Hang);
    let jane = fixture.setup.http2().await;
    let (brief, other) = (format!("{THINGS}?timeout=100ms"), format!("{THINGS}/other?timeout=100ms"));
    let (token, access, no_token, no_access) = tokio::join!(
        fixture.get_with_token("good", THINGS),
        jane.get(THINGS),
        fixture.get_with_token("good", &brief),
        jane.get(&other)
    );
    assert_unauthorized(&token);
    access.assert_failure(500, "InternalError");
    // A client whose deadline passes gets an error; others waiting for the same review do not.
    for brief in [no_token, no_access] {
        assert_eq!(
            brief.assert_failure(504, "Timeout")["message"],
            "Timeout: request did not complete within the allotted timeout"
        );
    }
    assert_eq!(fixture.metric("apiserver_delegated_authn_request_total{code=\"<error>\"}").await, 1.0);
    assert_eq!(fixture.metric("apiserver_delegated_authz_request_total{code=\"<error>\"}").await, 2.0);
    assert!(fixture.backend.received().is_empty());
}

/// The plug is pulled: what is known lives on for its time, all else is refused; on its return the flow resumes.
#[tokio::test]
async fn review_server_outage_uses_cache_and_recovers() {
    let fixture = WebhookReviewFixture::new(&[
        "--authentication-token-webhook-cache-ttl=1h",
        "--authorization-webhook-cache-authorized-ttl=500ms",
        "--authorization-webhook-cache-unauthorized-ttl=500ms",
    ])
    .await;
    assert_eq!(fixture.get_with_token("good", THINGS).await.status, 200);
    let WebhookReviewFixture { setup, reviewer, backend } = fixture;
    let address = reviewer.stop().await;
    let with_token = async |token: &str| {
        let client = Client::http1(&setup.environment, &setup.gateway, None).await;
        client.send_and_read(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await
    };
    // The token is still known; the permission ends.
    let refused = eventually("the permission to end", async || {
        let response = with_token("good").await;
        (response.status != 200).then_some(response)
    })
    .await;
    refused.assert_failure(500, "InternalError");
    assert_unauthorized(&with_token("other").await);
    let seen = backend.received().len();
    with_token("good").await.assert_failure(500, "InternalError");
    assert_eq!(backend.received().len(), seen);

    let reviewer = FakeReviewServer::start_at(&setup.environment, address).await;
    eventually("the flow to resume", async || (with_token("good").await.status == 200).then_some(())).await;
    assert_eq!(reviewer.reviews("TokenReview").len(), 0, "what is known need not be asked");
}

#[tokio::test]
async fn authorization_stale_allow_used_only_with_flag_and_during_outage() {
    let fixture = WebhookReviewFixture::new(&[
        "--authorization-webhook-cache-authorized-ttl=0s",
        "--authorization-webhook-cache-unauthorized-ttl=0s",
        "--authorization-stale-allow-ttl=1h",
    ])
    .await;
    let jane = fixture.setup.http2().await;
    assert_eq!(jane.get(THINGS).await.status, 200);
    fixture.reviewer.set_behavior(|_| failure_reply(403, "Forbidden"));
    assert_eq!(jane.get(THINGS).await.status, 200);
    // Not what was never asked.
    jane.get("/apis/things.example.com/v1/namespaces/other/things").await.assert_failure(500, "InternalError");
    assert_eq!(fixture.metric("narthex_decision_cache_requests_total{cache=\"access\",result=\"stale\"}").await, 1.0);
    fixture.setup.gateway.wait_for_log(&["stale allowed decisions are used"]).await;
    // A denial removes the cached approval, also for later webhook failures.
    fixture.reviewer.set_behavior(|_| access_review_reply(json!({"allowed": false})));
    jane.get(THINGS).await.assert_failure(403, "Forbidden");
    fixture.reviewer.set_behavior(|_| failure_reply(403, "Forbidden"));
    jane.get(THINGS).await.assert_failure(500, "InternalError");
}

#[tokio::test]
async fn review_credentials_reloaded_without_restart() {
    let fixture = WebhookReviewFixture::new(&[]).await;
    fixture.get_with_token("one", THINGS).await;
    assert_eq!(fixture.reviewer.credentials().1, "Bearer first");
    let environment = &fixture.setup.environment;
    std::fs::write(environment.path("reviewer.token"), "second\n").unwrap();
    let identity = narthex::tls::CertificateSpec::client("narthex-renewed", &[]);
    let identity = environment.request_header_ca.issue(&identity, std::time::SystemTime::now()).unwrap();
    environment.write_pair("reviewer-client", &identity);
    let mut number = 0;
    eventually("the new credentials", async || {
        number += 1;
        fixture.get_with_token(&format!("t{number}"), THINGS).await;
        (fixture.reviewer.credentials() == ("narthex-renewed".to_owned(), "Bearer second".to_owned())).then_some(())
    })
    .await;
    // A kubeconfig that is wrong now keeps what was good.
    std::fs::write(environment.path("reviewer.kubeconfig"), "current-context: gone").unwrap();
    fixture.setup.gateway.wait_for_log(&["the kubeconfig changed and is invalid", "there is no single context"]).await;
    assert_eq!(fixture.get_with_token("good", THINGS).await.status, 200);
}

#[test]
fn review_kubeconfig_errors_reported_at_start() {
    let environment = TestEnvironment::new();
    std::fs::write(environment.path("a.kubeconfig"), "current-context: gone").unwrap();
    let file = |name: &str| environment.path(name).display().to_string();
    let output = run_narthex(
        &[
            vec!["check".to_owned(), "gateway".to_owned()],
            environment.gateway_arguments(&[
                &format!("--authentication-kubeconfig={}", file("a.kubeconfig")),
                &format!("--authorization-kubeconfig={}", file("nowhere")),
                "--authorization-mode=Webhook",
            ]),
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    for words in ["a.kubeconfig: current-context: there is no single context", "nowhere: cannot be read"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
