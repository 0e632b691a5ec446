//! Metrics, with Kubernetes' names where it has an equivalent.
//!
//! Per-request metrics are counted in [`WorkerMetrics`], one per worker thread; rarely changing ones in [`Metrics`]
//! itself. A scrape sums over the workers.

mod backend;
mod counters;
mod exposition;
mod families;
mod labels;
mod procfs;
mod render;
mod request_history;
mod sums;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

pub use backend::{ApiServiceMetrics, ConnectionCount, EndpointMetrics};
pub use exposition::ExpositionFormat;
pub use families::audit::AuditLevel;
pub(in crate::observe) use families::audit::{AuditCounts, AuditLoss};
pub use families::authorization::{AuthorizationMetrics, DecisionCounts, RoundTrip, WebhookMetrics};
pub use families::calls::{CallChange, CallFailure, CallHealth, CallKind, CallStatus, Calls};
pub use families::certificates::CertificateMetrics;
pub use families::compute::{ComputeMetrics, ComputeRefusal};
pub use families::conversion::{ConversionFailure, ConversionMetrics};
pub use families::egress::EgressMetrics;
pub use families::impersonation::{ImpersonationMetrics, ImpersonationStep};
pub use families::konnectivity::{
    KonnectivityAgentMetrics, KonnectivityDialFailure, KonnectivityServerGauges, KonnectivityServerMetrics, LeaseCalls,
    StreamMetrics, StreamPacketType, StreamSegment,
};
pub use families::peer_certificates::{PeerCertificateInfo, PeerCertificates};
pub use families::rejections::{ExceededLimit, RejectReason, Rejections};
pub use families::reviews::{CacheResult, DecisionCacheKind, ReviewKind, ReviewMetrics};
pub use families::service_accounts::{AccountTokenUse, ServiceAccountMetrics};
pub use families::socks5::{REPLY_LABELS, Socks5HandshakeFailure, Socks5Metrics};
pub use families::storage::{ResourceStats, StorageMetrics, StorageRequests, StorageStats};
pub(in crate::observe) use families::tracing::{SpanCounts, SpanLoss};
pub use families::work_queues::{WorkQueueFailure, WorkQueueMetrics, WorkQueueRegistry, WorkQueueStats};
pub use labels::{
    Authentication, BackendPhase, ConnectionState, DryRun, HandshakeFailure, KnownLabels, Protocol, RequestLabels,
    Retry, Scope, Verb,
};
pub use request_history::{HistorySample, RequestHistory, SAMPLE_COUNT, SAMPLE_INTERVAL};
pub(in crate::observe) use worker::RequestOutcome;
pub use worker::{SeriesId, WorkerMetrics};

use worker::MetricsShard;

/// The metrics of the process.
pub struct Metrics {
    /// The control plane whose metrics these are; none for those of the process.
    control_plane: Option<Arc<str>>,
    /// Metrics of the control planes behind this gateway.
    control_planes: Mutex<Vec<Weak<Metrics>>>,
    shards: Mutex<Vec<Arc<MetricsShard>>>,
    /// In the order of [`HandshakeFailure::ALL`].
    tls_handshake_errors: [AtomicU64; HandshakeFailure::ALL.len()],
    discovery_aggregations: AtomicU64,
    missing_san: AtomicU64,
    access_records_dropped: Arc<AtomicU64>,
    /// Reason of each unavailable APIService, `None` for available ones.
    unavailable: Mutex<BTreeMap<String, Option<String>>>,
    unavailable_total: LabeledValues<2>,
    ejected: LabeledValues<2>,
    circuit: LabeledValues<1>,
    certificates: CertificateMetrics,
    registry_errors: LabeledValues<1>,
    registry_warnings: AtomicU64,
    connections_limit: AtomicU64,
    client_connections: OnceLock<ClientConnections>,
    registry_source_up: LabeledValues<1>,
    leader: LabeledValues<1>,
    reviews: ReviewMetrics,
    calls: Calls,
    peer_certificates: PeerCertificates,
    impersonations: ImpersonationMetrics,
    authorization: AuthorizationMetrics,
    audit: AuditCounts,
    spans: SpanCounts,
    egress: EgressMetrics,
    rejections: Rejections,
    service_accounts: ServiceAccountMetrics,
    socks5: Socks5Metrics,
    storage: StorageMetrics,
    conversion: Arc<ConversionMetrics>,
    compute: Arc<ComputeMetrics>,
    work_queues: WorkQueueRegistry,
}

