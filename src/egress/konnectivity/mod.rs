//! The client of Konnectivity (`sigs.k8s.io/apiserver-network-proxy`) in its gRPC mode: TCP connections that an agent
//! opens for us in a network we cannot reach.
//!
//! One HTTP/2 connection to a server carries many tunnels, each one stream of `/ProxyService/Proxy`. It stands on h2
//! itself: gRPC adds five bytes to a message and a status to the end, and the seven kinds of packets fit on a page.
//!
//! Konnectivity has no flow control beyond HTTP/2's on each of its legs, so where it ends decides who suffers from
//! whom. Here, every tunnel's window is its own and the connection's is as wide as HTTP/2 allows; a reader that leaves
//! 4 MiB unread, and with that makes the reference's server stop for everybody, has to read on within ten seconds or
//! go. The other direction is out of our hands: a target that does not read makes an agent of the reference stop
//! for all its connections, until that target reads, or closes, or the agent is restarted. [`Client::stuck`] says
//! when that may be so. Nothing of it happens where HTTP/2 is spoken inside the tunnel, which stops by itself.

mod call;
mod client;
mod clients;
mod failure;
mod leave;
mod packet;
mod shared;
mod stall;
#[cfg(test)]
mod tests;
mod tunnel;

pub use client::Client;
pub use clients::Clients;
pub use failure::{TunnelError, TunnelFailure};
pub use packet::{Frames, Nonsense, Packet, Read};
pub use tunnel::Tunnel;
