//! Clients in gRPC mode that send what the reference's does not: their call alone is affected.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{HeaderMap, Request};
use konnectivity_client::Packet;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

use super::{Setup, WAIT, check_echo, echo_target, recording_target, run, target, tunnel};
use crate::konnectivity::packet_reader::PacketReader;

/// An HTTP/2 connection to the server, and its task.
async fn connect(setup: &Setup) -> (SendRequest<Bytes>, JoinHandle<()>) {
    let mut builder = h2::client::Builder::new();
    // A packet has to fit.
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 20);
    let (call, connection) = builder.handshake(setup.grpc_connection()).await.unwrap();
    let connection = spawn_local(async move {
        let _ = connection.await;
    });
    (call.ready().await.unwrap(), connection)
}

/// A call whose client is this test.
struct RawCall {
    send: SendStream<Bytes>,
    reader: PacketReader,
    connection: JoinHandle<()>,
}

impl RawCall {
    async fn open(setup: &Setup) -> RawCall {
        let (mut call, connection) = connect(setup).await;
        let request = Request::post("http://localhost/ProxyService/Proxy").body(()).unwrap();
        let (response, send) = call.send_request(request, false).unwrap();
        RawCall { send, reader: PacketReader::new(response.await.unwrap().into_body()), connection }
    }

    /// A call with an open tunnel, and its connection id.
    async fn dial(setup: &Setup, address: &str) -> (RawCall, i64) {
        let mut call = RawCall::open(setup).await;
        call.send(&dial_request("tcp", address));
        match call.next().await {
            Some(Packet::DialResponse { error, connection, random: 42 }) if error.is_empty() => (call, connection),
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, packet: &Packet) {
        self.send.send_data(packet.encode_frame(), false).unwrap();
    }

    async fn next(&mut self) -> Option<Packet> {
        timeout(WAIT, self.reader.next()).await.expect("a packet, or the end").ok().flatten()
    }

    async fn close_response(&mut self) -> (i64, String) {
        match self.next().await {
            Some(Packet::CloseResponse { error, connection }) => (connection, error),
            other => panic!("{other:?}"),
        }
    }

    /// The error of a dial.
    async fn dial_error(&mut self, protocol: &str, address: &str) -> String {
        self.send(&dial_request(protocol, address));
        match self.next().await {
            Some(Packet::DialResponse { error, connection: 0, random: 42 }) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of the call. The status and the text.
    async fn status(&mut self) -> (String, String) {
        while self.next().await.is_some() {}
        let trailers = timeout(WAIT, self.reader.trailers()).await.unwrap().unwrap_or_default();
        let text = |trailers: &HeaderMap, name: &str| {
            trailers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        (text(&trailers, "grpc-status"), text(&trailers, "grpc-message"))
    }
}

fn dial_request(protocol: &str, address: &str) -> Packet {
    Packet::DialRequest { protocol: protocol.to_owned(), address: address.to_owned(), random: 42 }
}

fn data(connection: i64, length: usize) -> Packet {
    Packet::Data { connection, data: Bytes::from(vec![7; length]) }
}

#[test]
fn b13_foreign_connection_ids_are_refused() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let client = setup.client().await;
        let mut victim = tunnel(&client, echo).await;
        check_echo(&mut victim).await;
        // The ids of agents count from 1: the victim has that one.
        for foreign in [Packet::CloseRequest { connection: 1 }, data(1, 10)] {
            let (mut call, connection) = RawCall::dial(&setup, &echo.to_string()).await;
            assert_ne!(connection, 1);
            call.send(&foreign);
            let mismatch = "mismatched connection IDs".to_owned();
            assert_eq!(call.close_response().await, (connection, mismatch.clone()));
            assert_eq!(call.close_response().await, (1, mismatch));
            check_echo(&mut victim).await;
        }
    });
}

#[test]
fn packets_before_the_dial_response_are_refused() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let mut call = RawCall::open(&setup).await;
        call.send(&Packet::CloseRequest { connection: 1 });
        assert_eq!(call.close_response().await, (1, "backend uninitialized".to_owned()));
        call.send(&data(1, 1));
        assert_eq!(call.close_response().await, (1, "backend not initialized".to_owned()));
        // Data between a request and its response has no connection yet.
        let mut call = RawCall::open(&setup).await;
        call.send(&dial_request("tcp", &echo.to_string()));
        call.send(&data(1, 1));
        call.send(&data(0, 1));
        assert!(matches!(call.next().await, Some(Packet::DialResponse { connection: 1.., .. })));
        setup.wait_for_tunnels(1).await;
        drop(call);
        setup.wait_for_tunnels(0).await;
    });
}

