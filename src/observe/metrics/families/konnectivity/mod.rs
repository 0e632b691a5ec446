//! Metrics of the Konnectivity server and agent, with the names of the reference
//! (`apiserver-network-proxy/pkg/server/metrics`, `pkg/agent/metrics`).

mod agent;
mod histogram;
mod lease_calls;
mod packets;
mod server;

pub use agent::KonnectivityAgentMetrics;
pub use lease_calls::LeaseCalls;
pub use packets::{StreamMetrics, StreamPacketType, StreamSegment};
pub use server::{KonnectivityDialFailure, KonnectivityServerGauges, KonnectivityServerMetrics};
