//! Thousands of clients that are slow, watch, or vanish.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::flapping::TakenCore;
use crate::lossy_link::LossyLink;
use crate::measured_load::Credentials;
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, streamed_response};
use crate::support::client::{Client, get, tls_handshake};
use crate::support::fixtures::{CertKeyPair, TestEnvironment, eventually_within};
use crate::support::gateway_fixture::THINGS;

/// Handshakes at once.
const PARALLEL: usize = 32;

fn pair_of(stage: &Stage) -> CertKeyPair {
    match &stage.users[0].credentials {
        Credentials::Certificate(pair) => pair.clone(),
        _ => panic!("a user with a certificate"),
    }
}

/// A client that sends too little: nothing at all, a part of a handshake, or a part of a request.
async fn begin_slowly(stage: &Stage, pair: &CertKeyPair, number: usize) -> Box<dyn Send> {
    let mut socket = TcpStream::connect(stage.gateway.address).await.unwrap();
    match number % 4 {
        0 => Box::new(socket),
        1 => {
            // The head of a record that would be a ClientHello.
            socket.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
            Box::new(socket)
        }
        2 => {
            let mut stream = tls_handshake(&stage.environment, socket, Some(pair), &["http/1.1"]).await.unwrap();
            stream.write_all(b"GET /apis/things.example.com/v1 HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await.unwrap();
            Box::new(stream)
        }
        _ => {
            let mut stream = tls_handshake(&stage.environment, socket, Some(pair), &["http/1.1"]).await.unwrap();
            let head = format!("POST {THINGS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nx");
            stream.write_all(head.as_bytes()).await.unwrap();
            Box::new(stream)
        }
    }
}

pub(crate) async fn slow_clients() -> FaultRow {
    let count = if crate::is_long() { 10_000 } else { 400 };
    // They stay until all are there.
    let flags = [
        "--handshake-timeout=10m",
        "--idle-timeout=10m",
        "--read-header-timeout=10m",
        "--request-timeout=10m",
        "--max-connections=12000",
        "--max-requests-inflight=20000",
    ];
    let mut stage = Stage::start(&flags).await;
    let load = stage.start_load().await;
    let pair = pair_of(&stage);
    let mut clients = Vec::with_capacity(count);
    let mut beginning = FuturesUnordered::new();
    for number in 0..count {
        beginning.push(begin_slowly(&stage, &pair, number));
        if beginning.len() == PARALLEL {
            clients.extend(beginning.next().await);
        }
    }
    while let Some(client) = beginning.next().await {
        clients.push(client);
    }
    drop(beginning);
    load.go_on(20).await;
    let (memory, descriptors) = (stage.gateway.resident_kilobytes() >> 10, stage.gateway.descriptor_count());
    assert!(descriptors > count, "{descriptors} descriptors of {count} clients");
    drop(clients);
    let mut row = stage.finish(load, &[]).await;
    row.note = format!("{count} clients at once; with them {memory} MiB, {descriptors} descriptors");
    row
}

/// A watch that checks that each event is its own and in order; the number of the last.
async fn follow_watch(client: Client, path: &str, name: String, target: usize) -> usize {
    let response = client.send(get(&format!("{path}?watch=1&name={name}"), &[])).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let (mut text, mut expected) = (String::new(), 0);
    while expected < target {
        let frame = body.frame().await.unwrap_or_else(|| panic!("{name} ended at {expected}")).unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap_or_default()).unwrap());
        while let Some(end) = text.find('\n') {
            let line: String = text.drain(..=end).collect();
            assert_eq!(line, format!("{{\"watch\":\"{name}\",\"number\":{expected}}}\n"));
            expected += 1;
        }
    }
    expected
}

