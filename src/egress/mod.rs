//! Outbound: from a destination to a stream of bytes, and the pool of HTTP connections over it.
//!
//! There is one place that opens connections ([`dial`]), so that later ways (SOCKS5, HTTP CONNECT, a
//! Konnectivity tunnel) stand beside the direct one and everything above it stays as it is.

mod cidr;
mod credentials;
mod destination;
mod destination_pattern;
mod dial;
mod endpoint;
mod environment;
mod http1;
mod http2;
mod lease;
mod no_proxy;
mod pool;
mod proxy_url;
mod read_ahead;
mod refusal;
mod resolve;
mod settings;
mod silence;
mod trust;

pub use cidr::Cidr;
pub use credentials::Credentials;
pub use destination::{Destination, Host, Upstream};
pub use destination_pattern::{BareName, DestinationPattern};
pub use dial::{DialError, DialPhase, Protocol, Timing, dial_plain};
pub use endpoint::{Cause, Endpoint, SendError, Sent};
pub use environment::ProxyEnvironment;
pub use lease::Lease;
pub use no_proxy::NoProxy;
pub use pool::{Pool, PoolReport};
pub use proxy_url::{ProxyScheme, ProxyUrl, ProxyUrlError, without_credentials};
pub(crate) use refusal::{is_nonsense, unprocessed};
pub use resolve::Resolver;
pub use settings::{
    CLUSTER, CONTROL_PLANE, DIAL_TIMEOUT, ProxyAddress, ProxyKind, ProxySettings, ProxyTlsFiles, SelectionSettings,
    WaySettings,
};
pub use trust::BackendTls;
