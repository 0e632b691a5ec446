//! Health and metrics of a gateway with a delegate: the delegate's checks are listed beside the gateway's, and its
//! metrics are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::registry::delegate::{kubeconfig_flag, write_kubeconfig};
use crate::support::backend::{Backend, BackendSettings, ReceivedRequest, json_response};
use crate::support::client::{Client, admin_request, get, metric_value};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::GatewayFixture;

const PATHS: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// A kube-apiserver with a check of its own, which fails while `unhealthy` is set.
async fn start_apiserver(environment: &TestEnvironment, unhealthy: &Arc<AtomicBool>) -> Backend {
    let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    let unhealthy = unhealthy.clone();
    let backend = Backend::start(environment, settings, move |request| {
        let unhealthy = unhealthy.load(Ordering::SeqCst);
        let query = request.uri().query().unwrap_or_default().to_owned();
        async move {
            match request.uri().path() {
                "/metrics" => json_response(200, "# of the delegate\n"),
                path @ ("/healthz" | "/livez" | "/readyz") => {
                    let name = &path[1..];
                    let etcd = match (query.contains("exclude=etcd"), unhealthy) {
                        (true, _) => "[+]etcd excluded: ok",
                        (false, true) => "[-]etcd failed: reason withheld",
                        (false, false) => "[+]etcd ok",
                    };
                    let (code, verdict) = if etcd.starts_with("[-]") { (500, "failed") } else { (200, "passed") };
                    json_response(code, &format!("[+]ping ok\n[+]log ok\n{etcd}\n{name} check {verdict}\n"))
                }
                "/readyz/etcd" => json_response(if unhealthy { 500 } else { 200 }, "of the delegate"),
                _ => json_response(404, "{}"),
            }
        }
    })
    .await;
    write_kubeconfig(environment, &format!("https://{}", backend.address));
    backend
}

