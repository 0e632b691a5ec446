//! A server and an agent of this project together, over in-memory connections: each defect of the reference (B1 to B14
//! of its analysis) must not occur.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::agent::test_support::{TestAgent, connect_agent};
use super::server::{KonnectivityServer, ProxyStrategy, ServerSettings, serve_agent_connection};
use super::server::{serve_connect_frontend, serve_grpc_frontend};
use crate::egress::proxy::konnectivity::{KonnectivityClient, KonnectivityTunnel, TunnelFailure};

const WAIT: Duration = Duration::from_secs(20);

struct Setup {
    server: Arc<KonnectivityServer>,
}

impl Setup {
    fn new() -> Setup {
        Setup::with_dial_timeout(None)
    }

    fn with_dial_timeout(dial_timeout: Option<Duration>) -> Setup {
        let settings = ServerSettings {
            server_id: "server".to_owned(),
            server_count: 1,
            strategies: vec![ProxyStrategy::DestinationHost, ProxyStrategy::Default],
            dial_timeout,
            keepalive: Duration::from_secs(30),
            frontend_keepalive: Duration::from_secs(3600),
        };
        Setup { server: KonnectivityServer::new(settings, None, Arc::default()) }
    }

    /// Connects an agent.
    async fn agent(&self, id: &str, identifiers: &str) -> TestAgent {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let serving =
            spawn_local(serve_agent_connection(self.server.clone(), theirs, SocketAddr::from(([127, 0, 0, 1], 1))));
        let agent = connect_agent(ours, id, identifiers, serving).await;
        let deadline = Instant::now() + WAIT;
        while !self.server.agents().iter().any(|agent| agent.agent_id == id) {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(1)).await;
        }
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
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        spawn_local(serve_grpc_frontend(self.server.clone(), theirs));
        KonnectivityClient::connect(ours, "http://localhost").await.unwrap()
    }

    async fn wait_for_tunnels(&self, expected: usize) {
        let deadline = Instant::now() + WAIT;
        while self.server.open_tunnels() != expected {
            assert!(Instant::now() < deadline, "{} tunnels", self.server.open_tunnels());
            sleep(Duration::from_millis(1)).await;
        }
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

#[test]
fn b1_stopped_target_holds_up_no_other_tunnel() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let (echo, stopped) = (echo_target().await, stopped_target().await);
        let mut other = setup.connect(echo).await;
        let mut stalled = setup.connect_by_unix_socket(stopped).await;
        let client = setup.client().await;
        let mut stalled_call = tunnel(&client, stopped).await;
        assert!(fill(&mut stalled).await > 1 << 20);
        assert!(fill(&mut stalled_call).await > 1 << 20);
        check_echo(&mut other).await;
        check_echo(&mut setup.connect(echo).await).await;
        check_echo(&mut tunnel(&client, echo).await).await;
        drop(stalled_call);
        drop(stalled);
        drop(other);
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b2_b3_stopped_client_holds_up_no_other_tunnel() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let echo = echo_target().await;
        const LENGTH: usize = 24 << 20;
        let source = target(|mut socket| async move {
            let _ = socket.write_all(&vec![7; LENGTH]).await;
        });
        let source = source.await.0;
        let mut stopped = setup.connect(source).await;
        let client = setup.client().await;
        let mut stopped_call = tunnel(&client, source).await;
        sleep(Duration::from_millis(500)).await;
        check_echo(&mut setup.connect(echo).await).await;
        check_echo(&mut tunnel(&client, echo).await).await;
        // A client that pauses loses nothing.
        sleep(Duration::from_secs(3)).await;
        let mut all = Vec::new();
        timeout(WAIT, stopped.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all.len(), LENGTH);
        all.clear();
        timeout(WAIT, stopped_call.read_to_end(&mut all)).await.unwrap().unwrap();
        assert_eq!(all.len(), LENGTH);
    });
}

#[test]
fn b4_upload_before_close_is_complete() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        const LENGTH: usize = 2 << 20;
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let sink = target(move |mut socket| {
            let sender = sender.clone();
            async move {
                let mut all = Vec::new();
                let _ = socket.read_to_end(&mut all).await;
                let _ = sender.send(all.len());
            }
        });
        let sink = sink.await.0;
        for _ in 0..5 {
            let mut stream = setup.connect(sink).await;
            stream.write_all(&vec![7; LENGTH]).await.unwrap();
            drop(stream);
            assert_eq!(timeout(WAIT, received.recv()).await.unwrap(), Some(LENGTH));
            let client = setup.client().await;
            let mut stream = tunnel(&client, sink).await;
            stream.write_all(&vec![7; LENGTH]).await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
            assert_eq!(timeout(WAIT, received.recv()).await.unwrap(), Some(LENGTH));
        }
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b5_target_that_speaks_first_is_heard() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let banner = target(|mut socket| async move {
            let _ = socket.write_all(b"BANNER").await;
            let _ = socket.read_u8().await;
        });
        let banner = banner.await.0;
        let client = setup.client().await;
        let mut text = [0; 6];
        for _ in 0..100 {
            timeout(WAIT, setup.connect(banner).await.read_exact(&mut text)).await.unwrap().unwrap();
            assert_eq!(&text, b"BANNER");
            timeout(WAIT, tunnel(&client, banner).await.read_exact(&mut text)).await.unwrap().unwrap();
            assert_eq!(&text, b"BANNER");
        }
        setup.wait_for_tunnels(0).await;
    });
}

