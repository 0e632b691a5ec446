//! What breaks between us and a target, and what it does to whom.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use narthex::egress::proxy::konnectivity::{KonnectivityClient, KonnectivityPool, KonnectivityTunnel, TunnelFailure};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::far::{Far, Habit};
use super::{PATIENCE, asks, dial, here, pattern};
use crate::world::{Front, Konnectivity, World};

pub(super) fn agent_killed(world: &World) {
    let mut konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-agent-killed"), Front::GrpcUnix);
    let (source, echo) = (Far::start(Habit::Source(1 << 30)), Far::start(Habit::Echo));
    here(async {
        let client = konnectivity.client().await;
        let mut transfer = dial(&client, source.port).await.unwrap();
        transfer.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
        let mut agent = konnectivity.agents.remove(0);
        agent.process.signal(Signal::KILL);
        agent.process.wait();
        let began = Instant::now();
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(5), transfer.read_to_end(&mut rest)).await.expect("an end at once");
        println!("the transfer ended with {ended:?} after {:?}", began.elapsed());
        // The server says the same as when the target closes. That nobody takes it for whole is up to what is inside:
        // see `cut`.
        assert!(rest.len() < (1 << 30) - (1 << 20), "it was over before the agent was killed");
        assert_eq!(dial(&client, echo.port).await.err(), Some(TunnelFailure::NoAgent));
        konnectivity.start_agent("agent-b", None);
        asks(&mut dial(&client, echo.port).await.unwrap(), b"well again").await;
    });
}

pub(super) fn agent_stopped(world: &World) {
    let mut konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-agent-stopped"), Front::GrpcUnix);
    let echo = Far::start(Habit::Echo);
    here(async {
        let client = konnectivity.client().await;
        konnectivity.agents[0].process.stop();
        let began = Instant::now();
        let error = client.dial(&format!("127.0.0.1:{}", echo.port), Duration::from_secs(2)).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::NoAnswer);
        assert!(began.elapsed() < Duration::from_secs(3));

        // Where another agent is there, a dial finds it: the server picks one for each of the dials we send.
        konnectivity.start_agent("agent-b", None);
        let clients = KonnectivityPool::default();
        let open = async || Ok(konnectivity.client().await);
        let address = format!("127.0.0.1:{}", echo.port);
        let patience = Duration::from_secs(8);
        let mut served = 0;
        for _ in 0..5 {
            let began = Instant::now();
            match clients.dial(&"server", &address, patience, open).await {
                Ok(mut tunnel) => {
                    asks(&mut tunnel, b"somebody is there").await;
                    served += 1;
                }
                // One in sixteen times all four go to the one that hangs.
                Err(error) => {
                    assert_eq!(error.reason, "ProxyTimeout", "{}", error.cause);
                    assert!(began.elapsed() < patience + Duration::from_secs(1), "{:?}", began.elapsed());
                }
            }
        }
        println!("{served} of 5 dials are served while one of two agents hangs");
        // Of none, one in a million runs.
        assert!(served > 0);
        konnectivity.agents[0].process.signal(Signal::CONT);
        // What it was asked meanwhile it does now, and closes again: nobody wants it any longer.
        drop(client);
        let began = Instant::now();
        while konnectivity.established() > 0.0 {
            assert!(began.elapsed() < Duration::from_secs(20), "{} connections are left", konnectivity.established());
            sleep(Duration::from_millis(50)).await;
        }
    });
}

pub(super) fn server_restarted(world: &World) {
    let mut konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-restart"), Front::GrpcUnix);
    let echo = Far::start(Habit::Echo);
    let address = format!("127.0.0.1:{}", echo.port);
    here(async {
        let clients = KonnectivityPool::default();
        let socket = konnectivity.socket.clone();
        let open = async || {
            let stream = UnixStream::connect(&socket).await;
            let stream = stream.map_err(|error| narthex::egress::DialError {
                phase: narthex::egress::DialPhase::Connect,
                reason: "ConnectionRefused",
                cause: error.to_string(),
            })?;
            Ok(KonnectivityClient::connect(stream, "localhost").await?)
        };
        let mut tunnel = clients.dial(&"server", &address, PATIENCE, open).await.unwrap();
        konnectivity.server.signal(Signal::KILL);
        konnectivity.server.wait();
        assert!(tunnel.read(&mut [0]).await.is_err(), "cut off is not the end of a file");
        assert!(clients.dial(&"server", &address, PATIENCE, open).await.is_err());
        konnectivity.start_again();
        konnectivity.wait_for_agents(1);
        let began = Instant::now();
        let mut tunnel = loop {
            match clients.dial(&"server", &address, PATIENCE, open).await {
                Ok(tunnel) => break tunnel,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{}", error.cause),
            }
            sleep(Duration::from_millis(20)).await;
        };
        println!("a tunnel {:?} after the server and its agent were back", began.elapsed());
        asks(&mut tunnel, b"well again").await;
    });
}