/// Requests for health checks, as the kube-apiserver saw them.
fn health_requests(cluster: &Backend) -> Vec<ReceivedRequest> {
    cluster.received().into_iter().filter(|seen| PATHS.iter().any(|path| seen.uri.path().starts_with(path))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn health_verbose_lists_checks_of_delegate() {
    let environment = TestEnvironment::new();
    let unhealthy = Arc::new(AtomicBool::new(false));
    let cluster = start_apiserver(&environment, &unhealthy).await;
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag, "--anonymous-auth=false"]);
    for client in fixture.both_protocols().await {
        let before = health_requests(&cluster).len();
        eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
        assert_eq!(health_requests(&cluster).len(), before, "only a list of all checks has those of the delegate");
        for path in PATHS {
            unhealthy.store(false, Ordering::SeqCst);
            let name = &path[1..];
            let list = async |query: &str| {
                let response = client.get(&format!("{path}?{query}")).await;
                assert_eq!(response.status, 200, "ours decide: {}", response.text());
                response.text()
            };
            let text = list("verbose=1").await;
            assert!(text.contains("[+]etcd ok\n") && text.contains("[+]log ok\n"), "{text}");
            assert_eq!(text.matches("[+]ping ok\n").count(), 1, "{text}");
            assert!(text.ends_with(&format!("\n{name} check passed\n")), "{text}");
            assert_eq!(health_requests(&cluster).pop().unwrap().header_values("x-remote-user"), ["jane"]);
            unhealthy.store(true, Ordering::SeqCst);
            let text = list("verbose").await;
            assert!(text.contains("[-]etcd failed: reason withheld\n"), "{text}");
            assert!(text.ends_with(&format!("\n{name} check passed\n")), "{text}");
            let text = list("verbose&exclude=etcd").await;
            assert!(text.contains("[+]etcd excluded: ok\n") && !text.contains("warn"), "{text}");
        }
        // One check alone is its owner's.
        let response = client.get("/readyz/etcd").await;
        assert_eq!((response.status.as_u16(), &*response.text()), (500, "of the delegate"));
        assert_eq!(client.get("/readyz/ping").await.text(), "ok");
    }
    let before = health_requests(&cluster).len();
    // Unauthenticated requests do not reach the delegate.
    let anonymous = Client::http1(&fixture.environment, &fixture.gateway, None).await;
    for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
        let response = anonymous.send_and_read(get("/readyz?verbose", headers)).await;
        let text = response.text();
        assert!(response.status == 200 && text.contains("[+]ping ok\n") && !text.contains("etcd"), "{text}");
    }
    anonymous.get("/readyz/etcd").await.assert_failure(401, "Unauthorized");
    assert_eq!(health_requests(&cluster).len(), before);
    cluster.stop().await;
    let response = fixture.http2().await.get("/readyz?verbose").await;
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    assert!(text.contains("[+]ping ok\n") && text.contains("[-]delegate failed: reason withheld\n"), "{text}");
    assert!(text.ends_with("\nreadyz check passed\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_on_serving_port_relayed_from_delegate_by_default() {
    let environment = TestEnvironment::new();
    let _cluster = start_apiserver(&environment, &Arc::default()).await;
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let actual = |text: &str| text.contains("apiserver_request_total");
    for client in fixture.both_protocols().await {
        eventually("metrics", async || (client.get("/metrics").await.text() == "# of the delegate\n").then_some(()))
            .await;
    }
    assert!(actual(&admin_request(&fixture.gateway, get("/metrics", &[])).await.text()));
    let gateway = fixture.environment.start_gateway(&[&flag, "--serving-metrics=gateway"]);
    let client = Client::http2(&fixture.environment, &gateway, Some(&fixture.jane)).await;
    eventually("our metrics", async || actual(&client.get("/metrics").await.text()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_rejecting_front_proxy_certificate_explained_and_counted() {
    let environment = TestEnvironment::new();
    let refuses = Arc::new(AtomicBool::new(true));
    let message = refuses.clone();
    let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    let cluster = Backend::start(&environment, settings, move |_| {
        let refuses = message.load(Ordering::SeqCst);
        let list = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}"#;
        async move {
            let mut response = json_response(if refuses { 401 } else { 200 }, list);
            let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            response.headers_mut().insert("content-type", kind.parse().unwrap());
            response
        }
    })
    .await;
    write_kubeconfig(&environment, &format!("https://{}", cluster.address));
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let is = async |unavailable: f64| {
        let name = "aggregator_unavailable_apiservice{name=\"delegate\"}";
        let what = format!("{name} to be {unavailable}");
        eventually(&what, async || (metric_value(&fixture.gateway, name).await == Some(unavailable)).then_some(()))
            .await;
    };
    is(1.0).await;
    let why = "401: the delegate does not accept our front-proxy certificate";
    let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    let all = report["apiservices"].as_array().unwrap();
    let delegate = all.iter().find(|one| one["name"] == "delegate").unwrap();
    assert_eq!(delegate["available"], false, "{delegate}");
    assert!(delegate["message"].as_str().unwrap().contains(why), "{delegate}");
    fixture.gateway.wait_for_log(&["WARN", why, "\"delegate\""]).await;
    // kubectl prints warnings.
    let response = fixture.http2().await.get("/api/v1/pods").await;
    let warning = response.headers["warning"].to_str().unwrap();
    assert!(response.status == 401 && warning.contains("front-proxy certificate"), "{warning}");
    refuses.store(false, Ordering::SeqCst);
    is(0.0).await;
    assert!(!fixture.http2().await.get("/api/v1/pods").await.headers.contains_key("warning"));
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_that_is_back_is_not_shown_with_an_open_circuit_until_somebody_asks() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    let cluster = Backend::start(&environment, settings.clone(), async |_| json_response(404, "{}")).await;
    write_kubeconfig(&environment, &format!("https://{}", cluster.address));
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    let circuit = async || {
        let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
        let all = report["apiservices"].as_array().unwrap();
        all.iter().find(|one| one["name"] == "delegate").unwrap()["circuit"].clone()
    };
    eventually("an answer", async || (client.get("/api/v1/pods").await.status == 404).then_some(())).await;
    let address = cluster.stop().await;
    eventually("the circuit to open", async || {
        client.get("/api/v1/pods").await;
        (circuit().await == "open").then_some(())
    })
    .await;
    let _back = Backend::start(&fixture.environment, BackendSettings { address, ..settings }, async |_| {
        json_response(404, "{}")
    })
    .await;
    eventually("its polls to close it", async || (circuit().await != "open").then_some(())).await;
}
