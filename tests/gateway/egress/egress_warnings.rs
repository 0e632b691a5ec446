//! Warnings about egress selections that are missing, unused or not answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::egress::selections::{UNROUTABLE, connect_to, tcp_selection, write_selections};
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{admin_request, get};
use crate::support::fake_egress_proxy::{FakeEgressProxy, ProxyAction};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, register_things};

async fn warnings(fixture: &GatewayFixture) -> Vec<String> {
    let status = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    let all: Vec<String> = serde_json::from_value(status["registryWarnings"].clone()).unwrap();
    all.into_iter().filter(|warning| warning.starts_with("egress selection")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_misspelled_or_removed_selection_warned() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let proxy = FakeEgressProxy::start_socks5(connect_to(backend.address)).await;
    let through = |name| tcp_selection(name, "SOCKS5", &format!("socks5://{}", proxy.address), "");
    let direct = |name| format!("- name: {name}\n  connection: {{proxyProtocol: Direct}}\n");
    register_things(&environment, &[backend.address], &[]);
    let file = write_selections(&environment, &(through("clutser") + &direct("controlplane")));
    let flag = format!("--egress-selector-config-file={}", file.display());
    let mut arguments = vec!["check".to_owned(), "gateway".to_owned()];
    arguments.extend(environment.gateway_arguments(&[&flag]));
    let output = run_narthex(&arguments);
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output_text}");
    let lacking = "egress selection cluster is not configured, so its traffic goes directly";
    assert!(
        output_text.contains(lacking) && !output_text.contains("selection controlplane is not there"),
        "{output_text}"
    );

    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    fixture.gateway.wait_for_log(&[lacking, "none of clutser, controlplane is misspelled"]).await;
    assert!(matches!(&warnings(&fixture).await[..], [one] if one.contains(lacking)));
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 200);
    assert_eq!(proxy.requests(), []);

    write_selections(&fixture.environment, &(through("cluster") + &direct("controlplane")));
    fixture.gateway.wait_for_log(&["egress selection removed; its traffic now goes nowhere", "clutser"]).await;
    eventually("nothing to be odd", async || warnings(&fixture).await.is_empty().then_some(())).await;
    write_selections(&fixture.environment, &direct("controlplane"));
    fixture.gateway.wait_for_log(&["egress selection removed; its traffic now goes directly", "cluster"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_proxy_not_answering_reported() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |_| json_response(200, "{}")).await;
    let (address, silent) = (backend.address, Arc::new(AtomicBool::new(false)));
    let hangs = silent.clone();
    let policy = move |_: &_| if hangs.load(SeqCst) { ProxyAction::Hang } else { ProxyAction::Connect(address) };
    let proxy = FakeEgressProxy::start_socks5(policy).await;
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    std::fs::write(environment.path("jane"), "jane:").unwrap();
    // Without a password, as Go's clients may be.
    let url = format!("socks5://{}", proxy.address);
    let text = tcp_selection("cluster", "SOCKS5", &url, ", credentialsFile: jane") + "  dialTimeout: 300ms\n";
    let flag = format!("--egress-selector-config-file={}", write_selections(&environment, &text).display());
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    eventually("the way", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert!(proxy.requests().iter().all(|recorded| recorded.credentials == "jane:"));
    let state = async || {
        let status = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
        status["egress"][0]["state"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(state().await, "serves");
    silent.store(true, SeqCst);
    // What was open is closed, so that probes and requests dial anew.
    backend.stop().await;
    let message = eventually("the state", async || {
        client.get(THINGS).await;
        Some(state().await).filter(|state| state != "serves")
    });
    let message = message.await;
    assert!(message.starts_with("has not answered since 20") && message.contains("no answer within"), "{message}");
    fixture
        .gateway
        .wait_for_log(&["egress proxy does not answer; check that it runs", &proxy.address.to_string()])
        .await;
}
