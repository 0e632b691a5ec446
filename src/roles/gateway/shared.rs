//! The state shared by all threads of the gateway: settings, snapshots, counters. Access never blocks.

use std::sync::Arc;

use super::handshakes::HandshakeLog;
use super::reached::Reached;
use crate::authenticate::Authenticator;
use crate::authorize::rbac_proxy::{Paths, Rules};
use crate::authorize::{Authorizer, Impersonator};
use crate::availability::report::Reports;
use crate::discovery::Documents;
use crate::forward::Wording;
use crate::kubeapi::User;
use crate::message::ErrorFormat;
use crate::message::browser::Browsers;
use crate::observe::Auditor;
use crate::observe::health::Health;
use crate::observe::metrics::Metrics;
use crate::openapi::{Index, Version2};
use crate::process::{Drain, Published};
use crate::reviewer::Reviewer;
use crate::route::{Dealer, Inflight, Table};
use crate::tls::KeyPair;
use crate::tls::server::ServingReaders;

/// The shared state that requests use.
pub(super) struct Shared {
    pub(super) serving: ServingReaders,
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) impersonator: Impersonator,
    /// Set if audit is enabled.
    pub(super) auditor: Option<Arc<Auditor>>,
    pub(super) table: Published<Table>,
    pub(super) documents: Published<Documents>,
    pub(super) openapi: Published<Index>,
    pub(super) openapi2: Version2,
    /// The front-proxy client certificate.
    pub(super) identity: Option<Published<KeyPair>>,
    /// Serves the APIServices of the registry as the API `apiregistration.k8s.io`.
    pub(super) reports: Reports,
    /// Serves reviews and the ConfigMap to backends, with `--serve-delegation`.
    pub(super) reviewer: Option<Reviewer>,
    /// Whether the delegate serves the APIService API.
    pub(super) registrations_elsewhere: bool,
    /// Whether the delegate gets all other requests that no APIService claims.
    pub(super) delegates_all: bool,
    /// Whether the delegate serves `/metrics`.
    pub(super) delegates_metrics: bool,
    /// Whether this is a sidecar: only health checks are answered locally, all other paths belong to upstreams.
    pub(super) sidecar: bool,
    /// Readiness of a sidecar's upstreams.
    pub(super) reached: Published<Reached>,
    pub(super) metrics: Arc<Metrics>,
    /// Logs failed TLS handshakes of clients.
    pub(super) handshakes: HandshakeLog,
    pub(super) health: Vec<Health>,
    pub(super) forwarding: Forwarding,
    pub(super) guard: Guard,
    pub(super) browsers: Option<Browsers>,
    /// Assigns users to counters by shuffle sharding, for fair shares.
    pub(super) dealer: Dealer,
    pub(super) reading: Bound,
    pub(super) mutating: Bound,
    pub(super) drain: Drain,
}

/// Settings of forwarding.
pub(super) struct Forwarding {
    pub(super) error_format: ErrorFormat,
    pub(super) reject_redirects: bool,
    /// Probability of a GOAWAY to an HTTP/2 client, per request.
    pub(super) goaway_chance: f64,
    /// Whether requests during the shutdown delay are answered with 429.
    pub(super) send_retry_after: bool,
}

/// Differences of the sidecar: attributes, open paths, format of the identity headers.
pub(super) struct Guard {
    /// kube-rbac-proxy rules that define the attributes, instead of the request itself.
    pub(super) rules: Option<Published<Rules>>,
    pub(super) paths: Paths,
    pub(super) wording: Wording,
    /// The user of requests to paths served without authentication and authorization.
    pub(super) nobody: Arc<User>,
}

/// The limit of requests in flight of one kind (`--max-requests-inflight`, `--max-mutating-requests-inflight`).
pub(super) struct Bound {
    pub(super) running: Inflight,
    /// 0 for no limit.
    pub(super) most: usize,
}
