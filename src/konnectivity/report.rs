//! State of a Konnectivity server or agent: `/status.json` of its admin port, which `narthex status` shows.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::observe::times::timestamp;
use crate::tls::CertificateReport;

/// Value of [`KonnectivityServerReport::role`].
pub const SERVER_ROLE: &str = "konnectivity-server";
/// Value of [`KonnectivityAgentReport::role`].
pub const AGENT_ROLE: &str = "konnectivity-agent";

/// Entries of each list of tunnels and dials.
pub(super) const MAX_LISTED: usize = 100;

/// State of a server at one moment. Fields are only added, never removed or renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KonnectivityServerReport {
    /// [`SERVER_ROLE`].
    pub role: String,
    /// Version of Narthex.
    pub version: String,
    /// When the process started; all times are RFC 3339.
    pub started: String,
    /// `serving` or `draining`.
    pub phase: String,
    /// `--server-id`.
    pub server_id: String,
    /// `--server-count`.
    pub server_count: u32,
    /// Addresses of the listeners, each with what it is for.
    pub listen: Vec<String>,
    /// `--proxy-strategies`.
    pub strategies: Vec<String>,
    /// Whether an agent is connected that the first strategy may choose, as `/readyz`.
    pub ready: bool,
    /// Connected agents, in the order of their connections.
    pub agents: Vec<ConnectedAgentReport>,
    /// Dials that agents have not answered, the oldest first; at most 100.
    pub pending_dials: Vec<PendingDialReport>,
    /// Tunnels whose data waits for a reader for seconds; at most 100.
    pub stalled_tunnels: Vec<StalledTunnelReport>,
    /// The last failed and refused dials, the newest first.
    pub failed_dials: Vec<FailureReport>,
    /// The last connections of agents and clients that were refused, the newest first.
    pub refused_connections: Vec<FailureReport>,
    /// Certificates and CA bundles in use, sorted by file.
    pub certificates: Vec<CertificateReport>,
    /// Errors of certificates and CA bundles that changed and are invalid; the last good ones are in use.
    pub file_problems: Vec<String>,
}

/// An agent of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectedAgentReport {
    /// Id of the agent.
    pub agent_id: String,
    /// Its `--agent-identifiers`.
    pub identifiers: String,
    /// Its program and version, such as `grpc-go/1.83.0` for the reference.
    pub program: String,
    /// Address of its connection.
    pub remote: String,
    /// When it connected.
    pub since: String,
    /// Whether it asks for no further dials.
    pub draining: bool,
    /// Whether each tunnel has a window and a half-close; not with an agent of the reference.
    pub flow_control: bool,
    /// Open tunnels.
    pub tunnels: usize,
    /// Those of them whose data waits for a reader for seconds.
    pub stalled_tunnels: usize,
    /// Dials without a response.
    pub pending_dials: usize,
    /// Data sent to the agent on this connection.
    pub bytes_to_agent: u64,
    /// Data received from the agent on this connection.
    pub bytes_from_agent: u64,
}

/// State of an agent at one moment. Fields are only added, never removed or renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KonnectivityAgentReport {
    /// [`AGENT_ROLE`].
    pub role: String,
    /// Version of Narthex.
    pub version: String,
    /// When the process started; all times are RFC 3339.
    pub started: String,
    /// `serving` or `draining`.
    pub phase: String,
    /// `--agent-id`.
    pub agent_id: String,
    /// `--agent-identifiers`.
    pub identifiers: String,
    /// Number of servers that the agent should be connected to, as far as it knows.
    pub known_servers: u64,
    /// Connected servers, in the order of their connections. One that drains and its successor may have the same id.
    pub servers: Vec<ConnectedServerReport>,
    /// Whether the last attempt to connect to a server failed.
    pub failing: bool,
    /// The last failed attempts to connect to a server, the newest first.
    pub failed_connections: Vec<FailureReport>,
    /// Dials of targets that are not answered yet.
    pub pending_dials: u64,
    /// Open connections to targets.
    pub endpoint_connections: u64,
    /// Tunnels whose data waits for a reader for seconds; at most 100.
    pub stalled_tunnels: Vec<StalledTunnelReport>,
    /// The last failed and refused dials, the newest first.
    pub failed_dials: Vec<FailureReport>,
    /// Certificates and CA bundles in use, sorted by file.
    pub certificates: Vec<CertificateReport>,
    /// Errors of certificates, CA bundle and token that changed and are invalid: further connections to servers fail.
    pub file_problems: Vec<String>,
}

/// A server of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectedServerReport {
    /// Id of the server.
    pub server_id: String,
    /// Address of the connection.
    pub address: String,
    /// When it was opened.
    pub since: String,
    /// Whether the server opens no further tunnels.
    pub draining: bool,
    /// Whether each tunnel has a window and a half-close; not with a server of the reference.
    pub flow_control: bool,
    /// Open tunnels.
    pub tunnels: usize,
    /// Those of them whose data waits for a reader for seconds.
    pub stalled_tunnels: usize,
    /// Data sent to the server on this connection.
    pub bytes_to_server: u64,
    /// Data received from the server on this connection.
    pub bytes_from_server: u64,
}

/// A dial that its agent has not answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PendingDialReport {
    /// Id of the agent.
    pub agent_id: String,
    /// Address of the target.
    pub address: String,
    /// When it began.
    pub since: String,
}

/// A tunnel whose data waits for a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StalledTunnelReport {
    /// Id of the agent, or of the server in the report of an agent.
    pub peer: String,
    /// The agent's connection id.
    pub connection: i64,
    /// Address of the target.
    pub address: String,
    /// Who does not read: `client`, `target`, or `peer` when the other side has no flow control per tunnel.
    pub waits_for: String,
    /// Data that waits here.
    pub bytes: u64,
    /// Since when nothing was read.
    pub since: String,
}

/// Failures that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureReport {
    /// When it last happened.
    pub last: String,
    /// How often it happened since it is in this list.
    pub count: u64,
    /// The kind of failure, in one word.
    pub reason: String,
    /// Address of the target or of the peer.
    pub address: String,
    /// Id of the agent that answered, if there was one.
    pub agent_id: String,
    /// What failed.
    pub error: String,
}

/// The time `age` ago.
pub(super) fn timestamp_ago(age: Duration) -> String {
    timestamp(SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
}
