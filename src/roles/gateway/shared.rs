//! What all threads of the gateway share: settings, snapshots, counters. Nothing here waits.

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

/// Everything a request may look at besides itself.
pub(super) struct Shared {
    pub(super) serving: ServingReaders,
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) impersonator: Impersonator,
    /// There if requests are to be audited.
    pub(super) auditor: Option<Arc<Auditor>>,
    pub(super) table: Published<Table>,
    pub(super) documents: Published<Documents>,
    pub(super) openapi: Published<Index>,
    pub(super) openapi2: Version2,
    /// What we present to backends.
    pub(super) identity: Option<Published<KeyPair>>,
    /// The APIServices of the registry directory as an API of their own.
    pub(super) reports: Reports,
    /// What backends ask instead of a kube-apiserver, with `--serve-delegation`.
    pub(super) reviewer: Option<Reviewer>,
    /// Whether the APIServices are the delegate's to show and to change.
    pub(super) registrations_elsewhere: bool,
    /// Whether all else that no APIService claims is the delegate's, too.
    pub(super) delegates_all: bool,
    /// Whether `/metrics` is the delegate's, too.
    pub(super) delegates_metrics: bool,
    /// Whether all paths are those of upstreams: nothing is answered here but how we are.
    pub(super) sidecar: bool,
    /// Whether these can be reached.
    pub(super) reached: Published<Reached>,
    pub(super) metrics: Arc<Metrics>,
    /// Failed handshakes of clients that the operator is told of.
    pub(super) handshakes: HandshakeLog,
    pub(super) health: Vec<Health>,
    pub(super) forwarding: Forwarding,
    pub(super) guard: Guard,
    pub(super) browsers: Option<Browsers>,
    /// Whose requests are counted where, for fair shares.
    pub(super) dealer: Dealer,
    pub(super) reading: Bound,
    pub(super) mutating: Bound,
    pub(super) drain: Drain,
}

/// How requests are relayed.
pub(super) struct Forwarding {
    pub(super) error_format: ErrorFormat,
    pub(super) reject_redirects: bool,
    /// Chance that an HTTP/2 client is asked to connect anew.
    pub(super) goaway_chance: f64,
    /// Whether requests that come while we are leaving are answered 429.
    pub(super) send_retry_after: bool,
}

/// How requests are judged, and whom a backend is told of.
pub(super) struct Guard {
    /// By which questions, if not by what a request itself says.
    pub(super) rules: Option<Published<Rules>>,
    pub(super) paths: Paths,
    pub(super) wording: Wording,
    /// Whoever sends what is open to everybody.
    pub(super) nobody: Arc<User>,
}

/// How many requests of a kind may run at once (`--max-requests-inflight` and its sibling).
pub(super) struct Bound {
    pub(super) running: Inflight,
    /// 0 for no limit.
    pub(super) most: usize,
}
