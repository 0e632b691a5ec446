//! Limits per client: time, memory, connections, streams, requests.

use std::time::Duration;

use http::{Method, Request};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, admin_request, connect, get, metric_value, request, tls_handshake};
use crate::support::fixtures::{GatewayProcess, TEST_TIMEOUT, TestEnvironment};
use crate::support::raw_h2_client::{self, RawH2Client, StreamOutcome, encode_frame, header_block, headers_frames};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// A gateway with things behind it. Requests for `…/stall` are answered when `release` says so.
struct LimitsFixture {
    environment: TestEnvironment,
    backend: Backend,
    gateway: GatewayProcess,
    release: tokio::sync::watch::Sender<bool>,
}

impl LimitsFixture {
    async fn new(more: &[&str]) -> LimitsFixture {
        LimitsFixture::with_settings(BackendSettings::default(), more).await
    }

    async fn with_settings(settings: BackendSettings, more: &[&str]) -> LimitsFixture {
        let environment = TestEnvironment::new();
        let (release, released) = tokio::sync::watch::channel(false);
        let backend = Backend::start(&environment, settings, move |request: Request<Incoming>| {
            let mut released = released.clone();
            async move {
                if request.uri().path().ends_with("/stall") {
                    released.wait_for(|released| *released).await.unwrap();
                }
                json_response(200, "{}")
            }
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(more);
        LimitsFixture { environment, backend, gateway, release }
    }

    async fn http1(&self) -> TlsStream<TcpStream> {
        connect(&self.environment, self.gateway.address, Some(&self.environment.issue_user("jane", &[])), &["http/1.1"])
            .await
    }
}

/// Requests of one connection, each of which is at another endpoint or waits for one.
const AT_ONCE: usize = 80;

#[tokio::test(flavor = "multi_thread")]
async fn backend_connections_limited_per_apiservice() {
    let environment = TestEnvironment::new();
    let (release, released) = tokio::sync::watch::channel(false);
    let (arrive, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let settings = || BackendSettings { address: "0.0.0.0:0".parse().unwrap(), ..BackendSettings::http1() };
    let greedy = Backend::start(&environment, settings(), move |request: Request<Incoming>| {
        let (mut released, arrive) = (released.clone(), arrive.clone());
        async move {
            if request.uri().path().ends_with("/stall") {
                arrive.send(()).unwrap();
                released.wait_for(|released| *released).await.unwrap();
            }
            json_response(200, "{}")
        }
    })
    .await;
    let others = Backend::start(
        &environment,
        BackendSettings { names: vec!["others-v1.others.svc"], ..settings() },
        |_| async { json_response(200, "{}") },
    )
    .await;
    let many: Vec<_> = (1..=8).map(|last| ([127, 0, 0, last], greedy.address.port()).into()).collect();
    environment.write_registry("things.yaml", &environment.apiservice_manifests("things.example.com", "v1", &many, ""));
    let at = ([127, 0, 0, 1], others.address.port()).into();
    environment.write_registry("others.yaml", &environment.apiservice_manifests("others.example.com", "v1", &[at], ""));
    // A quarter of them, but no less than 64, may lead to one APIService.
    let gateway = GatewayProcess::start_with_descriptors(256, &environment.gateway_arguments(&[]));
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    assert_eq!(metric_value(&gateway, "narthex_backend_connections_limit").await, Some(64.0));
    let pending_request: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get(&format!("{THINGS}/stall")).await })
        })
        .collect();
    for _ in 0..64 {
        tokio::time::timeout(TEST_TIMEOUT, arrived.recv()).await.expect("there is room").unwrap();
    }
    // The others are rejected before any response.
    let mut message = Vec::new();
    let mut waiting = Vec::new();
    let until = tokio::time::Instant::now() + TEST_TIMEOUT;
    for one in pending_request {
        waiting.push(one);
    }
    while message.len() < AT_ONCE - 64 {
        assert!(tokio::time::Instant::now() < until, "{} were told", message.len());
        let (over, still): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|one| one.is_finished());
        message.extend(over);
        waiting = still;
        tokio::task::yield_now().await;
    }
    for one in message {
        let response = one.await.unwrap();
        assert_eq!(response.status, 503, "{}", response.text());
        assert_eq!(crate::support::assert_refused::retry_after_seconds(&response), Some(1));
        let status = response.json();
        assert_eq!(status["details"]["causes"][0]["reason"], "TooManyConnections", "{status}");
    }
    // Other requests are not affected, and the backend's health is unchanged.
    assert_eq!(client.get("/apis/others.example.com/v1/namespaces/default/others").await.status, 200);
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    let of_things = report["apiservices"].as_array().unwrap().iter().find(|one| one["name"] == "v1.things.example.com");
    assert_eq!((&of_things.unwrap()["available"], &of_things.unwrap()["circuit"]), (&true.into(), &"closed".into()));
    release.send(true).unwrap();
    for one in waiting {
        assert_eq!(one.await.unwrap().status, 200);
    }
    assert_eq!(client.get(THINGS).await.status, 200);
}

