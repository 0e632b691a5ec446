//! Metrics of one worker thread: a shard of counters written only by this thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Metrics;
use super::backend::{ApiServiceMetrics, EndpointMetrics, EndpointSeries, ServiceSeries};
use super::counters::{CodeCounters, Histogram, LocalCounter, REQUEST_SECONDS, RESPONSE_BYTES, WATCH_EVENT_BYTES};
use super::labels::{self, Authentication, DryRun, KnownLabels, RequestLabels, Scope, USERNAMES, Verb};

/// Maximum number of request series per worker; further ones are counted as `other`. The registry and discovery bound
/// the names anyway; this also bounds them for a backend with malicious discovery.
const MAX_SERIES: usize = 4096;
/// Series beside those in use that wait for a scrape.
const MAX_UNSCRAPED_SERIES: usize = 64;

/// Metrics of one worker thread.
pub struct WorkerMetrics {
    shard: Arc<MetricsShard>,
    /// Index of the first series of each hash in `series`.
    by_hash: RefCell<HashMap<u64, u32, BuildHasherDefault<IdentityHasher>>>,
    series: RefCell<Vec<SeriesEntry>>,
    services: RefCell<HashMap<String, Weak<ApiServiceMetrics>>>,
    endpoints: RefCell<HashMap<(String, String), Weak<EndpointMetrics>>>,
    /// Makes the type `!Sync`: [`LocalCounter`] has a single writer.
    _on_one_thread: Cell<()>,
    _not_send: std::marker::PhantomData<Rc<()>>,
}

struct SeriesEntry {
    series: Arc<RequestSeries>,
    /// Next series with the same hash.
    next: Option<u32>,
}

/// Index of a registered combination of labels; valid for the [`WorkerMetrics`] that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesId(u32);

/// Counters of one worker, read by scrapes.
#[derive(Default)]
pub(super) struct MetricsShard {
    /// Read-only and mutating requests in flight.
    pub(super) in_flight: [LocalCounter; 2],
    /// In the order of [`Authentication`].
    pub(super) attempts: [LocalCounter; 3],
    pub(super) usernames: [LocalCounter; USERNAMES.len()],
    pub(super) requests: Mutex<Vec<Arc<RequestSeries>>>,
    pub(super) services: Mutex<Vec<Arc<ServiceSeries>>>,
    pub(super) endpoints: Mutex<Vec<Arc<EndpointSeries>>>,
}

pub(super) struct RequestSeries {
    pub(super) verb: Verb,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) scope: Scope,
    pub(super) dry_run: DryRun,
    pub(super) codes: CodeCounters,
    pub(super) terminations: CodeCounters,
    /// Watches ended because their client did not read them.
    pub(super) unread_watches: LocalCounter,
    pub(super) duration: Histogram,
    /// Response sizes, only for GET and LIST, as in Kubernetes.
    pub(super) sizes: Option<Histogram>,
    pub(super) long_running: LocalCounter,
    /// Sizes of the events of watches that are answered locally.
    pub(super) watch_events: Option<Histogram>,
}

impl WorkerMetrics {
    /// Adds a shard to `metrics`; one per worker thread, for the life of the process.
    pub fn new(metrics: &Metrics) -> WorkerMetrics {
        let shard = Arc::new(MetricsShard::default());
        metrics.add_shard(shard.clone());
        WorkerMetrics {
            shard,
            by_hash: RefCell::default(),
            series: RefCell::default(),
            services: RefCell::default(),
            endpoints: RefCell::default(),
            _on_one_thread: Cell::new(()),
            _not_send: std::marker::PhantomData,
        }
    }

