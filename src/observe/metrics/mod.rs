//! Metrics, with Kubernetes' names where it has an equivalent.
//!
//! Per-request metrics are counted in [`WorkerMetrics`], one per worker thread; rarely changing ones in [`Metrics`]
//! itself. A scrape sums over the workers.

mod audit;
mod authorization;
mod backend;
mod calls;
mod cell;
mod door;
mod egress;
mod impersonation;
mod labels;
mod peers;
mod procfs;
mod rejections;
mod render;
mod reviews;
mod sums;
mod text;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

pub(in crate::observe) use audit::{AuditCounts, AuditLoss};
pub use authorization::{Authorization, Decisions, RoundTrip, Webhook};
pub use backend::{ConnectionCount, Endpoint, Service};
pub use calls::{CallChange, CallFailure, CallHealth, CallKind, CallStatus, Calls};
pub use door::{Door, REPLIES, Unanswered};
pub use egress::Egress;
pub use impersonation::{Impersonation, Impersonations};
pub use labels::{
    Authentication, BackendPhase, ConnectionState, DryRun, HandshakeFailure, Known, Protocol, RequestLabels, Retry,
    Scope, Verb,
};
pub use peers::{PeerCertificateFacts, PeerCertificates};
pub use rejections::{Limit, Rejections, Turned};
pub use reviews::{DecisionCache, Lookup, Review, Reviews};
pub use text::Format;
pub(in crate::observe) use worker::Ended;
pub use worker::{Series, WorkerMetrics};

use worker::Shard;

/// The metrics of the process.
pub struct Metrics {
    shards: Mutex<Vec<Arc<Shard>>>,
    /// In the order of [`HandshakeFailure::ALL`].
    tls_handshake_errors: [AtomicU64; HandshakeFailure::ALL.len()],
    discovery_aggregations: AtomicU64,
    missing_san: AtomicU64,
    access_records_dropped: Arc<AtomicU64>,
    /// Reason of each unavailable APIService, `None` for available ones.
    unavailable: Mutex<BTreeMap<String, Option<String>>>,
    unavailable_total: Family<2>,
    ejected: Family<2>,
    circuit: Family<1>,
    certificate_expiry: Family<1>,
    registry_errors: Family<1>,
    registry_warnings: AtomicU64,
    connections_bound: AtomicU64,
    registry_source_up: Family<1>,
    leader: Family<1>,
    reviews: Reviews,
    calls: Calls,
    peer_certificates: PeerCertificates,
    certificates_expiring: Family<1>,
    impersonations: Impersonations,
    authorization: Authorization,
    audit: AuditCounts,
    egress: Egress,
    rejections: Rejections,
    door: Door,
}

/// State of an APIService's circuit breaker; the number is the metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Requests are forwarded.
    Closed = 0,
    /// One request at a time is forwarded as a test.
    HalfOpen = 1,
    /// No request is forwarded.
    Open = 2,
}

impl Circuit {
    /// Name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Circuit::Closed => "closed",
            Circuit::HalfOpen => "half-open",
            Circuit::Open => "open",
        }
    }
}

/// Current state of one endpoint, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointNow {
    /// Open connections.
    pub connections: u64,
    /// Requests in flight, including watches; updated every second.
    pub under_way: u64,
    /// Average time to response headers over the last seconds; `None` without requests.
    pub latency: Option<Duration>,
}

/// Current load of one APIService, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Requests in flight, without long-running ones.
    pub requests: u64,
    /// Open watches.
    pub watches: u64,
}

impl Metrics {
    /// Creates empty metrics.
    pub fn new() -> Arc<Metrics> {
        Arc::new(Metrics {
            shards: Mutex::default(),
            tls_handshake_errors: Default::default(),
            discovery_aggregations: AtomicU64::default(),
            missing_san: AtomicU64::default(),
            access_records_dropped: Arc::default(),
            unavailable: Mutex::default(),
            unavailable_total: Family::default(),
            ejected: Family::default(),
            circuit: Family::default(),
            certificate_expiry: Family::default(),
            registry_errors: Family::default(),
            registry_warnings: AtomicU64::default(),
            connections_bound: AtomicU64::default(),
            registry_source_up: Family::default(),
            leader: Family::default(),
            reviews: Reviews::default(),
            calls: Calls::default(),
            peer_certificates: PeerCertificates::default(),
            certificates_expiring: Family::default(),
            impersonations: Impersonations::default(),
            authorization: Authorization::default(),
            audit: AuditCounts::default(),
            egress: Egress::default(),
            rejections: Rejections::default(),
            door: Door::default(),
        })
    }

    fn add_shard(&self, shard: Arc<Shard>) {
        self.shards.lock().push(shard);
    }

    /// Renders all metrics.
    pub fn render(&self, format: Format) -> String {
        render::render(self, format)
    }

