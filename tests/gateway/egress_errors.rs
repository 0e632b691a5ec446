//! Errors of unusable egress proxies and unreadable egress configuration files.

use std::time::SystemTime;

use crate::backend::{Backend, Settings, json};
use crate::client::{admin, get};
use crate::egress::{AWAY, selection, selections, to};
use crate::proxies::{Kind, Proxy};
use crate::refused::says;
use crate::scene::{Scene, THINGS, register};
use crate::world::{World, eventually, narthex};

fn scene(world: World, text: &str) -> Scene {
    register(&world, &[AWAY.parse().unwrap()], &[]);
    let flag = format!("--egress-selector-config-file={}", selections(&world, text).display());
    Scene::of(world, &[&flag])
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_proxy_that_refuses_our_client_certificate_is_told_as_that() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::http2(), async |_| json(200, "{}")).await;
    let pair = world.backend_pair(&["proxy.example"]);
    let address = "127.0.0.1:0".parse().unwrap();
    let proxy = Proxy::over_tcp(Kind::Connect, Some((&world, &pair)), address, to(backend.address)).await;
    // It believes those of the client authority.
    let request = narthex::tls::Request::client("narthex", &[]);
    world.keep("egress", &world.request_header.issue(&request, SystemTime::now()).unwrap());
    let tls = ", tlsConfig: {caBundle: backend-ca.crt, clientCert: egress.crt, clientKey: egress.key, tlsServerName: proxy.example}";
    let url = format!("https://{}", proxy.address);
    let scene = scene(world, &selection("cluster", "HTTPConnect", &url, tls));
    let refused = scene.http2().await.get(THINGS).await;
    assert!(refused.status.is_server_error(), "{}", refused.status);
    says(&refused.json(), "ProxyCredentialsRefused");
    let report = admin(&scene.gateway, get("/status.json", &[])).await.json();
    let state = report["egress"][0]["state"].as_str().unwrap();
    assert!(state.contains("ProxyCredentialsRefused") && state.contains("our client certificate"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_proxy_that_is_not_there_is_named_once() {
    let world = World::new();
    let gone = Proxy::connect(|_| unreachable!("it is gone")).await.stop().await;
    let scene = scene(world, &selection("cluster", "HTTPConnect", &format!("http://{gone}"), ""));
    assert_eq!(scene.http2().await.get(THINGS).await.status, 503);
    let state = eventually("the proxy to be known to fail", async || {
        let report = admin(&scene.gateway, get("/status.json", &[])).await.json();
        report["egress"][0]["state"].as_str().filter(|state| state.starts_with("fails")).map(str::to_owned)
    })
    .await;
    assert_eq!(state.matches(&gone.to_string()).count(), 1, "{state}");
    assert!(state.contains("refused"), "{state}");
}

#[test]
fn egress_file_that_cannot_be_read_is_named_with_its_field() {
    let world = World::new();
    let tls = ", tlsConfig: {caBundle: nowhere.crt}";
    let path = selections(&world, &selection("cluster", "HTTPConnect", "https://proxy.example", tls));
    let mut arguments = vec!["gateway".to_owned()];
    arguments.extend(world.arguments(&[&format!("--egress-selector-config-file={}", path.display())]));
    let output = narthex(&arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let field = "egressSelections[cluster].connection.transport.tcp.tlsConfig.caBundle";
    let file = world.path("nowhere.crt");
    assert!(text.contains(&format!("{}: {field}: {}: cannot be read", path.display(), file.display())), "{text}");
}
