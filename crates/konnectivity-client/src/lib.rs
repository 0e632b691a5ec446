//! Konnectivity client (`sigs.k8s.io/apiserver-network-proxy`) in gRPC mode, and the packets of the protocol.
#![doc = include_str!("../README.md")]
//!
//! # Flow control
//!
//! One HTTP/2 connection to a server carries many tunnels, each one stream of `/ProxyService/Proxy`. Implemented on h2:
//! gRPC adds only five bytes per message and a final status, and there are seven kinds of packets.
//!
//! Konnectivity has no flow control beyond HTTP/2's on each hop, so a slow end can block other tunnels. Here every
//! tunnel has its own window, and the connection's is as wide as HTTP/2 allows. A reader that leaves 4 MiB unread
//! blocks the reference's server for all tunnels; it has to read on within ten seconds, or its tunnel is closed. The
//! other direction cannot be solved here: a target that does not read blocks an agent of the reference for all its
//! connections until the target reads or closes, or the agent is restarted. [`KonnectivityClient::stuck_tunnels`]
//! reports that. Neither happens where HTTP/2 is spoken inside the tunnel, because its flow control stops the sender.

// Modules are declared in dependency order, as in the root package: the blank lines keep rustfmt from sorting them by name.

mod counted_stream;
mod failure;
mod slow_reader;
mod stream_counters;
mod wire;

mod packet;

mod proxy_stream;

mod close;

mod connection_state;

mod tunnel;

mod client;

mod pool;

#[cfg(test)]
mod tests;

pub use client::KonnectivityClient;
pub use failure::{TunnelError, TunnelFailure};
pub use packet::{
    DecodedPacket, InvalidMessage, Packet, PacketDecoder, TUNNEL_FLOW_CONTROL, TUNNEL_WINDOW, encode_data_head,
};
pub use pool::{KonnectivityPool, PoolDialError};
pub use tunnel::KonnectivityTunnel;

/// Target of log lines, which filters name.
const LOG_TARGET: &str = "narthex::egress";
