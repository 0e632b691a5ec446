//! Case sensitivity of names: names that differ in case only are distinct, or refused as a kube-apiserver refuses
//! them.

use crate::support::backend::{Backend, BackendSettings, json_response as answer};
use crate::support::client::{admin_request, get};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml};

async fn start_backend(world: &TestEnvironment, says: &'static str) -> Backend {
    Backend::start(world, BackendSettings::http2(), move |_| async move { answer(200, says) }).await
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
    let world = TestEnvironment::new();
    let things = start_backend(&world, r#"{"from":"things"}"#).await;
    let scene = GatewayFixture::new(world, &[&things], &[]);
    for client in scene.both_protocols().await {
        assert_eq!(client.get(THINGS).await.status, 200);
        for path in OTHER_CASE_PATHS {
            client.get(path).await.assert_failure(404, "NotFound");
        }
    }
    let asked = things.received();
    assert!(asked.iter().all(|seen| !seen.uri.path().chars().any(char::is_uppercase)), "nobody was asked those");
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_directory_upper_case_names_refused_as_kubernetes() {
    let world = TestEnvironment::new();
    let things = start_backend(&world, r#"{"from":"things"}"#).await;
    let text = world.apiservice_manifests("things.example.com", "v1", &[things.address], &annotations_yaml(&[]));
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
        // Beside the one that is right, in a file whose name differs in its case alone, too.
        world.write_registry("things.yaml", &text);
        world.write_registry("Things.yaml", &text.replace(from, to));
        let mut arguments = vec!["check".to_owned(), "gateway".to_owned()];
        arguments.extend(world.gateway_arguments(&[]));
        let output = run_narthex(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{to}: {said}");
        assert!(said.contains("Things.yaml") && said.contains(field), "{to}: {field} in {said}");
    }
    // Which is what a running gateway says, too; and the right one goes on.
    world.write_registry("Things.yaml", "kind: Service\napiVersion: v1\nmetadata: {name: other}\nspec: {}\n");
    world.write_registry("things.yaml", &text);
    let scene = GatewayFixture::from_registry(world, &[]);
    let client = scene.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    scene
        .world
        .write_registry("Things.yaml", &text.replace("name: v1.things.example.com", "name: V1.things.example.com"));
    scene.gateway.wait_for_log(&["Things.yaml", "metadata.name: must be"]).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let status = admin_request(&scene.gateway, get("/status.json", &[])).await.json();
    assert!(status["registryProblems"].to_string().contains("Things.yaml"), "{status}");
    assert_eq!(status["apiservices"].as_array().unwrap().len(), 1);
}

/// No kube-apiserver takes such names; whatever stands in for one may.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_registry_upper_case_names_ignored() {
    let world = TestEnvironment::new();
    let (things, others) =
        (start_backend(&world, r#"{"from":"things"}"#).await, start_backend(&world, r#"{"from":"others"}"#).await);
    let cluster = FakeApiServer::start(&world).await;
    let text = world.apiservice_manifests("things.example.com", "v1", &[things.address], &annotations_yaml(&[]));
    let odd = world.apiservice_manifests("things.example.com", "v1", &[others.address], &annotations_yaml(&[]));
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
    let flag = FakeApiServer::kubeconfig_flag(&world);
    let scene = GatewayFixture::from_registry(world, &[&flag]);
    let client = scene.http2().await;
    eventually("things", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert!(client.get(THINGS).await.text().contains("things"));
    assert_eq!(client.get("/apis/things.example.com/V1/namespaces/default/things").await.status, 404);
    // An odd slice that says it belongs to the right Service is wrong, and takes nothing away.
    cluster.apply(&slice.replace("name: things-v1-0", "name: Things-v1-1"));
    scene.gateway.wait_for_log(&["EndpointSlice", "Things-v1-1", "must be a lower-case"]).await;
    assert!(client.get(THINGS).await.text().contains("things"));
    let status = admin_request(&scene.gateway, get("/status.json", &[])).await.json();
    let names: Vec<&str> =
        status["apiservices"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["v1.things.example.com"]);
    assert!(status["registryProblems"].to_string().contains("V1.things.example.com"), "{status}");
}