async fn many(client: &KonnectivityClient, port: u16) -> Vec<KonnectivityTunnel> {
    join_all((0..100).map(|_| dial(client, port))).await.into_iter().map(Result::unwrap).collect()
}

/// How many of them get an answer within a second.
async fn answered(tunnels: &mut [KonnectivityTunnel]) -> usize {
    let all = join_all(tunnels.iter_mut().map(|tunnel| timeout(Duration::from_secs(1), asks(tunnel, b"and you?"))));
    all.await.iter().filter(|answer| answer.is_ok()).count()
}

/// With a server of the reference a reader that stops is in everybody's way. Ours may be for ten seconds, and is then
/// cut off alone.
pub(super) fn reader_stops(world: &World) {
    let konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-reader-stops"), Front::GrpcUnix);
    let (source, echo) = (Far::start(Habit::Source(1 << 30)), Far::start(Habit::Echo));
    here(async {
        let client = konnectivity.client().await;
        let mut others = many(&client, echo.port).await;
        assert_eq!(answered(&mut others).await, 100);
        let mut stopped = dial(&client, source.port).await.unwrap();
        let began = Instant::now();
        sleep(Duration::from_secs(1)).await;
        println!("while its window is full, {} of 100 others are answered in a second", answered(&mut others).await);
        let mut more = many(&client, echo.port).await;
        println!("new tunnels after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(16), "{:?}", began.elapsed());
        assert_eq!(answered(&mut more).await, 100, "new ones");
        assert_eq!(answered(&mut others).await, 100, "none of the others was lost");
        assert_eq!(stopped.read(&mut [0; 8]).await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    });
}

/// An agent of the reference that cannot hand on what one target does not read hands on nothing to any other, and hears
/// neither dials nor closes. Nothing said over its connection changes that; what we can do is to notice.
pub(super) fn target_never_reads(world: &World) {
    let konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-never-reads"), Front::GrpcUnix);
    let (mut deaf, echo) = (Far::start(Habit::Deaf), Far::start(Habit::Echo));
    let source = Far::start(Habit::Source(64 << 20));
    here(async {
        let client = konnectivity.client().await;
        let mut others = many(&client, echo.port).await;
        assert_eq!(answered(&mut others).await, 100);
        let mut download = dial(&client, source.port).await.unwrap();
        let mut upload = dial(&client, deaf.port).await.unwrap();
        let words = pattern(1 << 20);
        let mut accepted = 0;
        while accepted < 64 << 20 && timeout(Duration::from_secs(3), upload.write_all(&words)).await.is_ok() {
            accepted += words.len();
        }
        println!("{} MiB were taken before everything stopped", accepted >> 20);
        assert_eq!(client.stuck_tunnels(), 1, "it is noticed");
        let mut all = Vec::new();
        let downloaded = timeout(Duration::from_secs(10), download.read_to_end(&mut all)).await;
        assert_eq!(downloaded.expect("what comes from there comes").unwrap(), 64 << 20);
        assert_eq!(answered(&mut others).await, 0, "an agent of the reference hands on nothing; mended, this is 100");
        let began = Instant::now();
        let error = client.dial(&format!("127.0.0.1:{}", echo.port), Duration::from_secs(2)).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::NoAnswer);
        assert!(began.elapsed() < Duration::from_secs(3), "nobody waits for it longer than he wants");
        drop(upload);

        // The target goes, and all is well.
        deaf.deafness = None;
        let mut tunnel = dial(&client, echo.port).await.unwrap();
        asks(&mut tunnel, b"well again").await;
        assert_eq!(answered(&mut others).await, 100, "none of the others was lost");
        drop(download);
    });
}
