//! What the operator sees: logs, metrics, health, and the one access record per request.

// The one access record per request.
pub mod access;
// `/livez`, `/readyz` and `/healthz`.
pub mod health;
// Log lines on standard error.
pub mod log;
// Metrics, under the names Kubernetes gives them where it has any.
pub mod metrics;

pub use access::{AccessLog, AccessRecord, End, Opening, Worker};
pub use health::{Check, Health};
pub use log::LogLevel;
pub use metrics::Metrics;
