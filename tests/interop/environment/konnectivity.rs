//! The real Konnectivity server and agents.

use std::path::{Path, PathBuf};
use std::time::Duration;

use konnectivity_client::KonnectivityClient;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::certificates::{Authority, Identity};
use super::cluster::Cluster;
use super::http::{plain_get, tls};
use super::network::{self, Network};
use super::process::Process;
use super::{eventually, free_port, kubeconfig, peer};

/// Versions before 0.34 have no newer metric.
const READY: &str = "konnectivity_network_proxy_server_ready_backend_connections";

/// Names another version of the reference, which `tests/interop/konnectivity-versions` has built.
const VERSION_VARIABLE: &str = "NARTHEX_KONNECTIVITY_VERSION";

/// Protocol and transport of the server's frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KonnectivityMode {
    GrpcUnix,
    GrpcTls,
    ConnectUnix,
    ConnectTls,
}

impl KonnectivityMode {
    pub(crate) fn is_unix(self) -> bool {
        matches!(self, KonnectivityMode::GrpcUnix | KonnectivityMode::ConnectUnix)
    }

    fn mode_flag(self) -> &'static str {
        match self {
            KonnectivityMode::GrpcUnix | KonnectivityMode::GrpcTls => "grpc",
            KonnectivityMode::ConnectUnix | KonnectivityMode::ConnectTls => "http-connect",
        }
    }
}

/// The programs on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KonnectivityPair {
    /// Whether the server is `narthex konnectivity-server`; the reference otherwise.
    pub(crate) has_own_server: bool,
    /// Whether agents are `narthex konnectivity-agent`.
    pub(crate) has_own_agent: bool,
}

impl KonnectivityPair {
    pub(crate) const REFERENCE: KonnectivityPair = KonnectivityPair { has_own_server: false, has_own_agent: false };

    fn server(self) -> (PathBuf, Option<&'static str>) {
        program(self.has_own_server, "konnectivity-server")
    }

    fn agent(self) -> (PathBuf, Option<&'static str>) {
        program(self.has_own_agent, "konnectivity-agent")
    }

    /// Whether the server answers a CONNECT request with status 200 before the agent has answered the dial. Servers of
    /// the reference did so before 0.34.
    pub(crate) fn answers_before_dial(self) -> bool {
        !self.has_own_server && reference_version().is_some_and(|(major, minor)| (major, minor) < (0, 34))
    }
}

/// Major and minor version of the reference when it is not the one of `tests/interop/peers`.
fn reference_version() -> Option<(u32, u32)> {
    let version = std::env::var(VERSION_VARIABLE).ok()?;
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or_default());
    Some((parts.next()?, parts.next()?))
}

/// A program and its command.
fn program(is_own: bool, name: &'static str) -> (PathBuf, Option<&'static str>) {
    if is_own {
        return (PathBuf::from(env!("CARGO_BIN_EXE_narthex")), Some(name));
    }
    match std::env::var(VERSION_VARIABLE) {
        Ok(version) => (peer(&format!("konnectivity-{version}")).join(name), None),
        Err(_) => (peer(name), None),
    }
}

/// A connection through an agent.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream for S {}

/// Namespace of the agent's service account in the Kubernetes task.
pub(crate) const AGENT_NAMESPACE: &str = "kube-system";
pub(crate) const AGENT: &str = "konnectivity-agent";
pub(crate) const AUDIENCE: &str = "system:konnectivity-server";

/// Authentication of agents by service account tokens: the server's kubeconfig for TokenReviews and the agents'
/// token.
pub(crate) struct Tokens {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) token: PathBuf,
}

impl Tokens {
    /// Creates the objects of the Kubernetes task "Set up Konnectivity service".
    pub(crate) fn make(cluster: &Cluster, directory: &Path) -> Tokens {
        let (endpoint, admin) = (&cluster.endpoint, cluster.admin());
        let binding = serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": AUDIENCE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": AUDIENCE}],
        });
        // Another test may have created the same objects.
        let headers = [("content-type", "application/json")];
        let create = |path: &str, document: &serde_json::Value| {
            let response = endpoint.send(Some(admin), "POST", path, &headers, document.to_string().as_bytes()).unwrap();
            assert!(matches!(response.status.as_u16(), 201 | 409), "{path}: {}", response.text());
        };
        create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
        let accounts = format!("/api/v1/namespaces/{AGENT_NAMESPACE}/serviceaccounts");
        let account = serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT}});
        create(&accounts, &account);
        let request = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": 3600},
        });
        let path = format!("{accounts}/{AGENT}/token");
        let response = endpoint.send(Some(admin), "POST", &path, &headers, request.to_string().as_bytes()).unwrap();
        assert_eq!(response.status, 201, "{}", response.text());
        let token = directory.join("agent.token");
        std::fs::write(&token, response.json()["status"]["token"].as_str().unwrap()).unwrap();
        let identity = cluster.authorities.client.client("konnectivity-asks", AUDIENCE, &[], None);
        let kubeconfig =
            kubeconfig::write(directory, "konnectivity", &endpoint.url(), &endpoint.authority, Some(&identity));
        Tokens { kubeconfig, token }
    }
}

