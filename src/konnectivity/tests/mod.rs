//! A server and an agent of this project together, over in-memory connections.

mod defects;
mod invalid_agents;
mod invalid_packets;
mod invalid_servers;
mod silent_peers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use konnectivity_client::{KonnectivityClient, KonnectivityTunnel, TunnelFailure};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::agent::test_support::{TestAgent, connect_agent, eventually};
use super::server::{ConnectEnd, KonnectivityServer, ProxyStrategy, ServerSettings};
use super::server::{serve_agent_connection, serve_connect_frontend, serve_grpc_frontend};
use crate::egress::{BareName, DestinationPattern};

const WAIT: Duration = Duration::from_secs(20);

struct Setup {
    server: Arc<KonnectivityServer>,
}

impl Setup {
    fn new() -> Setup {
        Setup::with_dial_timeout(None)
    }

    fn with_dial_timeout(dial_timeout: Option<Duration>) -> Setup {
        Setup::with_settings(ServerSettings { dial_timeout, ..Setup::settings() })
    }

    fn settings() -> ServerSettings {
        ServerSettings {
            server_id: "server".to_owned(),
            server_count: 1,
            strategies: vec![ProxyStrategy::DestinationHost, ProxyStrategy::Default],
            dial_timeout: None,
            keepalive: Duration::from_secs(30),
            allow: Vec::new(),
            frontend_keepalive: Duration::from_secs(3600),
        }
    }

    fn with_settings(settings: ServerSettings) -> Setup {
        Setup { server: KonnectivityServer::new(settings, None, Arc::default()) }
    }

    /// Connects an agent.
    async fn agent(&self, id: &str, identifiers: &str) -> TestAgent {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let serving =
            spawn_local(serve_agent_connection(self.server.clone(), theirs, SocketAddr::from(([127, 0, 0, 1], 1))));
        let agent = connect_agent(ours, id, identifiers, serving).await;
        eventually("the agent is listed", || self.server.agents().iter().any(|agent| agent.agent_id == id)).await;
        agent
    }

    /// A connection in HTTP-CONNECT mode, not yet used.
    fn raw_connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        spawn_local(serve_connect_frontend(self.server.clone(), theirs));
        ours
    }

    /// A tunnel in HTTP-CONNECT mode.
    async fn connect(&self, target: SocketAddr) -> DuplexStream {
        let mut stream = self.raw_connect();
        let head = self.request(&mut stream, &target.to_string()).await;
        assert_eq!(head, "HTTP/1.1 200 Connection Established\r\n\r\n");
        stream
    }

    async fn request(&self, stream: &mut DuplexStream, target: &str) -> String {
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(WAIT, stream.read_u8()).await.unwrap().unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// A tunnel in HTTP-CONNECT mode over a Unix socket.
    async fn connect_by_unix_socket(&self, target: SocketAddr) -> UnixStream {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        spawn_local(serve_connect_frontend(self.server.clone(), theirs));
        ours.write_all(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let mut head = [0; 39];
        ours.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 Connection Established\r\n\r\n");
        ours
    }

    /// A client in gRPC mode.
    async fn client(&self) -> KonnectivityClient {
        KonnectivityClient::connect(self.grpc_connection(), "http://localhost").await.unwrap()
    }

    /// A connection in gRPC mode, not yet used.
    fn grpc_connection(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        spawn_local(serve_grpc_frontend(self.server.clone(), theirs));
        ours
    }

    /// A connection of an agent, not yet used.
    fn agent_connection(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        spawn_local(serve_agent_connection(self.server.clone(), theirs, SocketAddr::from(([127, 0, 0, 1], 1))));
        ours
    }

    async fn wait_for_tunnels(&self, expected: usize) {
        eventually(&format!("{expected} tunnels"), || self.server.open_tunnels() == expected).await;
    }
}

async fn tunnel(client: &KonnectivityClient, target: SocketAddr) -> KonnectivityTunnel {
    timeout(WAIT, client.dial(&target.to_string(), WAIT)).await.unwrap().unwrap()
}

/// Serves each connection of a target.
async fn target<F: Future<Output = ()> + 'static>(
    serve: impl Fn(TcpStream) -> F + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = spawn_local(async move {
        while let Ok((socket, _)) = listener.accept().await {
            spawn_local(serve(socket));
        }
    });
    (address, serving)
}

async fn echo_target() -> SocketAddr {
    let echo = async |mut socket: TcpStream| {
        let (mut reader, mut writer) = socket.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        let _ = writer.shutdown().await;
    };
    target(echo).await.0
}

/// What a connection of a target received, and the error of its end.
type ConnectionRecord = (Vec<u8>, Option<io::ErrorKind>);

/// A target that sends `banner`, and reports each of its connections.
async fn recording_target() -> (SocketAddr, UnboundedReceiver<ConnectionRecord>) {
    let (sender, ended) = unbounded_channel();
    let record = move |mut socket: TcpStream| {
        let sender = sender.clone();
        async move {
            socket.write_all(b"banner").await.unwrap();
            let mut received = Vec::new();
            let end = socket.read_to_end(&mut received).await;
            let _ = sender.send((received, end.map_err(|error| error.kind()).err()));
        }
    };
    (target(record).await.0, ended)
}

/// A target that never reads.
async fn stopped_target() -> SocketAddr {
    target(|socket| async move {
        sleep(Duration::from_secs(3600)).await;
        drop(socket);
    })
    .await
    .0
}

