//! Relaying: a request is forwarded unchanged, with the caller's identity.

use http::Method;

use crate::backend::{Backend, Settings, data, json, streamed};
use crate::client::{Client, connect, get, next, request};
use crate::world::World;

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

#[tokio::test(flavor = "multi_thread")]
async fn every_pairing_of_protocols_relays_a_get_with_identity() {
    let world = World::new();
    for settings in [Settings::http1(), Settings::http2()] {
        let backend = Backend::start(&world, settings, async |_| json(200, r#"{"kind":"ThingList"}"#)).await;
        world.register("things.example.com", "v1", &[&backend]);
        let gateway = world.gateway(&[]);
        let jane = world.user("jane", &["devs", "testers"]);
        for client in
            [Client::http1(&world, &gateway, Some(&jane)).await, Client::http2(&world, &gateway, Some(&jane)).await]
        {
            let answer = client.get(&format!("{THINGS}?limit=500")).await;
            assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, r#"{"kind":"ThingList"}"#));
            let seen = backend.last();
            assert_eq!(seen.uri.path_and_query().unwrap().as_str(), format!("{THINGS}?limit=500"));
            assert_eq!(seen.peer, "narthex-front-proxy");
            assert_eq!(seen.all("x-remote-user"), ["jane"]);
            assert_eq!(seen.all("x-remote-group"), ["devs", "testers", "system:authenticated"]);
            assert_eq!(seen.all("x-forwarded-proto"), ["https"]);
            assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
            assert_eq!(seen.all("audit-id"), [answer.headers["audit-id"].to_str().unwrap()]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_goes_up_and_its_answer_comes_down() {
    let world = World::new();
    for settings in [Settings::http1(), Settings::http2()] {
        let backend = Backend::start(&world, settings, async |request| {
            use http_body_util::BodyExt;
            let body = request.into_body().collect().await.unwrap().to_bytes();
            json(201, std::str::from_utf8(&body).unwrap())
        })
        .await;
        world.register("things.example.com", "v1", &[&backend]);
        let gateway = world.gateway(&[]);
        let jane = world.user("jane", &[]);
        let body = format!(r#"{{"data":"{}"}}"#, "x".repeat(300_000));
        for client in
            [Client::http1(&world, &gateway, Some(&jane)).await, Client::http2(&world, &gateway, Some(&jane)).await]
        {
            let answer =
                client.ask(request(Method::POST, THINGS, &[("content-type", "application/json")], &body)).await;
            assert_eq!(answer.status, 201);
            assert_eq!(answer.text(), body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_streams_event_by_event_and_breaks_within_one_when_the_backend_does() {
    let world = World::new();
    for settings in [Settings::http1(), Settings::http2()] {
        let (send, mut senders) = tokio::sync::mpsc::unbounded_channel();
        let backend = Backend::start(&world, settings, move |_| {
            let (sender, answer) = streamed(200);
            send.send(sender).unwrap();
            async { answer }
        })
        .await;
        world.register("things.example.com", "v1", &[&backend]);
        let gateway = world.gateway(&[]);
        let jane = world.user("jane", &[]);
        for client in
            [Client::http1(&world, &gateway, Some(&jane)).await, Client::http2(&world, &gateway, Some(&jane)).await]
        {
            for last in ["two\n", "half of tw"] {
                let path = format!("{THINGS}?watch=1");
                let asking = client.send(get(&path, &[]));
                let opening = async {
                    let sender = senders.recv().await.unwrap();
                    sender.send(data("one\n")).unwrap();
                    sender
                };
                let (response, sender) = tokio::join!(asking, opening);
                let mut body = response.unwrap().into_body();
                assert_eq!(next(&mut body).await.unwrap().unwrap(), "one\n");
                sender.send(data(last)).unwrap();
                assert_eq!(next(&mut body).await.unwrap().unwrap(), last);
                sender.send(Err(std::io::Error::other("gone"))).unwrap();
                match next(&mut body).await {
                    None => assert_eq!(last, "two\n", "half an event must not look like a whole one"),
                    Some(end) => assert!(end.is_err() && last != "two\n", "its client would list everything anew"),
                }
            }
        }
    }
}

/// However the end falls between the header and the client's next look, it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_ends_without_an_event_ends_for_its_client() {
    let world = World::new();
    for settings in [Settings::http1(), Settings::http2()] {
        let turn = std::sync::atomic::AtomicU32::new(0);
        let backend = Backend::start(&world, settings, move |_| {
            let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (sender, answer) = streamed(200);
            tokio::spawn(async move {
                for _ in 0..turn % 7 {
                    tokio::task::yield_now().await;
                }
                drop(sender);
            });
            async { answer }
        })
        .await;
        world.register("things.example.com", "v1", &[&backend]);
        let gateway = world.gateway(&[]);
        let jane = world.user("jane", &[]);
        for client in
            [Client::http1(&world, &gateway, Some(&jane)).await, Client::http2(&world, &gateway, Some(&jane)).await]
        {
            for _ in 0..200 {
                let answer = client.ask(get(&format!("{THINGS}?watch=1"), &[])).await;
                assert_eq!((answer.status.as_u16(), answer.whole, answer.text()), (200, true, String::new()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_end_of_the_body_reaches_a_client_that_sends_on() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::new();
    for settings in [Settings::http1(), Settings::http2()] {
        let backend = Backend::start(&world, settings, async |_| json(413, r#"{"kind":"Status"}"#)).await;
        world.register("things.example.com", "v1", &[&backend]);
        let gateway = world.gateway(&[]);
        let jane = world.user("jane", &[]);
        let mut stream = connect(&world, gateway.address, Some(&jane), &["http/1.1"]).await;
        // More than the sockets hold: a connection that was reset would not take it.
        let body = vec![b'x'; 8 << 20];
        let head = format!("POST {THINGS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(br#"{"kind":"Status"}"#) {
            let read = stream.read_buf(&mut answer).await.unwrap();
            assert!(read > 0, "the end after {}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer));
    }
}