/// A running server and its agents.
pub(crate) struct Konnectivity {
    pub(crate) server: Process,
    pub(crate) agents: Vec<Agent>,
    pub(crate) mode: KonnectivityMode,
    pub(crate) pair: KonnectivityPair,
    /// The frontend's Unix socket or TCP port, by mode.
    pub(crate) socket: PathBuf,
    pub(crate) port: u16,
    /// Client certificate for the TCP frontend, and the CA of the frontend's certificate.
    pub(crate) client: Identity,
    pub(crate) frontend_authority: PathBuf,
    cluster_authority: Authority,
    tokens: Option<Tokens>,
    /// More flags of agents that are started from now on.
    pub(crate) agent_flags: Vec<String>,
    arguments: Vec<String>,
    agent_port: u16,
    pub(crate) health: u16,
    admin: u16,
    directory: PathBuf,
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) process: Process,
    pub(crate) health: u16,
}

impl Agent {
    /// Its metrics.
    pub(crate) fn metrics(&self) -> String {
        plain_get(self.health, "/metrics").unwrap()
    }
}

impl Konnectivity {
    /// Starts a server without agents that authenticates agents by certificates.
    pub(crate) fn start(directory: &Path, mode: KonnectivityMode) -> Konnectivity {
        Konnectivity::start_with(directory, mode, KonnectivityPair::REFERENCE, None)
    }

    /// Starts a server that authenticates agents by `tokens`, or by certificates without.
    pub(crate) fn start_with(
        directory: &Path,
        mode: KonnectivityMode,
        pair: KonnectivityPair,
        tokens: Option<Tokens>,
    ) -> Konnectivity {
        Konnectivity::start_with_flags(directory, mode, pair, tokens, &[])
    }

    /// As [`Konnectivity::start_with`], with more flags of the server.
    pub(crate) fn start_with_flags(
        directory: &Path,
        mode: KonnectivityMode,
        pair: KonnectivityPair,
        tokens: Option<Tokens>,
        flags: &[&str],
    ) -> Konnectivity {
        let certificates = directory.join("konnectivity-certificates");
        std::fs::create_dir_all(&certificates).unwrap();
        let frontend_authority = Authority::new("front", &certificates);
        let cluster_authority = Authority::new("konnectivity", &certificates);
        let hosts: Vec<String> = (0..network::MAX_NETWORKS).map(network::host_address).collect();
        let names: Vec<&str> =
            ["127.0.0.1", "::1", "localhost"].into_iter().chain(hosts.iter().map(String::as_str)).collect();
        let frontend_server = frontend_authority.server("front-server", &names);
        let cluster_server = cluster_authority.server("konnectivity-server", &names);
        let client = frontend_authority.client("gateway", "gateway", &[], None);
        let (port, agent_port, health, admin) = (free_port(), free_port(), free_port(), free_port());
        // The path of a Unix socket is limited to 108 bytes.
        let socket = tempfile::Builder::new().prefix("konnectivity-").tempdir().unwrap().keep().join("front.sock");
        let (program, command) = pair.server();
        let mut arguments: Vec<String> = command.into_iter().map(str::to_owned).collect();
        arguments.extend([
            format!("--mode={}", mode.mode_flag()),
            format!("--cluster-cert={}", cluster_server.certificate.display()),
            format!("--cluster-key={}", cluster_server.key.display()),
            format!("--agent-port={agent_port}"),
            "--agent-bind-address=0.0.0.0".to_owned(),
            format!("--health-port={health}"),
            "--health-bind-address=127.0.0.1".to_owned(),
            format!("--admin-port={admin}"),
            "--admin-bind-address=127.0.0.1".to_owned(),
            "--server-id=server".to_owned(),
            "--server-count=1".to_owned(),
            "--v=0".to_owned(),
        ]);
        if pair.has_own_server || reference_version().is_none_or(|version| version >= (0, 36)) {
            arguments.push("--graceful-shutdown-timeout=30s".to_owned());
        }
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        match &tokens {
            None => arguments.push(format!("--cluster-ca-cert={}", cluster_authority.file.display())),
            Some(tokens) => arguments.extend([
                format!("--agent-namespace={AGENT_NAMESPACE}"),
                format!("--agent-service-account={AGENT}"),
                format!("--authentication-audience={AUDIENCE}"),
                format!("--kubeconfig={}", tokens.kubeconfig.display()),
            ]),
        }
        if mode.is_unix() {
            arguments.extend([format!("--uds-name={}", socket.display()), "--server-port=0".to_owned()]);
        } else {
            arguments.extend([
                format!("--server-port={port}"),
                "--server-bind-address=127.0.0.1".to_owned(),
                format!("--server-cert={}", frontend_server.certificate.display()),
                format!("--server-key={}", frontend_server.key.display()),
                format!("--server-ca-cert={}", frontend_authority.file.display()),
            ]);
        }
        let mut konnectivity = Konnectivity {
            server: Process::start("konnectivity-server", &program, &arguments, directory),
            agents: Vec::new(),
            mode,
            pair,
            socket,
            port,
            client,
            frontend_authority: frontend_authority.file,
            cluster_authority,
            tokens,
            agent_flags: Vec::new(),
            arguments,
            agent_port,
            health,
            admin,
            directory: directory.to_owned(),
        };
        konnectivity.wait_until_it_listens();
        konnectivity
    }

