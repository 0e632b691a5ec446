//! The real Konnectivity server and agents, and how to reach what lies behind them.

use std::path::{Path, PathBuf};

use narthex::egress::proxy::konnectivity::KonnectivityClient;
use tokio::net::{TcpStream, UnixStream};

use super::certificates::{Authority, Identity};
use super::cluster::Cluster;
use super::http::{plain_get, tls};
use super::network::{self, Network};
use super::process::Process;
use super::{eventually, free_port, kubeconfig, peer};

const READY: &str = "konnectivity_network_proxy_server_ready_backends";

/// What the server speaks to us, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    GrpcUnix,
    GrpcTls,
    ConnectUnix,
    ConnectTls,
}

impl Front {
    pub(crate) fn is_unix(self) -> bool {
        matches!(self, Front::GrpcUnix | Front::ConnectUnix)
    }

    fn mode(self) -> &'static str {
        match self {
            Front::GrpcUnix | Front::GrpcTls => "grpc",
            Front::ConnectUnix | Front::ConnectTls => "http-connect",
        }
    }
}

/// Where the Kubernetes task puts the agent's service account, and whom its tokens are for.
pub(crate) const AGENT_NAMESPACE: &str = "kube-system";
pub(crate) const AGENT: &str = "konnectivity-agent";
pub(crate) const AUDIENCE: &str = "system:konnectivity-server";

/// Agents are known by their service account: who asks kube-apiserver about it, and the token they show.
pub(crate) struct Tokens {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) token: PathBuf,
}

impl Tokens {
    /// As the Kubernetes task "Set up Konnectivity service" makes them.
    pub(crate) fn make(cluster: &Cluster, directory: &Path) -> Tokens {
        let (door, admin) = (&cluster.door, cluster.admin());
        let binding = serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": AUDIENCE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": AUDIENCE}],
        });
        door.create(admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
        let accounts = format!("/api/v1/namespaces/{AGENT_NAMESPACE}/serviceaccounts");
        let account = serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT}});
        door.create(admin, &accounts, &account);
        let request = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": 3600},
        });
        let (path, headers) = (format!("{accounts}/{AGENT}/token"), [("content-type", "application/json")]);
        let answer = door.send(Some(admin), "POST", &path, &headers, request.to_string().as_bytes()).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
        let token = directory.join("agent.token");
        std::fs::write(&token, answer.json()["status"]["token"].as_str().unwrap()).unwrap();
        let identity = cluster.authorities.client.client("konnectivity-asks", AUDIENCE, &[], None);
        let kubeconfig = kubeconfig::write(directory, "konnectivity", &door.url(), &door.authority, Some(&identity));
        Tokens { kubeconfig, token }
    }
}

/// A running server and its agents.
pub(crate) struct Konnectivity {
    pub(crate) server: Process,
    pub(crate) agents: Vec<Agent>,
    pub(crate) front: Front,
    /// Where the server listens for us, by the front it has.
    pub(crate) socket: PathBuf,
    pub(crate) port: u16,
    /// Who may speak to it over TCP, and whom its certificate is signed by.
    pub(crate) client: Identity,
    pub(crate) front_authority: PathBuf,
    cluster_authority: Authority,
    tokens: Option<Tokens>,
    arguments: Vec<String>,
    agent_port: u16,
    health: u16,
    directory: PathBuf,
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) process: Process,
    health: u16,
}

impl Konnectivity {
    /// A server without agents, which knows agents by their certificates.
    pub(crate) fn start(directory: &Path, front: Front) -> Konnectivity {
        Konnectivity::start_with(directory, front, None)
    }

