//! Truncated responses: which side is at fault, and outlier detection of endpoints that truncate responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;

use crate::relay::body_streaming::channel_body;
use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response, streamed_response,
};
use crate::support::client::{get, next_chunk, read_response};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::raw_backend;

/// What is said of an endpoint that is taken out.
const EJECTED_MESSAGE: &str = "endpoint ejected after repeated failures";

/// A good beginning, and no end.
fn truncated_response() -> BackendResponse {
    let (writer, response) = streamed_response(200);
    writer.send(data_frame("{\"items\":[")).unwrap();
    tokio::spawn(async move {
        // What is reset at once is never seen.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let _ = writer.send(Err(std::io::Error::other("no more of it")));
    });
    response
}

/// One of two truncates every list: by its heads alone it would serve as well as the other.
#[tokio::test(flavor = "multi_thread")]
async fn outlier_detection_ejects_endpoint_truncating_responses() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let (breaks, started) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let fine = Backend::start(&environment, settings.clone(), async |_| json_response(200, "{}")).await;
        let (says, counter) = (breaks.clone(), started.clone());
        let broken = Backend::start(&environment, settings, move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            let breaks = says.load(Ordering::SeqCst);
            async move { if breaks { truncated_response() } else { json_response(200, "{}") } }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&fine, &broken], &[]);
        let client = fixture.http2().await;
        let ask = async || match client.send(get(THINGS, &[])).await {
            Ok(response) => read_response(response).await.is_complete,
            Err(_) => false,
        };
        eventually("it to be left", async || {
            ask().await;
            fixture
                .gateway
                .log_lines()
                .iter()
                .any(|line| line.contains(EJECTED_MESSAGE) && line.contains("BrokenAnswer"))
                .then_some(())
        })
        .await;
        let then = started.load(Ordering::SeqCst);
        assert!((5..=7).contains(&then), "{then}");
        for _ in 0..100 {
            ask().await;
        }
        let during = started.load(Ordering::SeqCst) - then;
        assert!(during < 10, "of 100 requests {during} went to the one that breaks its answers off");
        breaks.store(false, Ordering::SeqCst);
        eventually("it to be used again", async || {
            ask().await;
            (started.load(Ordering::SeqCst) > then + during + 20).then_some(())
        })
        .await;
    }
}

/// What was not begun costs its backend nothing, and nothing of what may be begun twice.
#[tokio::test(flavor = "multi_thread")]
async fn refused_streams_retried_without_limit() {
    let environment = TestEnvironment::new();
    let streams = Arc::new(AtomicUsize::new(0));
    let counter = streams.clone();
    let backend = raw_backend::http2(&environment, move |mut stream: raw_backend::H2Exchange| {
        let number = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            match number % 2 {
                0 => stream.respond.send_reset(h2::Reason::REFUSED_STREAM),
                _ => stream.respond("{}".into()),
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let client = fixture.http2().await;
    // More than could be saved up for what was begun.
    for number in 0..800 {
        let response = client.get(THINGS).await;
        assert_eq!((response.status.as_u16(), response.is_complete), (200, true), "{number}: {}", response.text());
    }
    assert_eq!(streams.load(Ordering::SeqCst), 1600);
}

/// Clients that leave, that send what is not passed on, and watches that break within an event say nothing against an
/// endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn outlier_detection_ignores_client_aborts_and_broken_watches() {
    let environment = TestEnvironment::new();
    let both = [BackendSettings::http2(), BackendSettings::http2()].map(|settings| {
        Backend::start(&environment, settings, async |request| {
            if request.uri().query() == Some("fine=1") {
                return json_response(200, "{}");
            }
            if request.uri().query() == Some("watch=1") {
                return truncated_response();
            }
            let (writer, response) = streamed_response(200);
            writer.send(data_frame("a beginning")).unwrap();
            tokio::spawn(async move {
                // Never ends of itself.
                let _request = request;
                writer.closed().await;
            });
            response
        })
    });
    let both = futures_util::future::join_all(both).await;
    let fixture = GatewayFixture::new(environment, &[&both[0], &both[1]], &[("max-request-bytes", "1000")]);
    let client = fixture.http2().await;
    for _ in 0..20 {
        let mut left = client.send(get(THINGS, &[])).await.unwrap().into_body();
        assert_eq!(next_chunk(&mut left).await.unwrap().unwrap(), "a beginning");
        drop(left);
        let (sender, body) = channel_body();
        let mut cut = client.send(Request::post(THINGS).body(body).unwrap()).await.unwrap().into_body();
        assert_eq!(next_chunk(&mut cut).await.unwrap().unwrap(), "a beginning");
        sender.send(data_frame(&"x".repeat(1001))).unwrap();
        while let Some(Ok(_)) = next_chunk(&mut cut).await {}
        if let Ok(watch) = client.send(get(&format!("{THINGS}?watch=1"), &[])).await {
            assert!(!read_response(watch).await.is_complete);
        }
    }
    let output = |word: &str| fixture.gateway.log_lines().iter().filter(|line| line.contains(word)).count();
    assert!(client.get(&format!("{THINGS}?fine=1")).await.is_complete);
    assert_eq!(output(EJECTED_MESSAGE), 0, "{:?}", fixture.gateway.log_lines());
}
