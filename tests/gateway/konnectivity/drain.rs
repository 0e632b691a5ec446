//! Servers and agents that are terminated while they have tunnels and dials.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use konnectivity_client::KonnectivityClient;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::konnectivity::blackhole::Blackhole;
use crate::konnectivity::fixture::{
    AgentProcess, KonnectivityProcess, ServerProcess, check_connect, free_port, new_environment, start_echo,
};
use crate::konnectivity::status::{narthex_status, status_json};
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually};

/// A grace period that no test reaches.
const LONG_GRACE: &str = "--graceful-shutdown-timeout=10m";

async fn start_server(environment: &TestEnvironment, mode: &str, more: &[&str]) -> ServerProcess {
    ServerProcess::start_at(environment, "server", mode, ("127.0.0.1", free_port()), more).await
}

/// Opens a tunnel in HTTP-CONNECT mode.
async fn connect(socket: &Path, port: u16) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let head = request(&mut stream, &format!("127.0.0.1:{port}")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream
}

/// Requests a tunnel; the head of the response.
async fn request(stream: &mut UnixStream, address: &str) -> String {
    stream.write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(TEST_TIMEOUT, stream.read_u8()).await.expect("a response").unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn check_echo(stream: &mut UnixStream) {
    let mut answer = [0; 4];
    stream.write_all(b"ping").await.unwrap();
    timeout(TEST_TIMEOUT, stream.read_exact(&mut answer)).await.expect("the tunnel to go on").unwrap();
}

/// Waits for the end of a tunnel.
async fn wait_for_end(stream: &mut UnixStream) {
    let read = timeout(TEST_TIMEOUT, stream.read(&mut [0; 8])).await.expect("the end of the tunnel");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_server_without_a_grace_period_ends_at_once() {
    let environment = new_environment();
    let mut server = start_server(&environment, "http-connect", &[]).await;
    let _agent = AgentProcess::start(&environment, "a", server.agent_port, &[]);
    server.wait_for_agents(1).await;
    let mut tunnel = connect(&server.socket, start_echo()).await;
    check_echo(&mut tunnel).await;
    server.process.signal("TERM");
    wait_for_end(&mut tunnel).await;
    assert_eq!(server.process.exit_code().await, Some(0));
    server.process.wait_for_log(&["graceful shutdown timeout: open tunnels are aborted", "tunnels=1"]).await;
}

/// Terminates a process with a grace period of `grace` and the open `tunnel`, which it aborts at its end.
async fn check_grace_period(process: &mut KonnectivityProcess, tunnel: &mut UnixStream, log: &[&str]) {
    process.signal("TERM");
    process.wait_for_log(&["shutting down"]).await;
    check_echo(tunnel).await;
    wait_for_end(tunnel).await;
    assert_eq!(process.exit_code().await, Some(0));
    process.wait_for_log(log).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_grace_periods_expire() {
    let environment = new_environment();
    let grace = "--graceful-shutdown-timeout=3s";
    let mut server = start_server(&environment, "http-connect", &[grace]).await;
    let mut agent = AgentProcess::start(&environment, "a", server.agent_port, &[grace]);
    server.wait_for_agents(1).await;
    let echo = start_echo();
    // The agent first: the server goes on.
    let mut tunnel = connect(&server.socket, echo).await;
    let log = ["drain timeout: open connections are aborted", "connections=1"];
    check_grace_period(&mut agent.process, &mut tunnel, &log).await;
    let _agent = AgentProcess::start(&environment, "b", server.agent_port, &[]);
    server.wait_for_agents(1).await;
    let mut tunnel = connect(&server.socket, echo).await;
    let log = ["graceful shutdown timeout: open tunnels are aborted", "tunnels=1"];
    check_grace_period(&mut server.process, &mut tunnel, &log).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_second_signal_ends_the_process_at_once() {
    let environment = new_environment();
    for ends_server in [true, false] {
        let mut server = start_server(&environment, "http-connect", &[LONG_GRACE]).await;
        let mut agent = AgentProcess::start(&environment, "a", server.agent_port, &[LONG_GRACE]);
        server.wait_for_agents(1).await;
        let mut tunnel = connect(&server.socket, start_echo()).await;
        let process = if ends_server { &mut server.process } else { &mut agent.process };
        process.signal("TERM");
        process.wait_for_log(&["shutting down"]).await;
        process.signal("TERM");
        assert_eq!(process.exit_code().await, Some(1));
        process.wait_for_log(&["second signal: ending at once"]).await;
        wait_for_end(&mut tunnel).await;
    }
}

/// A draining server refuses dials, and answers those that it has.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_draining_server_answers_its_dials_and_refuses_others() {
    let environment = new_environment();
    let mut server = start_server(&environment, "http-connect", &[LONG_GRACE, "--backend-dial-timeout=1m"]).await;
    let _agent = AgentProcess::start(&environment, "a", server.agent_port, &[]);
    server.wait_for_agents(1).await;
    let target = Blackhole::new();
    let (mut dialing, mut late) = (
        UnixStream::connect(&server.socket).await.unwrap(),
        // Connected, but without a request before the drain.
        UnixStream::connect(&server.socket).await.unwrap(),
    );
    let dial = tokio::spawn(async move { request(&mut dialing, &target.address.to_string()).await });
    eventually("a pending dial", async || (status_json(server.admin)["agents"][0]["pendingDials"] == 1).then_some(()))
        .await;
    server.process.signal("TERM");
    server.process.wait_for_log(&["shutting down"]).await;
    eventually("readiness to fail", async || {
        let readiness = server.get("/readyz");
        (readiness.contains(" 500 ") && readiness.ends_with("the server is shutting down")).then_some(())
    })
    .await;
    let head = request(&mut late, "127.0.0.1:1").await;
    assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
    eventually("the listener to be closed", async || UnixStream::connect(&server.socket).await.err()).await;
    // The agent's error: it gives a target five seconds.
    let head = dial.await.unwrap();
    assert!(head.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{head}");
    assert_eq!(server.process.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_draining_server_refuses_dials_of_grpc_clients() {
    let environment = new_environment();
    let mut server = start_server(&environment, "grpc", &[LONG_GRACE]).await;
    let _agent = AgentProcess::start(&environment, "a", server.agent_port, &[]);
    server.wait_for_agents(1).await;
    let target = format!("127.0.0.1:{}", start_echo());
    let (socket, process) = (server.socket.clone(), &server.process);
    let exchange = async {
        let stream = UnixStream::connect(socket).await.unwrap();
        let client = KonnectivityClient::connect(stream, "localhost").await.unwrap();
        let mut tunnel = client.dial(&target, TEST_TIMEOUT).await.unwrap();
        process.signal("TERM");
        process.wait_for_log(&["shutting down"]).await;
        let error = client.dial(&target, TEST_TIMEOUT).await.err().unwrap();
        assert!(error.cause.contains("the server is shutting down"), "{error:?}");
        tunnel.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        timeout(TEST_TIMEOUT, tunnel.read_exact(&mut answer)).await.expect("the tunnel to go on").unwrap();
        assert_eq!(&answer, b"ping");
    };
    LocalSet::new().run_until(exchange).await;
    assert_eq!(server.process.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_draining_agent_gets_no_dials_while_there_is_another() {
    let environment = new_environment();
    let server = start_server(&environment, "http-connect", &[]).await;
    let mut leaving = AgentProcess::start(&environment, "leaving", server.agent_port, &[LONG_GRACE]);
    server.wait_for_agents(1).await;
    let echo = start_echo();
    let mut tunnel = connect(&server.socket, echo).await;
    let _staying = AgentProcess::start(&environment, "staying", server.agent_port, &[]);
    server.wait_for_agents(2).await;
    leaving.process.signal("TERM");
    let agent = |id: &str| {
        let report = status_json(server.admin);
        report["agents"].as_array().unwrap().iter().find(|agent| agent["agentId"] == id).cloned().unwrap()
    };
    eventually("the agent to drain", async || (agent("leaving")["draining"] == true).then_some(())).await;
    let mut others = Vec::new();
    for _ in 0..20 {
        others.push(connect(&server.socket, echo).await);
    }
    assert_eq!((&agent("leaving")["tunnels"], &agent("staying")["tunnels"]), (&1.into(), &20.into()));
    check_echo(&mut tunnel).await;
    drop(tunnel);
    assert_eq!(leaving.process.exit_code().await, Some(0));
    // With no other agent, one that drains is better than none.
    drop(others);
    let last = AgentProcess::start(&environment, "last", server.agent_port, &[LONG_GRACE]);
    server.wait_for_agents(2).await;
    drop(_staying);
    server.wait_for_agents(1).await;
    let _tunnel = connect(&server.socket, echo).await;
    last.process.signal("TERM");
    eventually("the agent to drain", async || (agent("last")["draining"] == true).then_some(())).await;
    timeout(Duration::from_secs(30), check_connect(&server.socket, echo)).await.unwrap();
}

/// A rolled server is useful before the last tunnel of the old one has ended.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_connects_to_the_successor_of_a_draining_server() {
    let environment = new_environment();
    let mut draining = start_server(&environment, "http-connect", &[LONG_GRACE]).await;
    let mut agent = AgentProcess::start(&environment, "a", draining.agent_port, &[LONG_GRACE]);
    draining.wait_for_agents(1).await;
    let echo = start_echo();
    let mut tunnel = connect(&draining.socket, echo).await;
    draining.process.signal("TERM");
    agent.process.wait_for_log(&["server drains; connecting to its successor", "server=\"server\""]).await;
    eventually("the port to be free", async || TcpStream::connect(("127.0.0.1", draining.agent_port)).err()).await;
    let (text, is_ok) = narthex_status(agent.admin, &["--fail"]);
    assert!(text.starts_with("all connected servers are draining") && !is_ok, "{text}");
    // The same id, address and socket.
    let address = ("127.0.0.1", draining.agent_port);
    let successor = ServerProcess::start_at(&environment, "server", "http-connect", address, &[]).await;
    successor.wait_for_agents(1).await;
    eventually("the status of the agent", async || {
        let (text, is_ok) = narthex_status(agent.admin, &["--fail"]);
        (text.starts_with("OK: 1 server, 1 tunnel; 1 server draining\n") && is_ok).then_some(())
    })
    .await;
    let servers = status_json(agent.admin)["servers"].clone();
    assert_eq!([&servers[0]["draining"], &servers[1]["draining"]], [true, false], "{servers}");
    let mut other = connect(&successor.socket, echo).await;
    check_echo(&mut tunnel).await;
    drop(tunnel);
    assert_eq!(draining.process.exit_code().await, Some(0));
    draining.process.wait_for_log(&["agent disconnected"]).await;
    let log = draining.process.log_lines();
    assert!(!log.iter().any(|line| line.contains(" WARN ")), "{log:?}");
    check_echo(&mut other).await;
    check_connect(&successor.socket, echo).await;
    drop(other);
    agent.process.signal("TERM");
    assert_eq!(agent.process.exit_code().await, Some(0));
}

/// Data of the last tunnel, in bytes: more than the sockets of [`PausedLink`] hold, and less than these and HTTP/2 do. A
/// server's socket holds some 300 KiB, which the kernel sends after the process has ended.
const DOWNLOAD_BYTES: usize = 300 << 10;
const UPLOAD_BYTES: usize = 560 << 10;

/// A link between an agent and a server that carries nothing while it is paused.
struct PausedLink {
    port: u16,
    is_paused: Arc<AtomicBool>,
}

impl PausedLink {
    /// A link to the server's port.
    fn start(server_port: u16) -> PausedLink {
        let small_buffer = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(16 << 10).unwrap();
            // The send buffer of the peer is some segments. That of the loopback would take everything.
            socket.set_tcp_mss(1000).unwrap();
            socket
        };
        let (listener, port) = (small_buffer(), free_port());
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
        listener.listen(8).unwrap();
        let is_paused = Arc::new(AtomicBool::new(false));
        let paused = is_paused.clone();
        std::thread::spawn(move || {
            for agent in TcpListener::from(listener).incoming().map_while(Result::ok) {
                let server = small_buffer();
                server.connect(&SocketAddr::from(([127, 0, 0, 1], server_port)).into()).unwrap();
                let server = TcpStream::from(server);
                let ends = [(agent.try_clone().unwrap(), server.try_clone().unwrap()), (server, agent)];
                for (from, to) in ends {
                    let paused = paused.clone();
                    std::thread::spawn(move || PausedLink::copy(from, to, &paused));
                }
            }
        });
        PausedLink { port, is_paused }
    }

    fn copy(mut from: TcpStream, mut to: TcpStream, paused: &AtomicBool) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            while paused.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Relaxed);
    }
}

/// Lets a process drain while nothing leaves it, and then go on.
async fn drain_behind(link: &PausedLink, process: &mut KonnectivityProcess) {
    process.signal("TERM");
    process.wait_for_log(&["shutting down"]).await;
    // Without data in the process it would have ended by now: it gives its threads a second.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!process.has_ended(), "it leaves the end of the data to the kernel, if that has room for it");
    link.pause(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_draining_agent_sends_the_end_of_the_last_download() {
    let environment = new_environment();
    let server = start_server(&environment, "http-connect", &[]).await;
    let link = PausedLink::start(server.agent_port);
    let mut agent = AgentProcess::start(&environment, "a", link.port, &[LONG_GRACE]);
    server.wait_for_agents(1).await;
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tunnel = connect(&server.socket, target.local_addr().unwrap().port()).await;
    let (mut source, _) = target.accept().unwrap();
    // The other direction is complete, so that the tunnel ends with the download.
    tunnel.shutdown().await.unwrap();
    let mut source = tokio::task::spawn_blocking(move || {
        assert_eq!(source.read(&mut [0]).unwrap(), 0);
        source
    })
    .await
    .unwrap();
    link.pause(true);
    source.write_all(&vec![7; DOWNLOAD_BYTES]).unwrap();
    drop(source);
    drain_behind(&link, &mut agent.process).await;
    let mut received = Vec::new();
    timeout(TEST_TIMEOUT, tunnel.read_to_end(&mut received)).await.expect("the end of the download").unwrap();
    assert_eq!(received.len(), DOWNLOAD_BYTES);
    assert_eq!(agent.process.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_draining_server_sends_the_end_of_the_last_upload() {
    let environment = new_environment();
    let mut server = start_server(&environment, "http-connect", &[LONG_GRACE]).await;
    let link = PausedLink::start(server.agent_port);
    let _agent = AgentProcess::start(&environment, "a", link.port, &[]);
    server.wait_for_agents(1).await;
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tunnel = connect(&server.socket, target.local_addr().unwrap().port()).await;
    let (mut sink, _) = target.accept().unwrap();
    // The other direction is complete, so that the tunnel ends with the upload.
    sink.shutdown(Shutdown::Write).unwrap();
    wait_for_end(&mut tunnel).await;
    link.pause(true);
    timeout(TEST_TIMEOUT, tunnel.write_all(&vec![7; UPLOAD_BYTES])).await.expect("room for the upload").unwrap();
    drop(tunnel);
    drain_behind(&link, &mut server.process).await;
    let received = tokio::task::spawn_blocking(move || {
        let mut received = Vec::new();
        sink.read_to_end(&mut received).map(|_| received.len())
    });
    assert_eq!(received.await.unwrap().unwrap(), UPLOAD_BYTES);
    assert_eq!(server.process.exit_code().await, Some(0));
}
