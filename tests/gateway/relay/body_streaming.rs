//! Body streaming in both directions: byte for byte, with backpressure, and truncation is always visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, streamed_response};
use crate::support::client::{RequestBody, get, next_chunk, read_response, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

pub(crate) const CHUNK_SIZE: usize = 64 << 10;

/// A body of `counted_body` pieces that counts those that were asked for.
pub(crate) fn counted_body(pieces: usize, recorded: &Arc<AtomicUsize>) -> RequestBody {
    let recorded = recorded.clone();
    let stream = futures_util::stream::poll_fn(move |_| {
        let number = recorded.fetch_add(1, Ordering::SeqCst);
        std::task::Poll::Ready((number < pieces).then(|| Ok(Frame::data(Bytes::from(vec![number as u8; CHUNK_SIZE])))))
    });
    BodyExt::boxed(StreamBody::new(stream))
}

/// A body the test writes.
pub(crate) fn channel_body() -> (mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>, RequestBody) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, BodyExt::boxed(StreamBody::new(stream)))
}

/// Waits until `count` grows no more; what it is then.
async fn wait_until_stable(count: &AtomicUsize) -> usize {
    let (mut last, mut quiet) = (usize::MAX, 0);
    eventually("the flow to stop", async || {
        let now = count.load(Ordering::SeqCst);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        (quiet == 15 && now > 0).then_some(now)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn response_backpressure_bounds_memory_for_slow_client() {
    const PIECES: usize = 1_000;
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let recorded = Arc::new(AtomicUsize::new(0));
        let counter = recorded.clone();
        let backend = Backend::start(&environment, settings, move |_| {
            counter.store(0, Ordering::SeqCst);
            let body = counted_body(PIECES, &counter);
            async { http::Response::new(body) }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            client.get("/version").await;
            let before = fixture.gateway.resident_kilobytes();
            let response = client.send(get(THINGS, &[])).await.unwrap();
            let stopped = wait_until_stable(&recorded).await;
            assert!(stopped < PIECES, "all of it went somewhere");
            let grown = fixture.gateway.resident_kilobytes().saturating_sub(before);
            assert!(grown < 12 << 10, "{grown} kB more for one slow reader");
            let reply = read_response(response).await;
            assert!(reply.is_complete);
            assert_eq!(reply.body.len(), PIECES * CHUNK_SIZE);
            assert!((0..PIECES).all(|number| reply.body[number * CHUNK_SIZE] == number as u8));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_backpressure_bounds_memory_for_slow_backend() {
    const PIECES: usize = 1_000;
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let go = Arc::new(tokio::sync::Semaphore::new(0));
        let waiting = go.clone();
        let backend = Backend::start(&environment, settings, move |request| {
            let waiting = waiting.clone();
            async move {
                waiting.acquire().await.unwrap().forget();
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let right = (0..PIECES).all(|number| bytes[number * CHUNK_SIZE] == number as u8);
                json_response(200, &format!("{} {right}", bytes.len()))
            }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            client.get("/version").await;
            let before = fixture.gateway.resident_kilobytes();
            let recorded = Arc::new(AtomicUsize::new(0));
            let body = counted_body(PIECES, &recorded);
            let post = Request::post(THINGS).body(body).unwrap();
            let sending = tokio::spawn(async move { client.send_and_read(post).await });
            let stopped = wait_until_stable(&recorded).await;
            assert!(stopped < PIECES, "all of it went somewhere");
            let grown = fixture.gateway.resident_kilobytes().saturating_sub(before);
            assert!(grown < 12 << 10, "{grown} kB more for one slow backend");
            go.add_permits(1);
            let reply = sending.await.unwrap();
            assert_eq!(reply.text(), format!("{} true", PIECES * CHUNK_SIZE));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_relayed_in_both_directions() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, async |request| {
            let collected = request.into_body().collect().await.unwrap();
            let sum = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
            let (sender, mut reply) = streamed_response(200);
            sender.send(data_frame(&format!("{sum:?}"))).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-end", "reached".parse().unwrap());
            trailers.insert("set-cookie", "a=b".parse().unwrap());
            sender.send(Ok(Frame::trailers(trailers))).unwrap();
            reply.headers_mut().insert("trailer", "x-end, set-cookie".parse().unwrap());
            reply
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            let (sender, body) = channel_body();
            sender.send(data_frame("body")).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-sum", "42".parse().unwrap());
            trailers.insert("x-remote-user", "root".parse().unwrap());
            sender.send(Ok(Frame::trailers(trailers))).unwrap();
            drop(sender);
            let post = Request::post(THINGS).header("te", "trailers").header("trailer", "x-sum, x-remote-user");
            let response = client.send(post.body(body).unwrap()).await.unwrap();
            let collected = response.into_body().collect().await.unwrap();
            let trailers = collected.trailers().cloned().expect("trailers came");
            assert_eq!(trailers["x-end"], "reached");
            assert!(!trailers.contains_key("set-cookie"));
            assert_eq!(collected.to_bytes(), "Some(\"42\")");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_and_compressed_bodies_relayed_unchanged() {
    const GZIP: &[u8] =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcbH\xcd\xc9\xc9\x07\x00\x86\xa6\x106\x05\x00\x00\x00";
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, async |request| {
            let length = request.headers().get("content-length").cloned();
            let encoding = request.headers().get("accept-encoding").cloned();
            let get = request.method() == Method::GET;
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut reply = if get {
                http::Response::new(http_body_util::Full::new(Bytes::from_static(GZIP)).map_err(|e| match e {}).boxed())
            } else {
                json_response(200, "")
            };
            let seen = format!("{length:?} {} {encoding:?}", body.len());
            reply.headers_mut().insert("x-seen", seen.parse().unwrap());
            if get {
                reply.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
            }
            reply
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            let reply = client.send_and_read(get(THINGS, &[("accept-encoding", "gzip")])).await;
            assert_eq!((&reply.body[..], reply.headers["content-encoding"].as_bytes()), (GZIP, &b"gzip"[..]));
            assert_eq!(reply.headers["x-seen"], "None 0 Some(\"gzip\")");
            // Nothing is asked for that the client did not ask for.
            assert_eq!(client.get(THINGS).await.headers["x-seen"], "None 0 None");
            let reply = client.send_and_read(request(Method::HEAD, THINGS, &[], "")).await;
            assert_eq!((reply.status.as_u16(), reply.body.len(), reply.is_complete), (200, 0, true));
            let reply = client.send_and_read(request(Method::POST, THINGS, &[("content-length", "0")], "")).await;
            assert!(reply.headers["x-seen"].to_str().unwrap().starts_with("Some(\"0\") 0"), "{:?}", reply.headers);
            assert_eq!((reply.body.len(), reply.is_complete), (0, true));
            let reply = client.send_and_read(request(Method::DELETE, THINGS, &[], "")).await;
            assert!(reply.headers["x-seen"].to_str().unwrap().contains(" 0 "), "{:?}", reply.headers);
        }
    }
}

/// Says when it is dropped.
struct DropNotifier(mpsc::UnboundedSender<&'static str>, &'static str);

impl Drop for DropNotifier {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_disconnect_cancels_backend_request() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let (tell, mut message) = mpsc::unbounded_channel();
        let backend = Backend::start(&environment, settings, move |request| {
            let tell = tell.clone();
            async move {
                if request.uri().query() == Some("watch=1") {
                    let (sender, reply) = streamed_response(200);
                    sender.send(data_frame("first\n")).unwrap();
                    tokio::spawn(async move {
                        sender.closed().await;
                        let _ = tell.send("watch");
                    });
                    return reply;
                }
                let _ = tell.send("asked");
                let _gone = DropNotifier(tell, "waiting");
                std::future::pending().await
            }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for old in [true, false] {
            let client = if old { fixture.http1().await } else { fixture.http2().await };
            let pending_request = tokio::spawn(async move { client.send(get(THINGS, &[])).await });
            assert_eq!(message.recv().await, Some("asked"));
            pending_request.abort();
            assert_eq!(message.recv().await, Some("waiting"), "the request was given up (old: {old})");
            let client = if old { fixture.http1().await } else { fixture.http2().await };
            let mut body = client.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap().into_body();
            assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "first\n");
            drop((body, client));
            assert_eq!(message.recv().await, Some("watch"), "the watch ended (old: {old})");
        }
    }
}

/// Asserts that nothing more comes, and that this is a good end.
async fn assert_ends_cleanly(mut body: hyper::body::Incoming) {
    while let Some(frame) = next_chunk(&mut body).await {
        assert!(frame.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inflight_limit_counts_request_until_body_ends() {
    let environment = TestEnvironment::new();
    let senders = Arc::new(Mutex::new(Vec::new()));
    let kept = senders.clone();
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let (sender, reply) = streamed_response(200);
        sender.send(data_frame("begun")).unwrap();
        kept.lock().push(sender);
        async { reply }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("max-inflight", "1")]);
    let client = fixture.http2().await;
    let mut body = client.send(get(THINGS, &[])).await.unwrap().into_body();
    assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "begun");
    let reply = client.get(THINGS).await;
    reply.assert_failure(429, "TooManyRequests");
    assert!(reply.headers.contains_key("retry-after"));
    // Watches do not count.
    let watch = client.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap();
    assert_eq!(watch.status(), 200);
    senders.lock().remove(0);
    assert_ends_cleanly(body).await;
    eventually("the place to be free", async || {
        let response = client.send(get(THINGS, &[])).await.unwrap();
        (response.status() == 200).then_some(())
    })
    .await;
}

/// A client that goes on sending while the answer comes: both flow at once.
#[tokio::test(flavor = "multi_thread")]
async fn request_and_response_bodies_stream_concurrently() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, async |request| {
            let (sender, reply) = streamed_response(200);
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    if let Ok(data) = frame.into_data() {
                        let _ = sender.send(Ok(Frame::data(data)));
                    }
                }
            });
            reply
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            let (sender, body) = channel_body();
            sender.send(data_frame("one")).unwrap();
            let pending_request = client.send(Request::post(THINGS).body(body).unwrap());
            let mut echo =
                tokio::time::timeout(Duration::from_secs(30), pending_request).await.unwrap().unwrap().into_body();
            assert_eq!(next_chunk(&mut echo).await.unwrap().unwrap(), "one");
            for text in ["two", "three"] {
                sender.send(data_frame(text)).unwrap();
                assert_eq!(next_chunk(&mut echo).await.unwrap().unwrap(), text);
            }
            drop(sender);
            assert_ends_cleanly(echo).await;
        }
    }
}

/// Neither a client that does not read nor a backend that never ends keeps a request under way beyond its time.
#[tokio::test(flavor = "multi_thread")]
async fn request_timeout_ends_unread_and_endless_responses() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let (tell, mut message) = mpsc::unbounded_channel();
        let backend = Backend::start(&environment, settings, move |request| {
            let gone = DropNotifier(tell.clone(), "given up");
            async move {
                if request.uri().query() == Some("short=1") {
                    return json_response(200, "{}");
                }
                let stream = futures_util::stream::poll_fn(move |_| {
                    let _held = &gone;
                    std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; CHUNK_SIZE])))))
                });
                http::Response::new(BodyExt::boxed(StreamBody::new(stream)))
            }
        })
        .await;
        let fixture =
            GatewayFixture::new(environment, &[&backend], &[("request-timeout", "600ms"), ("max-inflight", "1")]);
        for (number, client) in fixture.both_protocols().await.into_iter().chain([fixture.http2().await]).enumerate() {
            let response = client.send(get(THINGS, &[])).await.unwrap();
            if number < 2 {
                // Not a byte is read until it is over.
                assert_eq!(message.recv().await, Some("given up"), "client {number}");
                let other = fixture.http2().await;
                eventually("the place to be free", async || {
                    (other.get(&format!("{THINGS}?short=1")).await.status == 200).then_some(())
                })
                .await;
            }
            assert!(!read_response(response).await.is_complete, "client {number}");
            if number >= 2 {
                assert_eq!(message.recv().await, Some("given up"), "client {number}");
            }
            while message.try_recv().is_ok() {}
        }
    }
}
