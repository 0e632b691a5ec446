//! Floods of HTTP/2 frames at both listeners: memory is bounded, and others are served.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, check_call, free_port, new_environment, start_agent,
    start_echo,
};
use crate::support::client::tls_handshake;
use crate::support::fixtures::{CertKeyPair, TEST_TIMEOUT, eventually};
use crate::support::raw_h2_client::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, encode_frame,
    header_block,
};

/// Bytes of each flood.
const FLOOD_BYTES: usize = 12 << 20;
/// What the server may hold of a flood, beside what allocators keep.
const MAX_GROWTH_KILOBYTES: u64 = 48 << 10;

/// Frames that are sent once, and frames that are sent again and again with the next stream ids.
type Flood = (&'static str, Vec<u8>, Box<dyn Fn(u32) -> Vec<u8>>);

fn floods(path: &str) -> Vec<Flood> {
    let lines = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("agentid", "flood"),
        ("agentidentifiers", "host=nowhere"),
    ];
    let block = header_block(&lines);
    let open = encode_frame(HEADERS, END_HEADERS, 1, &block);
    let (for_reset, for_open) = (block.clone(), block.clone());
    vec![
        ("SETTINGS", Vec::new(), Box::new(|_| encode_frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]))),
        ("PING", Vec::new(), Box::new(|_| encode_frame(PING, 0, 0, &[7; 8]))),
        ("RST_STREAM", open.clone(), Box::new(|_| encode_frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()))),
        (
            "HEADERS and RST_STREAM",
            Vec::new(),
            Box::new(move |stream| {
                let open = encode_frame(HEADERS, END_HEADERS, stream, &for_reset);
                [open, encode_frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
            }),
        ),
        ("HEADERS", Vec::new(), Box::new(move |stream| encode_frame(HEADERS, END_HEADERS, stream, &for_open))),
        (
            "CONTINUATION",
            encode_frame(HEADERS, 0, 1, &block),
            Box::new(|_| encode_frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b")),
        ),
        (
            "empty CONTINUATION",
            encode_frame(HEADERS, 0, 1, &block),
            Box::new(|_| encode_frame(CONTINUATION, 0, 1, b"")),
        ),
        ("empty DATA", open.clone(), Box::new(|_| encode_frame(DATA, 0, 1, b""))),
        ("WINDOW_UPDATE", open.clone(), Box::new(|_| encode_frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes()))),
        ("PRIORITY", open, Box::new(|stream| encode_frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 16]))),
    ]
}

/// Writes a flood until it is all sent, the server closes, or it takes nothing for a second.
async fn flood(stream: impl AsyncRead + AsyncWrite + Unpin, (name, first, more): &Flood) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &encode_frame(SETTINGS, 0, 0, &[]), first].concat();
    writer.write_all(&preface).await.unwrap();
    let (mut id, mut sent) = (3, 0);
    while sent < FLOOD_BYTES {
        let mut piece = Vec::new();
        while piece.len() < 32 << 10 {
            piece.extend(more(id));
            id += 2;
        }
        sent += piece.len();
        match tokio::time::timeout(Duration::from_secs(1), writer.write_all(&piece)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return println!("{name}: closed after {} KiB", sent >> 10),
            Err(_) => return println!("{name}: takes no more after {} KiB", sent >> 10),
        }
    }
    println!("{name}: took {} KiB", sent >> 10);
    // Whatever it answers.
    let _ = tokio::time::timeout(Duration::from_millis(100), reader.read(&mut [0; 1024])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_floods_at_the_frontend_are_bounded() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "grpc").await;
    let _agent = start_agent(&environment, "a", "127.0.0.1", server.agent_port);
    server.wait_for_agents(1).await;
    let echo = start_echo();
    check_call(&server.socket, echo).await;
    for each in floods("/ProxyService/Proxy") {
        let before = server.process.resident_kilobytes();
        flood(UnixStream::connect(&server.socket).await.unwrap(), &each).await;
        check_call(&server.socket, echo).await;
        let now = server.process.resident_kilobytes();
        println!("{}: {before} kB, then {now} kB", each.0);
        assert!(now < before + MAX_GROWTH_KILOBYTES, "{}: grew from {before} kB to {now} kB", each.0);
    }
    server.process.wait_for_log(&["connection of a frontend closed: it violates HTTP/2"]).await;
    eventually("the connections to be gone", async || (server.process.descriptor_count() < 60).then_some(())).await;
    assert!(!server.process.log_lines().iter().any(|line| line.contains("panicked")));
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_floods_of_an_agent_are_bounded() {
    let environment = new_environment();
    // Dials are for the other agent, even while the flooding one is connected.
    let strategies = &["--proxy-strategies=destHost"];
    let at = ("127.0.0.1", free_port());
    let server = ServerProcess::start_at(&environment, "server", "grpc", at, strategies).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(agent_arguments(&environment, "a", "127.0.0.1", server.agent_port));
    let _agent = KonnectivityProcess::spawn({
        command.arg("--agent-identifiers=host=127.0.0.1");
        command
    });
    eventually("the agent", async || server.is_ready().then_some(())).await;
    let echo = start_echo();
    let pair = CertKeyPair::from_files(&environment.path("agent").display().to_string());
    for each in floods("/AgentService/Connect") {
        let before = server.process.resident_kilobytes();
        let socket = TcpStream::connect(("127.0.0.1", server.agent_port)).await.unwrap();
        let stream = tls_handshake(&environment, socket, Some(&pair), &["h2"]).await.unwrap();
        flood(stream, &each).await;
        check_call(&server.socket, echo).await;
        let now = server.process.resident_kilobytes();
        println!("{}: {before} kB, then {now} kB", each.0);
        assert!(now < before + MAX_GROWTH_KILOBYTES, "{}: grew from {before} kB to {now} kB", each.0);
    }
    server.process.wait_for_log(&["connection of an agent closed: it violates HTTP/2"]).await;
    assert!(!server.process.log_lines().iter().any(|line| line.contains("panicked")));
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_silent_agent_connections_are_closed() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "grpc").await;
    let _agent = start_agent(&environment, "a", "127.0.0.1", server.agent_port);
    server.wait_for_agents(1).await;
    let silent: Vec<TcpStream> = {
        let mut silent = Vec::new();
        for _ in 0..500 {
            silent.push(TcpStream::connect(("127.0.0.1", server.agent_port)).await.unwrap());
        }
        silent
    };
    check_call(&server.socket, start_echo()).await;
    for mut stream in silent {
        // The handshake timeout is 10 seconds.
        let read = tokio::time::timeout(TEST_TIMEOUT, stream.read(&mut [0; 64])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_frontends_without_http2_are_disconnected() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "grpc").await;
    for text in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &[0; 64]] {
        let mut stream = UnixStream::connect(&server.socket).await.unwrap();
        stream.write_all(text).await.unwrap();
        stream.shutdown().await.unwrap();
        let ended = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut Vec::new())).await;
        ended.expect("the server to close it").ok();
    }
    server.process.wait_for_log(&["connection of a frontend closed: it is no HTTP/2"]).await;
    let socket = TcpStream::connect(("127.0.0.1", server.agent_port)).await.unwrap();
    let pair = CertKeyPair::from_files(&environment.path("agent").display().to_string());
    let mut stream = tls_handshake(&environment, socket, Some(&pair), &["h2"]).await.unwrap();
    stream.write_all(&[0; 64]).await.unwrap();
    let ended = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut Vec::new())).await;
    ended.expect("the server to close it").ok();
    server.process.wait_for_log(&["connection of an agent closed: it is no HTTP/2"]).await;
}
