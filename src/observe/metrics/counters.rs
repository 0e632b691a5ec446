//! Counters and histograms that one thread writes and any thread reads.
//!
//! Every worker has its own counters, so a plain load and store suffices instead of a locked instruction. There is no
//! contention for cache lines, and a scrape blocks nothing. The handles to the writing methods are `!Send`, which
//! guarantees a single writer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A single-writer counter or, with [`LocalCounter::decrement`], gauge. Arithmetic wraps, so the values of single
/// workers may be "negative" and the sum is still correct.
#[derive(Default)]
pub(super) struct LocalCounter(AtomicU64);

impl LocalCounter {
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(super) fn increment(&self) {
        self.add(1);
    }

    pub(super) fn decrement(&self) {
        self.add(u64::MAX);
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Exponentially decaying sum of a histogram over about ten seconds: updated every second with a factor of 0.9.
#[derive(Default)]
pub(super) struct DecayingSum {
    /// Count and sum of the histogram at the last update.
    before: [LocalCounter; 2],
    /// Decayed count and sum, as the bits of a float.
    now: [LocalCounter; 2],
}

impl DecayingSum {
    pub(super) fn update(&self, histogram: &Histogram) {
        let count = histogram.buckets.iter().map(LocalCounter::get).fold(0, u64::wrapping_add);
        for ((before, now), all) in self.before.iter().zip(&self.now).zip([count, histogram.sum.get()]) {
            let fresh = all.wrapping_sub(before.get()) as f64;
            before.set(all);
            now.set((f64::from_bits(now.get()) * 0.9 + fresh).to_bits());
        }
    }

    /// Decayed count and sum.
    pub(super) fn get(&self) -> [f64; 2] {
        [0, 1].map(|at: usize| f64::from_bits(self.now[at].get()))
    }
}

/// A counter for many threads, striped over cache lines to avoid contention.
#[derive(Default)]
pub(super) struct StripedCounter([CounterStripe; STRIPES]);

const STRIPES: usize = 16;

#[derive(Default)]
#[repr(align(64))]
struct CounterStripe(AtomicU64);

impl StripedCounter {
    pub(super) fn increment(&self) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static MINE: usize = NEXT.fetch_add(1, Relaxed) % STRIPES);
        self.0[MINE.with(|mine| *mine)].0.fetch_add(1, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }
}

/// Upper bounds of histogram buckets: as counted (nanoseconds or bytes) and as printed in `le`.
pub(super) struct BucketBounds {
    pub(super) upper: &'static [u64],
    pub(super) printed: &'static [&'static str],
    /// Factor from counted units to the printed sum.
    pub(super) unit: f64,
}

macro_rules! seconds {
    ($($text:literal = $millis:literal / $divisor:literal),* $(,)?) => {
        BucketBounds { upper: &[$($millis * 1_000_000 / $divisor),*], printed: &[$($text),*], unit: 1e-9 }
    };
}

/// `apiserver_request_duration_seconds` (k8s.io/apiserver/pkg/endpoints/metrics/metrics.go).
pub(super) static REQUEST_SECONDS: BucketBounds = seconds!(
    "0.005" = 5 / 1,
    "0.025" = 25 / 1,
    "0.05" = 50 / 1,
    "0.1" = 100 / 1,
    "0.2" = 200 / 1,
    "0.4" = 400 / 1,
    "0.6" = 600 / 1,
    "0.8" = 800 / 1,
    "1" = 1000 / 1,
    "1.25" = 1250 / 1,
    "1.5" = 1500 / 1,
    "2" = 2000 / 1,
    "3" = 3000 / 1,
    "4" = 4000 / 1,
    "5" = 5000 / 1,
    "6" = 6000 / 1,
    "8" = 8000 / 1,
    "10" = 10000 / 1,
    "15" = 15000 / 1,
    "20" = 20000 / 1,
    "30" = 30000 / 1,
    "45" = 45000 / 1,
    "60" = 60000 / 1,
);

/// `apiserver_response_sizes` (same file).
pub(super) static RESPONSE_BYTES: BucketBounds = BucketBounds {
    upper: &[1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000],
    printed: &["1000", "10000", "100000", "1e+06", "1e+07", "1e+08", "1e+09"],
    unit: 1.0,
};

/// `apiserver_watch_events_sizes` (same file).
pub(super) static WATCH_EVENT_BYTES: BucketBounds = BucketBounds {
    upper: &[1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10],
    printed: &["1024", "2048", "4096", "8192", "16384", "32768", "65536", "131072"],
    unit: 1.0,
};

/// `narthex_backend_request_duration_seconds`: finer at the low end, the range of a healthy backend.
pub(super) static BACKEND_SECONDS: BucketBounds = seconds!(
    "0.0001" = 1 / 10,
    "0.0005" = 5 / 10,
    "0.001" = 1 / 1,
    "0.0025" = 25 / 10,
    "0.005" = 5 / 1,
    "0.01" = 10 / 1,
    "0.025" = 25 / 1,
    "0.05" = 50 / 1,
    "0.1" = 100 / 1,
    "0.25" = 250 / 1,
    "0.5" = 500 / 1,
    "1" = 1000 / 1,
    "2.5" = 2500 / 1,
    "5" = 5000 / 1,
    "10" = 10000 / 1,
    "30" = 30000 / 1,
    "60" = 60000 / 1,
);

