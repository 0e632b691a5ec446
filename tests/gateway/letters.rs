//! Case sensitivity of names: names that differ in case only are distinct, or refused as a kube-apiserver refuses
//! them.

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{admin, get};
use crate::cluster::Cluster;
use crate::scene::{Scene, THINGS, annotated};
use crate::world::{World, eventually, narthex};

async fn backend(world: &World, says: &'static str) -> Backend {
    Backend::start(world, Settings::http2(), move |_| async move { answer(200, says) }).await
}

/// Paths of things in which the case of a letter is another.
const OTHERS: [&str; 5] = [
    "/apis/Things.Example.Com/v1/namespaces/default/things",
    "/apis/THINGS.EXAMPLE.COM/v1",
    "/apis/things.example.com/V1/namespaces/default/things",
    "/APIS/things.example.com/v1/namespaces/default/things",
    "/Apis/things.example.com/v1",
];

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_taken_by_the_letter() {
    let world = World::new();
    let things = backend(&world, r#"{"from":"things"}"#).await;
    let scene = Scene::new(world, &[&things], &[]);
    for client in scene.both().await {
        assert_eq!(client.get(THINGS).await.status, 200);
        for path in OTHERS {
            client.get(path).await.refused(404, "NotFound");
        }
    }
    let asked = things.seen();
    assert!(asked.iter().all(|seen| !seen.uri.path().chars().any(char::is_uppercase)), "nobody was asked those");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_with_such_names_is_refused_in_the_words_of_kubernetes() {
    let world = World::new();
    let things = backend(&world, r#"{"from":"things"}"#).await;
    let text = world.manifests("things.example.com", "v1", &[things.address], &annotated(&[]));
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
        world.registry("things.yaml", &text);
        world.registry("Things.yaml", &text.replace(from, to));
        let mut arguments = vec!["check".to_owned(), "gateway".to_owned()];
        arguments.extend(world.arguments(&[]));
        let output = narthex(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{to}: {said}");
        assert!(said.contains("Things.yaml") && said.contains(field), "{to}: {field} in {said}");
    }
    // Which is what a running gateway says, too; and the right one goes on.
    world.registry("Things.yaml", "kind: Service\napiVersion: v1\nmetadata: {name: other}\nspec: {}\n");
    world.registry("things.yaml", &text);
    let scene = Scene::of(world, &[]);
    let client = scene.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    scene.world.registry("Things.yaml", &text.replace("name: v1.things.example.com", "name: V1.things.example.com"));
    scene.gateway.said(&["Things.yaml", "metadata.name: must be"]).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let status = admin(&scene.gateway, get("/status.json", &[])).await.json();
    assert!(status["registryProblems"].to_string().contains("Things.yaml"), "{status}");
    assert_eq!(status["apiservices"].as_array().unwrap().len(), 1);
}

/// No kube-apiserver takes such names; whatever stands in for one may.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_such_names_confuses_nobody() {
    let world = World::new();
    let (things, others) =
        (backend(&world, r#"{"from":"things"}"#).await, backend(&world, r#"{"from":"others"}"#).await);
    let cluster = Cluster::start(&world).await;
    let text = world.manifests("things.example.com", "v1", &[things.address], &annotated(&[]));
    let odd = world.manifests("things.example.com", "v1", &[others.address], &annotated(&[]));
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
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    let client = scene.http2().await;
    eventually("things", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert!(client.get(THINGS).await.text().contains("things"));
    assert_eq!(client.get("/apis/things.example.com/V1/namespaces/default/things").await.status, 404);
    // An odd slice that says it belongs to the right Service is wrong, and takes nothing away.
    cluster.apply(&slice.replace("name: things-v1-0", "name: Things-v1-1"));
    scene.gateway.said(&["EndpointSlice", "Things-v1-1", "must be a lower-case"]).await;
    assert!(client.get(THINGS).await.text().contains("things"));
    let status = admin(&scene.gateway, get("/status.json", &[])).await.json();
    let names: Vec<&str> =
        status["apiservices"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["v1.things.example.com"]);
    assert!(status["registryProblems"].to_string().contains("V1.things.example.com"), "{status}");
}
