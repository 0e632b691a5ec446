//! What goes to one APIService and to one of its endpoints, as one worker thread counts it.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cell::{BACKEND_SECONDS, Histogram, Recent, Tally};
use super::labels::{BackendPhase, ConnectionState, Protocol, Retry};

/// One APIService as this thread counts it; its series end with the last handle of all threads.
pub struct Service(Arc<ServiceSeries>, PhantomData<Rc<()>>);

/// One endpoint of an APIService as this thread counts it; its series end with the last handle.
pub struct Endpoint(Arc<EndpointSeries>, PhantomData<Rc<()>>);

/// One connection to a backend; counted until dropped.
pub struct ConnectionCount {
    endpoint: Rc<Endpoint>,
    protocol: Protocol,
    state: ConnectionState,
}

impl Service {
    /// A handle and the series it counts in, which the shard keeps.
    pub(super) fn open(name: &str) -> (Rc<Service>, Arc<ServiceSeries>) {
        let series = Arc::new(ServiceSeries {
            name: name.to_owned(),
            watches: Tally::default(),
            in_flight: Tally::default(),
            retries: Default::default(),
            forbidden_bodies: Tally::default(),
        });
        (Rc::new(Service(series.clone(), PhantomData)), series)
    }

    /// Its name, for example `v1.example.narthex.dev`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Counts a request that went to a backend once more.
    pub fn retried(&self, reason: Retry) {
        self.0.retries[reason as usize].up();
    }

    /// Counts a body that came behind a status that has none.
    pub fn sent_forbidden_body(&self) {
        self.0.forbidden_bodies.up();
    }

    pub(in crate::observe) fn request_began(&self, long_running: bool, watch: bool) {
        if watch {
            self.0.watches.up();
        }
        if !long_running {
            self.0.in_flight.up();
        }
    }

    pub(in crate::observe) fn request_runs_long(&self) {
        self.0.in_flight.down();
    }

    pub(in crate::observe) fn request_ended(&self, long_running: bool, watch: bool) {
        if watch {
            self.0.watches.down();
        }
        if !long_running {
            self.0.in_flight.down();
        }
    }
}

impl Endpoint {
    /// A handle and the series it counts in, which the shard keeps.
    pub(super) fn open(service: &str, address: &str) -> (Rc<Endpoint>, Arc<EndpointSeries>) {
        let series = Arc::new(EndpointSeries {
            service: service.to_owned(),
            address: address.to_owned(),
            phases: std::array::from_fn(|_| Histogram::new(&BACKEND_SECONDS)),
            connections: Default::default(),
            under_way: Tally::default(),
            recent: Recent::default(),
        });
        (Rc::new(Endpoint(series.clone(), PhantomData)), series)
    }

    /// Its address, as given.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Counts how long `phase` of a request took.
    pub fn observe(&self, phase: BackendPhase, took: Duration) {
        self.0.phases[phase as usize].observe_duration(took);
    }

    /// How many requests are under way, and what they took of late; say it every second.
    pub fn tell(&self, under_way: usize) {
        self.0.under_way.set(under_way as u64);
        let headers = &self.0.phases[BackendPhase::Headers as usize];
        self.0.recent.tell(headers);
    }

    /// Counts a connection, from now until the guard is dropped.
    pub fn connection(self: &Rc<Self>, protocol: Protocol, state: ConnectionState) -> ConnectionCount {
        self.0.connections[protocol as usize][state as usize].up();
        ConnectionCount { endpoint: self.clone(), protocol, state }
    }
}

impl ConnectionCount {
    /// The connection is in another state now.
    pub fn is_now(&mut self, state: ConnectionState) {
        let cells = &self.endpoint.0.connections[self.protocol as usize];
        cells[self.state as usize].down();
        cells[state as usize].up();
        self.state = state;
    }

    /// ALPN has decided what is spoken.
    pub fn speaks(&mut self, protocol: Protocol) {
        self.endpoint.0.connections[self.protocol as usize][self.state as usize].down();
        self.endpoint.0.connections[protocol as usize][self.state as usize].up();
        self.protocol = protocol;
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.endpoint.0.connections[self.protocol as usize][self.state as usize].down();
    }
}

pub(super) struct ServiceSeries {
    pub(super) name: String,
    pub(super) watches: Tally,
    pub(super) in_flight: Tally,
    /// As [`Retry::ALL`].
    pub(super) retries: [Tally; Retry::ALL.len()],
    pub(super) forbidden_bodies: Tally,
}

pub(super) struct EndpointSeries {
    pub(super) service: String,
    pub(super) address: String,
    /// As [`BackendPhase::ALL`].
    pub(super) phases: [Histogram; BackendPhase::ALL.len()],
    /// As [`Protocol::ALL`] and [`ConnectionState::ALL`].
    pub(super) connections: [[Tally; ConnectionState::ALL.len()]; Protocol::ALL.len()],
    /// Requests, as of the last second.
    pub(super) under_way: Tally,
    pub(super) recent: Recent,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::{Metrics, WorkerMetrics};

    #[test]
    fn a_connection_is_counted_where_it_stands_until_it_goes() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let endpoint = worker.endpoint("v1.example.narthex.dev", "10.0.0.1:443");
        let cells = &endpoint.0.connections;
        let mut connection = endpoint.connection(Protocol::Http1, ConnectionState::Connecting);
        connection.speaks(Protocol::Http2);
        connection.is_now(ConnectionState::Active);
        assert_eq!(cells[Protocol::Http2 as usize][ConnectionState::Active as usize].get(), 1);
        assert_eq!(cells[Protocol::Http1 as usize][ConnectionState::Connecting as usize].get(), 0);
        drop(connection);
        assert!(cells.iter().flatten().all(|cell| cell.get() == 0));
    }
}