/// `apiserver_delegated_authn_request_duration_seconds` and `apiserver_delegated_authz_request_duration_seconds`
/// (k8s.io/apiserver/pkg/authentication/authenticatorfactory/metrics.go).
pub(super) static REVIEW_SECONDS: BucketBounds = seconds!(
    "0.25" = 250 / 1,
    "0.5" = 500 / 1,
    "0.7" = 700 / 1,
    "1" = 1000 / 1,
    "1.5" = 1500 / 1,
    "3" = 3000 / 1,
    "5" = 5000 / 1,
    "10" = 10000 / 1,
);

/// `workqueue_work_duration_seconds` (k8s.io/component-base/metrics/prometheus/workqueue/metrics.go): each bound is ten times
/// the one before, as a float.
pub(super) static WORK_QUEUE_SECONDS: BucketBounds = seconds!(
    "1e-08" = 1 / 100_000,
    "1e-07" = 1 / 10_000,
    "1e-06" = 1 / 1_000,
    "9.999999999999999e-06" = 1 / 100,
    "9.999999999999999e-05" = 1 / 10,
    "0.001" = 1 / 1,
    "0.01" = 10 / 1,
    "0.1" = 100 / 1,
    "1" = 1000 / 1,
    "10" = 10000 / 1,
);

/// `apiserver_conversion_webhook_duration_seconds`
/// (k8s.io/apiextensions-apiserver/pkg/apiserver/conversion/metrics.go).
pub(super) static WEBHOOK_SECONDS: BucketBounds = seconds!(
    "0.005" = 5 / 1,
    "0.01" = 10 / 1,
    "0.02" = 20 / 1,
    "0.05" = 50 / 1,
    "0.1" = 100 / 1,
    "0.2" = 200 / 1,
    "0.5" = 500 / 1,
    "1" = 1000 / 1,
    "2" = 2000 / 1,
    "5" = 5000 / 1,
    "10" = 10000 / 1,
    "20" = 20000 / 1,
    "30" = 30000 / 1,
    "45" = 45000 / 1,
    "60" = 60000 / 1,
);

/// `apiserver_impersonation_attempts_duration_seconds` and
/// `apiserver_impersonation_authorization_attempts_duration_seconds`
/// (k8s.io/apiserver/pkg/endpoints/filters/impersonation/metrics), and
/// `apiserver_crd_conversion_webhook_duration_seconds`, whose bounds are the same.
pub(super) static IMPERSONATION_SECONDS: BucketBounds = seconds!(
    "0.001" = 1 / 1,
    "0.002" = 2 / 1,
    "0.004" = 4 / 1,
    "0.008" = 8 / 1,
    "0.016" = 16 / 1,
    "0.032" = 32 / 1,
    "0.064" = 64 / 1,
    "0.128" = 128 / 1,
    "0.256" = 256 / 1,
    "0.512" = 512 / 1,
    "1.024" = 1024 / 1,
    "2.048" = 2048 / 1,
    "4.096" = 4096 / 1,
    "8.192" = 8192 / 1,
    "16.384" = 16384 / 1,
);

/// `apiserver_authorization_match_condition_evaluation_seconds` (k8s.io/apiserver/pkg/authorization/cel/metrics.go).
pub(super) static CONDITION_SECONDS: BucketBounds = seconds!(
    "0.001" = 1 / 1,
    "0.005" = 5 / 1,
    "0.01" = 10 / 1,
    "0.025" = 25 / 1,
    "0.1" = 100 / 1,
    "0.2" = 200 / 1,
    "0.25" = 250 / 1,
);

/// `authentication_token_cache_request_duration_seconds` and `apiserver_authorization_webhook_duration_seconds`:
/// Prometheus' default buckets.
pub(super) static TOKEN_SECONDS: BucketBounds = seconds!(
    "0.005" = 5 / 1,
    "0.01" = 10 / 1,
    "0.025" = 25 / 1,
    "0.05" = 50 / 1,
    "0.1" = 100 / 1,
    "0.25" = 250 / 1,
    "0.5" = 500 / 1,
    "1" = 1000 / 1,
    "2.5" = 2500 / 1,
    "5" = 5000 / 1,
    "10" = 10000 / 1,
);

/// `apiserver_egress_dialer_dial_duration_seconds` (k8s.io/apiserver/pkg/server/egressselector/metrics/metrics.go).
pub(super) static EGRESS_SECONDS: BucketBounds = seconds!(
    "0.005" = 5 / 1,
    "0.025" = 25 / 1,
    "0.1" = 100 / 1,
    "0.5" = 500 / 1,
    "2.5" = 2500 / 1,
    "12.5" = 12500 / 1,
);

