//! The settings of `narthex konnectivity-server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{
    IGNORED_HELP, LEASE_LABEL, LEASE_NAMESPACE, LOG, LeaseConfig, address, allowed_destinations, check_ignored,
    instance_id, kubeconfig, leases,
};
use crate::config::arguments::{Arguments, CommandFlags};
use crate::config::environment_proxies::environment_proxies;
use crate::config::flag::{Flag, FlagGroup, FlagKind};
use crate::config::observability;
use crate::config::parser::{Diagnostics, FlagParser};
use crate::egress::ProxyEnvironment;
use crate::konnectivity::server::{ProxyStrategy, ServerSettings};
use crate::kubeclient::KubeconfigSource;
use crate::observe::log;
use crate::tls::server::MutualTlsSettings;

static FRONTEND: FlagGroup = FlagGroup {
    heading: "Frontend",
    flags: &[
        Flag::new("mode", FlagKind::Text("MODE"), "grpc", "Protocol of clients: grpc or http-connect"),
        Flag::new(
            "uds-name",
            FlagKind::File,
            "",
            "Unix socket for clients; without it they connect by TCP with mutual TLS",
        ),
        Flag::new(
            "delete-existing-uds-file",
            FlagKind::Switch,
            "true",
            "Remove the file of --uds-name at the start; it may be left from a process that was killed",
        ),
        Flag::new("server-port", FlagKind::Count, "8090", "Port for clients; 0 with --uds-name"),
        Flag::new("server-bind-address", FlagKind::Text("IP"), "", "Address for clients (default: every address)"),
        Flag::new("server-cert", FlagKind::File, "", "Serving certificate for clients. Followed on disk"),
        Flag::new("server-key", FlagKind::File, "", "Its private key. Followed on disk"),
        Flag::new("server-ca-cert", FlagKind::File, "", "CA bundle of client certificates. Followed on disk"),
        Flag::new(
            "allow-destinations",
            FlagKind::List("DESTINATION"),
            "",
            "Destinations that clients may connect to; the list of an agent applies as well: names (a.example), subdomains (*.a.example), addresses and networks (10.0.0.0/8), each with :port or for every port (default: all). A name is compared as clients write it",
        ),
        Flag::new(
            "frontend-keepalive-time",
            FlagKind::Duration,
            "1h",
            "Interval of HTTP/2 pings to clients; a client that does not answer is disconnected",
        ),
    ],
};

static AGENTS: FlagGroup = FlagGroup {
    heading: "Agents",
    flags: &[
        Flag::new("agent-port", FlagKind::Count, "8091", "Port for agents"),
        Flag::new("agent-bind-address", FlagKind::Text("IP"), "", "Address for agents (default: every address)"),
        Flag::new("cluster-cert", FlagKind::File, "", "Serving certificate for agents. Followed on disk"),
        Flag::new("cluster-key", FlagKind::File, "", "Its private key. Followed on disk"),
        Flag::new("cluster-ca-cert", FlagKind::File, "", "CA bundle of the certificates of agents. Followed on disk"),
        Flag::new(
            "agent-namespace",
            FlagKind::Text("NAME"),
            "",
            "Authenticate agents by tokens of a service account in this namespace, instead of certificates",
        ),
        Flag::new("agent-service-account", FlagKind::Text("NAME"), "", "Name of that service account"),
        Flag::new("authentication-audience", FlagKind::Text("AUDIENCE"), "", "Audience of its tokens"),
        Flag::new(
            "kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig of the API server that reviews the tokens and has the Leases (default: the pod's cluster)",
        ),
        Flag::new(
            "keepalive-time",
            FlagKind::Duration,
            "30s",
            "Interval of HTTP/2 pings to agents; an agent that does not answer is disconnected, and its tunnels end (1h in the reference)",
        ),
        Flag::new(
            "proxy-strategies",
            FlagKind::List("STRATEGY"),
            "default",
            "How an agent is found for a destination, first hit wins: destHost (it announces the host), cidr (it announces a network), defaultRoute (it announces the default route), default (any)",
        ),
        Flag::new(
            "backend-dial-timeout",
            FlagKind::Duration,
            "30s",
            "Time for an agent to answer a dial; 0 for no limit, the default of the reference",
        ),
        Flag::new(
            "server-id",
            FlagKind::Text("ID"),
            "",
            "Unique id of this server (default: $PROXY_SERVER_ID, or a random one)",
        ),
        Flag::new(
            "server-count",
            FlagKind::Count,
            "1",
            "Number of servers, told to agents so that they connect to each",
        ),
        Flag::new(
            "enable-lease-controller",
            FlagKind::Switch,
            "false",
            "Publish a Lease of this server, by which agents count servers (--count-server-leases), and delete those of servers that are gone",
        ),
        LEASE_NAMESPACE,
        LEASE_LABEL,
        Flag::new("xfr-channel-size", FlagKind::Count, "10", IGNORED_HELP),
        Flag::new("warn-on-channel-limit", FlagKind::Switch, "false", IGNORED_HELP),
    ],
};

