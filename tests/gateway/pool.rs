//! Connection pool to backends: opens enough connections, shares them only where TLS trust is equal, and retries
//! requests that are safe to retry when one closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use futures_util::future::join_all;
use http::{Method, Response};
use narthex::tls::{Authority, Request as CertificateRequest};
use parking_lot::Mutex;

use crate::backend::{Backend, Settings, data, watched};
use crate::client::{next, request};
use crate::raw::{self, Frame, Frames, Talk, Whole};
use crate::refused::retry_after_seconds;
use crate::scene::{Scene, THINGS, annotated, watch};
use crate::world::{World, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_watches_flows_and_a_plain_get_passes_it() {
    let world = World::new();
    let settings = Settings { streams: 100, ..Settings::http2() };
    let (backend, writers) = watched(&world, settings).await;
    let scene = Scene::new(world, &[&backend], &[]);
    let clients = join_all((0..5).map(|_| scene.http2())).await;
    let watches = clients.iter().flat_map(|client| (0..100).map(move |_| watch(client)));
    let mut bodies = join_all(watches).await;
    assert_eq!(scene.http1().await.get(THINGS).await.status, 200);
    assert_eq!(scene.http2().await.get(THINGS).await.status, 200);
    for writer in writers.lock().unwrap().iter() {
        writer.send(data("second\n")).unwrap();
    }
    for body in &mut bodies {
        assert_eq!(next(body).await.unwrap().unwrap(), "second\n");
    }
}

/// What a backend allows is known before anything is sent, so that nothing waits behind a watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_allows_few_streams_gets_more_connections() {
    let world = World::new();
    let settings = Settings { streams: 2, ..Settings::http2() };
    let (backend, _writers) = watched(&world, settings).await;
    let scene = Scene::new(world, &[&backend], &[]);
    let client = scene.http2().await;
    let _bodies = join_all((0..20).map(|_| watch(&client))).await;
    assert!(backend.connections() >= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http1_connection_is_used_again_as_soon_as_its_answer_ended() {
    let world = World::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let backend = raw::http1(&world, Settings::http1(), move |mut talk: Talk| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            loop {
                let answer = match &talk.head {
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
                while talk.head.starts_with("POST") && talk.rest.len() < 2 {
                    talk.more().await;
                }
                if talk.head.starts_with("POST") {
                    talk.rest.drain(..2);
                }
                talk.say(answer).await;
                if talk.next().await.is_none() {
                    return;
                }
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for (number, client) in scene.both().await.into_iter().enumerate() {
        let before = connections.load(Ordering::SeqCst);
        for _ in 0..3 {
            for what in ["204", "304", "chunked", "empty", "counted"] {
                let path = format!("{THINGS}?what={what}");
                let answer = client.get(&path).await;
                assert!(answer.whole);
                assert_eq!(client.ask(request(Method::HEAD, &path, &[], "")).await.status, 200);
                let answer = client.ask(request(Method::POST, &path, &[], "{}")).await;
                assert!(answer.whole && answer.status.as_u16() < 400, "{}", answer.text());
            }
        }
        let opened = connections.load(Ordering::SeqCst) - before;
        assert!(opened <= 1, "client {number}: {opened} connections for requests one after another");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_the_backend_closed_costs_no_request() {
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), |mut talk: Talk| async move {
        talk.say("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
        match fastrand::u8(..3) {
            0 => talk.close().await,
            1 => drop(talk),
            _ => talk.reset(),
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        for _ in 0..30 {
            let answer = client.get(THINGS).await;
            assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "hello"));
        }
        // Many at once leave many connections behind, all of them closed.
        let other = scene.http2().await;
        for _ in 0..3 {
            for answer in join_all((0..10).map(|_| other.get(THINGS))).await {
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_says_goaway_again_and_again_loses_nothing() {
    let world = World::new();
    let served = Arc::new(AtomicUsize::new(0));
    let counted = served.clone();
    let backend = raw::http2(&world, move |mut stream: raw::Stream| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if number % 7 == 6 {
                let _ = stream.connection.send(Whole::Finish);
            }
            let body = stream.body().await;
            stream.answer(body);
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    let clients = scene.both().await;
    for round in 0..6 {
        let all = (0..25).map(|number| {
            let client = &clients[if number == 0 { 0 } else { 1 }];
            let text = format!("{{\"round\":{round},\"number\":{number}}}");
            async move {
                let post = number % 2 == 0;
                let (method, body) = if post { (Method::POST, text.as_str()) } else { (Method::GET, "") };
                let answer = client.ask(request(method, THINGS, &[], body)).await;
                assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, body));
            }
        });
        join_all(all).await;
    }
    assert_eq!(served.load(Ordering::SeqCst), 150, "each was carried out once");
}

/// A request that a GOAWAY leaves out was not looked at: it goes to another connection, its body whole. One
/// that it counts in may have been carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_post_that_a_goaway_leaves_out_is_sent_again_and_one_it_counts_in_is_not() {
    let world = World::new();
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let count_in = Arc::new(AtomicUsize::new(0));
    let (kept, counted) = (bodies.clone(), count_in.clone());
    let turn = Arc::new(AtomicUsize::new(0));
    let backend = Backend::raw(&world, Settings::http2(), move |stream| {
        let (kept, counted, turn) = (kept.clone(), counted.clone(), turn.clone());
        async move {
            let Some(mut frames) = Frames::begin(stream).await else { return };
            let mut body = Vec::new();
            while let Some(frame) = frames.next().await {
                let end = frame.ends_stream();
                if frame.kind == Frame::HEADERS && end {
                    frames.ok(frame.stream).await;
                } else if frame.kind == Frame::DATA {
                    body.extend(&frame.payload);
                    if !end {
                        continue;
                    }
                    kept.lock().push(String::from_utf8(std::mem::take(&mut body)).unwrap());
                    if turn.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                        frames.ok(frame.stream).await;
                        continue;
                    }
                    let last =
                        if counted.load(Ordering::SeqCst) == 1 { frame.stream } else { frame.stream.saturating_sub(2) };
                    let mut payload = last.to_be_bytes().to_vec();
                    payload.extend([0; 4]);
                    frames.send(Frame::new(Frame::GOAWAY, 0, 0, &payload)).await;
                    let _ = tokio::io::AsyncWriteExt::shutdown(&mut frames.0).await;
                    return;
                }
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        let answer = client.ask(request(Method::POST, THINGS, &[], "{\"once\":true}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let seen = std::mem::take(&mut *bodies.lock());
        assert_eq!(seen, ["{\"once\":true}", "{\"once\":true}"], "left out, then carried out");
    }
    count_in.store(1, Ordering::SeqCst);
    let answer = scene.http2().await.ask(request(Method::POST, THINGS, &[], "{}")).await;
    answer.refused(503, "ServiceUnavailable");
    assert_eq!(retry_after_seconds(&answer), None);
    assert_eq!(*bodies.lock(), ["{}"], "it was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_stream_is_tried_again_with_its_body() {
    let world = World::new();
    let turn = Arc::new(AtomicUsize::new(0));
    let counted = turn.clone();
    let backend = raw::http2(&world, move |mut stream: raw::Stream| {
        let turn = counted.fetch_add(1, Ordering::SeqCst);
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
            stream.answer(body);
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    let body = "x".repeat(40_000);
    for client in scene.both().await {
        assert_eq!(client.get(THINGS).await.status, 200);
        let answer = client.ask(request(Method::POST, THINGS, &[], &body)).await;
        assert_eq!((answer.status.as_u16(), answer.text().len()), (200, body.len()));
        // Too large to be kept: the client is told that it may send it again.
        let answer = client.ask(request(Method::POST, THINGS, &[], &"y".repeat(300_000))).await;
        answer.refused(503, "ServiceUnavailable");
        assert_eq!(retry_after_seconds(&answer), Some(1));
        turn.store(0, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_whose_connection_died_goes_to_a_new_one() {
    let world = World::new();
    let turn = Arc::new(AtomicUsize::new(0));
    let backend = raw::http2(&world, move |mut stream: raw::Stream| {
        let turn = turn.fetch_add(1, Ordering::SeqCst);
        async move {
            if turn.is_multiple_of(2) {
                let _ = stream.connection.send(Whole::Cut);
            } else {
                stream.respond.send_response(Response::new(()), true).unwrap();
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        for _ in 0..5 {
            assert_eq!(client.get(THINGS).await.status, 200);
        }
    }
}

/// A connection on which nothing comes back any more is left at the first request that ran out of time, long
/// before pings have found it dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_gone_silent_is_left() {
    let world = World::new();
    let silent = Arc::new(AtomicUsize::new(0));
    let told = silent.clone();
    let backend = Backend::raw(&world, Settings::http2(), move |stream| {
        let told = told.clone();
        async move {
            let Some(mut frames) = Frames::begin(stream).await else { return };
            while let Some(frame) = frames.next().await {
                if !frame.ends_stream() {
                    continue;
                }
                if frame.kind == Frame::DATA && told.load(Ordering::SeqCst) == 1 {
                    told.store(2, Ordering::SeqCst);
                    // Read on, and never a word again.
                    std::future::pending::<()>().await;
                }
                frames.ok(frame.stream).await;
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("request-timeout", "1500ms")]);
    let client = scene.http2().await;
    assert_eq!(client.ask(request(Method::POST, THINGS, &[], "{}")).await.status, 200);
    silent.store(1, Ordering::SeqCst);
    client.ask(request(Method::POST, THINGS, &[], "{}")).await.refused(504, "Timeout");
    for _ in 0..3 {
        assert_eq!(client.ask(request(Method::POST, THINGS, &[], "{}")).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_shared_only_where_trust_is_the_same() {
    use base64::Engine;
    let world = World::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let numbers = Arc::new(AtomicUsize::new(0));
    let (kept, counted) = (seen.clone(), numbers.clone());
    let settings = Settings { names: vec!["things-v1.things.svc", "other.things.svc"], ..Settings::http1() };
    let backend = raw::http1(&world, settings, move |mut talk: Talk| {
        let (kept, number) = (kept.clone(), counted.fetch_add(1, Ordering::SeqCst));
        async move {
            loop {
                let version = talk.head.split('/').nth(3).unwrap().to_owned();
                kept.lock().push((version, number));
                talk.say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                if talk.next().await.is_none() {
                    return;
                }
            }
        }
    })
    .await;
    let special = CertificateRequest::client("special-proxy", &[]);
    let special = world.request_header.issue(&special, SystemTime::now()).unwrap();
    world.keep("registry/special", &special);
    let (_, second) = Authority::new("second", SystemTime::now()).unwrap();
    let wider = format!("{}{}", world.read("backend-ca.crt"), second.certificate);
    let engine = base64::engine::general_purpose::STANDARD;
    let (bundle, wider) = (engine.encode(world.read("backend-ca.crt")), engine.encode(wider));
    let manifest = |version: &str, more: &[(&str, &str)]| {
        let named = more.iter().any(|(name, _)| *name == "server-name");
        let mut all = more.to_vec();
        if !named {
            all.push(("server-name", "things-v1.things.svc"));
        }
        world.manifests("things.example.com", version, &[backend.address], &annotated(&all))
    };
    world.registry("v1.yaml", &manifest("v1", &[]));
    world.registry("v2.yaml", &manifest("v2", &[("server-name", "other.things.svc")]));
    world.registry("v3.yaml", &manifest("v3", &[]).replace(&bundle, &wider));
    world.registry("v4.yaml", &manifest("v4", &[("client-certificate", "special")]));
    let skip = manifest("v5", &[]).replace(&format!("caBundle: {bundle}"), "insecureSkipTLSVerify: true");
    world.registry("v5.yaml", &skip);
    world.registry("v6.yaml", &manifest("v6", &[]));
    let scene = Scene::of(world, &[]);
    let client = scene.http2().await;
    for _ in 0..2 {
        for version in 1..=6 {
            let answer = client.get(&format!("/apis/things.example.com/v{version}/things")).await;
            assert_eq!(answer.status, 200, "v{version} {}", answer.text());
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
async fn a_new_proxy_certificate_is_shown_by_new_requests_and_old_watches_go_on() {
    let world = World::new();
    let (backend, writers) = watched(&world, Settings::default()).await;
    let scene = Scene::new(world, &[&backend], &[]);
    let client = scene.http2().await;
    let mut watch = watch(&client).await;
    assert_eq!(backend.last().peer, "narthex-front-proxy");
    let renewed = CertificateRequest::client("renewed-front-proxy", &[]);
    scene.world.keep("front-proxy", &scene.world.request_header.issue(&renewed, SystemTime::now()).unwrap());
    eventually("the new certificate", async || {
        assert_eq!(client.get(THINGS).await.status, 200);
        (backend.last().peer == "renewed-front-proxy").then_some(())
    })
    .await;
    writers.lock().unwrap()[0].send(data("second\n")).unwrap();
    assert_eq!(next(&mut watch).await.unwrap().unwrap(), "second\n");
}

/// A backend that ends says so on all of its connections at once, while requests are on their way to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_leaves_by_all_connections_at_once_costs_no_request() {
    let world = World::new();
    let everyone = Arc::new(Mutex::new(Vec::new()));
    let kept = everyone.clone();
    let narrow = raw::http2_with(&world, 3, move |mut stream: raw::Stream| {
        let kept = kept.clone();
        async move {
            kept.lock().push(stream.connection.clone());
            stream.body().await;
            let _ = stream.respond.send_response(Response::new(()), true);
        }
    })
    .await;
    let scene = Scene::new(world, &[&narrow], &[]);
    let client = scene.http2().await;
    for _ in 0..8 {
        let all = join_all((0..24).map(|_| client.ask(request(Method::POST, THINGS, &[], "{}"))));
        let leaving = async {
            eventually("some to be under way", async || (everyone.lock().len() >= 6).then_some(())).await;
            for connection in everyone.lock().drain(..) {
                let _ = connection.send(Whole::Finish);
            }
        };
        for answer in tokio::join!(all, leaving).0 {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}
