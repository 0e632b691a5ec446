//! Broken and hostile backends. The client never gets a truncated response as a complete one, another client's
//! response, an address or a library's error text.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use tokio::io::AsyncWriteExt;

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, Read, get, read, request};
use crate::raw::{self, Frame, Frames, Talk, Whole};
use crate::refused::{cause, discreet, retry_after_seconds};
use crate::scene::{Scene, THINGS};
use crate::world::World;

/// Sends and reads to the end; `None` when not even a head came.
async fn attempt(client: &Client, method: Method, body: &str) -> Option<Read> {
    Some(read(client.send(request(method, THINGS, &[], body)).await.ok()?).await)
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
            // Nothing but broken answers for a second would open the circuit.
            case.store(number | answer.len() << 2, Ordering::SeqCst);
            assert!(attempt(&http2, Method::GET, "").await.is_some_and(|whole| whole.whole));
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
                let again = retry_after_seconds(&answered).is_some();
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
        assert_eq!(retry_after_seconds(&answer).is_some(), code == 7, "{code}: {}", answer.text());
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
            assert_eq!(retry_after_seconds(&answer), Some(1));
            discreet(&answer, &backend);
        }
        let answer = client.ask(request(Method::POST, &format!("{THINGS}?what=silence"), &[], "{}")).await;
        answer.refused(504, "Timeout");
        assert_eq!(retry_after_seconds(&answer), None, "the POST may have been carried out");
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
            assert_eq!(retry_after_seconds(&answer), None, "{what}: it may have been carried out");
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
        assert_eq!(retry_after_seconds(&answer), None, "{what}");
        discreet(&answer, &backend);
    }
}
