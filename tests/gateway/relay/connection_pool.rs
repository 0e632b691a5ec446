//! Connection pool to backends: opens enough connections, shares them only where TLS trust is equal, and retries
//! requests that are safe to retry when one closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use futures_util::future::join_all;
use http::{Method, Response};
use narthex::tls::{Authority, CertificateSpec as CertificateRequest};
use parking_lot::Mutex;

use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{Backend, BackendSettings, data_frame, start_watch_backend};
use crate::support::client::{next_chunk, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml, open_watch};
use crate::support::raw_backend::{self, ConnectionEnd, RawConnection, RawFrame, RawH2Connection};

#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_many_watches_do_not_block_get() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { streams: 100, ..BackendSettings::http2() };
    let (backend, writers) = start_watch_backend(&environment, settings).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let clients = join_all((0..5).map(|_| fixture.http2())).await;
    let watches = clients.iter().flat_map(|client| (0..100).map(move |_| open_watch(client)));
    let mut bodies = join_all(watches).await;
    assert_eq!(fixture.http1().await.get(THINGS).await.status, 200);
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 200);
    for writer in writers.lock().unwrap().iter() {
        writer.send(data_frame("second\n")).unwrap();
    }
    for body in &mut bodies {
        assert_eq!(next_chunk(body).await.unwrap().unwrap(), "second\n");
    }
}

