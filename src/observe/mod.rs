//! What the operator sees: logs, metrics, health, the one access record per request, and audit events.

// The one access record per request.
pub mod access;
// Who did what, for those who have to know later: audit events by a policy.
pub mod audit;
// `/livez`, `/readyz` and `/healthz`.
pub mod health;
// Log lines on standard error.
pub mod log;
// Metrics, under the names Kubernetes gives them where it has any.
pub mod metrics;

pub use access::{AccessLog, AccessRecord, End, Opening, Worker};
pub use audit::Auditor;
pub use health::{Check, Health};
pub use log::LogLevel;
pub use metrics::Metrics;
