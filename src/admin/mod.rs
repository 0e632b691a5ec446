//! The operator's own listener: health, metrics, state, log level, status page.
//!
//! It has its own port and its own thread, so that it answers when the workers do not. It speaks plain
//! HTTP and therefore stands on a loopback address unless told otherwise, and answers only who asks
//! for it by such a name: a web page that points its own name at 127.0.0.1 learns nothing. Where it was told to stand on
//! another, other machines get metrics and health and nothing else.

mod expiry;
mod host;
mod page;
mod report;
mod serve;
mod token;
mod verdict;

pub use expiry::{EARLIEST_EXPIRY_WARNING, ExpiryWarning};
pub use report::{
    ApiServiceReport, AuditSink, Certificate, ClusterReport, DiscoveryReport, EgressReport, EndpointReport,
    PeerCertificateReport, RefusalReport, RemoteCallReport, StatusReport, VerdictReport, human_duration, timestamp,
};
pub use serve::{Admin, AdminState, spawn};
pub use token::{AdminToken, AdminTokenFile, AdminTokenGuard};
pub use verdict::Verdict;

/// Where the admin listener stands unless told otherwise.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:6480";
