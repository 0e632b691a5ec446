//! Relaying: a request is forwarded unchanged, with the caller's identity.

use http::Method;

use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, streamed_response};
use crate::support::client::{Client, connect, get, next_chunk, request};
use crate::support::fixtures::TestEnvironment;

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

#[tokio::test(flavor = "multi_thread")]
async fn relay_get_with_identity_over_all_protocol_pairs() {
    let environment = TestEnvironment::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let backend =
            Backend::start(&environment, settings, async |_| json_response(200, r#"{"kind":"ThingList"}"#)).await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&[]);
        let jane = environment.issue_user("jane", &["devs", "testers"]);
        for client in [
            Client::http1(&environment, &gateway, Some(&jane)).await,
            Client::http2(&environment, &gateway, Some(&jane)).await,
        ] {
            let reply = client.get(&format!("{THINGS}?limit=500")).await;
            assert_eq!((reply.status.as_u16(), reply.text().as_str()), (200, r#"{"kind":"ThingList"}"#));
            let seen = backend.last_request();
            assert_eq!(seen.uri.path_and_query().unwrap().as_str(), format!("{THINGS}?limit=500"));
            assert_eq!(seen.peer, "narthex-front-proxy");
            assert_eq!(seen.header_values("x-remote-user"), ["jane"]);
            assert_eq!(seen.header_values("x-remote-group"), ["devs", "testers", "system:authenticated"]);
            assert_eq!(seen.header_values("x-forwarded-proto"), ["https"]);
            assert_eq!(seen.header_values("x-forwarded-for"), ["127.0.0.1"]);
            assert_eq!(seen.header_values("audit-id"), [reply.headers["audit-id"].to_str().unwrap()]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_post_body_and_response() {
    let environment = TestEnvironment::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let backend = Backend::start(&environment, settings, async |request| {
            use http_body_util::BodyExt;
            let body = request.into_body().collect().await.unwrap().to_bytes();
            json_response(201, std::str::from_utf8(&body).unwrap())
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&[]);
        let jane = environment.issue_user("jane", &[]);
        let body = format!(r#"{{"data":"{}"}}"#, "x".repeat(300_000));
        for client in [
            Client::http1(&environment, &gateway, Some(&jane)).await,
            Client::http2(&environment, &gateway, Some(&jane)).await,
        ] {
            let reply = client
                .send_and_read(request(Method::POST, THINGS, &[("content-type", "application/json")], &body))
                .await;
            assert_eq!(reply.status, 201);
            assert_eq!(reply.text(), body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_watch_event_by_event_and_abort_within_event() {
    let environment = TestEnvironment::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let (send, mut senders) = tokio::sync::mpsc::unbounded_channel();
        let backend = Backend::start(&environment, settings, move |_| {
            let (sender, reply) = streamed_response(200);
            send.send(sender).unwrap();
            async { reply }
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&[]);
        let jane = environment.issue_user("jane", &[]);
        for client in [
            Client::http1(&environment, &gateway, Some(&jane)).await,
            Client::http2(&environment, &gateway, Some(&jane)).await,
        ] {
            for last in ["two\n", "half of tw"] {
                let path = format!("{THINGS}?watch=1");
                let pending = client.send(get(&path, &[]));
                let opening = async {
                    let sender = senders.recv().await.unwrap();
                    sender.send(data_frame("one\n")).unwrap();
                    sender
                };
                let (response, sender) = tokio::join!(pending, opening);
                let mut body = response.unwrap().into_body();
                assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "one\n");
                sender.send(data_frame(last)).unwrap();
                assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), last);
                sender.send(Err(std::io::Error::other("gone"))).unwrap();
                match next_chunk(&mut body).await {
                    None => assert_eq!(last, "two\n", "half an event must not look like a whole one"),
                    Some(end) => assert!(end.is_err() && last != "two\n", "its client would list everything anew"),
                }
            }
        }
    }
}

/// However the end falls between the header and the client's next look, it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn relay_watch_end_without_events() {
    let environment = TestEnvironment::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let turn = std::sync::atomic::AtomicU32::new(0);
        let backend = Backend::start(&environment, settings, move |_| {
            let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (sender, reply) = streamed_response(200);
            tokio::spawn(async move {
                for _ in 0..turn % 7 {
                    tokio::task::yield_now().await;
                }
                drop(sender);
            });
            async { reply }
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&[]);
        let jane = environment.issue_user("jane", &[]);
        for client in [
            Client::http1(&environment, &gateway, Some(&jane)).await,
            Client::http2(&environment, &gateway, Some(&jane)).await,
        ] {
            for _ in 0..200 {
                let reply = client.send_and_read(get(&format!("{THINGS}?watch=1"), &[])).await;
                assert_eq!((reply.status.as_u16(), reply.is_complete, reply.text()), (200, true, String::new()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_early_response_while_client_still_sends() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let environment = TestEnvironment::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let backend =
            Backend::start(&environment, settings, async |_| json_response(413, r#"{"kind":"Status"}"#)).await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&[]);
        let jane = environment.issue_user("jane", &[]);
        let mut stream = connect(&environment, gateway.address, Some(&jane), &["http/1.1"]).await;
        // More than the sockets hold: a connection that was reset would not take it.
        let body = vec![b'x'; 8 << 20];
        let head = format!("POST {THINGS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(br#"{"kind":"Status"}"#) {
            let read = stream.read_buf(&mut reply).await.unwrap();
            assert!(read > 0, "the end after {}", String::from_utf8_lossy(&reply));
        }
        assert!(reply.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&reply));
    }
}