/// The open connections of the client listener.
#[derive(Clone, Debug)]
pub struct ClientConnections {
    /// Their number.
    pub open: Arc<AtomicUsize>,
    /// How many may be open, if that is limited; further ones wait in the kernel.
    pub limit: Option<usize>,
}

impl ClientConnections {
    /// Number of open connections.
    pub fn count(&self) -> usize {
        self.open.load(Relaxed)
    }
}

/// State of an APIService's circuit breaker; the number is the metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// Requests are forwarded.
    Closed = 0,
    /// One request at a time is forwarded as a test.
    HalfOpen = 1,
    /// No request is forwarded.
    Open = 2,
}

impl CircuitState {
    /// Name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            CircuitState::Closed => "closed",
            CircuitState::HalfOpen => "half-open",
            CircuitState::Open => "open",
        }
    }
}

/// Current state of one endpoint, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// Open connections.
    pub connections: u64,
    /// Requests in flight, including watches; updated every second.
    pub inflight: u64,
    /// Average time to response headers over the last seconds; `None` without requests.
    pub latency: Option<Duration>,
}

/// Current load of one APIService, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiServiceLoad {
    /// Requests in flight, without long-running ones.
    pub requests: u64,
    /// Open watches.
    pub watches: u64,
}

impl Metrics {
    /// Creates empty metrics of the process.
    pub fn new() -> Arc<Metrics> {
        Metrics::with_control_plane(None)
    }

    /// Creates empty metrics of the control plane `name`. Each of its series has the label `control_plane`, and it has
    /// none of the process.
    pub fn for_control_plane(&self, name: &Arc<str>) -> Arc<Metrics> {
        let metrics = Metrics::with_control_plane(Some(name.clone()));
        let mut all = self.control_planes.lock();
        all.retain(|metrics| metrics.strong_count() > 0);
        all.push(Arc::downgrade(&metrics));
        metrics
    }

    fn with_control_plane(control_plane: Option<Arc<str>>) -> Arc<Metrics> {
        Arc::new(Metrics {
            control_plane,
            control_planes: Mutex::default(),
            shards: Mutex::default(),
            tls_handshake_errors: Default::default(),
            discovery_aggregations: AtomicU64::default(),
            missing_san: AtomicU64::default(),
            access_records_dropped: Arc::default(),
            unavailable: Mutex::default(),
            unavailable_total: LabeledValues::default(),
            ejected: LabeledValues::default(),
            circuit: LabeledValues::default(),
            certificates: CertificateMetrics::default(),
            registry_errors: LabeledValues::default(),
            registry_warnings: AtomicU64::default(),
            connections_limit: AtomicU64::default(),
            client_connections: OnceLock::new(),
            registry_source_up: LabeledValues::default(),
            leader: LabeledValues::default(),
            reviews: ReviewMetrics::default(),
            calls: Calls::default(),
            peer_certificates: PeerCertificates::default(),
            impersonations: ImpersonationMetrics::default(),
            authorization: AuthorizationMetrics::default(),
            audit: AuditCounts::default(),
            spans: SpanCounts::default(),
            egress: EgressMetrics::default(),
            rejections: Rejections::default(),
            service_accounts: ServiceAccountMetrics::default(),
            socks5: Socks5Metrics::default(),
            storage: StorageMetrics::default(),
            conversion: Arc::default(),
            compute: Arc::default(),
            work_queues: WorkQueueRegistry::default(),
        })
    }

    fn add_shard(&self, shard: Arc<MetricsShard>) {
        self.shards.lock().push(shard);
    }

    /// Renders these metrics and those of all control planes, for the operator.
    pub fn render_all(&self, format: ExpositionFormat) -> String {
        let control_planes: Vec<Arc<Metrics>> = self.control_planes.lock().iter().filter_map(Weak::upgrade).collect();
        render::render_all(self, &control_planes, format)
    }

