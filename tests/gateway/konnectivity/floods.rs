//! Floods of HTTP/2 frames and packets, at both listeners of a server and at an agent: memory is bounded, and others are
//! served.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use konnectivity_client::Packet;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, check_call, free_port, new_environment, start_agent,
    start_echo,
};
use crate::support::client::tls_handshake;
use crate::support::fake_oidc_issuer::server_config;
use crate::support::fixtures::{CertKeyPair, TEST_TIMEOUT, eventually};
use crate::support::raw_h2_client::{
    ACK, CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, encode_frame, header_block,
};

/// Bytes of each flood.
const FLOOD_BYTES: usize = 12 << 20;
/// What a process may hold of a flood, beside what allocators keep.
const MAX_GROWTH_KILOBYTES: u64 = 48 << 10;

/// What a server may hold of the calls that a connection to its frontend may have open.
const MAX_CALLS_KILOBYTES: u64 = 80 << 10;

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
    let packets = |name, packet: Packet| -> Flood {
        let frame = encode_frame(DATA, 0, 1, &packet.encode_frame());
        (name, open.clone(), Box::new(move |_| frame.clone()))
    };
    vec![
        packets("dials", dial_request("tcp", "192.0.2.1:1")),
        packets("dial responses", Packet::DialResponse { error: String::new(), connection: 7, random: 7 }),
        packets("data of unknown connections", Packet::Data { connection: 7, data: Bytes::from_static(b"x") }),
        packets("close requests", Packet::CloseRequest { connection: 7 }),
        packets("close responses", Packet::CloseResponse { error: String::new(), connection: 7 }),
        packets("unknown packets", Packet::Unknown(99)),
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

/// Writes a flood as a client does.
async fn flood(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), flood: &Flood) {
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&encode_frame(SETTINGS, 0, 0, &[])).await.unwrap();
    // Before the settings of the peer are acknowledged, its windows are small.
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    stream.read_exact(&mut vec![0; usize::from(head[2])]).await.unwrap();
    stream.write_all(&encode_frame(SETTINGS, ACK, 0, &[])).await.unwrap();
    write_flood(stream, flood).await;
}

/// Writes a flood until it is all sent, the peer closes, or it takes nothing for a second.
async fn write_flood(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), (name, first, more): &Flood) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    writer.write_all(first).await.unwrap();
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
        let mut stream = UnixStream::connect(&server.socket).await.unwrap();
        flood(&mut stream, &each).await;
        check_call(&server.socket, echo).await;
        let held = || server.process.resident_kilobytes();
        println!("{}: {before} kB, then {} kB", each.0, held());
        // 20,000 open calls are permitted.
        let limit = before + if each.0 == "HEADERS" { MAX_CALLS_KILOBYTES } else { MAX_GROWTH_KILOBYTES };
        assert!(held() < limit, "{}: grew from {before} kB to {} kB", each.0, held());
        drop(stream);
        let name = format!("the memory of {} to be returned, beyond {before} kB", each.0);
        eventually(&name, async || (held() < before + MAX_GROWTH_KILOBYTES).then_some(())).await;
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
        let mut stream = tls_handshake(&environment, socket, Some(&pair), &["h2"]).await.unwrap();
        flood(&mut stream, &each).await;
        check_call(&server.socket, echo).await;
        let now = server.process.resident_kilobytes();
        println!("{}: {before} kB, then {now} kB", each.0);
        assert!(now < before + MAX_GROWTH_KILOBYTES, "{}: grew from {before} kB to {now} kB", each.0);
    }
    server.process.wait_for_log(&["connection of an agent closed: it violates HTTP/2"]).await;
    assert!(!server.process.log_lines().iter().any(|line| line.contains("panicked")));
}

fn dial_request(protocol: &str, address: &str) -> Packet {
    Packet::DialRequest { protocol: protocol.to_owned(), address: address.to_owned(), random: 7 }
}