#[test]
fn b6_half_closed_request_gets_its_response() {
    run(async {
        let setup = Setup::new();
        let _agent = setup.agent("a", "").await;
        let late = target(|mut socket| async move {
            let mut request = Vec::new();
            socket.read_to_end(&mut request).await.unwrap();
            // Longer than any linger.
            sleep(Duration::from_millis(1500)).await;
            socket.write_all(&request).await.unwrap();
        });
        let late = late.await.0;
        let all = (0..20).map(|_| async {
            let mut stream = setup.connect(late).await;
            stream.write_all(b"request").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut response = String::new();
            timeout(WAIT, stream.read_to_string(&mut response)).await.unwrap().unwrap();
            assert_eq!(response, "request");
        });
        futures_util::future::join_all(all).await;
        setup.wait_for_tunnels(0).await;
    });
}

/// An address that accepts no connection: its queue is full.
struct Blackhole {
    address: SocketAddr,
    _listener: socket2::Socket,
    _fillers: Vec<socket2::Socket>,
}

impl Blackhole {
    fn new() -> Blackhole {
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = socket();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let fillers = (0..4).map(|_| {
            let filler = socket();
            filler.set_nonblocking(true).unwrap();
            let _ = filler.connect(&address);
            filler
        });
        let fillers = fillers.collect();
        Blackhole { address: address.as_socket().unwrap(), _listener: listener, _fillers: fillers }
    }
}

#[test]
fn b7_client_that_leaves_during_a_dial_leaves_nothing_behind() {
    run(async {
        let setup = Setup::new();
        let agent = setup.agent("a", "").await;
        let hole = Blackhole::new();
        let mut stream = setup.raw_connect();
        stream.write_all(format!("CONNECT {} HTTP/1.1\r\n\r\n", hole.address).as_bytes()).await.unwrap();
        let deadline = Instant::now() + WAIT;
        while setup.server.agents()[0].pending_dials == 0 {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(1)).await;
        }
        drop(stream);
        while setup.server.agents()[0].pending_dials != 0 {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(1)).await;
        }
        // The connection that the agent makes later is closed.
        let echo = echo_target().await;
        drop(hole);
        check_echo(&mut setup.connect(echo).await).await;
        setup.wait_for_tunnels(0).await;
        agent.wait_for_endpoints(0).await;
    });
}

#[test]
fn b8_pending_dials_fail_at_once_when_the_agent_is_lost() {
    run(async {
        let setup = Setup::new();
        let agent = setup.agent("a", "").await;
        let hole = Blackhole::new();
        let client = setup.client().await;
        let mut stream = setup.raw_connect();
        let (address, server) = (hole.address.to_string(), setup.server.clone());
        let lost = async move {
            while server.agents()[0].pending_dials < 2 {
                sleep(Duration::from_millis(1)).await;
            }
            agent.kill();
        };
        let began = Instant::now();
        let (head, error, ()) = timeout(WAIT, async {
            tokio::join!(setup.request(&mut stream, &address), client.dial(&address, WAIT), lost)
        })
        .await
        .unwrap();
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{head}");
        assert!(error.err().unwrap().cause.contains("the connection to the agent is lost"));
        // The agent would have reported a timeout after five seconds.
        assert!(began.elapsed() < Duration::from_secs(4));
    });
}

#[test]
fn b9_dial_of_a_stopped_agent_times_out() {
    run(async {
        let setup = Setup::with_dial_timeout(Some(Duration::from_millis(200)));
        let _agent = setup.agent("a", "").await;
        let hole = Blackhole::new();
        let mut stream = setup.raw_connect();
        let head = setup.request(&mut stream, &hole.address.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{head}");
        let error = setup.client().await.dial(&hole.address.to_string(), WAIT).await.err().unwrap();
        assert!(error.cause.contains("timed out waiting for backend dial"), "{error:?}");
    });
}

#[test]
fn b14_agents_of_one_id_keep_their_tunnels_apart() {
    run(async {
        let setup = Setup::new();
        let echo = echo_target().await;
        let first = setup.agent("same", "").await;
        let mut by_first = setup.connect(echo).await;
        let _second = setup.agent("same", "host=only.second").await;
        let client = setup.client().await;
        let mut others = Vec::new();
        for _ in 0..8 {
            others.push(tunnel(&client, echo).await);
        }
        check_echo(&mut by_first).await;
        first.kill();
        let mut text = [0; 1];
        assert_eq!(timeout(WAIT, by_first.read(&mut text)).await.unwrap().unwrap(), 0);
        let mut alive = 0;
        for mut other in others {
            other.write_all(b"x").await.ok();
            if timeout(WAIT, other.read_exact(&mut text)).await.unwrap().is_ok() {
                alive += 1;
            }
        }
        assert!(alive > 0, "a tunnel of the second agent ended with the first");
    });
}
