//! Warnings about egress selections that are missing, unused or not answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::backend::{Backend, Settings, json};
use crate::client::{admin, get};
use crate::egress::{AWAY, selection, selections, to};
use crate::proxies::{Deed, Proxy};
use crate::scene::{Scene, THINGS, register};
use crate::world::{World, eventually, narthex};

async fn warnings(scene: &Scene) -> Vec<String> {
    let status = admin(&scene.gateway, get("/status.json", &[])).await.json();
    let all: Vec<String> = serde_json::from_value(status["registryWarnings"].clone()).unwrap();
    all.into_iter().filter(|warning| warning.starts_with("egress selection")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selection_that_is_misspelt_or_gone_is_told() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::http2(), async |_| json(200, "{}")).await;
    let proxy = Proxy::socks5(to(backend.address)).await;
    let through = |name| selection(name, "SOCKS5", &format!("socks5://{}", proxy.address), "");
    let direct = |name| format!("- name: {name}\n  connection: {{proxyProtocol: Direct}}\n");
    register(&world, &[backend.address], &[]);
    let file = selections(&world, &(through("clutser") + &direct("controlplane")));
    let flag = format!("--egress-selector-config-file={}", file.display());
    let mut arguments = vec!["check".to_owned(), "gateway".to_owned()];
    arguments.extend(world.arguments(&[&flag]));
    let output = narthex(&arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lacking = "egress selection cluster is not configured, so its traffic goes directly";
    assert!(said.contains(lacking) && !said.contains("selection controlplane is not there"), "{said}");

    let scene = Scene::of(world, &[&flag]);
    scene.gateway.said(&[lacking, "none of clutser, controlplane is misspelled"]).await;
    assert!(matches!(&warnings(&scene).await[..], [one] if one.contains(lacking)));
    assert_eq!(scene.http2().await.get(THINGS).await.status, 200);
    assert_eq!(proxy.asked(), []);

    selections(&scene.world, &(through("cluster") + &direct("controlplane")));
    scene.gateway.said(&["egress selection removed; its traffic now goes nowhere", "clutser"]).await;
    eventually("nothing to be odd", async || warnings(&scene).await.is_empty().then_some(())).await;
    selections(&scene.world, &direct("controlplane"));
    scene.gateway.said(&["egress selection removed; its traffic now goes directly", "cluster"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_answers_nobody_any_more_is_told() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::http1(), async |_| json(200, "{}")).await;
    let (address, silent) = (backend.address, Arc::new(AtomicBool::new(false)));
    let hangs = silent.clone();
    let judge = move |_: &_| if hangs.load(SeqCst) { Deed::Nothing } else { Deed::Connect(address) };
    let proxy = Proxy::socks5(judge).await;
    register(&world, &[AWAY.parse().unwrap()], &[]);
    std::fs::write(world.path("jane"), "jane:").unwrap();
    // Without a password, as Go's clients may be.
    let url = format!("socks5://{}", proxy.address);
    let text = selection("cluster", "SOCKS5", &url, ", credentialsFile: jane") + "  dialTimeout: 300ms\n";
    let flag = format!("--egress-selector-config-file={}", selections(&world, &text).display());
    let scene = Scene::of(world, &[&flag]);
    let client = scene.http2().await;
    eventually("the way", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert!(proxy.asked().iter().all(|asked| asked.credentials == "jane:"));
    let state = async || {
        let status = admin(&scene.gateway, get("/status.json", &[])).await.json();
        status["egress"][0]["state"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(state().await, "serves");
    silent.store(true, SeqCst);
    // What was open is closed, so that probes and requests dial anew.
    backend.stop().await;
    let told = eventually("the state", async || {
        client.get(THINGS).await;
        Some(state().await).filter(|state| state != "serves")
    });
    let told = told.await;
    assert!(told.starts_with("does not answer since 20") && told.contains("no answer within"), "{told}");
    scene.gateway.said(&["egress proxy does not answer; check that it runs", &proxy.address.to_string()]).await;
}