/// Watches whose events are numbered; all are sent when the channel's number grows.
async fn start_numbered_watches(environment: &TestEnvironment, numbers: watch::Receiver<usize>) -> Backend {
    let names = vec!["watched-v1.watched.svc"];
    let settings = BackendSettings { streams: 1000, names, ..BackendSettings::http2() };
    Backend::start(environment, settings, move |request| {
        let query = request.uri().query().unwrap_or_default();
        let Some(name) = query.split('&').find_map(|pair| pair.strip_prefix("name=")).map(str::to_owned) else {
            return std::future::ready(json_response(200, "{}"));
        };
        let (writer, response) = streamed_response(200);
        let mut numbers = numbers.clone();
        tokio::spawn(async move {
            let mut next = 0;
            loop {
                let target = *numbers.borrow_and_update();
                while next < target {
                    let event = format!("{{\"watch\":\"{name}\",\"number\":{next}}}\n");
                    if writer.send(data_frame(&event)).is_err() {
                        return;
                    }
                    next += 1;
                }
                tokio::select! {
                    changed = numbers.changed() => if changed.is_err() { return },
                    () = writer.closed() => return,
                }
            }
        });
        std::future::ready(response)
    })
    .await
}

pub(crate) async fn watches_with_core_taken() -> FaultRow {
    let (count, events) = if crate::is_long() { (5_000, 40) } else { (300, 10) };
    let mut stage = Stage::start(&["--max-requests-inflight=20000"]).await;
    let (send, numbers) = watch::channel(0);
    let backend = start_numbered_watches(&stage.environment, numbers).await;
    stage.environment.register_apiservice("watched.example.com", "v1", &[&backend]);
    let path = "/apis/watched.example.com/v1/namespaces/default/things";
    let pair = pair_of(&stage);
    let client = Client::http2(&stage.environment, &stage.gateway, Some(&pair)).await;
    eventually_within(Duration::from_secs(30), "the watched APIService", async || {
        (client.get(path).await.status == 200).then_some(())
    })
    .await;
    drop(client);
    let load = stage.start_load().await;
    let _core = TakenCore::take();
    let mut watches = tokio::task::JoinSet::new();
    let mut client = None;
    for number in 0..count {
        if number % 100 == 0 {
            client = Some(Client::http2(&stage.environment, &stage.gateway, Some(&pair)).await);
        }
        let client = client.clone().unwrap();
        watches.spawn(follow_watch(client, path, format!("w{number}"), events));
    }
    drop(client);
    for number in 1..=events {
        send.send(number).unwrap();
        load.wait_for_more(10).await;
    }
    let mut received = 0;
    let memory = stage.gateway.resident_kilobytes() >> 10;
    while let Some(events) = watches.join_next().await {
        received += events.unwrap();
    }
    assert_eq!(received, count * events);
    let mut row = stage.finish(load, &[]).await;
    row.note = format!("{received} events of {count} watches, none lost or of another watch; with them {memory} MiB");
    row
}

/// Clients whose machine disappears: no packet says that they are gone.
pub(crate) async fn vanished_clients() -> FaultRow {
    let link = LossyLink::start();
    let mut stage = Stage::start(&["--bind-address=0.0.0.0", "--idle-timeout=20s", "--read-header-timeout=20s"]).await;
    let near = std::net::SocketAddr::new(link.near.into(), stage.gateway.address.port());
    stage.gateway.address.set_ip("127.0.0.1".parse().unwrap());
    let load = stage.start_load().await;
    let pair = pair_of(&stage);
    let count = if crate::is_long() { 300 } else { 50 };
    let mut vanishing = Vec::new();
    for number in 0..count {
        let socket = link.connect(near);
        if number % 3 == 0 {
            vanishing.push(tls_handshake(&stage.environment, socket, None, &["h2"]).await.unwrap());
            continue;
        }
        let mut stream = tls_handshake(&stage.environment, socket, Some(&pair), &["http/1.1"]).await.unwrap();
        let request = if number % 3 == 1 {
            format!("GET {THINGS} HTTP/1.1\r\nhost: localhost\r\n\r\n")
        } else {
            format!("POST {THINGS}?timeout=10s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n")
        };
        stream.write_all(request.as_bytes()).await.unwrap();
        if number % 3 == 1 {
            assert!(stream.read(&mut [0; 64]).await.unwrap() > 0);
        }
        vanishing.push(stream);
    }
    let descriptors = stage.gateway.descriptor_count();
    assert!(descriptors >= count);
    link.set(100, 0);
    drop(vanishing);
    load.go_on(20).await;
    let mut row = stage.finish(load, &[]).await;
    row.note = format!("{count} clients vanished; {descriptors} descriptors with them");
    row
}
