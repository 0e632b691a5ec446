//! Disk cache of backends' documents across restarts.

use std::io::{BufRead as _, BufReader};

use base64::Engine as _;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::backend::{Answer, Backend, Settings, json as answer};
use crate::client::{Client, admin, get};
use crate::world::{Gateway, World, eventually};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const NAME: &str = "v1.things.example.com";
const KINDS: [&str; 3] = ["discovery", "openapi-v2", "openapi-v3"];

fn things(path: &str) -> Answer {
    let key = "apis/things.example.com/v1";
    match path {
        "/apis/things.example.com/v1" => answer(
            200,
            r#"{"kind":"APIResourceList","groupVersion":"things.example.com/v1","resources":[
                {"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list"]}]}"#,
        ),
        "/openapi/v2" => answer(
            200,
            r#"{"swagger":"2.0","info":{"title":"things","version":"1"},"paths":{"/apis/things.example.com/v1/things":{}}}"#,
        ),
        "/openapi/v3" => {
            let url = format!("/openapi/v3/{key}?hash=ABC123");
            answer(200, &json!({"paths": {key: {"serverRelativeURL": url}}}).to_string())
        }
        _ => answer(404, "{}"),
    }
}

async fn backend(world: &World) -> Backend {
    let settings = Settings { all: true, ..Settings::default() };
    let backend = Backend::start(world, settings, async |request| things(request.uri().path())).await;
    world.register("things.example.com", "v1", &[&backend]);
    backend
}

async fn jane(world: &World, gateway: &Gateway) -> Client {
    Client::http2(world, gateway, Some(&world.user("jane", &[]))).await
}

/// Freshness and resources of the group in discovery, whether OpenAPI v3 lists it, and whether v2 describes it.
async fn seen(client: &Client) -> (String, usize, bool, bool) {
    let discovery = client.ask(get("/apis", &[("accept", V2)])).await.json();
    let its = |item: &&Value| item["metadata"]["name"] == "things.example.com";
    let version = discovery["items"].as_array().unwrap().iter().find(its).map(|item| item["versions"][0].clone());
    let version = version.unwrap_or_default();
    (
        version["freshness"].as_str().unwrap_or_default().to_owned(),
        version["resources"].as_array().map_or(0, Vec::len),
        client.get("/openapi/v3").await.text().contains("v1?hash=ABC123"),
        client.get("/openapi/v2").await.text().contains("/apis/things.example.com/v1/things"),
    )
}

/// Waits until what was kept is served.
async fn remembered(client: &Client) {
    eventually("what was kept to be read", async || {
        (seen(client).await == ("Stale".into(), 1, true, true)).then_some(())
    })
    .await;
}

/// A world whose gateway has heard all of its backend, and both are gone.
async fn after_one_life() -> World {
    let world = World::new();
    let backend = backend(&world).await;
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    eventually("all to be known", async || {
        let kept = KINDS.iter().all(|kind| file(&world, kind).exists());
        (seen(&client).await == ("Current".into(), 1, true, true) && kept).then_some(())
    })
    .await;
    backend.stop().await;
    world
}

/// The first line of what is kept; empty if nothing is.
fn heading(world: &World, kind: &str) -> String {
    let mut line = String::new();
    if let Ok(file) = std::fs::File::open(file(world, kind)) {
        let _ = BufReader::new(GzDecoder::new(file)).read_line(&mut line);
    }
    line
}

