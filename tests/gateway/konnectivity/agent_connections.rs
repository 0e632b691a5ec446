//! How often an agent connects, and what it says when it is refused.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::konnectivity::blackhole::Blackhole;
use crate::konnectivity::fixture::{
    AgentProcess, KonnectivityProcess, ServerProcess, agent_arguments, check_connect, free_port, new_environment,
    start_agent, start_echo,
};
use crate::konnectivity::status::status_json;
use crate::support::fixtures::{TEST_TIMEOUT, eventually};

/// B12: the reason of the server reaches the agent's log.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_b12_refused_agent_says_why() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "http-connect").await;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(agent_arguments(&environment, &"a".repeat(5000), "127.0.0.1", server.agent_port));
    let agent = KonnectivityProcess::spawn(command);
    agent.wait_for_log(&["the agent ID has 5000 bytes, the most are 4096"]).await;
    server.process.wait_for_log(&["agent refused", "5000 bytes"]).await;
}

/// B15: one server is reachable of three, and the agent asks less and less often.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_b15_missing_servers_are_sought_with_back_off() {
    let environment = new_environment();
    let at = ("127.0.0.1", free_port());
    let server = ServerProcess::start_at(&environment, "one", "http-connect", at, &["--server-count=3"]).await;
    let agent = start_agent(&environment, "a", "127.0.0.1", server.agent_port);
    let mut attempts = Vec::new();
    while attempts.len() < 6 {
        let connected = async || {
            let lines = server.process.log_lines();
            (lines.iter().filter(|line| line.contains("agent connected")).count() > attempts.len()).then_some(())
        };
        eventually("another attempt", connected).await;
        attempts.push(Instant::now());
    }
    // A wait is never shorter than its delay: 1 s, then half as much again each time, less 10 %.
    let gap = attempts[5] - attempts[4];
    assert!(gap > Duration::from_secs(3), "the last attempts are {gap:?} apart");
    // The connection that it has is not touched.
    check_connect(&server.socket, start_echo()).await;
    assert!(!agent.log_lines().iter().any(|line| line.contains("broke")));
    server.process.wait_for_log(&["agent disconnected"]).await;
    let log = server.process.log_lines();
    assert!(!log.iter().any(|line| line.contains(" WARN ")), "{log:?}");
}

/// The agent answers a dial that is pending when it is asked to end.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_drain_waits_for_pending_dials() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "http-connect").await;
    let agent = AgentProcess::start(&environment, "a", server.agent_port, &[]);
    server.wait_for_agents(1).await;
    // Its queue is full: a dial takes as long as the agent permits.
    let target = Blackhole::new();
    let mut stream = UnixStream::connect(&server.socket).await.unwrap();
    let request = format!("CONNECT {} HTTP/1.1\r\n\r\n", target.address);
    stream.write_all(request.as_bytes()).await.unwrap();
    // The server counts a dial before the agent has it.
    eventually("the dial", async || (status_json(agent.admin)["pendingDials"] == 1).then_some(())).await;
    agent.process.signal("TERM");
    let mut response = String::new();
    timeout(TEST_TIMEOUT, stream.read_to_string(&mut response)).await.expect("an answer").unwrap();
    assert!(response.starts_with("HTTP/1.1 504 ") && response.ends_with("i/o timeout"), "{response}");
    server.wait_for_agents(0).await;
}