    /// Starts the reference's server with one connected agent.
    pub(crate) fn with_agent(directory: &Path, mode: KonnectivityMode) -> Konnectivity {
        Konnectivity::with_pair(directory, mode, KonnectivityPair::REFERENCE)
    }

    /// Starts a server with one connected agent.
    pub(crate) fn with_pair(directory: &Path, mode: KonnectivityMode, pair: KonnectivityPair) -> Konnectivity {
        let mut konnectivity = Konnectivity::start_with(directory, mode, pair, None);
        konnectivity.start_agent("agent-a", None);
        konnectivity
    }

    fn wait_until_it_listens(&mut self) {
        let Konnectivity { server, health, .. } = self;
        server.wait_until(|| plain_get(*health, "/healthz").map(drop));
    }

    /// Starts an agent, in `network` if given, and waits until it is connected.
    pub(crate) fn start_agent(&mut self, name: &str, network: Option<&Network>) -> &mut Agent {
        let before = self.count(READY);
        self.launch_agent(name, network);
        eventually(&format!("{name} connected"), || {
            let now = self.count(READY);
            if now > before { Ok(()) } else { Err(format!("{now} agents")) }
        });
        self.agents.last_mut().unwrap()
    }

    /// Starts an agent that may not be able to connect.
    pub(crate) fn launch_agent(&mut self, name: &str, network: Option<&Network>) {
        let agent = self.spawn_agent(name, network);
        self.agents.push(agent);
    }

    /// Starts an agent that is not one of `agents`.
    pub(crate) fn spawn_agent(&self, name: &str, network: Option<&Network>) -> Agent {
        let health = free_port();
        let host = network.map_or("127.0.0.1", |network| &network.host);
        let (program, command) = self.pair.agent();
        let mut arguments: Vec<String> = command.into_iter().map(str::to_owned).collect();
        arguments.extend([
            format!("--ca-cert={}", self.cluster_authority.file.display()),
            format!("--proxy-server-host={host}"),
            format!("--proxy-server-port={}", self.agent_port),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={health}"),
            "--admin-bind-address=127.0.0.1".to_owned(),
            format!("--admin-server-port={}", free_port()),
            format!("--agent-id={name}"),
            "--v=0".to_owned(),
        ]);
        arguments.extend(self.agent_flags.iter().cloned());
        match &self.tokens {
            Some(tokens) => arguments.push(format!("--service-account-token-path={}", tokens.token.display())),
            None => {
                let identity = self.cluster_authority.client(name, name, &[], None);
                arguments.extend([
                    format!("--agent-cert={}", identity.certificate.display()),
                    format!("--agent-key={}", identity.key.display()),
                ]);
            }
        }
        let process = match network {
            None => Process::start(name, &program, arguments, &self.directory),
            Some(network) => network.start(name, &program, arguments, &self.directory),
        };
        Agent { process, health }
    }

    /// Starts the server again after it was killed.
    pub(crate) fn restart(&mut self) {
        let (program, _) = self.pair.server();
        self.server = Process::start("konnectivity-server", &program, &self.arguments, &self.directory);
        self.wait_until_it_listens();
    }

