//! Observability: log, metrics, health checks, access log and audit.

// Access log: one record per request.
pub mod access;
// Audit events, selected by an audit policy.
pub mod audit;
// `/livez`, `/readyz` and `/healthz`.
pub mod health;
// Log lines on standard error.
pub mod log;
// Metrics, with Kubernetes' names where it has an equivalent.
pub mod metrics;

pub use access::{AccessLog, AccessRecord, End, Opening, Worker};
pub use audit::Auditor;
pub use health::{Check, Health};
pub use log::LogLevel;
pub use metrics::Metrics;
