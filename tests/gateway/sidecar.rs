//! The sidecar in front of explicit upstreams, with authentication and authorization by a kube-apiserver.

use serde_json::json;

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{Client, Read, admin, get};
use crate::reviewer::{Reviewer, access, kindly};
use crate::world::{Gateway, World, eventually, narthex};

pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) reviewer: Reviewer,
    pub(crate) sidecar: Gateway,
}

/// A sidecar's command line: `upstreams` by path, trusted as the world's backends are.
pub(crate) fn arguments(world: &World, upstreams: &[(&str, &Backend)], more: &[&str]) -> Vec<String> {
    let file = |name: &str| world.path(name).display().to_string();
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
pub(crate) async fn server(world: &World, name: &'static str) -> Backend {
    let settings = Settings { names: vec!["127.0.0.1"], all: true, ..Settings::default() };
    Backend::start(world, settings, move |_| async move { answer(200, name) }).await
}

impl Stage {
    async fn set(upstreams: &[(&str, &Backend)], world: World, more: &[&str]) -> Stage {
        Stage::set_as("sidecar", upstreams, world, more).await
    }

    /// The same under another name.
    pub(crate) async fn set_as(name: &str, upstreams: &[(&str, &Backend)], world: World, more: &[&str]) -> Stage {
        let reviewer = Reviewer::start(&world).await;
        let sidecar = Gateway::start_as(name, &arguments(&world, upstreams, more));
        Stage { world, reviewer, sidecar }
    }

    pub(crate) async fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Read {
        Client::http1(&self.world, &self.sidecar, None).await.ask(get(path, headers)).await
    }
}

pub(crate) const TINA: (&str, &str) = ("authorization", "Bearer good");

#[tokio::test]
async fn who_may_is_relayed_with_an_identity_that_can_be_believed() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let stage = Stage::set(&[("/", &server)], world, &[]).await;
    let forged = [TINA, ("x-remote-user", "root"), ("x-remote-group", "system:masters"), ("x_remote_user", "root")];
    let said = stage.ask("/apis/example.com/v1/namespaces/shop/things?limit=5", &forged).await;
    assert_eq!(said.status, 200, "{}", said.text());
    let seen = server.last();
    assert_eq!(seen.uri.path_and_query().unwrap(), "/apis/example.com/v1/namespaces/shop/things?limit=5");
    assert_eq!(seen.all("x-remote-user"), ["tina"]);
    assert_eq!(seen.all("x-remote-uid"), ["t-1"]);
    assert_eq!(seen.all("x-remote-group"), ["devs", "system:authenticated"]);
    assert_eq!((seen.all("x_remote_user"), seen.all("authorization")), (vec![], vec![]));
    assert_eq!(seen.peer, "narthex-front-proxy");
    let asked = stage.reviewer.asked("SubjectAccessReview").pop().unwrap();
    let expected = json!({"namespace": "shop", "verb": "list", "group": "example.com", "version": "v1",
        "resource": "things"});
    assert_eq!(asked["spec"]["resourceAttributes"], expected);
}

#[tokio::test]
async fn nobody_gets_through_who_may_not() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let stage = Stage::set(&[("/", &server)], world, &[]).await;
    stage.ask("/metrics", &[]).await.refused(401, "Unauthorized");
    stage.ask("/metrics", &[("authorization", "Bearer wrong")]).await.refused(401, "Unauthorized");
    stage.reviewer.behave(|question| match question["kind"].as_str() {
        Some("SubjectAccessReview") => access(json!({"allowed": false, "reason": "not hers"})),
        _ => kindly(question),
    });
    let status = stage.ask("/metrics", &[TINA]).await.refused(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("User \"tina\" cannot get path \"/metrics\"") && message.contains("not hers"),
        "{message}"
    );
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_front_proxy_says_who_asks() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let outer = world.front_proxy("outer-proxy");
    let stage = Stage::set(&[("/", &server)], world, &[]).await;
    let client = Client::http2(&stage.world, &stage.sidecar, Some(&outer)).await;
    let said = client.ask(get("/apis/example.com/v1", &[("x-remote-user", "jane"), ("x-remote-group", "devs")])).await;
    assert_eq!(said.status, 200, "{}", said.text());
    assert_eq!(server.last().all("x-remote-user"), ["jane"]);
    assert_eq!(stage.reviewer.asked("TokenReview").len(), 0);
}

#[tokio::test]
async fn the_longest_path_says_whose_a_request_is() {
    let world = World::new();
    let (all, metrics, deep) =
        (server(&world, "all").await, server(&world, "metrics").await, server(&world, "deep").await);
    let upstreams = [("/", &all), ("/metrics/deep", &deep), ("/metrics/", &metrics)];
    let stage = Stage::set(&upstreams, world, &[]).await;
    for (path, whose) in [
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
        let said = stage.ask(path, &[TINA]).await;
        assert_eq!((said.status.as_u16(), &*said.text()), (200, whose), "{path}");
    }
}

