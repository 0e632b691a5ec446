//! The state of a worker thread: its share of the client connections and its own connection pools.

mod connection;
mod connection_target;
mod control_planes;
mod header_cache;
mod requested_host;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

pub(super) use self::connection::ClientConnection;
pub(super) use self::connection_target::ConnectionTarget;
use self::control_planes::ControlPlaneWorkers;
pub(super) use self::control_planes::GatewayWorkers;
use kubeapi::{Status, User};
use store::watch_cache::Notifier;

use self::header_cache::HeaderCache;
use super::state::GatewayState;
use crate::egress::{self, Dialer, Pool};
use crate::forward::{ApiServiceState, BackendSource, LongRunningResponses, UserHeaders, WorkerBackend};
use crate::message::{Blame, Refusal};
use crate::observe::{access, metrics};
use crate::process::{Published, ShutdownPhase};
use crate::registry::DisplayName;
use crate::route::{Route, RouteTable, RouteTarget};
use crate::tls::KeyPair;

/// Limit of users with cached identity headers; when it is reached, the cache is cleared.
const MAX_CACHED_IDENTITIES: usize = 1024;

/// State shared by the requests of one worker thread.
pub(super) struct GatewayWorker {
    pub(super) shared: Arc<GatewayState>,
    pub(super) reports: Rc<access::WorkerRecorder>,
    pub(super) streams: LongRunningResponses,
    /// Wakes the watches of objects on this thread.
    pub(super) notifier: Notifier,
    pool: Pool,
    backends: RefCell<BackendCache>,
    header_cache: HeaderCache,
    identity_cache: RefCell<HashMap<*const User, CachedIdentity>>,
    connections: RefCell<Vec<Weak<ClientConnection>>>,
    connection_counts: RefCell<HashMap<BackendConnectionKey, Vec<metrics::ConnectionCount>>>,
    ejected: RefCell<HashMap<(String, String), bool>>,
    endpoint_watches: RefCell<HashMap<String, Rc<ApiServiceState>>>,
}

/// The identity headers of a user. The user is held so that its address, the cache key, is not reused.
type CachedIdentity = (Arc<User>, Rc<UserHeaders>);

/// Key of a connection count: APIService, address, protocol and connection state.
type BackendConnectionKey = (String, String, metrics::Protocol, metrics::ConnectionState);

/// The backends of the routes used by this worker. The key is the route's address; the route is held so that the
/// address is not reused.
#[derive(Default)]
struct BackendCache {
    /// The client certificate with which these backends were created.
    client_certificate: Option<Arc<KeyPair>>,
    by_route: HashMap<*const Route, (Arc<Route>, Rc<WorkerBackend>)>,
}

/// Limits of connections to the endpoints of an APIService.
#[derive(Clone, Copy)]
pub(super) struct ConnectionLimits {
    /// Per endpoint and worker.
    pub(super) per_endpoint: usize,
    /// For all endpoints, over all workers.
    pub(super) total: usize,
}

impl ConnectionLimits {
    /// Limits derived from the file descriptor limit. An HTTP/1.1 backend with many watches must not use up all
    /// `descriptors`: an eighth may go to one endpoint, a quarter to one APIService.
    pub(super) fn new(descriptors: Option<u64>, workers: usize) -> ConnectionLimits {
        let part = |of: u64| descriptors.map_or(usize::MAX, |all| usize::try_from(all / of).unwrap_or(usize::MAX));
        ConnectionLimits { per_endpoint: (part(8) / workers).max(16), total: part(4).max(64) }
    }
}

impl GatewayWorker {
    /// A worker with at most `limits` connections to backends.
    pub(super) fn new(
        shared: Arc<GatewayState>,
        reports: Rc<access::WorkerRecorder>,
        dialer: Dialer,
        limits: ConnectionLimits,
    ) -> Rc<GatewayWorker> {
        Rc::new(GatewayWorker {
            notifier: shared.api.collections().notifier(),
            shared,
            reports,
            streams: LongRunningResponses::default(),
            pool: Pool::new(dialer).with_max_per_endpoint(limits.per_endpoint).with_max_per_api_service(limits.total),
            backends: RefCell::default(),
            header_cache: HeaderCache::default(),
            identity_cache: RefCell::default(),
            connections: RefCell::default(),
            connection_counts: RefCell::default(),
            ejected: RefCell::default(),
            endpoint_watches: RefCell::default(),
        })
    }

