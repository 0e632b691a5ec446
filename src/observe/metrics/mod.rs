//! Metrics, under the names Kubernetes gives them where it has any.
//!
//! What every request touches is counted in [`WorkerMetrics`], one for each worker thread; what
//! changes now and then is told to [`Metrics`] itself. A scrape adds the workers up.

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

/// The metrics of the process; one, shared.
pub struct Metrics {
    shards: Mutex<Vec<Arc<Shard>>>,
    /// As [`HandshakeFailure::ALL`].
    tls_handshake_errors: [AtomicU64; HandshakeFailure::ALL.len()],
    discovery_aggregations: AtomicU64,
    missing_san: AtomicU64,
    access_records_dropped: Arc<AtomicU64>,
    /// The reason of each APIService that is unavailable, nothing for the others.
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

/// The state of an APIService's circuit; the number is the metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Requests go through.
    Closed = 0,
    /// One request at a time tries whether it is well again.
    HalfOpen = 1,
    /// Nothing goes through.
    Open = 2,
}

impl Circuit {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Circuit::Closed => "closed",
            Circuit::HalfOpen => "half-open",
            Circuit::Open => "open",
        }
    }
}

/// One endpoint now, all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointNow {
    /// Connections that stand.
    pub connections: u64,
    /// Requests under way, watches among them; as of the last second.
    pub under_way: u64,
    /// From a request to the head of its answer, on average of the last seconds; none when there was none.
    pub latency: Option<Duration>,
}

/// What runs for one APIService now, all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Requests that are not long-running.
    pub requests: u64,
    /// Open watches.
    pub watches: u64,
}

impl Metrics {
    /// Metrics with nothing counted.
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

    /// The text of all metrics, as they are now.
    pub fn render(&self, format: Format) -> String {
        render::render(self, format)
    }

    /// What is counted of questions to a control plane.
    pub fn reviews(&self) -> &Reviews {
        &self.reviews
    }

    /// The health of calls to API servers, webhooks, token issuers and egress proxies.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Certificates that servers presented in handshakes of ours.
    pub fn peer_certificates(&self) -> &PeerCertificates {
        &self.peer_certificates
    }

    /// `count` certificates, ours or those of servers, end within the time of the label `within` or have ended.
    pub fn certificates_expire_within(&self, within: &str, count: usize) {
        self.certificates_expiring.set([within], count as f64);
    }

    /// What is counted of requests to act as somebody else.
    pub fn impersonations(&self) -> &Impersonations {
        &self.impersonations
    }

    /// What is counted of authorizers that a configuration names.
    pub fn authorization(&self) -> &Authorization {
        &self.authorization
    }

    /// What is counted of connections that somebody else opens for us.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// What is counted of audit events.
    pub(in crate::observe) fn audit(&self) -> &AuditCounts {
        &self.audit
    }

    /// What is counted of requests that found no place.
    pub fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// What is counted of a SOCKS5 door.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// A client's TLS handshake failed, for this reason.
    pub fn tls_handshake_failed(&self, failure: HandshakeFailure) {
        self.tls_handshake_errors[failure as usize].fetch_add(1, Relaxed);
    }

    /// How many TLS handshakes of clients failed, by reason.
    pub fn tls_handshake_failures(&self) -> [(HandshakeFailure, u64); HandshakeFailure::ALL.len()] {
        HandshakeFailure::ALL.map(|failure| (failure, self.tls_handshake_errors[failure as usize].load(Relaxed)))
    }

    /// Discovery was merged once more.
    pub fn discovery_aggregated(&self) {
        self.discovery_aggregations.fetch_add(1, Relaxed);
    }

    /// A backend's serving certificate carries no subject alternative name.
    pub fn backend_misses_san(&self) {
        self.missing_san.fetch_add(1, Relaxed);
    }

    /// The counter of access records that were dropped because they could not be written in time.
    pub(in crate::observe) fn access_records_dropped(&self) -> Arc<AtomicU64> {
        self.access_records_dropped.clone()
    }

    /// APIService `name` is available, or not for `reason`. Counted when it just became unavailable,
    /// and when the reason changed.
    pub fn apiservice_is(&self, name: &str, unavailable: Option<&str>) {
        let reason = unavailable.map(str::to_owned);
        let before = self.unavailable.lock().insert(name.to_owned(), reason.clone()).flatten();
        if let Some(reason) = reason.filter(|reason| before.as_ref() != Some(reason)) {
            *self.unavailable_total.values.lock().entry([name.to_owned(), reason]).or_default() += 1.0;
        }
    }

    /// APIService `name` left the registry: nothing is said about it any more.
    pub fn apiservice_is_gone(&self, name: &str) {
        self.unavailable.lock().remove(name);
        self.unavailable_total.forget(name);
        self.ejected.forget(name);
        self.circuit.forget(name);
    }

    /// Endpoint `address` of APIService `service` is ejected, or takes requests.
    pub fn endpoint_ejected(&self, service: &str, address: &str, ejected: bool) {
        self.ejected.set([service, address], f64::from(u8::from(ejected)));
    }

    /// Endpoint `address` of APIService `service` is no more.
    pub fn endpoint_is_gone(&self, service: &str, address: &str) {
        self.ejected.values.lock().remove(&[service.to_owned(), address.to_owned()]);
    }

    /// The circuit of APIService `service` is in `state`.
    pub fn circuit_is(&self, service: &str, state: Circuit) {
        self.circuit.set([service], f64::from(state as u8));
    }

    /// The certificate in `file` ends at `not_after`, in seconds since 1970.
    pub fn certificate_expires(&self, file: &str, not_after: i64) {
        self.certificate_expiry.set([file], not_after as f64);
    }

    /// No certificate is read from `file` any more.
    pub fn certificate_is_gone(&self, file: &str) {
        self.certificate_expiry.forget(file);
    }

    /// Whether `source`, which is no file, says what there is; if not, what it said last is used.
    pub fn registry_source_is_up(&self, source: &str, up: bool) {
        self.registry_source_up.set([source], f64::from(u8::from(up)));
    }

    /// Whether we hold the Lease `name`.
    pub fn leads(&self, name: &str, leads: bool) {
        self.leader.set([name], f64::from(u8::from(leads)));
    }

    /// `source` (a file of the registry directory, or `kube-apiserver`) holds `count` mistakes.
    pub fn registry_errors(&self, source: &str, count: usize) {
        self.registry_errors.set([source], count as f64);
    }

    /// There may be so many connections to all endpoints of one APIService.
    pub fn connections_are_bounded(&self, most: usize) {
        self.connections_bound.store(most as u64, Relaxed);
    }

    /// `count` things in the registry are allowed but deserve a second look.
    pub fn registry_warnings(&self, count: usize) {
        self.registry_warnings.store(count as u64, Relaxed);
    }

    /// What runs for APIService `name` now.
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

    /// Endpoint `address` of APIService `service` now.
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
        // Less than a tenth of a request is one of half a minute ago.
        now.latency = (count > 0.1).then(|| Duration::from_nanos((nanos / count) as u64));
        now
    }
}

/// Values that change now and then, by their labels' values.
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

    /// Takes off every series whose first label is `first`.
    fn forget(&self, first: &str) {
        self.values.lock().retain(|labels, _| labels[0] != first);
    }
}