    /// Renders these metrics alone.
    pub fn render(&self, format: ExpositionFormat) -> String {
        render::render(self, format)
    }

    /// Metrics of TokenReviews, SubjectAccessReviews and their caches.
    pub fn reviews(&self) -> &ReviewMetrics {
        &self.reviews
    }

    /// Health of calls to API servers, webhooks, token issuers and egress proxies.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Certificates presented by servers in TLS handshakes.
    pub fn peer_certificates(&self) -> &PeerCertificates {
        &self.peer_certificates
    }

    /// Expiry of the configured certificates.
    pub fn certificates(&self) -> &CertificateMetrics {
        &self.certificates
    }

    /// Metrics of impersonation.
    pub fn impersonations(&self) -> &ImpersonationMetrics {
        &self.impersonations
    }

    /// Metrics of configured authorizers.
    pub fn authorization(&self) -> &AuthorizationMetrics {
        &self.authorization
    }

    /// Metrics of connections through egress proxies.
    pub fn egress(&self) -> &EgressMetrics {
        &self.egress
    }

    /// Metrics of audit events.
    pub(in crate::observe) fn audit(&self) -> &AuditCounts {
        &self.audit
    }

    /// Metrics of exported spans.
    pub(in crate::observe) fn spans(&self) -> &SpanCounts {
        &self.spans
    }

    /// Metrics of requests rejected by inflight limits.
    pub fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// Metrics of the SOCKS5 proxy.
    pub fn socks5(&self) -> &Socks5Metrics {
        &self.socks5
    }

    /// Metrics of conversion webhooks.
    pub fn conversion(&self) -> &Arc<ConversionMetrics> {
        &self.conversion
    }

    /// Metrics of service account tokens.
    pub fn service_accounts(&self) -> &ServiceAccountMetrics {
        &self.service_accounts
    }

    /// Metrics of the queue for compute threads.
    pub fn compute(&self) -> &Arc<ComputeMetrics> {
        &self.compute
    }

    /// Metrics of the controllers' work queues.
    pub fn work_queues(&self) -> &WorkQueueRegistry {
        &self.work_queues
    }

    /// Metrics of the store and the watch cache.
    pub fn storage(&self) -> &StorageMetrics {
        &self.storage
    }

    /// Counts a failed TLS handshake of a client.
    pub fn record_tls_handshake_failure(&self, failure: HandshakeFailure) {
        self.tls_handshake_errors[failure as usize].fetch_add(1, Relaxed);
    }

    /// Number of failed TLS handshakes of clients, by reason.
    pub fn tls_handshake_failures(&self) -> [(HandshakeFailure, u64); HandshakeFailure::ALL.len()] {
        HandshakeFailure::ALL.map(|failure| (failure, self.tls_handshake_errors[failure as usize].load(Relaxed)))
    }

    /// Counts an aggregation of discovery.
    pub fn record_discovery_aggregation(&self) {
        self.discovery_aggregations.fetch_add(1, Relaxed);
    }

    /// Counts a backend serving certificate without a subject alternative name.
    pub fn record_missing_san(&self) {
        self.missing_san.fetch_add(1, Relaxed);
    }

    /// Counter of access records dropped because they could not be written in time.
    pub(in crate::observe) fn access_records_dropped(&self) -> Arc<AtomicU64> {
        self.access_records_dropped.clone()
    }

    /// Sets whether APIService `name` is available, or the reason why not. Counts a transition to unavailable, and a
    /// change of the reason.
    pub fn set_apiservice_availability(&self, name: &str, unavailable: Option<&str>) {
        let reason = unavailable.map(str::to_owned);
        let before = self.unavailable.lock().insert(name.to_owned(), reason.clone()).flatten();
        if let Some(reason) = reason.filter(|reason| before.as_ref() != Some(reason)) {
            *self.unavailable_total.values.lock().entry([name.to_owned(), reason]).or_default() += 1.0;
        }
    }

    /// Removes all series of APIService `name`, which was removed from the registry.
    pub fn remove_apiservice(&self, name: &str) {
        self.unavailable.lock().remove(name);
        self.unavailable_total.remove(name);
        self.ejected.remove(name);
        self.circuit.remove(name);
    }

