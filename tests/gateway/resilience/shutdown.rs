//! Graceful shutdown: running requests finish, clients are told to reconnect, and no request is lost.

use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, BodyWriter, data_frame, json_response, start_scripted_backend,
};
use crate::support::client::{Client, get, next_chunk, read_response, tls_handshake};
use crate::support::fixtures::{GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

/// What the records of a test are read from.
const ACCESS_LOG_FLAGS: [&str; 2] = ["--access-log=all", "--access-log-format=json"];

/// A backend that answers once the test opens the gate, and the gate.
async fn start_gated(annotations: &[(&str, &str)], flags: &[&str]) -> (GatewayFixture, Backend, watch::Sender<bool>) {
    let environment = TestEnvironment::new();
    let (gate, opened) = watch::channel(false);
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let mut opened = opened.clone();
        async move {
            opened.wait_for(|open| *open).await.unwrap();
            json_response(200, r#"{"kind":"ThingList"}"#)
        }
    })
    .await;
    (GatewayFixture::with_flags(environment, &[&backend], annotations, flags), backend, gate)
}

/// A backend of things whose answers the test writes.
struct ShutdownFixture {
    fixture: GatewayFixture,
    _backend: Backend,
    writers: mpsc::UnboundedReceiver<BodyWriter>,
}

impl ShutdownFixture {
    async fn new(settings: BackendSettings, flags: &[&str]) -> ShutdownFixture {
        let environment = TestEnvironment::new();
        let (backend, writers) = start_scripted_backend(&environment, settings).await;
        ShutdownFixture {
            fixture: GatewayFixture::with_flags(environment, &[&backend], &[], flags),
            _backend: backend,
            writers,
        }
    }

    /// An answer that has begun with `text`, and how it goes on.
    async fn begin_response(&mut self, client: Client, path: &str, text: &str) -> (Incoming, BodyWriter) {
        let request = get(path, &[]);
        let pending = tokio::spawn(async move { client.send(request).await.unwrap() });
        let writer = self.writers.recv().await.unwrap();
        writer.send(data_frame(text)).unwrap();
        let mut body = pending.await.unwrap().into_body();
        assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), text);
        (body, writer)
    }

    /// Two watches over each protocol: one between events, one within an event. Those over HTTP/2 share a connection.
    async fn open_watches(&mut self) -> Vec<(Incoming, BodyWriter, &'static str)> {
        let http2 = self.fixture.http2().await;
        let mut watches = Vec::new();
        for event in ["{\"type\":\"ADDED\"}\n", "{\"type\":"] {
            for client in [self.fixture.http1().await, http2.clone()] {
                let (body, writer) = self.begin_response(client, &format!("{THINGS}?watch=1"), event).await;
                watches.push((body, writer, event));
            }
        }
        watches
    }
}

/// The gateway, told to end, does so in good order.
async fn assert_clean_exit(fixture: &mut GatewayFixture) {
    assert_eq!(fixture.gateway.wait_for_exit().await.code(), Some(0));
}

async fn wait_for_backend_requests(backend: &Backend, requests: usize) {
    eventually("requests at the backend", async || (backend.received().len() >= requests).then_some(())).await;
}

