//! Case sensitivity of names: names that differ in case only are distinct, or refused as a kube-apiserver refuses
//! them.

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{admin_request, get};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml};

async fn start_backend(environment: &TestEnvironment, says: &'static str) -> Backend {
    Backend::start(environment, BackendSettings::http2(), move |_| async move { response(200, says) }).await
}

/// Paths of things in which the case of a letter is another.
const OTHER_CASE_PATHS: [&str; 5] = [
    "/apis/Things.Example.Com/v1/namespaces/default/things",
    "/apis/THINGS.EXAMPLE.COM/v1",
    "/apis/things.example.com/V1/namespaces/default/things",
    "/APIS/things.example.com/v1/namespaces/default/things",
    "/Apis/things.example.com/v1",
];

#[tokio::test(flavor = "multi_thread")]
async fn request_paths_are_case_sensitive() {
    let environment = TestEnvironment::new();
    let things = start_backend(&environment, r#"{"from":"things"}"#).await;
    let fixture = GatewayFixture::new(environment, &[&things], &[]);
    for client in fixture.both_protocols().await {
        assert_eq!(client.get(THINGS).await.status, 200);
        for path in OTHER_CASE_PATHS {
            client.get(path).await.assert_failure(404, "NotFound");
        }
    }
    let recorded = things.received();
    assert!(
        recorded.iter().all(|seen| !seen.uri.path().chars().any(char::is_uppercase)),
        "a request with an uppercase path reached the backend"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_directory_upper_case_names_refused_as_kubernetes() {
    let environment = TestEnvironment::new();
    let things = start_backend(&environment, r#"{"from":"things"}"#).await;
    let text = environment.apiservice_manifests("things.example.com", "v1", &[things.address], &annotations_yaml(&[]));
    for (from, to, field) in [
        // The APIService: by its name, its group, its version.
        ("name: v1.things.example.com", "name: V1.things.example.com", "metadata.name: must be"),
        (
            "group: things.example.com",
            "group: Things.example.com",
            "spec.group: \"Things.example.com\" must be a lower-case",
        ),
        ("version: v1", "version: V1", "spec.version: \"V1\" must be a lower-case"),
        (
            "service: {namespace: things, name: things-v1",
            "service: {namespace: things, name: Things-v1",
            "spec.service.name",
        ),
        ("service: {namespace: things, ", "service: {namespace: Things, ", "spec.service.namespace"),
        // Its Service, and its endpoints.
        (
            "metadata: {namespace: things, name: things-v1}",
            "metadata: {namespace: things, name: Things-v1}",
            "metadata.name: \"Things-v1\" must be a lower-case",
        ),
        (
            "metadata: {namespace: things, name: things-v1}",
            "metadata: {namespace: Things, name: things-v1}",
            "metadata.namespace: \"Things\" must be a lower-case",
        ),
        ("  name: things-v1-0", "  name: Things-v1-0", "metadata.name: \"Things-v1-0\" must be a lower-case"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        // Beside the correct file, also in one whose name differs only in case.
        environment.write_registry("things.yaml", &text);
        environment.write_registry("Things.yaml", &text.replace(from, to));
        let mut arguments = vec!["check".to_owned(), "gateway".to_owned()];
        arguments.extend(environment.gateway_arguments(&[]));
        let output = run_narthex(&arguments);
        let output_text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{to}: {output_text}");
        assert!(output_text.contains("Things.yaml") && output_text.contains(field), "{to}: {field} in {output_text}");
    }
    // Which is what a running gateway says, too; and the right one goes on.
    environment.write_registry("Things.yaml", "kind: Service\napiVersion: v1\nmetadata: {name: other}\nspec: {}\n");
    environment.write_registry("things.yaml", &text);
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    fixture
        .environment
        .write_registry("Things.yaml", &text.replace("name: v1.things.example.com", "name: V1.things.example.com"));
    fixture.gateway.wait_for_log(&["Things.yaml", "metadata.name: must be"]).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let status = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    assert!(status["registryProblems"].to_string().contains("Things.yaml"), "{status}");
    assert_eq!(status["apiservices"].as_array().unwrap().len(), 1);
}

/// No kube-apiserver takes such names; whatever stands in for one may.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_registry_upper_case_names_ignored() {
    let environment = TestEnvironment::new();
    let (things, others) = (
        start_backend(&environment, r#"{"from":"things"}"#).await,
        start_backend(&environment, r#"{"from":"others"}"#).await,
    );
    let cluster = FakeApiServer::start(&environment).await;
    let text = environment.apiservice_manifests("things.example.com", "v1", &[things.address], &annotations_yaml(&[]));
    let odd = environment.apiservice_manifests("things.example.com", "v1", &[others.address], &annotations_yaml(&[]));
    cluster.apply(&text);
    let (api_service, rest) = odd.split_once("---\n").unwrap();
    let (service, slice) = rest.split_once("---\n").unwrap();
    cluster.apply(&api_service.replace("name: v1.things", "name: V1.things").replace("version: v1", "version: V1"));
    cluster.apply(&service.replace("name: things-v1}", "name: Things-v1}"));
    cluster.apply(
        &slice
            .replace("name: things-v1-0", "name: Things-v1-0")
            .replace("kubernetes.io/service-name: things-v1", "kubernetes.io/service-name: Things-v1"),
    );
    let flag = FakeApiServer::kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    eventually("things", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert!(client.get(THINGS).await.text().contains("things"));
    assert_eq!(client.get("/apis/things.example.com/V1/namespaces/default/things").await.status, 404);
    // An odd slice that says it belongs to the right Service is wrong, and takes nothing away.
    cluster.apply(&slice.replace("name: things-v1-0", "name: Things-v1-1"));
    fixture.gateway.wait_for_log(&["EndpointSlice", "Things-v1-1", "must be a lower-case"]).await;
    assert!(client.get(THINGS).await.text().contains("things"));
    let status = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    let names: Vec<&str> =
        status["apiservices"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["v1.things.example.com"]);
    assert!(status["registryProblems"].to_string().contains("V1.things.example.com"), "{status}");
}
