//! Inbound connections: bound once, accepted on one thread, served on the worker with the fewest.
//!
//! [`bind`] takes the port, [`accept`] hands sockets to workers, [`serve`] runs one connection to its
//! end: TLS handshake, HTTP/1.1 or HTTP/2 by ALPN, and the deadlines of [`Limits`]. What a request
//! means is the [`Handler`]'s business.

mod accept;
mod bind;
mod blocks;
mod cork;
mod handshake;
mod http1;
mod http2;
mod lifetime;
mod linger;
mod observed;
mod proxy_protocol;
mod serve;

pub use accept::{Acceptor, Incoming, accept};
pub use bind::{bind, raise_descriptor_limit};
pub use lifetime::{ConnectionReport, Connections, Tunnel};
pub use proxy_protocol::ProxyProtocol;
pub use serve::{Accepted, Answering, Closer, Handler, Protocol, Service, serve, serve_plain};

use std::time::Duration;

/// What one client may use up before we cut it off.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once over all workers; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Bytes of one request's header block, as net/http counts them.
    pub max_request_header_bytes: u32,
    /// For the whole TLS handshake.
    pub handshake_timeout: Duration,
    /// From a request's first byte to the end of its header; over HTTP/2, for every header block, and every other frame
    /// but a body's. While other requests run there, a connection gets GOAWAY after it, and ends after six times as long.
    pub read_header_timeout: Duration,
    /// For a connection on which no request runs.
    pub idle_timeout: Duration,
    /// Streams a client may have open on one HTTP/2 connection.
    pub http2_max_streams: u32,
    /// Whether and from whom the PROXY protocol is understood.
    pub proxy_protocol: Option<ProxyProtocol>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_connections: usize::MAX,
            max_request_header_bytes: 1 << 20,
            handshake_timeout: Duration::from_secs(10),
            read_header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            http2_max_streams: 250,
            proxy_protocol: None,
        }
    }
}