/// A single-writer histogram with fixed bounds; the last bucket counts values above all of them.
pub(super) struct Histogram {
    bounds: &'static BucketBounds,
    buckets: Box<[LocalCounter]>,
    sum: LocalCounter,
}

impl Histogram {
    pub(super) fn new(bounds: &'static BucketBounds) -> Histogram {
        Histogram {
            bounds,
            buckets: (0..=bounds.upper.len()).map(|_| LocalCounter::default()).collect(),
            sum: LocalCounter::default(),
        }
    }

    pub(super) fn observe(&self, value: u64) {
        let bucket = self.bounds.upper.partition_point(|upper| *upper < value);
        self.buckets[bucket].increment();
        self.sum.add(value);
    }

    pub(super) fn observe_duration(&self, duration: Duration) {
        self.observe(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds this histogram to `total`.
    pub(super) fn add_to(&self, total: &mut HistogramTotal) {
        total.buckets.resize(self.buckets.len(), 0);
        for (sum, bucket) in total.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.get();
        }
        total.sum += self.sum.get() as f64 * self.bounds.unit;
    }
}

/// Sum of the histograms of one series.
#[derive(Default)]
pub(super) struct HistogramTotal {
    /// Bucket counts, not cumulative; one more than there are bounds.
    pub(super) buckets: Vec<u64>,
    pub(super) sum: f64,
}

/// Counters by HTTP status code: an append-only list, because a series has few codes.
#[derive(Default)]
pub(super) struct CodeCounters(OnceLock<Box<CodeCounter>>);

struct CodeCounter {
    code: u16,
    count: LocalCounter,
    next: CodeCounters,
}

impl CodeCounters {
    /// Counts `code`. Invalid codes count as 0, which Kubernetes uses if nothing was written.
    pub(super) fn increment(&self, code: u16) {
        let code = if (100..=599).contains(&code) { code } else { 0 };
        let mut list = self;
        loop {
            let entry = list.0.get_or_init(|| {
                Box::new(CodeCounter { code, count: LocalCounter::default(), next: CodeCounters::default() })
            });
            if entry.code == code {
                return entry.count.increment();
            }
            list = &entry.next;
        }
    }

    pub(super) fn for_each(&self, mut read: impl FnMut(u16, u64)) {
        let mut list = self;
        while let Some(entry) = list.0.get() {
            read(entry.code, entry.count.get());
            list = &entry.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_counters_of_two_threads_add_up() {
        let (here, there) = (LocalCounter::default(), LocalCounter::default());
        here.increment();
        here.increment();
        there.decrement();
        assert_eq!(here.get().wrapping_add(there.get()), 1);
    }

    #[test]
    fn decaying_sum_forgets_old_values() {
        let (histogram, recent) = (Histogram::new(&RESPONSE_BYTES), DecayingSum::default());
        (0..10).for_each(|_| histogram.observe(100));
        recent.update(&histogram);
        assert_eq!(recent.get(), [10.0, 1000.0]);
        (0..60).for_each(|_| recent.update(&histogram));
        let [count, sum] = recent.get();
        assert!(count < 0.1 && (sum / count - 100.0).abs() < 1e-6);
        histogram.observe(900);
        recent.update(&histogram);
        let [count, sum] = recent.get();
        assert!(sum / count > 800.0);
    }

    #[test]
    fn histogram_bound_is_inclusive() {
        let histogram = Histogram::new(&RESPONSE_BYTES);
        for value in [0, 1_000, 1_001, 1_000_000_000, 1_000_000_001] {
            histogram.observe(value);
        }
        let mut counted = HistogramTotal::default();
        histogram.add_to(&mut counted);
        assert_eq!(counted.buckets, [2, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(counted.sum, 2_000_002_002.0);
    }

    #[test]
    fn histogram_printed_bounds_match_counted_bounds() {
        for bounds in [
            &REQUEST_SECONDS,
            &RESPONSE_BYTES,
            &WATCH_EVENT_BYTES,
            &BACKEND_SECONDS,
            &REVIEW_SECONDS,
            &IMPERSONATION_SECONDS,
            &TOKEN_SECONDS,
        ] {
            assert_eq!(bounds.upper.len(), bounds.printed.len());
            for (upper, printed) in bounds.upper.iter().zip(bounds.printed) {
                let printed: f64 = printed.parse().unwrap();
                assert!((*upper as f64 * bounds.unit - printed).abs() < printed * 1e-9, "{printed}");
            }
        }
    }

    #[test]
    fn code_counters_separate_valid_codes() {
        let codes = CodeCounters::default();
        for code in [200, 404, 200, 0, 65_535] {
            codes.increment(code);
        }
        let mut seen = Vec::new();
        codes.for_each(|code, count| seen.push((code, count)));
        assert_eq!(seen, [(200, 2), (404, 1), (0, 2)]);
    }
}
