//! Faults between the client and a target.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use konnectivity_client::{KonnectivityClient, KonnectivityPool, KonnectivityTunnel, PoolDialError, TunnelFailure};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::target_server::{TargetBehavior, TargetServer};
use super::{TIMEOUT, assert_echo, dial, pattern, run_local};
use crate::environment::{Konnectivity, KonnectivityMode, TestEnvironment};

pub(super) fn agent_killed(environment: &TestEnvironment) {
    let mut konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-agent-killed"), KonnectivityMode::GrpcUnix);
    let (source, echo) =
        (TargetServer::start(TargetBehavior::Source(1 << 30)), TargetServer::start(TargetBehavior::Echo));
    run_local(async {
        let client = konnectivity.client().await;
        let mut transfer = dial(&client, source.port).await.unwrap();
        transfer.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
        let mut agent = konnectivity.agents.remove(0);
        agent.process.signal(Signal::KILL);
        agent.process.wait();
        let began = Instant::now();
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(5), transfer.read_to_end(&mut rest))
            .await
            .expect("the transfer to end at once");
        println!("the transfer ended with {ended:?} after {:?}", began.elapsed());
        // The server reports this like a close by the target. Detecting the truncation is up to the protocol inside:
        // see `interrupted_transfer`.
        assert!(rest.len() < (1 << 30) - (1 << 20), "the transfer ended before the agent was killed");
        assert_eq!(dial(&client, echo.port).await.err(), Some(TunnelFailure::NoAgent));
        konnectivity.start_agent("agent-b", None);
        assert_echo(&mut dial(&client, echo.port).await.unwrap(), b"tunnels to work again").await;
    });
}

pub(super) fn agent_stopped(environment: &TestEnvironment) {
    let mut konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-agent-stopped"), KonnectivityMode::GrpcUnix);
    let echo = TargetServer::start(TargetBehavior::Echo);
    run_local(async {
        let client = konnectivity.client().await;
        konnectivity.agents[0].process.stop();
        let began = Instant::now();
        let error = client.dial(&format!("127.0.0.1:{}", echo.port), Duration::from_secs(2)).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::NoAnswer);
        assert!(began.elapsed() < Duration::from_secs(3));

        // With another agent a dial succeeds: the client sends parallel dials and the server picks an agent for each.
        konnectivity.start_agent("agent-b", None);
        let clients = KonnectivityPool::default();
        let open = async || Ok::<_, String>(konnectivity.client().await);
        let address = format!("127.0.0.1:{}", echo.port);
        let patience = Duration::from_secs(8);
        let mut served = 0;
        for _ in 0..5 {
            let began = Instant::now();
            match clients.dial(&"server", &address, patience, open).await {
                Ok(mut tunnel) => {
                    assert_echo(&mut tunnel, b"other agent").await;
                    served += 1;
                }
                // With probability 1/16 all four dials go to the stopped agent.
                Err(error) => {
                    let is_unanswered =
                        matches!(&error, PoolDialError::Tunnel(error) if error.failure == TunnelFailure::NoAnswer);
                    assert!(is_unanswered, "{error}");
                    assert!(began.elapsed() < patience + Duration::from_secs(1), "{:?}", began.elapsed());
                }
            }
        }
        println!("{served} of 5 dials are served while one of two agents hangs");
        // None is served in one of a million runs.
        assert!(served > 0);
        konnectivity.agents[0].process.signal(Signal::CONT);
        // The agent now executes the pending dials and closes them again: no client waits for them. Its own count is
        // asserted: the server's `established_connections` stays when the last connections end with their stream.
        drop(client);
        let open = || {
            let agents = konnectivity.agents.iter();
            agents.map(|agent| agent.count("konnectivity_network_proxy_agent_open_endpoint_connections")).sum::<f64>()
        };
        let dialed = || konnectivity.agents[0].count("konnectivity_network_proxy_agent_dial_duration_seconds_count");
        let began = Instant::now();
        while dialed() == 0.0 || open() > 0.0 {
            assert!(began.elapsed() < Duration::from_secs(20), "{} connections are open", open());
            sleep(Duration::from_millis(50)).await;
        }
    });
}

