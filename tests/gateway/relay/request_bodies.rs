//! Request bodies with irregular ends: early response, too large, truncated, Expect: 100-continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use http::{Method, Request};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::relay::body_streaming::{channel_body, counted_body};
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response};
use crate::support::client::{Client, connect, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::raw_backend::{self, RawConnection};

#[tokio::test(flavor = "multi_thread")]
async fn request_body_early_response_reaches_client() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, async |_| json_response(413, "too much")).await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for _ in 0..5 {
            for client in fixture.both_protocols().await {
                let recorded = Arc::new(AtomicUsize::new(0));
                let post = Request::post(THINGS).body(counted_body(10_000, &recorded)).unwrap();
                let response = client.send_and_read(post).await;
                assert_eq!(
                    (response.status.as_u16(), response.text().as_str(), response.is_complete),
                    (413, "too much", true)
                );
                assert!(recorded.load(Ordering::SeqCst) < 10_000, "the rest was not wanted");
            }
        }
        // One that stops in the middle of its body, waiting, gets it as well.
        for client in fixture.both_protocols().await {
            let (sender, body) = channel_body();
            sender.send(data_frame("a beginning")).unwrap();
            let response = client.send_and_read(Request::post(THINGS).body(body).unwrap()).await;
            assert_eq!((response.status.as_u16(), response.is_complete), (413, true));
            drop(sender);
        }
    }
}

