//! The defects of the reference (B1 to B16 in docs/reference/konnectivity-differences.md) do not occur between a server
//! and an agent of this project. B10 to B12 and B15 are about processes: `tests/gateway/konnectivity` and the interop
//! suite have their tests.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::{Setup, WAIT, check_echo, echo_target, eventually, fill, run, stopped_target, target, tunnel};
use crate::konnectivity::blackhole::Blackhole;

#[test]
fn b1_stopped_target_holds_up_no_other_tunnel() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let (echo, stopped) = (echo_target().await, stopped_target().await);
        let mut other = setup.connect(echo).await;
        let mut stalled = setup.connect_by_unix_socket(stopped).await;
        let client = setup.client().await;
        let mut stalled_call = tunnel(&client, stopped).await;
        assert!(fill(&mut stalled).await > 1 << 20);
        assert!(fill(&mut stalled_call).await > 1 << 20);
        check_echo(&mut other).await;
        check_echo(&mut setup.connect(echo).await).await;
        check_echo(&mut tunnel(&client, echo).await).await;
        drop(stalled_call);
        drop(stalled);
        drop(other);
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b2_b3_stopped_client_holds_up_no_other_tunnel() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        const LENGTH: usize = 24 << 20;
        let source = target(|mut socket| async move {
            let _ = socket.write_all(&vec![7; LENGTH]).await;
        });
        let source = source.await.0;
        let mut stopped = setup.connect(source).await;
        let client = setup.client().await;
        let mut stopped_call = tunnel(&client, source).await;
        sleep(Duration::from_millis(500)).await;
        check_echo(&mut setup.connect(echo).await).await;
        check_echo(&mut tunnel(&client, echo).await).await;
        // A client that pauses loses nothing.
        sleep(Duration::from_secs(3)).await;
        let mut all = Vec::new();
        timeout(WAIT, stopped.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all.len(), LENGTH);
        all.clear();
        timeout(WAIT, stopped_call.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all.len(), LENGTH);
    });
}

#[test]
fn b4_upload_before_close_is_complete() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        const LENGTH: usize = 2 << 20;
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let sink = target(move |mut socket| {
            let sender = sender.clone();
            async move {
                let mut all = Vec::new();
                let _ = socket.read_to_end(&mut all).await;
                let _ = sender.send(all.len());
            }
        });
        let sink = sink.await.0;
        for _ in 0..5 {
            let mut stream = setup.connect(sink).await;
            stream.write_all(&vec![7; LENGTH]).await.unwrap();
            drop(stream);
            assert_eq!(timeout(WAIT, received.recv()).await.unwrap(), Some(LENGTH));
            let client = setup.client().await;
            let mut stream = tunnel(&client, sink).await;
            stream.write_all(&vec![7; LENGTH]).await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
            assert_eq!(timeout(WAIT, received.recv()).await.unwrap(), Some(LENGTH));
        }
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b5_target_that_speaks_first_is_heard() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let banner = target(|mut socket| async move {
            let _ = socket.write_all(b"BANNER").await;
            let _ = socket.read_u8().await;
        });
        let banner = banner.await.0;
        let client = setup.client().await;
        let mut text = [0; 6];
        for _ in 0..100 {
            timeout(WAIT, setup.connect(banner).await.read_exact(&mut text)).await.unwrap().unwrap();
            assert_eq!(&text, b"BANNER");
            timeout(WAIT, tunnel(&client, banner).await.read_exact(&mut text)).await.unwrap().unwrap();
            assert_eq!(&text, b"BANNER");
        }
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b6_half_closed_request_gets_its_response() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let late = target(|mut socket| async move {
            let mut request = Vec::new();
            socket.read_to_end(&mut request).await.unwrap();
            // Longer than any linger.
            sleep(Duration::from_millis(1500)).await;
            socket.write_all(&request).await.unwrap();
        });
        let late = late.await.0;
        let all = (0..20).map(|_| async {
            let mut stream = setup.connect(late).await;
            stream.write_all(b"request").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut response = String::new();
            timeout(WAIT, stream.read_to_string(&mut response)).await.unwrap().unwrap();
            assert_eq!(response, "request");
        });
        futures_util::future::join_all(all).await;
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b7_client_that_leaves_during_a_dial_leaves_nothing_behind() {
    run(async {
        let setup = Setup::new();
        let agent = setup.agent("a", "").await;
        let hole = Blackhole::new();
        let mut stream = setup.raw_connect();
        stream.write_all(format!("CONNECT {} HTTP/1.1\r\n\r\n", hole.address).as_bytes()).await.unwrap();
        eventually("a pending dial", || setup.server.agents()[0].pending_dials == 1).await;
        drop(stream);
        eventually("no pending dial", || setup.server.agents()[0].pending_dials == 0).await;
        let echo = echo_target().await;
        drop(hole);
        check_echo(&mut setup.connect(echo).await).await;
        setup.wait_for_tunnels(0).await;
        agent.wait_for_endpoints(0).await;
    });
}

