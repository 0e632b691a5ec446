//! The state shared by all threads of the gateway: settings, snapshots, counters. Access never blocks.

use std::sync::Arc;

use super::handshake_log::HandshakeLog;
use super::request_policy::RequestPolicy;
use crate::authenticate::Authenticator;
use crate::authorize::{Authorizer, Impersonator};
use crate::config::GatewayConfig;
use crate::discovery::DiscoverySnapshot;
use crate::message::ErrorFormat;
use crate::message::cors_hsts::BrowserPolicy;
use crate::observe::Auditor;
use crate::observe::health::HealthChecks;
use crate::observe::metrics::Metrics;
use crate::observe::trace::Tracer;
use crate::openapi::{Index, OpenApiV2};
use crate::process::{Drain, Published, UserTurns};
use crate::rest::ApiServer;
use crate::route::{Dealer, Inflight, RouteTable};
use crate::tls::KeyPair;
use crate::tls::server::ServingReaders;

/// The shared state that requests use.
pub(super) struct GatewayState {
    pub(super) serving: ServingReaders,
    /// Logs failed TLS handshakes of clients.
    pub(super) handshake_log: HandshakeLog,
    pub(super) access: AccessControl,
    /// Set if tracing is enabled.
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) table: Published<RouteTable>,
    pub(super) documents: Documents,
    /// The front-proxy client certificate.
    pub(super) identity: Option<Published<KeyPair>>,
    /// Whether reviews of backends are answered (`--serve-delegation`, `--embedded-api`).
    pub(super) serves_reviews: bool,
    /// Serves objects: with `--embedded-api` the stored ones, otherwise those that the gateway generates.
    pub(super) api: ApiServer,
    pub(super) delegate: DelegateScope,
    pub(super) health: Vec<HealthChecks>,
    pub(super) responses: ResponseSettings,
    pub(super) policy: RequestPolicy,
    pub(super) inflight: InflightPools,
    /// Limits the parsing of large reviews to one at a time; users take turns.
    pub(super) review_turns: UserTurns,
    pub(super) metrics: Arc<Metrics>,
    pub(super) drain: Drain,
}

/// Authentication, impersonation, authorization and audit of requests.
pub(super) struct AccessControl {
    pub(super) authenticator: Authenticator,
    pub(super) impersonator: Impersonator,
    pub(super) authorizer: Authorizer,
    /// Set if audit is enabled.
    pub(super) auditor: Option<Arc<Auditor>>,
}

/// Discovery and OpenAPI documents of all backends.
pub(super) struct Documents {
    pub(super) discovery: Published<DiscoverySnapshot>,
    pub(super) openapi: Published<Index>,
    pub(super) openapi_v2: OpenApiV2,
}

/// Which requests that no APIService claims go to the delegate.
#[derive(Clone, Copy)]
pub(super) struct DelegateScope {
    /// Whether all of them go there but those that are answered locally.
    pub(super) all: bool,
    /// Whether requests for APIServices go there: these are registered in the delegate's cluster.
    pub(super) apiservices: bool,
    /// Whether `/metrics` goes there.
    pub(super) metrics: bool,
}

impl DelegateScope {
    /// The scope that `config` describes.
    pub(super) fn new(config: &GatewayConfig) -> DelegateScope {
        let backends = &config.backends;
        DelegateScope {
            all: backends.delegates_unclaimed_paths,
            apiservices: backends.cluster.is_some() && backends.delegate.is_some(),
            metrics: backends.delegates_metrics,
        }
    }
}

/// Settings of responses and connections.
pub(super) struct ResponseSettings {
    pub(super) error_format: ErrorFormat,
    pub(super) reject_redirects: bool,
    /// Probability of a GOAWAY to an HTTP/2 client, per request.
    pub(super) goaway_chance: f64,
    /// Whether requests during the shutdown delay are answered with 429.
    pub(super) send_retry_after: bool,
    pub(super) cors: Option<BrowserPolicy>,
}

impl ResponseSettings {
    /// The settings that `config` describes.
    pub(super) fn new(config: &GatewayConfig) -> ResponseSettings {
        ResponseSettings {
            error_format: config.forwarding.error_format,
            reject_redirects: config.forwarding.reject_redirects,
            goaway_chance: config.serving.goaway_chance,
            send_retry_after: config.shutdown.send_retry_after,
            cors: config.serving.cors.clone(),
        }
    }
}

/// The limits of requests in flight.
pub(super) struct InflightPools {
    /// Assigns users to counters by shuffle sharding, for fair shares.
    pub(super) dealer: Dealer,
    pub(super) read_only: InflightPool,
    pub(super) mutating: InflightPool,
}

/// The limit of requests in flight of one kind (`--max-requests-inflight`, `--max-mutating-requests-inflight`).
pub(super) struct InflightPool {
    pub(super) requests: Inflight,
    /// 0 for no limit.
    pub(super) max: usize,
}

impl InflightPools {
    /// The limits that `config` describes.
    pub(super) fn new(config: &GatewayConfig) -> InflightPools {
        let pool = |max: Option<usize>| InflightPool { requests: Inflight::default(), max: max.unwrap_or(0) };
        InflightPools {
            dealer: Dealer::default(),
            read_only: pool(config.forwarding.max_inflight),
            mutating: pool(config.forwarding.max_mutating_inflight),
        }
    }

    /// Requests in flight.
    pub(super) fn count(&self) -> usize {
        self.read_only.requests.count() + self.mutating.requests.count()
    }
}
