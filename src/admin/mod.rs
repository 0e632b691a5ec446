//! The admin listener: health, metrics, state, log level, status page.
//!
//! It has its own port and thread, so that it responds when the workers do not. It serves plain HTTP, by default on a
//! loopback address. It answers only requests with a loopback name or the configured address as `Host`, so that a web
//! page cannot read it through DNS rebinding. On another address, remote peers get only metrics and health.

mod attention;
mod attention_report;
mod certificate_list;
mod connection;
mod connection_table;
mod control_plane_report;
mod events;
mod expiry;
mod host;
mod konnectivity;
mod live_page;
mod page;
mod response;
mod server;
mod sparkline;
mod status_content;
mod status_report;
mod storage_report;
mod summary;
mod token;
mod traffic_report;
mod write_timeout;

pub use crate::observe::times::{human_duration, timestamp};
pub use attention_report::AttentionReport;
pub use connection::serve_connection;
pub use connection_table::{ConnectionTable, ConnectionUse};
pub use control_plane_report::ControlPlaneReport;
pub use expiry::expiring_certificates;
pub use host::{ServedHost, is_same_host};
pub use live_page::LivePage;
pub use page::PageReport;
pub use response::{AdminBody, complete};
pub use server::{AdminListener, AdminSocket, AdminState, spawn};
pub use status_report::{
    ApiServiceReport, AuditSinkReport, ClientConnectionsReport, ClusterReport, DiscoveryReport, EgressReport,
    EndpointReport, PeerCertificateReport, RefusalReport, RemoteCallReport, StatusReport, VerdictReport,
};
pub use storage_report::{ControllerReport, StorageReport, StoredResourceReport, TokenKeyReport, format_bytes};
pub use summary::StatusSummary;
pub use token::{AdminToken, AdminTokenConfig, AdminTokenFile};
pub use traffic_report::TrafficReport;

/// Default of `--admin-address`.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:6480";
