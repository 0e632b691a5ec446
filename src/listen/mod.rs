//! Inbound connections: accepted on one thread, served by the worker with the fewest connections.
//!
//! [`bind`] binds the port, [`accept`] dispatches sockets to workers, [`serve`] serves one connection:
//! TLS handshake, HTTP/1.1 or HTTP/2 by ALPN, and the timeouts of [`ServerLimits`]. Requests go to a [`RequestService`].

mod accept;
mod bind;
mod connections;
mod h2_frame_tracker;
mod handshake;
mod header_check;
mod http1;
mod http1_request_review;
mod http2;
mod http2_headers;
mod http2_request_review;
mod inherited_sockets;
mod lingering_close;
mod proxy_protocol;
mod request_service;
mod request_target;
mod rewritten_stream;
mod serve;
mod socket_file;
mod tracked_stream;
mod write_coalescing;

pub use accept::{Acceptor, IncomingConnection, accept};
pub use bind::{bind, proxied_connections_within, raise_descriptor_limit};
pub use connections::{ConnectionReport, Connections, UpgradedConnection};
pub(crate) use http1_request_review::{HTTP1_MAX_HEADERS, review_http1};
pub(crate) use http2_headers::{HeaderList, HeaderReview, ReceivedHeaders, ReviewedStream, review_headers};
pub use inherited_sockets::{inherit_sockets, take_unix_listener, unused_inherited_sockets};
pub use proxy_protocol::ProxyProtocol;
pub use request_service::{RequestService, ResponseFuture};
pub use serve::{AcceptedConnection, ConnectionHandle, HttpProtocol, TlsConfigSource, serve, serve_plain};
pub use socket_file::SocketFile;

use std::time::Duration;

/// Limits and timeouts of client connections.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Maximum open connections of all workers; further ones wait in the kernel's accept queue.
    pub max_connections: usize,
    /// Maximum size of a request's header block, counted as in net/http.
    pub max_request_header_bytes: u32,
    /// Timeout of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Timeout of a request's header, from its first byte; over HTTP/2, of every header block and every frame except
    /// DATA. An HTTP/2 connection with running requests gets GOAWAY after it, and is closed after six times as long.
    pub read_header_timeout: Duration,
    /// Timeout of a connection without a running request.
    pub idle_timeout: Duration,
    /// Maximum concurrent streams of an HTTP/2 connection.
    pub http2_max_streams: u32,
    /// Settings of the PROXY protocol; none disables it.
    pub proxy_protocol: Option<ProxyProtocol>,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
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
