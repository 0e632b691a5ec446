//! Konnectivity server and agent under a service manager, which is the test.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use super::fixture::{
    KonnectivityProcess, agent_arguments, check_connect, free_port, new_environment, server_arguments, start_echo,
};
use crate::observability::systemd::{NotifySocket, program_with_sockets};

#[tokio::test]
async fn konnectivity_server_takes_inherited_sockets_and_both_notify() {
    let environment = new_environment();
    let manager = NotifySocket::bind(&environment);
    let path = environment.path("frontend.sock");
    let frontend = UnixListener::bind(&path).unwrap();
    let agents = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = agents.local_addr().unwrap().port();
    let sockets = [("uds-name", frontend.try_clone().unwrap().into()), ("agent-port", agents.into())];
    let (mut server, env_vars) = program_with_sockets(sockets);
    let unused = ("127.0.0.1", free_port());
    server.env_clear().envs(env_vars).env("NOTIFY_SOCKET", &manager.address);
    server.args(server_arguments(
        &environment,
        "server",
        "http-connect",
        unused,
        (&environment.path("none.sock"), free_port(), free_port()),
    ));
    let server = KonnectivityProcess::spawn_with_stdio(server);
    manager.wait_for("READY=1");

    let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_narthex"));
    agent.args(agent_arguments(&environment, "agent", "127.0.0.1", port));
    agent.env_clear().env("NOTIFY_SOCKET", &manager.address).env("WATCHDOG_USEC", "200000");
    let agent = KonnectivityProcess::spawn_with_stdio(agent);
    manager.wait_for("READY=1");
    manager.wait_for("WATCHDOG=1");
    server.wait_for_log(&["agent connected"]).await;
    check_connect(&path, start_echo()).await;

    for process in [agent, server] {
        process.signal("TERM");
        manager.wait_for("STOPPING=1");
    }
    assert!(path.exists(), "the service manager made the socket, and removes it");
}
