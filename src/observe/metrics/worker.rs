//! Metrics of one worker thread: a shard of counters written only by this thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Metrics;
use super::backend::{Endpoint, EndpointSeries, Service, ServiceSeries};
use super::cell::{Codes, Histogram, REQUEST_SECONDS, RESPONSE_BYTES, Tally};
use super::labels::{self, Authentication, DryRun, Known, RequestLabels, Scope, USERNAMES, Verb};

/// Maximum number of request series per worker; further ones are counted as `other`. The registry and discovery bound
/// the names anyway; this also bounds them for a backend with malicious discovery.
const MOST_SERIES: usize = 4096;

/// Metrics of one worker thread.
pub struct WorkerMetrics {
    shard: Arc<Shard>,
    /// Index of the first series of each hash in `series`.
    by_hash: RefCell<HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>>,
    series: RefCell<Vec<Entry>>,
    services: RefCell<HashMap<String, Weak<Service>>>,
    endpoints: RefCell<HashMap<(String, String), Weak<Endpoint>>>,
    /// Makes the type `!Sync`: [`Tally`] has a single writer.
    _on_one_thread: Cell<()>,
    _not_send: std::marker::PhantomData<Rc<()>>,
}

struct Entry {
    series: Arc<RequestSeries>,
    /// Next series with the same hash.
    next: Option<u32>,
}

/// Index of a registered combination of labels; valid for the [`WorkerMetrics`] that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series(u32);

/// Counters of one worker, read by scrapes.
#[derive(Default)]
pub(super) struct Shard {
    /// Read-only and mutating requests in flight.
    pub(super) in_flight: [Tally; 2],
    /// In the order of [`Authentication`].
    pub(super) attempts: [Tally; 3],
    pub(super) usernames: [Tally; USERNAMES.len()],
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
    pub(super) codes: Codes,
    pub(super) terminations: Codes,
    /// Watches ended because their client did not read them.
    pub(super) unread_watches: Tally,
    pub(super) duration: Histogram,
    /// Response sizes, only for GET and LIST, as upstream.
    pub(super) sizes: Option<Histogram>,
    pub(super) long_running: Tally,
}

impl WorkerMetrics {
    /// Adds a shard to `metrics`; one per worker thread, for the life of the process.
    pub fn new(metrics: &Metrics) -> WorkerMetrics {
        let shard = Arc::new(Shard::default());
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

    /// Returns the series of `request`. `known` is only called for new names, and decides which of them may become
    /// labels: [`Known::Resource`] for resources named by discovery, and so on.
    pub fn series(&self, request: &RequestLabels<'_>, known: impl FnOnce(&RequestLabels<'_>) -> Known) -> Series {
        if let Some(series) = self.find(request) {
            return series;
        }
        let bounded = request.bounded(known(request));
        if let Some(series) = self.find(&bounded) {
            return series;
        }
        if self.series.borrow().len() < MOST_SERIES {
            return self.open(&bounded);
        }
        let overflow = RequestLabels { group: "", version: "", resource: "other", subresource: "", ..bounded };
        self.find(&overflow).unwrap_or_else(|| self.open(&overflow))
    }

    fn find(&self, wanted: &RequestLabels<'_>) -> Option<Series> {
        let mut next = self.by_hash.borrow().get(&wanted.hash()).copied();
        let series = self.series.borrow();
        while let Some(index) = next {
            let entry = &series[index as usize];
            if entry.series.labels().same(wanted) {
                return Some(Series(index));
            }
            next = entry.next;
        }
        None
    }

    fn open(&self, labels: &RequestLabels<'_>) -> Series {
        let series = Arc::new(RequestSeries::new(labels));
        self.shard.requests.lock().push(series.clone());
        let mut all = self.series.borrow_mut();
        let index = all.len() as u32;
        let next = self.by_hash.borrow_mut().insert(labels.hash(), index);
        all.push(Entry { series, next });
        Series(index)
    }

    fn with<T>(&self, series: Series, read: impl FnOnce(&RequestSeries) -> T) -> T {
        read(&self.series.borrow()[series.0 as usize].series)
    }

    /// Counts a request as in flight or long-running, until [`WorkerMetrics::request_ended`].
    pub(in crate::observe) fn request_began(&self, series: Series, long_running: bool) -> Verb {
        self.with(series, |series| {
            if long_running {
                series.long_running.up();
            } else {
                self.shard.in_flight[usize::from(series.verb.is_mutating())].up();
            }
            series.verb
        })
    }

