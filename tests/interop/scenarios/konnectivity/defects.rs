//! The defects B1 to B16 of the reference (docs/reference/konnectivity-differences.md), each reproduced with the reference
//! alone, and with narthex on one side and on both. B15 is in [`super::back_off`].

use std::time::{Duration, Instant};

use konnectivity_client::{KonnectivityClient, TunnelFailure};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::blackhole::Blackhole;
use super::pairs::{OWN, OWN_AGENT, OWN_SERVER, Stream, open};
use super::target_server::{BANNER, TargetBehavior, TargetServer};
use super::{client_library, pattern, run_local};
use crate::environment::{
    Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment, Tokens, eventually, retry,
};

const PENDING_DIALS: &str = "konnectivity_network_proxy_server_pending_backend_dials";
const AGENT_DIALS: &str = "konnectivity_network_proxy_agent_dial_duration_seconds_count";
const AGENT_CONNECTIONS: &str = "konnectivity_network_proxy_agent_open_endpoint_connections";

/// A tunnel that is held up for this long is taken to be held up for ever.
const FOR_EVER: Duration = Duration::from_secs(10);
/// For everything that is no defect.
const TIMEOUT: Duration = Duration::from_secs(30);
const ATTEMPTS: usize = 40;

/// What becomes of a defect with a pair of server and agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Gone,
    Remains,
    /// It depends on timing.
    ByChance,
}

use Expected::{ByChance, Gone, Remains};

/// What a reproduction saw.
struct Observation {
    is_defect: bool,
    text: String,
}

impl Observation {
    fn new(is_defect: bool, text: impl Into<String>) -> Observation {
        Observation { is_defect, text: text.into() }
    }

    /// Of [`ATTEMPTS`]; a defect if one is not complete.
    fn of_attempts(complete: usize) -> Observation {
        Observation::new(complete < ATTEMPTS, format!("{complete} of {ATTEMPTS} complete"))
    }
}

/// Reproduces a defect with each pair, side by side. `expected` is for the reference alone, narthex's server, narthex's
/// agent, and both.
fn check(
    environment: &TestEnvironment,
    name: &str,
    mode: KonnectivityMode,
    expected: [Expected; 4],
    reproduce: impl AsyncFn(&mut Konnectivity) -> Observation + Sync,
) {
    check_pairs(name, expected, |pair| {
        let mut konnectivity = Konnectivity::with_pair(&scratch(environment, name, pair), mode, pair);
        run_local(reproduce(&mut konnectivity))
    });
}

/// As [`check`], with a function that starts its own processes.
fn check_pairs(name: &str, expected: [Expected; 4], reproduce: impl Fn(KonnectivityPair) -> Observation + Sync) {
    let pairs = [
        (KonnectivityPair::REFERENCE, "the reference alone"),
        (OWN_SERVER, "narthex's server"),
        (OWN_AGENT, "narthex's agent"),
        (OWN, "both narthex's"),
    ];
    let observations = std::thread::scope(|scope| {
        let reproduce = &reproduce;
        let threads = pairs.map(|(pair, _)| scope.spawn(move || reproduce(pair)));
        threads.map(|thread| thread.join())
    });
    let mut unexpected = Vec::new();
    for (((_, pair), expected), observation) in pairs.into_iter().zip(expected).zip(observations) {
        let Ok(Observation { is_defect, text }) = observation else {
            unexpected.push(format!("{pair}: the reproduction failed"));
            continue;
        };
        let verdict = if is_defect { "defect" } else { "no defect" };
        println!("{name}, {pair}: {verdict}: {text}");
        if expected != ByChance && (expected == Remains) != is_defect {
            unexpected.push(format!("{pair}: {verdict}, expected: {expected:?} ({text})"));
        }
    }
    assert!(unexpected.is_empty(), "{name}: {}", unexpected.join("; "));
}

fn scratch(environment: &TestEnvironment, name: &str, pair: KonnectivityPair) -> std::path::PathBuf {
    environment.scratch(&format!("konnectivity-defect-{name}-{}-{}", pair.has_own_server, pair.has_own_agent))
}

async fn echo(stream: &mut Stream) -> std::io::Result<()> {
    let mut answer = [0; 4];
    stream.write_all(b"ping").await?;
    stream.flush().await?;
    stream.read_exact(&mut answer).await?;
    if &answer == b"ping" { Ok(()) } else { Err(std::io::Error::other(format!("{answer:?}"))) }
}

/// Whether an open tunnel and a new one are held up.
async fn others_are_held_up(konnectivity: &Konnectivity, other: &mut Stream, echo_port: u16) -> Observation {
    let began = Instant::now();
    let old = timeout(FOR_EVER, echo(other)).await;
    let new =
        timeout(FOR_EVER, async { echo(&mut konnectivity.connect(echo_port).await?).await.map_err(|e| e.to_string()) });
    let new = new.await;
    let is_defect = !matches!((&old, &new), (Ok(Ok(())), Ok(Ok(()))));
    let text = format!("another tunnel {old:?}, a new one {new:?} after {:?}", began.elapsed());
    Observation::new(is_defect, text)
}

