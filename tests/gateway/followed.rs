//! Registry read from a kube-apiserver: registrations are served and watched, and stay in use during an outage.

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{admin, get, request};
use crate::cluster::Cluster;
use crate::scene::{Scene, THINGS, annotated};
use crate::world::{World, eventually};

const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/things/endpointslices/things-v1-0";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";

async fn backend(world: &World, says: &'static str) -> Backend {
    Backend::start(world, Settings::http2(), move |_| async move { answer(200, says) }).await
}

fn things(world: &World, backend: &Backend) -> String {
    world.manifests("things.example.com", "v1", &[backend.address], &annotated(&[]))
}

/// What is asked is answered so, at last.
async fn until(scene: &Scene, path: &str, status: u16, words: &str) {
    let client = scene.http2().await;
    eventually(&format!("{status} {words:?} for {path}"), async || {
        let answer = client.ask(get(path, &[])).await;
        (answer.status == status && answer.text().contains(words)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_registered_in_a_cluster_is_served_and_followed() {
    let world = World::new();
    let (one, other) = (backend(&world, r#"{"from":"one"}"#).await, backend(&world, r#"{"from":"other"}"#).await);
    let cluster = Cluster::start(&world).await;
    cluster.page(1);
    cluster.apply(&things(&world, &one));
    cluster.apply(&world.manifests("more.example.com", "v1", &[], ""));
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, THINGS, 200, "one").await;
    until(&scene, "/apis/more.example.com/v1/x", 503, "EndpointsNotFound").await;

    cluster.apply(&things(&scene.world, &other));
    until(&scene, THINGS, 200, "other").await;
    // A watch that breaks goes on where it stood, one that is too old begins with a list.
    cluster.cut();
    cluster.apply(&things(&scene.world, &one));
    until(&scene, THINGS, 200, "one").await;
    cluster.compact();
    cluster.apply(&things(&scene.world, &other));
    until(&scene, THINGS, 200, "other").await;

    cluster.delete(SLICE);
    until(&scene, THINGS, 503, "EndpointsNotFound").await;
    cluster.delete(API_SERVICE);
    until(&scene, THINGS, 404, "NoAPIService").await;
}

#[tokio::test]
async fn while_the_cluster_is_away_all_goes_on() {
    let world = World::new();
    let (one, other) = (backend(&world, r#"{"from":"one"}"#).await, backend(&world, r#"{"from":"other"}"#).await);
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, "/readyz?verbose", 200, "[+]registry ok").await;
    until(&scene, THINGS, 200, "one").await;

    let stopped = cluster.stop().await;
    scene.gateway.said(&["kube-apiserver cannot be watched", "its last known objects stay in use"]).await;
    until(&scene, THINGS, 200, "one").await;
    until(&scene, "/readyz", 200, "ok").await;
    stopped.apply(&things(&scene.world, &other));
    let cluster = stopped.start(&scene.world).await;
    until(&scene, THINGS, 200, "other").await;
    scene.gateway.said(&["kube-apiserver is watched again"]).await;
    drop(cluster);
}

#[tokio::test]
async fn a_start_without_the_cluster_is_ready_when_it_has_come() {
    let world = World::new();
    let one = backend(&world, "{}").await;
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    let stopped = cluster.stop().await;
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, "/readyz", 500, "[-]registry failed").await;
    let client = scene.http2().await;
    for path in [THINGS, "/apis/other.example.com/v1", "/api/v1/pods", "/nothing"] {
        let status = client.get(path).await.refused(503, "ServiceUnavailable");
        let message = "the request has been made before all known HTTP paths have been installed, please try again";
        assert_eq!(
            (&status["message"], &status["details"]["retryAfterSeconds"]),
            (&message.into(), &5.into()),
            "{path}"
        );
    }
    assert_eq!(client.get("/version").await.status, 200);
    let cluster = stopped.start(&scene.world).await;
    until(&scene, "/readyz", 200, "ok").await;
    // Complete is complete: no moment in which it is ready and knows nothing.
    assert_eq!(scene.http2().await.get(THINGS).await.status, 200);
    drop(cluster);
}

#[tokio::test]
async fn of_two_sources_the_directory_counts() {
    let world = World::new();
    let (one, other) = (backend(&world, r#"{"from":"one"}"#).await, backend(&world, r#"{"from":"other"}"#).await);
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    cluster.apply(&world.manifests("more.example.com", "v1", &[], ""));
    world.registry("things.yaml", &things(&world, &other));
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, "/apis/more.example.com/v1/x", 503, "EndpointsNotFound").await;
    until(&scene, THINGS, 200, "other").await;
    scene.gateway.said(&["v1.things.example.com", "the registry directory has an APIService of the same name"]).await;
    std::fs::remove_file(scene.world.path("registry/things.yaml")).unwrap();
    until(&scene, THINGS, 200, "one").await;
}

#[tokio::test]
async fn what_is_wrong_or_not_allowed_concerns_nobody_else() {
    let world = World::new();
    let one = backend(&world, r#"{"from":"one"}"#).await;
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    let wrong = world.manifests("wrong.example.com", "v1", &[], "  annotations: {narthex.dev/retry: often}");
    cluster.apply(&wrong);
    cluster.apply(&world.manifests("hidden.example.com", "v1", &[], ""));
    cluster.refuse("/api/v1/namespaces/hidden/", 403);
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, THINGS, 200, "one").await;
    until(&scene, "/readyz", 200, "ok").await;
    until(&scene, "/apis/hidden.example.com/v1/x", 503, "ServiceAccessError").await;
    scene.gateway.said(&["APIService", "v1.wrong.example.com", "narthex.dev/retry"]).await;
    until(&scene, "/apis/wrong.example.com/v1/x", 404, "NoAPIService").await;

    cluster.refuse("/api/v1/namespaces/hidden/", 0);
    until(&scene, "/apis/hidden.example.com/v1/x", 503, "EndpointsNotFound").await;
    // Wrong later: as it last was.
    let wrong = world_text(&scene, &one, "  annotations: {narthex.dev/retry: often}");
    cluster.apply(&wrong);
    eventually("the mistake", async || {
        let said = scene.gateway.log();
        said.iter().find(|line| line.contains("v1.things.example.com") && line.contains("retry")).map(|_| ())
    })
    .await;
    until(&scene, THINGS, 200, "one").await;
}

#[tokio::test]
async fn a_namespace_that_cannot_be_listed_keeps_nobody_else_away() {
    let world = World::new();
    let one = backend(&world, r#"{"from":"one"}"#).await;
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    for (group, status) in [("dark", 500), ("denied", 401)] {
        cluster.apply(&world.manifests(&format!("{group}.example.com"), "v1", &[], ""));
        cluster.refuse(&format!("/api/v1/namespaces/{group}/"), status);
    }
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, "/readyz", 200, "ok").await;
    // With the first picture, all of it is there.
    let client = scene.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    for group in ["dark", "denied"] {
        let refused = client.get(&format!("/apis/{group}.example.com/v1/x")).await.refused(503, "ServiceUnavailable");
        let details = &refused["details"];
        assert_eq!(details["causes"][0]["reason"], "ServiceAccessError", "{refused}");
        assert_eq!(details["retryAfterSeconds"], 5, "{refused}");
    }
    scene.gateway.said(&["namespace", "services cannot be listed", "answered 500", "v1.dark.example.com"]).await;
    let problems = admin(&scene.gateway, get("/status.json", &[])).await.json()["registryProblems"].to_string();
    assert!(problems.contains("v1.dark.example.com") && problems.contains("v1.denied.example.com"), "{problems}");
    eventually("the metric", async || {
        let metrics = admin(&scene.gateway, get("/metrics", &[])).await.text();
        metrics.contains(r#"narthex_registry_errors{source="kube-apiserver"} 2"#).then_some(())
    })
    .await;

    // One more that leads there is neither nobody's nor somebody else's; and no longer is one that leads elsewhere.
    let more = scene.world.manifests("more.example.com", "v1", &[], "");
    cluster.apply(&more.replace("namespace: more", "namespace: dark"));
    cluster.refuse("/apis/discovery.k8s.io/v1/namespaces/odd/", 500);
    cluster.apply(&scene.world.manifests("odd.example.com", "v1", &[], ""));
    for group in ["more", "odd"] {
        until(&scene, &format!("/apis/{group}.example.com/v1/x"), 503, "ServiceAccessError").await;
    }
    cluster.refuse("/apis/discovery.k8s.io/v1/namespaces/odd/", 0);
    until(&scene, "/apis/odd.example.com/v1/x", 503, "EndpointsNotFound").await;
}

#[tokio::test]
async fn one_that_moves_is_served_where_it_was_until_its_new_place_is_known() {
    let world = World::new();
    let (one, other) = (backend(&world, r#"{"from":"one"}"#).await, backend(&world, r#"{"from":"other"}"#).await);
    let third = backend(&world, r#"{"from":"third"}"#).await;
    let things = |world: &World, backend: &Backend| {
        let annotations = annotated(&[("server-name", "things-v1.things.svc")]);
        world.manifests("things.example.com", "v1", &[backend.address], &annotations)
    };
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, THINGS, 200, "one").await;

    for path in ["/api/v1/namespaces/afar/", "/apis/discovery.k8s.io/v1/namespaces/afar/"] {
        cluster.refuse(path, 503);
    }
    cluster.apply(&things(&scene.world, &other).replace("namespace: things", "namespace: afar"));
    scene.gateway.said(&["an APIService moved to another namespace", "v1.things.example.com", "afar"]).await;
    assert!(scene.http2().await.get(THINGS).await.text().contains("one"));
    // Where it was is still followed.
    let documents = things(&scene.world, &third);
    cluster.apply(documents.split("---\n").last().unwrap());
    until(&scene, THINGS, 200, "third").await;
    for path in ["/api/v1/namespaces/afar/", "/apis/discovery.k8s.io/v1/namespaces/afar/"] {
        cluster.refuse(path, 0);
    }
    let client = scene.http2().await;
    eventually("the new place", async || {
        let answer = client.ask(get(THINGS, &[])).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text().contains("other").then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_a_namespace_only_what_is_named_counts() {
    let world = World::new();
    let (one, other) = (backend(&world, r#"{"from":"one"}"#).await, backend(&world, r#"{"from":"other"}"#).await);
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    let flag = Cluster::flag(&world);
    let scene = Scene::of(world, &[&flag]);
    until(&scene, THINGS, 200, "one").await;
    let changes = || scene.gateway.log().iter().filter(|line| line.contains("registry changed")).count();
    let before = changes();

    // A Service that nobody names, and after it one that somebody does.
    let annotations = annotated(&[("server-name", "things-v1.things.svc")]);
    let more = scene.world.manifests("more.example.com", "v1", &[other.address], &annotations);
    let more = more.replace("namespace: more", "namespace: things");
    let (api_service, rest) = more.split_once("---\n").unwrap();
    cluster.apply(rest);
    let service = "/api/v1/namespaces/things/services/things-v1";
    cluster.edit(service, |service| service["spec"]["ports"][0]["port"] = 444.into());
    until(&scene, THINGS, 503, "ServicePortError").await;
    assert_eq!(changes(), before + 1);
    cluster.edit(service, |service| service["spec"]["ports"][0]["port"] = 443.into());
    until(&scene, THINGS, 200, "one").await;

    cluster.apply(api_service);
    until(&scene, "/apis/more.example.com/v1/x", 200, "other").await;
    assert_eq!(scene.http2().await.get(THINGS).await.status, 200);
    cluster.delete("/apis/apiregistration.k8s.io/v1/apiservices/v1.more.example.com");
    until(&scene, "/apis/more.example.com/v1/x", 404, "NoAPIService").await;
    cluster.apply(api_service);
    until(&scene, "/apis/more.example.com/v1/x", 200, "other").await;
}

#[tokio::test]
async fn registrations_are_read_and_changed_where_they_are() {
    for delegate in [true, false] {
        read_and_changed(delegate).await;
    }
}

async fn read_and_changed(delegate: bool) {
    let world = World::new();
    let one = backend(&world, "{}").await;
    let cluster = Cluster::start(&world).await;
    cluster.apply(&things(&world, &one));
    let flags = [Cluster::flag(&world), Cluster::flag(&world).replace("--kube", "--delegate-kube")];
    let flags = flags.each_ref().map(String::as_str);
    let scene = Scene::of(world, if delegate { &flags } else { &flags[..1] });
    until(&scene, THINGS, 200, "{}").await;
    // Without a delegate nothing else of the cluster is to be seen here.
    let version = scene.http2().await.get("/version").await.text();
    assert_eq!(version.contains("gitVersion"), !delegate, "{version}");
    // What is written meanwhile would be a conflict.
    eventually("the condition", async || {
        (cluster.get(API_SERVICE)?["status"]["conditions"][0]["reason"] == "Passed").then_some(())
    })
    .await;
    let client = scene.http2().await;
    let read = client.get(API_SERVICE).await;
    assert_eq!(
        read.json()["metadata"]["resourceVersion"],
        cluster.get(API_SERVICE).unwrap()["metadata"]["resourceVersion"]
    );
    let mut object = read.json();
    object["metadata"]["labels"] = serde_json::json!({"by": "jane"});
    let written = client.ask(request(http::Method::PUT, API_SERVICE, &[], &object.to_string())).await;
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(cluster.get(API_SERVICE).unwrap()["metadata"]["labels"]["by"], "jane");
}

fn world_text(scene: &Scene, backend: &Backend, annotations: &str) -> String {
    scene.world.manifests("things.example.com", "v1", &[backend.address], annotations)
}
