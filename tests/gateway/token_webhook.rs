//! `--authentication-token-webhook-config-file`: token authentication by a webhook.

use serde_json::{Value, json};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{Client, Read, get, sample};
use crate::reviewer::{Reply, Reviewer, failure, token};
use crate::scene::{Scene, THINGS};
use crate::world::World;

struct Stage {
    scene: Scene,
    backend: Backend,
    webhook: Reviewer,
    api_server: Reviewer,
}

fn holder(name: &str) -> Reply {
    token(json!({"authenticated": true, "user": {"username": name, "groups": ["hooked"]}}))
}

fn unknown() -> Reply {
    token(json!({"authenticated": false}))
}

impl Stage {
    /// A webhook that knows `hooked`, and an API server that knows `good`.
    async fn set(more: &[&str]) -> Stage {
        let world = World::new();
        let (webhook, api_server) = (Reviewer::start(&world).await, Reviewer::start(&world).await);
        webhook.behave(|question| if question["spec"]["token"] == "hooked" { holder("henry") } else { unknown() });
        let backend = Backend::start(&world, Settings::http2(), |_| async { answer(200, "{}") }).await;
        std::fs::write(world.path("tokens.csv"), "static,stan,1\n").unwrap();
        let flags = [
            format!("--token-auth-file={}", world.path("tokens.csv").display()),
            format!("--authentication-kubeconfig={}", api_server.write_kubeconfig(&world, "api", "")),
            format!("--authentication-token-webhook-config-file={}", webhook.write_kubeconfig(&world, "hook", "/who")),
            "--authentication-skip-lookup".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let scene = Scene::with(world, &[&backend], &[], &flags);
        Stage { scene, backend, webhook, api_server }
    }

    async fn ask(&self, token: &str) -> Read {
        let client = Client::http1(&self.scene.world, &self.scene.gateway, None).await;
        client.ask(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await
    }

    /// Whom the backend sees.
    async fn who(&self, token: &str) -> String {
        let read = self.ask(token).await;
        assert_eq!(read.status, 200, "{token}: {}", read.text());
        self.backend.last().all("x-remote-user").join(",")
    }

    fn counts(&self) -> (usize, usize) {
        (self.webhook.count(), self.api_server.count())
    }
}

#[tokio::test]
async fn it_is_asked_after_files_and_before_the_api_server() {
    let stage = Stage::set(&["--authentication-token-webhook-cache-ttl=1h"]).await;
    assert_eq!(stage.who("static").await, "stan");
    assert_eq!(stage.counts(), (0, 0));
    for _ in 0..2 {
        assert_eq!(stage.who("hooked").await, "henry");
        assert_eq!(stage.backend.last().all("x-remote-group"), ["hooked", "system:authenticated"]);
        assert_eq!(stage.counts(), (1, 0), "asked once");
    }
    assert_eq!(
        stage.webhook.last(),
        (
            "/who?timeout=10s".to_owned(),
            json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1beta1", "metadata": {},
                "spec": {"token": "hooked"}, "status": {"user": {}}})
        )
    );
    for _ in 0..2 {
        assert_eq!(stage.who("good").await, "tina");
        stage.ask("bad").await.refused(401, "Unauthorized");
    }
    assert_eq!(stage.counts(), (3, 2), "what nobody holds is remembered, too");
    let delegated = "apiserver_delegated_authn_request_total{code=\"201\"}";
    assert_eq!(sample(&stage.scene.gateway, delegated).await, Some(2.0));
    let fetched = "authentication_token_cache_fetch_total{status=\"ok\"}";
    assert_eq!(sample(&stage.scene.gateway, fetched).await, Some(5.0));
}

#[tokio::test]
async fn what_it_cannot_say_others_may() {
    let stage = Stage::set(&["--anonymous-auth", "--authentication-token-webhook-version=v1"]).await;
    for reply in [failure(403, "Forbidden"), Reply::Text(200, "secret words"), token(json!({"error": "secret words"}))]
    {
        stage.webhook.behave(move |_| reply.clone());
        assert_eq!(stage.who("good").await, "tina");
        let refused = stage.ask("hooked").await;
        refused.refused(401, "Unauthorized");
        assert!(!refused.text().contains("secret"));
    }
    assert_eq!(stage.webhook.last().1["apiVersion"], "authentication.k8s.io/v1");
}

#[tokio::test]
async fn a_token_for_somebody_else_is_nobody_s() {
    let stage = Stage::set(&["--api-audiences=us,others"]).await;
    stage.webhook.behave(|question: &Value| {
        let mut audiences = json!(["them"]);
        if question["spec"]["token"] == "ours" {
            audiences = json!(["them", "us"]);
        }
        let user = json!({"username": "henry"});
        token(json!({"authenticated": true, "user": user, "audiences": audiences}))
    });
    stage.ask("theirs").await.refused(401, "Unauthorized");
    assert_eq!(stage.who("ours").await, "henry");
    assert_eq!(stage.webhook.last().1["spec"]["audiences"], json!(["us", "others"]));
}