/// What a backend allows is known before anything is sent, so that nothing waits behind a watch.
#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_opens_connections_beyond_stream_limit() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { streams: 2, ..BackendSettings::http2() };
    let (backend, _writers) = start_watch_backend(&environment, settings).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let client = fixture.http2().await;
    let _bodies = join_all((0..20).map(|_| open_watch(&client))).await;
    assert!(backend.connections() >= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_reuses_http1_connection_after_response() {
    let environment = TestEnvironment::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            loop {
                let response = match &talk.head {
                    head if head.starts_with("HEAD") => "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n",
                    head if head.contains("what=204") => "HTTP/1.1 204 No Content\r\n\r\n",
                    head if head.contains("what=304") => "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n",
                    head if head.contains("what=chunked") => {
                        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                    }
                    head if head.contains("what=empty") => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                    _ => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
                };
                // The two bytes of a POST's body.
                while talk.head.starts_with("POST") && talk.buffered.len() < 2 {
                    talk.read_more().await;
                }
                if talk.head.starts_with("POST") {
                    talk.buffered.drain(..2);
                }
                talk.write(response).await;
                if talk.next_head().await.is_none() {
                    return;
                }
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for (number, client) in fixture.both_protocols().await.into_iter().enumerate() {
        let before = connections.load(Ordering::SeqCst);
        for _ in 0..3 {
            for what in ["204", "304", "chunked", "empty", "counted"] {
                let path = format!("{THINGS}?what={what}");
                let response = client.get(&path).await;
                assert!(response.is_complete);
                assert_eq!(client.send_and_read(request(Method::HEAD, &path, &[], "")).await.status, 200);
                let response = client.send_and_read(request(Method::POST, &path, &[], "{}")).await;
                assert!(response.is_complete && response.status.as_u16() < 400, "{}", response.text());
            }
        }
        let opened = connections.load(Ordering::SeqCst) - before;
        assert!(opened <= 1, "client {number}: {opened} connections for requests one after another");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_idle_connection_closed_by_backend_loses_no_request() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        talk.write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
        match fastrand::u8(..3) {
            0 => talk.close().await,
            1 => drop(talk),
            _ => talk.reset(),
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for _ in 0..30 {
            let response = client.get(THINGS).await;
            assert_eq!((response.status.as_u16(), response.text().as_str()), (200, "hello"));
        }
        // Many at once leave many connections behind, all of them closed.
        let other = fixture.http2().await;
        for _ in 0..3 {
            for response in join_all((0..10).map(|_| other.get(THINGS))).await {
                assert_eq!(response.status, 200, "{}", response.text());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_repeated_goaway_loses_no_request() {
    let environment = TestEnvironment::new();
    let served = Arc::new(AtomicUsize::new(0));
    let counter = served.clone();
    let backend = raw_backend::http2(&environment, move |mut stream: raw_backend::H2Exchange| {
        let number = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            if number % 7 == 6 {
                let _ = stream.connection.send(ConnectionEnd::Finish);
            }
            let body = stream.body().await;
            stream.respond(body);
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let clients = fixture.both_protocols().await;
    for round in 0..6 {
        let all = (0..25).map(|number| {
            let client = &clients[if number == 0 { 0 } else { 1 }];
            let text = format!("{{\"round\":{round},\"number\":{number}}}");
            async move {
                let post = number % 2 == 0;
                let (method, body) = if post { (Method::POST, text.as_str()) } else { (Method::GET, "") };
                let response = client.send_and_read(request(method, THINGS, &[], body)).await;
                assert_eq!((response.status.as_u16(), response.text().as_str()), (200, body));
            }
        });
        join_all(all).await;
    }
    assert_eq!(served.load(Ordering::SeqCst), 150, "each was carried out once");
}

/// A request that a GOAWAY leaves out was not looked at: it goes to another connection, its body whole. One
/// that it counts in may have been carried out.
#[tokio::test(flavor = "multi_thread")]
async fn retry_post_only_if_excluded_by_goaway() {
    let environment = TestEnvironment::new();
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let count_in = Arc::new(AtomicUsize::new(0));
    let (kept, counter) = (bodies.clone(), count_in.clone());
    let turn = Arc::new(AtomicUsize::new(0));
    let backend = Backend::start_raw(&environment, BackendSettings::http2(), move |stream| {
        let (kept, counter, turn) = (kept.clone(), counter.clone(), turn.clone());
        async move {
            let Some(mut frames) = RawH2Connection::accept(stream).await else { return };
            let mut body = Vec::new();
            while let Some(frame) = frames.next_frame().await {
                let end = frame.ends_stream();
                if frame.kind == RawFrame::HEADERS && end {
                    frames.respond_ok(frame.stream).await;
                } else if frame.kind == RawFrame::DATA {
                    body.extend(&frame.payload);
                    if !end {
                        continue;
                    }
                    kept.lock().push(String::from_utf8(std::mem::take(&mut body)).unwrap());
                    if turn.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                        frames.respond_ok(frame.stream).await;
                        continue;
                    }
                    let last =
                        if counter.load(Ordering::SeqCst) == 1 { frame.stream } else { frame.stream.saturating_sub(2) };
                    let mut payload = last.to_be_bytes().to_vec();
                    payload.extend([0; 4]);
                    frames.send(RawFrame::new(RawFrame::GOAWAY, 0, 0, &payload)).await;
                    let _ = tokio::io::AsyncWriteExt::shutdown(&mut frames.0).await;
                    return;
                }
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        let response = client.send_and_read(request(Method::POST, THINGS, &[], "{\"once\":true}")).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let seen = std::mem::take(&mut *bodies.lock());
        assert_eq!(seen, ["{\"once\":true}", "{\"once\":true}"], "left out, then carried out");
    }
    count_in.store(1, Ordering::SeqCst);
    let response = fixture.http2().await.send_and_read(request(Method::POST, THINGS, &[], "{}")).await;
    response.assert_failure(503, "ServiceUnavailable");
    assert_eq!(retry_after_seconds(&response), None);
    assert_eq!(*bodies.lock(), ["{}"], "it was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_refused_stream_with_body() {
    let environment = TestEnvironment::new();
    let turn = Arc::new(AtomicUsize::new(0));
    let counter = turn.clone();
    let backend = raw_backend::http2(&environment, move |mut stream: raw_backend::H2Exchange| {
        let turn = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            if turn.is_multiple_of(2) {
                // Some of it was read, of a large one more than is kept; that does not count as begun, says the backend.
                let (body, mut read) = (stream.request.body_mut(), 0);
                while let Some(Ok(data)) = body.data().await {
                    let _ = body.flow_control().release_capacity(data.len());
                    read += data.len();
                    if read >= 100_000 {
                        break;
                    }
                }
                stream.respond.send_reset(h2::Reason::REFUSED_STREAM);
                return;
            }
            let body = stream.body().await;
            stream.respond(body);
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let body = "x".repeat(40_000);
    for client in fixture.both_protocols().await {
        assert_eq!(client.get(THINGS).await.status, 200);
        let response = client.send_and_read(request(Method::POST, THINGS, &[], &body)).await;
        assert_eq!((response.status.as_u16(), response.text().len()), (200, body.len()));
        // Too large to be kept: the client is told that it may send it again.
        let response = client.send_and_read(request(Method::POST, THINGS, &[], &"y".repeat(300_000))).await;
        response.assert_failure(503, "ServiceUnavailable");
        assert_eq!(retry_after_seconds(&response), Some(1));
        turn.store(0, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_get_on_new_connection_after_broken_one() {
    let environment = TestEnvironment::new();
    let turn = Arc::new(AtomicUsize::new(0));
    let backend = raw_backend::http2(&environment, move |mut stream: raw_backend::H2Exchange| {
        let turn = turn.fetch_add(1, Ordering::SeqCst);
        async move {
            if turn.is_multiple_of(2) {
                let _ = stream.connection.send(ConnectionEnd::Cut);
            } else {
                stream.respond.send_response(Response::new(()), true).unwrap();
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for _ in 0..5 {
            assert_eq!(client.get(THINGS).await.status, 200);
        }
    }
}

/// A connection on which nothing comes back any more is left at the first request that ran out of time, long
/// before pings have found it dead.
#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_drops_silent_connection_after_timeout() {
    let environment = TestEnvironment::new();
    let silent = Arc::new(AtomicUsize::new(0));
    let message = silent.clone();
    let backend = Backend::start_raw(&environment, BackendSettings::http2(), move |stream| {
        let message = message.clone();
        async move {
            let Some(mut frames) = RawH2Connection::accept(stream).await else { return };
            while let Some(frame) = frames.next_frame().await {
                if !frame.ends_stream() {
                    continue;
                }
                if frame.kind == RawFrame::DATA && message.load(Ordering::SeqCst) == 1 {
                    message.store(2, Ordering::SeqCst);
                    // Read on, and never a word again.
                    std::future::pending::<()>().await;
                }
                frames.respond_ok(frame.stream).await;
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("request-timeout", "1500ms")]);
    let client = fixture.http2().await;
    assert_eq!(client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await.status, 200);
    silent.store(1, Ordering::SeqCst);
    client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await.assert_failure(504, "Timeout");
    for _ in 0..3 {
        assert_eq!(client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_shared_only_with_equal_tls_trust() {
    use base64::Engine;
    let environment = TestEnvironment::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let numbers = Arc::new(AtomicUsize::new(0));
    let (kept, counter) = (seen.clone(), numbers.clone());
    let settings =
        BackendSettings { names: vec!["things-v1.things.svc", "other.things.svc"], ..BackendSettings::http1() };
    let backend = raw_backend::http1(&environment, settings, move |mut talk: RawConnection| {
        let (kept, number) = (kept.clone(), counter.fetch_add(1, Ordering::SeqCst));
        async move {
            loop {
                let version = talk.head.split('/').nth(3).unwrap().to_owned();
                kept.lock().push((version, number));
                talk.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                if talk.next_head().await.is_none() {
                    return;
                }
            }
        }
    })
    .await;
    let special = CertificateRequest::client("special-proxy", &[]);
    let special = environment.request_header_ca.issue(&special, SystemTime::now()).unwrap();
    environment.write_pair("registry/special", &special);
    let (_, second) = Authority::new("second", SystemTime::now()).unwrap();
    let wider = format!("{}{}", environment.read_file("backend-ca.crt"), second.certificate);
    let engine = base64::engine::general_purpose::STANDARD;
    let (bundle, wider) = (engine.encode(environment.read_file("backend-ca.crt")), engine.encode(wider));
    let manifest = |version: &str, more: &[(&str, &str)]| {
        let named = more.iter().any(|(name, _)| *name == "server-name");
        let mut all = more.to_vec();
        if !named {
            all.push(("server-name", "things-v1.things.svc"));
        }
        environment.apiservice_manifests("things.example.com", version, &[backend.address], &annotations_yaml(&all))
    };
    environment.write_registry("v1.yaml", &manifest("v1", &[]));
    environment.write_registry("v2.yaml", &manifest("v2", &[("server-name", "other.things.svc")]));
    environment.write_registry("v3.yaml", &manifest("v3", &[]).replace(&bundle, &wider));
    environment.write_registry("v4.yaml", &manifest("v4", &[("client-certificate", "special")]));
    let skip = manifest("v5", &[]).replace(&format!("caBundle: {bundle}"), "insecureSkipTLSVerify: true");
    environment.write_registry("v5.yaml", &skip);
    environment.write_registry("v6.yaml", &manifest("v6", &[]));
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    for _ in 0..2 {
        for version in 1..=6 {
            let response = client.get(&format!("/apis/things.example.com/v{version}/things")).await;
            assert_eq!(response.status, 200, "v{version} {}", response.text());
        }
    }
    let seen = seen.lock().clone();
    let number = |version: &str| {
        let mut numbers: Vec<_> = seen.iter().filter(|(one, _)| one == version).map(|(_, number)| *number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), 1, "{version} {seen:?}");
        numbers[0]
    };
    assert_eq!(number("v1"), number("v6"), "equal in all that bears on trust");
    let mut different: Vec<_> = ["v1", "v2", "v3", "v4", "v5"].map(number).to_vec();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 5, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn front_proxy_certificate_rotation_keeps_open_watches() {
    let environment = TestEnvironment::new();
    let (backend, writers) = start_watch_backend(&environment, BackendSettings::default()).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let client = fixture.http2().await;
    let mut watch = open_watch(&client).await;
    assert_eq!(backend.last_request().peer, "narthex-front-proxy");
    let renewed = CertificateRequest::client("renewed-front-proxy", &[]);
    fixture
        .environment
        .write_pair("front-proxy", &fixture.environment.request_header_ca.issue(&renewed, SystemTime::now()).unwrap());
    eventually("the new certificate", async || {
        assert_eq!(client.get(THINGS).await.status, 200);
        (backend.last_request().peer == "renewed-front-proxy").then_some(())
    })
    .await;
    writers.lock().unwrap()[0].send(data_frame("second\n")).unwrap();
    assert_eq!(next_chunk(&mut watch).await.unwrap().unwrap(), "second\n");
}

/// A backend that ends says so on all of its connections at once, while requests are on their way to it.
#[tokio::test(flavor = "multi_thread")]
async fn connection_pool_goaway_on_all_connections_loses_no_request() {
    let environment = TestEnvironment::new();
    let everyone = Arc::new(Mutex::new(Vec::new()));
    let kept = everyone.clone();
    let narrow = raw_backend::http2_with(&environment, 3, move |mut stream: raw_backend::H2Exchange| {
        let kept = kept.clone();
        async move {
            kept.lock().push(stream.connection.clone());
            stream.body().await;
            let _ = stream.respond.send_response(Response::new(()), true);
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&narrow], &[]);
    let client = fixture.http2().await;
    for _ in 0..8 {
        let all = join_all((0..24).map(|_| client.send_and_read(request(Method::POST, THINGS, &[], "{}"))));
        let leaving = async {
            eventually("some to be under way", async || (everyone.lock().len() >= 6).then_some(())).await;
            for connection in everyone.lock().drain(..) {
                let _ = connection.send(ConnectionEnd::Finish);
            }
        };
        for response in tokio::join!(all, leaving).0 {
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
}
