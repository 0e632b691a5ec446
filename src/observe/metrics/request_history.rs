//! Request history: rate, errors and latency of each APIService and endpoint over the last 15 minutes.
//!
//! One thread samples the counters of all workers every ten seconds. Requests do no work for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Metrics;
use super::backend::EndpointSeries;
use super::counters::{BACKEND_SECONDS, BucketBounds, HistogramTotal, REQUEST_SECONDS};
use super::labels::{BackendPhase, Verb};
use super::worker::RequestSeries;

/// Time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of samples kept: 15 minutes.
pub const SAMPLE_COUNT: usize = 90;
/// Maximum number of APIServices and endpoints with a history, about 1.5 KiB each. Further ones have none.
const MAX_SERIES: usize = 1024;

/// APIService and endpoint address; the address is empty for the APIService itself.
type HistoryKey = (String, String);

/// Recent requests of each APIService and endpoint. It has one writer, and costs nothing without requests.
#[derive(Default)]
pub struct RequestHistory {
    /// Counters at the last sample.
    before: BTreeMap<HistoryKey, RequestTotals>,
    /// Samples of each APIService and endpoint that had requests, oldest first.
    series: BTreeMap<HistoryKey, VecDeque<HistorySample>>,
}

/// Requests that ended between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistorySample {
    /// Number of requests.
    pub requests: u32,
    /// Number of those that failed: status 5xx, no response, or a response that was cut off.
    pub errors: u32,
    /// Median latency in microseconds; 0 without one.
    pub p50_micros: u32,
    /// 99th percentile of the latency in microseconds; 0 without one.
    pub p99_micros: u32,
}

/// Counters of one APIService or endpoint, since the process started or between two samples.
#[derive(Clone, Default)]
struct RequestTotals {
    requests: u64,
    errors: u64,
    latency: LatencyBuckets,
}

/// Counts of a histogram, with its bounds.
#[derive(Clone)]
struct LatencyBuckets {
    bounds: &'static BucketBounds,
    counts: Vec<u64>,
}

impl RequestHistory {
    /// Takes a sample; called every [`SAMPLE_INTERVAL`] by one thread.
    pub fn sample(&mut self, metrics: &Metrics) {
        self.push(request_totals(metrics));
    }

    fn push(&mut self, totals: BTreeMap<HistoryKey, RequestTotals>) {
        let since = |(key, now): (&HistoryKey, &RequestTotals)| {
            let fresh = self.before.get(key).map_or_else(|| now.clone(), |before| now.since(before));
            (fresh.requests > 0).then(|| (key.clone(), fresh))
        };
        let mut fresh: BTreeMap<_, _> = totals.iter().filter_map(since).collect();
        add_endpoints_to_apiservices(&mut fresh);
        for (key, samples) in &mut self.series {
            push_sample(samples, fresh.remove(key).unwrap_or_default().to_sample());
        }
        for (key, first) in fresh {
            if self.series.len() < MAX_SERIES {
                self.series.insert(key, VecDeque::from([first.to_sample()]));
            }
        }
        self.series.retain(|_, samples| samples.iter().any(|sample| sample.requests > 0));
        self.before = totals;
    }

    /// Samples of APIService `service`, or of its endpoint `address` if that is not empty, oldest first. The last is
    /// the newest; there is none for a time before the first request.
    pub fn samples(&self, service: &str, address: &str) -> impl ExactSizeIterator<Item = &HistorySample> {
        let key = (service.to_owned(), address.to_owned());
        self.series.get(&key).map(VecDeque::iter).unwrap_or_default()
    }
}

fn push_sample(samples: &mut VecDeque<HistorySample>, sample: HistorySample) {
    if samples.len() >= SAMPLE_COUNT {
        samples.pop_front();
    }
    samples.push_back(sample);
}

