//! Agents that do what the reference's does not: other agents and their tunnels go on.

use bytes::Bytes;
use h2::SendStream;
use http::{HeaderMap, Request};
use konnectivity_client::Packet;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use super::{Setup, WAIT, check_echo, echo_target, run, tunnel};
use crate::konnectivity::packet_reader::PacketReader;

/// A stream whose agent is this test.
struct RawAgent {
    send: SendStream<Bytes>,
    reader: PacketReader,
    head: HeaderMap,
}

impl RawAgent {
    async fn open(setup: &Setup, metadata: &[(&str, &str)]) -> RawAgent {
        let (call, connection) = h2::client::handshake(setup.agent_connection()).await.unwrap();
        spawn_local(async move {
            let _ = connection.await;
        });
        let mut request = Request::post("https://localhost/AgentService/Connect");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let mut call = call.ready().await.unwrap();
        let (response, send) = call.send_request(request.body(()).unwrap(), false).unwrap();
        let (head, body) = timeout(WAIT, response).await.unwrap().unwrap().into_parts();
        RawAgent { send, reader: PacketReader::new(body), head: head.headers }
    }

    fn send(&mut self, packet: &Packet) {
        self.send.send_data(packet.encode_frame(), false).unwrap();
    }

    async fn next(&mut self) -> Packet {
        timeout(WAIT, self.reader.next()).await.expect("a packet").unwrap().expect("a packet, not the end")
    }

    /// The dial id of the next request.
    async fn dial_request(&mut self) -> i64 {
        match self.next().await {
            Packet::DialRequest { random, .. } => random,
            other => panic!("{other:?}"),
        }
    }
}

fn dial_response(connection: i64, random: i64) -> Packet {
    Packet::DialResponse { error: String::new(), connection, random }
}

#[test]
fn agent_metadata_that_is_wrong_is_refused_with_a_text() {
    run(async {
        let setup = Setup::new();
        let long = "a".repeat(5000);
        let refused: &[(&[(&str, &str)], &str)] = &[
            (&[], "expected one agent ID in the context, got []"),
            (&[("agentid", "a"), ("agentid", "b")], "expected one agent ID in the context, got [a b]"),
            (&[("agentid", &long)], "the agent ID has 5000 bytes, the most are 4096"),
            (
                &[("agentid", "a"), ("agentidentifiers", "host=%zz")],
                "fail to parse url encoded string: invalid URL escape \"%25zz\"",
            ),
            (
                &[("agentid", "a"), ("agentidentifiers", "host=a%2")],
                "fail to parse url encoded string: invalid URL escape \"%252\"",
            ),
            (
                &[("agentid", "a"), ("agentidentifiers", "host=a"), ("agentidentifiers", "host=b")],
                "expected at most one set of agent Identifiers in the context, got [host=a host=b]",
            ),
        ];
        for (metadata, expected) in refused {
            let agent = RawAgent::open(&setup, metadata).await;
            assert_eq!(agent.head["grpc-status"], "2");
            assert_eq!(agent.head["grpc-message"], *expected);
        }
        assert!(setup.server.agents().is_empty());
        // The reference takes an empty id and unknown identifiers.
        for metadata in [&[("agentid", "")][..], &[("agentid", "a"), ("agentidentifiers", "ipv5=1&&=&host")]] {
            let agent = RawAgent::open(&setup, metadata).await;
            assert_eq!(agent.head["serverid"], "server");
        }
    });
}

#[test]
fn agents_of_empty_and_same_ids_all_serve() {
    run(async {
        let setup = Setup::new();
        let echo = echo_target().await;
        let _agents = [setup.agent("", "").await, setup.agent("", "").await, setup.agent("x", "").await];
        assert_eq!(setup.server.agents().len(), 3);
        let client = setup.client().await;
        for _ in 0..20 {
            check_echo(&mut tunnel(&client, echo).await).await;
        }
    });
}

