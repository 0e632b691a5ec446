//! Frontends that connect and say nothing.

use std::os::unix::net::UnixStream;

use crate::konnectivity::fixture::{
    ServerProcess, check_call, check_connect, new_environment, start_agent, start_echo,
};
use crate::support::fixtures::{TestEnvironment, eventually};

const FRONTENDS: u64 = 10_000;
/// Memory of a connection without a request, in bytes.
const MAX_BYTES: u64 = 10 << 10;

async fn open_idle(environment: &TestEnvironment, mode: &str) -> (ServerProcess, Vec<UnixStream>) {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, maximum: limits.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    // The machine may permit fewer.
    let count = limits.maximum.unwrap_or(u64::MAX).saturating_sub(2000).clamp(500, FRONTENDS);
    let server = ServerProcess::start(environment, mode).await;
    let before = server.process.resident_kilobytes();
    let socket = server.socket.clone();
    let idle: Vec<UnixStream> =
        tokio::task::spawn_blocking(move || (0..count).map(|_| UnixStream::connect(&socket).unwrap()).collect())
            .await
            .unwrap();
    eventually("all to be accepted", async || (server.process.descriptor_count() as u64 > count).then_some(())).await;
    let bytes = server.process.resident_kilobytes().saturating_sub(before) * 1024 / count;
    println!("{mode}: {count} silent frontends, {bytes} bytes each");
    assert!(bytes < MAX_BYTES, "{mode}: {bytes} bytes for each silent frontend");
    (server, idle)
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_silent_frontends_hold_little_and_are_disconnected() {
    let environment = new_environment();
    let (server, idle) = open_idle(&environment, "http-connect").await;
    let _agent = start_agent(&environment, "a", "127.0.0.1", server.agent_port);
    server.wait_for_agents(1).await;
    check_connect(&server.socket, start_echo()).await;
    drop(idle);
    let closed = async || (server.process.descriptor_count() < 100).then_some(());
    eventually("their descriptors to be closed", closed).await;
    check_connect(&server.socket, start_echo()).await;
    drop(server);

    let (server, idle) = open_idle(&environment, "grpc").await;
    let _agent = start_agent(&environment, "b", "127.0.0.1", server.agent_port);
    server.wait_for_agents(1).await;
    check_call(&server.socket, start_echo()).await;
    // They miss the handshake timeout; the test still holds its ends.
    let closed = async || (server.process.descriptor_count() < 100).then_some(());
    eventually("the server to close them", closed).await;
    drop(idle);
    check_call(&server.socket, start_echo()).await;
}