static OPERATION: FlagGroup = FlagGroup {
    heading: "Operation",
    flags: &[
        Flag::new("health-port", FlagKind::Count, "8092", "Port of /healthz, /readyz and /metrics"),
        Flag::new("health-bind-address", FlagKind::Text("IP"), "", "Its address (default: every address)"),
        Flag::new("admin-port", FlagKind::Count, "8095", "Port of the status page, /status.json and /metrics"),
        Flag::new("admin-bind-address", FlagKind::Text("IP"), "127.0.0.1", "Its address"),
        Flag::new(
            "graceful-shutdown-timeout",
            FlagKind::Duration,
            "0s",
            "After SIGTERM no new tunnels are opened, and open ones have this time to finish",
        ),
        Flag::new("tls-min-version", FlagKind::Text("VERSION"), "", "Lowest TLS version: VersionTLS12 or VersionTLS13"),
        Flag::new("cipher-suites", FlagKind::List("NAME"), "", "Cipher suites of TLS 1.2, by Go's names"),
        Flag::new("enable-profiling", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("enable-contention-profiling", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("kubeconfig-qps", FlagKind::Fraction, "0", IGNORED_HELP),
        Flag::new("kubeconfig-burst", FlagKind::Count, "0", IGNORED_HELP),
        Flag::new("kube-api-content-type", FlagKind::Text("TYPE"), "", IGNORED_HELP),
    ],
};

/// The command `narthex konnectivity-server`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KonnectivityServerCommand;

impl CommandFlags for KonnectivityServerCommand {
    const FLAGS: &'static [&'static FlagGroup] = &[&FRONTEND, &AGENTS, &OPERATION, &LOG];
    const KIND: &'static str = "";
}

/// Protocol of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendMode {
    /// One gRPC call is one tunnel.
    Grpc,
    /// One connection is one tunnel, after an HTTP CONNECT request.
    HttpConnect,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendAddress {
    /// A Unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Whether an existing file is removed.
        delete_existing: bool,
    },
    /// TCP with mutual TLS.
    Tcp {
        /// Address to listen on.
        address: SocketAddr,
        /// Certificates.
        tls: MutualTlsSettings,
    },
}

/// The service account of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTokenConfig {
    /// `--agent-namespace`.
    pub namespace: String,
    /// `--agent-service-account`.
    pub service_account: String,
    /// `--authentication-audience`.
    pub audience: String,
    /// `--kubeconfig`, or that of the pod's cluster.
    pub kubeconfig: KubeconfigSource,
}

/// Configuration of the Konnectivity server.
#[derive(Clone, Debug)]
pub struct KonnectivityServerConfig {
    /// Settings of the protocol.
    pub settings: ServerSettings,
    /// Protocol of clients.
    pub mode: FrontendMode,
    /// Where clients connect.
    pub frontend: FrontendAddress,
    /// Where agents connect.
    pub agent_address: SocketAddr,
    /// Service account of agents; none if they have certificates.
    pub agent_tokens: Option<AgentTokenConfig>,
    /// Leases of servers, if this one publishes its own.
    pub leases: Option<LeaseConfig>,
    /// Certificates for agents.
    pub agent_tls: MutualTlsSettings,
    /// Address of health and metrics.
    pub health_address: SocketAddr,
    /// Address of metrics and status.
    pub admin_address: SocketAddr,
    /// `--graceful-shutdown-timeout`.
    pub drain_timeout: Duration,
    /// Proxies of the environment.
    pub environment_proxies: Option<ProxyEnvironment>,
    /// The log.
    pub log: log::Settings,
}

impl Arguments<KonnectivityServerCommand> {
    /// Reads command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (KonnectivityServerConfig, Diagnostics) {
        let mut parser =
            FlagParser::new(&self.raw, KonnectivityServerCommand::FLAGS, KonnectivityServerCommand::KIND, environment);
        let parser_ref = &mut parser;
        let mode = match parser_ref.text("mode").as_str() {
            "grpc" => FrontendMode::Grpc,
            "http-connect" => FrontendMode::HttpConnect,
            other => {
                parser_ref.add_problem(
                    "mode",
                    format_args!("mode must be set to either 'grpc' or 'http-connect' not {other:?}"),
                );
                FrontendMode::Grpc
            }
        };
        let frontend = frontend(parser_ref, mode);
        let agent_tls = mutual_tls(parser_ref, ["--cluster-cert", "--cluster-key", "--cluster-ca-cert"], b"h2");
        let agent_tokens = agent_tokens(parser_ref, agent_tls.client_ca.is_some());
        let settings = ServerSettings {
            server_id: instance_id(parser_ref, "server-id", "PROXY_SERVER_ID"),
            server_count: u32::try_from(parser_ref.positive_count("server-count")).unwrap_or(u32::MAX),
            strategies: strategies(parser_ref),
            dial_timeout: Some(parser_ref.duration("backend-dial-timeout")).filter(|limit| !limit.is_zero()),
            keepalive: parser_ref.duration("keepalive-time"),
            allow: allowed_destinations(parser_ref),
            frontend_keepalive: parser_ref.duration("frontend-keepalive-time"),
        };
        let config = KonnectivityServerConfig {
            settings,
            mode,
            frontend,
            agent_address: address(parser_ref, "agent-bind-address", "agent-port", "agent"),
            agent_tokens,
            leases: leases(parser_ref, "enable-lease-controller"),
            agent_tls,
            health_address: address(parser_ref, "health-bind-address", "health-port", "health"),
            admin_address: address(parser_ref, "admin-bind-address", "admin-port", "admin"),
            drain_timeout: parser_ref.duration("graceful-shutdown-timeout"),
            environment_proxies: environment_proxies(parser_ref),
            log: observability::log_settings(parser_ref),
        };
        check_ignored(parser_ref, KonnectivityServerCommand::FLAGS);
        (config, parser.finish())
    }
}