/// Waits until the server has a dial that the agent has not answered.
fn wait_for_pending_dial(konnectivity: &Konnectivity) {
    eventually("a pending dial", || match konnectivity.count(PENDING_DIALS) {
        0.0 => Err("none".to_owned()),
        _ => Ok(()),
    });
}

pub(super) fn b1_target_that_does_not_read(environment: &TestEnvironment) {
    let expected = [Remains, Remains, Gone, Gone];
    check(environment, "B1", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::NeverReads);
        let echo_target = TargetServer::start(TargetBehavior::Echo);
        let mut other = open(konnectivity, echo_target.port).await;
        let mut upload = open(konnectivity, target.port).await;
        let (bytes, mut accepted) = (vec![7; 1 << 20], 0);
        while let Ok(Ok(())) = timeout(Duration::from_secs(1), upload.write_all(&bytes)).await {
            accepted += bytes.len();
            assert!(accepted < 256 << 20, "what no reader takes is held in memory");
        }
        others_are_held_up(konnectivity, &mut other, echo_target.port).await
    });
}

pub(super) fn b2_connect_client_that_does_not_read(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B2", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let source = TargetServer::start(TargetBehavior::Source(1 << 30));
        let echo_target = TargetServer::start(TargetBehavior::Echo);
        let mut other = open(konnectivity, echo_target.port).await;
        let mut stopped = UnixStream::connect(&konnectivity.socket).await.unwrap();
        let request = format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", source.port);
        stopped.write_all(request.as_bytes()).await.unwrap();
        // It need not be of the response: data of the target may overtake that of the reference (B5).
        timeout(TIMEOUT, stopped.read_exact(&mut [0; 1])).await.expect("a byte").unwrap();
        // All buffers are full now.
        sleep(Duration::from_secs(2)).await;
        others_are_held_up(konnectivity, &mut other, echo_target.port).await
    });
}

pub(super) fn b3_grpc_client_that_does_not_read(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B3", KonnectivityMode::GrpcUnix, expected, async |konnectivity| {
        let source = TargetServer::start(TargetBehavior::Source(1 << 30));
        let echo_target = TargetServer::start(TargetBehavior::Echo);
        let mut other = open(konnectivity, echo_target.port).await;
        // A client without the limit of 10 s, with which the reference's client and narthex's help themselves.
        let stream = UnixStream::connect(&konnectivity.socket).await.unwrap();
        let client = KonnectivityClient::connect_with(stream, "localhost", TIMEOUT * 4).await.unwrap();
        let mut stopped = client.dial(&format!("127.0.0.1:{}", source.port), TIMEOUT).await.unwrap();
        stopped.read_exact(&mut [0; 1]).await.unwrap();
        sleep(Duration::from_secs(2)).await;
        others_are_held_up(konnectivity, &mut other, echo_target.port).await
    });
}

pub(super) fn b4_upload_before_a_close(environment: &TestEnvironment) {
    // A server of narthex waits 1 s before it closes: that is enough for a target that reads.
    let expected = [Remains, ByChance, Gone, Gone];
    check(environment, "B4", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Sink);
        let (bytes, mut complete) = (pattern(2 << 20), 0);
        for _ in 0..ATTEMPTS {
            let mut tunnel = open(konnectivity, target.port).await;
            timeout(TIMEOUT, tunnel.write_all(&bytes)).await.expect("room for the upload").unwrap();
            drop(tunnel);
            let received = retry(TIMEOUT, || target.received.try_recv().map_err(|error| error.to_string()));
            complete += usize::from(received.expect("the end of the upload") == bytes.len());
        }
        Observation::of_attempts(complete)
    });
}

pub(super) fn b5_target_that_sends_first(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B5", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Banner);
        let mut complete = 0;
        for _ in 0..ATTEMPTS {
            let dialed = timeout(TIMEOUT, konnectivity.connect(target.port)).await.expect("a response to the dial");
            let Ok(mut tunnel) = dialed else { continue };
            let mut all = Vec::new();
            let ended = timeout(TIMEOUT, tunnel.read_to_end(&mut all)).await.expect("the end of the connection");
            complete += usize::from(ended.is_ok() && all == BANNER);
        }
        Observation::of_attempts(complete)
    });
}

