//! The state shared by all threads of the gateway: settings, snapshots, counters. Access never blocks.

use std::sync::Arc;

use super::handshake_log::HandshakeLog;
use super::request::RequestPolicy;
use super::upstream_readiness::UpstreamReadiness;
use crate::authenticate::Authenticator;
use crate::authorize::{Authorizer, Impersonator};
use crate::availability::apiservice_api::ApiServiceHandler;
use crate::delegation_server::DelegationServer;
use crate::discovery::DiscoverySnapshot;
use crate::message::ErrorFormat;
use crate::message::cors::BrowserPolicy;
use crate::observe::Auditor;
use crate::observe::health::HealthChecks;
use crate::observe::metrics::Metrics;
use crate::openapi::{Index, OpenApiV2};
use crate::process::{Drain, Published};
use crate::route::{Dealer, Inflight, RouteTable};
use crate::tls::KeyPair;
use crate::tls::server::ServingReaders;

/// The shared state that requests use.
pub(super) struct GatewayState {
    pub(super) serving: ServingReaders,
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) impersonator: Impersonator,
    /// Set if audit is enabled.
    pub(super) auditor: Option<Arc<Auditor>>,
    pub(super) table: Published<RouteTable>,
    pub(super) documents: Published<DiscoverySnapshot>,
    pub(super) openapi: Published<Index>,
    pub(super) openapi_v2: OpenApiV2,
    /// The front-proxy client certificate.
    pub(super) identity: Option<Published<KeyPair>>,
    /// Serves the APIServices of the registry as the API `apiregistration.k8s.io`.
    pub(super) reports: ApiServiceHandler,
    /// Serves reviews and the ConfigMap to backends, with `--serve-delegation`.
    pub(super) reviewer: Option<DelegationServer>,
    /// Whether the delegate serves the APIService API.
    pub(super) registrations_elsewhere: bool,
    /// Whether the delegate gets all other requests that no APIService claims.
    pub(super) delegates_all: bool,
    /// Whether the delegate serves `/metrics`.
    pub(super) delegates_metrics: bool,
    /// Readiness of a sidecar's upstreams.
    pub(super) upstream_readiness: Published<UpstreamReadiness>,
    pub(super) metrics: Arc<Metrics>,
    /// Logs failed TLS handshakes of clients.
    pub(super) handshake_log: HandshakeLog,
    pub(super) health: Vec<HealthChecks>,
    pub(super) relay: RelaySettings,
    pub(super) policy: RequestPolicy,
    pub(super) cors: Option<BrowserPolicy>,
    /// Assigns users to counters by shuffle sharding, for fair shares.
    pub(super) dealer: Dealer,
    pub(super) read_only_inflight: InflightPool,
    pub(super) mutating_inflight: InflightPool,
    pub(super) drain: Drain,
}

/// Settings of forwarding.
pub(super) struct RelaySettings {
    pub(super) error_format: ErrorFormat,
    pub(super) reject_redirects: bool,
    /// Probability of a GOAWAY to an HTTP/2 client, per request.
    pub(super) goaway_chance: f64,
    /// Whether requests during the shutdown delay are answered with 429.
    pub(super) send_retry_after: bool,
}

/// The limit of requests in flight of one kind (`--max-requests-inflight`, `--max-mutating-requests-inflight`).
pub(super) struct InflightPool {
    pub(super) requests: Inflight,
    /// 0 for no limit.
    pub(super) max: usize,
}