/// Completes the APIServices with what their endpoints counted. The latency of a backend is measured at the endpoints,
/// in finer buckets. The delegate and the upstreams of a sidecar have no group and version to be counted by.
fn add_endpoints_to_apiservices(totals: &mut BTreeMap<HistoryKey, RequestTotals>) {
    let mut services = BTreeMap::<&str, RequestTotals>::new();
    for ((service, _), endpoint) in totals.iter().filter(|((_, address), _)| !address.is_empty()) {
        let sum = services.entry(service).or_default();
        sum.requests += endpoint.requests;
        sum.errors += endpoint.errors;
        sum.latency.add(&endpoint.latency);
    }
    let services: Vec<_> = services.into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect();
    for (name, sum) in services {
        match totals.get_mut(&(name.clone(), String::new())) {
            Some(service) => service.latency = sum.latency,
            None => drop(totals.insert((name, String::new()), sum)),
        }
    }
}

/// Sums of the counters of all workers.
fn request_totals(metrics: &Metrics) -> BTreeMap<HistoryKey, RequestTotals> {
    let mut totals = BTreeMap::<HistoryKey, RequestTotals>::new();
    for shard in metrics.shards.lock().iter() {
        // A request without a version is not of an APIService.
        for series in shard.requests.lock().iter().filter(|series| !series.version.is_empty()) {
            let name = format!("{}.{}", series.version, series.group);
            totals.entry((name, String::new())).or_default().add_requests(series);
        }
        for endpoint in shard.endpoints.lock().iter() {
            let key = (endpoint.service.clone(), endpoint.address.clone());
            totals.entry(key).or_default().add_endpoint(endpoint);
        }
    }
    totals
}

impl RequestTotals {
    fn add_requests(&mut self, series: &RequestSeries) {
        series.codes.for_each(|code, count| {
            self.requests += count;
            self.errors += if code >= 500 { count } else { 0 };
        });
        // The duration of a watch or tunnel says nothing about the server.
        if !matches!(series.verb, Verb::Watch | Verb::Connect) {
            let mut duration = HistogramTotal::default();
            series.duration.add_to(&mut duration);
            self.latency.add(&LatencyBuckets { bounds: &REQUEST_SECONDS, counts: duration.buckets });
        }
    }

    fn add_endpoint(&mut self, series: &EndpointSeries) {
        let mut headers = HistogramTotal::default();
        series.phases[BackendPhase::Headers as usize].add_to(&mut headers);
        self.requests += headers.buckets.iter().sum::<u64>() + series.unanswered.get();
        self.errors += series.failures.get();
        self.latency.add(&LatencyBuckets { bounds: &BACKEND_SECONDS, counts: headers.buckets });
    }

    /// What was counted since `before`. Counters become smaller when a worker drops those of an endpoint.
    fn since(&self, before: &RequestTotals) -> RequestTotals {
        let mut latency = self.latency.clone();
        for (count, before) in latency.counts.iter_mut().zip(&before.latency.counts) {
            *count = count.saturating_sub(*before);
        }
        RequestTotals {
            requests: self.requests.saturating_sub(before.requests),
            errors: self.errors.saturating_sub(before.errors),
            latency,
        }
    }

    fn to_sample(&self) -> HistorySample {
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        HistorySample {
            requests: count(self.requests),
            errors: count(self.errors),
            p50_micros: self.latency.quantile_micros(0.5),
            p99_micros: self.latency.quantile_micros(0.99),
        }
    }
}

impl Default for LatencyBuckets {
    fn default() -> Self {
        LatencyBuckets { bounds: &BACKEND_SECONDS, counts: Vec::new() }
    }
}

