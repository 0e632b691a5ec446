//! How tunnels end: closed by either side, abruptly, and never.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::fake_server::{DIAL_TIMEOUT, FakeStream, ServerCommand, with_server};
use super::{failure, pattern, read_all};
use crate::{Packet, TunnelFailure};

fn closed(connection: i64) -> Packet {
    Packet::CloseResponse { error: String::new(), connection }
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_reads_all_before_remote_close() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        let sent = pattern(300_000);
        for piece in sent.chunks(4096) {
            call.send_data_packet(1, piece);
        }
        call.send_packet(&closed(1));
        call.send_data_packet(1, b"beyond the end");
        assert_eq!(read_all(&mut tunnel).await, (sent, Ok(())));
        assert_eq!(tunnel.read(&mut [0; 8]).await.unwrap(), 0, "the end stays");
        assert_eq!(tunnel.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        drop(tunnel);
        assert_eq!(call.packet().await, None, "no CloseRequest after the close");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_write_fails_after_remote_close() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        call.send_packet(&closed(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(tunnel.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_abrupt_end_is_an_error() {
    with_server(async |fake| {
        type End<'f> = &'f dyn Fn(&mut FakeStream);
        let ends: [(End<'_>, TunnelFailure); 5] = [
            (&|call| call.end("0", ""), TunnelFailure::Lost),
            (&|call| call.end("8", "received message larger than max"), TunnelFailure::Rejected),
            (&|call| call.reset(h2::Reason::CANCEL), TunnelFailure::Lost),
            (
                &|call| call.send_packet(&Packet::CloseResponse { error: "broken pipe".to_owned(), connection: 1 }),
                TunnelFailure::Lost,
            ),
            (&|_| fake.command(ServerCommand::Exit), TunnelFailure::Lost),
        ];
        for (end, expected) in ends {
            let (mut tunnel, mut call) = fake.open_tunnel(1).await;
            call.send_data_packet(1, b"half an ans");
            let mut begun = [0; 11];
            tunnel.read_exact(&mut begun).await.unwrap();
            end(&mut call);
            assert_eq!(read_all(&mut tunnel).await, (Vec::new(), Err(expected)));
            assert!(tunnel.write(b"x").await.is_err());
        }
        assert!(fake.client.is_closed());
        assert!(!fake.client.is_accepting_dials());
        let error = fake.client.dial("a:1", DIAL_TIMEOUT).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::NotStarted);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_close_lingers_after_write() {
    with_server(async |fake| {
        for shut in [false, true] {
            let (mut tunnel, mut call) = fake.open_tunnel(1).await;
            let sent = pattern(2 << 20);
            let (written, (received, next)) = tokio::join!(
                async {
                    tunnel.write_all(&sent).await.unwrap();
                    let written = Instant::now();
                    if shut {
                        tunnel.shutdown().await.unwrap();
                    }
                    drop(tunnel);
                    written
                },
                call.data(1)
            );
            assert!(received == sent);
            assert_eq!(next, Some(Packet::CloseRequest { connection: 1 }));
            assert!(written.elapsed() >= Duration::from_secs(1));
            call.send_packet(&closed(1));
            assert_eq!(call.packet().await, None);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_without_recent_write_closes_at_once() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        tunnel.write_all(b"x").await.unwrap();
        assert!(matches!(call.packet().await, Some(Packet::Data { .. })));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let begun = Instant::now();
        call.send_data_packet(1, &pattern(100_000));
        drop(tunnel);
        assert_eq!(call.packet().await, Some(Packet::CloseRequest { connection: 1 }));
        call.send_packet(&closed(1));
        assert_eq!(call.packet().await, None);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_half_close_delivers_response() {
    with_server(async |fake| {
        let (tunnel, mut call) = fake.open_tunnel(1).await;
        let (mut reader, mut writer) = tokio::io::split(tunnel);
        writer.write_all(b"GET /").await.unwrap();
        let far = async {
            assert!(matches!(call.packet().await, Some(Packet::Data { .. })));
            for piece in 0..10 {
                tokio::time::sleep(Duration::from_millis(900)).await;
                call.send_data_packet(1, &[piece]);
            }
            assert_eq!(call.packet().await, Some(Packet::CloseRequest { connection: 1 }));
            call.send_packet(&closed(1));
        };
        let reading = async {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).await.unwrap();
            all
        };
        let ((), shut, all) = tokio::join!(far, writer.shutdown(), reading);
        shut.unwrap();
        assert_eq!(all, (0..10).collect::<Vec<u8>>());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_close_does_not_linger_when_remote_closes() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        tunnel.write_all(b"close_notify").await.unwrap();
        let begun = Instant::now();
        let (shut, ()) = tokio::join!(tunnel.shutdown(), async {
            assert!(matches!(call.packet().await, Some(Packet::Data { .. })));
            call.send_data_packet(1, b"close_notify");
            call.send_packet(&closed(1));
        });
        shut.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(read_all(&mut tunnel).await, (b"close_notify".to_vec(), Ok(())));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_close_times_out() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        tunnel.shutdown().await.unwrap();
        call.send_data_packet(1, b"late");
        let begun = Instant::now();
        assert_eq!(read_all(&mut tunnel).await, (b"late".to_vec(), Err(TunnelFailure::CloseTimeout)));
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        drop(tunnel);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(fake.client.streams(), 0);

        let (tunnel, mut call) = fake.open_tunnel(2).await;
        drop(tunnel);
        assert_eq!(call.packet().await, Some(Packet::CloseRequest { connection: 2 }));
        assert!(call.try_packet().await.is_err(), "it is reset in the end");
        assert_eq!(fake.client.streams(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_tunnel_reset_wakes_waiting_writer() {
    with_server(async |fake| {
        let (mut tunnel, mut call) = fake.open_tunnel(1).await;
        let words = pattern(1 << 20);
        let (written, ()) = tokio::join!(tunnel.write_all(&words), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            call.reset(h2::Reason::INTERNAL_ERROR);
        });
        assert_eq!(failure(&written.unwrap_err()), TunnelFailure::Lost);
    })
    .await;
}
