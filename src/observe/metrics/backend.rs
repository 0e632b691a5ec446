//! Metrics of one APIService and of one endpoint on one worker thread.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::counters::{BACKEND_SECONDS, DecayingSum, Histogram, LocalCounter};
use super::labels::{BackendPhase, ConnectionState, Protocol, Retry};

/// Metrics of one APIService on this thread; the series are removed with the last handle of all threads.
pub struct ApiServiceMetrics(Arc<ServiceSeries>, PhantomData<Rc<()>>);

/// Metrics of one endpoint on this thread; the series are removed with the last handle of all threads.
pub struct EndpointMetrics(Arc<EndpointSeries>, PhantomData<Rc<()>>);

/// Counts one connection to a backend until it is dropped.
pub struct ConnectionCount {
    endpoint: Rc<EndpointMetrics>,
    protocol: Protocol,
    state: ConnectionState,
}

impl ApiServiceMetrics {
    /// Creates a handle and its series, which the shard keeps.
    pub(super) fn create(name: &str) -> (Rc<ApiServiceMetrics>, Arc<ServiceSeries>) {
        let series = Arc::new(ServiceSeries {
            name: name.to_owned(),
            watches: LocalCounter::default(),
            in_flight: LocalCounter::default(),
            retries: Default::default(),
            forbidden_bodies: LocalCounter::default(),
        });
        (Rc::new(ApiServiceMetrics(series.clone(), PhantomData)), series)
    }

    /// Name, for example `v1.example.narthex.dev`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Counts a retried request.
    pub fn record_retry(&self, reason: Retry) {
        self.0.retries[reason as usize].increment();
    }

    /// Counts a response body with a status that does not allow one.
    pub fn record_forbidden_body(&self) {
        self.0.forbidden_bodies.increment();
    }

    pub(in crate::observe) fn request_started(&self, long_running: bool, watch: bool) {
        if watch {
            self.0.watches.increment();
        }
        if !long_running {
            self.0.in_flight.increment();
        }
    }

    pub(in crate::observe) fn request_is_long_running(&self) {
        self.0.in_flight.decrement();
    }

    pub(in crate::observe) fn request_finished(&self, long_running: bool, watch: bool) {
        if watch {
            self.0.watches.decrement();
        }
        if !long_running {
            self.0.in_flight.decrement();
        }
    }
}

impl EndpointMetrics {
    /// Creates a handle and its series, which the shard keeps.
    pub(super) fn create(service: &str, address: &str) -> (Rc<EndpointMetrics>, Arc<EndpointSeries>) {
        let series = Arc::new(EndpointSeries {
            service: service.to_owned(),
            address: address.to_owned(),
            phases: std::array::from_fn(|_| Histogram::new(&BACKEND_SECONDS)),
            connections: Default::default(),
            inflight: LocalCounter::default(),
            failures: LocalCounter::default(),
            unanswered: LocalCounter::default(),
            recent: DecayingSum::default(),
        });
        (Rc::new(EndpointMetrics(series.clone(), PhantomData)), series)
    }

    /// Address of the endpoint.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Observes the duration of `phase` of a request.
    pub fn observe(&self, phase: BackendPhase, duration: Duration) {
        self.0.phases[phase as usize].observe_duration(duration);
    }

    /// Counts a request that ended with a 5xx status, or whose response did not arrive (`unanswered`) or was cut off.
    pub(in crate::observe) fn record_failure(&self, unanswered: bool) {
        self.0.failures.increment();
        if unanswered {
            self.0.unanswered.increment();
        }
    }

    /// Updates the number of requests in flight and the recent latency; called every second.
    pub fn update(&self, under_way: usize) {
        self.0.inflight.set(under_way as u64);
        let headers = &self.0.phases[BackendPhase::Headers as usize];
        self.0.recent.update(headers);
    }

    /// Counts a connection until the guard is dropped.
    pub fn count_connection(self: &Rc<Self>, protocol: Protocol, state: ConnectionState) -> ConnectionCount {
        self.0.connections[protocol as usize][state as usize].increment();
        ConnectionCount { endpoint: self.clone(), protocol, state }
    }
}

impl ConnectionCount {
    /// Changes the state of the connection.
    pub fn set_state(&mut self, state: ConnectionState) {
        let cells = &self.endpoint.0.connections[self.protocol as usize];
        cells[self.state as usize].decrement();
        cells[state as usize].increment();
        self.state = state;
    }

    /// Sets the protocol negotiated by ALPN.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.endpoint.0.connections[self.protocol as usize][self.state as usize].decrement();
        self.endpoint.0.connections[protocol as usize][self.state as usize].increment();
        self.protocol = protocol;
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.endpoint.0.connections[self.protocol as usize][self.state as usize].decrement();
    }
}

pub(super) struct ServiceSeries {
    pub(super) name: String,
    pub(super) watches: LocalCounter,
    pub(super) in_flight: LocalCounter,
    /// In the order of [`Retry::ALL`].
    pub(super) retries: [LocalCounter; Retry::ALL.len()],
    pub(super) forbidden_bodies: LocalCounter,
}

pub(super) struct EndpointSeries {
    pub(super) service: String,
    pub(super) address: String,
    /// In the order of [`BackendPhase::ALL`].
    pub(super) phases: [Histogram; BackendPhase::ALL.len()],
    /// In the order of [`Protocol::ALL`] and [`ConnectionState::ALL`].
    pub(super) connections: [[LocalCounter; ConnectionState::ALL.len()]; Protocol::ALL.len()],
    /// Requests in flight, updated every second.
    pub(super) inflight: LocalCounter,
    /// Requests that failed, of which `unanswered` had no response headers.
    pub(super) failures: LocalCounter,
    pub(super) unanswered: LocalCounter,
    pub(super) recent: DecayingSum,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::{Metrics, WorkerMetrics};

    #[test]
    fn connection_count_follows_state_until_dropped() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let endpoint = worker.endpoint("v1.example.narthex.dev", "10.0.0.1:443");
        let cells = &endpoint.0.connections;
        let mut connection = endpoint.count_connection(Protocol::Http1, ConnectionState::Connecting);
        connection.set_protocol(Protocol::Http2);
        connection.set_state(ConnectionState::Active);
        assert_eq!(cells[Protocol::Http2 as usize][ConnectionState::Active as usize].get(), 1);
        assert_eq!(cells[Protocol::Http1 as usize][ConnectionState::Connecting as usize].get(), 0);
        drop(connection);
        assert!(cells.iter().flatten().all(|cell| cell.get() == 0));
    }
}
