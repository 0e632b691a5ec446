//! Hostile clients, byte by byte. Each gets a clear refusal or a closed connection; other clients and the process are
//! not affected.

use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, connect, request};
use crate::frames::{self, Answered, Frames, block, frame, get, headers};
use crate::scene::THINGS;
use crate::world::{Gateway, PATIENCE, Pair, World};

const STALL: &str = "/apis/things.example.com/v1/namespaces/default/things/stall";
const EVIL: &str = "/apis/things.example.com/v1/namespaces/default/evil";

/// A gateway with things behind it, an attacker who may in, and somebody who only wants to be served.
struct Siege {
    world: World,
    backend: Backend,
    gateway: Gateway,
    attacker: Pair,
    bystander: Client,
    /// Resident memory before the attack, in kB.
    before: u64,
}

impl Siege {
    async fn of(more: &[&str]) -> Siege {
        Siege::behind(Settings::default(), more).await
    }

    async fn behind(settings: Settings, more: &[&str]) -> Siege {
        let world = World::new();
        // Never reads what it is sent, and never answers who asks for `…/stall`.
        let backend = Backend::start(&world, settings, async |request| {
            if request.uri().path().ends_with("/stall") {
                std::future::pending::<()>().await;
            }
            json(200, "{}")
        })
        .await;
        Siege::around(world, backend, more).await
    }

    async fn around(world: World, backend: Backend, more: &[&str]) -> Siege {
        world.register("things.example.com", "v1", &[&backend]);
        let gateway = world.gateway(more);
        let attacker = world.user("mallory", &[]);
        let bystander = Client::http2(&world, &gateway, Some(&world.user("jane", &[]))).await;
        assert_eq!(bystander.get(THINGS).await.status, 200);
        let before = gateway.resident();
        Siege { world, backend, gateway, attacker, bystander, before }
    }

    async fn frames(&self) -> Frames {
        Frames::open(&self.world, &self.gateway, Some(&self.attacker), &[]).await
    }