    /// Returns the series of `request`. `known_labels` is only called for new names, and decides which of them may
    /// become labels: [`KnownLabels::Resource`] for resources named by discovery, and so on.
    pub fn series(
        &self,
        request: &RequestLabels<'_>,
        known_labels: impl FnOnce(&RequestLabels<'_>) -> KnownLabels,
    ) -> SeriesId {
        if let Some(series) = self.find(request) {
            return series;
        }
        let bounded = request.bounded(known_labels(request));
        if let Some(series) = self.find(&bounded) {
            return series;
        }
        if self.series.borrow().len() < MAX_SERIES {
            return self.create_series(&bounded);
        }
        let overflow = RequestLabels { group: "", version: "", resource: "other", subresource: "", ..bounded };
        self.find(&overflow).unwrap_or_else(|| self.create_series(&overflow))
    }

    fn find(&self, labels: &RequestLabels<'_>) -> Option<SeriesId> {
        let mut next = self.by_hash.borrow().get(&labels.hash()).copied();
        let series = self.series.borrow();
        while let Some(index) = next {
            let entry = &series[index as usize];
            if entry.series.labels().is_equal(labels) {
                return Some(SeriesId(index));
            }
            next = entry.next;
        }
        None
    }

    fn create_series(&self, labels: &RequestLabels<'_>) -> SeriesId {
        let series = Arc::new(RequestSeries::new(labels));
        self.shard.requests.lock().push(series.clone());
        let mut all = self.series.borrow_mut();
        let index = all.len() as u32;
        let next = self.by_hash.borrow_mut().insert(labels.hash(), index);
        all.push(SeriesEntry { series, next });
        SeriesId(index)
    }

    fn with_series<T>(&self, series: SeriesId, read: impl FnOnce(&RequestSeries) -> T) -> T {
        read(&self.series.borrow()[series.0 as usize].series)
    }

    /// Counts a request as in flight or long-running, until [`WorkerMetrics::request_finished`].
    pub(in crate::observe) fn request_started(&self, series: SeriesId, long_running: bool) -> Verb {
        self.with_series(series, |series| {
            if long_running {
                series.long_running.increment();
            } else {
                self.shard.in_flight[usize::from(series.verb.is_mutating())].increment();
            }
            series.verb
        })
    }

    /// Counts a request in flight as long-running from now on.
    pub(in crate::observe) fn request_is_long_running(&self, series: SeriesId) {
        self.with_series(series, |series| {
            self.shard.in_flight[usize::from(series.verb.is_mutating())].decrement();
            series.long_running.increment();
        });
    }

    /// Counts an event of a watch that is answered locally; of other requests nothing is counted.
    pub(in crate::observe) fn watch_event_sent(&self, series: SeriesId, bytes: u64) {
        self.with_series(series, |series| series.watch_events.iter().for_each(|events| events.observe(bytes)));
    }

    /// Counts the end of a request.
    pub(in crate::observe) fn request_finished(&self, series: SeriesId, long_running: bool, ended: &RequestOutcome) {
        self.with_series(series, |series| {
            if long_running {
                series.long_running.decrement();
            } else {
                self.shard.in_flight[usize::from(series.verb.is_mutating())].decrement();
            }
            series.codes.increment(ended.code);
            if ended.is_self_defense {
                series.terminations.increment(ended.code);
            }
            if ended.by_slow_client {
                series.unread_watches.increment();
            }
            series.duration.observe_duration(ended.duration);
            if let Some(sizes) = &series.sizes {
                sizes.observe(ended.bytes);
            }
        });
    }

    /// Counts an authentication attempt, and its user under an anonymized name.
    pub fn record_authentication(&self, result: Authentication, user: Option<&str>) {
        self.shard.attempts[result as usize].increment();
        if let Some(user) = user {
            self.shard.usernames[labels::username_index(user)].increment();
        }
    }

    /// Metrics handle of APIService `name`; kept with the route.
    pub fn service(&self, name: &str) -> Rc<ApiServiceMetrics> {
        let mut services = self.services.borrow_mut();
        if let Some(service) = services.get(name).and_then(Weak::upgrade) {
            return service;
        }
        services.retain(|_, service| service.strong_count() > 0);
        let (service, series) = ApiServiceMetrics::create(name);
        push_series(&self.shard.services, series, services.len());
        services.insert(name.to_owned(), Rc::downgrade(&service));
        service
    }

    /// Metrics handle of endpoint `address` of APIService `service`; kept with the connection pool of the endpoint.
    pub fn endpoint(&self, service: &str, address: &str) -> Rc<EndpointMetrics> {
        let mut endpoints = self.endpoints.borrow_mut();
        let key = (service.to_owned(), address.to_owned());
        if let Some(endpoint) = endpoints.get(&key).and_then(Weak::upgrade) {
            return endpoint;
        }
        endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        let (endpoint, series) = EndpointMetrics::create(service, address);
        push_series(&self.shard.endpoints, series, endpoints.len());
        endpoints.insert(key, Rc::downgrade(&endpoint));
        endpoint
    }
}

/// Adds a series to a shard that counts in `live` others. A scrape removes the series of former endpoints after it has read
/// them. Without scrapes they are removed here, so that memory is bounded.
fn push_series<T>(list: &Mutex<Vec<Arc<T>>>, series: Arc<T>, live: usize) {
    let mut list = list.lock();
    if list.len() >= 2 * live + MAX_UNSCRAPED_SERIES {
        list.retain(|series| Arc::strong_count(series) > 1);
    }
    list.push(series);
}

/// Result of a request, as far as it is counted.
pub(in crate::observe) struct RequestOutcome {
    pub(in crate::observe) code: u16,
    pub(in crate::observe) duration: Duration,
    pub(in crate::observe) bytes: u64,
    pub(in crate::observe) is_self_defense: bool,
    pub(in crate::observe) by_slow_client: bool,
}

impl RequestSeries {
    fn new(labels: &RequestLabels<'_>) -> RequestSeries {
        RequestSeries {
            verb: labels.verb,
            group: labels.group.to_owned(),
            version: labels.version.to_owned(),
            resource: labels.resource.to_owned(),
            subresource: labels.subresource.to_owned(),
            scope: labels.scope,
            dry_run: labels.dry_run,
            codes: CodeCounters::default(),
            terminations: CodeCounters::default(),
            unread_watches: LocalCounter::default(),
            duration: Histogram::new(&REQUEST_SECONDS),
            sizes: matches!(labels.verb, Verb::Get | Verb::List).then(|| Histogram::new(&RESPONSE_BYTES)),
            long_running: LocalCounter::default(),
            watch_events: (labels.verb == Verb::Watch).then(|| Histogram::new(&WATCH_EVENT_BYTES)),
        }
    }