fn file(world: &World, kind: &str) -> std::path::PathBuf {
    world.path("data/last-good").join(kind).join(format!("{NAME}.gz"))
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_it_is_served_at_once_though_the_backend_is_dead() {
    let world = after_one_life().await;
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    remembered(&client).await;
    // And so it stays when the backend was asked in vain.
    gateway.said(&["APIService is not available", NAME, "ConnectionRefused"]).await;
    eventually("discovery to fail", async || {
        let report = admin(&gateway, get("/status.json", &[])).await.json();
        (report["apiservices"][0]["discovery"]["problem"] != "").then_some(())
    })
    .await;
    assert_eq!(seen(&client).await, ("Stale".into(), 1, true, true));
    let _back = backend(&world).await;
    eventually("it to be current", async || (seen(&client).await.0 == "Current").then_some(())).await;
}

/// A disk that does not answer: here a pipe that nobody writes to. Routes, probes and discovery go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_holds_up_nobody() {
    let world = after_one_life().await;
    for kind in ["discovery", "openapi-v3"] {
        let file = file(&world, kind);
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    }
    let _back = backend(&world).await;
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    eventually("it to be current", async || {
        let (freshness, resources, openapi, _) = seen(&client).await;
        ((freshness.as_str(), resources, openapi) == ("Current", 1, true)).then_some(())
    })
    .await;
    // Something else is registered, and found.
    let settings = Settings { names: vec!["others-v1.others.svc"], ..Settings::default() };
    let others = Backend::start(&world, settings, async |_| answer(200, "{}")).await;
    world.register("others.example.com", "v1", &[&others]);
    eventually("the other to be served", async || {
        let asked = client.get("/apis/others.example.com/v1/namespaces/default/things").await;
        (asked.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_backend_said_is_not_taken() {
    let world = after_one_life().await;
    let text = world.read(&format!("registry/{NAME}.yaml"));
    let annotated =
        text.replacen("metadata:\n", "metadata:\n  annotations: {narthex.dev/server-name: things.elsewhere}\n", 1);
    assert_ne!(text, annotated);
    world.registry(&format!("{NAME}.yaml"), &annotated);
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    gateway.said(&["cached document ignored: saved for a different backend", "/discovery/"]).await;
    gateway.said(&["cached document ignored: saved for a different backend", "/openapi-v3/"]).await;
    assert_eq!(seen(&client).await, ("Stale".into(), 0, false, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_does_not_make_it_another_backend() {
    let world = after_one_life().await;
    let text = world.read(&format!("registry/{NAME}.yaml"));
    let before = base64::engine::general_purpose::STANDARD.encode(world.read("backend-ca.crt"));
    let both = [world.read("backend-ca.crt"), world.read("requestheader-ca.crt")].concat();
    let rotated = text.replace(&before, &base64::engine::general_purpose::STANDARD.encode(both));
    assert_ne!(text, rotated);
    world.registry(&format!("{NAME}.yaml"), &rotated);
    let gateway = world.gateway(&[]);
    remembered(&jane(&world, &gateway).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_moved_is_kept_as_said_by_its_new_backend_though_it_says_the_same() {
    let world = World::new();
    let settings =
        Settings { all: true, names: vec!["things-v1.things.svc", "things.elsewhere"], ..Settings::default() };
    let backend = Backend::start(&world, settings, async |request| things(request.uri().path())).await;
    world.register("things.example.com", "v1", &[&backend]);
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    eventually("all to be known", async || {
        let kept = KINDS.iter().all(|kind| heading(&world, kind).contains("things.example.com"));
        (seen(&client).await == ("Current".into(), 1, true, true) && kept).then_some(())
    })
    .await;
    let moved = "metadata:\n  annotations: {narthex.dev/server-name: things.elsewhere}\n";
    let text = world.read(&format!("registry/{NAME}.yaml")).replacen("metadata:\n", moved, 1);
    world.registry(&format!("{NAME}.yaml"), &text);
    eventually("all to be kept anew", async || {
        KINDS.iter().all(|kind| heading(&world, kind).contains("things.elsewhere")).then_some(())
    })
    .await;
    drop((client, gateway));
    backend.stop().await;
    let gateway = world.gateway(&[]);
    remembered(&jane(&world, &gateway).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_files_keep_nothing_from_starting() {
    let world = after_one_life().await;
    for kind in KINDS {
        std::fs::write(file(&world, kind), "no file of ours").unwrap();
    }
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    assert_eq!(seen(&client).await, ("Stale".into(), 0, false, false));
    gateway.said(&["cached document ignored: cannot be read"]).await;
    let _back = backend(&world).await;
    eventually("it to be current", async || (seen(&client).await.0 == "Current").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_apiservice_it_is_forgotten() {
    let world = after_one_life().await;
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    assert_eq!(seen(&client).await.0, "Stale");
    std::fs::remove_file(world.path(&format!("registry/{NAME}.yaml"))).unwrap();
    eventually("nothing to be left", async || KINDS.iter().all(|kind| !file(&world, kind).exists()).then_some(()))
        .await;
    eventually("no document to speak of it", async || {
        (seen(&client).await == (String::new(), 0, false, false)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_went_while_no_process_ran_is_forgotten_with_the_next() {
    let world = after_one_life().await;
    std::fs::remove_file(world.path(&format!("registry/{NAME}.yaml"))).unwrap();
    let _gateway = world.gateway(&[]);
    eventually("nothing to be left", async || KINDS.iter().all(|kind| !file(&world, kind).exists()).then_some(()))
        .await;
}
