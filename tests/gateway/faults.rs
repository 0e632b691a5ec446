//! What a broken or hostile backend can do, and what the client must see: never half an answer as a whole
//! one, never somebody else's, never an address or a library's words.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use http::Method;
use narthex::tls::Request as CertificateRequest;
use tokio::io::AsyncWriteExt;

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, Read, get, read, request};
use crate::raw::{self, Frame, Frames, Talk, Whole};
use crate::scene::{Scene, THINGS};
use crate::world::{Pair, World};

/// Sends and reads to the end; `None` when not even a head came.
async fn attempt(client: &Client, method: Method, body: &str) -> Option<Read> {
    Some(read(client.send(request(method, THINGS, &[], body)).await.ok()?).await)
}

/// A refusal must name the APIService and nothing of what is inside.
#[track_caller]
fn discreet(answer: &Read, backend: &Backend) {
    let text = answer.text();
    assert!(text.contains("v1.things.example.com"), "{text}");
    for secret in [&*backend.address.to_string(), "127.0.0.1", "hyper", "rustls", "h2 ", "os error", "tls handshake"] {
        assert!(!text.contains(secret), "{secret:?} in {text}");
    }
}

/// Asserts that a refusal says `reason`: from the attempt itself, or from a probe that was faster.
#[track_caller]
fn says(status: &serde_json::Value, reason: &str) {
    let probed = cause(status) == "FailedDiscoveryCheck"
        && status["message"].as_str().is_some_and(|message| message.contains(&format!(": {reason})")));
    assert!(cause(status) == reason || probed, "{reason}: {status}");
}