pub(super) fn b6_half_closed_request(environment: &TestEnvironment) {
    // With an agent of the reference, narthex's server waits 1 s for the response.
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B6", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Echo);
        let mut complete = 0;
        for _ in 0..ATTEMPTS {
            let mut tunnel = open(konnectivity, target.port).await;
            tunnel.write_all(b"request").await.unwrap();
            tunnel.shutdown().await.unwrap();
            let mut response = Vec::new();
            let ended = timeout(TIMEOUT, tunnel.read_to_end(&mut response)).await.expect("the end of the connection");
            complete += usize::from(ended.is_ok() && response == b"request");
        }
        Observation::of_attempts(complete)
    });
}

pub(super) fn b7_client_that_leaves_during_a_dial(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B7", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let agent = &konnectivity.agents[0];
        // A dial lasts five seconds at most, and the system asks the target after one and three. A busy machine may need
        // another attempt.
        let succeeds = async || {
            let target = Blackhole::new();
            let mut client = UnixStream::connect(&konnectivity.socket).await.unwrap();
            client.write_all(format!("CONNECT {} HTTP/1.1\r\n\r\n", target.address).as_bytes()).await.unwrap();
            wait_for_pending_dial(konnectivity);
            drop(client);
            // The server has seen it.
            sleep(Duration::from_millis(500)).await;
            target.open();
            let dialed = retry(Duration::from_secs(6), || match agent.count(AGENT_DIALS) {
                0.0 => Err("no dial has succeeded".to_owned()),
                _ => Ok(()),
            });
            dialed.is_ok()
        };
        let is_dialed = succeeds().await || succeeds().await || succeeds().await;
        assert!(is_dialed, "no dial succeeds after its client has left");
        let left = retry(FOR_EVER, || match agent.count(AGENT_CONNECTIONS) {
            0.0 => Ok(()),
            open => Err(format!("{open}")),
        });
        Observation::new(left.is_err(), format!("open connections of the agent: {}", left.err().unwrap_or_default()))
    });
}

pub(super) fn b8_agent_that_dies_during_a_dial(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B8", KonnectivityMode::GrpcUnix, expected, async |konnectivity| {
        let target = Blackhole::new();
        let client = konnectivity.client().await;
        let address = target.address.to_string();
        let began = Instant::now();
        let dial = client.dial(&address, FOR_EVER);
        let kill = async {
            while konnectivity.count(PENDING_DIALS) == 0.0 {
                sleep(Duration::from_millis(20)).await;
            }
            konnectivity.agents[0].process.signal(Signal::KILL);
        };
        let (dialed, ()) = tokio::join!(dial, kill);
        let error = dialed.err().expect("no connection");
        Observation::new(error.failure == TunnelFailure::NoAnswer, format!("{error} after {:?}", began.elapsed()))
    });
}

pub(super) fn b9_dial_of_a_stopped_agent(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    check(environment, "B9", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Echo);
        konnectivity.agents[0].process.stop();
        let began = Instant::now();
        // Longer than the 30 s that narthex allows a dial, and than the time of its ping.
        let response = timeout(Duration::from_secs(60), konnectivity.connect(target.port)).await;
        let text = match &response {
            Ok(Ok(_)) => panic!("the agent is stopped"),
            Ok(Err(response)) => format!("{:?}", response.lines().next().unwrap_or_default()),
            Err(_) => "no response".to_owned(),
        };
        Observation::new(response.is_err(), format!("{text} after {:?}", began.elapsed()))
    });
}

pub(super) fn b10_server_that_is_terminated(environment: &TestEnvironment) {
    // It is the reference's agent that cuts its tunnels.
    let expected = [Remains, Gone, Gone, Gone];
    check(environment, "B10", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Echo);
        let mut tunnel = open(konnectivity, target.port).await;
        echo(&mut tunnel).await.unwrap();
        // It has a grace period of 30 s.
        konnectivity.server.signal(Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            sleep(Duration::from_millis(100)).await;
            match timeout(TIMEOUT, echo(&mut tunnel)).await.expect("an echo or the end") {
                Ok(()) => {}
                Err(error) => {
                    return Observation::new(true, format!("the tunnel ends after {:?}: {error}", began.elapsed()));
                }
            }
        }
        drop(tunnel);
        let status = konnectivity.server.exit_within(FOR_EVER);
        Observation::new(status.and_then(|status| status.code()) != Some(0), format!("the tunnel goes on; {status:?}"))
    });
}

pub(super) fn b11_agent_that_is_terminated(environment: &TestEnvironment) {
    let expected = [Remains, Remains, Gone, Gone];
    check(environment, "B11", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Echo);
        let mut tunnel = open(konnectivity, target.port).await;
        echo(&mut tunnel).await.unwrap();
        konnectivity.agents[0].process.signal(Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            sleep(Duration::from_millis(100)).await;
            timeout(TIMEOUT, echo(&mut tunnel)).await.expect("the tunnel to go on").unwrap();
        }
        drop(tunnel);
        let status = konnectivity.agents[0].process.exit_within(FOR_EVER);
        let text = status.map_or("still there".to_owned(), |status| status.to_string());
        Observation::new(status.and_then(|status| status.code()) != Some(0), text)
    });
}

