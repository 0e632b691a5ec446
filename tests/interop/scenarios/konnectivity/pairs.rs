//! The server and the agent of this project, together and each with the reference on the other side, in all modes.
//!
//! Numbers such as B1 are the defects of the reference that each check is about. What a reference side causes is printed, not
//! asserted.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use super::target_server::{BANNER, TargetBehavior, TargetServer};
use super::{pattern, run_local};
use crate::environment::{ClientStream, Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment};

pub(super) const OWN: KonnectivityPair = KonnectivityPair { has_own_server: true, has_own_agent: true };
pub(super) const OWN_SERVER: KonnectivityPair = KonnectivityPair { has_own_server: true, has_own_agent: false };
pub(super) const OWN_AGENT: KonnectivityPair = KonnectivityPair { has_own_server: false, has_own_agent: true };

pub(super) const MODES: [KonnectivityMode; 4] = [
    KonnectivityMode::GrpcUnix,
    KonnectivityMode::GrpcTls,
    KonnectivityMode::ConnectUnix,
    KonnectivityMode::ConnectTls,
];
const TIMEOUT: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 20;

pub(super) type Stream = Box<dyn ClientStream>;

pub(super) fn run(environment: &TestEnvironment, pair: KonnectivityPair) {
    for mode in MODES {
        let name = format!("konnectivity-pair-{}-{}-{mode:?}", pair.has_own_server, pair.has_own_agent);
        let konnectivity = Konnectivity::with_pair(&environment.scratch(&name), mode, pair);
        let is_connect = matches!(mode, KonnectivityMode::ConnectUnix | KonnectivityMode::ConnectTls);
        println!("{mode:?}");
        run_local(async {
            let echo = TargetServer::start(TargetBehavior::Echo);
            tunnels_carry_data(&konnectivity, &echo).await;
            dial_error_is_the_agents(&konnectivity, is_connect && pair.answers_before_dial()).await;
            first_words_arrive(&konnectivity, pair.has_own_server || !is_connect).await;
            upload_before_close_is_complete(&konnectivity, pair.has_own_agent).await;
            if pair == OWN && is_connect {
                half_close_gets_its_response(&konnectivity).await;
            }
            if pair.has_own_server {
                stopped_client_delays_no_other(&konnectivity, &echo).await;
            }
            if pair.has_own_agent {
                stopped_target_delays_no_other(&konnectivity, &echo).await;
            }
            connections_are_gone(&konnectivity).await;
        });
        drain(konnectivity, pair);
    }
}

pub(super) async fn open(konnectivity: &Konnectivity, port: u16) -> Stream {
    timeout(TIMEOUT, konnectivity.connect(port)).await.expect("a response to the dial").unwrap()
}

pub(super) async fn echo_back(stream: &mut Stream, bytes: &[u8]) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut back = vec![0; bytes.len()];
    let (read, written) = tokio::join!(reader.read_exact(&mut back), async {
        writer.write_all(bytes).await?;
        writer.flush().await
    });
    written.unwrap();
    read.unwrap();
    assert!(back == bytes, "other bytes came back");
}

async fn tunnels_carry_data(konnectivity: &Konnectivity, echo: &TargetServer) {
    let bytes = pattern(3 << 20);
    let mut tunnels = Vec::new();
    for _ in 0..8 {
        tunnels.push(open(konnectivity, echo.port).await);
    }
    let all = tunnels.iter_mut().map(|tunnel| timeout(TIMEOUT, echo_back(tunnel, &bytes)));
    for echoed in futures_util::future::join_all(all).await {
        echoed.expect("all bytes to come back");
    }
}

/// The client gets the agent's error. A server that answers before the dial sends it as if the target did, if at all.
async fn dial_error_is_the_agents(konnectivity: &Konnectivity, answers_before_dial: bool) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    match timeout(TIMEOUT, konnectivity.connect(port)).await.expect("a response to the dial") {
        Ok(mut tunnel) if answers_before_dial => {
            let mut all = Vec::new();
            let _ = timeout(TIMEOUT, tunnel.read_to_end(&mut all)).await.expect("the end of the connection");
            let text = String::from_utf8_lossy(&all);
            assert!(text.is_empty() || text.contains("connection refused"), "{text}");
            println!("  the server answers 200 before the dial fails, then {text:?}");
        }
        Ok(_) => panic!("the port is closed"),
        Err(error) => assert!(error.contains("connection refused"), "{error}"),
    }
}

/// B5: what a target sends first is not lost.
async fn first_words_arrive(konnectivity: &Konnectivity, must_arrive: bool) {
    let target = TargetServer::start(TargetBehavior::Banner);
    let mut arrived = 0;
    for _ in 0..ATTEMPTS {
        let Ok(mut tunnel) = timeout(TIMEOUT, konnectivity.connect(target.port)).await.expect("a response") else {
            continue;
        };
        let mut all = Vec::new();
        let ended = timeout(TIMEOUT, tunnel.read_to_end(&mut all)).await.expect("the end of the connection");
        arrived += usize::from(ended.is_ok() && all == BANNER);
    }
    println!("  B5: {arrived} of {ATTEMPTS} banners arrive");
    assert!(arrived == ATTEMPTS || !must_arrive);
}

