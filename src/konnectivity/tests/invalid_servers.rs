//! Servers that send an agent what the reference's does not: the connection, or the stream, alone is affected.

use std::rc::Rc;

use bytes::Bytes;
use h2::SendStream;
use http::Response;
use konnectivity_client::Packet;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::{WAIT, echo_target, run, target};
use crate::konnectivity::agent::test_support::{TestAgent, connect_agent, eventually};
use crate::konnectivity::blackhole::Blackhole;
use crate::konnectivity::packet_reader::PacketReader;

/// A server that is this test, with a connected agent.
struct RawServer {
    send: SendStream<Bytes>,
    reader: PacketReader,
    agent: TestAgent,
    /// Announces the end of the server.
    goaway: Rc<Notify>,
}

impl RawServer {
    async fn start() -> RawServer {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let (opened, call) = oneshot::channel();
        let goaway = Rc::<Notify>::default();
        let serving = spawn_local(serve(theirs, opened, goaway.clone()));
        let agent = connect_agent(ours, "a", "", serving).await;
        let (send, reader) = timeout(WAIT, call).await.unwrap().unwrap();
        RawServer { send, reader, agent, goaway }
    }

    fn send(&mut self, packet: &Packet) {
        self.send.send_data(packet.encode_frame(), false).unwrap();
    }

    async fn next(&mut self) -> Packet {
        timeout(WAIT, self.reader.next()).await.expect("a packet").unwrap().expect("a packet, not the end")
    }

    /// The connection of a successful dial, or its error.
    async fn dial(&mut self, protocol: &str, address: &str, dial: i64) -> Result<i64, String> {
        self.send(&Packet::DialRequest { protocol: protocol.to_owned(), address: address.to_owned(), random: dial });
        match self.next().await {
            Packet::DialResponse { error, connection, random } if random == dial => match error.is_empty() {
                true => Ok(connection),
                false => Err(error),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that a connection echoes.
    async fn check_echo(&mut self, connection: i64) {
        self.send(&Packet::Data { connection, data: Bytes::from_static(b"ping") });
        let echoed = Packet::Data { connection, data: Bytes::from_static(b"ping") };
        assert_eq!(self.next().await, echoed);
    }

    /// Waits until the agent has left the stream.
    async fn wait_for_end(&mut self) {
        eventually("the agent leaves", || self.agent.has_ended()).await;
    }
}

async fn serve(stream: DuplexStream, opened: oneshot::Sender<(SendStream<Bytes>, PacketReader)>, goaway: Rc<Notify>) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 20);
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    let head = Response::builder().header("serverid", "server").header("servercount", "1").body(()).unwrap();
    let send = respond.send_response(head, false).unwrap();
    let _ = opened.send((send, PacketReader::new(request.into_body())));
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok(_)) => {}
                _ => return,
            },
            () = goaway.notified() => connection.graceful_shutdown(),
        }
    }
}

#[test]
fn agent_refuses_dials_of_other_protocols_and_addresses() {
    run(async {
        let mut server = RawServer::start().await;
        let echo = echo_target().await.to_string();
        let first = server.dial("tcp", &echo, 1).await.unwrap();
        for (protocol, address, expected) in [
            ("udp", "127.0.0.1:53".to_owned(), "dial udp 127.0.0.1:53: the agent supports tcp only"),
            ("unix", "/run/docker.sock".to_owned(), "dial unix /run/docker.sock: the agent supports tcp only"),
            ("tcp", String::new(), "dial tcp: address : missing port in address"),
            ("tcp", "127.0.0.1:99999".to_owned(), "dial tcp: address 127.0.0.1:99999: invalid port"),
            ("tcp", "a".repeat(1 << 20), "dial: an address of 1048579 bytes is too long"),
        ] {
            assert_eq!(server.dial(protocol, &address, 2).await.unwrap_err(), expected);
        }
        server.check_echo(first).await;
        // A dial id that is used again is another connection.
        let second = server.dial("tcp", &echo, 1).await.unwrap();
        assert_ne!(first, second);
        server.check_echo(second).await;
        server.check_echo(first).await;
    });
}

