//! Requests on an open connection to an endpoint whose process is stopped, or only busy.

use std::time::Duration;

use http::Method;

use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{Backend, BackendSettings};
use crate::support::client::{Client, admin_request, get, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::process::BackendProcess;
use crate::support::raw_backend::{RawFrame, RawH2Connection};

/// A gateway and one client, which has been answered by each of `processes`.
async fn connect_to_processes(environment: TestEnvironment, processes: &[&BackendProcess]) -> (GatewayFixture, Client) {
    let addresses: Vec<_> = processes.iter().map(|process| process.address).collect();
    let fixture = GatewayFixture::with_addresses(environment, &addresses, &[]);
    let client = fixture.http2().await;
    for _ in 0..20 * processes.len() {
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    (fixture, client)
}

async fn state(fixture: &GatewayFixture) -> String {
    let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    report["apiservices"][0]["endpoints"][0]["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_endpoint_get_on_open_connection_is_503_with_reason() {
    let environment = TestEnvironment::new();
    let process = BackendProcess::start(&environment, "a", &BackendSettings::http2());
    let (fixture, client) = connect_to_processes(environment, &[&process]).await;
    process.pause();
    let response = client.get(THINGS).await;
    let status = response.assert_failure(503, "ServiceUnavailable");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("NoAnswer, its endpoint did not answer within "), "{message}");
    assert!(!message.contains("127.0.0.1"), "{message}");
    assert_eq!(status["details"]["causes"][0]["reason"], "NoAnswer");
    assert_eq!(retry_after_seconds(&response), Some(1));
    fixture.gateway.wait_for_log(&[&format!("endpoint {} did not answer within ", process.address)]).await;
    // The next need not find it out, nor another thread's.
    fixture.http1().await.get(THINGS).await.assert_failure(503, "ServiceUnavailable");
    client.get(THINGS).await.assert_failure(503, "ServiceUnavailable");
    let waits = fixture.gateway.log_lines().iter().filter(|line| line.contains("did not answer within ")).count();
    assert_eq!(waits, 1, "requests that waited for an answer");
    let output =
        || fixture.gateway.log_lines().iter().filter(|line| line.contains("does not answer; not used")).count();
    for times in 1..=2 {
        eventually("it to be said", async || (output() >= times).then_some(())).await;
        assert_eq!(output(), times, "once for each time");
        process.resume();
        eventually("it to be used again", async || (client.get(THINGS).await.status == 200).then_some(())).await;
        eventually("it to be shown", async || (state(&fixture).await == "ready").then_some(())).await;
        process.pause();
        client.get(THINGS).await.assert_failure(503, "ServiceUnavailable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_endpoint_get_is_sent_to_another() {
    let environment = TestEnvironment::new();
    let [a, b] = ["a", "b"].map(|name| BackendProcess::start(&environment, name, &BackendSettings::http2()));
    let (fixture, client) = connect_to_processes(environment, &[&a, &b]).await;
    a.pause();
    for _ in 0..20 {
        let response = client.get(THINGS).await;
        assert_eq!((response.status.as_u16(), response.text()), (200, "{\"by\":\"b\"}".to_owned()));
    }
    let waits = fixture.gateway.log_lines().iter().filter(|line| line.contains("did not answer within ")).count();
    assert!(waits <= 1, "{waits} requests waited for an answer");
}

/// client-go sends its own limit, `kubectl --request-timeout=5s`: an answer that comes at its end is not read.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_endpoint_write_is_504_with_reason_before_client_timeout() {
    let environment = TestEnvironment::new();
    let process = BackendProcess::start(&environment, "a", &BackendSettings::http2());
    let (_scene, client) = connect_to_processes(environment, &[&process]).await;
    process.pause();
    let post = client.send_and_read(request(Method::POST, &format!("{THINGS}?timeout=5s"), &[], "{}"));
    let response = tokio::time::timeout(Duration::from_secs(5), post).await.expect("an answer that the client reads");
    let status = response.assert_failure(504, "Timeout");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("its endpoint does not answer"), "{message}");
}

/// A busy server may miss a ping: an endpoint that completes a TLS handshake meanwhile keeps its requests.
#[tokio::test(flavor = "multi_thread")]
async fn busy_endpoint_that_misses_a_ping_keeps_its_requests() {
    let environment = TestEnvironment::new();
    let backend = Backend::start_raw(&environment, BackendSettings::http2(), move |stream| async move {
        let Some(mut frames) = RawH2Connection::accept(stream).await else { return };
        while let Some(frame) = frames.next_frame().await {
            if frame.kind == RawFrame::HEADERS {
                // It reads nothing meanwhile.
                tokio::time::sleep(Duration::from_millis(3500)).await;
                frames.respond_ok(frame.stream).await;
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("probe-interval", "24h")]);
    let client = fixture.http2().await;
    for _ in 0..2 {
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    assert!(!fixture.gateway.log_lines().iter().any(|line| line.contains("does not answer")));
}