pub(super) fn server_restarted(environment: &TestEnvironment) {
    let mut konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-restart"), KonnectivityMode::GrpcUnix);
    let echo = TargetServer::start(TargetBehavior::Echo);
    let address = format!("127.0.0.1:{}", echo.port);
    run_local(async {
        let clients = KonnectivityPool::default();
        let socket = konnectivity.socket.clone();
        let open = async || {
            let stream = UnixStream::connect(&socket).await.map_err(|error| error.to_string())?;
            KonnectivityClient::connect(stream, "localhost").await.map_err(|error| error.to_string())
        };
        let mut tunnel = clients.dial(&"server", &address, TIMEOUT, open).await.unwrap();
        konnectivity.server.signal(Signal::KILL);
        konnectivity.server.wait();
        assert!(tunnel.read(&mut [0]).await.is_err(), "a lost connection is an error, not EOF");
        assert!(clients.dial(&"server", &address, TIMEOUT, open).await.is_err());
        konnectivity.restart();
        konnectivity.wait_for_agents(1);
        let began = Instant::now();
        let mut tunnel = loop {
            match clients.dial(&"server", &address, TIMEOUT, open).await {
                Ok(tunnel) => break tunnel,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
            }
            sleep(Duration::from_millis(20)).await;
        };
        println!("a tunnel {:?} after the server and its agent were restarted", began.elapsed());
        assert_echo(&mut tunnel, b"tunnels to work again").await;
    });
}

async fn open_tunnels(client: &KonnectivityClient, port: u16) -> Vec<KonnectivityTunnel> {
    join_all((0..100).map(|_| dial(client, port))).await.into_iter().map(Result::unwrap).collect()
}

/// Number of tunnels that echo within a second.
async fn count_echoes(tunnels: &mut [KonnectivityTunnel]) -> usize {
    let all =
        join_all(tunnels.iter_mut().map(|tunnel| timeout(Duration::from_secs(1), assert_echo(tunnel, b"and you?"))));
    all.await.iter().filter(|response| response.is_ok()).count()
}

/// With the reference server a client that stops reading blocks all tunnels. Narthex's client allows that for ten
/// seconds and then closes the one tunnel.
pub(super) fn reader_stops(environment: &TestEnvironment) {
    let konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-reader-stops"), KonnectivityMode::GrpcUnix);
    let (source, echo) =
        (TargetServer::start(TargetBehavior::Source(1 << 30)), TargetServer::start(TargetBehavior::Echo));
    run_local(async {
        let client = konnectivity.client().await;
        let mut others = open_tunnels(&client, echo.port).await;
        assert_eq!(count_echoes(&mut others).await, 100);
        let mut stopped = dial(&client, source.port).await.unwrap();
        let began = Instant::now();
        sleep(Duration::from_secs(1)).await;
        println!("while its window is full, {} of 100 others echo within a second", count_echoes(&mut others).await);
        let mut more = open_tunnels(&client, echo.port).await;
        println!("new tunnels after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(16), "{:?}", began.elapsed());
        assert_eq!(count_echoes(&mut more).await, 100, "new ones");
        assert_eq!(count_echoes(&mut others).await, 100, "a tunnel was lost");
        assert_eq!(stopped.read(&mut [0; 8]).await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    });
}

/// The reference agent blocks all tunnels when one target does not read; it then processes neither dials nor closes.
/// Nothing sent over its connection changes that; the client can only detect it.
pub(super) fn target_never_reads(environment: &TestEnvironment) {
    let konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-never-reads"), KonnectivityMode::GrpcUnix);
    let (mut deaf, echo) = (TargetServer::start(TargetBehavior::NeverReads), TargetServer::start(TargetBehavior::Echo));
    let source = TargetServer::start(TargetBehavior::Source(64 << 20));
    run_local(async {
        let client = konnectivity.client().await;
        let mut others = open_tunnels(&client, echo.port).await;
        assert_eq!(count_echoes(&mut others).await, 100);
        let mut download = dial(&client, source.port).await.unwrap();
        let mut upload = dial(&client, deaf.port).await.unwrap();
        let args = pattern(1 << 20);
        let mut accepted = 0;
        while accepted < 64 << 20 && timeout(Duration::from_secs(3), upload.write_all(&args)).await.is_ok() {
            accepted += args.len();
        }
        println!("{} MiB were accepted before the agent blocked", accepted >> 20);
        assert_eq!(client.stuck_tunnels(), 1, "the stuck tunnel is counted");
        let mut all = Vec::new();
        let downloaded = timeout(Duration::from_secs(10), download.read_to_end(&mut all)).await;
        assert_eq!(downloaded.expect("the download to complete").unwrap(), 64 << 20);
        assert_eq!(
            count_echoes(&mut others).await,
            0,
            "the reference agent forwards nothing; 100 once it is fixed upstream"
        );
        let began = Instant::now();
        let error = client.dial(&format!("127.0.0.1:{}", echo.port), Duration::from_secs(2)).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::NoAnswer);
        assert!(began.elapsed() < Duration::from_secs(3), "the dial exceeded its timeout");
        drop(upload);

        // The target closes and all tunnels continue.
        deaf.release = None;
        let mut tunnel = dial(&client, echo.port).await.unwrap();
        assert_echo(&mut tunnel, b"tunnels to work again").await;
        assert_eq!(count_echoes(&mut others).await, 100, "a tunnel was lost");
        drop(download);
    });
}