pub(super) fn b12_refused_agent(environment: &TestEnvironment) {
    const MISLEADING: &str = "expected one server ID in the context, got []";
    check_pairs("B12", [Remains, Remains, Gone, Gone], |pair| {
        let directory = scratch(environment, "B12", pair);
        let tokens = Tokens::make(&environment.cluster, &directory);
        std::fs::write(&tokens.token, "invalid").unwrap();
        let mode = KonnectivityMode::GrpcUnix;
        let mut konnectivity = Konnectivity::start_with(&directory, mode, pair, Some(tokens));
        konnectivity.launch_agent("agent-a", None);
        let agent = &konnectivity.agents[0].process;
        let line = eventually("the agent to say why", || {
            let log = agent.log();
            let reason = "the server refuses the agent with gRPC status";
            let line = log.lines().find(|line| line.contains(MISLEADING) || line.contains(reason));
            line.map(str::to_owned).ok_or(log)
        });
        Observation::new(agent.log().contains(MISLEADING), line)
    });
}

pub(super) fn b13_foreign_connection_ids(environment: &TestEnvironment) {
    let expected = [Remains, Gone, Remains, Gone];
    for case in ["foreign-data", "foreign-close"] {
        let name = format!("B13-{case}");
        check(environment, &name, KonnectivityMode::GrpcUnix, expected, async |konnectivity| {
            let results = client_library::run(konnectivity, case, |_| {});
            Observation::new(results != [format!("{case}: received \"mine\"")], results.join("; "))
        });
    }
}

pub(super) fn b14_agents_of_one_id(environment: &TestEnvironment) {
    // The reference has mended it (kubernetes-sigs/apiserver-network-proxy#894).
    let expected = [Gone, Gone, Gone, Gone];
    check(environment, "B14", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        let target = TargetServer::start(TargetBehavior::Echo);
        let mut first = open(konnectivity, target.port).await;
        // The reference's metrics count agents of one id once.
        konnectivity.launch_agent("agent-a", None);
        let second = &konnectivity.agents[1];
        eventually("the second agent", || second.is_connected().then_some(()).ok_or_else(|| "not ready".to_owned()));
        let mut tunnels = Vec::new();
        for _ in 0..8 {
            tunnels.push(open(konnectivity, target.port).await);
        }
        for tunnel in tunnels.iter_mut().chain([&mut first]) {
            timeout(FOR_EVER, echo(tunnel)).await.expect("an echo").unwrap();
        }
        let carried = konnectivity.agents[1].count(AGENT_CONNECTIONS) as usize;
        konnectivity.agents[0].process.signal(Signal::KILL);
        // Before the server has forgotten the first, and after.
        let (mut dialed, mut alive) = (0, 0);
        for _ in 0..ATTEMPTS {
            if let Ok(Ok(tunnel)) = timeout(FOR_EVER, konnectivity.connect(target.port)).await {
                tunnels.push(tunnel);
                dialed += 1;
            }
        }
        sleep(Duration::from_secs(1)).await;
        for tunnel in &mut tunnels {
            alive += usize::from(matches!(timeout(FOR_EVER, echo(tunnel)).await, Ok(Ok(()))));
        }
        assert!(dialed > ATTEMPTS / 2, "{dialed} of {ATTEMPTS} dials after the first agent has ended");
        let expected = dialed + carried;
        let text =
            format!("{alive} tunnels of {expected} of the second agent are alive, {carried} before the first ended");
        Observation::new(alive != expected, text)
    });
}

pub(super) fn b16_client_that_pauses(environment: &TestEnvironment) {
    // It is a defect of the reference's client in mode grpc: case "pause" of the client library.
    let expected = [Gone, Gone, Gone, Gone];
    check(environment, "B16", KonnectivityMode::ConnectUnix, expected, async |konnectivity| {
        // What waits in narthex's server for a client when the agent is one of the reference.
        const LENGTH: usize = 6 << 20;
        let source = TargetServer::start(TargetBehavior::Source(LENGTH));
        let mut paused = open(konnectivity, source.port).await;
        paused.read_exact(&mut [0; 1]).await.unwrap();
        // Longer than the 10 s of the reference's client.
        sleep(Duration::from_secs(12)).await;
        let mut rest = Vec::new();
        let ended = timeout(TIMEOUT, paused.read_to_end(&mut rest)).await.expect("the end of the connection");
        let text = format!("{} of {LENGTH} bytes, {ended:?}", rest.len() + 1);
        Observation::new(ended.is_err() || rest.len() + 1 != LENGTH, text)
    });
}
