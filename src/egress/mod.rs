//! Outbound connections: from a destination to a byte stream, and the pool of HTTP connections on top.
//!
//! The [`Dialler`] opens all connections, whichever [`Way`] they take: direct, or through a SOCKS5 proxy, an HTTP proxy
//! or Konnectivity. The code above it does not depend on that.

mod allowance;
mod carrier;
mod channel;
mod cidr;
pub mod connect;
mod credentials;
mod destination;
mod destination_pattern;
mod dial;
mod dialler;
mod endpoint;
mod environment;
mod following;
mod health;
pub mod http1;
mod http2;
pub mod konnectivity;
mod lease;
mod making;
mod no_proxy;
mod pool;
mod proxy_fault;
mod proxy_url;
mod pushed;
mod read_ahead;
mod refusal;
mod resolve;
mod settings;
mod silence;
pub mod socks5;
mod streams;
mod through;
mod trust;
mod unix;
mod way;

pub use allowance::Allowance;
pub use cidr::Cidr;
pub use credentials::Credentials;
pub use destination::{Address, Destination, Host, Upstream, Wire};
pub use destination_pattern::{BareName, DestinationPattern};
pub use dial::{DialError, DialPhase, Protocol, Timing};
pub use dialler::{Dialler, Opened};
pub use endpoint::{Cause, Endpoint, NoResponse, SendError, Sent};
pub use environment::ProxyEnvironment;
pub use following::WaysFile;
pub use health::ProxyState;
pub use http2::STREAM_WINDOW;
pub use lease::Lease;
pub use no_proxy::NoProxy;
pub use pool::{Pool, PoolReport};
pub use proxy_fault::ProxyFault;
pub use proxy_url::{ProxyScheme, ProxyUrl, ProxyUrlError, without_credentials};
pub use read_ahead::ReadAhead;
pub(crate) use refusal::{is_nonsense, unprocessed};
pub use resolve::Resolver;
pub use settings::{
    CLUSTER, CONTROL_PLANE, DIAL_TIMEOUT, ProxyAddress, ProxyKind, ProxySettings, ProxyTlsFiles, STANDARD_CALLS,
    SelectionSettings, WaySettings,
};
pub use trust::BackendTls;
pub use way::{Dialect, Kind, Names, Proxy, ProxyTls, Selection, Way, Ways};

/// Whether a request of this method states the length of an empty body, as Go's `net/http` does; RFC 9110, section 8.6,
/// leaves it open.
fn has_payload(method: &http::Method) -> bool {
    matches!(*method, http::Method::POST | http::Method::PUT | http::Method::PATCH)
}