    /// A server that knows agents by what is given here, or else by their certificates.
    pub(crate) fn start_with(directory: &Path, front: Front, tokens: Option<Tokens>) -> Konnectivity {
        let certificates = directory.join("konnectivity-certificates");
        std::fs::create_dir_all(&certificates).unwrap();
        let front_authority = Authority::new("front", &certificates);
        let cluster_authority = Authority::new("konnectivity", &certificates);
        let hosts: Vec<String> = (0..network::MOST).map(network::host_address).collect();
        let names: Vec<&str> = ["127.0.0.1", "localhost"].into_iter().chain(hosts.iter().map(String::as_str)).collect();
        let front_server = front_authority.server("front-server", &names);
        let cluster_server = cluster_authority.server("konnectivity-server", &names);
        let client = front_authority.client("gateway", "gateway", &[], None);
        let (port, agent_port, health) = (free_port(), free_port(), free_port());
        // A socket's path has to be short.
        let socket = tempfile::Builder::new().prefix("konnectivity-").tempdir().unwrap().keep().join("front.sock");
        let mut arguments = vec![
            format!("--mode={}", front.mode()),
            format!("--cluster-cert={}", cluster_server.certificate.display()),
            format!("--cluster-key={}", cluster_server.key.display()),
            format!("--agent-port={agent_port}"),
            "--agent-bind-address=0.0.0.0".to_owned(),
            format!("--health-port={health}"),
            "--health-bind-address=127.0.0.1".to_owned(),
            format!("--admin-port={}", free_port()),
            "--admin-bind-address=127.0.0.1".to_owned(),
            "--server-id=server".to_owned(),
            "--server-count=1".to_owned(),
            "--v=0".to_owned(),
        ];
        match &tokens {
            None => arguments.push(format!("--cluster-ca-cert={}", cluster_authority.file.display())),
            Some(tokens) => arguments.extend([
                format!("--agent-namespace={AGENT_NAMESPACE}"),
                format!("--agent-service-account={AGENT}"),
                format!("--authentication-audience={AUDIENCE}"),
                format!("--kubeconfig={}", tokens.kubeconfig.display()),
            ]),
        }
        if front.is_unix() {
            arguments.extend([format!("--uds-name={}", socket.display()), "--server-port=0".to_owned()]);
        } else {
            arguments.extend([
                format!("--server-port={port}"),
                "--server-bind-address=127.0.0.1".to_owned(),
                format!("--server-cert={}", front_server.certificate.display()),
                format!("--server-key={}", front_server.key.display()),
                format!("--server-ca-cert={}", front_authority.file.display()),
            ]);
        }
        let mut konnectivity = Konnectivity {
            server: Process::start("konnectivity-server", &peer("konnectivity-server"), &arguments, directory),
            agents: Vec::new(),
            front,
            socket,
            port,
            client,
            front_authority: front_authority.file,
            cluster_authority,
            tokens,
            arguments,
            agent_port,
            health,
            directory: directory.to_owned(),
        };
        konnectivity.wait_until_it_listens();
        konnectivity
    }

    /// A server with one agent that is ready.
    pub(crate) fn with_agent(directory: &Path, front: Front) -> Konnectivity {
        let mut konnectivity = Konnectivity::start(directory, front);
        konnectivity.start_agent("agent-a", None);
        konnectivity
    }

    fn wait_until_it_listens(&mut self) {
        let Konnectivity { server, health, .. } = self;
        server.wait_until(|| plain_get(*health, "/healthz").map(drop));
    }

    /// Starts an agent, in a network of its own if one is named, and waits until it is connected.
    pub(crate) fn start_agent(&mut self, name: &str, network: Option<&Network>) -> &mut Agent {
        let health = free_port();
        let host = network.map_or("127.0.0.1", |network| &network.host);
        let mut arguments = vec![
            format!("--ca-cert={}", self.cluster_authority.file.display()),
            format!("--proxy-server-host={host}"),
            format!("--proxy-server-port={}", self.agent_port),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={health}"),
            "--admin-bind-address=127.0.0.1".to_owned(),
            format!("--admin-server-port={}", free_port()),
            format!("--agent-id={name}"),
            "--v=0".to_owned(),
        ];
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
        let before = self.count(READY);
        let program = peer("konnectivity-agent");
        let process = match network {
            None => Process::start(name, &program, arguments, &self.directory),
            Some(network) => network.start(name, &program, arguments, &self.directory),
        };
        self.agents.push(Agent { process, health });
        eventually(&format!("{name} being connected"), || {
            let now = self.count(READY);
            if now > before { Ok(()) } else { Err(format!("{now} agents")) }
        });
        self.agents.last_mut().unwrap()
    }

    /// The same server again, after it was killed.
    pub(crate) fn start_again(&mut self) {
        let program = peer("konnectivity-server");
        self.server = Process::start("konnectivity-server", &program, &self.arguments, &self.directory);
        self.wait_until_it_listens();
    }

    /// A client of ours, within a `LocalSet`. Only for the fronts that speak gRPC.
    pub(crate) async fn client(&self) -> KonnectivityClient {
        if self.front.is_unix() {
            return KonnectivityClient::connect(UnixStream::connect(&self.socket).await.unwrap(), "localhost")
                .await
                .unwrap();
        }
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let stream = tls(stream, &self.front_authority, Some(&self.client), b"h2").await.unwrap();
        KonnectivityClient::connect(stream, &format!("https://127.0.0.1:{}", self.port)).await.unwrap()
    }

    /// Waits until as many agents are connected.
    pub(crate) fn wait_for_agents(&self, wanted: usize) {
        eventually("agents being connected", || {
            let now = self.count(READY);
            if now == wanted as f64 { Ok(()) } else { Err(format!("{now} agents")) }
        });
    }

    /// The sum of a metric's series, as the server has it; 0 if it has none.
    pub(crate) fn count(&self, metric: &str) -> f64 {
        sum(&plain_get(self.health, "/metrics").unwrap(), metric)
    }

    /// Connections the server believes to be open.
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
    /// The sum of a metric's series, as the agent has it.
    pub(crate) fn count(&self, metric: &str) -> f64 {
        sum(&plain_get(self.health, "/metrics").unwrap(), metric)
    }
}

fn sum(metrics: &str, name: &str) -> f64 {
    let series = metrics.lines().filter(|line| line.starts_with(name));
    let values = series.filter(|line| line[name.len()..].starts_with(['{', ' ']));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
