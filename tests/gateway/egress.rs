//! Ways to backends and control planes: through proxies, and nothing around them.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::backend::{Backend, Settings, json, watched};
use crate::client::{get, sample};
use crate::proxies::{Asked, Deed, Proxy};
use crate::scene::{Scene, THINGS, register, watch};
use crate::world::{World, eventually};

/// Where no packet gets (RFC 5737): what is registered here is reached by proxies only.
const AWAY: &str = "192.0.2.10:8443";

/// Writes our own kind of file with these selections, as YAML.
fn selections(world: &World, text: &str) -> PathBuf {
    let path = world.path("egress.yaml");
    let text = format!("apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\negressSelections:\n{text}");
    let hidden = world.path(".egress.tmp");
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(hidden, &path).unwrap();
    path
}

/// A selection by one proxy on TCP.
fn selection(name: &str, protocol: &str, url: &str, more: &str) -> String {
    format!("- name: {name}\n  connection: {{proxyProtocol: {protocol}, transport: {{tcp: {{url: {url}{more}}}}}}}\n")
}

/// A gateway with `things` registered at `address`, and these selections.
fn scene(world: World, address: &str, annotations: &[(&str, &str)], text: &str) -> Scene {
    register(&world, &[address.parse().unwrap()], annotations);
    let flag = format!("--egress-selector-config-file={}", selections(&world, text).display());
    Scene::of(world, &[&flag])
}

/// One who connects to `address` whatever is asked for.
fn to(address: SocketAddr) -> impl Fn(&Asked) -> Deed + Send + Sync + 'static {
    move |_| Deed::Connect(address)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_watches_and_probes_go_through_a_socks5_proxy() {
    let world = World::new();
    let (backend, _writers) = watched(&world, Settings::default()).await;
    let proxy = Proxy::socks5(to(backend.address)).await;
    let url = format!("socks5://jane:secret@{}", proxy.address);
    let scene = scene(world, AWAY, &[], &selection("cluster", "SOCKS5", &url, ""));
    let client = scene.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let _watch = watch(&client).await;
    // The address is told as it is, and so is who we are.
    assert_eq!(proxy.targets(), [AWAY]);
    assert!(proxy.asked().iter().all(|asked| asked.credentials == "jane:secret"));
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";
    let condition = eventually("a probe through the proxy", async || {
        let status = client.get(path).await.json();
        (status["status"]["conditions"][0]["status"] == "True").then_some(status)
    });
    condition.await;
    let started =
        sample(&scene.gateway, "apiserver_egress_dialer_dial_start_total{protocol=\"socks5\",transport=\"tcp\"}");
    assert!(started.await.unwrap() >= 2.0);
    // No secret in the log, nor an address of the proxy's target in answers.
    assert!(!scene.gateway.log().join("\n").contains("secret"));
}