#[test]
fn dial_that_is_answered_twice_stays_with_its_client() {
    run(async {
        let setup = Setup::new();
        let mut agent = RawAgent::open(&setup, &[("agentid", "raw"), ("agentidentifiers", "host=127.0.0.9")]).await;
        let mut stream = setup.raw_connect();
        let answer = async {
            let random = agent.dial_request().await;
            agent.send(&dial_response(5, random));
            agent.send(&dial_response(6, random));
            // The id of the first connection is in use.
            agent.send(&dial_response(5, random + 1));
            agent
        };
        let (head, mut agent) = tokio::join!(setup.request(&mut stream, "127.0.0.9:80"), answer);
        assert_eq!(head, "HTTP/1.1 200 Connection Established\r\n\r\n");
        // What nobody waits for is closed.
        assert_eq!(agent.next().await, Packet::CloseRequest { connection: 6 });
        assert_eq!(agent.next().await, Packet::CloseRequest { connection: 5 });
        agent.send(&Packet::Data { connection: 5, data: Bytes::from_static(b"hello") });
        let mut text = [0; 5];
        timeout(WAIT, stream.read_exact(&mut text)).await.unwrap().unwrap();
        assert_eq!(&text, b"hello");
    });
}

#[test]
fn connection_ids_that_are_invalid_or_in_use_fail_the_dial() {
    run(async {
        let setup = Setup::new();
        let mut agent = RawAgent::open(&setup, &[("agentid", "raw")]).await;
        let mut first = setup.raw_connect();
        let (head, ()) = tokio::join!(setup.request(&mut first, "a:80"), async {
            let random = agent.dial_request().await;
            agent.send(&dial_response(5, random));
        });
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        for connection in [0, 5] {
            let mut second = setup.raw_connect();
            let (head, ()) = tokio::join!(setup.request(&mut second, "a:80"), async {
                let random = agent.dial_request().await;
                agent.send(&dial_response(connection, random));
            });
            assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        }
        agent.send(&Packet::Data { connection: 5, data: Bytes::from_static(b"x") });
        assert_eq!(timeout(WAIT, first.read_u8()).await.unwrap().unwrap(), b'x');
    });
}

#[test]
fn agent_that_floods_unknown_connections_and_reads_nothing_is_disconnected() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let mut flooding = RawAgent::open(&setup, &[("agentid", "flood"), ("agentidentifiers", "host=x")]).await;
        let frame = Packet::Data { connection: 77, data: Bytes::from_static(b"x") }.encode_frame();
        let deadline = Instant::now() + WAIT * 3;
        // Each is answered by a request to close; they wait up to a limit.
        while setup.server.agents().iter().any(|agent| agent.agent_id == "flood") {
            flooding.send.reserve_capacity(1 << 16);
            for _ in 0..500 {
                let _ = flooding.send.send_data(frame.clone(), false);
            }
            sleep(std::time::Duration::from_millis(1)).await;
            assert!(Instant::now() < deadline, "nothing limits the answers");
        }
        let client = setup.client().await;
        check_echo(&mut tunnel(&client, echo).await).await;
    });
}

#[test]
fn agent_packets_cut_at_every_byte_end_their_stream_alone() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "host=127.0.0.1").await;
        let echo = echo_target().await;
        let client = setup.client().await;
        let mut other = tunnel(&client, echo).await;
        let frame = dial_response(5, 6).encode_frame();
        for length in 1..frame.len() {
            let mut agent = RawAgent::open(&setup, &[("agentid", "cut")]).await;
            agent.send.send_data(frame.slice(..length), true).unwrap();
            while let Ok(Some(_)) = timeout(WAIT, agent.reader.next()).await.expect("the end") {}
        }
        check_echo(&mut other).await;
        assert_eq!(setup.server.agents().len(), 1);
    });
}