/// Each dial that waits has a socket. The answers fit into no queue: the writer has to run meanwhile.
#[test]
fn agent_limits_dials_that_wait_for_their_targets() {
    const DIALS: i64 = 30_000;
    const LIMIT: i64 = 100;
    run(async {
        let mut server = RawServer::start().await;
        let hole = Blackhole::new();
        for dial in 0..DIALS {
            let (protocol, address) = ("tcp".to_owned(), hole.address.to_string());
            server.send(&Packet::DialRequest { protocol, address, random: dial });
        }
        let (mut refused, mut timed_out) = (0, 0);
        for _ in 0..DIALS {
            match server.next().await {
                Packet::DialResponse { error, connection: 0, .. } if error.contains("too many dials") => refused += 1,
                Packet::DialResponse { error, connection: 0, .. } if error.contains("i/o timeout") => timed_out += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((refused, timed_out), (DIALS - LIMIT, LIMIT));
        let echo = echo_target().await.to_string();
        let connection = server.dial("tcp", &echo, 1).await.unwrap();
        server.check_echo(connection).await;
    });
}

#[test]
fn agent_answers_packets_of_unknown_connections() {
    run(async {
        let mut server = RawServer::start().await;
        let known = server.dial("tcp", &echo_target().await.to_string(), 1).await.unwrap();
        server.send(&Packet::Data { connection: 77, data: Bytes::from_static(b"x") });
        let error = "unrecognized connectID".to_owned();
        assert_eq!(server.next().await, Packet::CloseResponse { error, connection: 77 });
        server.send(&Packet::CloseRequest { connection: 78 });
        let error = "Unknown connectID".to_owned();
        assert_eq!(server.next().await, Packet::CloseResponse { error, connection: 78 });
        for ignored in [
            Packet::Data { connection: 0, data: Bytes::from_static(b"x") },
            Packet::Data { connection: known, data: Bytes::new() },
            Packet::CloseDial { random: 1 },
            Packet::CloseResponse { error: String::new(), connection: known },
            Packet::DialResponse { error: String::new(), connection: known, random: 1 },
            Packet::Drain,
            Packet::Unknown(99),
            // Nothing of this was negotiated.
            Packet::WindowUpdate { connection: known, increment: i64::MAX },
            Packet::WriteClosed { connection: known },
        ] {
            server.send(&ignored);
        }
        server.check_echo(known).await;
        server.send(&Packet::CloseRequest { connection: known });
        assert_eq!(server.next().await, Packet::CloseResponse { error: String::new(), connection: known });
        server.agent.wait_for_endpoints(0).await;
    });
}

#[test]
fn agent_leaves_a_stream_whose_content_is_no_packet() {
    run(async {
        let dial = Packet::DialRequest { protocol: "tcp".to_owned(), address: "127.0.0.1:1".to_owned(), random: 1 };
        let whole = dial.encode_frame();
        let mut contents: Vec<(Bytes, bool)> = (1..whole.len()).map(|length| (whole.slice(..length), true)).collect();
        contents.push((Bytes::from_static(b"\x01\0\0\0\x01x"), false));
        contents.push((Bytes::from_static(b"\0\0\0\0\x01\xff"), false));
        contents.push((Packet::Data { connection: 1, data: Bytes::from(vec![0; 4 << 20]) }.encode_frame(), false));
        for (content, is_last) in contents {
            let mut server = RawServer::start().await;
            server.send.send_data(content, is_last).unwrap();
            server.wait_for_end().await;
        }
    });
}

/// A server that was terminated waits for the end of the stream. Until the server has read it, data waits in the agent.
#[test]
fn agent_leaves_after_goaway_when_everything_is_sent() {
    run(async {
        // More than the window of the stream by less than one packet: it waits outside of the tunnel's queue.
        const LENGTH: usize = (1 << 20) + (30 << 10);
        let source = target(async |mut socket| {
            let _ = socket.write_all(&vec![7; LENGTH]).await;
        });
        let source = source.await.0.to_string();
        let mut server = RawServer::start().await;
        let idle = server.dial("tcp", &echo_target().await.to_string(), 1).await.unwrap();
        let connection = server.dial("tcp", &source, 2).await.unwrap();
        server.goaway.notify_one();
        server.send(&Packet::CloseRequest { connection: idle });
        // The agent has looked several times by now.
        sleep(std::time::Duration::from_secs(2)).await;
        assert!(!server.agent.has_ended());
        let (mut received, mut closed) = (0, Vec::new());
        while let Some(packet) = timeout(WAIT, server.reader.next()).await.expect("a packet, or the end").unwrap() {
            match packet {
                Packet::Data { connection: from, data } if from == connection => received += data.len(),
                Packet::CloseResponse { connection, .. } => closed.push(connection),
                other => panic!("{other:?}"),
            }
        }
        closed.sort_unstable();
        assert_eq!((received, closed), (LENGTH, vec![idle, connection]));
    });
}
