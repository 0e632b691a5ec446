//! Fairness: the limit of requests in flight is shared between users, so that one noisy user does not exhaust it.

use http::{Method, StatusCode};
use tokio::task::JoinSet;

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, get, request, sample};
use crate::scene::{Scene, THINGS};
use crate::world::World;

/// How many requests the noisy user begins at once, and over how many connections.
const NOISE: usize = 1000;
const CONNECTIONS: usize = 5;

/// A thousand requests for what a backend does not answer, of which `held` find a place; others go on asking one
/// thing after another.
async fn noisy(annotations: &[(&str, &str)], held: usize, limit: &str) {
    let world = World::new();
    let (release, released) = tokio::sync::watch::channel(false);
    let backend = Backend::start(&world, Settings::default(), move |request| {
        let mut released = released.clone();
        async move {
            if request.uri().path().ends_with("/stall") {
                released.wait_for(|released| *released).await.unwrap();
            }
            json(200, "{}")
        }
    })
    .await;
    let flags = ["--max-requests-inflight=20", "--max-mutating-requests-inflight=20", "--access-log=off"];
    let scene = Scene::with(world, &[&backend], annotations, &flags);
    let stalled = format!("{THINGS}/stall?timeout=60s");
    let mut noise = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let client = scene.http2().await;
        for _ in 0..NOISE / CONNECTIONS {
            let (client, request) = (client.clone(), get(&stalled, &[]));
            noise.spawn(async move { client.ask(request).await });
        }
    }
    for _ in held..NOISE {
        let answer = noise.join_next().await.unwrap().unwrap();
        answer.refused(429, "TooManyRequests");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    let jane = scene.http2().await;
    let tom = Client::http2(&scene.world, &scene.gateway, Some(&scene.world.user("tom", &[]))).await;
    let anna = Client::http1(&scene.world, &scene.gateway, Some(&scene.world.user("anna", &[]))).await;
    for client in [&tom, &anna, &tom, &anna] {
        for _ in 0..5 {
            jane.get(&stalled).await.refused(429, "TooManyRequests");
            for (method, path) in [(Method::GET, THINGS), (Method::POST, THINGS), (Method::GET, "/version")] {
                let answer = client.ask(request(method, path, &[], "")).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }
    }
    assert_eq!((noise.try_join_next().is_none(), backend.seen().len()), (true, held + 40));
    let rejected = format!(
        "apiserver_flowcontrol_rejected_requests_total{{flow_schema=\"\",priority_level=\"{limit}\",reason=\"fair-share\"}}"
    );
    assert_eq!(sample(&scene.gateway, &rejected).await, Some((NOISE - held + 20) as f64));
    // Whoever was noisy is not locked out.
    release.send(true).unwrap();
    assert!(noise.join_all().await.iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!(jane.get(&stalled).await.status, 200);
}

/// The APIService takes half of all places unless told otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_noisy_user_leaves_places_at_its_api() {
    noisy(&[], 8, "apiservice").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_noisy_user_leaves_places_at_the_gateway() {
    noisy(&[("max-inflight", "100")], 15, "readOnly").await;
}