async fn check_echo(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let mut answer = [0; 4];
    stream.write_all(b"ping").await.unwrap();
    stream.flush().await.unwrap();
    timeout(WAIT, stream.read_exact(&mut answer)).await.expect("the tunnel is held up").unwrap();
    assert_eq!(&answer, b"ping");
}

/// Writes until nothing more is accepted for half a second.
async fn fill(stream: &mut (impl AsyncWrite + Unpin)) -> usize {
    let (chunk, mut written) = (vec![7; 64 << 10], 0);
    while let Ok(result) = timeout(Duration::from_millis(500), stream.write(&chunk)).await {
        written += result.unwrap();
        assert!(written < 64 << 20, "nothing stops the writer");
    }
    written
}

fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn server_refuses_destinations_that_are_not_allowed() {
    run(async {
        let allow = vec![DestinationPattern::parse("127.0.0.0/8", BareName::Exact).unwrap()];
        let setup = Setup::with_settings(ServerSettings { allow, ..Setup::settings() });
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        let client = setup.client().await;
        check_echo(&mut setup.connect(echo).await).await;
        check_echo(&mut tunnel(&client, echo).await).await;
        for refused in ["192.0.2.1:443", "localhost:443", "127.0.0.1", "[::1]:443"] {
            let mut stream = setup.raw_connect();
            let head = setup.request(&mut stream, refused).await;
            assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{refused}: {head}");
            let error = client.dial(refused, WAIT).await.err().unwrap();
            assert!(error.cause.contains(refused), "{error:?}");
        }
        let failed = &setup.server.report().failed_dials;
        assert!(failed.iter().all(|dial| dial.reason == "refused" && dial.agent_id.is_empty()), "{failed:?}");
        assert!(!failed.is_empty());
    });
}

/// A client must not take what it has got for everything.
#[test]
fn reset_of_a_target_breaks_the_connection_of_the_client() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let partial = target(|mut socket| async move {
            socket.write_all(b"partial").await.unwrap();
            // The client has it.
            socket.read_u8().await.unwrap();
            SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
        });
        let partial = partial.await.0;
        let (mut client, theirs) = tokio::io::duplex(64 << 10);
        let serving = spawn_local(serve_connect_frontend(setup.server.clone(), theirs));
        let head = setup.request(&mut client, &partial.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let mut text = [0; 7];
        client.read_exact(&mut text).await.unwrap();
        client.write_all(b"x").await.unwrap();
        assert_eq!(timeout(WAIT, serving).await.unwrap().unwrap(), ConnectEnd::Broken);
        setup.wait_for_tunnels(0).await;
    });
}

/// A target must not take what it has got for everything. A Unix socket is reset if it is closed while data is unread.
#[test]
fn reset_of_a_client_resets_the_connection_of_its_target() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let (partial, mut ended) = recording_target().await;
        for (is_read, expected) in [(true, None), (false, Some(io::ErrorKind::ConnectionReset))] {
            let mut client = setup.connect_by_unix_socket(partial).await;
            client.write_all(b"partial").await.unwrap();
            let mut banner = [0; 6];
            let read = if is_read { &mut banner[..] } else { &mut banner[..1] };
            timeout(WAIT, client.read_exact(read)).await.unwrap().unwrap();
            drop(client);
            let (received, end) = timeout(WAIT, ended.recv()).await.unwrap().unwrap();
            assert_eq!(end, expected, "{is_read}");
            // What is sent before a reset may be lost.
            assert!(received == b"partial" || !is_read && b"partial".starts_with(&received), "{received:?}");
        }
        setup.wait_for_tunnels(0).await;
    });
}

/// A server that drains must not exit before.
#[test]
fn tunnel_of_a_lost_agent_is_unfinished_until_its_client_has_everything() {
    run(async {
        const LENGTH: usize = 1 << 20;
        let setup = Setup::new();
        let agent = setup.agent("a", "").await;
        let source = target(|mut socket| async move {
            let _ = socket.write_all(&vec![7; LENGTH]).await;
            let _ = socket.read_u8().await;
        });
        let mut client = setup.connect(source.await.0).await;
        eventually("all data at the server", || setup.server.agents()[0].bytes_from_agent >= LENGTH as u64).await;
        drop(agent);
        eventually("no agent", || setup.server.agents().is_empty()).await;
        assert_eq!(setup.server.unfinished(), (0, 1));
        let mut all = vec![0; LENGTH];
        timeout(WAIT, client.read_exact(&mut all)).await.unwrap().unwrap();
        eventually("nothing unfinished", || setup.server.unfinished() == (0, 0)).await;
    });
}

#[test]
fn tunnels_in_both_modes_carry_data_and_errors() {
    run(async {
        let setup = Setup::new();
        let mut stream = setup.raw_connect();
        let head = setup.request(&mut stream, "127.0.0.1:1").await;
        assert!(head.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{head}");
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        check_echo(&mut setup.connect(echo).await).await;
        let client = setup.client().await;
        check_echo(&mut tunnel(&client, echo).await).await;

        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = client.dial(&closed.to_string(), WAIT).await.err().unwrap();
        assert_eq!(error.failure, TunnelFailure::Refused, "{error:?}");
        let mut stream = setup.raw_connect();
        let head = setup.request(&mut stream, &closed.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n"), "{head}");
        let mut body = String::new();
        stream.read_to_string(&mut body).await.unwrap();
        assert_eq!(body, format!("dial tcp {closed}: connect: connection refused"));
        setup.wait_for_tunnels(0).await;
    });
}
