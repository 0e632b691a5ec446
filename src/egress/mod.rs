//! Outbound connections: from a destination to a byte stream, and the pool of HTTP connections on top.
//!
//! The [`Dialer`] opens all connections, whichever [`EgressRoute`] they take: direct, or through a SOCKS5 proxy, an HTTP proxy
//! or Konnectivity. The code above it does not depend on that.

mod connection_activity;
mod dial;
mod dial_result;
pub mod http;
pub mod proxy;
mod proxy_fault;
mod route;

pub use dial::connection_limit::ConnectionCounter;
pub use dial::dialer::{Dialer, OpenedStream};
pub(crate) use dial::happy_eyeballs;
pub use dial::read_ahead::ReadAhead;
pub use dial::resolve::Resolver;
pub use dial_result::{DialError, DialPhase, DialTiming, HttpVersion};
pub use http::endpoint::{BoxError, ConnectionGuard, Endpoint, EndpointResponse, NoResponse, PoolReport, SendError};
pub(crate) use http::error_classification::{is_invalid_http, unprocessed_error};
pub use http::http2::STREAM_WINDOW;
pub use http::pool::Pool;
pub use proxy_fault::ProxyFault;
pub use route::backend_tls::BackendTls;
pub use route::destination::{Address, Destination, Host};
pub use route::destination_pattern::{BareName, DestinationPattern, parse_cidr};
pub use route::egress_route::{
    CLUSTER, CONTROL_PLANE, ConnectDialect, ETCD, EgressProtocol, EgressProxy, EgressRoute, EgressRoutes,
    EgressSelection, NameResolution, ProxyTls, STANDARD_CALLS,
};
pub use route::endpoint_key::{EndpointKey, TransportSecurity};
pub use route::environment::ProxyEnvironment;
pub use route::no_proxy::NoProxy;
pub use route::proxy_credentials::ProxyCredentials;
pub use route::proxy_health::ProxyState;
pub use route::proxy_url::{ProxyScheme, ProxyUrl, ProxyUrlError, without_credentials};
pub use route::reload::EgressConfigFile;
pub use route::settings::{
    DIAL_TIMEOUT, EgressRouteSettings, EgressSelectionSettings, ProxyAddress, ProxyKind, ProxySettings, ProxyTlsFiles,
};