    /// Sets whether endpoint `address` of APIService `service` is ejected.
    pub fn set_endpoint_ejected(&self, service: &str, address: &str, ejected: bool) {
        self.ejected.set([service, address], f64::from(u8::from(ejected)));
    }

    /// Removes the series of endpoint `address` of APIService `service`.
    pub fn remove_endpoint(&self, service: &str, address: &str) {
        self.ejected.values.lock().remove(&[service.to_owned(), address.to_owned()]);
    }

    /// Sets the state of the circuit breaker of APIService `service`.
    pub fn set_circuit_state(&self, service: &str, state: CircuitState) {
        self.circuit.set([service], f64::from(state as u8));
    }

    /// Sets whether the registry source `source` (not a file) is being watched; otherwise its last state is in use.
    pub fn set_registry_source_up(&self, source: &str, up: bool) {
        self.registry_source_up.set([source], f64::from(u8::from(up)));
    }

    /// Sets whether this process holds the Lease `name`.
    pub fn set_leader(&self, name: &str, leads: bool) {
        self.leader.set([name], f64::from(u8::from(leads)));
    }

    /// Sets the number of mistakes in `source` (a file of the registry directory, or `kube-apiserver`).
    pub fn set_registry_errors(&self, source: &str, count: usize) {
        self.registry_errors.set([source], count as f64);
    }

    /// Sets the maximum number of connections to all endpoints of one APIService.
    pub fn set_connections_limit(&self, limit: usize) {
        self.connections_limit.store(limit as u64, Relaxed);
    }

    /// Sets the connections of the client listener, once.
    pub fn set_client_connections(&self, connections: ClientConnections) {
        let _ = self.client_connections.set(connections);
    }

    /// The connections of the client listener; `None` without one.
    pub fn client_connections(&self) -> Option<&ClientConnections> {
        self.client_connections.get()
    }

    /// Sets the number of registry warnings.
    pub fn set_registry_warnings(&self, count: usize) {
        self.registry_warnings.store(count as u64, Relaxed);
    }

    /// Current load of APIService `name`.
    pub fn apiservice_load(&self, name: &str) -> ApiServiceLoad {
        let mut running = ApiServiceLoad::default();
        for shard in self.shards.lock().iter() {
            for service in shard.services.lock().iter().filter(|service| service.name == name) {
                running.requests = running.requests.wrapping_add(service.in_flight.get());
                running.watches = running.watches.wrapping_add(service.watches.get());
            }
        }
        running
    }

    /// Current state of endpoint `address` of APIService `service`.
    pub fn endpoint_snapshot(&self, service: &str, address: &str) -> EndpointSnapshot {
        let mut now = EndpointSnapshot::default();
        let (mut count, mut nanos) = (0.0, 0.0);
        for shard in self.shards.lock().iter() {
            for endpoint in shard.endpoints.lock().iter() {
                if endpoint.service == service && endpoint.address == address {
                    let cells = endpoint.connections.iter().flatten();
                    now.connections = cells.fold(now.connections, |sum, cell| sum.wrapping_add(cell.get()));
                    now.inflight += endpoint.inflight.get();
                    let [some, took] = endpoint.recent.get();
                    (count, nanos) = (count + some, nanos + took);
                }
            }
        }
        // A weight below a tenth of a request is about half a minute old.
        now.latency = (count > 0.1).then(|| Duration::from_nanos((nanos / count) as u64));
        now
    }
}

/// Rarely changing values of a family, by label values.
struct LabeledValues<const LABELS: usize> {
    values: Mutex<BTreeMap<[String; LABELS], f64>>,
}

impl<const LABELS: usize> Default for LabeledValues<LABELS> {
    fn default() -> Self {
        LabeledValues { values: Mutex::default() }
    }
}

impl<const LABELS: usize> LabeledValues<LABELS> {
    fn set(&self, labels: [&str; LABELS], value: f64) {
        self.values.lock().insert(labels.map(str::to_owned), value);
    }

    /// Removes every series with the first label `first`.
    fn remove(&self, first: &str) {
        self.values.lock().retain(|labels, _| labels[0] != first);
    }
}
