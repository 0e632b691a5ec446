//! Observability: log, metrics, health checks, access log, audit and traces.

// Access log: one record per request.
pub mod access;
// Audit events, selected by an audit policy.
pub mod audit;
// How a request ended.
mod end_reason;
// `/livez`, `/readyz` and `/healthz`.
pub mod health;
// Log lines on standard error.
pub mod log;
// Metrics, with Kubernetes' names where it has an equivalent.
pub mod metrics;
// Times and durations of status reports, as text.
pub mod times;
// OpenTelemetry spans of sampled requests.
pub mod trace;

pub use access::{AccessLog, AccessRecord, ConnectTimings, WorkerRecorder};
pub use audit::Auditor;
pub use end_reason::EndReason;
pub use health::{HealthCheck, HealthChecks, RequestedChecks};
pub use log::LogLevel;
pub use metrics::Metrics;
