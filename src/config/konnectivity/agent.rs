//! The settings of `narthex konnectivity-agent`.

use std::net::SocketAddr;

use super::{
    IGNORED_HELP, LEASE_LABEL, LEASE_NAMESPACE, LOG, LeaseConfig, address, allowed_destinations, check_ignored,
    instance_id, leases, port,
};
use crate::config::arguments::{Arguments, CommandFlags};
use crate::config::environment_proxies::environment_proxies;
use crate::config::flag::{Flag, FlagGroup, FlagKind};
use crate::config::observability;
use crate::config::parser::{Diagnostics, FlagParser};
use crate::egress::ProxyEnvironment;
use crate::konnectivity::agent::{AgentSettings, ServerAddress, ServerCountSource};
use crate::konnectivity::server::AgentIdentifiers;
use crate::observe::log;

static SERVERS: FlagGroup = FlagGroup {
    heading: "Servers",
    flags: &[
        Flag::new(
            "proxy-server-host",
            FlagKind::List("HOST"),
            "127.0.0.1",
            "Servers to connect to: IP addresses and DNS names. The agent connects to each address of a name, such as that of a headless Service",
        ),
        Flag::new("proxy-server-port", FlagKind::Count, "8091", "Port of the servers"),
        Flag::new(
            "ca-cert",
            FlagKind::File,
            "",
            "CA bundle of the servers' certificates (default: the system's). Followed on disk",
        ),
        Flag::new("agent-cert", FlagKind::File, "", "Client certificate. Followed on disk"),
        Flag::new("agent-key", FlagKind::File, "", "Its private key. Followed on disk"),
        Flag::new("alpn-proto", FlagKind::List("NAME"), "", "Protocols to offer by ALPN, beside h2"),
        Flag::new(
            "service-account-token-path",
            FlagKind::File,
            "",
            "File with a token that authenticates the agent; read for each connection",
        ),
        Flag::new(
            "agent-id",
            FlagKind::Text("ID"),
            "",
            "Unique id of this agent (default: $PROXY_AGENT_ID, or a random one)",
        ),
        Flag::new(
            "agent-identifiers",
            FlagKind::Text("QUERY"),
            "",
            "Destinations that this agent serves, as URL query parameters: ipv4, ipv6, host, cidr, default-route; such as host=node-1&cidr=10.0.0.0/8",
        ),
        Flag::new("sync-interval", FlagKind::Duration, "1s", "Interval of looking for servers without a connection"),
        Flag::new("sync-interval-cap", FlagKind::Duration, "10s", "Limit of the back-off after failures"),
        Flag::new(
            "sync-forever",
            FlagKind::Switch,
            "false",
            "Look for more servers also when as many as known are connected",
        ),
        Flag::new(
            "count-server-leases",
            FlagKind::Switch,
            "false",
            "Count servers by the Leases that they publish (--enable-lease-controller)",
        ),
        LEASE_NAMESPACE,
        LEASE_LABEL,
        Flag::new(
            "server-count-source",
            FlagKind::Text("SOURCE"),
            "default",
            "With --count-server-leases: default counts Leases only, max takes the number that servers tell if it is larger",
        ),
        Flag::new(
            "kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig of the API server that has the Leases (default: the pod's cluster)",
        ),
        Flag::new(
            "keepalive-time",
            FlagKind::Duration,
            "35s",
            "Interval of HTTP/2 pings to servers; a server that does not answer is disconnected (1h in the reference, whose server allows no less than 30s)",
        ),
        Flag::new("probe-interval", FlagKind::Duration, "1s", IGNORED_HELP),
        Flag::new("xfr-channel-size", FlagKind::Count, "150", IGNORED_HELP),
        Flag::new("warn-on-channel-limit", FlagKind::Switch, "false", IGNORED_HELP),
    ],
};

static TARGETS: FlagGroup = FlagGroup {
    heading: "Targets",
    flags: &[Flag::new(
        "allow-destinations",
        FlagKind::List("DESTINATION"),
        "",
        "Destinations that the agent connects to: names (a.example), subdomains (*.a.example), addresses and networks (10.0.0.0/8), each with :port or for every port (default: all). A name is compared before DNS resolution",
    )],
};