/// A target must not take what it has got for everything.
#[test]
fn target_of_a_call_that_ends_without_a_close_request_is_reset() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let (recording, mut ended) = recording_target().await;
        let reset = Some(ErrorKind::ConnectionReset);
        type End = fn(&mut RawCall, i64);
        let close: End = |call, connection| call.send(&Packet::CloseRequest { connection });
        let finish: End = |call, _| call.send.send_data(Bytes::new(), true).unwrap();
        let cancel: End = |call, _| call.send.send_reset(Reason::CANCEL);
        let disconnect: End = |call, _| call.connection.abort();
        for (name, end, expected) in [
            ("close", close, None),
            ("finish", finish, reset),
            ("cancel", cancel, reset),
            ("disconnect", disconnect, reset),
        ] {
            let (mut call, connection) = RawCall::dial(&setup, &recording.to_string()).await;
            assert!(matches!(call.next().await, Some(Packet::Data { .. })), "{name}");
            call.send(&data(connection, 100));
            sleep(Duration::from_millis(50)).await;
            end(&mut call, connection);
            let recorded = timeout(WAIT, ended.recv()).await.unwrap().unwrap();
            assert_eq!(recorded, (vec![7; 100], expected), "{name}");
        }
        setup.wait_for_tunnels(0).await;
    });
}

/// A target that closes first still reads.
#[test]
fn target_that_closes_first_is_not_reset() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let closing = target(move |mut socket| {
            let sender = sender.clone();
            async move {
                socket.read_exact(&mut [0; 100]).await.unwrap();
                socket.shutdown().await.unwrap();
                let _ = sender.send(socket.read(&mut [0]).await.map_err(|error| error.kind()));
            }
        });
        let closing = closing.await.0;
        let (mut call, connection) = RawCall::dial(&setup, &closing.to_string()).await;
        call.send(&data(connection, 100));
        assert_eq!(call.close_response().await, (connection, String::new()));
        assert_eq!(timeout(WAIT, ended.recv()).await.unwrap(), Some(Ok(0)));
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn dials_of_other_protocols_and_addresses_fail() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let mut call = RawCall::open(&setup).await;
        for (protocol, address, expected) in [
            ("udp", "127.0.0.1:53".to_owned(), "dial udp 127.0.0.1:53: the agent supports tcp only"),
            ("unix", "/run/docker.sock".to_owned(), "dial unix /run/docker.sock: the agent supports tcp only"),
            ("tcp", String::new(), "dial tcp: address : missing port in address"),
            ("", String::new(), "dial  : the agent supports tcp only"),
            ("tcp", "a".repeat(1 << 20), "dial: an address of 1048579 bytes is too long"),
            (&"t".repeat(3 << 20), "a:1".to_owned(), "dial: an address of 3145731 bytes is too long"),
        ] {
            assert_eq!(call.dial_error(protocol, &address).await, expected);
        }
        // The call is as good as new.
        let echo = echo_target().await.to_string();
        call.send(&dial_request("tcp", &echo));
        assert!(matches!(call.next().await, Some(Packet::DialResponse { connection: 1.., .. })));
    });
}