impl LatencyBuckets {
    fn add(&mut self, other: &LatencyBuckets) {
        if self.counts.is_empty() {
            self.clone_from(other);
        } else if std::ptr::eq(self.bounds, other.bounds) {
            for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
                *sum += count;
            }
        }
    }

    /// The quantile in microseconds, interpolated within its bucket like Prometheus' `histogram_quantile`; 0 without
    /// observations.
    fn quantile_micros(&self, quantile: f64) -> u32 {
        let all: u64 = self.counts.iter().sum();
        let rank = quantile * all as f64;
        let (mut below, mut lower) = (0.0, 0);
        for (count, upper) in self.counts.iter().zip(self.bounds.upper) {
            if *count > 0 && below + *count as f64 >= rank {
                let share = (rank - below) / *count as f64;
                let nanos = lower as f64 + (upper - lower) as f64 * share;
                return ((nanos / 1000.0) as u32).max(1);
            }
            below += *count as f64;
            lower = *upper;
        }
        // Above all bounds; the highest is the best that is known.
        if all == 0 { 0 } else { u32::try_from(lower / 1000).unwrap_or(u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::WorkerMetrics;

    fn backend_latency(counts: &[(usize, u64)]) -> LatencyBuckets {
        let mut buckets = vec![0; BACKEND_SECONDS.upper.len() + 1];
        counts.iter().for_each(|(bucket, count)| buckets[*bucket] = *count);
        LatencyBuckets { bounds: &BACKEND_SECONDS, counts: buckets }
    }

    #[test]
    fn history_quantile_is_interpolated_within_bucket() {
        // Bucket 5 ends at 10 ms and begins at 5 ms.
        assert_eq!(backend_latency(&[(5, 100)]).quantile_micros(0.5), 7500);
        assert_eq!(backend_latency(&[(0, 98), (5, 2)]).quantile_micros(0.5), 51);
        assert_eq!(backend_latency(&[(0, 98), (5, 2)]).quantile_micros(0.99), 7500);
        let highest = BACKEND_SECONDS.upper.len();
        assert_eq!(backend_latency(&[(highest, 1)]).quantile_micros(0.99), 60_000_000);
        assert_eq!(LatencyBuckets::default().quantile_micros(0.5), 0);
    }

    #[test]
    fn history_samples_endpoints_and_their_apiservice() {
        let metrics = Metrics::new();
        let worker = WorkerMetrics::new(&metrics);
        let endpoints = ["10.0.0.1:443", "10.0.0.2:443"].map(|address| worker.endpoint("/", address));
        let mut history = RequestHistory::default();
        history.sample(&metrics);
        assert_eq!(history.samples("/", "").len(), 0, "nothing without requests");
        for _ in 0..3 {
            endpoints[0].observe(BackendPhase::Headers, Duration::from_millis(7));
        }
        endpoints[1].record_failure(true);
        history.sample(&metrics);
        endpoints[0].observe(BackendPhase::Headers, Duration::from_millis(7));
        endpoints[0].record_failure(false);
        history.sample(&metrics);
        let counts = |address| -> Vec<_> {
            history.samples("/", address).map(|sample| (sample.requests, sample.errors)).collect()
        };
        assert_eq!(counts("10.0.0.1:443"), [(3, 0), (1, 1)]);
        assert_eq!(counts("10.0.0.2:443"), [(1, 1), (0, 0)]);
        assert_eq!(counts(""), [(4, 1), (1, 1)]);
        let latency = history.samples("/", "").last().map(|sample| (sample.p50_micros, sample.p99_micros));
        assert_eq!(latency, Some((7500, 9950)));
    }

    #[test]
    fn history_is_bounded_in_samples_and_series() {
        let mut history = RequestHistory::default();
        let totals = |requests: u64| -> BTreeMap<_, _> {
            let one = |number: usize| {
                ((format!("v1.g{number}"), String::new()), RequestTotals { requests, ..RequestTotals::default() })
            };
            (0..MAX_SERIES + 10).map(one).collect()
        };
        for round in 0..SAMPLE_COUNT + 10 {
            history.push(totals(round as u64));
        }
        assert_eq!(history.series.len(), MAX_SERIES);
        assert!(history.series.values().all(|samples| samples.len() == SAMPLE_COUNT));
        for _ in 0..SAMPLE_COUNT {
            history.push(totals((SAMPLE_COUNT + 9) as u64));
        }
        assert!(history.series.is_empty(), "forgotten after 15 minutes without requests");
    }
}
