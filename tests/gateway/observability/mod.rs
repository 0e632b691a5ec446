//! Logs, metrics, audit and the admin listener.

pub(crate) mod access_log_metrics;
pub(crate) mod admin;
pub(crate) mod admin_token;
pub(crate) mod audit;
pub(crate) mod events;
pub(crate) mod exported_metrics;
pub(crate) mod log_messages;
pub(crate) mod refusal_log;
pub(crate) mod remote_calls;
pub(crate) mod systemd;
pub(crate) mod tracing;