    /// Sends `bytes` and reads what comes until the gateway closes. The end must come from the gateway.
    async fn closed_after(&self, bytes: &[u8]) -> String {
        let mut stream = connect(&self.world, self.gateway.address, Some(&self.attacker), &["http/1.1"]).await;
        let mut answer = Vec::new();
        let talk = async {
            let (mut read, mut write) = tokio::io::split(&mut stream);
            let sending = async {
                // It may be cut before all of it is sent.
                let _ = write.write_all(bytes).await;
                let _ = write.flush().await;
            };
            let _ = tokio::join!(sending, read.read_to_end(&mut answer));
        };
        tokio::time::timeout(PATIENCE, talk).await.unwrap_or_else(|_| panic!("not closed: {}", shown(bytes)));
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Nobody noticed.
    async fn repelled(&self, kilobytes: u64) {
        assert_eq!(self.bystander.get(THINGS).await.status, 200);
        let now = self.gateway.resident();
        assert!(now < self.before + kilobytes, "grew from {} kB to {now} kB", self.before);
        let log = self.gateway.log();
        assert!(!log.iter().any(|line| line.contains("panicked")), "{}", log.join("\n"));
        let evil = self.backend.seen().into_iter().find(|seen| seen.uri.path().contains("evil"));
        assert!(evil.is_none(), "{evil:?}");
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

/// What comes behind an attack, in the hope to be taken for a request.
fn smuggled() -> String {
    format!("GET {EVIL} HTTP/1.1\r\nHost: localhost\r\nX-Remote-User: admin\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_can_be_read_in_two_ways_are_refused() {
    let siege = Siege::of(&[]).await;
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
        let bytes = [line.as_bytes(), b"Connection: close\r\n", head, smuggled().as_bytes()].concat();
        let bytes = if head.starts_with(b" ") { [line.as_bytes(), head].concat() } else { bytes };
        let answer = siege.closed_after(&bytes).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") || answer.is_empty(), "{what}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count().max(1), 1, "{what}: {answer}");
    }
    assert_eq!(siege.backend.seen().len(), 1, "only the bystander's: {:?}", siege.backend.seen());
    siege.repelled(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_lines_that_are_none_are_refused() {
    let siege = Siege::of(&[]).await;
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
        let answer =
            siege.closed_after(format!("{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{line:?}: {answer}");
    }
    for (line, status) in [
        ("OPTIONS * HTTP/1.1", "400"),
        ("CONNECT evil.example.com:443 HTTP/1.1", "405"),
        ("TRACE /version HTTP/1.1", "405"),
    ] {
        let host = if line.starts_with("CONNECT") { "evil.example.com:443" } else { "localhost" };
        let bytes = format!("{line}\r\nHost: {host}\r\nConnection: close\r\n\r\n{}", smuggled());
        let answer = siege.closed_after(bytes.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line:?}: {answer}");
    }
    siege.repelled(64 << 10).await;
}

/// RFC 9112 lets a server take the coding and forget the length, if it closes afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_length_beside_a_coding_ends_the_connection() {
    let siege = Siege::of(&[]).await;
    for framing in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\nConnection: keep-alive\r\n",
    ] {
        let bytes =
            format!("POST {THINGS} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n2\r\n{{}}\r\n0\r\n\r\n{}", smuggled());
        let answer = siege.closed_after(bytes.as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(siege.backend.last().all("content-length").is_empty());
    }
    // The same length twice is one length.
    let bytes = format!(
        "POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}{}",
        smuggled()
    );
    assert!(siege.closed_after(bytes.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(siege.backend.last().all("content-length"), ["2"]);
    siege.repelled(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_are_none_end_the_connection() {
    let siege = Siege::of(&[]).await;
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
            smuggled()
        );
        let answer = siege.closed_after(bytes.as_bytes()).await;
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{chunks:?}: {answer}");
    }
    siege.repelled(64 << 10).await;
}

/// A proxy in front of us may judge by the target's host what it then sends to us.
#[tokio::test(flavor = "multi_thread")]
async fn the_target_s_host_is_the_one_that_counts() {
    let siege = Siege::of(&[]).await;
    let bytes =
        format!("GET https://localhost{THINGS} HTTP/1.1\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n");
    assert!(siege.closed_after(bytes.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(siege.backend.last().all("x-forwarded-host"), ["localhost"]);
    siege.repelled(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_cut() {
    let siege = Siege::of(&[]).await;
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
        let answer = siege.closed_after(bytes.as_bytes()).await;
        let clear = answer.is_empty()
            || answer.starts_with("HTTP/1.1 4")
            || answer.starts_with("HTTP/1.1 200 ") && what.starts_with(['c', 't']);
        assert!(clear, "{what}: {}", shown(answer.as_bytes()));
    }
    siege.repelled(64 << 10).await;
}

/// HTTP/2 over cleartext is asked for by upgrade; behind TLS that is a trick to get past a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn h2c_is_served_as_if_not_asked_for() {
    let siege = Siege::of(&[]).await;
    for (upgrade, connection) in [
        ("h2c", "Upgrade, HTTP2-Settings, close"),
        ("h2c, websocket", "upgrade, http2-settings, close"),
        ("H2C", "close"),
    ] {
        let bytes = format!(
            "GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: {connection}\r\n\r\n"
        );
        let answer = siege.closed_after(bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let seen = siege.backend.last();
        assert!(["upgrade", "http2-settings", "connection"].iter().all(|name| seen.all(name).is_empty()), "{seen:?}");
    }
    siege.repelled(64 << 10).await;
}

/// An answer to a request that is not over, however little of it came: its sender is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_at_any_byte_leaves_nothing_behind() {
    let siege = Siege::of(&[]).await;
    let bytes = format!("POST {THINGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n{{}}");
    for end in (0..bytes.len()).step_by(7).chain([bytes.len()]) {
        let mut stream = connect(&siege.world, siege.gateway.address, Some(&siege.attacker), &["http/1.1"]).await;
        stream.write_all(&bytes.as_bytes()[..end]).await.unwrap();
        stream.flush().await.unwrap();
        stream.get_mut().0.shutdown().await.unwrap();
    }
    siege.repelled(64 << 10).await;
}

// HTTP/2

const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Fifty times two hundred requests that stall, each followed by `then`.
fn bursts(then: impl Fn(u32) -> Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    (0..50).map(move |burst| {
        let streams = (200 * burst..200 * (burst + 1)).map(|number| 2 * number + 1);
        streams.flat_map(|stream| [get(stream, STALL, &[]), then(stream)].concat()).collect()
    })
}

/// A POST to `path` without its body.
fn post(stream: u32, path: &str) -> Vec<u8> {
    let lines = [(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    headers(stream, 0, &block(&lines))
}

/// CVE-2023-44487.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_do_not_pile_up() {
    for settings in [Settings::http1(), Settings::http2()] {
        let siege = Siege::behind(settings, &[]).await;
        let mut frames = siege.frames().await;
        frames.flood(bursts(|stream| frame(frames::RST_STREAM, 0, stream, &CANCEL))).await;
        siege.repelled(64 << 10).await;
        assert!(siege.backend.connections() < 500, "{} connections to the backend", siege.backend.connections());
    }
}

/// The same, with resets that the gateway itself is made to send ("MadeYouReset").
#[tokio::test(flavor = "multi_thread")]
async fn provoked_resets_do_not_pile_up() {
    let siege = Siege::of(&[]).await;
    let mut frames = siege.frames().await;
    frames.flood(bursts(|stream| frame(frames::WINDOW_UPDATE, 0, stream, &[0; 4]))).await;
    assert!(frames.find(|frame| frame.kind == frames::GOAWAY).await.is_some());
    siege.repelled(64 << 10).await;
}

/// CVE-2024-27316 and its kin.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_never_ends_is_cut() {
    let siege = Siege::of(&[]).await;
    for piece in [&[][..], &block(&[("x-a", "b")]), &block(&[("x-a", &"e".repeat(16_000))])] {
        let mut frames = siege.frames().await;
        let mut bytes = get(1, THINGS, &[]);
        bytes[4] = frames::END_STREAM;
        let flood = frame(frames::CONTINUATION, 0, 1, piece).repeat(1 + (100_000 / (9 + piece.len())));
        assert!(frames.send(&bytes).await);
        assert!(!frames.flood(vec![flood; 200]).await, "taken without end");
        assert!(matches!(frames.answer(1).await, Answered::GoAway(_) | Answered::Closed));
    }
    siege.repelled(64 << 10).await;
}

/// Frames that want an answer each, from somebody who does not listen.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_settings_and_pings_are_not_hoarded() {
    let siege = Siege::of(&[]).await;
    for one in [
        frame(frames::SETTINGS, 0, 0, &[]),
        frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255].repeat(100)),
        frame(frames::PING, 0, 0, &[7; 8]),
        frame(frames::PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
        frame(0xee, 0, 0, &[7; 100]),
        frame(frames::WINDOW_UPDATE, 0, 99, &[0, 0, 0, 1]),
    ] {
        let mut frames = siege.frames().await;
        frames.deaf();
        frames.flood(vec![one.repeat(50_000 / one.len()); 100]).await;
    }
    siege.repelled(64 << 10).await;
}

/// CVE-2019-9518: frames of data without data cost their sender no window.
#[tokio::test(flavor = "multi_thread")]
async fn empty_frames_of_data_are_not_hoarded() {
    let siege = Siege::behind(Settings { window: 10, ..Settings::http2() }, &[]).await;
    for one in [frame(frames::DATA, 0, 1, &[]), frame(frames::DATA, 8, 1, &[0])] {
        let mut frames = siege.frames().await;
        assert!(frames.send(&post(1, STALL)).await);
        // More than the backend takes: from here on the body waits in the gateway.
        assert!(frames.send(&frame(frames::DATA, 0, 1, &[b'x'; 1000])).await);
        frames.flood(vec![one.repeat(5_000); 200]).await;
    }
    siege.repelled(64 << 10).await;
}

/// Somebody who asks for much and takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn answers_nobody_takes_wait_at_the_backend() {
    let world = World::new();
    let body = "x".repeat(8 << 20);
    let backend = Backend::start(&world, Settings::default(), move |_| {
        let answer = json(200, &body);
        async { answer }
    })
    .await;
    let siege = Siege::around(world, backend, &[]).await;
    // SETTINGS_INITIAL_WINDOW_SIZE: none, and as much as there is.
    for window in [0, 0x7fff_ffff] {
        let mut frames = Frames::open(&siege.world, &siege.gateway, Some(&siege.attacker), &[(4, window)]).await;
        assert!(frames.flood((0..50).map(|number| get(2 * number + 1, THINGS, &[]))).await);
        assert_eq!(frames.answer(1).await, Answered::Status(200));
        frames.deaf();
        assert_eq!(siege.bystander.get(THINGS).await.body.len(), 8 << 20);
        siege.repelled(128 << 10).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_against_the_rules_end_the_connection() {
    let siege = Siege::of(&[]).await;
    let cases: &[(&str, Vec<u8>)] = &[
        ("a window that overflows", frame(frames::WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
        ("no window at all", frame(frames::WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("data on no stream", frame(frames::DATA, 0, 0, b"evil")),
        ("data on a stream that is not open", frame(frames::DATA, 0, 1, b"evil")),
        ("a header on no stream", get(0, EVIL, &[])),
        ("a stream of ours", get(2, EVIL, &[])),
        ("a promise", frame(frames::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])),
        ("a continuation of nothing", frame(frames::CONTINUATION, 4, 1, &block(&[("x-a", "b")]))),
        (
            "a frame between header and continuation",
            [
                headers(1, 0, &[])[..0].to_vec(),
                frame(frames::HEADERS, 1, 1, &[0x82]),
                frame(frames::PING, 0, 0, &[0; 8]),
            ]
            .concat(),
        ),
        ("too large a frame", frame(frames::DATA, 0, 1, &vec![0; 20_000])),
        ("half a setting", frame(frames::SETTINGS, 0, 0, &[0, 4, 0])),
        ("settings on a stream", frame(frames::SETTINGS, 0, 1, &[])),
        ("acknowledged settings with settings", frame(frames::SETTINGS, frames::ACK, 0, &[0, 4, 0, 0, 0, 1])),
        ("settings nobody sent, acknowledged", frame(frames::SETTINGS, frames::ACK, 0, &[]).repeat(3)),
        ("push, perhaps", frame(frames::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2])),
        ("a window of settings that overflows", frame(frames::SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255])),
        ("frames of nothing", frame(frames::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("a short ping", frame(frames::PING, 0, 0, &[0; 7])),
        ("a ping on a stream", frame(frames::PING, 0, 1, &[0; 8])),
        ("a short reset", frame(frames::RST_STREAM, 0, 1, &[0; 3])),
        ("a reset of nothing", frame(frames::RST_STREAM, 0, 1, &CANCEL)),
        ("padding beyond the frame", frame(frames::HEADERS, 8 | 5, 1, &[200, 0x82])),
        ("an index beyond the table", headers(1, 1, &[0xff, 0xff, 0x7f])),
        ("a table too large", headers(1, 1, &[0x3f, 0xe1, 0xff, 0xff, 0x07])),
        ("an integer without end", headers(1, 1, &[0xff; 64])),
        ("a string beyond the block", headers(1, 1, &[0x00, 0x7f, 0xff, 0xff, 0x7f])),
        ("broken Huffman", headers(1, 1, &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x00])),
    ];
    for (what, bytes) in cases {
        let mut frames = siege.frames().await;
        frames.send(bytes).await;
        let end = frames.find(|frame| frame.kind == frames::GOAWAY && frame.payload[4..8] != [0; 4]).await;
        // Told why or not: it has an end.
        if end.is_some() {
            assert!(frames.find(|_| false).await.is_none(), "{what}");
        }
    }
    // Another beginning than HTTP/2's.
    let mut stream = connect(&siege.world, siege.gateway.address, Some(&siege.attacker), &["h2"]).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, async {
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await
    .expect("closed");
    siege.repelled(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_against_the_rules_are_refused_one_by_one() {
    let siege = Siege::of(&[]).await;
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
        let mut frames = siege.frames().await;
        assert!(frames.send(&headers(1, frames::END_STREAM, &block(lines))).await);
        match frames.answer(1).await {
            Answered::Status(status) => assert!((400..500).contains(&status), "{what}: {status}"),
            Answered::Reset(_) | Answered::GoAway(_) | Answered::Closed => {}
        }
    }
    siege.repelled(64 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_nobody_knows_are_ignored() {
    let siege = Siege::of(&[]).await;
    let mut frames = siege.frames().await;
    let bytes = [
        frame(0xee, 0xff, 0, b"whatever"),
        frame(frames::PRIORITY, 0, 5, &[0, 0, 0, 3, 16]),
        frame(frames::SETTINGS, 0, 0, &[0xee, 0xee, 1, 2, 3, 4]),
        frame(16, 0, 0, b"\0\0\0\x01u=1"), // PRIORITY_UPDATE
        get(1, THINGS, &[("priority", "u=0, i"), ("te", "trailers")]),
        frame(0xee, 0, 1, b"whatever"),
    ];
    assert!(frames.send(&bytes.concat()).await);
    assert_eq!(frames.answer(1).await, Answered::Status(200));
    siege.repelled(64 << 10).await;
}

/// A small block that stands for a large header, by the table of what was said before.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_bombs_do_not_go_off() {
    let siege = Siege::of(&[]).await;
    let mut frames = siege.frames().await;
    let mut bomb = block(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", THINGS)]);
    // Remembered once (literal with incremental indexing), then named sixteen thousand times.
    bomb.push(0x40);
    frames::length(&mut bomb, 3);
    bomb.extend(b"x-a");
    frames::length(&mut bomb, 4000);
    bomb.extend([b'e'; 4000]);
    bomb.extend([0xbe; 16_000]);
    frames.flood((0..20).map(|number| headers(2 * number + 1, frames::END_STREAM, &bomb))).await;
    match frames.answer(1).await {
        Answered::Status(status) => assert_eq!(status, 431),
        Answered::Reset(_) | Answered::GoAway(_) | Answered::Closed => {}
    }
    siege.repelled(64 << 10).await;
}

/// As many lines as the size of a header allows, and every one of them of a kind that we take out.
#[tokio::test(flavor = "multi_thread")]
async fn many_small_lines_harm_nobody() {
    let siege = Siege::of(&["--max-request-header-bytes=8388608"]).await;
    for (what, count, prefix) in [
        ("few", 2_000, "x-"),
        ("most", 24_570, ""),
        ("too many", 40_000, ""),
        ("identities", 20_000, "x-remote-extra-"),
    ] {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}{number:x}")).collect();
        let lines: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "b")).collect();
        let mut frames = siege.frames().await;
        frames.flood((0..3).map(|number| get(2 * number + 1, THINGS, &lines))).await;
        match frames.answer(1).await {
            Answered::Status(status) => assert!(status == 431 || status == 200, "{what}: {status}"),
            Answered::Reset(_) | Answered::GoAway(_) | Answered::Closed => {}
        }
    }
    siege.repelled(128 << 10).await;
}

/// The handler's own patience: a body that never comes holds a stream, not the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_come_hold_nobody_up() {
    let siege = Siege::of(&["--max-requests-inflight=1000", "--max-mutating-requests-inflight=1000"]).await;
    let mut frames = siege.frames().await;
    assert!(frames.flood((0..200).map(|number| post(2 * number + 1, THINGS))).await);
    let post = request(Method::POST, THINGS, &[], "{}");
    assert_eq!(siege.bystander.ask(post).await.status, 200);
    siege.repelled(64 << 10).await;
}

/// Lists that are read to find one word in them, as long as a header may be.
#[tokio::test(flavor = "multi_thread")]
async fn long_lists_are_read_in_reasonable_time() {
    let siege = Siege::of(&[]).await;
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
        let answer = siege.closed_after(bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 "), "{name}");
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
        let answer = siege.closed_after(bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 "), "{}", shown(query.as_bytes()));
    }
    for path in ["/a".repeat(30_000), "/%61".repeat(15_000), format!("{THINGS}{}", "/x".repeat(30_000))] {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(siege.closed_after(bytes.as_bytes()).await.starts_with("HTTP/1.1 "));
    }
    siege.repelled(64 << 10).await;
}

/// A line of the log is one event, whatever a client calls itself; and no client makes up a metric.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_says_does_not_write_our_log_or_our_metrics() {
    let siege = Siege::of(&["--access-log=all", "--access-log-format=json"]).await;
    let proxy = siege.world.front_proxy("outer-proxy");
    let client = Client::http1(&siege.world, &siege.gateway, Some(&proxy)).await;
    let metrics = async || siege.bystander.get("/metrics").await.text();
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
            let answer = client.ask(request(method, path, &lines, "")).await;
            assert!(answer.status.as_u16() < 500, "{}", answer.text());
        }
    }
    // The access record of the last is written.
    siege.gateway.said(&["wicked39/%22%0a%1b[31m"]).await;
    for line in siege.gateway.log() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&line);
        assert!(parsed.is_ok_and(|it| it.is_object()), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
    let metrics = metrics().await;
    let made_up = metrics.lines().find(|line| line.to_lowercase().contains("wicked"));
    assert!(made_up.is_none(), "{made_up:?}");
    siege.repelled(64 << 10).await;
}

/// Requests in one breath are answered one after another, and no faster than their answers are taken.
#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_wait_for_their_turn() {
    let siege = Siege::of(&[]).await;
    let one = format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let last = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n{}", smuggled());
    let answers = siege.closed_after((one.repeat(50) + &last).as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 51);
    assert!(answers.ends_with("\r\n\r\nok"), "what came behind the last request was answered");
    // Nobody listens.
    let mut deaf = connect(&siege.world, siege.gateway.address, Some(&siege.attacker), &["http/1.1"]).await;
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
    siege.repelled(64 << 10).await;
}
