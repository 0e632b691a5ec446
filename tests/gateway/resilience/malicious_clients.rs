//! Hostile clients, byte by byte. Each gets a clear refusal or a closed connection; other clients and the process are
//! not affected.

use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, connect, request};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment};
use crate::support::gateway_fixture::THINGS;
use crate::support::raw_h2_client::{
    self, RawH2Client, StreamOutcome, encode_frame, get_frames, header_block, headers_frames,
};

const STALL: &str = "/apis/things.example.com/v1/namespaces/default/things/stall";
const EVIL: &str = "/apis/things.example.com/v1/namespaces/default/evil";

/// A gateway with a backend, an authenticated attacker and a regular client.
struct AttackFixture {
    environment: TestEnvironment,
    backend: Backend,
    gateway: GatewayProcess,
    attacker: CertKeyPair,
    bystander: Client,
    /// Resident memory before the attack, in kB.
    resident_before: u64,
}

impl AttackFixture {
    async fn new(more: &[&str]) -> AttackFixture {
        AttackFixture::with_settings(BackendSettings::default(), more).await
    }

    async fn with_settings(settings: BackendSettings, more: &[&str]) -> AttackFixture {
        let environment = TestEnvironment::new();
        // Never reads request bodies, and never responds to `…/stall`.
        let backend = Backend::start(&environment, settings, async |request| {
            if request.uri().path().ends_with("/stall") {
                std::future::pending::<()>().await;
            }
            json_response(200, "{}")
        })
        .await;
        AttackFixture::with_backend(environment, backend, more).await
    }

    async fn with_backend(environment: TestEnvironment, backend: Backend, more: &[&str]) -> AttackFixture {
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(more);
        let attacker = environment.issue_user("mallory", &[]);
        let bystander = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
        assert_eq!(bystander.get(THINGS).await.status, 200);
        let before = gateway.resident_kilobytes();
        AttackFixture { environment, backend, gateway, attacker, bystander, resident_before: before }
    }

    async fn open_h2_client(&self) -> RawH2Client {
        RawH2Client::open(&self.environment, &self.gateway, Some(&self.attacker), &[]).await
    }

    /// Sends `bytes` and reads what comes until the gateway closes. The end must come from the gateway.
    async fn send_until_closed(&self, bytes: &[u8]) -> String {
        let mut stream = connect(&self.environment, self.gateway.address, Some(&self.attacker), &["http/1.1"]).await;
        let mut response = Vec::new();
        let talk = async {
            let (mut read, mut write) = tokio::io::split(&mut stream);
            let sending = async {
                // It may be cut before all of it is sent.
                let _ = write.write_all(bytes).await;
                let _ = write.flush().await;
            };
            let _ = tokio::join!(sending, read.read_to_end(&mut response));
        };
        tokio::time::timeout(TEST_TIMEOUT, talk).await.unwrap_or_else(|_| panic!("not closed: {}", excerpt(bytes)));
        String::from_utf8_lossy(&response).into_owned()
    }

    /// Asserts that other clients were not affected.
    async fn assert_unharmed(&self, kilobytes: u64) {
        assert_eq!(self.bystander.get(THINGS).await.status, 200);
        let now = self.gateway.resident_kilobytes();
        assert!(now < self.resident_before + kilobytes, "grew from {} kB to {now} kB", self.resident_before);
        let log = self.gateway.log_lines();
        assert!(!log.iter().any(|line| line.contains("panicked")), "{}", log.join("\n"));
        let evil = self.backend.received().into_iter().find(|seen| seen.uri.path().contains("evil"));
        assert!(evil.is_none(), "{evil:?}");
    }
}

fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

