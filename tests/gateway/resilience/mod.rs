//! Faults of backends, limits, load balancing, hostile clients and shutdown.

pub(crate) mod backend_faults;
pub(crate) mod backend_isolation;
pub(crate) mod endpoint_state;
pub(crate) mod failover;
pub(crate) mod fairness;
pub(crate) mod http2_header_blocks;
pub(crate) mod limits;
pub(crate) mod load_balancing;
pub(crate) mod malicious_clients;
pub(crate) mod resource_bounds;
pub(crate) mod retry_after;
pub(crate) mod shutdown;
pub(crate) mod shutdown_under_load;
pub(crate) mod stalled_watch;
pub(crate) mod stopped_endpoint;
