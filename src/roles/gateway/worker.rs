//! A worker thread: its share of the client connections and its own connection pools.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::connection::Connection;
use super::shared::Shared;
use super::signatures::Signatures;
use crate::egress::{self, Dialler, Pool};
use crate::forward::{Backend, History, Stamp, Streams};
use crate::kubeapi::{Status, User};
use crate::listen::{Accepted, Connections, Incoming, Limits, Service, serve};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::HandshakeFailure;
use crate::observe::{access, metrics};
use crate::process::{Phase, Published};
use crate::registry::Called;
use crate::route::{Route, Table, Target};
use crate::tls::KeyPair;

/// Interval of sweeping connections, pools and caches, and of checking trust.
const ROUND: Duration = Duration::from_secs(1);
/// Time for handshakes to finish once the process drains.
const ARRIVAL: Duration = Duration::from_secs(2);
/// Limit of users with cached identity headers; when it is reached, the cache is cleared.
const MOST_STAMPS: usize = 1024;

/// State shared by the requests of one worker thread.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) reports: Rc<access::Worker>,
    pub(super) streams: Streams,
    pool: Pool,
    backends: RefCell<Backends>,
    pub(super) signatures: Signatures,
    stamps: RefCell<HashMap<*const User, Stamped>>,
    connections: RefCell<Vec<Weak<Connection>>>,
    told: RefCell<HashMap<Told, Vec<metrics::ConnectionCount>>>,
    failed: RefCell<HashMap<(String, String), bool>>,
    histories: RefCell<HashMap<String, Rc<History>>>,
}

/// The identity headers of a user. The user is held so that its address, the cache key, is not reused.
type Stamped = (Arc<User>, Rc<Stamp>);

/// Key of a connection count: APIService, address, protocol and connection state.
type Told = (String, String, metrics::Protocol, metrics::ConnectionState);

/// The backends of the routes used by this worker. The key is the route's address; the route is held so that the
/// address is not reused.
#[derive(Default)]
struct Backends {
    /// The client certificate with which these backends were created.
    ours: Option<Arc<KeyPair>>,
    by_route: HashMap<*const Route, (Arc<Route>, Rc<Backend>)>,
}

/// Limits of connections to the endpoints of an APIService.
#[derive(Clone, Copy)]
pub(super) struct Most {
    /// Per endpoint and worker.
    pub(super) to_one: usize,
    /// For all endpoints, over all workers.
    pub(super) to_all: usize,
}

impl Most {
    /// Limits derived from the file descriptor limit. An HTTP/1.1 backend with many watches must not use up all
    /// `descriptors`: an eighth may go to one endpoint, a quarter to one APIService.
    pub(super) fn of(descriptors: Option<u64>, workers: usize) -> Most {
        let part = |of: u64| descriptors.map_or(usize::MAX, |all| usize::try_from(all / of).unwrap_or(usize::MAX));
        Most { to_one: (part(8) / workers).max(16), to_all: part(4).max(64) }
    }
}

impl Worker {
    /// A worker with at most `most` connections to backends.
    pub(super) fn new(shared: Arc<Shared>, reports: Rc<access::Worker>, dialler: Dialler, most: Most) -> Rc<Worker> {
        Rc::new(Worker {
            shared,
            reports,
            streams: Streams::default(),
            pool: Pool::new(dialler).with_most(most.to_one).with_most_together(most.to_all),
            backends: RefCell::default(),
            signatures: Signatures::default(),
            stamps: RefCell::default(),
            connections: RefCell::default(),
            told: RefCell::default(),
            failed: RefCell::default(),
            histories: RefCell::default(),
        })
    }