/// Waits until the other end closes; what came before.
async fn read_until_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        let mut byte = [0];
        while let Ok(1) = stream.read(&mut byte).await {
            bytes.push(byte[0]);
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("closed in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks for things and reads the answer, which has a length.
async fn get_things(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = String::new();
    let reading = async {
        while !response.ends_with("\r\n\r\n{}") {
            response.push(char::from(stream.read_u8().await.expect("an answer")));
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an answer in time");
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn handshake_timeout_closes_connection() {
    let fixture = LimitsFixture::new(&["--handshake-timeout=1s"]).await;
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for begin in [&[][..], &[0x16], &hello] {
        let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
        socket.write_all(begin).await.unwrap();
        read_until_closed(&mut socket).await;
    }
    // What is no handshake at all goes at once.
    for nonsense in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], b"\0\0\0\0\0\0\0\0\0\0\0\0", b"SSH-2.0-x\r\n"] {
        let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
        socket.write_all(nonsense).await.unwrap();
        read_until_closed(&mut socket).await;
    }
    assert!(get_things(&mut fixture.http1().await).await.starts_with("HTTP/1.1 200 "));
}

/// However busy its sender looks; but a connection that has not begun a request is not late with it.
#[tokio::test(flavor = "multi_thread")]
async fn read_header_timeout_closes_http1_connection() {
    let fixture = LimitsFixture::new(&["--read-header-timeout=1s"]).await;
    let (mut idle, mut used) = (fixture.http1().await, fixture.http1().await);
    get_things(&mut used).await;
    for mut slow in [fixture.http1().await, {
        let mut second = fixture.http1().await;
        get_things(&mut second).await;
        second
    }] {
        let (mut read, mut write) = tokio::io::split(&mut slow);
        let trickle = async {
            write.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").await?;
            loop {
                write.write_all(b"X-A: b\r\n").await?;
                write.flush().await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let ended: std::io::Result<()> = tokio::select! {
            ended = trickle => ended,
            response = read_until_closed(&mut read) => {
                assert!(response.is_empty() || response.starts_with("HTTP/1.1 408 "), "{response}");
                Ok(())
            }
        };
        drop(ended);
    }
    // More than that second has passed now.
    assert!(get_things(&mut idle).await.starts_with("HTTP/1.1 200 "));
    assert!(get_things(&mut used).await.starts_with("HTTP/1.1 200 "));
}

/// Over HTTP/2 as well, whatever it is that never becomes whole, and however busy its sender looks.
#[tokio::test(flavor = "multi_thread")]
async fn read_header_timeout_closes_http2_connection() {
    let fixture = LimitsFixture::new(&["--read-header-timeout=1s", "--idle-timeout=1h"]).await;
    let jane = fixture.environment.issue_user("jane", &[]);
    let idle = Client::http2(&fixture.environment, &fixture.gateway, Some(&jane)).await;
    assert_eq!(idle.get(THINGS).await.status, 200);
    let connected = || connect(&fixture.environment, fixture.gateway.address, None, &["h2"]);
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = encode_frame(raw_h2_client::SETTINGS, 0, 0, &[]);
    let opening = [PREFACE, &settings].concat();
    let whole = raw_h2_client::get_frames(1, "/livez", &[]);
    let mut stuck = Vec::new();
    for started in [
        PREFACE[..1].to_vec(),
        PREFACE[..20].to_vec(),
        [PREFACE, &settings[..3]].concat(),
        [&opening[..], &whole[..5]].concat(),
        [&opening[..], &whole[..whole.len() - 1]].concat(),
        [&opening[..], &encode_frame(raw_h2_client::PING, 0, 0, &[0; 8])[..12]].concat(),
        [&opening[..], &whole[..], &encode_frame(raw_h2_client::HEADERS, raw_h2_client::END_STREAM, 3, &[0x82])]
            .concat(),
    ] {
        let mut stream = connected().await;
        stream.write_all(&started).await.unwrap();
        stream.flush().await.unwrap();
        stuck.push(stream);
    }
    for stream in &mut stuck {
        read_until_closed(stream).await;
    }
    let mut slow = connected().await;
    let (mut read, mut write) = tokio::io::split(&mut slow);
    let trickle = async {
        write
            .write_all(
                &[&opening[..], &encode_frame(raw_h2_client::HEADERS, raw_h2_client::END_STREAM, 1, &[0x82])].concat(),
            )
            .await?;
        loop {
            write.write_all(&encode_frame(raw_h2_client::CONTINUATION, 0, 1, &[])).await?;
            write.flush().await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let ended: std::io::Result<()> = tokio::select! {
        ended = trickle => ended,
        _ = read_until_closed(&mut read) => Ok(()),
    };
    drop(ended);
    // The header timeout does not start before the first byte.
    assert_eq!(idle.get(THINGS).await.status, 200);
    // A request runs here: the connection stays for it, for a while.
    let mut busy = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&jane), &[]).await;
    assert!(busy.send(&raw_h2_client::get_frames(1, &format!("{THINGS}/stall"), &[])).await);
    assert!(busy.send(&encode_frame(raw_h2_client::HEADERS, raw_h2_client::END_STREAM, 3, &[0x82])).await);
    assert!(busy.next_matching(|frame| frame.kind == raw_h2_client::GOAWAY).await.is_some());
    fixture.release.send(true).unwrap();
    assert_eq!(busy.stream_outcome(1).await, StreamOutcome::Status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_timeout_closes_only_connections_without_requests() {
    let fixture = LimitsFixture::new(&["--idle-timeout=1s"]).await;
    let jane = fixture.environment.issue_user("jane", &[]);
    let busy = Client::http2(&fixture.environment, &fixture.gateway, Some(&jane)).await;
    let (mut fresh, mut used) = (fixture.http1().await, fixture.http1().await);
    get_things(&mut used).await;
    let mut frames = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&jane), &[]).await;
    let mut half = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&jane), &[]).await;
    assert!(half.send(&encode_frame(raw_h2_client::HEADERS, 0, 1, &[0x82])).await);
    // An unauthenticated client that sends requests and reads no responses.
    let mut deaf = RawH2Client::open(&fixture.environment, &fixture.gateway, None, &[(4, 0)]).await;
    assert!(deaf.send(&raw_h2_client::get_frames(1, "/livez", &[])).await);
    let mut silent = connect(&fixture.environment, fixture.gateway.address, None, &["h2"]).await;
    let waiting = tokio::spawn({
        let busy = busy.clone();
        async move { busy.send_and_read(get(&format!("{THINGS}/stall?timeout=60s"), &[])).await }
    });
    assert!(read_until_closed(&mut fresh).await.is_empty());
    assert!(read_until_closed(&mut used).await.is_empty());
    let goaway =
        frames.next_matching(|frame| frame.kind == raw_h2_client::GOAWAY).await.expect("a word before the end");
    assert_eq!(goaway.payload[4..8], [0; 4], "an ordinary end");
    assert!(frames.next_matching(|_| false).await.is_none());
    assert!(half.next_matching(|_| false).await.is_none());
    read_until_closed(&mut silent).await;
    assert_eq!(deaf.stream_outcome(1).await, StreamOutcome::Status(200));
    assert!(deaf.next_matching(|_| false).await.is_none());
    assert!(!waiting.is_finished());
    fixture.release.send(true).unwrap();
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn max_request_header_bytes_enforced() {
    let fixture = LimitsFixture::new(&["--max-request-header-bytes=32768"]).await;
    let jane = fixture.environment.issue_user("jane", &[]);
    let (fits, too_large) = ("x".repeat(30_000), "x".repeat(60_000));
    for client in [
        Client::http1(&fixture.environment, &fixture.gateway, Some(&jane)).await,
        Client::http2(&fixture.environment, &fixture.gateway, Some(&jane)).await,
    ] {
        assert_eq!(client.send_and_read(get(THINGS, &[("x-large", &fits)])).await.status, 200);
        assert_eq!(fixture.backend.last_request().header_values("x-large")[0].len(), 30_000);
        let refused = client.send_and_read(get(THINGS, &[("x-large", &too_large)])).await;
        refused.assert_failure(431, "RequestHeaderFieldsTooLarge");
    }
    let again = Client::http1(&fixture.environment, &fixture.gateway, Some(&jane)).await;
    assert_eq!(again.get(THINGS).await.status, 200);
    assert_eq!(fixture.backend.received().len(), 3);
}

/// A front proxy says each group on a line of its own.
#[tokio::test(flavor = "multi_thread")]
async fn request_header_with_150_groups_accepted() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let fixture = LimitsFixture::with_settings(settings, &[]).await;
        let proxy = fixture.environment.issue_front_proxy("outer-proxy");
        let groups: Vec<String> = (0..150).map(|number| format!("group-{number}")).collect();
        let mut lines = vec![("x-remote-user", "jane")];
        lines.extend(groups.iter().map(|group| ("x-remote-group", group.as_str())));
        for client in [
            Client::http1(&fixture.environment, &fixture.gateway, Some(&proxy)).await,
            Client::http2(&fixture.environment, &fixture.gateway, Some(&proxy)).await,
        ] {
            let response = client.send_and_read(get(THINGS, &lines)).await;
            // hyper's server, behind which this backend stands, takes no more than a hundred lines by default.
            assert_eq!(response.status, 200, "{}", response.text());
            let seen = fixture.backend.last_request().header_values("x-remote-group");
            assert_eq!((seen.len(), &seen[..150], seen[150].as_str()), (151, &groups[..], "system:authenticated"));
        }
    }
}

/// More wait in the kernel's queue; a tunnel is a connection like any other.
#[tokio::test(flavor = "multi_thread")]
async fn max_connections_enforced() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |mut request: Request<Incoming>| {
        if !request.headers().contains_key("upgrade") {
            return json_response(200, "{}");
        }
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let _held = upgrade.await;
            std::future::pending::<()>().await;
        });
        let mut response = json_response(101, "");
        response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
        response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
        response
    })
    .await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&["--max-connections=2"]);
    let jane = environment.issue_user("jane", &[]);
    let mut first = connect(&environment, gateway.address, Some(&jane), &["http/1.1"]).await;
    let mut tunnel = connect(&environment, gateway.address, Some(&jane), &["http/1.1"]).await;
    let upgrade = format!(
        "GET {THINGS}/one/exec HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    );
    tunnel.write_all(upgrade.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    tunnel.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 101");
    // Taken by the kernel, not by us.
    let third = TcpStream::connect(gateway.address).await.unwrap();
    let mut third = Box::pin(tls_handshake(&environment, third, Some(&jane), &["http/1.1"]));
    tokio::select! {
        _ = &mut third => panic!("a third connection was taken"),
        response = async { get_things(&mut first).await; get_things(&mut first).await } => assert!(response.starts_with("HTTP/1.1 200 ")),
    }
    gateway.wait_for_log(&["further connections wait", "--max-connections", "\"open\":2"]).await;
    assert_eq!(metric_value(&gateway, "narthex_client_connections").await, Some(2.0));
    assert_eq!(metric_value(&gateway, "narthex_client_connections_limit").await, Some(2.0));
    let status = admin_request(&gateway, get("/status.json", &[])).await.json();
    assert_eq!(status["clientConnections"], serde_json::json!({"open": 2, "limit": 2}));
    assert_eq!(status["verdict"]["failures"][0], "client connections wait: the limit of 2 is reached");
    assert_eq!(status["verdict"]["attention"][0]["subject"], "client connections");
    drop(tunnel);
    let mut third = tokio::time::timeout(TEST_TIMEOUT, third).await.expect("a place").unwrap();
    assert!(get_things(&mut third).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_max_streams_per_connection_enforced() {
    let fixture = LimitsFixture::new(&["--http2-max-streams-per-connection=10"]).await;
    let jane = fixture.environment.issue_user("jane", &[]);
    let mut frames = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&jane), &[]).await;
    let settings =
        frames.next_matching(|frame| frame.kind == raw_h2_client::SETTINGS && frame.flags == 0).await.unwrap();
    let message =
        settings.payload.chunks(6).find(|setting| setting[..2] == [0, 3]).expect("SETTINGS_MAX_CONCURRENT_STREAMS");
    assert_eq!(message[2..], [0, 0, 0, 10]);
    // Acknowledged, so that it binds.
    assert!(frames.send(&encode_frame(raw_h2_client::SETTINGS, raw_h2_client::ACK, 0, &[])).await);
    for number in 0..11 {
        assert!(frames.send(&raw_h2_client::get_frames(2 * number + 1, &format!("{THINGS}/stall"), &[])).await);
    }
    assert!(matches!(frames.stream_outcome(21).await, StreamOutcome::Reset(7)), "REFUSED_STREAM");
    fixture.release.send(true).unwrap();
    assert_eq!(frames.stream_outcome(19).await, StreamOutcome::Status(200));
    assert!(frames.send(&raw_h2_client::get_frames(23, THINGS, &[])).await);
    assert_eq!(frames.stream_outcome(23).await, StreamOutcome::Status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn max_requests_inflight_enforced() {
    let fixture = LimitsFixture::new(&["--max-requests-inflight=2", "--max-mutating-requests-inflight=1"]).await;
    let client = async |name: &str, groups: &[&str]| {
        Client::http2(&fixture.environment, &fixture.gateway, Some(&fixture.environment.issue_user(name, groups))).await
    };
    let (jane, root) = (client("jane", &[]).await, client("root", &["system:masters"]).await);
    let stall = format!("{THINGS}/stall");
    let begin = |method: Method, path: String| {
        let client = jane.clone();
        tokio::spawn(async move { client.send_and_read(request(method, &path, &[], "")).await })
    };
    let reached = async |number: usize| {
        crate::support::fixtures::eventually("the backend to be asked", async || {
            (fixture.backend.received().len() >= number).then_some(())
        })
        .await;
    };
    let first = begin(Method::GET, stall.clone());
    reached(1).await;
    // Half of all for one APIService: its second is refused, by its own limit.
    let status = jane.get(THINGS).await.assert_failure(429, "TooManyRequests");
    assert!(status["message"].as_str().unwrap().contains("v1.things.example.com"), "{status}");
    // To ask for an upgrade is no way around it.
    let user = fixture.environment.issue_user("jane", &[]);
    let mut upgrade = connect(&fixture.environment, fixture.gateway.address, Some(&user), &["http/1.1"]).await;
    let recorded =
        format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    upgrade.write_all(recorded.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    upgrade.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 429");
    // Our own, too, once both places are taken by another API.
    let write = begin(Method::POST, format!("{THINGS}?watch=1"));
    let response = write.await.unwrap();
    assert_eq!((response.status.as_u16(), response.headers["retry-after"].to_str().unwrap()), (429, "1"));
    // Watches and health checks are not counted.
    assert_eq!(jane.get(&format!("{THINGS}?watch=1")).await.status, 200);
    assert_eq!(jane.get("/version").await.status, 200);
    assert_eq!(root.get("/version").await.status, 200);
    fixture.release.send(true).unwrap();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(jane.get(THINGS).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn max_requests_inflight_refusal_has_retry_after() {
    let environment = TestEnvironment::new();
    let (release, released) = tokio::sync::watch::channel(false);
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            json_response(200, "{}")
        }
    })
    .await;
    // An APIService with room of its own, so that only the gateway's limit counts.
    let annotations = "  annotations: {narthex.dev/max-inflight: \"100\"}";
    environment.write_registry(
        "things.yaml",
        &environment.apiservice_manifests("things.example.com", "v1", &[backend.address], annotations),
    );
    let gateway = environment.start_gateway(&["--max-requests-inflight=2", "--max-mutating-requests-inflight=1"]);
    let jane = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    let root = Client::http2(&environment, &gateway, Some(&environment.issue_user("root", &["system:masters"]))).await;
    let begin = |client: &Client, method: Method| {
        let client = client.clone();
        tokio::spawn(async move { client.send_and_read(request(method, THINGS, &[], "")).await })
    };
    let mut running = vec![begin(&jane, Method::GET), begin(&jane, Method::GET), begin(&jane, Method::POST)];
    crate::support::fixtures::eventually("all to be under way", async || (backend.received().len() == 3).then_some(()))
        .await;
    for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE] {
        let response = jane.send_and_read(request(method.clone(), THINGS, &[], "")).await;
        assert_eq!(response.status, 429, "{method}");
        assert_eq!(response.headers["retry-after"], "1", "{method}");
        if method != Method::HEAD {
            let status = response.assert_failure(429, "TooManyRequests");
            assert_eq!(status["details"]["retryAfterSeconds"], 1);
        }
    }
    jane.get("/version").await.assert_failure(429, "TooManyRequests");
    assert_eq!(jane.get("/livez").await.status, 200);
    running.push(begin(&root, Method::GET));
    crate::support::fixtures::eventually("the operator's request", async || {
        (backend.received().len() == 4).then_some(())
    })
    .await;
    release.send(true).unwrap();
    for running in running {
        assert_eq!(running.await.unwrap().status, 200);
    }
    assert_eq!(jane.get(THINGS).await.status, 200);
}

/// The address of the client, in the words of a load balancer in front of us.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_protocol_sets_client_address() {
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend([192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0x19, 0x2b]);
    let mut v2_six = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24".to_vec();
    v2_six.extend("2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
    v2_six.extend([0; 20]);
    let v1 = &b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6443\r\n"[..];
    let local = &b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..];
    let here = "127.0.0.1";
    type Connections<'c> = &'c [(&'c [u8], Option<&'c str>)];
    let cases: &[(&str, &str, Connections<'_>)] = &[
        (
            "required",
            "127.0.0.0/8",
            &[
                (v1, Some("192.0.2.7")),
                (&v2, Some("192.0.2.7")),
                (&v2_six, Some("2001:db8::7")),
                (local, Some(here)),
                (b"PROXY UNKNOWN\r\n", Some(here)),
                (b"", None),
                (b"PROXY TCP4 192.0.2.7\r\n", None),
                (b"PROXY TCP4 evil 10.0.0.1 4711 6443\r\n", None),
                (b"\r\n\r\n\0\r\nQUIX\n\x21\x11\0\x0c", None),
            ],
        ),
        ("optional", "127.0.0.0/8", &[(v1, Some("192.0.2.7")), (&v2, Some("192.0.2.7")), (b"", Some(here))]),
        // PROXY protocol headers are accepted from the load balancer only.
        ("optional", "10.0.0.0/8", &[(v1, None), (&v2, None), (b"", Some(here))]),
        ("required", "10.0.0.0/8", &[(v1, None), (b"", None)]),
        ("off", "", &[(v1, None), (b"", Some(here))]),
    ];
    for (mode, trusted, connections) in cases {
        let mut flags = vec![format!("--proxy-protocol={mode}"), "--handshake-timeout=2s".to_owned()];
        if !trusted.is_empty() {
            flags.push(format!("--proxy-protocol-trusted-cidrs={trusted}"));
        }
        let fixture = LimitsFixture::new(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let jane = fixture.environment.issue_user("jane", &[]);
        for (header, expected) in *connections {
            let output = String::from_utf8_lossy(header);
            let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
            socket.write_all(header).await.unwrap();
            match (tls_handshake(&fixture.environment, socket, Some(&jane), &["http/1.1"]).await, expected) {
                (Ok(mut stream), Some(expected)) => {
                    assert!(get_things(&mut stream).await.starts_with("HTTP/1.1 200 "));
                    assert_eq!(
                        fixture.backend.last_request().header_values("x-forwarded-for"),
                        [*expected],
                        "{mode} {trusted} {output:?}"
                    );
                }
                (Err(_), None) => {}
                (met, expected) => panic!("{mode} {trusted} {output:?}: {:?}, not {expected:?}", met.map(|_| ())),
            }
        }
    }
}

/// A body has time; its header had.
#[tokio::test(flavor = "multi_thread")]
async fn read_header_timeout_does_not_apply_to_body() {
    let fixture = LimitsFixture::new(&["--read-header-timeout=1s", "--idle-timeout=1s"]).await;
    let jane = fixture.environment.issue_user("jane", &[]);
    let mut slow = fixture.http1().await;
    slow.write_all(format!("POST {THINGS}/stall HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut frames = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&jane), &[]).await;
    let path = format!("{THINGS}/stall");
    let lines = [(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", path.as_str())];
    assert!(frames.send(&headers_frames(1, 0, &header_block(&lines))).await);
    // Another's time runs out meanwhile.
    assert!(read_until_closed(&mut fixture.http1().await).await.is_empty());
    slow.write_all(b"{}{}").await.unwrap();
    assert!(frames.send(&encode_frame(raw_h2_client::DATA, raw_h2_client::END_STREAM, 1, b"{}")).await);
    fixture.release.send(true).unwrap();
    assert_eq!(frames.stream_outcome(1).await, StreamOutcome::Status(200));
    let mut head = [0; 12];
    slow.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
}

/// A leaked permit would finally block all clients.
#[tokio::test(flavor = "multi_thread")]
async fn request_timeout_releases_inflight_permit_of_unread_response() {
    let environment = TestEnvironment::new();
    let large = "x".repeat(8 << 20);
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let response = json_response(200, &large);
        async { response }
    })
    .await;
    let annotations = "  annotations: {narthex.dev/max-inflight: \"100\"}";
    environment.write_registry(
        "things.yaml",
        &environment.apiservice_manifests("things.example.com", "v1", &[backend.address], annotations),
    );
    let gateway = environment.start_gateway(&["--request-timeout=1s", "--max-requests-inflight=1"]);
    let jane = environment.issue_user("jane", &[]);
    let tom = Client::http2(&environment, &gateway, Some(&environment.issue_user("tom", &[]))).await;
    let place = async || {
        crate::support::fixtures::eventually("a place", async || {
            let response = tom.get("/version").await;
            assert!(matches!(response.status.as_u16(), 200 | 429), "{}", response.text());
            (response.status == 200).then_some(())
        })
        .await;
    };
    // HTTP/2: no window for this stream; others of the connection go on.
    let mut frames = RawH2Client::open(&environment, &gateway, Some(&jane), &[(4, 0)]).await;
    assert!(frames.send(&raw_h2_client::get_frames(1, THINGS, &[])).await);
    assert_eq!(frames.stream_outcome(1).await, StreamOutcome::Status(200));
    tom.get("/version").await.assert_failure(429, "TooManyRequests");
    assert!(matches!(frames.stream_outcome(1).await, StreamOutcome::Reset(_)));
    place().await;
    assert!(frames.send(&raw_h2_client::get_frames(3, "/livez", &[])).await);
    assert_eq!(frames.stream_outcome(3).await, StreamOutcome::Status(200));
    // HTTP/1.1: the answer fills what the kernel holds.
    let mut deaf = connect(&environment, gateway.address, Some(&jane), &["http/1.1"]).await;
    deaf.write_all(format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    crate::support::fixtures::eventually("the request", async || (backend.received().len() == 2).then_some(())).await;
    place().await;
    drop(deaf);
}