/// The reason of a refusal's first cause.
fn cause(status: &serde_json::Value) -> &str {
    status["details"]["causes"][0]["reason"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_cut_at_any_byte_never_looks_whole() {
    const COUNTED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 11\r\n\r\nhello world";
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n";
    let world = World::new();
    let case = Arc::new(AtomicUsize::new(0));
    let told = case.clone();
    // The case: the answer by the lowest bit, the way of closing by the next, then the length.
    let backend = raw::http1(&world, Settings::http1(), move |mut talk: Talk| {
        let case = told.load(Ordering::SeqCst);
        async move {
            let answer = [COUNTED, CHUNKED][case & 1];
            talk.say(&answer[..case >> 2]).await;
            if case & 2 == 0 { talk.close().await } else { drop(talk) }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    let http2 = scene.http2().await;
    for (number, answer) in [COUNTED, CHUNKED].into_iter().enumerate() {
        let head = answer.find("\r\n\r\n").unwrap() + 4;
        for length in 0..=answer.len() {
            // All the ways at each length would take minutes; every byte meets one of them at least.
            let way = length % 2;
            case.store(number | way << 1 | length << 2, Ordering::SeqCst);
            let old = length % 3 == 0;
            let client = if old { scene.http1().await } else { http2.clone() };
            let method = if length % 5 < 2 { Method::POST } else { Method::GET };
            let body = if method == Method::POST { "{}" } else { "" };
            let answered = attempt(&client, method.clone(), body).await;
            let at = &answer[..length];
            let Some(answered) = answered else {
                // The stream may break before its client has seen the head.
                assert!((head..answer.len()).contains(&length), "{at:?}");
                continue;
            };
            if length < head {
                let status = answered.refused(503, "ServiceUnavailable");
                discreet(&answered, &backend);
                let again = answered.headers.contains_key("retry-after");
                assert_eq!(again, method == Method::GET, "a POST may have been carried out: {at:?} {status}");
            } else if length < answer.len() {
                assert_eq!(answered.status, 200, "{at:?}");
                assert!(!answered.whole, "{at:?} looked whole: {:?}", answered.text());
            } else {
                assert!(answered.whole && answered.text() == "hello world", "{at:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_length_that_is_cut_is_broken_and_one_that_is_closed_is_whole() {
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), |mut talk: Talk| async move {
        talk.say("HTTP/1.1 200 OK\r\n\r\nall of it").await;
        if talk.head.starts_with("POST") { drop(talk) } else { talk.close().await }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        let whole = attempt(&client, Method::GET, "").await.unwrap();
        assert_eq!((whole.text().as_str(), whole.whole), ("all of it", true));
        let cut = attempt(&client, Method::POST, "{}").await.unwrap();
        assert!(!cut.whole, "without TLS's goodbye nobody knows that this was all");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_reset_never_looks_whole() {
    let world = World::new();
    let reason = Arc::new(AtomicUsize::new(0));
    let told = reason.clone();
    let backend = raw::http2(&world, move |mut stream: raw::Stream| {
        let reason = h2::Reason::from(told.load(Ordering::SeqCst) as u32);
        async move {
            let early = stream.request.uri().query() == Some("early=1");
            if early {
                stream.respond.send_reset(reason);
                return;
            }
            let mut body = stream.begin(200, &[]);
            body.send_data("half of".into(), false).unwrap();
            // Let it go before the reset: what is reset at once is never seen.
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
            body.send_reset(reason);
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for code in 0..=13 {
        reason.store(code, Ordering::SeqCst);
        for client in scene.both().await {
            let answer = attempt(&client, Method::GET, "").await.expect("a head");
            assert_eq!(answer.status, 200);
            assert!(!answer.whole, "reset with {:?}: {:?}", h2::Reason::from(code as u32), answer.text());
        }
        let client = scene.http2().await;
        let answer = client.ask(request(Method::POST, &format!("{THINGS}?early=1"), &[], "{}")).await;
        answer.refused(503, "ServiceUnavailable");
        discreet(&answer, &backend);
        // Only REFUSED_STREAM says that nothing was done.
        assert_eq!(answer.headers.contains_key("retry-after"), code == 7, "{code}: {}", answer.text());
    }
}

/// A client must not learn from us that a request which was half answered could be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_in_the_middle_of_an_answer_reaches_an_http2_client_as_an_internal_error() {
    let world = World::new();
    let backend = raw::http2(&world, |mut stream: raw::Stream| async move {
        let mut body = stream.begin(200, &[]);
        body.send_data("half of".into(), false).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        body.send_reset(h2::Reason::REFUSED_STREAM);
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    let response = scene.http2().await.send(get(THINGS, &[])).await.unwrap();
    let error = http_body_util::BodyExt::collect(response.into_body()).await.unwrap_err();
    let h2 = std::error::Error::source(&error).unwrap().downcast_ref::<h2::Error>().unwrap();
    assert_eq!(h2.reason(), Some(h2::Reason::INTERNAL_ERROR), "{h2:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_from_an_http1_backend_is_a_refusal() {
    let endless = |line: &str, times: usize| line.repeat(times);
    let cases: Arc<Vec<String>> = Arc::new(vec![
        "\0\0\0\0\0\0\0\0\r\n\r\n".to_owned(),
        "SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned(),
        "HTTP/9.9 200 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 99999 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 2x0 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nx-nul: a\0b\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_owned(),
        // A switch nobody asked for.
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", endless("x-line: y\r\n", 5_000)),
        format!("HTTP/1.1 200 OK\r\nx-line: {}\r\n\r\n", endless("y", 2 << 20)),
        endless("x", 2 << 20),
        // HTTP/2 without having agreed on it.
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ]);
    let world = World::new();
    let which = Arc::new(AtomicUsize::new(0));
    let (told, answers) = (which.clone(), cases.clone());
    let backend = raw::http1(&world, Settings::http1(), move |mut talk: Talk| {
        let answer = answers[told.load(Ordering::SeqCst)].clone();
        async move {
            talk.say(answer).await;
            // Were the connection closed at once, that would be the fault that is seen.
            while talk.more().await.is_some() {}
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    let clients = scene.both().await;
    for (number, case) in cases.iter().enumerate() {
        which.store(number, Ordering::SeqCst);
        let client = &clients[number % 2];
        let what = &case[..case.len().min(60)];
        let answer = attempt(client, Method::GET, "").await.expect("a head");
        assert!(matches!(answer.status.as_u16(), 502 | 503), "{what:?}: {} {}", answer.status, answer.text());
        let code = answer.status.as_u16();
        answer.refused(code, if code == 502 { "InternalError" } else { "ServiceUnavailable" });
        discreet(&answer, &backend);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_end_in_its_head_ends_with_the_time_it_may_take() {
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), |mut talk: Talk| async move {
        let line = match &talk.head {
            head if head.contains("what=informational") => "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
            head if head.contains("what=silence") => "",
            _ => "HTTP/1.1 200 OK\r\nx-a: b\r\nx-half: ",
        };
        loop {
            if talk.stream.write_all(line.as_bytes()).await.is_err() || talk.stream.flush().await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            if line.is_empty() || line.ends_with(' ') {
                while talk.more().await.is_some() {}
                return;
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("request-timeout", "500ms"), ("retry", "never")]);
    for client in scene.both().await {
        for what in ["informational", "silence", "half"] {
            let answer = client.get(&format!("{THINGS}?what={what}")).await;
            let status = answer.refused(504, "Timeout");
            assert_eq!(cause(&status), "RequestTimeout", "{status}");
            assert!(answer.headers.contains_key("retry-after"));
            discreet(&answer, &backend);
        }
        let answer = client.ask(request(Method::POST, &format!("{THINGS}?what=silence"), &[], "{}")).await;
        answer.refused(504, "Timeout");
        assert!(!answer.headers.contains_key("retry-after"), "client-go would send the POST again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stalls_ends_with_its_time_and_is_broken() {
    let world = World::new();
    for http2 in [false, true] {
        let backend = if http2 {
            raw::http2(&world, |mut stream: raw::Stream| async move {
                let mut body = stream.begin(200, &[("content-length", "100")]);
                body.send_data("a part".into(), false).unwrap();
                std::future::pending::<()>().await;
            })
            .await
        } else {
            raw::http1(&world, Settings::http1(), |mut talk: Talk| async move {
                talk.say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na part").await;
                while talk.more().await.is_some() {}
            })
            .await
        };
        let folder = World::new();
        let addresses = [backend.address];
        // The backend's authority is the first world's.
        std::fs::copy(world.path("backend-ca.crt"), folder.path("backend-ca.crt")).unwrap();
        std::fs::copy(world.path("front-proxy.crt"), folder.path("front-proxy.crt")).unwrap();
        std::fs::copy(world.path("front-proxy.key"), folder.path("front-proxy.key")).unwrap();
        let annotations = crate::scene::annotated(&[("request-timeout", "1s")]);
        folder.registry("things.yaml", &folder.manifests("things.example.com", "v1", &addresses, &annotations));
        let gateway = folder.gateway(&[]);
        let jane = folder.user("jane", &[]);
        let scene = Scene { world: folder, gateway, jane };
        for client in scene.both().await {
            let answer = client.get(THINGS).await;
            assert_eq!((answer.status.as_u16(), answer.text().as_str(), answer.whole), (200, "a part", false));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_timeout_of_zero_is_none() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::http1(), async |_| {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        json(200, "{}")
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("request-timeout", "0")]);
    let answer = scene.http2().await.get(THINGS).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Bytes behind an answer are nobody's, least of all the next caller's.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_bytes_never_become_the_next_answer() {
    const FORGED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), |mut talk: Talk| async move {
        loop {
            if talk.head.contains("what=chunked") {
                talk.say(format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nmine\r\n0\r\n\r\n{FORGED}"
                ))
                .await;
            } else if talk.head.contains("what=late") {
                talk.say("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine").await;
                talk.say(FORGED).await;
            } else if talk.head.contains("what=nobody") {
                talk.say(format!("HTTP/1.1 204 No Content\r\n\r\n{FORGED}")).await;
            } else {
                talk.say(format!("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine{FORGED}")).await;
            }
            if talk.next().await.is_none() {
                return;
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        for what in ["counted", "chunked", "late", "nobody"].into_iter().cycle().take(24) {
            let answer = client.get(&format!("{THINGS}?what={what}")).await;
            let expected = if what == "nobody" { "" } else { "mine" };
            assert_eq!(answer.text(), expected, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_are_none_break_the_answer() {
    let world = World::new();
    let chunks = [
        "zz\r\nhello\r\n",
        "5\nhello\n0\n\n",
        "5\r\nhelloXX0\r\n\r\n",
        "fffffffffffffffff\r\nhello",
        "-5\r\nhello\r\n",
    ];
    let which = Arc::new(AtomicUsize::new(0));
    let told = which.clone();
    let backend = raw::http1(&world, Settings::http1(), move |mut talk: Talk| {
        let chunk = chunks[told.load(Ordering::SeqCst)];
        async move {
            talk.say(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}")).await;
            while talk.more().await.is_some() {}
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("request-timeout", "2s")]);
    for (number, chunk) in chunks.into_iter().enumerate() {
        which.store(number, Ordering::SeqCst);
        for client in scene.both().await {
            // The stream may break before its client has seen the head.
            let Some(answer) = attempt(&client, Method::GET, "").await else { continue };
            assert!(!answer.whole, "{chunk:?} {} {:?}", answer.status, answer.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_backend_that_dies_or_talks_nonsense_is_a_refusal_or_a_broken_answer() {
    let world = World::new();
    let backend = raw::http2(&world, |mut stream: raw::Stream| async move {
        let query = stream.request.uri().query().unwrap_or_default().to_owned();
        let whole = match query.as_str() {
            "cut-before" => Whole::Cut,
            "abort-before" => Whole::Abort(h2::Reason::INTERNAL_ERROR),
            cut => {
                let mut body = stream.begin(200, &[]);
                body.send_data("half".into(), false).unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                let whole = if cut == "cut-within" { Whole::Cut } else { Whole::Abort(h2::Reason::PROTOCOL_ERROR) };
                let _ = stream.connection.send(whole);
                std::future::pending().await
            }
        };
        let _ = stream.connection.send(whole);
        std::future::pending::<()>().await;
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        for what in ["cut-before", "abort-before"] {
            let answer = client.ask(request(Method::POST, &format!("{THINGS}?{what}"), &[], "{}")).await;
            let status = answer.refused(503, "ServiceUnavailable");
            assert_eq!(cause(&status), "ConnectionBroken");
            assert!(!answer.headers.contains_key("retry-after"), "{what}: it may have been carried out");
            discreet(&answer, &backend);
        }
    }
    for what in ["cut-within", "abort-within"] {
        for client in scene.both().await {
            let answer = read(client.send(get(&format!("{THINGS}?{what}"), &[])).await.unwrap()).await;
            assert_eq!((answer.status.as_u16(), answer.whole), (200, false), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_are_a_refusal() {
    type Malformed = fn(u32) -> Vec<u8>;
    let cases: Vec<(&str, Malformed)> = vec![
        ("not frames at all", |_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()),
        ("a frame too large", |stream| Frame::new(Frame::DATA, 0, stream, &vec![0; 1 << 20]).bytes()),
        ("DATA before HEADERS", |stream| Frame::new(Frame::DATA, 1, stream, b"hello").bytes()),
        ("HEADERS that HPACK cannot be", |stream| {
            Frame::new(Frame::HEADERS, Frame::END_HEADERS, stream, &[0xff, 0xff, 0xff, 0xff, 0xff]).bytes()
        }),
        ("HEADERS without :status", |stream| {
            Frame::new(Frame::HEADERS, Frame::END_HEADERS | Frame::END_STREAM, stream, &[0x00, 1, b'a', 1, b'b'])
                .bytes()
        }),
        ("CONTINUATION without HEADERS", |stream| Frame::new(Frame::CONTINUATION, 4, stream, &[0x88]).bytes()),
        ("an answer on a stream nobody opened", |stream| Frame::new(Frame::HEADERS, 5, stream + 100, &[0x88]).bytes()),
        ("a push", |stream| Frame::new(5, 4, stream, &[0, 0, 0, 2, 0x82, 0x87, 0x84]).bytes()),
        ("CONTINUATION without end", |stream| {
            let mut bytes = Frame::new(Frame::HEADERS, 0, stream, &[0x88]).bytes();
            for _ in 0..2_000 {
                bytes.extend(Frame::new(Frame::CONTINUATION, 0, stream, &[0x00, 1, b'a', 1, b'b']).bytes());
            }
            bytes
        }),
        ("headers too large", |stream| {
            let mut bytes = Frame::new(Frame::HEADERS, 0, stream, &[0x88]).bytes();
            // A line of 16,000 bytes in each of 100 frames.
            let mut line = vec![0x00, 1, b'a', 0x7f, 0x81, 0x7c];
            line.extend(vec![b'v'; 16_000]);
            for number in 0..100 {
                let flags = if number == 99 { Frame::END_HEADERS } else { 0 };
                bytes.extend(Frame::new(Frame::CONTINUATION, flags, stream, &line).bytes());
            }
            bytes
        }),
    ];
    let world = World::new();
    let which = Arc::new(AtomicUsize::new(0));
    let (told, bytes) = (which.clone(), cases.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>());
    let bytes = Arc::new(bytes);
    let backend = Backend::raw(&world, Settings::http2(), move |stream| {
        let (told, bytes) = (told.clone(), bytes.clone());
        async move {
            let Some(mut frames) = Frames::begin(stream).await else { return };
            while let Some(frame) = frames.next().await {
                // Whoever asks without a body is the gateway itself.
                if frame.kind == Frame::HEADERS && frame.ends_stream() {
                    frames.ok(frame.stream).await;
                } else if frame.ends_stream() {
                    let malformed = bytes[told.load(Ordering::SeqCst)](frame.stream);
                    frames.say(&malformed).await;
                }
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("request-timeout", "3s")]);
    let clients = scene.both().await;
    for (number, (what, _)) in cases.iter().enumerate() {
        which.store(number, Ordering::SeqCst);
        let answer = attempt(&clients[number % 2], Method::POST, "{}").await.expect("a head");
        assert!(matches!(answer.status.as_u16(), 502 | 503), "{what}: {} {}", answer.status, answer.text());
        assert!(!answer.headers.contains_key("retry-after"), "{what}");
        discreet(&answer, &backend);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_stay_inside_and_other_answers_of_their_class_pass() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), async |request| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (status, location) = query.split_once(',').unwrap();
        let mut answer = json(status.parse().unwrap(), "");
        if !location.is_empty() {
            answer.headers_mut().insert("location", location.parse().unwrap());
            answer.headers_mut().insert("x-inside", "secret".parse().unwrap());
        }
        answer
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        for status in [300, 301, 302, 303, 304, 307, 308, 399] {
            for location in ["https://10.0.0.1/", "/apis", "//evil"] {
                let answer = client.get(&format!("{THINGS}?{status},{location}")).await;
                let refused = answer.refused(502, "InternalError");
                assert_eq!(cause(&refused), "RedirectRejected");
                assert!(!answer.headers.contains_key("location") && !answer.headers.contains_key("x-inside"));
                let expected = "the backend attempted to redirect this request, which is not permitted";
                assert_eq!(refused["message"], expected);
            }
            let answer = client.get(&format!("{THINGS}?{status},")).await;
            assert_eq!(answer.status, status);
        }
        // 201 with a Location is no redirect.
        let answer = client.get(&format!("{THINGS}?201,/apis/x")).await;
        assert_eq!((answer.status.as_u16(), answer.headers["location"].to_str().unwrap()), (201, "/apis/x"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_speaks_for_itself_alone() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), async |_| {
        let mut answer = json(200, "{}");
        for (name, value) in [
            ("set-cookie", "session=stolen"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h3=\":443\""),
            ("clear-site-data", "*"),
            ("www-authenticate", "Basic"),
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("audit-id", "theirs-1"),
            ("audit-id", "theirs-2"),
            ("keep-alive", "timeout=5"),
            ("x-content-type-options", "sniff"),
            ("warning", "299 - \"deprecated\""),
            ("retry-after", "7"),
            ("x-kubernetes-pf-flowschema-uid", "abc"),
        ] {
            answer.headers_mut().append(name, value.parse().unwrap());
        }
        answer
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        let answer = client.ask(get(THINGS, &[("audit-id", "mine-1")])).await;
        for gone in [
            "set-cookie",
            "strict-transport-security",
            "alt-svc",
            "clear-site-data",
            "www-authenticate",
            "access-control-allow-origin",
            "access-control-allow-credentials",
            "keep-alive",
            "connection",
        ] {
            assert!(!answer.headers.contains_key(gone), "{gone}");
        }
        let ids: Vec<_> = answer.headers.get_all("audit-id").iter().collect();
        assert_eq!(ids, ["mine-1"]);
        let sniff: Vec<_> = answer.headers.get_all("x-content-type-options").iter().collect();
        assert_eq!(sniff, ["nosniff"]);
        assert_eq!(answer.headers["warning"], "299 - \"deprecated\"");
        assert_eq!(answer.headers["retry-after"], "7");
        assert_eq!(answer.headers["x-kubernetes-pf-flowschema-uid"], "abc");
    }
}

/// What is wrong with a backend's TLS is said by its reason, and a request that never left may be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_tls_are_told_apart() {
    let world = World::new();
    let names = ["things-v1.things.svc".to_owned()];
    let issue = |names: &[String], days_ago: u64| {
        let mut request = CertificateRequest::serving(names);
        request.days = 1;
        let then = SystemTime::now() - std::time::Duration::from_secs(days_ago * 86_400);
        Pair::of(&world.backend.issue(&request, then).unwrap())
    };
    let expired = issue(&names, 10);
    let wrong_name = issue(&["other.things.svc".to_owned()], 0);
    let no_san = without_san(&world);
    let wrong_usage = {
        let request = CertificateRequest::client("things-v1.things.svc", &[]);
        Pair::of(
            &world.backend.issue(&CertificateRequest { names: names.to_vec(), ..request }, SystemTime::now()).unwrap(),
        )
    };
    let stranger = Pair::of(&world.client.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap());
    let cases = [
        ("CertificateExpired", expired),
        ("NameMismatch", wrong_name),
        ("MissingSAN", no_san),
        ("WrongUsage", wrong_usage),
        ("UnknownIssuer", stranger),
    ];
    let mut backends = Vec::new();
    for (number, (reason, pair)) in cases.into_iter().enumerate() {
        let settings = Settings { pair: Some(pair), ..Settings::default() };
        backends.push((reason, number, Backend::start(&world, settings, async |_| json(200, "{}")).await));
    }
    // What answers without TLS, what hangs up, and what is not there.
    let plain = plain(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let closes = plain_silent(true).await;
    let stalls = plain_silent(false).await;
    let nobody = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let mut places: Vec<_> = backends.iter().map(|(reason, _, backend)| (*reason, backend.address)).collect();
    places.extend([
        ("NotTLS", plain),
        ("ConnectionClosed", closes),
        ("ConnectTimeout", stalls),
        ("ConnectionRefused", nobody),
    ]);
    let annotations = crate::scene::annotated(&[("connect-timeout", "500ms")]);
    for (number, (_, address)) in places.iter().enumerate() {
        let text = world.manifests("things.example.com", &format!("v{}", number + 1), &[*address], &annotations);
        // All are the same Service by name, so that one certificate's name fits all.
        let text =
            text.replace("\nspec:\n  group", "\n    narthex.dev/server-name: things-v1.things.svc\nspec:\n  group");
        world.registry(&format!("{number}.yaml"), &text);
    }
    let gateway = world.gateway(&[]);
    let jane = world.user("jane", &[]);
    let clients =
        [Client::http1(&world, &gateway, Some(&jane)).await, Client::http2(&world, &gateway, Some(&jane)).await];
    for (number, (reason, address)) in places.iter().enumerate() {
        let version = number + 1;
        let path = format!("/apis/things.example.com/v{version}/things");
        let answer = clients[number % 2].ask(request(Method::POST, &path, &[], "{}")).await;
        let status = answer.refused(503, "ServiceUnavailable");
        says(&status, reason);
        assert!(answer.headers.contains_key("retry-after"), "{reason}");
        assert!(status["details"]["retryAfterSeconds"].is_u64());
        let text = answer.text();
        assert!(text.contains(&format!("v{version}.things.example.com")), "{text}");
        assert!(!text.contains("127.0.0.1") && !text.contains(&address.port().to_string()), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_does_not_believe_our_certificate_says_so() {
    for protocols in [vec!["h2"], vec!["http/1.1"]] {
        let world = World::new();
        // It trusts another request-header authority than the one our certificate is from.
        let other = World::new();
        let pair = world.backend_pair(&["things-v1.things.svc"]);
        let settings = Settings { protocols, pair: Some(pair), ..Settings::default() };
        let backend = Backend::start(&other, settings, async |_| json(200, "{}")).await;
        let scene = Scene::new(world, &[&backend], &[]);
        for client in scene.both().await {
            for (method, body) in [(Method::GET, ""), (Method::POST, "{}")] {
                let answer = client.ask(request(method.clone(), THINGS, &[], body)).await;
                let status = answer.refused(503, "ServiceUnavailable");
                says(&status, "ClientCertificateRefused");
                assert!(answer.headers.contains_key("retry-after"), "nothing was begun: {method} {status}");
                discreet(&answer, &backend);
            }
        }
    }
}

/// A serving certificate with a common name alone, as nobody should make them any more.
fn without_san(world: &World) -> Pair {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "things-v1.things.svc");
    parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let authority = rcgen::KeyPair::from_pem(&world.read("backend-ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&world.read("backend-ca.crt"), authority).unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Pair(Arc::new((vec![certificate.der().clone()], key)))
}

/// Answers whatever comes with `text`, without TLS.
async fn plain(text: &'static [u8]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut some = [0; 100];
                let _ = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await;
                let _ = socket.write_all(text).await;
                while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await {}
            });
        }
    });
    address
}

/// Takes connections and closes them within the handshake, or says nothing.
async fn plain_silent(closes: bool) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            if closes {
                let mut some = [0; 4096];
                let _ = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await;
            } else {
                kept.push(socket);
            }
        }
    });
    address
}
