//! CAs and request-header settings from ConfigMap extension-apiserver-authentication, at start and on change.
//!
//! The gateway listens only after the review server has answered, which therefore runs on a thread of its own.

use serde_json::{Value, json};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{Client, Read, get};
use crate::reviewer::{ConfigMap, Reviewer};
use crate::scene::{THINGS, annotated};
use crate::world::{Gateway, World, eventually, narthex};

struct Stage {
    world: World,
    reviewer: Reviewer,
    backend: Backend,
}

impl Stage {
    async fn set() -> Stage {
        let world = World::new();
        let backend = Backend::start(&world, Settings::http2(), |_| async { answer(200, "{}") }).await;
        let manifests = world.manifests("things.example.com", "v1", &[backend.address], &annotated(&[]));
        world.registry("things.yaml", &manifests);
        let reviewer = Reviewer::start(&world).await;
        Stage { world, reviewer, backend }
    }

    /// Without the files that would say whom to believe.
    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let kubeconfig = format!("--authentication-kubeconfig={}", self.world.path("reviewer.kubeconfig").display());
        let mut arguments = self.world.arguments(more);
        arguments.retain(|it| !it.starts_with("--client-ca-file") && !it.starts_with("--requestheader-"));
        arguments.push(kubeconfig);
        arguments
    }

    /// What kube-apiserver writes, with some of it otherwise.
    fn data(&self, otherwise: &[(&str, Value)]) -> ConfigMap {
        let mut data = json!({
            "client-ca-file": self.world.read("client-ca.crt"),
            "requestheader-client-ca-file": self.world.read("requestheader-ca.crt"),
            "requestheader-username-headers": r#"["X-Remote-User"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group"]"#,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
            "requestheader-allowed-names": r#"["outer-proxy"]"#,
        });
        for (key, value) in otherwise {
            data[key] = value.clone();
        }
        ConfigMap::Says(data)
    }

    async fn as_jane(&self, gateway: &Gateway) -> Read {
        let jane = self.world.user("jane", &["devs"]);
        Client::http1(&self.world, gateway, Some(&jane)).await.get(THINGS).await
    }

    async fn through_proxy(&self, gateway: &Gateway, name: &str, headers: &[(&str, &str)]) -> Read {
        let proxy = self.world.front_proxy(name);
        Client::http1(&self.world, gateway, Some(&proxy)).await.ask(get(THINGS, headers)).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configmap_says_whom_to_believe_and_is_followed() {
    let stage = Stage::set().await;
    stage.reviewer.config_map(stage.data(&[]));
    let gateway = Gateway::start(&stage.arguments(&[]));
    let jane = Client::http2(&stage.world, &gateway, Some(&stage.world.user("jane", &["devs"]))).await;
    assert_eq!(jane.get(THINGS).await.status, 200);
    assert_eq!(stage.through_proxy(&gateway, "outer-proxy", &[("x-remote-user", "tom")]).await.status, 200);
    assert_eq!(stage.backend.last().all("x-remote-user"), ["tom"]);
    assert_eq!(stage.through_proxy(&gateway, "stranger", &[("x-remote-user", "tom")]).await.status, 401);

    // Other names, in the same authorities: the new ones count, the old ones are gone from every request.
    stage.reviewer.config_map(stage.data(&[
        ("requestheader-username-headers", json!(r#"["X-Their-User"]"#)),
        ("requestheader-allowed-names", json!(r#"["another"]"#)),
    ]));
    let headers = [("x-their-user", "tim"), ("x-remote-user", "root")];
    eventually("the new names", async || {
        (stage.through_proxy(&gateway, "another", &headers).await.status == 200).then_some(())
    })
    .await;
    let seen = stage.backend.last();
    assert_eq!((seen.all("x-remote-user"), seen.all("x-their-user")), (vec!["tim".to_owned()], Vec::new()));
    assert_eq!(stage.through_proxy(&gateway, "outer-proxy", &headers).await.status, 401);

    // A mistake keeps what was good.
    stage.reviewer.config_map(stage.data(&[("requestheader-username-headers", json!("no list"))]));
    gateway.said(&["has invalid values", "is not a JSON list"]).await;
    assert_eq!(stage.through_proxy(&gateway, "another", &headers).await.status, 200);

    // An authority that is taken away is not believed any more, on the connections that stand, too.
    stage.reviewer.config_map(stage.data(&[("client-ca-file", json!(""))]));
    eventually("jane not to be believed", async || {
        let refused = match jane.send(get(THINGS, &[])).await {
            Ok(answer) => answer.status() == 401,
            // Her connection was closed for it.
            Err(_) => true,
        };
        refused.then_some(())
    })
    .await;
    assert_eq!(stage.as_jane(&gateway).await.status, 401);

    // And back; then it is deleted, and believed for its grace.
    stage.reviewer.config_map(stage.data(&[]));
    eventually("jane to be believed again", async || (stage.as_jane(&gateway).await.status == 200).then_some(())).await;
    stage.reviewer.config_map(ConfigMap::Gone);
    gateway.said(&["was deleted; its CAs stay trusted during the grace period"]).await;
    assert_eq!(stage.as_jane(&gateway).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_that_fails_ends_the_start_unless_tolerated() {
    let stage = Stage::set().await;
    stage.reviewer.config_map(ConfigMap::Forbidden);
    let output = narthex(&[vec!["gateway".to_owned()], stage.arguments(&[])].concat());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("Unable to get configmap/extension-apiserver-authentication in kube-system.  Usually fixed by"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_tolerated_at_first_is_believed_when_it_comes() {
    let stage = Stage::set().await;
    stage.reviewer.config_map(ConfigMap::Forbidden);
    let gateway = Gateway::start(&stage.arguments(&["--authentication-tolerate-lookup-failure"]));
    gateway.said(&["Continuing without authentication configuration"]).await;
    assert_eq!(stage.as_jane(&gateway).await.status, 401);
    stage.reviewer.config_map(stage.data(&[]));
    eventually("jane to be believed", async || (stage.as_jane(&gateway).await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_count_before_the_cluster_and_a_lookup_may_be_skipped() {
    let stage = Stage::set().await;
    let other = narthex::tls::Authority::new("other", std::time::SystemTime::now()).unwrap().1.certificate;
    stage.reviewer.config_map(stage.data(&[("client-ca-file", json!(other))]));
    let client_ca = format!("--client-ca-file={}", stage.world.path("client-ca.crt").display());
    let mut arguments = stage.arguments(&[]);
    arguments.push(client_ca);
    let gateway = Gateway::start(&arguments);
    assert_eq!(stage.as_jane(&gateway).await.status, 200);
    assert_eq!(stage.through_proxy(&gateway, "outer-proxy", &[("x-remote-user", "tom")]).await.status, 200);
    arguments.push("--authentication-skip-lookup".to_owned());
    let gateway = Gateway::start(&arguments);
    assert_eq!(stage.as_jane(&gateway).await.status, 200);
    assert_eq!(stage.through_proxy(&gateway, "outer-proxy", &[("x-remote-user", "tom")]).await.status, 401);
}