/// How agents are authenticated. Both ways at once would be less than either.
fn agent_tokens(parser: &mut FlagParser<'_>, has_client_ca: bool) -> Option<AgentTokenConfig> {
    const FLAGS: [&str; 3] = ["agent-namespace", "agent-service-account", "authentication-audience"];
    let [namespace, service_account, audience] = FLAGS.map(|flag| parser.text(flag));
    let kubeconfig = kubeconfig(parser);
    let is_given = [&namespace, &service_account, &audience].iter().any(|value| !value.is_empty());
    if !is_given {
        if !has_client_ca {
            parser.add_problem(
                "cluster-ca-cert",
                "required, unless --agent-service-account is given: otherwise everyone who reaches --agent-port could take the connections of clients",
            );
        }
        return None;
    }
    if has_client_ca {
        parser.add_problem("cluster-ca-cert", "--cluster-ca-cert can not be used when agent authentication is enabled");
    }
    for (flag, value) in FLAGS.into_iter().zip([&namespace, &service_account, &audience]) {
        if value.is_empty() {
            parser.add_problem(flag, format_args!("--{flag} cannot be empty when agent authentication is enabled"));
        }
    }
    Some(AgentTokenConfig { namespace, service_account, audience, kubeconfig })
}

fn frontend(parser: &mut FlagParser<'_>, mode: FrontendMode) -> FrontendAddress {
    let delete_existing = parser.switch("delete-existing-uds-file");
    let path = parser.path("uds-name");
    let alpn: &'static [u8] = if mode == FrontendMode::Grpc { b"h2" } else { b"http/1.1" };
    let port_given = parser.is_given("server-port");
    let bind = address(parser, "server-bind-address", "server-port", "server");
    let files = ["--server-cert", "--server-key", "--server-ca-cert"];
    match path {
        Some(path) => {
            if port_given && bind.port() != 0 {
                let port = bind.port();
                parser.add_problem("server-port", format_args!("server port should be set to 0 not {port} for UDS"));
            }
            for (flag, what) in files.map(flag_name).into_iter().zip(["cert", "key", "ca cert"]) {
                if parser.path(flag).is_some() {
                    parser.add_problem(flag, format_args!("server {what} should not be set for UDS"));
                }
            }
            FrontendAddress::Unix { path, delete_existing }
        }
        None => {
            let tls = mutual_tls(parser, files, alpn);
            if tls.client_ca.is_none() {
                parser.add_problem(
                    "server-ca-cert",
                    "server ca cert must be set when in TCP mode (uds-name is empty): otherwise everyone who reaches the port could open tunnels",
                );
            }
            FrontendAddress::Tcp { address: bind, tls }
        }
    }
}

/// The settings by the flags of the certificate, its key, and the CA bundle.
fn mutual_tls(parser: &mut FlagParser<'_>, flags: [&'static str; 3], alpn: &'static [u8]) -> MutualTlsSettings {
    let [certificate, key, ca] = flags.map(flag_name);
    let pair = parser.key_pair_files(certificate, key);
    if pair.is_none() && !parser.is_given(certificate) && !parser.is_given(key) {
        parser.add_problem(certificate, format_args!("required, with --{key}: the certificate of this listener"));
    }
    MutualTlsSettings {
        pair: pair.unwrap_or_else(|| crate::tls::PairFiles::new("", "")),
        client_ca: parser.path(ca),
        flags: [flags[0], flags[2]],
        alpn,
        min_version: parser.text("tls-min-version"),
        cipher_suites: parser.list("cipher-suites"),
    }
}

fn flag_name(flag: &'static str) -> &'static str {
    flag.trim_start_matches("--")
}

fn strategies(parser: &mut FlagParser<'_>) -> Vec<ProxyStrategy> {
    const FLAG: &str = "proxy-strategies";
    let mut strategies = Vec::new();
    for name in parser.list(FLAG) {
        match ProxyStrategy::parse(name.trim()) {
            Ok(strategy) => strategies.push(strategy),
            Err(why) => parser.add_problem(FLAG, why),
        }
    }
    if strategies.is_empty() {
        parser.add_problem(FLAG, "proxy strategies cannot be empty");
    }
    strategies
}
