//! Packets that no server should send: ignored where possible, otherwise the end of one tunnel only.

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use super::fake_server::with_server;
use super::read_all;
use crate::{Packet, TunnelFailure};

#[tokio::test(start_paused = true)]
async fn konnectivity_unexpected_packets_are_ignored() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        let nothing = || {
            [
                Packet::Unknown(64),
                Packet::Unknown(-1),
                Packet::Drain,
                Packet::Data { connection: 1, data: Bytes::new() },
                Packet::Data { connection: 2, data: Bytes::from_static(b"another's") },
                Packet::Data { connection: 0, data: Bytes::from_static(b"nobody's") },
                Packet::CloseResponse { error: "Unknown connectID".to_owned(), connection: 2 },
                Packet::CloseRequest { connection: 1 },
                Packet::CloseDial { random: 0 },
                Packet::DialRequest { protocol: "tcp".to_owned(), address: "a:1".to_owned(), random: 1 },
                Packet::DialResponse { error: String::new(), connection: 9, random: 0 },
            ]
        };
        for packet in nothing() {
            call.send_packet(&packet);
        }
        call.send_raw(Bytes::from_static(b"\0\0\0\0\0"));
        call.send_data_packet(1, b"to the point");
        for packet in nothing() {
            call.send_packet(&packet);
        }
        call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 1 });
        assert_eq!(read_all(&mut tunnel).await, (b"to the point".to_vec(), Ok(())));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_invalid_packet_ends_only_its_tunnel() {
    with_server(async |fake| {
        let (mut other, mut others_call) = fake.open_tunnel(1).await;
        let cut = || Packet::Data { connection: 1, data: Bytes::from_static(b"hello") }.encode_frame().slice(..9);
        for (words, ends) in [
            (Bytes::from_static(b"\x01\0\0\0\x02\x08\x06"), false),
            (Bytes::from_static(b"\0\0\x40\0\x01"), false),
            (Bytes::from_static(b"\0\xff\xff\xff\xff"), false),
            (Bytes::from_static(b"\0\0\0\0\x02\xff\xff"), false),
            (Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\n"), false),
            (cut(), true),
        ] {
            let (mut tunnel, mut call) = fake.open_tunnel(1).await;
            call.send_raw(words.clone());
            if ends {
                call.end("0", "");
            }
            assert_eq!(read_all(&mut tunnel).await, (Vec::new(), Err(TunnelFailure::Protocol)), "{words:?}");
            drop(tunnel);
            if !ends {
                assert!(call.try_packet().await.is_err(), "the stream is reset");
            }
        }
        others_call.send_data_packet(1, b"well");
        let mut four = [0; 4];
        other.read_exact(&mut four).await.unwrap();
        assert_eq!(&four, b"well");
        assert!(fake.client.is_accepting_dials());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_longest_message_is_delivered() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        let sent = super::pattern((4 << 20) - 14);
        let packet = Packet::Data { connection: 1, data: Bytes::copy_from_slice(&sent) };
        let (all, ()) = tokio::join!(read_all(&mut tunnel), async {
            for _ in 0..3 {
                assert!(call.send_with_flow_control(&packet).await);
            }
            call.send_packet(&Packet::CloseResponse { error: String::new(), connection: 1 });
        });
        assert!(all == (sent.repeat(3), Ok(())));
    })
    .await;
}