static OPERATION: FlagGroup = FlagGroup {
    heading: "Operation",
    flags: &[
        Flag::new(
            "health-server-host",
            FlagKind::Text("IP"),
            "",
            "Address of /healthz, /readyz and /metrics (default: every address)",
        ),
        Flag::new("health-server-port", FlagKind::Count, "8093", "Its port"),
        Flag::new(
            "admin-bind-address",
            FlagKind::Text("IP"),
            "127.0.0.1",
            "Address of the admin listener, which has the status page",
        ),
        Flag::new("admin-server-port", FlagKind::Count, "8094", "Its port"),
        Flag::new(
            "graceful-shutdown-timeout",
            FlagKind::Duration,
            "30s",
            "After SIGTERM servers prefer other agents, and open connections have this time to finish; the agent ends with the last",
        ),
        Flag::new("enable-profiling", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("enable-contention-profiling", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("kube-api-content-type", FlagKind::Text("TYPE"), "", IGNORED_HELP),
    ],
};

/// The command `narthex konnectivity-agent`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KonnectivityAgentCommand;

impl CommandFlags for KonnectivityAgentCommand {
    const FLAGS: &'static [&'static FlagGroup] = &[&SERVERS, &TARGETS, &OPERATION, &LOG];
    const KIND: &'static str = "";
}

/// Configuration of the Konnectivity agent.
#[derive(Clone, Debug)]
pub struct KonnectivityAgentConfig {
    /// Settings of the protocol.
    pub settings: AgentSettings,
    /// Leases by which servers are counted, if they are.
    pub leases: Option<LeaseConfig>,
    /// Address of health and metrics.
    pub health_address: SocketAddr,
    /// Address of the admin listener.
    pub admin_address: SocketAddr,
    /// Proxies of the environment.
    pub environment_proxies: Option<ProxyEnvironment>,
    /// The log.
    pub log: log::Settings,
}

impl Arguments<KonnectivityAgentCommand> {
    /// Reads command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (KonnectivityAgentConfig, Diagnostics) {
        let mut parser =
            FlagParser::new(&self.raw, KonnectivityAgentCommand::FLAGS, KonnectivityAgentCommand::KIND, environment);
        let server_port = port(&mut parser, "proxy-server-port", "proxy server");
        let hosts = parser.list("proxy-server-host");
        if hosts.iter().all(|host| host.trim().is_empty()) {
            parser.add_problem("proxy-server-host", "is empty: name a server");
        }
        let hosts = hosts.iter().map(|host| host.trim().trim_matches(['[', ']']).to_owned());
        let servers = hosts.filter(|host| !host.is_empty()).map(|host| ServerAddress { host, port: server_port });
        let settings = AgentSettings {
            agent_id: instance_id(&mut parser, "agent-id", "PROXY_AGENT_ID"),
            identifiers: identifiers(&mut parser),
            servers: servers.collect(),
            ca_file: parser.path("ca-cert"),
            pair: parser.key_pair_files("agent-cert", "agent-key"),
            alpn: parser.list("alpn-proto"),
            token_file: parser.path("service-account-token-path"),
            allow: allowed_destinations(&mut parser),
            sync_interval: parser.positive_duration("sync-interval"),
            sync_interval_cap: parser.positive_duration("sync-interval-cap"),
            sync_forever: parser.switch("sync-forever"),
            keepalive: parser.duration("keepalive-time"),
            drain_timeout: parser.duration("graceful-shutdown-timeout"),
            server_count_source: server_count_source(&mut parser),
        };
        let config = KonnectivityAgentConfig {
            settings,
            leases: leases(&mut parser, "count-server-leases"),
            health_address: address(&mut parser, "health-server-host", "health-server-port", "health"),
            admin_address: address(&mut parser, "admin-bind-address", "admin-server-port", "admin"),
            environment_proxies: environment_proxies(&mut parser),
            log: observability::log_settings(&mut parser),
        };
        check_ignored(&mut parser, KonnectivityAgentCommand::FLAGS);
        (config, parser.finish())
    }
}

fn server_count_source(parser: &mut FlagParser<'_>) -> ServerCountSource {
    match parser.text("server-count-source").as_str() {
        "" | "default" => ServerCountSource::Default,
        "max" => ServerCountSource::Max,
        other => {
            parser.add_problem("server-count-source", format_args!("{other:?} is neither default nor max"));
            ServerCountSource::Default
        }
    }
}

fn identifiers(parser: &mut FlagParser<'_>) -> String {
    const FLAG: &str = "agent-identifiers";
    let text = parser.text(FLAG);
    if let Err(invalid) = AgentIdentifiers::parse_strictly(&text) {
        parser.add_problem(FLAG, invalid);
    }
    text
}
