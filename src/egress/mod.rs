//! Outbound connections: from a destination to a byte stream, and the pool of HTTP connections on top.
//!
//! The [`Dialer`] opens all connections, whichever [`EgressRoute`] they take: direct, or through a SOCKS5 proxy, an HTTP proxy
//! or Konnectivity. The code above it does not depend on that.

mod backend_tls;
mod build;
mod cidr;
mod connection_guard;
mod connection_limit;
mod credentials;
mod destination;
mod destination_pattern;
mod dial;
mod dialer;
mod egress_route;
mod endpoint;
mod environment;
mod error_classification;
pub mod http1;
mod http2;
pub mod http_connect;
pub mod konnectivity;
mod liveness;
mod maybe_tls_stream;
mod no_proxy;
mod pool;
mod proxy_fault;
mod proxy_health;
mod proxy_url;
mod read_ahead;
mod reload;
mod resolve;
mod settings;
pub mod socks5;
mod streams;
mod transport;
mod unix;
mod upload_task;
mod via_proxy;

pub use backend_tls::BackendTls;
pub use cidr::Cidr;
pub use connection_guard::ConnectionGuard;
pub use connection_limit::ConnectionCounter;
pub use credentials::ProxyCredentials;
pub use destination::{Address, Destination, EndpointKey, Host, TransportSecurity};
pub use destination_pattern::{BareName, DestinationPattern};
pub use dial::{DialError, DialPhase, DialTiming, HttpVersion};
pub use dialer::{Dialer, OpenedStream};
pub use egress_route::{
    ConnectDialect, EgressProtocol, EgressProxy, EgressRoute, EgressRoutes, EgressSelection, NameResolution, ProxyTls,
};
pub use endpoint::{BoxError, Endpoint, EndpointResponse, NoResponse, SendError};
pub use environment::ProxyEnvironment;
pub(crate) use error_classification::{is_invalid_http, unprocessed_error};
pub use http2::STREAM_WINDOW;
pub use no_proxy::NoProxy;
pub use pool::{Pool, PoolReport};
pub use proxy_fault::ProxyFault;
pub use proxy_health::ProxyState;
pub use proxy_url::{ProxyScheme, ProxyUrl, ProxyUrlError, without_credentials};
pub use read_ahead::ReadAhead;
pub use reload::EgressConfigFile;
pub use resolve::Resolver;
pub use settings::{
    CLUSTER, CONTROL_PLANE, DIAL_TIMEOUT, EgressRouteSettings, EgressSelectionSettings, ProxyAddress, ProxyKind,
    ProxySettings, ProxyTlsFiles, STANDARD_CALLS,
};

/// Whether a request of this method states the length of an empty body, as Go's `net/http` does; RFC 9110, section 8.6,
/// leaves it open.
fn has_payload(method: &http::Method) -> bool {
    matches!(*method, http::Method::POST | http::Method::PUT | http::Method::PATCH)
}
