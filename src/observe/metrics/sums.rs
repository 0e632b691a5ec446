//! Sums of the counters of all workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::backend::{EndpointSeries, ServiceSeries};
use super::counters::HistogramTotal;
use super::labels::USERNAMES;
use super::worker::{MetricsShard, RequestSeries};
use super::{Authentication, BackendPhase, ConnectionState, Protocol, Retry};

/// Value of `component` as in kube-apiserver, so that its dashboards work.
const COMPONENT: &str = "apiserver";

/// Labels of one request series, in sort order.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
pub(super) struct RequestKey {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) scope: &'static str,
    pub(super) verb: &'static str,
    pub(super) dry_run: &'static str,
}

#[derive(Default)]
pub(super) struct RequestSums {
    pub(super) codes: BTreeMap<u16, u64>,
    pub(super) terminations: BTreeMap<u16, u64>,
    pub(super) unread_watches: u64,
    pub(super) duration: HistogramTotal,
    pub(super) sizes: Option<HistogramTotal>,
    pub(super) long_running: u64,
    pub(super) watch_events: HistogramTotal,
}

#[derive(Default)]
pub(super) struct ServiceSums {
    pub(super) watches: u64,
    pub(super) retries: [u64; Retry::ALL.len()],
    pub(super) forbidden_bodies: u64,
}

#[derive(Default)]
pub(super) struct EndpointSums {
    pub(super) phases: [HistogramTotal; BackendPhase::ALL.len()],
    pub(super) connections: [[u64; ConnectionState::ALL.len()]; Protocol::ALL.len()],
    pub(super) inflight: u64,
}

/// Sums over all workers.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) in_flight: [u64; 2],
    pub(super) attempts: [u64; Authentication::ALL.len()],
    pub(super) usernames: [u64; USERNAMES.len()],
    pub(super) requests: BTreeMap<RequestKey, RequestSums>,
    pub(super) services: BTreeMap<String, ServiceSums>,
    pub(super) endpoints: BTreeMap<(String, String), EndpointSums>,
}

impl Sums {
    pub(super) fn add(&mut self, shard: &MetricsShard) {
        add(&mut self.in_flight, shard.in_flight.iter().map(|cell| cell.get()));
        add(&mut self.attempts, shard.attempts.iter().map(|cell| cell.get()));
        add(&mut self.usernames, shard.usernames.iter().map(|cell| cell.get()));
        for series in shard.requests.lock().iter() {
            self.requests.entry(RequestKey::from_series(series)).or_default().add(series);
        }
        // A worker holds a reference to a series while it counts in it; other series are removed.
        let mut services = shard.services.lock();
        for service in services.iter() {
            self.services.entry(service.name.clone()).or_default().add(service);
        }
        services.retain(|service| Arc::strong_count(service) > 1);
        let mut endpoints = shard.endpoints.lock();
        for endpoint in endpoints.iter() {
            let key = (endpoint.service.clone(), endpoint.address.clone());
            self.endpoints.entry(key).or_default().add(endpoint);
        }
        endpoints.retain(|endpoint| Arc::strong_count(endpoint) > 1);
    }
}

impl RequestKey {
    fn from_series(series: &RequestSeries) -> RequestKey {
        RequestKey {
            group: series.group.clone(),
            version: series.version.clone(),
            resource: series.resource.clone(),
            subresource: series.subresource.clone(),
            scope: series.scope.as_str(),
            verb: series.verb.as_str(),
            dry_run: series.dry_run.as_str(),
        }
    }

    /// The labels sorted by name, as client_golang renders them.
    pub(super) fn labels<'r>(
        &'r self,
        dry_run: Option<&'r str>,
        code: Option<&'r str>,
    ) -> Vec<(&'static str, &'r str)> {
        let mut labels = Vec::with_capacity(9);
        labels.extend(code.map(|code| ("code", code)));
        labels.push(("component", COMPONENT));
        labels.extend(dry_run.map(|dry_run| ("dry_run", dry_run)));
        labels.extend([
            ("group", self.group.as_str()),
            ("resource", &self.resource),
            ("scope", self.scope),
            ("subresource", &self.subresource),
            ("verb", self.verb),
            ("version", &self.version),
        ]);
        labels
    }
}

impl RequestSums {
    fn add(&mut self, series: &RequestSeries) {
        series.codes.for_each(|code, count| *self.codes.entry(code).or_default() += count);
        series.terminations.for_each(|code, count| *self.terminations.entry(code).or_default() += count);
        self.unread_watches += series.unread_watches.get();
        series.duration.add_to(&mut self.duration);
        if let Some(sizes) = &series.sizes {
            sizes.add_to(self.sizes.get_or_insert_default());
        }
        self.long_running = self.long_running.wrapping_add(series.long_running.get());
        if let Some(events) = &series.watch_events {
            events.add_to(&mut self.watch_events);
        }
    }
}

impl ServiceSums {
    fn add(&mut self, series: &ServiceSeries) {
        self.watches = self.watches.wrapping_add(series.watches.get());
        add(&mut self.retries, series.retries.iter().map(|cell| cell.get()));
        self.forbidden_bodies = self.forbidden_bodies.wrapping_add(series.forbidden_bodies.get());
    }
}

impl EndpointSums {
    fn add(&mut self, series: &EndpointSeries) {
        for (sum, phase) in self.phases.iter_mut().zip(&series.phases) {
            phase.add_to(sum);
        }
        for (sums, cells) in self.connections.iter_mut().zip(&series.connections) {
            add(sums, cells.iter().map(|cell| cell.get()));
        }
        self.inflight = self.inflight.wrapping_add(series.inflight.get());
    }
}

impl HistogramTotal {
    pub(super) fn add(&mut self, other: &HistogramTotal) {
        self.buckets.resize(other.buckets.len(), 0);
        add(&mut self.buckets, other.buckets.iter().copied());
        self.sum += other.sum;
    }
}

fn add(sums: &mut [u64], values: impl Iterator<Item = u64>) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.wrapping_add(value);
    }
}
