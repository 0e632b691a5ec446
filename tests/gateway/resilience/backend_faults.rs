//! Broken and hostile backends. The client never gets a truncated response as a complete one, another client's
//! response, an address or a library's error text.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use crate::support::assert_refused::{assert_no_internals, first_cause, retry_after_seconds};
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, ClientResponse, get, read_response, request};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::raw_backend::{self, ConnectionEnd, RawConnection, RawFrame, RawH2Connection};

/// Sends and reads to the end; `None` when not even a head came.
async fn try_request(client: &Client, method: Method, body: &str) -> Option<ClientResponse> {
    Some(read_response(client.send(request(method, THINGS, &[], body)).await.ok()?).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_http1_response_at_any_byte_is_never_complete() {
    const COUNTED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 11\r\n\r\nhello world";
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n";
    let environment = TestEnvironment::new();
    let case = Arc::new(AtomicUsize::new(0));
    let message = case.clone();
    // The case: the answer by the lowest bit, the way of closing by the next, then the length.
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let case = message.load(Ordering::SeqCst);
        async move {
            let reply = [COUNTED, CHUNKED][case & 1];
            talk.write(&reply[..case >> 2]).await;
            if case & 2 == 0 { talk.close().await } else { drop(talk) }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let http2 = fixture.http2().await;
    for (number, reply) in [COUNTED, CHUNKED].into_iter().enumerate() {
        let head = reply.find("\r\n\r\n").unwrap() + 4;
        for length in 0..=reply.len() {
            // All the ways at each length would take minutes; every byte meets one of them at least.
            let way = length % 2;
            // Nothing but broken answers for a second would open the circuit.
            case.store(number | reply.len() << 2, Ordering::SeqCst);
            assert!(try_request(&http2, Method::GET, "").await.is_some_and(|whole| whole.is_complete));
            case.store(number | way << 1 | length << 2, Ordering::SeqCst);
            let old = length % 3 == 0;
            let client = if old { fixture.http1().await } else { http2.clone() };
            let method = if length % 5 < 2 { Method::POST } else { Method::GET };
            let body = if method == Method::POST { "{}" } else { "" };
            let answered = try_request(&client, method.clone(), body).await;
            let at = &reply[..length];
            let Some(answered) = answered else {
                // The stream may break before its client has seen the head.
                assert!((head..reply.len()).contains(&length), "{at:?}");
                continue;
            };
            if length < head {
                let status = answered.assert_failure(503, "ServiceUnavailable");
                assert_no_internals(&answered, &backend);
                let again = retry_after_seconds(&answered).is_some();
                assert_eq!(again, method == Method::GET, "a POST may have been carried out: {at:?} {status}");
            } else if length < reply.len() {
                assert_eq!(answered.status, 200, "{at:?}");
                assert!(!answered.is_complete, "{at:?} looked whole: {:?}", answered.text());
            } else {
                assert!(answered.is_complete && answered.text() == "hello world", "{at:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_response_without_length_complete_only_after_tls_close() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        talk.write("HTTP/1.1 200 OK\r\n\r\nall of it").await;
        if talk.head.starts_with("POST") { drop(talk) } else { talk.close().await }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        let whole = try_request(&client, Method::GET, "").await.unwrap();
        assert_eq!((whole.text().as_str(), whole.is_complete), ("all of it", true));
        let cut = try_request(&client, Method::POST, "{}").await.unwrap();
        assert!(!cut.is_complete, "without close_notify the body is not complete");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_reset_response_is_never_complete() {
    let environment = TestEnvironment::new();
    let reason = Arc::new(AtomicUsize::new(0));
    let head_arrived = Arc::new(Notify::new());
    let (message, may_reset) = (reason.clone(), head_arrived.clone());
    let backend = raw_backend::http2(&environment, move |mut stream: raw_backend::H2Exchange| {
        let reason = h2::Reason::from(message.load(Ordering::SeqCst) as u32);
        let may_reset = may_reset.clone();
        async move {
            let early = stream.request.uri().query() == Some("early=1");
            if early {
                stream.respond.send_reset(reason);
                return;
            }
            let mut body = stream.begin_response(200, &[]);
            body.send_data("half of".into(), false).unwrap();
            // A reset discards a head that has not been read.
            may_reset.notified().await;
            body.send_reset(reason);
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for code in 0..=13 {
        reason.store(code, Ordering::SeqCst);
        for client in fixture.both_protocols().await {
            let response = client.send(get(THINGS, &[])).await.expect("a head");
            head_arrived.notify_one();
            let reply = read_response(response).await;
            assert_eq!(reply.status, 200);
            assert!(!reply.is_complete, "reset with {:?}: {:?}", h2::Reason::from(code as u32), reply.text());
        }
        let client = fixture.http2().await;
        let reply = client.send_and_read(request(Method::POST, &format!("{THINGS}?early=1"), &[], "{}")).await;
        reply.assert_failure(503, "ServiceUnavailable");
        assert_no_internals(&reply, &backend);
        // Only REFUSED_STREAM says that nothing was done.
        assert_eq!(retry_after_seconds(&reply).is_some(), code == 7, "{code}: {}", reply.text());
    }
}

/// A client must not learn from us that a request which was half answered could be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn http2_reset_mid_response_reaches_client_as_internal_error() {
    let environment = TestEnvironment::new();
    let head_arrived = Arc::new(Notify::new());
    let may_reset = head_arrived.clone();
    let backend = raw_backend::http2(&environment, move |mut stream: raw_backend::H2Exchange| {
        let may_reset = may_reset.clone();
        async move {
            let mut body = stream.begin_response(200, &[]);
            body.send_data("half of".into(), false).unwrap();
            may_reset.notified().await;
            body.send_reset(h2::Reason::REFUSED_STREAM);
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let response = fixture.http2().await.send(get(THINGS, &[])).await.unwrap();
    head_arrived.notify_one();
    let error = http_body_util::BodyExt::collect(response.into_body()).await.unwrap_err();
    let h2 = std::error::Error::source(&error).unwrap().downcast_ref::<h2::Error>().unwrap();
    assert_eq!(h2.reason(), Some(h2::Reason::INTERNAL_ERROR), "{h2:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_invalid_backend_response_is_502_or_503() {
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
        // A protocol switch that was not requested.
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", endless("x-line: y\r\n", 5_000)),
        format!("HTTP/1.1 200 OK\r\nx-line: {}\r\n\r\n", endless("y", 2 << 20)),
        endless("x", 2 << 20),
        // HTTP/2 without having agreed on it.
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ]);
    let environment = TestEnvironment::new();
    let which = Arc::new(AtomicUsize::new(0));
    let (message, responses) = (which.clone(), cases.clone());
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let reply = responses[message.load(Ordering::SeqCst)].clone();
        async move {
            talk.write(reply).await;
            // Were the connection closed at once, that would be the fault that is seen.
            while talk.read_more().await.is_some() {}
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let clients = fixture.both_protocols().await;
    for (number, case) in cases.iter().enumerate() {
        which.store(number, Ordering::SeqCst);
        let client = &clients[number % 2];
        let what = &case[..case.len().min(60)];
        let reply = try_request(client, Method::GET, "").await.expect("a head");
        assert!(matches!(reply.status.as_u16(), 502 | 503), "{what:?}: {} {}", reply.status, reply.text());
        let code = reply.status.as_u16();
        reply.assert_failure(code, if code == 502 { "InternalError" } else { "ServiceUnavailable" });
        assert_no_internals(&reply, &backend);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_response_head_ends_with_request_timeout() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
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
                while talk.read_more().await.is_some() {}
                return;
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("request-timeout", "500ms"), ("retry", "never")]);
    for client in fixture.both_protocols().await {
        for what in ["informational", "silence", "half"] {
            let reply = client.get(&format!("{THINGS}?what={what}")).await;
            let status = reply.assert_failure(504, "Timeout");
            assert_eq!(first_cause(&status), "RequestTimeout", "{status}");
            assert_eq!(retry_after_seconds(&reply), Some(1));
            assert_no_internals(&reply, &backend);
        }
        let reply = client.send_and_read(request(Method::POST, &format!("{THINGS}?what=silence"), &[], "{}")).await;
        reply.assert_failure(504, "Timeout");
        assert_eq!(retry_after_seconds(&reply), None, "the POST may have been carried out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_response_body_aborted_by_request_timeout() {
    let environment = TestEnvironment::new();
    for http2 in [false, true] {
        let backend = if http2 {
            raw_backend::http2(&environment, |mut stream: raw_backend::H2Exchange| async move {
                let mut body = stream.begin_response(200, &[("content-length", "100")]);
                body.send_data("a part".into(), false).unwrap();
                std::future::pending::<()>().await;
            })
            .await
        } else {
            raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
                talk.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na part").await;
                while talk.read_more().await.is_some() {}
            })
            .await
        };
        let folder = TestEnvironment::new();
        let addresses = [backend.address];
        // The backend's CA is the first environment's.
        std::fs::copy(environment.path("backend-ca.crt"), folder.path("backend-ca.crt")).unwrap();
        std::fs::copy(environment.path("front-proxy.crt"), folder.path("front-proxy.crt")).unwrap();
        std::fs::copy(environment.path("front-proxy.key"), folder.path("front-proxy.key")).unwrap();
        let annotations = crate::support::gateway_fixture::annotations_yaml(&[("request-timeout", "1s")]);
        folder.write_registry(
            "things.yaml",
            &folder.apiservice_manifests("things.example.com", "v1", &addresses, &annotations),
        );
        let gateway = folder.start_gateway(&[]);
        let jane = folder.issue_user("jane", &[]);
        let fixture = GatewayFixture { environment: folder, gateway, jane };
        for client in fixture.both_protocols().await {
            let reply = client.get(THINGS).await;
            assert_eq!((reply.status.as_u16(), reply.text().as_str(), reply.is_complete), (200, "a part", false));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_timeout_zero_is_unlimited() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |_| {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        json_response(200, "{}")
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("request-timeout", "0")]);
    let reply = fixture.http2().await.get(THINGS).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Bytes after a response are dropped and never reach the next request.
#[tokio::test(flavor = "multi_thread")]
async fn excess_response_bytes_never_become_next_response() {
    const FORGED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        loop {
            if talk.head.contains("what=chunked") {
                talk.write(format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nmine\r\n0\r\n\r\n{FORGED}"
                ))
                .await;
            } else if talk.head.contains("what=late") {
                talk.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine").await;
                talk.write(FORGED).await;
            } else if talk.head.contains("what=nobody") {
                talk.write(format!("HTTP/1.1 204 No Content\r\n\r\n{FORGED}")).await;
            } else {
                talk.write(format!("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine{FORGED}")).await;
            }
            if talk.next_head().await.is_none() {
                return;
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for what in ["counted", "chunked", "late", "nobody"].into_iter().cycle().take(24) {
            let reply = client.get(&format!("{THINGS}?what={what}")).await;
            let expected = if what == "nobody" { "" } else { "mine" };
            assert_eq!(reply.text(), expected, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_response_chunks_abort_response() {
    let environment = TestEnvironment::new();
    let chunks = [
        "zz\r\nhello\r\n",
        "5\nhello\n0\n\n",
        "5\r\nhelloXX0\r\n\r\n",
        "fffffffffffffffff\r\nhello",
        "-5\r\nhello\r\n",
    ];
    let which = Arc::new(AtomicUsize::new(0));
    let message = which.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let chunk = chunks[message.load(Ordering::SeqCst)];
        async move {
            talk.write(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}")).await;
            while talk.read_more().await.is_some() {}
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("request-timeout", "2s")]);
    for (number, chunk) in chunks.into_iter().enumerate() {
        which.store(number, Ordering::SeqCst);
        for client in fixture.both_protocols().await {
            // The stream may break before its client has seen the head.
            let Some(reply) = try_request(&client, Method::GET, "").await else { continue };
            assert!(!reply.is_complete, "{chunk:?} {} {:?}", reply.status, reply.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_backend_crash_or_garbage_is_503_or_aborted_response() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http2(&environment, |mut stream: raw_backend::H2Exchange| async move {
        let query = stream.request.uri().query().unwrap_or_default().to_owned();
        let whole = match query.as_str() {
            "cut-before" => ConnectionEnd::Cut,
            "abort-before" => ConnectionEnd::Abort(h2::Reason::INTERNAL_ERROR),
            cut => {
                let mut body = stream.begin_response(200, &[]);
                body.send_data("half".into(), false).unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                let whole = if cut == "cut-within" {
                    ConnectionEnd::Cut
                } else {
                    ConnectionEnd::Abort(h2::Reason::PROTOCOL_ERROR)
                };
                let _ = stream.connection.send(whole);
                std::future::pending().await
            }
        };
        let _ = stream.connection.send(whole);
        std::future::pending::<()>().await;
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for what in ["cut-before", "abort-before"] {
            let reply = client.send_and_read(request(Method::POST, &format!("{THINGS}?{what}"), &[], "{}")).await;
            let status = reply.assert_failure(503, "ServiceUnavailable");
            assert_eq!(first_cause(&status), "ConnectionBroken");
            assert_eq!(retry_after_seconds(&reply), None, "{what}: it may have been carried out");
            assert_no_internals(&reply, &backend);
        }
    }
    for what in ["cut-within", "abort-within"] {
        for client in fixture.both_protocols().await {
            let reply = read_response(client.send(get(&format!("{THINGS}?{what}"), &[])).await.unwrap()).await;
            assert_eq!((reply.status.as_u16(), reply.is_complete), (200, false), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_malformed_backend_frames_are_502_or_503() {
    type Malformed = fn(u32) -> Vec<u8>;
    let cases: Vec<(&str, Malformed)> = vec![
        ("not frames at all", |_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()),
        ("a frame too large", |stream| RawFrame::new(RawFrame::DATA, 0, stream, &vec![0; 1 << 20]).encode()),
        ("DATA before HEADERS", |stream| RawFrame::new(RawFrame::DATA, 1, stream, b"hello").encode()),
        ("HEADERS that HPACK cannot be", |stream| {
            RawFrame::new(RawFrame::HEADERS, RawFrame::END_HEADERS, stream, &[0xff, 0xff, 0xff, 0xff, 0xff]).encode()
        }),
        ("HEADERS without :status", |stream| {
            RawFrame::new(
                RawFrame::HEADERS,
                RawFrame::END_HEADERS | RawFrame::END_STREAM,
                stream,
                &[0x00, 1, b'a', 1, b'b'],
            )
            .encode()
        }),
        ("CONTINUATION without HEADERS", |stream| RawFrame::new(RawFrame::CONTINUATION, 4, stream, &[0x88]).encode()),
        ("an answer on a stream nobody opened", |stream| {
            RawFrame::new(RawFrame::HEADERS, 5, stream + 100, &[0x88]).encode()
        }),
        ("a push", |stream| RawFrame::new(5, 4, stream, &[0, 0, 0, 2, 0x82, 0x87, 0x84]).encode()),
        ("CONTINUATION without end", |stream| {
            let mut bytes = RawFrame::new(RawFrame::HEADERS, 0, stream, &[0x88]).encode();
            for _ in 0..2_000 {
                bytes.extend(RawFrame::new(RawFrame::CONTINUATION, 0, stream, &[0x00, 1, b'a', 1, b'b']).encode());
            }
            bytes
        }),
        ("headers too large", |stream| {
            let mut bytes = RawFrame::new(RawFrame::HEADERS, 0, stream, &[0x88]).encode();
            // A line of 16,000 bytes in each of 100 frames.
            let mut line = vec![0x00, 1, b'a', 0x7f, 0x81, 0x7c];
            line.extend(vec![b'v'; 16_000]);
            for number in 0..100 {
                let flags = if number == 99 { RawFrame::END_HEADERS } else { 0 };
                bytes.extend(RawFrame::new(RawFrame::CONTINUATION, flags, stream, &line).encode());
            }
            bytes
        }),
    ];
    let environment = TestEnvironment::new();
    let which = Arc::new(AtomicUsize::new(0));
    let (message, bytes) = (which.clone(), cases.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>());
    let bytes = Arc::new(bytes);
    let backend = Backend::start_raw(&environment, BackendSettings::http2(), move |stream| {
        let (message, bytes) = (message.clone(), bytes.clone());
        async move {
            let Some(mut frames) = RawH2Connection::accept(stream).await else { return };
            while let Some(frame) = frames.next_frame().await {
                // Requests without a body are the gateway's own.
                if frame.kind == RawFrame::HEADERS && frame.ends_stream() {
                    frames.respond_ok(frame.stream).await;
                } else if frame.ends_stream() {
                    let malformed = bytes[message.load(Ordering::SeqCst)](frame.stream);
                    frames.write(&malformed).await;
                }
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("request-timeout", "3s")]);
    let clients = fixture.both_protocols().await;
    for (number, (what, _)) in cases.iter().enumerate() {
        which.store(number, Ordering::SeqCst);
        let reply = try_request(&clients[number % 2], Method::POST, "{}").await.expect("a head");
        assert!(matches!(reply.status.as_u16(), 502 | 503), "{what}: {} {}", reply.status, reply.text());
        assert_eq!(retry_after_seconds(&reply), None, "{what}");
        assert_no_internals(&reply, &backend);
    }
}