    /// Counts a request in flight as long-running from now on.
    pub(in crate::observe) fn request_runs_long(&self, series: Series) {
        self.with(series, |series| {
            self.shard.in_flight[usize::from(series.verb.is_mutating())].down();
            series.long_running.up();
        });
    }

    /// Counts the end of a request.
    pub(in crate::observe) fn request_ended(&self, series: Series, long_running: bool, ended: &Ended) {
        self.with(series, |series| {
            if long_running {
                series.long_running.down();
            } else {
                self.shard.in_flight[usize::from(series.verb.is_mutating())].down();
            }
            series.codes.up(ended.code);
            if ended.in_self_defence {
                series.terminations.up(ended.code);
            }
            if ended.by_slow_client {
                series.unread_watches.up();
            }
            series.duration.observe_duration(ended.took);
            if let Some(sizes) = &series.sizes {
                sizes.observe(ended.bytes);
            }
        });
    }

    /// Counts an authentication attempt, and its user under an anonymized name.
    pub fn authenticated(&self, result: Authentication, user: Option<&str>) {
        self.shard.attempts[result as usize].up();
        if let Some(user) = user {
            self.shard.usernames[labels::username(user)].up();
        }
    }

    /// Metrics handle of APIService `name`; kept with the route.
    pub fn service(&self, name: &str) -> Rc<Service> {
        let mut services = self.services.borrow_mut();
        if let Some(service) = services.get(name).and_then(Weak::upgrade) {
            return service;
        }
        services.retain(|_, service| service.strong_count() > 0);
        let (service, series) = Service::open(name);
        self.shard.services.lock().push(series);
        services.insert(name.to_owned(), Rc::downgrade(&service));
        service
    }

    /// Metrics handle of endpoint `address` of APIService `service`; kept with the connection pool of the endpoint.
    pub fn endpoint(&self, service: &str, address: &str) -> Rc<Endpoint> {
        let mut endpoints = self.endpoints.borrow_mut();
        let key = (service.to_owned(), address.to_owned());
        if let Some(endpoint) = endpoints.get(&key).and_then(Weak::upgrade) {
            return endpoint;
        }
        endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        let (endpoint, series) = Endpoint::open(service, address);
        self.shard.endpoints.lock().push(series);
        endpoints.insert(key, Rc::downgrade(&endpoint));
        endpoint
    }
}

/// Result of a request, as far as it is counted.
pub(in crate::observe) struct Ended {
    pub(in crate::observe) code: u16,
    pub(in crate::observe) took: Duration,
    pub(in crate::observe) bytes: u64,
    pub(in crate::observe) in_self_defence: bool,
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
            codes: Codes::default(),
            terminations: Codes::default(),
            unread_watches: Tally::default(),
            duration: Histogram::new(&REQUEST_SECONDS),
            sizes: matches!(labels.verb, Verb::Get | Verb::List).then(|| Histogram::new(&RESPONSE_BYTES)),
            long_running: Tally::default(),
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
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
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
            ..RequestLabels::path(&Method::GET, "")
        }
    }

    #[test]
    fn what_was_met_is_not_asked_again() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let first = worker.series(&labels("greetings"), |_| Known::Resource);
        assert_eq!(worker.series(&labels("greetings"), |_| panic!("asked twice")), first);
    }

    #[test]
    fn invented_resources_share_one_series() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let first = worker.series(&labels("nonsense"), |_| Known::GroupVersion);
        for invented in 0..1000 {
            assert_eq!(worker.series(&labels(&format!("nonsense{invented}")), |_| Known::GroupVersion), first);
        }
        assert_eq!(worker.series.borrow().len(), 1);
    }

    #[test]
    fn a_lying_discovery_cannot_grow_us_for_ever() {
        let worker = WorkerMetrics::new(&Metrics::new());
        for invented in 0..MOST_SERIES + 100 {
            worker.series(&labels(&format!("r{invented}")), |_| Known::Resource);
        }
        assert_eq!(worker.series.borrow().len(), MOST_SERIES + 1);
    }

    #[test]
    fn handles_of_one_name_are_one_and_end_together() {
        let worker = WorkerMetrics::new(&Metrics::new());
        let service = worker.service("v1.example.narthex.dev");
        assert!(Rc::ptr_eq(&service, &worker.service("v1.example.narthex.dev")));
        drop(service);
        worker.shard.services.lock().retain(|series| Arc::strong_count(series) > 1);
        assert!(worker.shard.services.lock().is_empty());
    }
}