/// What a hostile server sends again and again, after the head of its response.
fn server_floods() -> Vec<Flood> {
    let repeat = |name, frame: Vec<u8>| -> Flood { (name, Vec::new(), Box::new(move |_| frame.clone())) };
    let packets = |name, packet: &Packet| repeat(name, encode_frame(DATA, 0, 1, &packet.encode_frame()));
    let request = header_block(&[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/")]);
    let head = header_block(&[(":status", "200"), ("a", "b")]);
    let trailers = encode_frame(HEADERS, 0, 1, &header_block(&[("grpc-status", "0")]));
    let long = header_block(&[("a", &*"b".repeat(16_000))]);
    let dial = |protocol| dial_request(protocol, "127.0.0.1:1");
    vec![
        repeat("SETTINGS", encode_frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])),
        repeat("PING", encode_frame(PING, 0, 0, &[7; 8])),
        repeat("RST_STREAM", encode_frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())),
        repeat("GOAWAY", encode_frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])),
        repeat("WINDOW_UPDATE", encode_frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes())),
        repeat("PRIORITY", encode_frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 16])),
        repeat("empty DATA", encode_frame(DATA, 0, 1, b"")),
        (
            "PUSH_PROMISE",
            Vec::new(),
            Box::new(move |id| {
                encode_frame(PUSH_PROMISE, END_HEADERS, 1, &[&(id - 1).to_be_bytes()[..], &request].concat())
            }),
        ),
        ("HEADERS", Vec::new(), Box::new(move |id| encode_frame(HEADERS, END_HEADERS, id - 1, &head))),
        ("CONTINUATION", trailers.clone(), Box::new(move |_| encode_frame(CONTINUATION, 0, 1, &long))),
        ("empty CONTINUATION", trailers, Box::new(|_| encode_frame(CONTINUATION, 0, 1, b""))),
        packets("refused dials", &dial("udp")),
        packets("failed dials", &dial("tcp")),
        packets("data of unknown connections", &Packet::Data { connection: 7, data: Bytes::from_static(b"x") }),
        packets("closes of unknown connections", &Packet::CloseRequest { connection: 7 }),
        packets("unknown packets", &Packet::Unknown(99)),
    ]
}

/// Accepts a connection of an agent, and responds to its call as a server does.
async fn accept_agent(listener: &TcpListener, tls: &TlsAcceptor) -> TlsStream<TcpStream> {
    let accepted = async {
        // The agent has given up those that waited too long.
        let mut stream = loop {
            if let Ok(stream) = tls.accept(listener.accept().await.unwrap().0).await {
                break stream;
            }
        };
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            if head[3] == HEADERS {
                break;
            }
        }
        let lines =
            [(":status", "200"), ("content-type", "application/grpc"), ("serverid", "hostile"), ("servercount", "2")];
        let response = encode_frame(HEADERS, END_HEADERS, 1, &header_block(&lines));
        let settings = [encode_frame(SETTINGS, 0, 0, &[]), encode_frame(SETTINGS, ACK, 0, &[])].concat();
        stream.write_all(&[settings, response].concat()).await.unwrap();
        stream
    };
    tokio::time::timeout(TEST_TIMEOUT, accepted).await.expect("the agent to connect")
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_floods_of_a_server_at_an_agent_are_bounded() {
    let environment = new_environment();
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let pair = CertKeyPair::from_files(&environment.path("konnectivity").display().to_string());
    let tls = TlsAcceptor::from(Arc::new(server_config(&pair)));
    // Another server, whose tunnels go on.
    let server = ServerProcess::start_at(&environment, "server", "grpc", ("127.0.0.1", port), &[]).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(agent_arguments(&environment, "a", "127.0.0.1,127.0.0.2", port));
    command.args(["--sync-interval=20ms", "--sync-interval-cap=20ms"]);
    let agent = KonnectivityProcess::spawn(command);
    server.wait_for_agents(1).await;
    let echo = start_echo();
    check_call(&server.socket, echo).await;
    for each in server_floods() {
        let mut stream = accept_agent(&listener, &tls).await;
        let before = agent.resident_kilobytes();
        write_flood(&mut stream, &each).await;
        check_call(&server.socket, echo).await;
        let now = agent.resident_kilobytes();
        println!("{}: {before} kB, then {now} kB", each.0);
        assert!(now < before + MAX_GROWTH_KILOBYTES, "{}: grew from {before} kB to {now} kB", each.0);
    }
    agent.wait_for_log(&["connection to a server broke", "hostile"]).await;
    eventually("the connections to be gone", async || (agent.descriptor_count() < 60).then_some(())).await;
    assert!(!agent.log_lines().iter().any(|line| line.contains("panicked")));
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
