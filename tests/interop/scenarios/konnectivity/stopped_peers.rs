//! narthex's server and agent when one of them is stopped (SIGSTOP), or the network between them drops all packets.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::pairs::{OWN, Stream, connections_are_gone, echo_back, open};
use super::run_local;
use super::target_server::{TargetBehavior, TargetServer};
use crate::environment::{Konnectivity, KonnectivityMode, Network, TestEnvironment, eventually};

/// Pings that find a stopped peer within 12 s.
const KEEPALIVE: &[&str] = &["--keepalive-time=2s"];
const TIMEOUT: Duration = Duration::from_secs(60);

fn start(environment: &TestEnvironment, name: &str) -> Konnectivity {
    let directory = environment.scratch(&format!("konnectivity-{name}"));
    let mut konnectivity =
        Konnectivity::start_with_flags(&directory, KonnectivityMode::ConnectUnix, OWN, None, KEEPALIVE);
    konnectivity.agent_flags = KEEPALIVE.iter().map(|flag| (*flag).to_owned()).collect();
    konnectivity
}

async fn open_and_echo(konnectivity: &Konnectivity, port: u16) -> Stream {
    let mut tunnel = open(konnectivity, port).await;
    timeout(TIMEOUT, echo_back(&mut tunnel, b"ping")).await.expect("an echo");
    tunnel
}

/// The client of a tunnel is told that it is over, though its peer is silent.
async fn assert_ends(tunnel: &mut Stream) {
    let read = timeout(TIMEOUT, tunnel.read(&mut [0; 8])).await.expect("the end of the tunnel");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

pub(super) fn stopped_agent(environment: &TestEnvironment) {
    let mut konnectivity = start(environment, "stopped-agent");
    konnectivity.start_agent("agent-a", None);
    let echo = TargetServer::start(TargetBehavior::Echo);
    run_local(async {
        let mut tunnel = open_and_echo(&konnectivity, echo.port).await;
        konnectivity.start_agent("agent-b", None);
        konnectivity.agents[0].process.stop();
        assert_ends(&mut tunnel).await;
        konnectivity.wait_for_agents(1);
        assert!(konnectivity.server.log().contains("agent does not answer a ping"));
        // No dial goes to the stopped agent any more.
        for _ in 0..20 {
            open_and_echo(&konnectivity, echo.port).await;
        }
        konnectivity.agents[0].process.signal(Signal::CONT);
        konnectivity.wait_for_agents(2);
        let dials = |konnectivity: &Konnectivity| {
            konnectivity.agents[0].count("konnectivity_network_proxy_agent_dial_duration_seconds_count")
        };
        let before = dials(&konnectivity);
        for _ in 0..40 {
            open_and_echo(&konnectivity, echo.port).await;
        }
        assert!(dials(&konnectivity) > before, "the agent that goes on gets no dials");
        // What the stopped agent had is gone, too.
        connections_are_gone(&konnectivity).await;
    });
}

pub(super) fn stopped_server(environment: &TestEnvironment) {
    let mut konnectivity = start(environment, "stopped-server");
    konnectivity.start_agent("agent-a", None);
    let sink = TargetServer::start(TargetBehavior::Sink);
    let echo = TargetServer::start(TargetBehavior::Echo);
    run_local(async {
        let _tunnel = open(&konnectivity, sink.port).await;
        konnectivity.server.stop();
        // The target is told.
        eventually("the end at the target", || sink.received.try_recv().map_err(|error| error.to_string()));
        let agent = &konnectivity.agents[0];
        eventually("the agent to be unready", || match agent.is_connected() {
            true => Err("ready".to_owned()),
            false => Ok(()),
        });
        assert!(agent.process.log().contains("does not answer a ping"), "{}", agent.process.log());
        konnectivity.server.signal(Signal::CONT);
        eventually("the agent to be ready", || agent.is_connected().then_some(()).ok_or("not ready".to_owned()));
        konnectivity.wait_for_agents(1);
        open_and_echo(&konnectivity, echo.port).await;
    });
}

/// Both sides find out, and connect again when packets pass.
pub(super) fn partition(environment: &TestEnvironment) {
    let Some(network) = Network::make() else {
        assert!(std::env::var_os("CI").is_none(), "network namespaces are not permitted: run as root");
        println!("network namespaces are not permitted: not tested");
        return;
    };
    let mut konnectivity = start(environment, "partition");
    konnectivity.start_agent("agent-a", Some(&network));
    let target = konnectivity.agents[0].process.reader();
    run_local(async {
        // Of the agent's network: its own health port.
        let health = konnectivity.agents[0].health;
        let mut tunnel = open(&konnectivity, health).await;
        network.set_up(false);
        assert_ends(&mut tunnel).await;
        konnectivity.wait_for_agents(0);
        eventually("the agent to notice", || {
            let log = target();
            if log.contains("does not answer a ping") { Ok(()) } else { Err(log) }
        });
        network.set_up(true);
        konnectivity.wait_for_agents(1);
        let mut tunnel = open(&konnectivity, health).await;
        tunnel.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await.unwrap();
        let mut response = String::new();
        timeout(TIMEOUT, tunnel.read_to_string(&mut response)).await.expect("a response").unwrap();
        assert!(response.starts_with("HTTP/1.0 200 ") || response.starts_with("HTTP/1.1 200 "), "{response}");
    });
}