#[tokio::test]
async fn with_a_certificate_nothing_is_written() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let reviewer = Reviewer::start(&world).await;
    let mut line = arguments(&world, &[("/", &server)], &[]);
    line.retain(|argument| !argument.starts_with("--data-dir"));
    // Nowhere to write to is known, either.
    let sidecar = Gateway::start_in("sidecar", &line, &[]);
    let stage = Stage { world, reviewer, sidecar };
    assert_eq!(stage.ask("/books", &[TINA]).await.status, 200);
    assert!(!stage.world.path("data").exists());
    assert_eq!(stage.reviewer.asked("TokenReview").len(), 1);
}

#[tokio::test]
async fn a_path_without_an_upstream_is_nowhere() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let stage = Stage::set(&[("/metrics", &server)], world, &[]).await;
    for path in ["/", "/apis", "/version", "/api/v1/pods", "/openapi/v3"] {
        stage.ask(path, &[TINA]).await.refused(404, "NotFound");
    }
    assert_eq!(stage.ask("/metrics", &[TINA]).await.status, 200);
}

#[tokio::test]
async fn health_is_ours_and_needs_nobody() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let stage = Stage::set(&[("/", &server)], world, &[]).await;
    eventually("readiness", async || (stage.ask("/readyz", &[]).await.status == 200).then_some(())).await;
    assert_eq!(stage.ask("/livez", &[]).await.text(), "ok");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn it_lives_while_what_it_guards_is_away() {
    let world = World::new();
    let first = server(&world, "first").await;
    let stage = Stage::set(&[("/", &first)], world, &[]).await;
    let ready = async |code: u16| {
        eventually("what /readyz says", async || {
            let said = stage.ask("/readyz", &[]).await;
            (said.status == code).then(|| said.text())
        })
        .await
    };
    assert_eq!(ready(200).await, "ok");
    let address = first.stop().await;
    let said = ready(500).await;
    assert!(said.contains("[-]upstream failed"), "{said}");
    assert_eq!(stage.ask("/livez", &[]).await.status, 200);
    let status = stage.ask("/books", &[TINA]).await.refused(503, "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "ConnectionRefused", "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("(upstream /: ConnectionRefused)"), "{message}");
    let told: serde_json::Value = admin(&stage.sidecar, get("/status.json", &[])).await.json();
    assert_eq!(
        (&told["apiservices"][0]["name"], &told["apiservices"][0]["available"]),
        (&json!("/"), &json!(false)),
        "{told}"
    );
    assert_eq!(told["notReady"], json!(["upstream: /: ConnectionRefused (it accepts no connections)"]), "{told}");
    let settings = Settings { names: vec!["127.0.0.1"], all: true, address, ..Settings::default() };
    let _again = Backend::start(&stage.world, settings, |_| async { answer(200, "again") }).await;
    ready(200).await;
    let said = stage.ask("/books", &[TINA]).await;
    assert_eq!((said.status.as_u16(), &*said.text()), (200, "again"));
}

/// Who follows what is said comes to a sidecar that knows who asks.
#[test]
fn without_a_cluster_it_says_which_flag_names_one() {
    let world = World::new();
    std::fs::write(world.path("a.sock"), "").unwrap();
    let check = |more: &[&str]| {
        let mut line = ["check", "sidecar"].map(str::to_owned).to_vec();
        line.push(format!("--upstream=unix:{}", world.path("a.sock").display()));
        line.push(format!("--data-dir={}", world.path("data").display()));
        line.extend(more.iter().map(|more| (*more).to_owned()));
        let output = narthex(&line);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = check(&[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("--kubeconfig: required outside a pod") && said.lines().count() == 1, "{said}");
    let cluster = world.path("cluster.kubeconfig");
    let text = "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: \
                {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: secret}}]}";
    std::fs::write(&cluster, text).unwrap();
    let asked = |flag: &str| format!("--{flag}={}", cluster.display());
    // Nobody could say who they are.
    let (status, said) = check(&[&asked("authorization-kubeconfig")]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("--kubeconfig: required for authentication") && said.lines().count() == 1, "{said}");
    // Somebody can, but nobody of that cluster.
    let authority = format!("--client-ca-file={}", world.path("client-ca.crt").display());
    let (status, said) = check(&[&asked("authorization-kubeconfig"), &authority]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("warning: --authorization-kubeconfig: tokens of that cluster are refused"), "{said}");
    for more in [vec![asked("kubeconfig")], vec![asked("authorization-kubeconfig"), asked("authentication-kubeconfig")]]
    {
        let more: Vec<_> = more.iter().map(String::as_str).collect();
        assert_eq!(check(&more), (Some(0), String::new()));
    }
}

#[test]
fn mistakes_come_all_at_once() {
    let world = World::new();
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
    .chain([format!("--data-dir={}", world.path("data").display())])
    .collect();
    let output = narthex(&line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
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
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
}