#[test]
fn packets_longer_than_the_window_pass_and_than_the_limit_do_not() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let mut other = tunnel(&setup.client().await, echo).await;
        let (mut call, connection) = RawCall::dial(&setup, &echo.to_string()).await;
        const LENGTH: usize = (4 << 20) - 32;
        call.send(&data(connection, LENGTH));
        let mut echoed = 0;
        while echoed < LENGTH {
            match call.next().await {
                Some(Packet::Data { data, .. }) => echoed += data.len(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(echoed, LENGTH);
        call.send(&data(connection, 4 << 20));
        let (status, message) = call.status().await;
        assert_eq!(status, "8", "{message}");
        assert!(message.contains("the most are 4194304"), "{message}");
        setup.wait_for_tunnels(1).await;
        check_echo(&mut other).await;
    });
}

#[test]
fn content_that_is_no_packet_ends_the_call() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let mut other = tunnel(&setup.client().await, echo).await;
        for invalid in [&b"\x01\0\0\0\x01x"[..], b"\0\0\0\0\x01\xff", b"\0\0\0\0\x02\x0a\x7f"] {
            let (mut call, _) = RawCall::dial(&setup, &echo.to_string()).await;
            call.send.send_data(Bytes::from_static(invalid), false).unwrap();
            assert_eq!(call.status().await.0, "13");
        }
        setup.wait_for_tunnels(1).await;
        check_echo(&mut other).await;
    });
}

#[test]
fn packets_cut_at_every_byte_end_their_call_alone() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let mut other = tunnel(&setup.client().await, echo).await;
        let frames = [dial_request("tcp", &echo.to_string()).encode_frame(), data(1, 20).encode_frame()];
        for frame in frames {
            for length in 0..frame.len() {
                let mut call = RawCall::open(&setup).await;
                // In two pieces, then the end or a reset.
                let (first, second) = (frame.slice(..length / 2), frame.slice(length / 2..length));
                call.send.send_data(first, false).unwrap();
                call.send.send_data(second, length % 2 == 0).unwrap();
                match length % 2 {
                    0 => _ = call.status().await,
                    _ => call.send.send_reset(Reason::CANCEL),
                }
            }
            check_echo(&mut other).await;
        }
        setup.wait_for_tunnels(1).await;
    });
}

#[test]
fn other_methods_and_second_dials_are_refused() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await.to_string();
        let (mut connection, _task) = connect(&setup).await;
        let request = Request::post("http://localhost/AgentService/Connect").body(()).unwrap();
        let head = connection.send_request(request, true).unwrap().0.await.unwrap();
        assert_eq!(head.headers()["grpc-status"], "12");
        // One call is one connection: the second dial changes nothing.
        let (mut call, connection) = RawCall::dial(&setup, &echo).await;
        call.send(&dial_request("tcp", &echo));
        call.send(&data(connection, 3));
        assert!(matches!(call.next().await, Some(Packet::Data { .. })));
        setup.wait_for_tunnels(1).await;
        call.send(&Packet::CloseRequest { connection });
        assert_eq!(call.close_response().await, (connection, String::new()));
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn unknown_packets_of_clients_are_ignored() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await.to_string();
        let mut call = RawCall::open(&setup).await;
        let unknown = [Packet::Unknown(63), Packet::Unknown(66), Packet::Unknown(-1), Packet::Drain];
        unknown.iter().for_each(|packet| call.send(packet));
        call.send(&dial_request("tcp", &echo));
        let Some(Packet::DialResponse { connection: connection @ 1.., .. }) = call.next().await else { panic!() };
        // Packets of the extension and of the other direction have no place here.
        let misplaced = [
            Packet::WindowUpdate { connection, increment: i64::MAX },
            Packet::WriteClosed { connection },
            Packet::DialResponse { error: String::new(), connection, random: 42 },
            Packet::CloseResponse { error: "no".to_owned(), connection },
        ];
        unknown.iter().chain(&misplaced).for_each(|packet| call.send(packet));
        call.send(&data(connection, 3));
        assert_eq!(call.next().await, Some(data(connection, 3)));
    });
}
