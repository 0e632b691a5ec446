//! Reported state of endpoints and APIServices whose backends refuse connections or do not answer.

use std::net::SocketAddr;

use serde_json::Value;

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, admin, get};
use crate::raw::{self, Talk};
use crate::scene::{Scene, THINGS};
use crate::world::{Gateway, World, eventually};

/// The APIService `name` in the status report.
async fn status_of(gateway: &Gateway, name: &str) -> Value {
    let report = admin(gateway, get("/status.json", &[])).await.json();
    report["apiservices"].as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
}

async fn available(gateway: &Gateway, name: &str, wanted: bool) -> Value {
    eventually(&format!("{name} to be available: {wanted}"), async || {
        let status = status_of(gateway, name).await;
        (status["available"] == wanted).then_some(status)
    })
    .await
}

/// A port where nothing listens.
async fn nobody() -> SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_slice_that_leads_to_a_dead_port_makes_its_apiservice_unavailable_while_idle() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), async |_| json(200, "{}")).await;
    world.register("things.example.com", "v1", &[&backend]);
    let gateway = world.gateway(&[]);
    let before = available(&gateway, "v1.things.example.com", true).await;
    assert_eq!((&before["message"], &before["endpoints"][0]["state"]), (&"all checks passed".into(), &"ready".into()));
    let dead = nobody().await;
    world.registry("v1.things.example.com.yaml", &world.manifests("things.example.com", "v1", &[dead], ""));
    // By turns it would take more than a minute, which is longer than this waits.
    let after = available(&gateway, "v1.things.example.com", false).await;
    assert_eq!(after["reason"], "FailedDiscoveryCheck");
    let endpoint = &after["endpoints"][0];
    assert_eq!((&endpoint["state"], &endpoint["reason"]), (&"unreachable".into(), &"ConnectionRefused".into()));
    assert_eq!(endpoint["address"], dead.to_string());
    world.register("things.example.com", "v1", &[&backend]);
    let back = available(&gateway, "v1.things.example.com", true).await;
    assert_eq!(back["endpoints"][0]["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_that_two_apiservices_share_is_unreachable_for_both() {
    let world = World::new();
    let backend =
        Backend::start(&world, Settings { all: true, ..Settings::default() }, async |_| json(200, "{}")).await;
    for version in ["v1", "v2"] {
        let text = world.manifests("things.example.com", version, &[backend.address], "");
        // Both are versions of one server.
        let text = text.replace(&format!("things-{version}"), "things-v1");
        let text = if version == "v1" { text } else { text.split("---").next().unwrap().to_owned() };
        world.registry(&format!("{version}.yaml"), &text);
    }
    let gateway = world.gateway(&[]);
    let names = ["v1.things.example.com", "v2.things.example.com"];
    for name in names {
        available(&gateway, name, true).await;
    }
    let jane = Client::http1(&world, &gateway, Some(&world.user("jane", &[]))).await;
    let address = backend.stop().await;
    // Requests for one of them find it out.
    let states = eventually("both to be unavailable", async || {
        jane.get(THINGS).await;
        let states = [status_of(&gateway, names[0]).await, status_of(&gateway, names[1]).await];
        states.iter().all(|one| one["available"] == false).then_some(states)
    })
    .await;
    for status in states {
        let endpoint = &status["endpoints"][0];
        let shown = [&endpoint["address"], &endpoint["state"], &endpoint["reason"]];
        assert_eq!(shown, [&address.to_string().into(), &"unreachable".into(), &Value::from("ConnectionRefused")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn circuit_open_is_said_in_the_condition_of_an_available_apiservice() {
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), |talk: Talk| async move { drop(talk) }).await;
    let scene = Scene::new(world, &[&backend], &[]);
    let jane = scene.http1().await;
    let status = eventually("the circuit to open", async || {
        for _ in 0..5 {
            jane.get(THINGS).await;
        }
        let status = status_of(&scene.gateway, "v1.things.example.com").await;
        (status["circuit"] == "open" && status["message"] != "all checks passed").then_some(status)
    })
    .await;
    assert_eq!(status["available"], true);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("ConnectionBroken") && message.contains("circuit open"), "{message}");
    let said = scene.gateway.said(&["circuit open"]).await;
    assert!(said.contains("\"ConnectionBroken\"") && !said.contains("Passed"), "{said}");
}