async fn wait_for_port_closed(gateway: &GatewayProcess) {
    eventually("the port to close", async || TcpStream::connect(gateway.address).await.is_err().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_delay_readyz_fails_while_requests_are_served() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    let mut fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &["--shutdown-delay-duration=10m"]);
    let kept = fixture.both_protocols().await;
    for client in &kept {
        eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
    }
    fixture.gateway.signal("TERM");
    let status = eventually("readiness to go off", async || {
        let response = kept[0].get("/readyz?verbose").await;
        (response.status == 500).then_some(response)
    })
    .await;
    let lines: Vec<_> = status.text().lines().map(str::to_owned).collect();
    assert_eq!(
        lines[2..],
        [
            "[+]poststarthook/apiservice-discovery-controller ok",
            "[-]shutdown failed: reason withheld",
            "readyz check failed",
        ]
    );
    assert_eq!(kept[1].get("/readyz").await.status, 500);
    assert_eq!(kept[1].get("/livez").await.text(), "ok");
    assert_eq!(kept[1].get("/healthz").await.text(), "ok");
    assert_eq!(kept[1].get("/readyz/shutdown").await.text(), "internal server error: process is shutting down\n");
    for client in kept {
        assert_eq!(client.get(THINGS).await.status, 200);
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    for client in fixture.both_protocols().await {
        let response = client.get(THINGS).await;
        assert_eq!(response.status, 200);
        assert!(!response.headers.contains_key("connection"));
    }
    // A second signal does not wait for the ten minutes; the end was not a finished one.
    fixture.gateway.signal("TERM");
    assert_eq!(fixture.gateway.wait_for_exit().await.code(), Some(1));
    fixture.gateway.wait_for_log(&["ending at once"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_send_retry_after_returns_429_during_delay() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    let flags = ["--shutdown-delay-duration=10m", "--shutdown-send-retry-after"];
    let fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
    let kept = fixture.both_protocols().await;
    for client in &kept {
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    fixture.gateway.signal("TERM");
    fixture.gateway.wait_for_log(&["SIGTERM"]).await;
    for clients in [kept, fixture.both_protocols().await] {
        for (number, client) in clients.iter().enumerate() {
            let response = eventually("the end to be noticed", async || {
                // A connection that was told to go is gone after its answer.
                let response = client.get(THINGS).await;
                (response.status != 200).then_some(response)
            })
            .await;
            let status = response.assert_failure(429, "TooManyRequests");
            assert_eq!(status["message"], "The apiserver is shutting down, please try again later.");
            assert_eq!(response.headers["retry-after"], "5");
            assert_eq!(status["details"]["retryAfterSeconds"], 5);
            if number == 0 {
                assert_eq!(response.headers["connection"], "close");
            }
        }
    }
    for path in ["/readyz", "/livez", "/healthz", "/metrics"] {
        for client in fixture.both_protocols().await {
            let response = client.get(path).await;
            assert_eq!(response.status, if path == "/readyz" { 500 } else { 200 }, "{path}: {}", response.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_finishes_running_requests_and_sends_goaway() {
    let (mut fixture, backend, gate) = start_gated(&[], &ACCESS_LOG_FLAGS).await;
    let http1 = fixture.http1().await;
    let stream = fixture.connect("h2").await;
    let (mut http2, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request =
        http::Request::get(format!("https://localhost{THINGS}")).header("audit-id", "last-h2").body(()).unwrap();
    let (answer2, _) = http2.send_request(request, true).unwrap();
    let pending = tokio::spawn(async move { http1.send_and_read(get(THINGS, &[("audit-id", "last-h1")])).await });
    wait_for_backend_requests(&backend, 2).await;
    fixture.gateway.signal("TERM");
    wait_for_port_closed(&fixture.gateway).await;
    // GOAWAY without an error: what runs on the connection is still answered.
    let message = tokio::time::timeout(TEST_TIMEOUT, async {
        loop {
            match http2.ready().await {
                Ok(ready) => http2 = ready,
                Err(error) => return error,
            }
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!((message.is_go_away(), message.reason()), (true, Some(h2::Reason::NO_ERROR)), "{message:?}");
    gate.send(true).unwrap();
    let answer1 = pending.await.unwrap();
    assert_eq!((answer1.status.as_u16(), answer1.is_complete), (200, true));
    assert_eq!(answer1.headers["connection"], "close");
    let mut answer2 = answer2.await.unwrap();
    assert_eq!(answer2.status(), 200);
    assert_eq!(answer2.body_mut().data().await.unwrap().unwrap(), r#"{"kind":"ThingList"}"#);
    // Errors on writing the last frames are ignored.
    let _ = connection.await.unwrap();
    assert_clean_exit(&mut fixture).await;
    for id in ["last-h1", "last-h2"] {
        let line = fixture.gateway.wait_for_log(&[r#""kind":"access""#, id]).await;
        assert!(line.contains(r#""status":200"#) && line.contains(r#""end":"complete""#), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_closes_idle_connections_at_once() {
    let mut fixture = GatewayFixture::from_registry(TestEnvironment::new(), &[]);
    let _silent = [fixture.connect("http/1.1").await, fixture.connect("h2").await];
    // Without as much as a TLS greeting.
    let _wordless = TcpStream::connect(fixture.gateway.address).await.unwrap();
    let used = fixture.http1().await;
    assert_eq!(used.get("/livez").await.status, 200);
    fixture.gateway.signal("TERM");
    assert_clean_exit(&mut fixture).await;
}

/// A connection the port took before it closed is served, however far it had come.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_serves_connections_accepted_before_port_closed() {
    let (mut fixture, backend, gate) = start_gated(&[], &ACCESS_LOG_FLAGS).await;
    let silent = fixture.connect("http/1.1").await;
    let greeting = TcpStream::connect(fixture.gateway.address).await.unwrap();
    // One that keeps the gateway alive, so that only what is tested can be lost.
    let running = fixture.http1().await;
    let pending = tokio::spawn(async move { running.get(THINGS).await });
    wait_for_backend_requests(&backend, 1).await;
    fixture.gateway.signal("TERM");
    wait_for_port_closed(&fixture.gateway).await;
    gate.send(true).unwrap();
    let late = async {
        let stream = tls_handshake(&fixture.environment, greeting, Some(&fixture.jane), &["http/1.1"]).await.unwrap();
        get_until_close(stream, THINGS).await
    };
    let (late, first) = tokio::join!(late, get_until_close(silent, THINGS));
    for response in [late, first] {
        assert!(
            response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("connection: close\r\n"),
            "{response}"
        );
    }
    assert_eq!(pending.await.unwrap().status, 200);
    assert_clean_exit(&mut fixture).await;
}

/// Asks by hand; the answer until the connection ends.
async fn get_until_close(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.unwrap().unwrap();
    String::from_utf8(response).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_watches_end_cleanly_only_between_events() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let mut message = ShutdownFixture::new(settings, &ACCESS_LOG_FLAGS).await;
        let watches = message.open_watches().await;
        message.fixture.gateway.signal("TERM");
        for (mut body, _writer, event) in watches {
            match next_chunk(&mut body).await {
                None => assert!(event.ends_with('\n'), "a watch cut within an event looks like one that ended"),
                Some(Err(_)) => assert!(!event.ends_with('\n'), "a watch between two events was broken"),
                Some(Ok(more)) => panic!("{more:?} came from nowhere"),
            }
        }
        assert_clean_exit(&mut message.fixture).await;
        let drained =
            message.fixture.gateway.log_lines().iter().filter(|line| line.contains(r#""end":"drained""#)).count();
        assert_eq!(drained, 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_watch_grace_period_finishes_started_event() {
    let mut message =
        ShutdownFixture::new(BackendSettings::default(), &["--shutdown-watch-termination-grace-period=10m"]).await;
    let watches = message.open_watches().await;
    message.fixture.gateway.signal("TERM");
    let (whole, started): (Vec<_>, Vec<_>) = watches.into_iter().partition(|(_, _, event)| event.ends_with('\n'));
    for (mut body, _writer, _) in whole {
        assert!(next_chunk(&mut body).await.is_none(), "a watch between two events ends");
    }
    for (mut body, writer, _) in started {
        writer.send(data_frame("\"ADDED\"}\n")).unwrap();
        assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "\"ADDED\"}\n");
        assert!(next_chunk(&mut body).await.is_none(), "a watch ends once its event is whole");
    }
    // All requests are finished: the rest of the ten minutes is not waited for.
    assert_clean_exit(&mut message.fixture).await;
}

/// Half a log must not look like the whole of it, wherever it is cut.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_aborts_followed_logs() {
    let mut message = ShutdownFixture::new(BackendSettings::default(), &[]).await;
    let mut logs = Vec::new();
    for client in message.fixture.both_protocols().await {
        logs.push(message.begin_response(client, &format!("{THINGS}/a/log?follow=true"), "a line\n").await);
    }
    message.fixture.gateway.signal("INT");
    for (mut body, _writer) in logs {
        assert!(next_chunk(&mut body).await.unwrap().is_err());
    }
    assert_clean_exit(&mut message.fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_closes_tunnels() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |mut request| {
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
            let mut stream = hyper_util::rt::TokioIo::new(upgraded);
            stream.write_all(b"hello").await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let mut response: BackendResponse = json_response(101, "");
        response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        response
    })
    .await;
    let mut fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &ACCESS_LOG_FLAGS);
    let mut stream = fixture.connect("http/1.1").await;
    let ask =
        format!("POST {THINGS}/a/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut received_bytes = Vec::new();
    while !received_bytes.ends_with(b"hello") {
        let mut piece = [0; 1024];
        let length = tokio::time::timeout(TEST_TIMEOUT, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&received_bytes));
        received_bytes.extend_from_slice(&piece[..length]);
    }
    assert!(received_bytes.starts_with(b"HTTP/1.1 101 "));
    fixture.gateway.signal("TERM");
    let rest = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut received_bytes)).await.unwrap();
    drop(rest);
    assert_clean_exit(&mut fixture).await;
    fixture.gateway.wait_for_log(&[r#""status":101"#, r#""end":"drained""#, r#""out":5"#]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_slow_reader() {
    let environment = TestEnvironment::new();
    let body = "0123456789abcdef".repeat(500_000);
    let sent = body.clone();
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let response = json_response(200, &sent);
        async { response }
    })
    .await;
    let mut fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let mut responses = Vec::new();
    for client in fixture.both_protocols().await {
        responses.push(client.send(get(THINGS, &[])).await.unwrap());
    }
    fixture.gateway.signal("TERM");
    wait_for_port_closed(&fixture.gateway).await;
    for response in responses {
        let response = read_response(response).await;
        assert!(
            response.is_complete && response.body == body.as_bytes(),
            "{} of {} bytes",
            response.body.len(),
            body.len()
        );
    }
    assert_clean_exit(&mut fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_drain_timeout_aborts_stuck_requests_and_logs_them() {
    // Its own time is longer than what the end allows.
    let flags = [&["--request-timeout=1s"], &ACCESS_LOG_FLAGS[..]].concat();
    let (mut fixture, backend, _gate) = start_gated(&[("request-timeout", "1h")], &flags).await;
    let mut pending = Vec::new();
    for client in fixture.both_protocols().await {
        pending.push(tokio::spawn(async move { client.send(get(THINGS, &[("audit-id", "stuck")])).await.map(drop) }));
    }
    wait_for_backend_requests(&backend, 2).await;
    fixture.gateway.signal("TERM");
    assert_clean_exit(&mut fixture).await;
    for pending in pending {
        assert!(pending.await.unwrap().is_err(), "no response");
    }
    fixture.gateway.wait_for_log(&["drain timeout: running requests are aborted", r#""requests":2"#]).await;
    eventually("records of both", async || {
        let log = fixture.gateway.log_lines();
        let cut = log.iter().filter(|line| line.contains(r#""audit":"stuck""#) && line.contains(r#""end":"cut""#));
        (cut.count() == 2).then_some(())
    })
    .await;
}
