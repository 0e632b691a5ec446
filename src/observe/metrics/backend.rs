//! Metrics of one APIService and of one endpoint on one worker thread.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cell::{BACKEND_SECONDS, Histogram, Recent, Tally};
use super::labels::{BackendPhase, ConnectionState, Protocol, Retry};

/// Metrics of one APIService on this thread; the series are removed with the last handle of all threads.
pub struct Service(Arc<ServiceSeries>, PhantomData<Rc<()>>);

/// Metrics of one endpoint on this thread; the series are removed with the last handle of all threads.
pub struct Endpoint(Arc<EndpointSeries>, PhantomData<Rc<()>>);

/// Counts one connection to a backend until it is dropped.
pub struct ConnectionCount {
    endpoint: Rc<Endpoint>,
    protocol: Protocol,
    state: ConnectionState,
}

impl Service {
    /// Creates a handle and its series, which the shard keeps.
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

    /// Name, for example `v1.example.narthex.dev`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Counts a retried request.
    pub fn retried(&self, reason: Retry) {
        self.0.retries[reason as usize].up();
    }

    /// Counts a response body with a status that does not allow one.
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
    /// Creates a handle and its series, which the shard keeps.
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

    /// Address of the endpoint.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Observes the duration of `phase` of a request.
    pub fn observe(&self, phase: BackendPhase, took: Duration) {
        self.0.phases[phase as usize].observe_duration(took);
    }

    /// Updates the number of requests in flight and the recent latency; called every second.
    pub fn tell(&self, under_way: usize) {
        self.0.under_way.set(under_way as u64);
        let headers = &self.0.phases[BackendPhase::Headers as usize];
        self.0.recent.tell(headers);
    }

    /// Counts a connection until the guard is dropped.
    pub fn connection(self: &Rc<Self>, protocol: Protocol, state: ConnectionState) -> ConnectionCount {
        self.0.connections[protocol as usize][state as usize].up();
        ConnectionCount { endpoint: self.clone(), protocol, state }
    }
}

impl ConnectionCount {
    /// Changes the state of the connection.
    pub fn is_now(&mut self, state: ConnectionState) {
        let cells = &self.endpoint.0.connections[self.protocol as usize];
        cells[self.state as usize].down();
        cells[state as usize].up();
        self.state = state;
    }

    /// Sets the protocol negotiated by ALPN.
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
    /// In the order of [`Retry::ALL`].
    pub(super) retries: [Tally; Retry::ALL.len()],
    pub(super) forbidden_bodies: Tally,
}

pub(super) struct EndpointSeries {
    pub(super) service: String,
    pub(super) address: String,
    /// In the order of [`BackendPhase::ALL`].
    pub(super) phases: [Histogram; BackendPhase::ALL.len()],
    /// In the order of [`Protocol::ALL`] and [`ConnectionState::ALL`].
    pub(super) connections: [[Tally; ConnectionState::ALL.len()]; Protocol::ALL.len()],
    /// Requests in flight, updated every second.
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