    /// The backend of a target.
    pub(super) fn backend(&self, target: &Target) -> Result<Rc<Backend>, Refusal> {
        let mut backends = self.backends.borrow_mut();
        let ours = self.shared.identity.as_ref().map(Published::load);
        let ours = ours.as_deref();
        if backends.ours.as_ref().map(Arc::as_ptr) != ours.map(Arc::as_ptr) {
            *backends = Backends { ours: ours.cloned(), by_route: HashMap::new() };
        }
        let route = target.route();
        if let Some((_, backend)) = backends.by_route.get(&Arc::as_ptr(route)) {
            return Ok(backend.clone());
        }
        let history = self.histories.borrow_mut().entry(route.api_service.name.clone()).or_default().clone();
        let made = Backend::new(target, ours, &history, &self.pool, self.reports.metrics());
        let backend = Rc::new(made.map_err(|problem| {
            let name = &route.api_service.name;
            let status = Status::internal_error(format!("{} cannot be reached safely", Called(name)))
                .with_cause("TLSConfiguration", "its TLS settings are invalid; the reason is in the gateway's log");
            Refusal::new(Blame::Gateway, status).because(problem)
        })?);
        backends.by_route.insert(Arc::as_ptr(route), (route.clone(), backend.clone()));
        Ok(backend)
    }

    /// The identity headers of `user`, cached.
    pub(super) fn stamp(&self, user: &Arc<User>) -> Result<Rc<Stamp>, Refusal> {
        let mut stamps = self.stamps.borrow_mut();
        if let Some((_, stamp)) = stamps.get(&Arc::as_ptr(user)) {
            return Ok(stamp.clone());
        }
        let guard = &self.shared.guard;
        let nobody = Arc::ptr_eq(user, &guard.nobody);
        let stamp = if nobody { Ok(Stamp::nobody()) } else { Stamp::worded(user, &guard.wording) };
        let stamp = stamp.map_err(|unspeakable| {
            let status = Status::internal_error("the caller's identity cannot be passed on");
            Refusal::new(Blame::Client, status).because(unspeakable.0)
        })?;
        if stamps.len() >= MOST_STAMPS {
            stamps.clear();
        }
        let stamp = Rc::new(stamp);
        stamps.insert(Arc::as_ptr(user), (user.clone(), stamp.clone()));
        Ok(stamp)
    }

    pub(super) fn remember(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().push(Rc::downgrade(connection));
    }

    /// Serves connections until the process drains, then until all of them have ended.
    pub(super) async fn run(
        self: Rc<Self>,
        mut incoming: mpsc::UnboundedReceiver<Incoming>,
        limits: Limits,
        connections: Connections,
    ) {
        let limits = Rc::new(limits);
        let mut round = tokio::time::interval(ROUND);
        let [mut drain, mut end, mut over] = std::array::from_fn(|_| self.shared.drain.clone());
        let (mut draining, mut ending, mut cut, mut open) = (None, false, false, true);
        loop {
            tokio::select! {
                arrived = incoming.recv(), if open => match arrived {
                    Some(arrived) => {
                        let tls = self.shared.serving.config.load().as_ref().clone();
                        let service = Rc::new(Meeting(self.clone()));
                        tokio::task::spawn_local(serve(arrived, tls, service, limits.clone(), connections.clone()));
                    }
                    None => open = false,
                },
                _ = round.tick() => {
                    connections.sweep(&limits);
                    self.tidy();
                }
                () = drain.reached(Phase::Draining), if draining.is_none() => {
                    draining = Some(Instant::now());
                    connections.finish();
                    self.streams.finish();
                }
                () = end.reached(Phase::Ending), if !ending => {
                    ending = true;
                    self.streams.end();
                }
                () = over.reached(Phase::Over), if !cut => {
                    cut = true;
                    self.reports.cut();
                    connections.cut();
                }
            }
            // Handshakes begun before the port closed may finish, within `ARRIVAL`.
            let arrived = connections.arriving() == 0 || draining.is_some_and(|since| since.elapsed() > ARRIVAL);
            if !open && draining.is_some() && arrived && connections.is_empty() && self.streams.is_empty() {
                return;
            }
        }
    }