/// A connection with an unfinished request body is not reused, and no request waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn request_body_still_sending_after_response_blocks_reuse() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        talk.write("HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!").await;
        // One without a body is over; the next may come.
        while talk.head.starts_with("GET") {
            if talk.next_head().await.is_none() {
                return;
            }
            talk.write("HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!").await;
        }
        while talk.read_more().await.is_some() {
            // What it would make of the next request, were it sent on this connection.
            let text = String::from_utf8_lossy(&talk.buffered).into_owned();
            if text.contains("HTTP/1.1") {
                talk.write("HTTP/1.1 500 Mixed Up\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let client = fixture.http2().await;
    let mut kept = Vec::new();
    for _ in 0..5 {
        let (sender, body) = channel_body();
        sender.send(data_frame("a beginning")).unwrap();
        let response = client.send_and_read(Request::post(THINGS).body(body).unwrap()).await;
        assert_eq!((response.status.as_u16(), response.text().as_str()), (413, "no!"));
        kept.push(sender);
        assert_eq!(client.get(THINGS).await.status, 413);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_body_too_large_is_413() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let whole = Arc::new(AtomicUsize::new(0));
        let counter = whole.clone();
        let backend = Backend::start(&environment, settings, move |request| {
            let counter = counter.clone();
            async move {
                if let Ok(body) = request.into_body().collect().await {
                    counter.fetch_add(1, Ordering::SeqCst);
                    return json_response(200, &body.to_bytes().len().to_string());
                }
                json_response(500, "")
            }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[("max-request-bytes", "1000")]);
        for client in fixture.both_protocols().await {
            assert_eq!(
                client.send_and_read(request(Method::POST, THINGS, &[], &"x".repeat(1_000))).await.text(),
                "1000"
            );
            let before = whole.load(Ordering::SeqCst);
            let response = client.send_and_read(request(Method::POST, THINGS, &[], &"x".repeat(1_001))).await;
            response.assert_failure(413, "RequestEntityTooLarge");
            // Without a length it shows only on the way.
            let client = fixture.http2().await;
            let (sender, body) = channel_body();
            sender.send(data_frame(&"x".repeat(600))).unwrap();
            sender.send(data_frame(&"x".repeat(600))).unwrap();
            drop(sender);
            let response = client.send_and_read(Request::post(THINGS).body(body).unwrap()).await;
            response.assert_failure(413, "RequestEntityTooLarge");
            assert_eq!(whole.load(Ordering::SeqCst), before, "the backend never had a whole body");
        }
    }
}

/// Half an object must never be stored: a body that broke off on its way never looks whole to the backend,
/// whatever reason the client gives.
#[tokio::test(flavor = "multi_thread")]
async fn request_body_truncated_is_never_complete_at_backend() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let started = Arc::new(AtomicUsize::new(0));
        let (kept, counter) = (ends.clone(), started.clone());
        let backend = Backend::start(&environment, settings, move |request| {
            let (kept, counter) = (kept.clone(), counter.clone());
            async move {
                let mut body = request.into_body();
                let first = body.frame().await;
                assert!(first.is_some());
                counter.fetch_add(1, Ordering::SeqCst);
                // Not canceled with the request: what would be stored is what counts.
                let ended = tokio::spawn(async move { body.collect().await.is_ok() });
                kept.lock().push(ended);
                std::future::pending().await
            }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        let mut sent = 0;
        for reason in [h2::Reason::NO_ERROR, h2::Reason::CANCEL, h2::Reason::INTERNAL_ERROR, h2::Reason::NO_ERROR] {
            let stream = connect(&fixture.environment, fixture.gateway.address, Some(&fixture.jane), &["h2"]).await;
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let uri = format!("https://localhost{THINGS}");
            let mut sender = sender.ready().await.unwrap();
            let (response, mut body) = sender.send_request(Request::post(uri).body(()).unwrap(), false).unwrap();
            body.send_data("{\"half\":".into(), false).unwrap();
            sent += 1;
            eventually("the backend to begin", async || (started.load(Ordering::SeqCst) == sent).then_some(())).await;
            body.send_reset(reason);
            drop(response);
        }
        // HTTP/1.1: cut within a chunked body, with and without TLS's goodbye.
        for goodbye in [true, false] {
            let mut stream =
                connect(&fixture.environment, fixture.gateway.address, Some(&fixture.jane), &["http/1.1"]).await;
            let head =
                format!("POST {THINGS} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{{\"half\":\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            sent += 1;
            eventually("the backend to begin", async || (started.load(Ordering::SeqCst) == sent).then_some(())).await;
            if goodbye {
                stream.shutdown().await.unwrap();
            }
            drop(stream);
        }
        let ends = std::mem::take(&mut *ends.lock());
        assert_eq!(ends.len(), sent);
        for whole in join_all(ends).await {
            assert!(!whole.unwrap(), "half a body looked whole");
        }
    }
}

/// A client of the door that never says more than a head.
#[tokio::test(flavor = "multi_thread")]
async fn request_body_never_sent_releases_permits_on_disconnect() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |request| {
        let whole = request.into_body().collect().await.is_ok();
        json_response(200, &whole.to_string())
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("max-inflight", "2")]);
    for _ in 0..6 {
        let mut stream =
            connect(&fixture.environment, fixture.gateway.address, Some(&fixture.jane), &["http/1.1"]).await;
        stream
            .write_all(format!("POST {THINGS} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n").as_bytes())
            .await
            .unwrap();
        drop(stream);
    }
    let client: Client = fixture.http2().await;
    eventually("the places to be free", async || {
        let response = client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await;
        (response.text() == "true").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_100_continue_sent_only_when_body_is_read() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, async |request| {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            json_response(200, std::str::from_utf8(&body).unwrap())
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[("max-request-bytes", "100")]);
        let head = |length: usize| {
            format!("POST {THINGS} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n")
        };
        let mut stream =
            connect(&fixture.environment, fixture.gateway.address, Some(&fixture.jane), &["http/1.1"]).await;
        stream.write_all(head(5).as_bytes()).await.unwrap();
        assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 100 "));
        stream.write_all(b"hello").await.unwrap();
        let response = read_until(&mut stream, "hello").await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        // Rejected before the body was read: no `100 Continue`.
        for (pair, length, status) in [(None, 5, "401"), (Some(&fixture.jane), 500, "413")] {
            let mut stream = connect(&fixture.environment, fixture.gateway.address, pair, &["http/1.1"]).await;
            stream.write_all(head(length).as_bytes()).await.unwrap();
            let response = read_until(&mut stream, "\r\n\r\n").await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        }
    }
}

/// Reads until `end` has come.
async fn read_until(stream: &mut (impl tokio::io::AsyncRead + Unpin), end: &str) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&bytes).contains(end) {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(crate::support::fixtures::TEST_TIMEOUT, reading).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