#[test]
fn b8_pending_dials_fail_at_once_when_the_agent_is_lost() {
    run(async {
        let setup = Setup::new();
        let agent = setup.agent("a", "").await;
        let hole = Blackhole::new();
        let client = setup.client().await;
        let mut stream = setup.raw_connect();
        let (address, server) = (hole.address.to_string(), setup.server.clone());
        let lost = async move {
            eventually("two pending dials", || server.agents()[0].pending_dials == 2).await;
            agent.kill();
        };
        let began = Instant::now();
        let (head, error, ()) = timeout(WAIT, async {
            tokio::join!(setup.request(&mut stream, &address), client.dial(&address, WAIT), lost)
        })
        .await
        .unwrap();
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{head}");
        assert!(error.err().unwrap().cause.contains("the connection to the agent is lost"));
        // The agent would have reported a timeout after five seconds.
        assert!(began.elapsed() < Duration::from_secs(4));
    });
}

#[test]
fn b9_dial_without_a_response_times_out() {
    run(async {
        let setup = Setup::with_dial_timeout(Some(Duration::from_millis(200)));
        let _agent = setup.agent("a", "").await;
        let hole = Blackhole::new();
        let mut stream = setup.raw_connect();
        let head = setup.request(&mut stream, &hole.address.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{head}");
        let error = setup.client().await.dial(&hole.address.to_string(), WAIT).await.err().unwrap();
        assert!(error.cause.contains("timed out waiting for backend dial"), "{error:?}");
    });
}

#[test]
fn b14_agents_of_one_id_keep_their_tunnels_apart() {
    run(async {
        let setup = Setup::new();
        let echo = echo_target().await;
        let first = setup.agent("same", "").await;
        let mut by_first = setup.connect(echo).await;
        let _second = setup.agent("same", "host=only.second").await;
        let client = setup.client().await;
        let mut others = Vec::new();
        for _ in 0..8 {
            others.push(tunnel(&client, echo).await);
        }
        let tunnels_of = |identifiers: &str| {
            let agents = setup.server.agents();
            agents.iter().find(|agent| agent.identifiers == identifiers).unwrap().tunnels
        };
        let by_second = tunnels_of("host=only.second");
        assert_eq!(tunnels_of("") + by_second, 9);
        check_echo(&mut by_first).await;
        first.kill();
        let mut text = [0; 1];
        assert_eq!(timeout(WAIT, by_first.read(&mut text)).await.unwrap().unwrap(), 0);
        let mut alive = 0;
        for mut other in others {
            other.write_all(b"x").await.ok();
            if timeout(WAIT, other.read_exact(&mut text)).await.unwrap().is_ok() {
                alive += 1;
            }
        }
        assert_eq!(alive, by_second, "tunnels of the second agent ended with the first");
    });
}

#[test]
fn b16_paused_reader_keeps_its_tunnel() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        const LENGTH: usize = 12 << 20;
        let source = target(|mut socket| async move {
            let _ = socket.write_all(&vec![7; LENGTH]).await;
        });
        let source = source.await.0;
        let mut by_connect = setup.connect(source).await;
        let client = setup.client().await;
        let mut by_call = tunnel(&client, source).await;
        // Longer than the ten seconds of the reference, and of this client towards it.
        sleep(Duration::from_secs(11)).await;
        for length in [
            timeout(WAIT, by_connect.read_to_end(&mut Vec::new())).await.unwrap().unwrap(),
            timeout(WAIT, by_call.read_to_end(&mut Vec::new())).await.unwrap().unwrap(),
        ] {
            assert_eq!(length, LENGTH);
        }
    });
}
