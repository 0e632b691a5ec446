//! Konnectivity servers and agents as processes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use narthex::tls::{Authority, CertificateSpec, Issued};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

pub(crate) use super::ports::free_port;
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually};

/// A process, killed when dropped, and its log shown if the test failed.
pub(crate) struct KonnectivityProcess {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl KonnectivityProcess {
    pub(crate) fn spawn(mut command: Command) -> KonnectivityProcess {
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
        KonnectivityProcess::spawn_with_stdio(command)
    }

    /// The same, with the environment, standard input and output that `command` has.
    pub(crate) fn spawn_with_stdio(mut command: Command) -> KonnectivityProcess {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (errors, kept) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        KonnectivityProcess { child, log }
    }

    pub(crate) fn log_lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) async fn wait_for_log(&self, words: &[&str]) -> String {
        eventually(&format!("the log to say {words:?}"), async || {
            self.log_lines().into_iter().find(|line| words.iter().all(|word| line.contains(word)))
        })
        .await
    }

    /// Resident memory in kB.
    pub(crate) fn resident_kilobytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end of the process. `None` if a signal killed it.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let child = std::cell::RefCell::new(&mut self.child);
        eventually("the end of the process", async || child.borrow_mut().try_wait().unwrap()).await.code()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn descriptor_count(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for KonnectivityProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let lines = self.log_lines();
            eprintln!("--- end of a log ---\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// Names and addresses in the certificate of servers.
const SERVER_NAMES: [&str; 6] = ["localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "konnectivity.test"];

/// A server in one mode.
pub(crate) struct ServerProcess {
    pub(crate) process: KonnectivityProcess,
    /// The frontend.
    pub(crate) socket: PathBuf,
    pub(crate) agent_port: u16,
    pub(crate) admin: u16,
    pub(crate) health: u16,
}

/// The certificates of servers (`konnectivity.crt`) and agents (`agent.crt`).
pub(crate) fn new_environment() -> TestEnvironment {
    let environment = TestEnvironment::new();
    environment.write_pair("konnectivity", &issue_server(&environment.serving_ca));
    environment.write_pair("agent", &issue_agent(&environment.client_ca));
    environment
}

/// A certificate of servers.
pub(crate) fn issue_server(authority: &Authority) -> Issued {
    authority.issue(&server_spec(), SystemTime::now()).unwrap()
}

/// What a certificate of servers is for.
pub(crate) fn server_spec() -> CertificateSpec {
    CertificateSpec::serving(&SERVER_NAMES.map(str::to_owned))
}

/// A certificate of agents.
pub(crate) fn issue_agent(authority: &Authority) -> Issued {
    authority.issue(&CertificateSpec::client("agent", &[]), SystemTime::now()).unwrap()
}

impl ServerProcess {
    /// Starts a server that listens for agents at `address`.
    pub(crate) async fn start_at(
        environment: &TestEnvironment,
        id: &str,
        mode: &str,
        (address, agent_port): (&str, u16),
        more: &[&str],
    ) -> ServerProcess {
        let (health, admin, socket) = (free_port(), free_port(), environment.path(&format!("{id}.sock")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(server_arguments(environment, id, mode, (address, agent_port), (&socket, health, admin)));
        command.args(more);
        let process = KonnectivityProcess::spawn(command);
        process.wait_for_log(&["health and metrics"]).await;
        ServerProcess { process, socket, agent_port, admin, health }
    }

    pub(crate) async fn start(environment: &TestEnvironment, mode: &str) -> ServerProcess {
        ServerProcess::start_at(environment, "server", mode, ("127.0.0.1", free_port()), &[]).await
    }

    /// Waits until `wanted` agents are connected.
    pub(crate) async fn wait_for_agents(&self, wanted: usize) {
        let line = format!("ready_backends{{proxy_strategy=\"default\"}} {wanted}");
        eventually(&format!("{wanted} agents"), async || self.metrics().contains(&line).then_some(())).await;
    }

    /// Whether an agent is connected that the first strategy may choose.
    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz").ends_with("ok")
    }

    pub(crate) fn metrics(&self) -> String {
        self.get("/metrics")
    }

    /// The response of its health port.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut response = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", self.health)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        stream.read_to_string(&mut response).unwrap();
        response
    }
}

/// Arguments of a server that listens for agents at `address` and for clients at `socket`.
pub(crate) fn server_arguments(
    environment: &TestEnvironment,
    id: &str,
    mode: &str,
    (address, agent_port): (&str, u16),
    (socket, health, admin): (&Path, u16, u16),
) -> Vec<String> {
    let file = |name: &str| environment.path(name).display().to_string();
    vec![
        "konnectivity-server".to_owned(),
        format!("--mode={mode}"),
        format!("--uds-name={}", socket.display()),
        "--server-port=0".to_owned(),
        format!("--cluster-cert={}", file("konnectivity.crt")),
        format!("--cluster-key={}", file("konnectivity.key")),
        format!("--cluster-ca-cert={}", file("client-ca.crt")),
        format!("--agent-port={agent_port}"),
        format!("--agent-bind-address={address}"),
        format!("--health-port={health}"),
        "--health-bind-address=127.0.0.1".to_owned(),
        format!("--admin-port={admin}"),
        format!("--server-id={id}"),
    ]
}

/// Flags of a server whose agents have tokens of `kube-system/konnectivity-agent`, which `reviewer.kubeconfig` reviews.
pub(crate) fn token_flags(environment: &TestEnvironment) -> [String; 5] {
    [
        "--cluster-ca-cert=".to_owned(),
        "--agent-namespace=kube-system".to_owned(),
        "--agent-service-account=konnectivity-agent".to_owned(),
        "--authentication-audience=konnectivity".to_owned(),
        format!("--kubeconfig={}", environment.path("reviewer.kubeconfig").display()),
    ]
}

/// Arguments of an agent for the servers at `hosts`.
pub(crate) fn agent_arguments(environment: &TestEnvironment, id: &str, hosts: &str, port: u16) -> Vec<String> {
    let file = |name: &str| environment.path(name).display().to_string();
    vec![
        "konnectivity-agent".to_owned(),
        format!("--proxy-server-host={hosts}"),
        format!("--proxy-server-port={port}"),
        format!("--ca-cert={}", file("serving-ca.crt")),
        format!("--agent-cert={}", file("agent.crt")),
        format!("--agent-key={}", file("agent.key")),
        "--health-server-host=127.0.0.1".to_owned(),
        format!("--health-server-port={}", free_port()),
        format!("--admin-server-port={}", free_port()),
        format!("--agent-id={id}"),
    ]
}

pub(crate) fn start_agent(environment: &TestEnvironment, id: &str, hosts: &str, port: u16) -> KonnectivityProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(agent_arguments(environment, id, hosts, port));
    KonnectivityProcess::spawn(command)
}

/// An agent of one server, and its ports.
pub(crate) struct AgentProcess {
    pub(crate) process: KonnectivityProcess,
    pub(crate) admin: u16,
    pub(crate) health: u16,
}

impl AgentProcess {
    /// Starts an agent for the server whose port for agents is `server_port`.
    pub(crate) fn start(environment: &TestEnvironment, id: &str, server_port: u16, more: &[&str]) -> AgentProcess {
        let arguments = agent_arguments(environment, id, "127.0.0.1", server_port);
        let port = |flag: &str| arguments.iter().find_map(|one| one.strip_prefix(flag)?.parse().ok()).unwrap();
        let (admin, health) = (port("--admin-server-port="), port("--health-server-port="));
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(&arguments).args(more);
        AgentProcess { process: KonnectivityProcess::spawn(command), admin, health }
    }
}

/// A target that echoes; its port.
pub(crate) fn start_echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut from = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut from, &mut stream);
            });
        }
    });
    port
}

/// Opens a tunnel to `port` at a frontend in mode `http-connect`, and sends a word through it.
pub(crate) async fn check_connect(socket: &Path, port: u16) {
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        stream.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nping").as_bytes()).await.unwrap();
        let mut response = [0; 43];
        stream.read_exact(&mut response).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 200 Connection Established\r\n\r\nping");
    };
    timeout(TEST_TIMEOUT, exchange).await.expect("another client to be served");
}

/// Opens a tunnel to `port` at a frontend in mode `grpc`, and sends a word through it.
pub(crate) async fn check_call(socket: &Path, port: u16) {
    let socket = socket.to_owned();
    let exchange = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let stream = UnixStream::connect(socket).await.unwrap();
            let client = konnectivity_client::KonnectivityClient::connect(stream, "localhost");
            let client = client.await.unwrap();
            let mut tunnel = client.dial(&format!("127.0.0.1:{port}"), TEST_TIMEOUT).await.unwrap();
            tunnel.write_all(b"ping").await.unwrap();
            let mut answer = [0; 4];
            tunnel.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"ping");
        });
    });
    timeout(TEST_TIMEOUT, exchange).await.expect("another client to be served").unwrap();
}
