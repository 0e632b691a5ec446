//! Registry read from a kube-apiserver: registrations are served and watched, and stay in use during an outage.

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{admin_request, get, request};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml};

const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/things/endpointslices/things-v1-0";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";

async fn start_backend(environment: &TestEnvironment, says: &'static str) -> Backend {
    Backend::start(environment, BackendSettings::http2(), move |_| async move { response(200, says) }).await
}

fn things_manifests(environment: &TestEnvironment, backend: &Backend) -> String {
    environment.apiservice_manifests("things.example.com", "v1", &[backend.address], &annotations_yaml(&[]))
}

/// What is asked is answered so, at last.
async fn wait_for_response(fixture: &GatewayFixture, path: &str, status: u16, words: &str) {
    let client = fixture.http2().await;
    eventually(&format!("{status} {words:?} for {path}"), async || {
        let response = client.send_and_read(get(path, &[])).await;
        (response.status == status && response.text().contains(words)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn cluster_registry_served_and_watched() {
    let environment = TestEnvironment::new();
    let (one, other) = (
        start_backend(&environment, r#"{"from":"one"}"#).await,
        start_backend(&environment, r#"{"from":"other"}"#).await,
    );
    let cluster = FakeApiServer::start(&environment).await;
    cluster.set_page_size(1);
    cluster.apply(&things_manifests(&environment, &one));
    cluster.apply(&environment.apiservice_manifests("more.example.com", "v1", &[], ""));
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, THINGS, 200, "one").await;
    wait_for_response(&fixture, "/apis/more.example.com/v1/x", 503, "EndpointsNotFound").await;

    cluster.apply(&things_manifests(&fixture.environment, &other));
    wait_for_response(&fixture, THINGS, 200, "other").await;
    // A watch that breaks goes on where it stood, one that is too old begins with a list.
    cluster.break_watches();
    cluster.apply(&things_manifests(&fixture.environment, &one));
    wait_for_response(&fixture, THINGS, 200, "one").await;
    cluster.compact();
    cluster.apply(&things_manifests(&fixture.environment, &other));
    wait_for_response(&fixture, THINGS, 200, "other").await;

    cluster.delete(SLICE);
    wait_for_response(&fixture, THINGS, 503, "EndpointsNotFound").await;
    cluster.delete(API_SERVICE);
    wait_for_response(&fixture, THINGS, 404, "NoAPIService").await;
}

#[tokio::test]
async fn cluster_registry_last_known_objects_served_during_outage() {
    let environment = TestEnvironment::new();
    let (one, other) = (
        start_backend(&environment, r#"{"from":"one"}"#).await,
        start_backend(&environment, r#"{"from":"other"}"#).await,
    );
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, "/readyz?verbose", 200, "[+]registry ok").await;
    wait_for_response(&fixture, THINGS, 200, "one").await;

    let stopped = cluster.stop().await;
    fixture.gateway.wait_for_log(&["kube-apiserver cannot be watched", "its last known objects stay in use"]).await;
    wait_for_response(&fixture, THINGS, 200, "one").await;
    wait_for_response(&fixture, "/readyz", 200, "ok").await;
    stopped.apply(&things_manifests(&fixture.environment, &other));
    let cluster = stopped.start(&fixture.environment).await;
    wait_for_response(&fixture, THINGS, 200, "other").await;
    fixture.gateway.wait_for_log(&["kube-apiserver is watched again"]).await;
    drop(cluster);
}

#[tokio::test]
async fn cluster_registry_readiness_waits_for_first_sync() {
    let environment = TestEnvironment::new();
    let one = start_backend(&environment, "{}").await;
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    let stopped = cluster.stop().await;
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, "/readyz", 500, "[-]registry failed").await;
    let client = fixture.http2().await;
    for path in [THINGS, "/apis/other.example.com/v1", "/api/v1/pods", "/nothing"] {
        let status = client.get(path).await.assert_failure(503, "ServiceUnavailable");
        let message = "the request has been made before all known HTTP paths have been installed, please try again";
        assert_eq!(
            (&status["message"], &status["details"]["retryAfterSeconds"]),
            (&message.into(), &5.into()),
            "{path}"
        );
    }
    assert_eq!(client.get("/version").await.status, 200);
    let cluster = stopped.start(&fixture.environment).await;
    wait_for_response(&fixture, "/readyz", 200, "ok").await;
    // Complete is complete: no moment in which it is ready and knows nothing.
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 200);
    drop(cluster);
}

#[tokio::test]
async fn cluster_registry_overridden_by_registry_directory() {
    let environment = TestEnvironment::new();
    let (one, other) = (
        start_backend(&environment, r#"{"from":"one"}"#).await,
        start_backend(&environment, r#"{"from":"other"}"#).await,
    );
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    cluster.apply(&environment.apiservice_manifests("more.example.com", "v1", &[], ""));
    environment.write_registry("things.yaml", &things_manifests(&environment, &other));
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, "/apis/more.example.com/v1/x", 503, "EndpointsNotFound").await;
    wait_for_response(&fixture, THINGS, 200, "other").await;
    fixture
        .gateway
        .wait_for_log(&["v1.things.example.com", "the registry directory has an APIService of the same name"])
        .await;
    std::fs::remove_file(fixture.environment.path("registry/things.yaml")).unwrap();
    wait_for_response(&fixture, THINGS, 200, "one").await;
}

#[tokio::test]
async fn cluster_registry_invalid_apiservice_does_not_affect_others() {
    let environment = TestEnvironment::new();
    let one = start_backend(&environment, r#"{"from":"one"}"#).await;
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    let wrong =
        environment.apiservice_manifests("wrong.example.com", "v1", &[], "  annotations: {narthex.dev/retry: often}");
    cluster.apply(&wrong);
    cluster.apply(&environment.apiservice_manifests("hidden.example.com", "v1", &[], ""));
    cluster.fail_requests("/api/v1/namespaces/hidden/", 403);
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, THINGS, 200, "one").await;
    wait_for_response(&fixture, "/readyz", 200, "ok").await;
    wait_for_response(&fixture, "/apis/hidden.example.com/v1/x", 503, "ServiceAccessError").await;
    fixture.gateway.wait_for_log(&["APIService", "v1.wrong.example.com", "narthex.dev/retry"]).await;
    wait_for_response(&fixture, "/apis/wrong.example.com/v1/x", 404, "NoAPIService").await;

    cluster.fail_requests("/api/v1/namespaces/hidden/", 0);
    wait_for_response(&fixture, "/apis/hidden.example.com/v1/x", 503, "EndpointsNotFound").await;
    // Wrong later: as it last was.
    let wrong = annotated_manifests(&fixture, &one, "  annotations: {narthex.dev/retry: often}");
    cluster.apply(&wrong);
    eventually("the mistake", async || {
        let output = fixture.gateway.log_lines();
        output.iter().find(|line| line.contains("v1.things.example.com") && line.contains("retry")).map(|_| ())
    })
    .await;
    wait_for_response(&fixture, THINGS, 200, "one").await;
}

#[tokio::test]
async fn cluster_registry_unlistable_namespace_does_not_affect_others() {
    let environment = TestEnvironment::new();
    let one = start_backend(&environment, r#"{"from":"one"}"#).await;
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    for (group, status) in [("dark", 500), ("denied", 401)] {
        cluster.apply(&environment.apiservice_manifests(&format!("{group}.example.com"), "v1", &[], ""));
        cluster.fail_requests(&format!("/api/v1/namespaces/{group}/"), status);
    }
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, "/readyz", 200, "ok").await;
    // With the first picture, all of it is there.
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    for group in ["dark", "denied"] {
        let refused =
            client.get(&format!("/apis/{group}.example.com/v1/x")).await.assert_failure(503, "ServiceUnavailable");
        let details = &refused["details"];
        assert_eq!(details["causes"][0]["reason"], "ServiceAccessError", "{refused}");
        assert_eq!(details["retryAfterSeconds"], 5, "{refused}");
    }
    fixture
        .gateway
        .wait_for_log(&["namespace", "services cannot be listed", "answered 500", "v1.dark.example.com"])
        .await;
    let problems =
        admin_request(&fixture.gateway, get("/status.json", &[])).await.json()["registryProblems"].to_string();
    assert!(problems.contains("v1.dark.example.com") && problems.contains("v1.denied.example.com"), "{problems}");
    eventually("the metric", async || {
        let metrics = admin_request(&fixture.gateway, get("/metrics", &[])).await.text();
        metrics.contains(r#"narthex_registry_errors{source="kube-apiserver"} 2"#).then_some(())
    })
    .await;

    // A further APIService of an unreadable Service and one with unreadable EndpointSlices return 503.
    let more = fixture.environment.apiservice_manifests("more.example.com", "v1", &[], "");
    cluster.apply(&more.replace("namespace: more", "namespace: dark"));
    cluster.fail_requests("/apis/discovery.k8s.io/v1/namespaces/odd/", 500);
    cluster.apply(&fixture.environment.apiservice_manifests("odd.example.com", "v1", &[], ""));
    for group in ["more", "odd"] {
        wait_for_response(&fixture, &format!("/apis/{group}.example.com/v1/x"), 503, "ServiceAccessError").await;
    }
    cluster.fail_requests("/apis/discovery.k8s.io/v1/namespaces/odd/", 0);
    wait_for_response(&fixture, "/apis/odd.example.com/v1/x", 503, "EndpointsNotFound").await;
}

#[tokio::test]
async fn cluster_registry_moved_apiservice_served_from_old_namespace_until_synced() {
    let environment = TestEnvironment::new();
    let (one, other) = (
        start_backend(&environment, r#"{"from":"one"}"#).await,
        start_backend(&environment, r#"{"from":"other"}"#).await,
    );
    let third = start_backend(&environment, r#"{"from":"third"}"#).await;
    let things = |environment: &TestEnvironment, backend: &Backend| {
        let annotations = annotations_yaml(&[("server-name", "things-v1.things.svc")]);
        environment.apiservice_manifests("things.example.com", "v1", &[backend.address], &annotations)
    };
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things(&environment, &one));
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, THINGS, 200, "one").await;

    for path in ["/api/v1/namespaces/afar/", "/apis/discovery.k8s.io/v1/namespaces/afar/"] {
        cluster.fail_requests(path, 503);
    }
    cluster.apply(&things(&fixture.environment, &other).replace("namespace: things", "namespace: afar"));
    fixture.gateway.wait_for_log(&["an APIService moved to another namespace", "v1.things.example.com", "afar"]).await;
    assert!(fixture.http2().await.get(THINGS).await.text().contains("one"));
    // Where it was is still followed.
    let documents = things(&fixture.environment, &third);
    cluster.apply(documents.split("---\n").last().unwrap());
    wait_for_response(&fixture, THINGS, 200, "third").await;
    for path in ["/api/v1/namespaces/afar/", "/apis/discovery.k8s.io/v1/namespaces/afar/"] {
        cluster.fail_requests(path, 0);
    }
    let client = fixture.http2().await;
    eventually("the new place", async || {
        let response = client.send_and_read(get(THINGS, &[])).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.text().contains("other").then_some(())
    })
    .await;
}

#[tokio::test]
async fn cluster_registry_ignores_unreferenced_services() {
    let environment = TestEnvironment::new();
    let (one, other) = (
        start_backend(&environment, r#"{"from":"one"}"#).await,
        start_backend(&environment, r#"{"from":"other"}"#).await,
    );
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    wait_for_response(&fixture, THINGS, 200, "one").await;
    let changes = || fixture.gateway.log_lines().iter().filter(|line| line.contains("registry changed")).count();
    let before = changes();

    // A Service without an APIService, and then one with an APIService.
    let annotations = annotations_yaml(&[("server-name", "things-v1.things.svc")]);
    let more = fixture.environment.apiservice_manifests("more.example.com", "v1", &[other.address], &annotations);
    let more = more.replace("namespace: more", "namespace: things");
    let (api_service, rest) = more.split_once("---\n").unwrap();
    cluster.apply(rest);
    let service = "/api/v1/namespaces/things/services/things-v1";
    cluster.edit(service, |service| service["spec"]["ports"][0]["port"] = 444.into());
    wait_for_response(&fixture, THINGS, 503, "ServicePortError").await;
    assert_eq!(changes(), before + 1);
    cluster.edit(service, |service| service["spec"]["ports"][0]["port"] = 443.into());
    wait_for_response(&fixture, THINGS, 200, "one").await;

    cluster.apply(api_service);
    wait_for_response(&fixture, "/apis/more.example.com/v1/x", 200, "other").await;
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 200);
    cluster.delete("/apis/apiregistration.k8s.io/v1/apiservices/v1.more.example.com");
    wait_for_response(&fixture, "/apis/more.example.com/v1/x", 404, "NoAPIService").await;
    cluster.apply(api_service);
    wait_for_response(&fixture, "/apis/more.example.com/v1/x", 200, "other").await;
}

#[tokio::test]
async fn cluster_registry_apiservices_read_and_written_at_kube_apiserver() {
    for delegate in [true, false] {
        assert_objects_read_and_changed(delegate).await;
    }
}

async fn assert_objects_read_and_changed(delegate: bool) {
    let environment = TestEnvironment::new();
    let one = start_backend(&environment, "{}").await;
    let cluster = FakeApiServer::start(&environment).await;
    cluster.apply(&things_manifests(&environment, &one));
    let flags = [
        FakeApiServer::kubeconfig_flag(&environment),
        FakeApiServer::kubeconfig_flag(&environment).replace("--kube", "--delegate-kube"),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let fixture = GatewayFixture::from_registry(environment, if delegate { &flags } else { &flags[..1] });
    wait_for_response(&fixture, THINGS, 200, "{}").await;
    // Without a delegate nothing else of the cluster is to be seen here.
    let version = fixture.http2().await.get("/version").await.text();
    assert_eq!(version.contains("gitVersion"), !delegate, "{version}");
    // What is written meanwhile would be a conflict.
    eventually("the condition", async || {
        (cluster.get(API_SERVICE)?["status"]["conditions"][0]["reason"] == "Passed").then_some(())
    })
    .await;
    let client = fixture.http2().await;
    let read = client.get(API_SERVICE).await;
    assert_eq!(
        read.json()["metadata"]["resourceVersion"],
        cluster.get(API_SERVICE).unwrap()["metadata"]["resourceVersion"]
    );
    let mut object = read.json();
    object["metadata"]["labels"] = serde_json::json!({"by": "jane"});
    let written = client.send_and_read(request(http::Method::PUT, API_SERVICE, &[], &object.to_string())).await;
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(cluster.get(API_SERVICE).unwrap()["metadata"]["labels"]["by"], "jane");
}

fn annotated_manifests(fixture: &GatewayFixture, backend: &Backend, annotations: &str) -> String {
    fixture.environment.apiservice_manifests("things.example.com", "v1", &[backend.address], annotations)
}
