//! `--authentication-token-webhook-config-file`: token authentication by a webhook.

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as answer};
use crate::support::client::{Client, ClientResponse, get, metric_value};
use crate::support::fake_review_server::{FakeReviewServer, ReviewReply, failure_reply, token_review_reply};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

struct TokenWebhookFixture {
    scene: GatewayFixture,
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
        let world = TestEnvironment::new();
        let (webhook, api_server) = (FakeReviewServer::start(&world).await, FakeReviewServer::start(&world).await);
        webhook.set_behavior(|question| {
            if question["spec"]["token"] == "hooked" { authenticated_reply("henry") } else { unauthenticated_reply() }
        });
        let backend = Backend::start(&world, BackendSettings::http2(), |_| async { answer(200, "{}") }).await;
        std::fs::write(world.path("tokens.csv"), "static,stan,1\n").unwrap();
        let flags = [
            format!("--token-auth-file={}", world.path("tokens.csv").display()),
            format!("--authentication-kubeconfig={}", api_server.write_kubeconfig(&world, "api", "")),
            format!("--authentication-token-webhook-config-file={}", webhook.write_kubeconfig(&world, "hook", "/who")),
            "--authentication-skip-lookup".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let scene = GatewayFixture::with_flags(world, &[&backend], &[], &flags);
        TokenWebhookFixture { scene, backend, webhook, api_server }
    }

    async fn get_with_token(&self, token: &str) -> ClientResponse {
        let client = Client::http1(&self.scene.world, &self.scene.gateway, None).await;
        client.send_and_read(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await
    }

    /// Whom the backend sees.
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
    let stage = TokenWebhookFixture::new(&["--authentication-token-webhook-cache-ttl=1h"]).await;
    assert_eq!(stage.user_of_token("static").await, "stan");
    assert_eq!(stage.review_counts(), (0, 0));
    for _ in 0..2 {
        assert_eq!(stage.user_of_token("hooked").await, "henry");
        assert_eq!(stage.backend.last_request().header_values("x-remote-group"), ["hooked", "system:authenticated"]);
        assert_eq!(stage.review_counts(), (1, 0), "asked once");
    }
    assert_eq!(
        stage.webhook.last_review(),
        (
            "/who?timeout=10s".to_owned(),
            json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1beta1", "metadata": {},
                "spec": {"token": "hooked"}, "status": {"user": {}}})
        )
    );
    for _ in 0..2 {
        assert_eq!(stage.user_of_token("good").await, "tina");
        stage.get_with_token("bad").await.assert_failure(401, "Unauthorized");
    }
    assert_eq!(stage.review_counts(), (3, 2), "what nobody holds is remembered, too");
    let delegated = "apiserver_delegated_authn_request_total{code=\"201\"}";
    assert_eq!(metric_value(&stage.scene.gateway, delegated).await, Some(2.0));
    let fetched = "authentication_token_cache_fetch_total{status=\"ok\"}";
    assert_eq!(metric_value(&stage.scene.gateway, fetched).await, Some(5.0));
}

#[tokio::test]
async fn token_webhook_failure_falls_through_to_next_authenticator() {
    let stage = TokenWebhookFixture::new(&["--anonymous-auth", "--authentication-token-webhook-version=v1"]).await;
    for reply in [
        failure_reply(403, "Forbidden"),
        ReviewReply::Text(200, "secret words"),
        token_review_reply(json!({"error": "secret words"})),
    ] {
        stage.webhook.set_behavior(move |_| reply.clone());
        assert_eq!(stage.user_of_token("good").await, "tina");
        let refused = stage.get_with_token("hooked").await;
        refused.assert_failure(401, "Unauthorized");
        assert!(!refused.text().contains("secret"));
    }
    assert_eq!(stage.webhook.last_review().1["apiVersion"], "authentication.k8s.io/v1");
}

#[tokio::test]
async fn token_webhook_audience_mismatch_is_401() {
    let stage = TokenWebhookFixture::new(&["--api-audiences=us,others"]).await;
    stage.webhook.set_behavior(|question: &Value| {
        let mut audiences = json!(["them"]);
        if question["spec"]["token"] == "ours" {
            audiences = json!(["them", "us"]);
        }
        let user = json!({"username": "henry"});
        token_review_reply(json!({"authenticated": true, "user": user, "audiences": audiences}))
    });
    stage.get_with_token("theirs").await.assert_failure(401, "Unauthorized");
    assert_eq!(stage.user_of_token("ours").await, "henry");
    assert_eq!(stage.webhook.last_review().1["spec"]["audiences"], json!(["us", "others"]));
}