#[test]
fn dial_of_an_agent_that_leaves_goes_to_another() {
    run(async {
        let setup = Setup::new();
        let target = echo_target().await;
        let mut leaving = RawAgent::open(&setup, &[("agentid", "a")]).await;
        let dial = setup.connect(target);
        let other = async {
            leaving.dial_request().await;
            let other = setup.agent("b", "").await;
            drop(leaving);
            other
        };
        let (mut stream, _other) = tokio::join!(dial, other);
        check_echo(&mut stream).await;
        assert!(setup.server.report().failed_dials.is_empty());
    });
}

#[test]
fn unknown_packets_of_agents_are_ignored() {
    run(async {
        let setup = Setup::new();
        let mut agent = RawAgent::open(&setup, &[("agentid", "raw")]).await;
        let mut stream = setup.raw_connect();
        let unknown = [Packet::Unknown(63), Packet::Unknown(66), Packet::Unknown(-1)];
        let (head, ()) = tokio::join!(setup.request(&mut stream, "a:80"), async {
            let random = agent.dial_request().await;
            unknown.iter().for_each(|packet| agent.send(packet));
            agent.send(&dial_response(5, random));
        });
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        // An agent that has announced no window has no flow control; and dials and closes come from servers.
        let misplaced = [
            Packet::WindowUpdate { connection: 5, increment: i64::MAX },
            Packet::WindowUpdate { connection: 99, increment: -1 },
            Packet::WriteClosed { connection: 5 },
            Packet::DialRequest { protocol: "tcp".to_owned(), address: "a:1".to_owned(), random: 1 },
            Packet::CloseRequest { connection: 5 },
            Packet::CloseResponse { error: String::new(), connection: 99 },
            Packet::CloseDial { random: 99 },
        ];
        unknown.iter().chain(&misplaced).for_each(|packet| agent.send(packet));
        agent.send(&Packet::Data { connection: 5, data: Bytes::from_static(b"x") });
        assert_eq!(timeout(WAIT, stream.read_u8()).await.unwrap().unwrap(), b'x');
        stream.write_all(b"y").await.unwrap();
        assert_eq!(agent.next().await, Packet::Data { connection: 5, data: Bytes::from_static(b"y") });
    });
}

#[test]
fn content_of_an_agent_that_is_no_packet_ends_its_stream_alone() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "host=127.0.0.1").await;
        let echo = echo_target().await;
        let mut other = tunnel(&setup.client().await, echo).await;
        // A compressed message, a packet cut short, one that is longer than it may be.
        for invalid in [&b"\x01\0\0\0\x01x"[..], b"\0\0\0\0\x02\x0a\x7f", b"\0\0\x40\0\x01"] {
            let mut agent = RawAgent::open(&setup, &[("agentid", "invalid")]).await;
            agent.send.send_data(Bytes::from_static(invalid), false).unwrap();
            while let Ok(Some(_)) = timeout(WAIT, agent.reader.next()).await.expect("the end of the stream") {}
            assert_eq!(setup.server.agents().len(), 1, "{invalid:?}");
        }
        check_echo(&mut other).await;
    });
}

/// The reference's agent expects a close request alone.
#[test]
fn agent_without_windows_is_not_told_why_a_client_has_failed() {
    run(async {
        let setup = Setup::new();
        let mut agent = RawAgent::open(&setup, &[("agentid", "a")]).await;
        let connected = setup.connect_by_unix_socket(([127, 0, 0, 1], 1).into());
        let answered = async {
            let random = agent.dial_request().await;
            agent.send(&dial_response(5, random));
            agent.send(&Packet::Data { connection: 5, data: Bytes::from_static(b"banner") });
        };
        let (mut client, ()) = tokio::join!(connected, answered);
        // The rest of the banner is not read, so that the socket is reset.
        timeout(WAIT, client.read_exact(&mut [0])).await.unwrap().unwrap();
        drop(client);
        assert_eq!(agent.next().await, Packet::CloseRequest { connection: 5 });
        agent.send(&Packet::CloseResponse { error: String::new(), connection: 5 });
        setup.wait_for_tunnels(0).await;
    });
}
