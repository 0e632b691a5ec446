//! Konnectivity server and agent (`sigs.k8s.io/apiserver-network-proxy`): TCP connections into a network that only its
//! agents can leave.
//!
//! An agent keeps one gRPC stream to each server. All tunnels of the agent share it: [`multiplexer`] holds their queues,
//! so that a tunnel whose end does not read holds up no other. [`server`] has the frontends that request tunnels, and
//! [`agent`] the connections to the targets. The client is [`konnectivity_client`].

pub mod agent;
#[cfg(test)]
mod blackhole;
mod destinations;
mod keepalive;
pub mod leases;
mod multiplexer;
mod packet_reader;
mod recent_failures;
mod relay;
pub mod report;
pub mod server;
mod stream_counter;
#[cfg(test)]
mod tests;

/// Maximum HTTP/2 frame: a packet with its head fits, so that its data is not copied.
const MAX_FRAME_BYTES: u32 = 72 << 10;
/// Maximum length of the metadata of a call or of its response.
const MAX_METADATA_BYTES: u32 = 64 << 10;
/// Maximum length of the protocol and the address of a dial together: they wait in queues and occur in errors.
const MAX_ADDRESS_BYTES: usize = 2 << 10;
