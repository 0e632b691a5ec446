//! The Unix socket of a server's clients.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use crate::konnectivity::fixture::{KonnectivityProcess, ServerProcess, free_port, new_environment, server_arguments};

/// As with the reference, the file of a process that was killed is replaced, and the group may use the socket.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_server_replaces_the_file_of_its_socket_if_permitted() {
    let environment = new_environment();
    let path = environment.path("server.sock");
    drop(UnixListener::bind(&path).unwrap());
    let flags =
        server_arguments(&environment, "server", "grpc", ("127.0.0.1", free_port()), (&path, free_port(), free_port()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(&flags).arg("--delete-existing-uds-file=false");
    let mut refused = KonnectivityProcess::spawn(command);
    assert_eq!(refused.exit_code().await, Some(1));
    let line = refused.wait_for_log(&["--uds-name"]).await;
    assert!(line.contains("the file exists; remove it, or use --delete-existing-uds-file"), "{line}");
    assert!(path.exists());

    let server = ServerProcess::start(&environment, "grpc").await;
    // A server that cannot bind its ports does not replace the socket of one that serves.
    for (agents, health) in [(server.agent_port, free_port()), (free_port(), server.health)] {
        let flags =
            server_arguments(&environment, "server", "grpc", ("127.0.0.1", agents), (&path, health, free_port()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(&flags);
        let mut refused = KonnectivityProcess::spawn(command);
        assert_eq!(refused.exit_code().await, Some(1));
        UnixStream::connect(&path).unwrap();
    }
    let mode = std::fs::metadata(&server.socket).unwrap().permissions().mode();
    assert_eq!((&server.socket, mode & 0o777), (&path, 0o770));
}