    pub(super) fn labels(&self) -> RequestLabels<'_> {
        RequestLabels {
            verb: self.verb,
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            scope: self.scope,
            dry_run: self.dry_run,
        }
    }
}

/// Passes [`RequestLabels::hash`] to the map, with a final mix because the map uses the highest and lowest bits.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash ^ (hash >> 32);
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn labels<'r>(resource: &'r str) -> RequestLabels<'r> {
        RequestLabels {
            group: "example.narthex.dev",
            version: "v1",
            resource,
            subresource: "",
            ..RequestLabels::for_path(&Method::GET, "")
        }
    }

    #[test]
    fn request_series_are_looked_up_once() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let first = worker.series(&labels("greetings"), |_| KnownLabels::Resource);
        assert_eq!(worker.series(&labels("greetings"), |_| panic!("asked twice")), first);
    }

    #[test]
    fn request_series_of_unknown_resources_are_shared() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let first = worker.series(&labels("nonsense"), |_| KnownLabels::GroupVersion);
        for invented in 0..1000 {
            assert_eq!(worker.series(&labels(&format!("nonsense{invented}")), |_| KnownLabels::GroupVersion), first);
        }
        assert_eq!(worker.series.borrow().len(), 1);
    }

    #[test]
    fn request_series_are_bounded() {
        let worker = WorkerMetrics::new(&Metrics::new());
        for invented in 0..MAX_SERIES + 100 {
            worker.series(&labels(&format!("r{invented}")), |_| KnownLabels::Resource);
        }
        assert_eq!(worker.series.borrow().len(), MAX_SERIES + 1);
    }

    #[test]
    fn service_metrics_handles_are_shared_and_dropped() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let service = worker.service("v1.example.narthex.dev");
        assert!(Rc::ptr_eq(&service, &worker.service("v1.example.narthex.dev")));
        drop(service);
        worker.shard.services.lock().retain(|series| Arc::strong_count(series) > 1);
        assert!(worker.shard.services.lock().is_empty());
    }

    #[test]
    fn metrics_of_former_endpoints_are_bounded_without_scrapes() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let kept = worker.endpoint("v1.example.narthex.dev", "10.0.0.1:443");
        for port in 1..1000 {
            drop(worker.endpoint("v1.example.narthex.dev", &format!("10.0.0.2:{port}")));
            drop(worker.service(&format!("v{port}.example.narthex.dev")));
        }
        let endpoints = worker.shard.endpoints.lock();
        assert!(endpoints.len() <= MAX_UNSCRAPED_SERIES + 3, "{}", endpoints.len());
        assert_eq!(endpoints[0].address, kept.address());
        assert!(worker.shard.services.lock().len() <= MAX_UNSCRAPED_SERIES + 3);
    }
}