    /// Metrics of TokenReviews, SubjectAccessReviews and their caches.
    pub fn reviews(&self) -> &Reviews {
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

    /// Sets the number of certificates that expire within the time of the label `within` or have expired.
    pub fn certificates_expire_within(&self, within: &str, count: usize) {
        self.certificates_expiring.set([within], count as f64);
    }

    /// Metrics of impersonation.
    pub fn impersonations(&self) -> &Impersonations {
        &self.impersonations
    }

    /// Metrics of configured authorizers.
    pub fn authorization(&self) -> &Authorization {
        &self.authorization
    }

    /// Metrics of connections through egress proxies.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Metrics of audit events.
    pub(in crate::observe) fn audit(&self) -> &AuditCounts {
        &self.audit
    }

    /// Metrics of requests rejected by inflight limits.
    pub fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// Metrics of the SOCKS5 proxy.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Counts a failed TLS handshake of a client.
    pub fn tls_handshake_failed(&self, failure: HandshakeFailure) {
        self.tls_handshake_errors[failure as usize].fetch_add(1, Relaxed);
    }

    /// Number of failed TLS handshakes of clients, by reason.
    pub fn tls_handshake_failures(&self) -> [(HandshakeFailure, u64); HandshakeFailure::ALL.len()] {
        HandshakeFailure::ALL.map(|failure| (failure, self.tls_handshake_errors[failure as usize].load(Relaxed)))
    }

    /// Counts an aggregation of discovery.
    pub fn discovery_aggregated(&self) {
        self.discovery_aggregations.fetch_add(1, Relaxed);
    }

    /// Counts a backend serving certificate without a subject alternative name.
    pub fn backend_misses_san(&self) {
        self.missing_san.fetch_add(1, Relaxed);
    }

    /// Counter of access records dropped because they could not be written in time.
    pub(in crate::observe) fn access_records_dropped(&self) -> Arc<AtomicU64> {
        self.access_records_dropped.clone()
    }

    /// Sets whether APIService `name` is available, or the reason why not. Counts a transition to unavailable, and a
    /// change of the reason.
    pub fn apiservice_is(&self, name: &str, unavailable: Option<&str>) {
        let reason = unavailable.map(str::to_owned);
        let before = self.unavailable.lock().insert(name.to_owned(), reason.clone()).flatten();
        if let Some(reason) = reason.filter(|reason| before.as_ref() != Some(reason)) {
            *self.unavailable_total.values.lock().entry([name.to_owned(), reason]).or_default() += 1.0;
        }
    }

    /// Removes all series of APIService `name`, which was removed from the registry.
    pub fn apiservice_is_gone(&self, name: &str) {
        self.unavailable.lock().remove(name);
        self.unavailable_total.forget(name);
        self.ejected.forget(name);
        self.circuit.forget(name);
    }

    /// Sets whether endpoint `address` of APIService `service` is ejected.
    pub fn endpoint_ejected(&self, service: &str, address: &str, ejected: bool) {
        self.ejected.set([service, address], f64::from(u8::from(ejected)));
    }

    /// Removes the series of endpoint `address` of APIService `service`.
    pub fn endpoint_is_gone(&self, service: &str, address: &str) {
        self.ejected.values.lock().remove(&[service.to_owned(), address.to_owned()]);
    }

    /// Sets the state of the circuit breaker of APIService `service`.
    pub fn circuit_is(&self, service: &str, state: Circuit) {
        self.circuit.set([service], f64::from(state as u8));
    }

    /// Sets the expiry of the certificate in `file`, in seconds since 1970.
    pub fn certificate_expires(&self, file: &str, not_after: i64) {
        self.certificate_expiry.set([file], not_after as f64);
    }

    /// Removes the series of the certificate in `file`.
    pub fn certificate_is_gone(&self, file: &str) {
        self.certificate_expiry.forget(file);
    }

    /// Sets whether the registry source `source` (not a file) is being watched; otherwise its last state is in use.
    pub fn registry_source_is_up(&self, source: &str, up: bool) {
        self.registry_source_up.set([source], f64::from(u8::from(up)));
    }

    /// Sets whether this process holds the Lease `name`.
    pub fn leads(&self, name: &str, leads: bool) {
        self.leader.set([name], f64::from(u8::from(leads)));
    }

    /// Sets the number of mistakes in `source` (a file of the registry directory, or `kube-apiserver`).
    pub fn registry_errors(&self, source: &str, count: usize) {
        self.registry_errors.set([source], count as f64);
    }

    /// Sets the maximum number of connections to all endpoints of one APIService.
    pub fn connections_are_bounded(&self, most: usize) {
        self.connections_bound.store(most as u64, Relaxed);
    }

    /// Sets the number of registry warnings.
    pub fn registry_warnings(&self, count: usize) {
        self.registry_warnings.store(count as u64, Relaxed);
    }

    /// Current load of APIService `name`.
    pub fn running(&self, name: &str) -> Running {
        let mut running = Running::default();
        for shard in self.shards.lock().iter() {
            for service in shard.services.lock().iter().filter(|service| service.name == name) {
                running.requests = running.requests.wrapping_add(service.in_flight.get());
                running.watches = running.watches.wrapping_add(service.watches.get());
            }
        }
        running
    }

    /// Current state of endpoint `address` of APIService `service`.
    pub fn endpoint(&self, service: &str, address: &str) -> EndpointNow {
        let mut now = EndpointNow::default();
        let (mut count, mut nanos) = (0.0, 0.0);
        for shard in self.shards.lock().iter() {
            for endpoint in shard.endpoints.lock().iter() {
                if endpoint.service == service && endpoint.address == address {
                    let cells = endpoint.connections.iter().flatten();
                    now.connections = cells.fold(now.connections, |sum, cell| sum.wrapping_add(cell.get()));
                    now.under_way += endpoint.under_way.get();
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
struct Family<const LABELS: usize> {
    values: Mutex<BTreeMap<[String; LABELS], f64>>,
}

impl<const LABELS: usize> Default for Family<LABELS> {
    fn default() -> Self {
        Family { values: Mutex::default() }
    }
}

impl<const LABELS: usize> Family<LABELS> {
    fn set(&self, labels: [&str; LABELS], value: f64) {
        self.values.lock().insert(labels.map(str::to_owned), value);
    }

    /// Removes every series with the first label `first`.
    fn forget(&self, first: &str) {
        self.values.lock().retain(|labels, _| labels[0] != first);
    }
}
