//! Requests on an open connection to an endpoint whose process is stopped, or only busy.

use std::time::{Duration, Instant};

use http::Method;

use crate::backend::{Backend, Settings};
use crate::client::{Client, admin, get, request};
use crate::process::Process;
use crate::raw::{Frame, Frames};
use crate::refused::retry_after_seconds;
use crate::scene::{Scene, THINGS};
use crate::world::{World, eventually};

/// Less than it takes until an endpoint that answers no pings is given up for every request.
const SOON: Duration = Duration::from_millis(6500);

/// A gateway and one client, which has been answered by each of `processes`.
async fn connected(world: World, processes: &[&Process]) -> (Scene, Client) {
    let addresses: Vec<_> = processes.iter().map(|process| process.address).collect();
    let scene = Scene::at(world, &addresses, &[]);
    let client = scene.http2().await;
    for _ in 0..20 * processes.len() {
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    (scene, client)
}

async fn state(scene: &Scene) -> String {
    let report = admin(&scene.gateway, get("/status.json", &[])).await.json();
    report["apiservices"][0]["endpoints"][0]["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_endpoint_get_on_an_open_connection_answered_with_the_reason() {
    let world = World::new();
    let process = Process::start(&world, "a", &Settings::http2());
    let (scene, client) = connected(world, &[&process]).await;
    process.stop();
    let began = Instant::now();
    let answer = client.get(THINGS).await;
    let waited = began.elapsed();
    let status = answer.refused(503, "ServiceUnavailable");
    assert!(waited < SOON, "{waited:?} {status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("NoAnswer, its endpoint did not answer within "), "{message}");
    assert!(!message.contains("127.0.0.1"), "{message}");
    assert_eq!(status["details"]["causes"][0]["reason"], "NoAnswer");
    assert_eq!(retry_after_seconds(&answer), Some(1));
    scene.gateway.said(&[&format!("endpoint {} did not answer within ", process.address)]).await;
    // The next need not find it out, nor another thread's.
    let began = Instant::now();
    scene.http1().await.get(THINGS).await.refused(503, "ServiceUnavailable");
    client.get(THINGS).await.refused(503, "ServiceUnavailable");
    assert!(began.elapsed() < SOON);
    let said = || scene.gateway.log().iter().filter(|line| line.contains("does not answer; not used")).count();
    for times in 1..=2 {
        eventually("it to be said", async || (said() >= times).then_some(())).await;
        assert_eq!(said(), times, "once for each time");
        process.go_on();
        eventually("it to be used again", async || (client.get(THINGS).await.status == 200).then_some(())).await;
        eventually("it to be shown", async || (state(&scene).await == "ready").then_some(())).await;
        process.stop();
        client.get(THINGS).await.refused(503, "ServiceUnavailable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_endpoint_get_is_sent_to_another() {
    let world = World::new();
    let [a, b] = ["a", "b"].map(|name| Process::start(&world, name, &Settings::http2()));
    let (_scene, client) = connected(world, &[&a, &b]).await;
    a.stop();
    let began = Instant::now();
    for _ in 0..20 {
        let answer = client.get(THINGS).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "{\"by\":\"b\"}".to_owned()));
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// client-go sends its own limit, `kubectl --request-timeout=5s`: an answer that comes at its end is not read.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_endpoint_write_answered_with_the_reason_before_its_clients_timeout() {
    let world = World::new();
    let process = Process::start(&world, "a", &Settings::http2());
    let (_scene, client) = connected(world, &[&process]).await;
    process.stop();
    let post = client.ask(request(Method::POST, &format!("{THINGS}?timeout=5s"), &[], "{}"));
    let answer = tokio::time::timeout(Duration::from_secs(5), post).await.expect("an answer that the client reads");
    let status = answer.refused(504, "Timeout");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("its endpoint does not answer"), "{message}");
}

/// A ping may be missed by a server that is there: who completes a handshake meanwhile keeps its requests.
#[tokio::test(flavor = "multi_thread")]
async fn busy_endpoint_that_misses_a_ping_keeps_its_requests() {
    let world = World::new();
    let backend = Backend::raw(&world, Settings::http2(), move |stream| async move {
        let Some(mut frames) = Frames::begin(stream).await else { return };
        while let Some(frame) = frames.next().await {
            if frame.kind == Frame::HEADERS {
                // It reads nothing meanwhile.
                tokio::time::sleep(Duration::from_millis(3500)).await;
                frames.ok(frame.stream).await;
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("probe-interval", "24h")]);
    let client = scene.http2().await;
    for _ in 0..2 {
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    assert!(!scene.gateway.log().iter().any(|line| line.contains("does not answer")));
}
