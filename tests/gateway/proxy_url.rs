//! A kubeconfig's `proxy-url`: used for all connections to its API server, and for no others.

use serde_json::{Value, json};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{Client, get};
use crate::proxies::{Asked, Deed, Proxy};
use crate::reviewer::Reviewer;
use crate::scene::{Scene, THINGS, register};
use crate::world::{Gateway, World, eventually, narthex};

/// Where no packet gets (RFC 5737).
const AWAY: &str = "192.0.2.20:6443";

/// Writes `kubeconfig` anew with another server, expected to be called 127.0.0.1 all the same, and this proxy.
fn move_away(world: &World, kubeconfig: &str, proxy_url: &str) {
    let path = world.path(kubeconfig);
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let cluster = &mut document["clusters"][0]["cluster"];
    cluster["server"] = json!(format!("https://{AWAY}"));
    cluster["tls-server-name"] = json!("127.0.0.1");
    cluster["proxy-url"] = json!(proxy_url);
    let hidden = world.path(&format!(".{kubeconfig}.tmp"));
    std::fs::write(&hidden, document.to_string()).unwrap();
    std::fs::rename(hidden, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_and_the_delegate_are_reached_by_it() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::http2(), |_| async { answer(200, "{}") }).await;
    let reviewer = Reviewer::start(&world).await;
    let delegate = Backend::start(&world, Settings { names: vec!["127.0.0.1"], ..Settings::http2() }, |_| async {
        answer(200, "the delegate")
    })
    .await;
    let (to_reviewer, to_delegate) = (reviewer.address(), delegate.address);
    let first = Proxy::socks5(move |_: &Asked| Deed::Connect(to_reviewer)).await;
    let second = Proxy::connect(move |_: &Asked| Deed::Connect(to_delegate)).await;
    reviewer.write_kubeconfig(&world, "delegate", "");
    move_away(&world, "reviewer.kubeconfig", &format!("socks5h://al%20ice:p%40ss@{}", first.address));
    move_away(&world, "delegate.kubeconfig", &format!("http://{}/ignored", second.address));
    let flags = ["authentication", "delegate"].map(|flag| {
        let file = if flag == "delegate" { flag } else { "reviewer" };
        format!("--{flag}-kubeconfig={}", world.path(&format!("{file}.kubeconfig")).display())
    });
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let scene = Scene::with(world, &[&backend], &[], &flags);
    let token = [("authorization", "Bearer good")];
    let client = scene.http1().await;
    assert_eq!(client.ask(get(THINGS, &[])).await.status, 200);
    let anybody = Client::http1(&scene.world, &scene.gateway, None).await;
    assert_eq!(anybody.ask(get(THINGS, &token)).await.status, 200);
    assert_eq!(first.targets(), [AWAY]);
    assert!(first.asked().iter().all(|asked| asked.credentials == "al ice:p@ss"), "{:?}", first.asked());
    let answer = client.ask(get("/version", &[])).await;
    assert_eq!(answer.text(), "the delegate");
    assert_eq!(second.targets(), [AWAY]);

    // The file is followed, and the proxy with it.
    let third = Proxy::connect(move |_: &Asked| Deed::Connect(to_delegate)).await;
    move_away(&scene.world, "delegate.kubeconfig", &format!("http://jane:secret@{}", third.address));
    eventually("the other proxy to be used", async || {
        assert_eq!(client.ask(get("/version", &[])).await.text(), "the delegate");
        third.asked().first().map(|asked| assert_eq!(asked.credentials, "jane:secret"))
    })
    .await;
    assert!(!scene.gateway.log().join("\n").contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environments_proxy_is_gone_through_if_asked() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::http2(), |_| async { answer(200, "from afar") }).await;
    let near = Backend::start(&world, Settings::http2(), |_| async { answer(200, "from here") }).await;
    let to = backend.address;
    let proxy = Proxy::connect(move |_: &Asked| Deed::Connect(to)).await;
    register(&world, &[AWAY.parse().unwrap()], &[]);
    let url = format!("jane:p%40ss@{}", proxy.address);
    let environment = [("https_proxy", url.as_str()), ("NO_PROXY", ".example,192.0.2.99")];
    let jane = world.user("jane", &[]);
    let arguments = world.arguments(&["--proxy-from-environment"]);
    let gateway = Gateway::start_in("gateway", &arguments, &environment);
    let client = Client::http2(&world, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.text(), "from afar");
    assert_eq!(proxy.targets(), [AWAY]);
    assert!(proxy.asked().iter().all(|asked| asked.credentials == "jane:p@ss"));
    // This machine itself is never asked of it.
    register(&world, &[near.address], &[]);
    eventually("the backend on this machine to answer", async || {
        (client.get(THINGS).await.text() == "from here").then_some(())
    })
    .await;
    assert_eq!(proxy.targets(), [AWAY]);
    drop(gateway);

    // A selection of that name comes first.
    let direct = "egressSelections: [{name: cluster, connection: {proxyProtocol: Direct}}]";
    let text = format!("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n{direct}\n");
    std::fs::write(world.path("egress.yaml"), text).unwrap();
    register(&world, &[AWAY.parse().unwrap()], &[("connect-timeout", "100ms")]);
    let file = format!("--egress-selector-config-file={}", world.path("egress.yaml").display());
    let gateway = Gateway::start_in("gateway", &world.arguments(&["--proxy-from-environment", &file]), &environment);
    let before = proxy.asked().len();
    let client = Client::http2(&world, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.status, 503);
    assert_eq!(proxy.asked().len(), before);
}

#[tokio::test]
async fn one_that_is_none_is_told_as_kubectl_tells_it() {
    let world = World::new();
    Reviewer::start(&world).await;
    for (url, expected) in [
        ("127.0.0.1:18802", "could not parse: 127.0.0.1:18802"),
        ("socks4://u:secret@h", "unsupported scheme \"socks4\", must be http, https, or socks5"),
    ] {
        move_away(&world, "reviewer.kubeconfig", url);
        let kubeconfig = world.path("reviewer.kubeconfig").display().to_string();
        let flags = world.arguments(&[&format!("--authentication-kubeconfig={kubeconfig}")]);
        let line: Vec<String> = ["check".to_owned(), "gateway".to_owned()].into_iter().chain(flags).collect();
        let output = narthex(&line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("{kubeconfig}: clusters[0].cluster.proxy-url: {expected}")), "{text}");
    }
}