    /// The backend of a target.
    pub(super) fn backend(&self, target: &RouteTarget) -> Result<Rc<WorkerBackend>, Refusal> {
        self.route_backend(target.route())
    }

    fn route_backend(&self, route: &Arc<Route>) -> Result<Rc<WorkerBackend>, Refusal> {
        let mut backends = self.backends.borrow_mut();
        let identity = self.shared.identity.as_ref().map(Published::load);
        let identity = identity.as_deref();
        if backends.client_certificate.as_ref().map(Arc::as_ptr) != identity.map(Arc::as_ptr) {
            *backends = BackendCache { client_certificate: identity.cloned(), by_route: HashMap::new() };
        }
        if let Some((_, backend)) = backends.by_route.get(&Arc::as_ptr(route)) {
            return Ok(backend.clone());
        }
        let watches = self.endpoint_watches.borrow_mut().entry(route.api_service.name.clone()).or_default().clone();
        let made = WorkerBackend::new(route, identity, &watches, &self.pool, self.reports.metrics());
        let backend = Rc::new(made.map_err(|problem| {
            let name = &route.api_service.name;
            let status = Status::internal_error(format!("{} cannot be reached safely", DisplayName(name)))
                .with_cause("TLSConfiguration", "its TLS settings are invalid; the reason is in the gateway's log");
            Refusal::new(Blame::Gateway, status).with_cause(problem)
        })?);
        backends.by_route.insert(Arc::as_ptr(route), (route.clone(), backend.clone()));
        Ok(backend)
    }

    /// The identity headers of `user`, cached.
    pub(super) fn identity_headers(&self, user: &Arc<User>) -> Result<Rc<UserHeaders>, Refusal> {
        let mut stamps = self.identity_cache.borrow_mut();
        if let Some((_, stamp)) = stamps.get(&Arc::as_ptr(user)) {
            return Ok(stamp.clone());
        }
        let guard = &self.shared.policy;
        let is_open_path = Arc::ptr_eq(user, &guard.open_path_user);
        let stamp = if is_open_path {
            Ok(UserHeaders::empty())
        } else {
            UserHeaders::with_format(user, &guard.identity_header_format)
        };
        let stamp = stamp.map_err(|unspeakable| {
            let status = Status::internal_error("the caller's identity cannot be passed on");
            Refusal::new(Blame::Client, status).with_cause(unspeakable.0)
        })?;
        if stamps.len() >= MAX_CACHED_IDENTITIES {
            stamps.clear();
        }
        let stamp = Rc::new(stamp);
        stamps.insert(Arc::as_ptr(user), (user.clone(), stamp.clone()));
        Ok(stamp)
    }

    /// Follows a shutdown: watches end, then all other long-running responses, then requests are aborted.
    fn follow(&self, phase: ShutdownPhase) {
        if phase >= ShutdownPhase::Draining {
            self.streams.drain();
        }
        if phase >= ShutdownPhase::Ending {
            self.streams.stop();
        }
        if phase >= ShutdownPhase::TimedOut {
            self.reports.start_cutting();
        }
    }

    /// Asks the clients of all connections to use others.
    fn close_connections(&self) {
        for connection in self.connections.borrow().iter().filter_map(Weak::upgrade) {
            connection.handle.close_gracefully();
        }
    }

    pub(super) fn track(&self, connection: &Rc<ClientConnection>) {
        self.connections.borrow_mut().push(Rc::downgrade(connection));
    }

