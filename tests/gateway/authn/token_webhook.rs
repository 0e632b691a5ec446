//! `--authentication-token-webhook-config-file`: token authentication by a webhook.

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, get, metric_value};
use crate::support::fake_review_server::{FakeReviewServer, ReviewReply, failure_reply, token_review_reply};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

struct TokenWebhookFixture {
    setup: GatewayFixture,
    backend: Backend,
    webhook: FakeReviewServer,
    api_server: FakeReviewServer,
}

fn authenticated_reply(name: &str) -> ReviewReply {
    token_review_reply(json!({"authenticated": true, "user": {"username": name, "groups": ["hooked"]}}))
}

fn unauthenticated_reply() -> ReviewReply {
    token_review_reply(json!({"authenticated": false}))
}

impl TokenWebhookFixture {
    /// A webhook that knows `hooked`, and an API server that knows `start_things_backend`.
    async fn new(more: &[&str]) -> TokenWebhookFixture {
        let environment = TestEnvironment::new();
        let (webhook, api_server) =
            (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
        webhook.set_behavior(|question| {
            if question["spec"]["token"] == "hooked" { authenticated_reply("henry") } else { unauthenticated_reply() }
        });
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        std::fs::write(environment.path("tokens.csv"), "static,stan,1\n").unwrap();
        let flags = [
            format!("--token-auth-file={}", environment.path("tokens.csv").display()),
            format!("--authentication-kubeconfig={}", api_server.write_kubeconfig(&environment, "api", "")),
            format!(
                "--authentication-token-webhook-config-file={}",
                webhook.write_kubeconfig(&environment, "hook", "/who")
            ),
            "--authentication-skip-lookup".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        TokenWebhookFixture { setup, backend, webhook, api_server }
    }

    async fn get_with_token(&self, token: &str) -> ClientResponse {
        let client = Client::http1(&self.setup.environment, &self.setup.gateway, None).await;
        client.send_and_read(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await
    }

    /// User seen by the backend.
    async fn user_of_token(&self, token: &str) -> String {
        let read = self.get_with_token(token).await;
        assert_eq!(read.status, 200, "{token}: {}", read.text());
        self.backend.last_request().header_values("x-remote-user").join(",")
    }

    fn review_counts(&self) -> (usize, usize) {
        (self.webhook.review_count(), self.api_server.review_count())
    }
}

#[tokio::test]
async fn token_webhook_consulted_after_files_and_before_api_server() {
    let fixture = TokenWebhookFixture::new(&["--authentication-token-webhook-cache-ttl=1h"]).await;
    assert_eq!(fixture.user_of_token("static").await, "stan");
    assert_eq!(fixture.review_counts(), (0, 0));
    for _ in 0..2 {
        assert_eq!(fixture.user_of_token("hooked").await, "henry");
        assert_eq!(fixture.backend.last_request().header_values("x-remote-group"), ["hooked", "system:authenticated"]);
        assert_eq!(fixture.review_counts(), (1, 0), "asked once");
    }
    assert_eq!(
        fixture.webhook.last_review(),
        (
            "/who?timeout=10s".to_owned(),
            json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1beta1", "metadata": {},
                "spec": {"token": "hooked"}, "status": {"user": {}}})
        )
    );
    for _ in 0..2 {
        assert_eq!(fixture.user_of_token("good").await, "tina");
        fixture.get_with_token("bad").await.assert_failure(401, "Unauthorized");
    }
    assert_eq!(fixture.review_counts(), (3, 2), "rejected tokens are cached, too");
    let delegated = "apiserver_delegated_authn_request_total{code=\"201\"}";
    assert_eq!(metric_value(&fixture.setup.gateway, delegated).await, Some(2.0));
    let fetched = "authentication_token_cache_fetch_total{status=\"ok\"}";
    assert_eq!(metric_value(&fixture.setup.gateway, fetched).await, Some(5.0));
}

#[tokio::test]
async fn token_webhook_failure_falls_through_to_next_authenticator() {
    let fixture = TokenWebhookFixture::new(&["--anonymous-auth", "--authentication-token-webhook-version=v1"]).await;
    for reply in [
        failure_reply(403, "Forbidden"),
        ReviewReply::Text(200, "secret words"),
        token_review_reply(json!({"error": "secret words"})),
    ] {
        fixture.webhook.set_behavior(move |_| reply.clone());
        assert_eq!(fixture.user_of_token("good").await, "tina");
        let refused = fixture.get_with_token("hooked").await;
        refused.assert_failure(401, "Unauthorized");
        assert!(!refused.text().contains("secret"));
    }
    assert_eq!(fixture.webhook.last_review().1["apiVersion"], "authentication.k8s.io/v1");
}

#[tokio::test]
async fn token_webhook_audience_mismatch_is_401() {
    let fixture = TokenWebhookFixture::new(&["--api-audiences=us,others"]).await;
    fixture.webhook.set_behavior(|question: &Value| {
        let mut audiences = json!(["them"]);
        if question["spec"]["token"] == "ours" {
            audiences = json!(["them", "us"]);
        }
        let user = json!({"username": "henry"});
        token_review_reply(json!({"authenticated": true, "user": user, "audiences": audiences}))
    });
    fixture.get_with_token("theirs").await.assert_failure(401, "Unauthorized");
    assert_eq!(fixture.user_of_token("ours").await, "henry");
    assert_eq!(fixture.webhook.last_review().1["spec"]["audiences"], json!(["us", "others"]));
}
