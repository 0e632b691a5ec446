//! Many tunnels on one connection: readers and writers that stop do not affect the others.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use super::fake_server::{DIAL_TIMEOUT, FakeStream, with_server};
use super::{failure, pattern, read_all};
use crate::{KonnectivityTunnel, Packet, TunnelFailure};

/// Echoes data until asked to close.
async fn echo(mut call: FakeStream, connection: i64) {
    while let Some(packet) = call.packet().await {
        match packet {
            Packet::Data { .. } => assert!(call.send_with_flow_control(&packet).await),
            Packet::CloseRequest { .. } => {
                call.send_packet(&Packet::CloseResponse { error: String::new(), connection })
            }
            other => panic!("{other:?}"),
        }
    }
    call.end("0", "");
}

async fn echo_round_trip(tunnel: &mut KonnectivityTunnel, words: &[u8]) {
    let mut back = vec![0; words.len()];
    let (mut reader, mut writer) = tokio::io::split(tunnel);
    let (read, written) = tokio::join!(reader.read_exact(&mut back), writer.write_all(words));
    read.unwrap();
    written.unwrap();
    assert!(back == words);
}

#[tokio::test(start_paused = true)]
async fn konnectivity_thousand_tunnels_share_one_connection() {
    with_server(async |fake| {
        let accepting = spawn_local({
            let fake = fake.clone();
            async move {
                for connection in 1..=1000 {
                    let mut call = fake.accept().await;
                    call.open(connection).await;
                    spawn_local(echo(call, connection));
                }
            }
        });
        let dials = (0..1000).map(|_| fake.client.dial("a:1", DIAL_TIMEOUT));
        let mut tunnels: Vec<KonnectivityTunnel> = join_all(dials).await.into_iter().map(Result::unwrap).collect();
        accepting.await.unwrap();
        assert_eq!(fake.client.streams(), 1000);
        let words: Vec<Vec<u8>> = (0..1000).map(|at| pattern(100 + 97 * at)).collect();
        join_all(tunnels.iter_mut().zip(&words).map(|(tunnel, words)| echo_round_trip(tunnel, words))).await;
        drop(tunnels);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(fake.client.streams(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_slow_reader_loses_only_its_tunnel() {
    with_server(async |fake| {
        let (mut stopped, mut pouring) = fake.open_tunnel(1).await;
        let (mut paused, mut few) = fake.open_tunnel(2).await;
        let mut others = Vec::new();
        for connection in 3..103 {
            let (tunnel, call) = fake.open_tunnel(connection).await;
            spawn_local(echo(call, connection));
            others.push(tunnel);
        }
        let begun = Instant::now();
        let poured = spawn_local(async move {
            let packet = Packet::Data { connection: 1, data: Bytes::from(pattern(4096)) };
            let mut count = 0;
            while pouring.send_with_flow_control(&packet).await {
                count += 4096;
            }
            (count, begun.elapsed())
        });
        few.send_data_packet(2, &pattern(100_000));
        for _ in 0..15 {
            join_all(others.iter_mut().map(async |tunnel| {
                timeout(Duration::from_millis(100), echo_round_trip(tunnel, &pattern(10_000))).await.unwrap();
            }))
            .await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (count, after) = poured.await.unwrap();
        assert!((4 << 20) - 30_000 < count && count <= 4 << 20, "{count} bytes were let through");
        assert!((10..13).contains(&after.as_secs()), "{after:?}");
        assert_eq!(failure(&stopped.read(&mut [0; 10]).await.unwrap_err()), TunnelFailure::SlowReader);
        assert!(stopped.write(b"x").await.is_err());
        few.send_packet(&Packet::CloseResponse { error: String::new(), connection: 2 });
        assert_eq!(read_all(&mut paused).await, (pattern(100_000), Ok(())), "a pause alone does no harm");
        let words = pattern(1 << 20);
        join_all(others.iter_mut().map(|tunnel| echo_round_trip(tunnel, &words))).await;
        assert_eq!(fake.client.streams(), 102);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_unread_bytes_of_all_tunnels_are_bounded() {
    with_server(async |fake| {
        let mut stopped = Vec::new();
        for connection in 1..=80 {
            let (tunnel, mut call) = fake.open_tunnel(connection).await;
            stopped.push(tunnel);
            spawn_local(async move {
                let packet = Packet::Data { connection, data: Bytes::from(pattern(65_000)) };
                while call.send_with_flow_control(&packet).await {}
            });
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(fake.client.streams(), 80, "the tunnels still have owners");
        let mut lost = 0;
        for tunnel in &mut stopped {
            lost += usize::from(tunnel.read(&mut [0]).await.is_err());
        }
        assert!((16..20).contains(&lost), "80 times 4 MiB are more than 256, by {lost}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_unread_bytes_bounded_with_many_small_tunnels() {
    with_server(async |fake| {
        let mut stopped = Vec::new();
        // 324 MB together, each far from a window.
        for connection in 1..=400 {
            let (tunnel, mut call) = fake.open_tunnel(connection).await;
            stopped.push(tunnel);
            spawn_local(async move {
                let packet = Packet::Data { connection, data: Bytes::from(pattern(90_000)) };
                for _ in 0..9 {
                    call.send_with_flow_control(&packet).await;
                }
                while let Ok(Some(_)) = call.try_packet().await {}
            });
        }
        let (mut other, call) = fake.open_tunnel(1000).await;
        spawn_local(echo(call, 1000));
        for _ in 0..30 {
            echo_round_trip(&mut other, &pattern(10_000)).await;
            // Tunnels read a byte at a time are not spared.
            let mut drop = [0];
            for tunnel in &mut stopped {
                let _ = timeout(Duration::ZERO, tunnel.read(&mut drop)).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut lost = 0;
        for tunnel in &mut stopped {
            let read = timeout(Duration::from_millis(1), read_all(tunnel)).await;
            lost += usize::from(read.is_ok_and(|(_, end)| end == Err(TunnelFailure::SlowReader)));
        }
        assert!((20..35).contains(&lost), "400 times 8 packets are more than 256 MiB, by {lost} tunnels");
        echo_round_trip(&mut other, &pattern(100_000)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_stopped_readers_do_not_block_connection() {
    with_server(async |fake| {
        let mut stopped = Vec::new();
        for connection in 1..=40 {
            let (tunnel, mut call) = fake.open_tunnel(connection).await;
            stopped.push(tunnel);
            spawn_local(async move {
                let packet = Packet::Data { connection, data: Bytes::from(pattern(65_000)) };
                while call.send_with_flow_control(&packet).await {}
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut other, call) = fake.open_tunnel(100).await;
        spawn_local(echo(call, 100));
        timeout(Duration::from_millis(100), echo_round_trip(&mut other, &pattern(1 << 20))).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_stuck_tunnel_is_counted_and_others_continue() {
    with_server(async |fake| {
        let (mut stuck, call) = fake.open_tunnel(1).await;
        let (mut other, others_call) = fake.open_tunnel(2).await;
        spawn_local(echo(others_call, 2));
        let writing = spawn_local(async move {
            let written = timeout(Duration::from_secs(60), stuck.write_all(&pattern(10 << 20))).await;
            assert!(written.is_err(), "the target does not read");
            stuck
        });
        assert_eq!(fake.client.stuck_tunnels(), 0);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(fake.client.stuck_tunnels(), 1);
        echo_round_trip(&mut other, b"and you?").await;
        let stuck = writing.await.unwrap();
        drop(stuck);
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_eq!((fake.client.stuck_tunnels(), fake.client.streams()), (0, 1));
        drop(call);
    })
    .await;
}