    /// Removes unused cache entries and closes connections with a client certificate that is no longer trusted.
    fn tidy(&self) {
        self.pool.sweep();
        let table = self.shared.table.get();
        let known =
            |route: &Arc<Route>| table.by_name(&route.api_service.name).is_some_and(|known| Arc::ptr_eq(known, route));
        self.backends.borrow_mut().by_route.retain(|_, (route, _)| known(route));
        self.move_on(&table);
        // Users held only by the cache have no running request.
        self.stamps.borrow_mut().retain(|_, (user, _)| Arc::strong_count(user) > 1);
        self.connections.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            if let Some(why) = connection.lost_trust() {
                tracing::info!(client = %connection.remote, why, "connection closed: certificate no longer trusted");
                connection.closer.cut();
            }
            true
        });
        self.tell();
    }

    /// Ends watches at endpoints that are no longer listed, so that clients reconnect to others.
    fn move_on(&self, table: &Table) {
        let now = Instant::now();
        let backends = self.backends.borrow();
        self.histories.borrow_mut().retain(|name, history| {
            let route = table.by_name(name);
            let resolved = route.and_then(|route| route.resolved.as_ref().ok());
            let listed = resolved.map_or(&[][..], |resolved| &resolved.endpoints);
            // Only if there are watches: it takes a lock.
            let elsewhere = !history.is_empty() && route.is_some_and(|route| takes_on(route, &backends));
            history.look(&self.streams, listed, elsewhere, now);
            route.is_some() || !history.is_empty()
        });
    }

    /// Records the connections to backends in the metrics.
    fn tell(&self) {
        let mut told = self.told.borrow_mut();
        let mut gone = std::mem::take(&mut *self.failed.borrow_mut());
        let mut now: HashMap<Told, (Rc<metrics::Endpoint>, usize)> = HashMap::new();
        for (_, backend) in self.backends.borrow().by_route.values() {
            backend.share_silence();
            let service = &backend.api_service().name;
            for (endpoint, counts, failed) in backend.endpoints() {
                let report = endpoint.report();
                let address = counts.address();
                counts.tell(report.pending);
                // Each worker reports the changes it saw; an endpoint that never failed needs no report.
                let key = (service.clone(), address.to_owned());
                if gone.remove(&key).unwrap_or(false) != failed {
                    self.shared.metrics.endpoint_ejected(service, address, failed);
                }
                self.failed.borrow_mut().insert(key, failed);
                let protocol = match report.protocol {
                    Some(egress::Protocol::Http2) => metrics::Protocol::Http2,
                    Some(egress::Protocol::Http1) => metrics::Protocol::Http1,
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
            self.shared.metrics.endpoint_is_gone(&service, &address);
        }
        told.retain(|key, _| now.contains_key(key));
        for (key, (counts, count)) in now {
            let (protocol, state) = (key.2, key.3);
            told.entry(key).or_default().resize_with(count, || counts.connection(protocol, state));
        }
    }
}

/// Whether ended watches could be served again: the APIService is not known to be unavailable, and not all of its
/// current endpoints are ejected, according to any worker or to this one.
fn takes_on(route: &Arc<Route>, backends: &Backends) -> bool {
    let known = backends.by_route.get(&Arc::as_ptr(route)).map(|(_, backend)| backend);
    route.takes_on() && known.is_none_or(|backend| backend.endpoints().any(|(_, _, out)| !out))
}

/// Creates the [`Connection`] of each accepted connection.
struct Meeting(Rc<Worker>);

impl Service for Meeting {
    type Connection = Connection;

    fn connection(&self, accepted: Accepted) -> Rc<Connection> {
        Connection::new(self.0.clone(), accepted)
    }

    fn handshake_failed(&self, remote: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
        self.0.shared.metrics.tls_handshake_failed(failure);
        self.0.shared.handshakes.log(remote, failure, error);
    }
}
