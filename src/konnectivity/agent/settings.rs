//! Settings of the agent.

use std::path::PathBuf;
use std::time::Duration;

use crate::egress::DestinationPattern;
use crate::tls::PairFiles;

/// Address of one or several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// A DNS name or an IP address.
    pub host: String,
    /// The port for agents.
    pub port: u16,
}

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// `--agent-id`.
    pub agent_id: String,
    /// `--agent-identifiers`, valid.
    pub identifiers: String,
    /// `--proxy-server-host` and `--proxy-server-port`.
    pub servers: Vec<ServerAddress>,
    /// `--ca-cert`; none for the system's roots.
    pub ca_file: Option<PathBuf>,
    /// `--agent-cert` and `--agent-key`.
    pub pair: Option<PairFiles>,
    /// `--alpn-proto`, beside h2.
    pub alpn: Vec<String>,
    /// `--service-account-token-path`.
    pub token_file: Option<PathBuf>,
    /// `--allow-destinations`; empty allows all.
    pub allow: Vec<DestinationPattern>,
    /// `--sync-interval`.
    pub sync_interval: Duration,
    /// `--sync-interval-cap`.
    pub sync_interval_cap: Duration,
    /// `--sync-forever`.
    pub sync_forever: bool,
    /// `--keepalive-time`.
    pub keepalive: Duration,
    /// `--graceful-shutdown-timeout`.
    pub drain_timeout: Duration,
    /// `--server-count-source`.
    pub server_count_source: ServerCountSource,
}

/// From what an agent that counts Leases knows the number of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerCountSource {
    /// From the Leases.
    #[default]
    Default,
    /// From the Leases, or from what servers tell, whichever is more.
    Max,
}