/// What comes behind an attack, in the hope to be taken for a request.
fn smuggled_request() -> String {
    format!("GET {EVIL} HTTP/1.1\r\nHost: localhost\r\nX-Remote-User: admin\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_ambiguous_framing_refused() {
    let attack = AttackFixture::new(&[]).await;
    let line = format!("POST {THINGS} HTTP/1.1\r\n");
    let refused: &[(&str, &[u8])] = &[
        ("lengths that differ", b"Host: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        ("a list of lengths", b"Host: localhost\r\nContent-Length: 2, 3\r\n\r\n{}"),
        ("a signed length", b"Host: localhost\r\nContent-Length: +2\r\n\r\n{}"),
        ("a negative length", b"Host: localhost\r\nContent-Length: -2\r\n\r\n{}"),
        ("an endless length", b"Host: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n{}"),
        ("an unknown coding", b"Host: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        ("chunked not last", b"Host: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        (
            "chunked, then another line",
            b"Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        ),
        ("a space before the colon", b"Host: localhost\r\nContent-Length : 2\r\n\r\n{}"),
        ("a space before the colon of a coding", b"Host: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        ("a folded line", b"Host: localhost\r\nX-A: b\r\n c\r\n\r\n"),
        ("a folded first line", b" Host: localhost\r\n\r\n"),
        ("a line without a colon", b"Host: localhost\r\nevil\r\n\r\n"),
        ("a nameless line", b"Host: localhost\r\n: evil\r\n\r\n"),
        ("NUL in a value", b"Host: localhost\r\nX-A: a\0b\r\n\r\n"),
        ("NUL in a name", b"Host: localhost\r\nX-\0A: b\r\n\r\n"),
        ("a bare CR in a value", b"Host: localhost\r\nX-A: a\rX-Remote-User: admin\r\n\r\n"),
        ("a vertical tab before a coding", b"Host: localhost\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
        ("no host", b"Content-Length: 0\r\n\r\n"),
        ("two hosts", b"Host: localhost\r\nHost: evil.example.com\r\n\r\n"),
        ("twice the same host", b"Host: localhost\r\nhost: localhost\r\n\r\n"),
        ("a list of hosts", b"Host: localhost, evil.example.com\r\n\r\n"),
        ("a host with a path", b"Host: localhost/evil\r\n\r\n"),
        ("a host with somebody in it", b"Host: admin@localhost\r\n\r\n"),
        ("a host with a space", b"Host: local host\r\n\r\n"),
        ("a host that is no text", b"Host: local\xffhost\r\n\r\n"),
    ];
    for (what, head) in refused {
        let bytes = [line.as_bytes(), b"Connection: close\r\n", head, smuggled_request().as_bytes()].concat();
        let bytes = if head.starts_with(b" ") { [line.as_bytes(), head].concat() } else { bytes };
        let response = attack.send_until_closed(&bytes).await;
        assert!(response.starts_with("HTTP/1.1 400 ") || response.is_empty(), "{what}: {response}");
        assert_eq!(response.matches("HTTP/1.1").count().max(1), 1, "{what}: {response}");
    }
    assert_eq!(attack.backend.received().len(), 1, "only the bystander's: {:?}", attack.backend.received());
    attack.assert_unharmed(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_malformed_request_line_refused() {
    let attack = AttackFixture::new(&[]).await;
    for line in [
        "GET",
        "GET  / HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET / HTTP/1.1 evil",
        "GET / HTTP/2.0",
        "GET / HTTP/0.9",
        "GET / HTTPS/1.1",
        "GET /a\0b HTTP/1.1",
        "GET /a\tb HTTP/1.1",
        "G\0T / HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET evil HTTP/1.1",
        "GET \\evil HTTP/1.1",
        "PRI * HTTP/2.0",
        "\u{16}\u{3}\u{1}",
    ] {
        let response = attack
            .send_until_closed(format!("{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
            .await;
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 4"), "{line:?}: {response}");
    }
    for (line, status) in [
        ("OPTIONS * HTTP/1.1", "400"),
        ("CONNECT evil.example.com:443 HTTP/1.1", "405"),
        ("TRACE /version HTTP/1.1", "405"),
    ] {
        let host = if line.starts_with("CONNECT") { "evil.example.com:443" } else { "localhost" };
        let bytes = format!("{line}\r\nHost: {host}\r\nConnection: close\r\n\r\n{}", smuggled_request());
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{line:?}: {response}");
    }
    attack.assert_unharmed(64 << 10).await;
}

/// RFC 9112 lets a server take the coding and forget the length, if it closes afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn http1_content_length_with_transfer_encoding_closes_connection() {
    let attack = AttackFixture::new(&[]).await;
    for framing in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\nConnection: keep-alive\r\n",
    ] {
        let bytes = format!(
            "POST {THINGS} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n2\r\n{{}}\r\n0\r\n\r\n{}",
            smuggled_request()
        );
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{response}");
        assert!(attack.backend.last_request().header_values("content-length").is_empty());
    }
    // The same length twice is one length.
    let bytes = format!(
        "POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}{}",
        smuggled_request()
    );
    assert!(attack.send_until_closed(bytes.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(attack.backend.last_request().header_values("content-length"), ["2"]);
    attack.assert_unharmed(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_malformed_chunks_close_connection() {
    let attack = AttackFixture::new(&[]).await;
    for chunks in [
        "x\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2\n{}\r\n0\r\n\r\n",
        "2\r\n{}evil0\r\n\r\n",
        "2\r\n{}\n0\n\n",
        "fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "2;a\nb\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}\r\n0\r\nevil\r\n\r\n",
        "2\r\n{}\r\n0\r\nX-A: a\0b\r\n\r\n",
    ] {
        let bytes = format!(
            "POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{}",
            smuggled_request()
        );
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        assert!(response.matches("HTTP/1.1 ").count() <= 1, "{chunks:?}: {response}");
    }
    attack.assert_unharmed(64 << 10).await;
}

/// A proxy in front of us may judge by the target's host what it then sends to us.
#[tokio::test(flavor = "multi_thread")]
async fn http1_absolute_target_host_overrides_host_header() {
    let attack = AttackFixture::new(&[]).await;
    let bytes =
        format!("GET https://localhost{THINGS} HTTP/1.1\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n");
    assert!(attack.send_until_closed(bytes.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(attack.backend.last_request().header_values("x-forwarded-host"), ["localhost"]);
    attack.assert_unharmed(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_oversized_head_line_or_trailer_refused() {
    let attack = AttackFixture::new(&[]).await;
    let megabytes = "e".repeat(10 << 20);
    let lines: String = (0..100_000).map(|number| format!("X-{number}: evil\r\n")).collect();
    for (what, bytes) in [
        ("line", format!("GET /{megabytes} HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        ("query", format!("GET {THINGS}?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", &megabytes[..100_000])),
        ("header", format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nX-A: {megabytes}\r\n\r\n")),
        ("method", format!("{megabytes} {THINGS} HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        ("lines", format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")),
        (
            "chunk's extension",
            format!("POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2;{megabytes}\r\n"),
        ),
        (
            "trailers",
            format!(
                "POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: {megabytes}\r\n\r\n"
            ),
        ),
    ] {
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        let clear = response.is_empty()
            || response.starts_with("HTTP/1.1 4")
            || response.starts_with("HTTP/1.1 200 ") && what.starts_with(['c', 't']);
        assert!(clear, "{what}: {}", excerpt(response.as_bytes()));
    }
    attack.assert_unharmed(64 << 10).await;
}

/// HTTP/2 over cleartext is asked for by upgrade; behind TLS that is a trick to get past a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn h2c_upgrade_ignored() {
    let attack = AttackFixture::new(&[]).await;
    for (upgrade, connection) in [
        ("h2c", "Upgrade, HTTP2-Settings, close"),
        ("h2c, websocket", "upgrade, http2-settings, close"),
        ("H2C", "close"),
    ] {
        let bytes = format!(
            "GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: {connection}\r\n\r\n"
        );
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        let seen = attack.backend.last_request();
        assert!(
            ["upgrade", "http2-settings", "connection"].iter().all(|name| seen.header_values(name).is_empty()),
            "{seen:?}"
        );
    }
    attack.assert_unharmed(64 << 10).await;
}

/// An answer to a request that is not over, however little of it came: its sender is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn http1_client_disconnect_at_any_byte_leaks_nothing() {
    let attack = AttackFixture::new(&[]).await;
    let bytes = format!("POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n{{}}");
    for end in (0..bytes.len()).step_by(7).chain([bytes.len()]) {
        let mut stream =
            connect(&attack.environment, attack.gateway.address, Some(&attack.attacker), &["http/1.1"]).await;
        stream.write_all(&bytes.as_bytes()[..end]).await.unwrap();
        stream.flush().await.unwrap();
        stream.get_mut().0.shutdown().await.unwrap();
    }
    attack.assert_unharmed(64 << 10).await;
}

// HTTP/2

const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Fifty times two hundred requests that stall, each followed by `then`.
fn request_bursts(then: impl Fn(u32) -> Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    (0..50).map(move |burst| {
        let streams = (200 * burst..200 * (burst + 1)).map(|number| 2 * number + 1);
        streams.flat_map(|stream| [get_frames(stream, STALL, &[]), then(stream)].concat()).collect()
    })
}

/// A POST to `path` without its body.
fn post_frames(stream: u32, path: &str) -> Vec<u8> {
    let lines = [(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    headers_frames(stream, 0, &header_block(&lines))
}

/// CVE-2023-44487.
#[tokio::test(flavor = "multi_thread")]
async fn http2_rapid_reset_bounded() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let attack = AttackFixture::with_settings(settings, &[]).await;
        let mut frames = attack.open_h2_client().await;
        frames.flood(request_bursts(|stream| encode_frame(raw_h2_client::RST_STREAM, 0, stream, &CANCEL))).await;
        attack.assert_unharmed(64 << 10).await;
        assert!(attack.backend.connections() < 500, "{} connections to the backend", attack.backend.connections());
    }
}

/// The same, with resets that the gateway itself is made to send ("MadeYouReset").
#[tokio::test(flavor = "multi_thread")]
async fn http2_provoked_resets_end_with_goaway() {
    let attack = AttackFixture::new(&[]).await;
    let mut frames = attack.open_h2_client().await;
    frames.flood(request_bursts(|stream| encode_frame(raw_h2_client::WINDOW_UPDATE, 0, stream, &[0; 4]))).await;
    assert!(frames.next_matching(|frame| frame.kind == raw_h2_client::GOAWAY).await.is_some());
    attack.assert_unharmed(64 << 10).await;
}

/// CVE-2024-27316 and its kin.
#[tokio::test(flavor = "multi_thread")]
async fn http2_continuation_flood_ends_connection() {
    let attack = AttackFixture::new(&[]).await;
    for piece in [&[][..], &header_block(&[("x-a", "b")]), &header_block(&[("x-a", &"e".repeat(16_000))])] {
        let mut frames = attack.open_h2_client().await;
        let mut bytes = get_frames(1, THINGS, &[]);
        bytes[4] = raw_h2_client::END_STREAM;
        let flood = encode_frame(raw_h2_client::CONTINUATION, 0, 1, piece).repeat(1 + (100_000 / (9 + piece.len())));
        assert!(frames.send(&bytes).await);
        assert!(!frames.flood(vec![flood; 200]).await, "taken without end");
        assert!(matches!(frames.stream_outcome(1).await, StreamOutcome::GoAway(_) | StreamOutcome::Closed));
    }
    attack.assert_unharmed(64 << 10).await;
}

/// Frames that require a reply each, from a client that does not read.
#[tokio::test(flavor = "multi_thread")]
async fn http2_settings_and_ping_flood_bounded() {
    let attack = AttackFixture::new(&[]).await;
    for one in [
        encode_frame(raw_h2_client::SETTINGS, 0, 0, &[]),
        encode_frame(raw_h2_client::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255].repeat(100)),
        encode_frame(raw_h2_client::PING, 0, 0, &[7; 8]),
        encode_frame(raw_h2_client::PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
        encode_frame(0xee, 0, 0, &[7; 100]),
        encode_frame(raw_h2_client::WINDOW_UPDATE, 0, 99, &[0, 0, 0, 1]),
    ] {
        let mut frames = attack.open_h2_client().await;
        frames.stop_reading();
        frames.flood(vec![one.repeat(50_000 / one.len()); 100]).await;
    }
    attack.assert_unharmed(64 << 10).await;
}

/// CVE-2019-9518: frames of data without data cost their sender no window.
#[tokio::test(flavor = "multi_thread")]
async fn http2_empty_data_frames_bounded() {
    let attack = AttackFixture::with_settings(BackendSettings { window: 10, ..BackendSettings::http2() }, &[]).await;
    for one in [encode_frame(raw_h2_client::DATA, 0, 1, &[]), encode_frame(raw_h2_client::DATA, 8, 1, &[0])] {
        let mut frames = attack.open_h2_client().await;
        assert!(frames.send(&post_frames(1, STALL)).await);
        // More than the backend takes: from here on the body waits in the gateway.
        assert!(frames.send(&encode_frame(raw_h2_client::DATA, 0, 1, &[b'x'; 1000])).await);
        frames.flood(vec![one.repeat(5_000); 200]).await;
    }
    attack.assert_unharmed(64 << 10).await;
}

/// A client that requests much and reads nothing.
#[tokio::test(flavor = "multi_thread")]
async fn http2_unread_responses_wait_at_backend() {
    let environment = TestEnvironment::new();
    let body = "x".repeat(8 << 20);
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let response = json_response(200, &body);
        async { response }
    })
    .await;
    let attack = AttackFixture::with_backend(environment, backend, &[]).await;
    // SETTINGS_INITIAL_WINDOW_SIZE: none, and as much as there is.
    for window in [0, 0x7fff_ffff] {
        let mut frames =
            RawH2Client::open(&attack.environment, &attack.gateway, Some(&attack.attacker), &[(4, window)]).await;
        assert!(frames.flood((0..50).map(|number| get_frames(2 * number + 1, THINGS, &[]))).await);
        assert_eq!(frames.stream_outcome(1).await, StreamOutcome::Status(200));
        frames.stop_reading();
        assert_eq!(attack.bystander.get(THINGS).await.body.len(), 8 << 20);
        attack.assert_unharmed(128 << 10).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_protocol_violations_end_connection() {
    let attack = AttackFixture::new(&[]).await;
    let cases: &[(&str, Vec<u8>)] = &[
        ("a window that overflows", encode_frame(raw_h2_client::WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
        ("no window at all", encode_frame(raw_h2_client::WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("data on no stream", encode_frame(raw_h2_client::DATA, 0, 0, b"evil")),
        ("data on a stream that is not open", encode_frame(raw_h2_client::DATA, 0, 1, b"evil")),
        ("a header on no stream", get_frames(0, EVIL, &[])),
        ("a stream of ours", get_frames(2, EVIL, &[])),
        ("a promise", encode_frame(raw_h2_client::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])),
        ("a continuation of nothing", encode_frame(raw_h2_client::CONTINUATION, 4, 1, &header_block(&[("x-a", "b")]))),
        (
            "a frame between header and continuation",
            [
                headers_frames(1, 0, &[])[..0].to_vec(),
                encode_frame(raw_h2_client::HEADERS, 1, 1, &[0x82]),
                encode_frame(raw_h2_client::PING, 0, 0, &[0; 8]),
            ]
            .concat(),
        ),
        ("too large a frame", encode_frame(raw_h2_client::DATA, 0, 1, &vec![0; 20_000])),
        ("half a setting", encode_frame(raw_h2_client::SETTINGS, 0, 0, &[0, 4, 0])),
        ("settings on a stream", encode_frame(raw_h2_client::SETTINGS, 0, 1, &[])),
        (
            "acknowledged settings with settings",
            encode_frame(raw_h2_client::SETTINGS, raw_h2_client::ACK, 0, &[0, 4, 0, 0, 0, 1]),
        ),
        (
            "settings nobody sent, acknowledged",
            encode_frame(raw_h2_client::SETTINGS, raw_h2_client::ACK, 0, &[]).repeat(3),
        ),
        ("push, perhaps", encode_frame(raw_h2_client::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2])),
        (
            "a window of settings that overflows",
            encode_frame(raw_h2_client::SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255]),
        ),
        ("frames of nothing", encode_frame(raw_h2_client::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("a short ping", encode_frame(raw_h2_client::PING, 0, 0, &[0; 7])),
        ("a ping on a stream", encode_frame(raw_h2_client::PING, 0, 1, &[0; 8])),
        ("a short reset", encode_frame(raw_h2_client::RST_STREAM, 0, 1, &[0; 3])),
        ("a reset of nothing", encode_frame(raw_h2_client::RST_STREAM, 0, 1, &CANCEL)),
        ("padding beyond the frame", encode_frame(raw_h2_client::HEADERS, 8 | 5, 1, &[200, 0x82])),
        ("an index beyond the table", headers_frames(1, 1, &[0xff, 0xff, 0x7f])),
        ("a table too large", headers_frames(1, 1, &[0x3f, 0xe1, 0xff, 0xff, 0x07])),
        ("an integer without end", headers_frames(1, 1, &[0xff; 64])),
        ("a string beyond the block", headers_frames(1, 1, &[0x00, 0x7f, 0xff, 0xff, 0x7f])),
        ("broken Huffman", headers_frames(1, 1, &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x00])),
    ];
    for (what, bytes) in cases {
        let mut frames = attack.open_h2_client().await;
        frames.send(bytes).await;
        let end =
            frames.next_matching(|frame| frame.kind == raw_h2_client::GOAWAY && frame.payload[4..8] != [0; 4]).await;
        // Told why or not: it has an end.
        if end.is_some() {
            assert!(frames.next_matching(|_| false).await.is_none(), "{what}");
        }
    }
    // Another beginning than HTTP/2's.
    let mut stream = connect(&attack.environment, attack.gateway.address, Some(&attack.attacker), &["h2"]).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, async {
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await
    .expect("closed");
    attack.assert_unharmed(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_malformed_requests_refused_per_stream() {
    let attack = AttackFixture::new(&[]).await;
    let ordinary = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", EVIL)];
    let with = |more: &[(&'static str, &'static str)]| [&ordinary[..], more].concat();
    let without = |name: &str| ordinary.iter().filter(|line| line.0 != name).copied().collect::<Vec<_>>();
    let instead = |name: &'static str, value: &'static str| {
        ordinary.iter().map(|line| if line.0 == name { (name, value) } else { *line }).collect::<Vec<_>>()
    };
    let cases: &[(&str, Vec<(&str, &str)>)] = &[
        ("no method", without(":method")),
        ("no scheme", without(":scheme")),
        ("no path", without(":path")),
        ("an empty path", instead(":path", "")),
        ("a path that does not begin", instead(":path", "evil")),
        ("a path with a space", instead(":path", "/evil evil")),
        ("two methods", with(&[(":method", "DELETE")])),
        ("two paths", with(&[(":path", "/evil")])),
        ("two authorities", with(&[(":authority", "evil")])),
        ("a pseudo-header of answers", with(&[(":status", "200")])),
        ("an unknown pseudo-header", with(&[(":evil", "x")])),
        ("a pseudo-header behind a header", [&[("x-a", "b")], &ordinary[..]].concat()),
        ("a capital name", with(&[("X-A", "b")])),
        ("a name with a space", with(&[("x a", "b")])),
        ("a name with a colon", with(&[("x:a", "b")])),
        ("an empty name", with(&[("", "b")])),
        ("a line in a value", with(&[("x-a", "b\r\nx-remote-user: admin")])),
        ("NUL in a value", with(&[("x-a", "a\0b")])),
        ("connection", with(&[("connection", "x-remote-user")])),
        ("keep-alive", with(&[("keep-alive", "1")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "h2c")])),
        ("te", with(&[("te", "gzip")])),
        ("a body without one", with(&[("content-length", "4")])),
        ("lengths that differ", with(&[("content-length", "0"), ("content-length", "4")])),
        ("a length that is none", with(&[("content-length", "+0")])),
        ("another host", with(&[("host", "evil.example.com")])),
        ("two hosts", with(&[("host", "localhost"), ("host", "localhost")])),
        ("an authority with somebody in it", instead(":authority", "admin@localhost")),
        ("an authority with a path", instead(":authority", "localhost/evil")),
        ("connect", vec![(":method", "CONNECT"), (":authority", "localhost:443")]),
        ("connect with a path", instead(":method", "CONNECT")),
        ("extended connect", [&[(":protocol", "websocket")], &instead(":method", "CONNECT")[..]].concat()),
        ("a protocol", with(&[(":protocol", "websocket")])),
    ];
    for (what, lines) in cases {
        let mut frames = attack.open_h2_client().await;
        assert!(frames.send(&headers_frames(1, raw_h2_client::END_STREAM, &header_block(lines))).await);
        match frames.stream_outcome(1).await {
            StreamOutcome::Status(status) => assert!((400..500).contains(&status), "{what}: {status}"),
            StreamOutcome::Reset(_) | StreamOutcome::GoAway(_) | StreamOutcome::Closed => {}
        }
    }
    attack.assert_unharmed(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_unknown_frames_ignored() {
    let attack = AttackFixture::new(&[]).await;
    let mut frames = attack.open_h2_client().await;
    let bytes = [
        encode_frame(0xee, 0xff, 0, b"whatever"),
        encode_frame(raw_h2_client::PRIORITY, 0, 5, &[0, 0, 0, 3, 16]),
        encode_frame(raw_h2_client::SETTINGS, 0, 0, &[0xee, 0xee, 1, 2, 3, 4]),
        encode_frame(16, 0, 0, b"\0\0\0\x01u=1"), // PRIORITY_UPDATE
        get_frames(1, THINGS, &[("priority", "u=0, i"), ("te", "trailers")]),
        encode_frame(0xee, 0, 1, b"whatever"),
    ];
    assert!(frames.send(&bytes.concat()).await);
    assert_eq!(frames.stream_outcome(1).await, StreamOutcome::Status(200));
    attack.assert_unharmed(64 << 10).await;
}

/// A small block that stands for a large header, by the table of what was said before.
#[tokio::test(flavor = "multi_thread")]
async fn http2_hpack_bomb_refused() {
    let attack = AttackFixture::new(&[]).await;
    let mut frames = attack.open_h2_client().await;
    let mut bomb =
        header_block(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", THINGS)]);
    // Remembered once (literal with incremental indexing), then named sixteen thousand times.
    bomb.push(0x40);
    raw_h2_client::encode_hpack_length(&mut bomb, 3);
    bomb.extend(b"x-a");
    raw_h2_client::encode_hpack_length(&mut bomb, 4000);
    bomb.extend([b'e'; 4000]);
    bomb.extend([0xbe; 16_000]);
    frames.flood((0..20).map(|number| headers_frames(2 * number + 1, raw_h2_client::END_STREAM, &bomb))).await;
    match frames.stream_outcome(1).await {
        StreamOutcome::Status(status) => assert_eq!(status, 431),
        StreamOutcome::Reset(_) | StreamOutcome::GoAway(_) | StreamOutcome::Closed => {}
    }
    attack.assert_unharmed(64 << 10).await;
}

/// As many lines as the size of a header allows, and every one of them of a kind that we take out.
#[tokio::test(flavor = "multi_thread")]
async fn many_small_header_lines_bounded() {
    let attack = AttackFixture::new(&["--max-request-header-bytes=8388608"]).await;
    for (what, count, prefix) in [
        ("few", 2_000, "x-"),
        ("most", 24_570, ""),
        ("too many", 40_000, ""),
        ("identities", 20_000, "x-remote-extra-"),
    ] {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}{number:x}")).collect();
        let lines: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "b")).collect();
        let mut frames = attack.open_h2_client().await;
        frames.flood((0..3).map(|number| get_frames(2 * number + 1, THINGS, &lines))).await;
        match frames.stream_outcome(1).await {
            StreamOutcome::Status(status) => assert!(status == 431 || status == 200, "{what}: {status}"),
            StreamOutcome::Reset(_) | StreamOutcome::GoAway(_) | StreamOutcome::Closed => {}
        }
    }
    attack.assert_unharmed(128 << 10).await;
}

/// The handler's own patience: a body that never comes holds a stream, not the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn request_bodies_never_sent_do_not_block_others() {
    let attack = AttackFixture::new(&["--max-requests-inflight=1000", "--max-mutating-requests-inflight=1000"]).await;
    let mut frames = attack.open_h2_client().await;
    assert!(frames.flood((0..200).map(|number| post_frames(2 * number + 1, THINGS))).await);
    let post = request(Method::POST, THINGS, &[], "{}");
    assert_eq!(attack.bystander.send_and_read(post).await.status, 200);
    attack.assert_unharmed(64 << 10).await;
}

/// Lists that are read to find one word in them, as long as a header may be.
#[tokio::test(flavor = "multi_thread")]
async fn long_header_lists_and_queries_parsed_in_bounded_time() {
    let attack = AttackFixture::new(&[]).await;
    let list = |word: &str| word.repeat(900_000 / word.len());
    let cases = [
        ("accept", list("application/json;q=0.1,")),
        ("accept", list("a/b;c=d;e=f;g=\"h,\\\"\",")),
        ("accept", list(",")),
        ("accept", list(";")),
        ("accept", list("\"")),
        ("connection", list("x-a,")),
        ("connection", list("x-remote-user,")),
        ("te", list("trailers;q=0,")),
        ("sec-websocket-protocol", list("base64url.bearer.authorization.k8s.io.eA,")),
        ("authorization", format!("Bearer {}", list("x "))),
        ("x-forwarded-for", list("10.0.0.1, ")),
        ("upgrade", list("h2c,")),
    ];
    let long = "a%3Db,".repeat(9_000);
    for (name, value) in &cases {
        let bytes = format!(
            "GET {THINGS} HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\nConnection: close, upgrade\r\n\r\n"
        );
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 "), "{name}");
    }
    for query in [
        format!("fieldSelector={long}"),
        format!("labelSelector={long}"),
        format!("labelSelector=a+in+({}", "(".repeat(60_000)),
        format!("watch=1{}", "&watch=0".repeat(7_000)),
        "&".repeat(60_000),
        "%26;".repeat(15_000),
    ] {
        let bytes = format!("GET {THINGS}?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let response = attack.send_until_closed(bytes.as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 "), "{}", excerpt(query.as_bytes()));
    }
    for path in ["/a".repeat(30_000), "/%61".repeat(15_000), format!("{THINGS}{}", "/x".repeat(30_000))] {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(attack.send_until_closed(bytes.as_bytes()).await.starts_with("HTTP/1.1 "));
    }
    attack.assert_unharmed(64 << 10).await;
}

/// A line of the log is one event, whatever a client calls itself; and no client makes up a metric.
#[tokio::test(flavor = "multi_thread")]
async fn log_and_metrics_injection_by_client_prevented() {
    let attack = AttackFixture::new(&["--access-log=all", "--access-log-format=json"]).await;
    let proxy = attack.environment.issue_front_proxy("outer-proxy");
    let client = Client::http1(&attack.environment, &attack.gateway, Some(&proxy)).await;
    let metrics = async || attack.bystander.get("/metrics").await.text();
    for number in 0..40 {
        let name = format!("wicked{number}\"}} \\n \u{1b}[31m{{evil=\"x\"");
        let name = name.replace('\u{1b}', "\u{9b}");
        let path =
            format!("/apis/wicked{number}.example.com/v1wicked{number}/namespaces/wicked{number}/wicked{number}s");
        let lines = [
            ("x-remote-user", name.as_str()),
            ("x-remote-group", name.as_str()),
            ("x-remote-extra-wicked", name.as_str()),
            ("user-agent", name.as_str()),
            ("audit-id", name.as_str()),
            ("accept", name.as_str()),
        ];
        let method = Method::from_bytes(format!("WICKED{number}").as_bytes()).unwrap();
        for (method, path) in [
            (Method::GET, path.as_str()),
            (method, path.as_str()),
            (Method::GET, &format!("{THINGS}/wicked{number}/wicked{number}?dryRun=wicked{number}")),
            (Method::GET, &format!("/wicked{number}/%22%0a%1b[31m")),
        ] {
            let response = client.send_and_read(request(method, path, &lines, "")).await;
            assert!(response.status.as_u16() < 500, "{}", response.text());
        }
    }
    // The access record of the last is written.
    attack.gateway.wait_for_log(&["wicked39/%22%0a%1b[31m"]).await;
    for line in attack.gateway.log_lines() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&line);
        assert!(parsed.is_ok_and(|it| it.is_object()), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
    let metrics = metrics().await;
    let made_up = metrics.lines().find(|line| line.to_lowercase().contains("wicked"));
    assert!(made_up.is_none(), "{made_up:?}");
    attack.assert_unharmed(64 << 10).await;
}

/// Requests in one breath are answered one after another, and no faster than their answers are taken.
#[tokio::test(flavor = "multi_thread")]
async fn http1_pipelined_requests_answered_in_order_with_backpressure() {
    let attack = AttackFixture::new(&[]).await;
    let one = format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let last = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n{}", smuggled_request());
    let responses = attack.send_until_closed((one.repeat(50) + &last).as_bytes()).await;
    assert_eq!(responses.matches("HTTP/1.1 200 ").count(), 51);
    assert!(responses.ends_with("\r\n\r\nok"), "what came behind the last request was answered");
    // Without a listener.
    let mut deaf = connect(&attack.environment, attack.gateway.address, Some(&attack.attacker), &["http/1.1"]).await;
    let flood = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let push = async {
        for _ in 0..200 {
            if deaf.write_all(flood.as_bytes()).await.is_err() {
                break;
            }
        }
    };
    // Either all of it fits into what the kernel holds, or we are held back.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), push).await;
    attack.assert_unharmed(64 << 10).await;
}