/// B4: an upload that is followed by a close arrives whole.
async fn upload_before_close_is_complete(konnectivity: &Konnectivity, must_arrive: bool) {
    let target = TargetServer::start(TargetBehavior::Sink);
    let bytes = pattern(2 << 20);
    let mut complete = 0;
    for _ in 0..ATTEMPTS {
        let mut tunnel = open(konnectivity, target.port).await;
        timeout(TIMEOUT, tunnel.write_all(&bytes)).await.expect("room for the upload").unwrap();
        let _ = tunnel.shutdown().await;
        drop(tunnel);
        let began = Instant::now();
        let received = loop {
            match target.received.try_recv() {
                Ok(received) => break received,
                Err(_) => assert!(began.elapsed() < TIMEOUT, "the target is not closed"),
            }
            sleep(Duration::from_millis(5)).await;
        };
        complete += usize::from(received == bytes.len());
    }
    println!("  B4: {complete} of {ATTEMPTS} uploads are complete");
    assert!(complete == ATTEMPTS || !must_arrive);
}

/// B6: a client that has sent its request and closed that direction gets the response.
async fn half_close_gets_its_response(konnectivity: &Konnectivity) {
    let target = TargetServer::start(TargetBehavior::Echo);
    let bytes = pattern(256 << 10);
    for _ in 0..ATTEMPTS {
        let tunnel = open(konnectivity, target.port).await;
        let (mut reader, mut writer) = tokio::io::split(tunnel);
        let mut all = Vec::new();
        let exchange = async {
            tokio::join!(reader.read_to_end(&mut all), async {
                writer.write_all(&bytes).await.unwrap();
                writer.shutdown().await.unwrap();
            })
        };
        timeout(TIMEOUT, exchange).await.expect("the end of the response").0.unwrap();
        assert!(all == bytes, "{} of {} bytes", all.len(), bytes.len());
    }
}

/// B2 and B3: a client that stops reading.
async fn stopped_client_delays_no_other(konnectivity: &Konnectivity, echo: &TargetServer) {
    let source = TargetServer::start(TargetBehavior::Source(1 << 30));
    let mut other = open(konnectivity, echo.port).await;
    let mut stopped = open(konnectivity, source.port).await;
    stopped.read_exact(&mut [0; 1]).await.unwrap();
    // Its buffers are full now.
    sleep(Duration::from_secs(1)).await;
    timeout(TIMEOUT, echo_back(&mut other, b"other")).await.expect("another tunnel to go on");
    timeout(TIMEOUT, echo_back(&mut open(konnectivity, echo.port).await, b"new")).await.expect("a new tunnel");
}

/// B1: a target that reads nothing.
async fn stopped_target_delays_no_other(konnectivity: &Konnectivity, echo: &TargetServer) {
    let target = TargetServer::start(TargetBehavior::NeverReads);
    let mut other = open(konnectivity, echo.port).await;
    let mut upload = open(konnectivity, target.port).await;
    let bytes = pattern(1 << 20);
    let mut accepted = 0;
    let ended = loop {
        match timeout(Duration::from_secs(1), upload.write_all(&bytes)).await {
            Ok(Ok(())) => accepted += bytes.len(),
            Ok(Err(_)) => break "closed",
            Err(_) => break "no more room",
        }
        assert!(accepted < 256 << 20, "what nobody reads is held in memory");
    };
    println!("  B1: {ended} after {} MiB", accepted >> 20);
    timeout(TIMEOUT, echo_back(&mut other, b"other")).await.expect("another tunnel to go on");
    timeout(TIMEOUT, echo_back(&mut open(konnectivity, echo.port).await, b"new")).await.expect("a new tunnel");
}

pub(super) async fn connections_are_gone(konnectivity: &Konnectivity) {
    let began = Instant::now();
    loop {
        // The reference's server keeps the count of connections that ended with their stream.
        let server = if konnectivity.pair.has_own_server { konnectivity.established() } else { 0.0 };
        let agent = konnectivity.agents[0].count("konnectivity_network_proxy_agent_open_endpoint_connections");
        if server == 0.0 && agent == 0.0 {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "open connections: {server} in the server, {agent} in the agent");
        sleep(Duration::from_millis(20)).await;
    }
}

/// B10 and B11: after SIGTERM tunnels go on; without a tunnel the process ends with status 0.
fn drain(mut konnectivity: Konnectivity, pair: KonnectivityPair) {
    let echo = TargetServer::start(TargetBehavior::Echo);
    let mut agent = konnectivity.agents.remove(0);
    run_local(async {
        let mut tunnel = open(&konnectivity, echo.port).await;
        // Servers that answer before the dial have not opened it yet.
        timeout(TIMEOUT, echo_back(&mut tunnel, b"before the drain")).await.expect("the tunnel to be open");
        let process = if pair.has_own_server { &konnectivity.server } else { &agent.process };
        process.signal(Signal::TERM);
        // The reference's tunnels are cut after less than a second.
        for _ in 0..10 {
            sleep(Duration::from_millis(200)).await;
            timeout(TIMEOUT, echo_back(&mut tunnel, b"during the drain")).await.expect("the tunnel to go on");
        }
    });
    let process = if pair.has_own_server { &mut konnectivity.server } else { &mut agent.process };
    assert_eq!(process.wait().code(), Some(0));
}