    /// Removes unused cache entries and closes connections with a client certificate that is no longer trusted.
    pub(super) fn sweep(&self) {
        self.pool.sweep();
        let table = self.shared.table.get();
        let is_current = |route: &Arc<Route>| {
            table.by_name(&route.api_service.name).is_some_and(|current| Arc::ptr_eq(current, route))
        };
        self.backends.borrow_mut().by_route.retain(|_, (route, _)| is_current(route));
        self.drain_watches(&table);
        // Users held only by the cache have no running request.
        self.identity_cache.borrow_mut().retain(|_, (user, _)| Arc::strong_count(user) > 1);
        self.connections.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            if let Some(why) = connection.trust_loss_reason() {
                tracing::info!(client = %connection.remote, why, "connection closed: certificate no longer trusted");
                connection.handle.close_now();
            }
            true
        });
        self.record_metrics();
    }

    /// Ends watches at endpoints that are no longer listed, so that clients reconnect to others.
    fn drain_watches(&self, table: &RouteTable) {
        let now = Instant::now();
        let backends = self.backends.borrow();
        self.endpoint_watches.borrow_mut().retain(|name, history| {
            let route = table.by_name(name);
            let resolved = route.and_then(|route| route.resolved.as_ref().ok());
            let listed = resolved.map_or(&[][..], |resolved| &resolved.endpoints);
            // Only if there are watches: it takes a lock.
            let elsewhere = !history.is_empty() && route.is_some_and(|route| can_serve(route, &backends));
            history.update_drain(&self.streams, listed, elsewhere, now);
            route.is_some() || !history.is_empty()
        });
    }

    /// Records the connections to backends in the metrics.
    fn record_metrics(&self) {
        let mut connection_counts = self.connection_counts.borrow_mut();
        let mut gone = std::mem::take(&mut *self.ejected.borrow_mut());
        let mut now: HashMap<BackendConnectionKey, (Rc<metrics::EndpointMetrics>, usize)> = HashMap::new();
        for (_, backend) in self.backends.borrow().by_route.values() {
            backend.sync_endpoint_health();
            let service = &backend.api_service().name;
            for (endpoint, counts, failed) in backend.endpoints() {
                let report = endpoint.report();
                let address = counts.address();
                counts.update(report.pending);
                // Each worker reports the changes it saw; an endpoint that never failed needs no report.
                let key = (service.clone(), address.to_owned());
                if gone.remove(&key).unwrap_or(false) != failed {
                    self.shared.metrics.set_endpoint_ejected(service, address, failed);
                }
                self.ejected.borrow_mut().insert(key, failed);
                let protocol = match report.protocol {
                    Some(egress::HttpVersion::Http2) => metrics::Protocol::Http2,
                    Some(egress::HttpVersion::Http1) => metrics::Protocol::Http1,
                    None => continue,
                };
                for (state, count) in
                    [(metrics::ConnectionState::Idle, report.idle), (metrics::ConnectionState::Active, report.busy)]
                {
                    now.insert((service.clone(), address.to_owned(), protocol, state), (counts.clone(), count));
                }
            }
        }
        for (service, address) in gone.into_keys() {
            self.shared.metrics.remove_endpoint(&service, &address);
        }
        connection_counts.retain(|key, _| now.contains_key(key));
        for (key, (counts, count)) in now {
            let (protocol, state) = (key.2, key.3);
            connection_counts.entry(key).or_default().resize_with(count, || counts.count_connection(protocol, state));
        }
    }
}

impl BackendSource for GatewayWorker {
    fn current_backend(&self, route: &Arc<Route>) -> Option<Rc<WorkerBackend>> {
        self.route_backend(route).ok()
    }
}

/// Whether ended watches could be served again: the APIService is not known to be unavailable, and not all of its
/// current endpoints are ejected, according to any worker or to this one.
fn can_serve(route: &Arc<Route>, backends: &BackendCache) -> bool {
    let cached = backends.by_route.get(&Arc::as_ptr(route)).map(|(_, backend)| backend);
    route.is_serving() && cached.is_none_or(|backend| backend.endpoints().any(|(_, _, out)| !out))
}