    /// Starts another server of the same id and port for agents while the first one drains, which it returns.
    pub(crate) fn start_successor(&mut self) -> Process {
        eventually("the port for agents to be free", || {
            let connected = std::net::TcpStream::connect(("127.0.0.1", self.agent_port));
            connected.map_or(Ok(()), |_| Err("the draining server accepts connections".to_owned()))
        });
        (self.health, self.admin) = (free_port(), free_port());
        self.socket.set_extension("successor");
        let replaced = [
            ("--health-port=", self.health.to_string()),
            ("--admin-port=", self.admin.to_string()),
            ("--uds-name=", self.socket.display().to_string()),
        ];
        for (flag, value) in replaced {
            if let Some(argument) = self.arguments.iter_mut().find(|argument| argument.starts_with(flag)) {
                *argument = format!("{flag}{value}");
            }
        }
        let (program, _) = self.pair.server();
        let successor = Process::start("konnectivity-successor", &program, &self.arguments, &self.directory);
        let draining = std::mem::replace(&mut self.server, successor);
        self.wait_until_it_listens();
        draining
    }

    /// Connects narthex's client, within a `LocalSet`. Only for the gRPC modes.
    pub(crate) async fn client(&self) -> KonnectivityClient {
        if self.mode.is_unix() {
            let stream = UnixStream::connect(&self.socket).await.unwrap();
            return KonnectivityClient::connect(stream, "localhost").await.unwrap();
        }
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let stream = tls(stream, &self.frontend_authority, Some(&self.client), b"h2").await.unwrap();
        KonnectivityClient::connect(stream, &format!("https://127.0.0.1:{}", self.port)).await.unwrap()
    }

    /// Opens a connection to a port of this machine through an agent, as a client of `mode` does. In the CONNECT modes, the
    /// error is the response's head and body.
    pub(crate) async fn connect(&self, port: u16) -> Result<Box<dyn ClientStream>, String> {
        let address = format!("127.0.0.1:{port}");
        let mut stream: Box<dyn ClientStream> = match self.mode {
            KonnectivityMode::GrpcUnix | KonnectivityMode::GrpcTls => {
                let client = self.client().await;
                let tunnel = client.dial(&address, Duration::from_secs(30)).await.map_err(|error| error.to_string())?;
                return Ok(Box::new(tunnel));
            }
            KonnectivityMode::ConnectUnix => Box::new(UnixStream::connect(&self.socket).await.unwrap()),
            KonnectivityMode::ConnectTls => {
                let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
                Box::new(tls(stream, &self.frontend_authority, Some(&self.client), b"http/1.1").await.unwrap())
            }
        };
        let request = format!("CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(error) => return Err(format!("{error} after {:?}", String::from_utf8_lossy(&head))),
            }
        }
        if head.starts_with(b"HTTP/1.1 200 ") {
            return Ok(stream);
        }
        let _ = stream.read_to_end(&mut head).await;
        Err(String::from_utf8_lossy(&head).into_owned())
    }

    /// Waits until `wanted` agents are connected.
    pub(crate) fn wait_for_agents(&self, wanted: usize) {
        eventually("connected agents", || {
            let now = self.count(READY);
            if now == wanted as f64 { Ok(()) } else { Err(format!("{now} agents")) }
        });
    }

    /// Sum of the server's series of a metric; 0 without any.
    pub(crate) fn count(&self, metric: &str) -> f64 {
        // Versions before 0.31 have metrics on the admin port only.
        sum(&plain_get(self.admin, "/metrics").unwrap(), metric)
    }

    /// URL of the server's admin listener.
    pub(crate) fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.admin)
    }

    /// The server's metrics.
    pub(crate) fn metrics(&self) -> String {
        plain_get(self.admin, "/metrics").unwrap()
    }

    /// Open connections by the server's metric.
    pub(crate) fn established(&self) -> f64 {
        self.count("konnectivity_network_proxy_server_established_connections")
    }
}

impl Drop for Konnectivity {
    fn drop(&mut self) {
        if let Some(directory) = self.socket.parent() {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

impl Agent {
    /// Whether the agent is connected to a server.
    pub(crate) fn is_connected(&self) -> bool {
        plain_get(self.health, "/readyz").is_ok()
    }

    /// Sum of the agent's series of a metric.
    pub(crate) fn count(&self, metric: &str) -> f64 {
        sum(&plain_get(self.health, "/metrics").unwrap(), metric)
    }
}

fn sum(metrics: &str, name: &str) -> f64 {
    let series = metrics.lines().filter(|line| line.starts_with(name));
    let values = series.filter(|line| line[name.len()..].starts_with(['{', ' ']));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
