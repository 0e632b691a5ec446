//! Dials that succeed, fail, and are canceled.

use std::time::Duration;

use http::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{LocalSet, spawn_local};

use super::fake_server::{DIAL_TIMEOUT, ServerCommand, with_limit, with_server};
use super::{pattern, read_all};
use crate::{KonnectivityClient, Packet, TunnelFailure};

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_carries_bytes_both_ways_and_closes() {
    with_server(async |fake| {
        let far = spawn_local({
            let fake = fake.clone();
            async move {
                let mut call = fake.accept().await;
                assert_eq!(call.request.uri(), "http://localhost/ProxyService/Proxy");
                assert_eq!(call.request.method(), "POST");
                let header = |name: &str| call.request.headers()[name].to_str().unwrap().to_owned();
                assert_eq!((header("content-type").as_str(), header("te").as_str()), ("application/grpc", "trailers"));
                assert!(header("user-agent").starts_with("narthex/"));
                let (address, random) = call.expect_dial().await;
                assert_eq!(address, "backend.test:443");
                call.send_packet(&Packet::DialResponse { error: String::new(), connection: 5, random });
                let Some(Packet::Data { connection: 5, data }) = call.packet().await else { panic!() };
                assert_eq!(data, "ping");
                call.send_data_packet(5, b"pong");
                assert_eq!(call.packet().await, Some(Packet::CloseRequest { connection: 5 }));
                call.send_data_packet(5, b", and that was all");
                call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 5 });
                assert_eq!(call.packet().await, None, "the client ends the stream");
                call.end("0", "");
            }
        });
        let mut tunnel = fake.client.dial("backend.test:443", DIAL_TIMEOUT).await.unwrap();
        tunnel.write_all(b"ping").await.unwrap();
        let mut four = [0; 4];
        tunnel.read_exact(&mut four).await.unwrap();
        assert_eq!(&four, b"pong");
        tunnel.shutdown().await.unwrap();
        assert_eq!(tunnel.write(b"more").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(read_all(&mut tunnel).await, (b", and that was all".to_vec(), Ok(())));
        drop(tunnel);
        far.await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(fake.client.streams(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_dial_keeps_data_sent_with_response() {
    with_server(async |fake| {
        for _ in 0..400 {
            let reading = async { read_all(&mut fake.client.dial("a:1", DIAL_TIMEOUT).await.unwrap()).await };
            let (read, ()) = tokio::join!(reading, async {
                let mut call = fake.accept().await;
                let (_, random) = call.expect_dial().await;
                // In one write, as it arrives when agent and server are fast.
                let mut breath =
                    Packet::DialResponse { error: String::new(), connection: 7, random }.encode_frame().to_vec();
                breath.extend_from_slice(
                    &Packet::Data { connection: 7, data: bytes::Bytes::from_static(b"220 ready") }.encode_frame(),
                );
                breath.extend_from_slice(&Packet::CloseResponse { error: String::new(), connection: 7 }.encode_frame());
                call.send_raw(breath);
                assert_eq!(call.packet().await, None);
                call.end("0", "");
            });
            assert_eq!(read, (b"220 ready".to_vec(), Ok(())));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_dial_failures_are_classified_and_cleaned_up() {
    with_server(async |fake| {
        for (error, expected) in [
            ("No agent available", TunnelFailure::NoAgent),
            ("dial tcp 127.0.0.1:1: connect: connection refused", TunnelFailure::Refused),
            ("dial tcp 127.0.0.1:1: i/o timeout", TunnelFailure::DialTimeout),
            ("", TunnelFailure::Protocol),
        ] {
            let (tunnel, ()) = tokio::join!(fake.client.dial("a:1", DIAL_TIMEOUT), async {
                let mut call = fake.accept().await;
                let (_, random) = call.expect_dial().await;
                call.send_packet(&Packet::DialResponse { error: error.to_owned(), connection: 0, random });
                assert_eq!(call.packet().await, None, "nothing to close, only the stream to end");
                call.end("0", "");
            });
            assert_eq!(tunnel.err().unwrap().failure, expected);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(fake.client.streams(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_dial_unanswered_is_canceled() {
    with_server(async |fake| {
        let begun = tokio::time::Instant::now();
        let (tunnel, ()) = tokio::join!(fake.client.dial("a:1", DIAL_TIMEOUT), async {
            let mut call = fake.accept().await;
            let (_, number) = call.expect_dial().await;
            // The response to another dial is ignored.
            call.send_packet(&Packet::DialResponse { error: String::new(), connection: 3, random: number ^ 1 });
            assert_eq!(call.packet().await, Some(Packet::CloseDial { random: number }));
            assert_eq!(begun.elapsed(), DIAL_TIMEOUT);
            assert_eq!(call.packet().await, None);
            call.end("0", "");
        });
        assert_eq!(tunnel.err().unwrap().failure, TunnelFailure::NoAnswer);

        let dial = spawn_local({
            let fake = fake.clone();
            async move { fake.client.dial("a:1", DIAL_TIMEOUT).await.map(drop) }
        });
        let mut call = fake.accept().await;
        let (_, number) = call.expect_dial().await;
        dial.abort();
        assert_eq!(call.packet().await, Some(Packet::CloseDial { random: number }), "the dial was dropped");
        assert_eq!(call.packet().await, None);
        // A server that does not end the stream is not awaited forever.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert_eq!(fake.client.streams(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_dial_canceled_closes_connection_of_late_response() {
    with_server(async |fake| {
        let (tunnel, ()) = tokio::join!(fake.client.dial("a:1", DIAL_TIMEOUT), async {
            let mut call = fake.accept().await;
            let (_, number) = call.expect_dial().await;
            assert_eq!(call.packet().await, Some(Packet::CloseDial { random: number }));
            // The server forwarded the agent's response before it read the cancellation.
            call.send_packet(&Packet::DialResponse { error: String::new(), connection: 9, random: number });
            assert_eq!(call.packet().await, Some(Packet::CloseRequest { connection: 9 }));
            call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 9 });
            assert_eq!(call.packet().await, None);
            call.end("0", "");
        });
        assert_eq!(tunnel.err().unwrap().failure, TunnelFailure::NoAnswer);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(fake.client.streams(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_dial_fails_when_server_rejects_stream() {
    with_server(async |fake| {
        let refused = async |refuse: &dyn Fn(&mut super::fake_server::FakeStream)| {
            let (tunnel, _call) = tokio::join!(fake.client.dial("a:1", DIAL_TIMEOUT), async {
                let mut call = fake.accept().await;
                call.expect_dial().await;
                refuse(&mut call);
                call
            });
            tunnel.err().unwrap()
        };
        let grpc =
            |status| Response::builder().header("content-type", "application/grpc").header("grpc-status", status);
        let error = refused(&|call| call.end("13", "no%20way")).await;
        assert_eq!(error.failure, TunnelFailure::Rejected);
        assert!(error.cause.contains("13: no way"), "{}", error.cause);
        let error = refused(&|call| call.answer(grpc("7").header("grpc-message", "go away"))).await;
        assert_eq!(error.failure, TunnelFailure::Rejected);
        assert!(error.cause.contains("7: go away"), "{}", error.cause);
        assert_eq!(refused(&|call| call.answer(grpc("0"))).await.failure, TunnelFailure::Lost);
        let error = refused(&|call| call.answer(Response::builder().status(503))).await;
        assert_eq!(error.failure, TunnelFailure::Rejected);
        let html = || Response::builder().header("content-type", "text/html");
        assert_eq!(refused(&|call| call.answer(html())).await.failure, TunnelFailure::Protocol);
        assert_eq!(refused(&|call| call.reset(h2::Reason::INTERNAL_ERROR)).await.failure, TunnelFailure::Lost);
        assert_eq!(refused(&|call| call.reset(h2::Reason::REFUSED_STREAM)).await.failure, TunnelFailure::NotStarted);
        let random = std::cell::Cell::new(0);
        let (tunnel, _call) = tokio::join!(fake.client.dial("a:1", DIAL_TIMEOUT), async {
            let mut call = fake.accept().await;
            random.set(call.expect_dial().await.1);
            call.send_packet(&Packet::CloseDial { random: random.get() });
            call
        });
        assert_eq!(tunnel.err().unwrap().failure, TunnelFailure::Lost);
        assert!(fake.client.is_accepting_dials(), "the connection itself is healthy");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_goaway_stops_dials_and_keeps_tunnels() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        fake.command(ServerCommand::GoAway);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!fake.client.is_accepting_dials());
        let error = fake.client.dial("b:1", DIAL_TIMEOUT).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::NotStarted);
        tunnel.write_all(b"still here").await.unwrap();
        let Some(Packet::Data { data, .. }) = call.packet().await else { panic!() };
        call.send_data_packet(1, &data);
        call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 1 });
        assert_eq!(read_all(&mut tunnel).await, (b"still here".to_vec(), Ok(())));
        drop(tunnel);
        assert_eq!(call.packet().await, None);
        call.end("0", "");
        drop(call);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(fake.client.is_closed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_dial_waits_at_stream_limit() {
    with_limit(Some(2), async |fake| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(fake.client.free_streams(), 2);
        let mut tunnels = Vec::new();
        for number in 1..=2 {
            tunnels.push(fake.open_tunnel(number).await);
        }
        assert!(!fake.client.is_accepting_dials());
        let (third, _call) = tokio::join!(fake.client.dial("a:1", DIAL_TIMEOUT), async {
            let (tunnel, mut call) = tunnels.remove(0);
            drop(tunnel);
            assert_eq!(call.packet().await, Some(Packet::CloseRequest { connection: 1 }));
            call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 1 });
            assert_eq!(call.packet().await, None);
            call.end("0", "");
            let mut call = fake.accept().await;
            call.open(3).await;
            call
        });
        drop(third.unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_connect_fails_without_http2() {
    LocalSet::new()
        .run_until(async {
            for words in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"", b"\0\0\0\x04"] {
                let (ours, mut theirs) = tokio::io::duplex(1024);
                theirs.write_all(words).await.unwrap();
                theirs.shutdown().await.unwrap();
                let error = KonnectivityClient::connect(ours, "localhost").await.err().unwrap();
                assert_eq!(error.failure, TunnelFailure::Protocol, "{words:?}");
            }
            let (ours, _silent) = tokio::io::duplex(1024);
            let connecting = tokio::time::timeout(DIAL_TIMEOUT, KonnectivityClient::connect(ours, "localhost"));
            assert!(connecting.await.is_err(), "one that says nothing is waited for, as long as the caller wants");
            let (ours, _) = tokio::io::duplex(1024);
            let error = KonnectivityClient::connect(ours, "no host").await.err().unwrap();
            assert_eq!(error.failure, TunnelFailure::Protocol);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_connection_closes_after_last_handle_and_tunnel() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        let over = std::rc::Rc::into_inner(fake).unwrap().into_task();
        let words = pattern(100_000);
        let (received, ()) = tokio::join!(call.data(1), async {
            tunnel.write_all(&words).await.unwrap();
            drop(tunnel);
        });
        assert!(received == (words.clone(), Some(Packet::CloseRequest { connection: 1 })));
        call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 1 });
        assert_eq!(call.packet().await, None);
        call.end("0", "");
        over.await.unwrap();
    })
    .await;
}
