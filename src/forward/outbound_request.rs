//! A request to send to a backend, with everything that belongs to it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::uri::PathAndQuery;

use super::backend::BackendRenewal;
use super::forwarded_headers::ForwardedHeaders;
use super::long_running_responses::LongRunningResponses;
use super::response_body::InflightPermits;
use crate::authenticate::IdentityHeaderMatcher;
use crate::authorize::rbac_proxy::RbacProxyRules;
use crate::availability::CircuitPermit;
use crate::listen::ConnectionHandle;
use crate::message::IncomingBody;

/// A request to send, with everything that belongs to it.
pub struct OutboundRequest<'o> {
    /// The client's request; its headers are rewritten, its URI replaced.
    pub request: Box<Request<IncomingBody>>,
    /// Path and query to send: those that were authorized and routed.
    pub path_and_query: PathAndQuery,
    /// Identity and forwarding headers.
    pub forwarded_headers: ForwardedHeaders<'o>,
    /// Identity headers, which a client must not send as trailers either.
    pub identity_headers: Cow<'o, Arc<IdentityHeaderMatcher>>,
    /// Rules that authorized the request by headers, if any: those must not come as trailers.
    pub rules: Option<Arc<RbacProxyRules>>,
    /// Request timeout; none for a long-running request.
    pub timeout: Option<Duration>,
    /// Circuit permit; held until the response head.
    pub circuit_permit: Option<Box<CircuitPermit>>,
    /// Renewal of the backend for retries.
    pub renewal: BackendRenewal<'o>,
    /// How the response is forwarded.
    pub response_options: ResponseOptions<'o>,
}

/// How a response is forwarded to the client.
pub struct ResponseOptions<'o> {
    /// The client's connection.
    pub connection: &'o ConnectionHandle,
    /// The long-running responses of this worker.
    pub streams: &'o LongRunningResponses,
    /// Whether a response that is a stream by its type (gRPC, server-sent events) makes its request long-running.
    pub streams_by_type: bool,
    /// Whether a redirect of the backend becomes 502 instead of reaching the client.
    pub reject_redirects: bool,
    /// In-flight permits; held until the end of the response.
    pub permits: InflightPermits,
}
