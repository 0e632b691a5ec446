//! The process under a service manager, which is the test: notifications, watchdog, sockets that it passes.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use http::StatusCode;

use crate::support::client::{Client, get, tls_handshake};
use crate::support::fixtures::{GatewayProcess, TEST_TIMEOUT, TestEnvironment};

/// The end of the socket that processes notify.
pub(crate) struct NotifySocket {
    socket: UnixDatagram,
    pub(crate) address: String,
}

impl NotifySocket {
    pub(crate) fn bind(environment: &TestEnvironment) -> NotifySocket {
        let path = environment.path("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        NotifySocket { socket, address: path.display().to_string() }
    }

    /// Waits for a notification with `field`, and returns all of its fields.
    pub(crate) fn wait_for(&self, field: &str) -> Vec<String> {
        let mut datagram = [0; 1000];
        loop {
            let length = self.socket.recv(&mut datagram).unwrap_or_else(|error| panic!("no {field}: {error}"));
            let fields: Vec<String> =
                std::str::from_utf8(&datagram[..length]).unwrap().lines().map(str::to_owned).collect();
            if fields.iter().any(|found| found == field) {
                return fields;
            }
        }
    }
}

/// The program, with two sockets of these names: a shell moves them to where a service manager passes them.
pub(crate) fn program_with_sockets(sockets: [(&str, OwnedFd); 2]) -> (Command, [(&'static str, String); 2]) {
    let [(first_name, first), (second_name, second)] = sockets;
    let mut program = Command::new("/bin/sh");
    let line = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ exec \"$0\" \"$@\"";
    program.args(["-c", line, env!("CARGO_BIN_EXE_narthex")]).stdin(Stdio::from(first)).stdout(Stdio::from(second));
    (program, [("LISTEN_FDS", "2".to_owned()), ("LISTEN_FDNAMES", format!("{first_name}:{second_name}"))])
}

fn start_with_sockets(environment: &TestEnvironment, sockets: [(&str, &TcpListener); 2]) -> GatewayProcess {
    let sockets = sockets.map(|(name, listener)| (name, OwnedFd::from(listener.try_clone().unwrap())));
    let (mut program, env_vars) = program_with_sockets(sockets);
    program.arg("gateway");
    let env_vars = env_vars.each_ref().map(|(name, value)| (*name, value.as_str()));
    GatewayProcess::spawn_with_stdio(program, &environment.gateway_arguments(&[]), &env_vars)
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[tokio::test]
async fn service_manager_is_notified_of_start_life_and_end() {
    let environment = TestEnvironment::new();
    let manager = NotifySocket::bind(&environment);
    let arguments = environment.gateway_arguments(&["--shutdown-delay-duration=5m", "--request-timeout=1m"]);
    let env_vars = [("NOTIFY_SOCKET", manager.address.as_str()), ("WATCHDOG_USEC", "200000")];
    let mut gateway = GatewayProcess::start_with_environment("gateway", &arguments, &env_vars);
    let ready = manager.wait_for("READY=1");
    assert!(ready.contains(&format!("STATUS=Serving at {}", gateway.address)), "{ready:?}");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    gateway.signal("TERM");
    let stopping = manager.wait_for("STOPPING=1");
    assert!(stopping.contains(&"STATUS=Shutting down: running requests are finished".to_owned()), "{stopping:?}");
    // Delay, request timeout, three seconds for what is aborted, and ten.
    assert!(stopping.contains(&"EXTEND_TIMEOUT_USEC=373000000".to_owned()), "{stopping:?}");
    // It lives while it drains, too.
    manager.wait_for("WATCHDOG=1");
    gateway.signal("TERM");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(1), "a second signal ends it at once");
}

#[tokio::test]
async fn watchdog_of_another_process_is_not_fed() {
    let environment = TestEnvironment::new();
    let manager = NotifySocket::bind(&environment);
    let env_vars = [("NOTIFY_SOCKET", manager.address.as_str()), ("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")];
    let mut gateway = GatewayProcess::start_with_environment("gateway", &environment.gateway_arguments(&[]), &env_vars);
    let mut fields = manager.wait_for("READY=1");
    gateway.signal("TERM");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0));
    manager.socket.set_nonblocking(true).unwrap();
    let mut datagram = [0; 1000];
    while let Ok(length) = manager.socket.recv(&mut datagram) {
        fields.extend(std::str::from_utf8(&datagram[..length]).unwrap().lines().map(str::to_owned));
    }
    assert!(fields.contains(&"STOPPING=1".to_owned()) && !fields.contains(&"WATCHDOG=1".to_owned()), "{fields:?}");
}

#[tokio::test]
async fn inherited_sockets_replace_addresses_and_outlive_a_restart() {
    let environment = TestEnvironment::new();
    let (clients, admin) = (listen(), listen());
    let sockets = [("secure-port", &clients), ("admin-address", &admin)];
    let mut first = start_with_sockets(&environment, sockets);
    assert_eq!((first.address, first.admin), (clients.local_addr().unwrap(), admin.local_addr().unwrap()));
    let user = environment.issue_user("jane", &["devs"]);
    let client = Client::http1(&environment, &first, Some(&user)).await;
    assert_eq!(client.send(get("/readyz", &[])).await.unwrap().status(), StatusCode::OK);
    drop(client);
    first.signal("TERM");
    assert_eq!(first.wait_for_exit().await.code(), Some(0));
    // A client that connects now waits for the next process.
    let waiting = tokio::net::TcpStream::connect(first.address).await.unwrap();
    let second = start_with_sockets(&environment, sockets);
    let stream = tls_handshake(&environment, waiting, Some(&user), &["http/1.1"]).await.unwrap();
    let client = Client::from_stream(stream, true).await;
    assert_eq!(client.send(get("/readyz", &[])).await.unwrap().status(), StatusCode::OK);
    assert_eq!(second.address, first.address);
}

#[tokio::test]
async fn inherited_socket_without_its_flag_is_reported() {
    let environment = TestEnvironment::new();
    let (clients, admin) = (listen(), listen());
    let gateway = start_with_sockets(&environment, [("secure", &clients), ("admin-address", &admin)]);
    assert_ne!(gateway.address, clients.local_addr().unwrap());
    assert_eq!(gateway.admin, admin.local_addr().unwrap());
    gateway.wait_for_log(&["inherited sockets are not used", "\"names\":\"secure\""]).await;
}
