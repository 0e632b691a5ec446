//! Metrics of TokenReviews and SubjectAccessReviews, and of the caches of their results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::observe::metrics::counters::{Histogram, HistogramTotal, REVIEW_SECONDS, StripedCounter, TOKEN_SECONDS};
use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Cache of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionCacheKind {
    /// Valid tokens.
    Token,
    /// Unknown tokens (negative cache).
    UnknownToken,
    /// Authorization decisions.
    Access,
    /// Verified JWTs.
    Jwt,
    /// Verified tokens of ServiceAccounts.
    ServiceAccount,
}

/// Result of a cache lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheResult {
    /// The decision was cached.
    Hit,
    /// The decision was not cached.
    Miss,
    /// The review failed and an expired decision was used.
    Stale,
}

/// Kind of review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewKind {
    /// TokenReview.
    Token,
    /// SubjectAccessReview.
    Access,
}

/// Metrics of reviews and their caches.
#[derive(Default)]
pub struct ReviewMetrics {
    caches: [CacheCounters; 5],
    requests: [Mutex<BTreeMap<String, (u64, Histogram)>>; 2],
    token_misses: Mutex<Option<Histogram>>,
    fetches: [AtomicU64; 2],
    /// Requests that wait for a TokenReview.
    blocked: AtomicUsize,
    /// TokenReviews in flight.
    in_flight: AtomicUsize,
}

#[derive(Default)]
struct CacheCounters {
    lookups: [StripedCounter; 3],
    entries: AtomicUsize,
    bytes: AtomicUsize,
    evictions: AtomicU64,
}

impl DecisionCacheKind {
    const ALL: [DecisionCacheKind; 5] = [
        DecisionCacheKind::Token,
        DecisionCacheKind::UnknownToken,
        DecisionCacheKind::Access,
        DecisionCacheKind::Jwt,
        DecisionCacheKind::ServiceAccount,
    ];

    fn as_str(self) -> &'static str {
        ["token", "unknown_token", "access", "jwt", "service_account"][self as usize]
    }
}

impl CacheResult {
    const ALL: [&'static str; 3] = ["hit", "miss", "stale"];
}

impl ReviewMetrics {
    /// Counts a cache lookup. Counts on several threads do not contend.
    pub fn record_lookup(&self, cache: DecisionCacheKind, lookup: CacheResult) {
        self.caches[cache as usize].lookups[lookup as usize].increment();
    }

    /// Updates the size of a cache (entries, bytes) from `before` to `now`; several caches may share a label.
    pub fn update_size(&self, cache: DecisionCacheKind, now: (usize, usize), before: (usize, usize)) {
        let change = |held: &AtomicUsize, now: usize, before: usize| {
            held.fetch_add(now.wrapping_sub(before), Relaxed);
        };
        change(&self.caches[cache as usize].entries, now.0, before.0);
        change(&self.caches[cache as usize].bytes, now.1, before.1);
    }

    /// Counts the eviction of an unexpired decision.
    pub fn record_eviction(&self, cache: DecisionCacheKind) {
        self.caches[cache as usize].evictions.fetch_add(1, Relaxed);
    }

    /// Counts an HTTP request for a review; without a status if there was no response.
    pub fn record_request(&self, review: ReviewKind, status: Option<u16>, duration: Duration) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        let mut requests = self.requests[review as usize].lock();
        let (count, histogram) = requests.entry(code).or_insert_with(|| (0, Histogram::new(&REVIEW_SECONDS)));
        *count += 1;
        histogram.observe_duration(duration);
    }

    /// Counts a request as waiting for a TokenReview until the guard is dropped.
    pub fn token_wait_guard(&self) -> impl Drop {
        TokenWaitGuard::new(&self.blocked, self)
    }

    /// Counts a TokenReview as in flight until [`ReviewMetrics::token_fetch_finished`].
    pub fn token_fetch_started(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Counts the end of a TokenReview.
    pub fn token_fetch_finished(&self, ok: bool) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.fetches[usize::from(!ok)].fetch_add(1, Relaxed);
    }

    fn token_cache_hits(&self) -> u64 {
        let of = |cache: DecisionCacheKind| self.caches[cache as usize].lookups[CacheResult::Hit as usize].get();
        of(DecisionCacheKind::Token) + of(DecisionCacheKind::UnknownToken)
    }

    /// Families `apiserver_delegated_authn_*` and `apiserver_delegated_authz_*`.
    pub(in crate::observe::metrics) fn render_requests(&self, text: &mut MetricsText) {
        let names = [
            ("apiserver_delegated_authn_request_duration_seconds", "apiserver_delegated_authn_request_total"),
            ("apiserver_delegated_authz_request_duration_seconds", "apiserver_delegated_authz_request_total"),
        ];
        for ((seconds, total), requests) in names.into_iter().zip(&self.requests) {
            let requests = requests.lock();
            let help = "[ALPHA] Request latency in seconds. Broken down by status code.";
            text.family(seconds, MetricType::Histogram, help);
            for (code, (_, histogram)) in requests.iter() {
                render_histogram(text, &[("code", code)], histogram, REVIEW_SECONDS.printed);
            }
            text.family(total, MetricType::Counter, "[ALPHA] Number of HTTP requests partitioned by status code.");
            for (code, (count, _)) in requests.iter() {
                text.sample(&[("code", code)], *count);
            }
        }
    }

    /// Families `authentication_token_cache_*`, if the cache is used.
    pub(in crate::observe::metrics) fn render_token_cache(&self, text: &mut MetricsText) {
        let misses = self.token_misses.lock();
        let fetched: u64 = self.fetches.iter().map(|count| count.load(Relaxed)).sum();
        let (blocked, in_flight) = (self.blocked.load(Relaxed) as u64, self.in_flight.load(Relaxed) as u64);
        if misses.is_none() && fetched + blocked + in_flight == 0 {
            return;
        }
        text.family("authentication_token_cache_active_fetch_count", MetricType::Gauge, "[ALPHA] ");
        text.sample(&[("status", "blocked")], blocked);
        text.sample(&[("status", "in_flight")], in_flight);
        text.family("authentication_token_cache_fetch_total", MetricType::Counter, "[ALPHA] ");
        for (status, count) in ["ok", "error"].into_iter().zip(&self.fetches) {
            text.sample(&[("status", status)], count.load(Relaxed));
        }
        text.family("authentication_token_cache_request_duration_seconds", MetricType::Histogram, "[ALPHA] ");
        // Hits take microseconds: they are counted, not timed.
        let hits = self.token_cache_hits();
        let mut hit_counts = vec![0; TOKEN_SECONDS.printed.len() + 1];
        hit_counts[0] = hits;
        text.histogram(&[("status", "hit")], TOKEN_SECONDS.printed, &hit_counts, 0.0);
        let mut miss_count = 0;
        if let Some(misses) = &*misses {
            miss_count = render_histogram(text, &[("status", "miss")], misses, TOKEN_SECONDS.printed);
        }
        text.family("authentication_token_cache_request_total", MetricType::Counter, "[ALPHA] ");
        text.sample(&[("status", "hit")], hits);
        text.sample(&[("status", "miss")], miss_count);
    }

    /// Families `narthex_decision_cache_*`.
    pub(in crate::observe::metrics) fn render_decision_cache(&self, text: &mut MetricsText) {
        let used = |cache: &&DecisionCacheKind| {
            let cache = &self.caches[**cache as usize];
            cache.lookups.iter().any(|lookups| lookups.get() > 0) || cache.entries.load(Relaxed) > 0
        };
        let caches: Vec<DecisionCacheKind> = DecisionCacheKind::ALL.iter().filter(used).copied().collect();
        text.family("narthex_decision_cache_bytes", MetricType::Gauge, "Memory used by cached decisions, in bytes.");
        for cache in &caches {
            text.sample(&[("cache", cache.as_str())], self.caches[*cache as usize].bytes.load(Relaxed) as u64);
        }
        text.family("narthex_decision_cache_entries", MetricType::Gauge, "Cached decisions.");
        for cache in &caches {
            text.sample(&[("cache", cache.as_str())], self.caches[*cache as usize].entries.load(Relaxed) as u64);
        }
        text.family(
            "narthex_decision_cache_evictions_total",
            MetricType::Counter,
            "Unexpired decisions evicted from the cache.",
        );
        for cache in &caches {
            text.sample(&[("cache", cache.as_str())], self.caches[*cache as usize].evictions.load(Relaxed));
        }
        text.family(
            "narthex_decision_cache_requests_total",
            MetricType::Counter,
            "Lookups in the decision cache: hit, miss, or stale (expired decision used because the review failed).",
        );
        for cache in &caches {
            for (result, count) in CacheResult::ALL.iter().zip(&self.caches[*cache as usize].lookups) {
                if count.get() > 0 {
                    text.sample(&[("cache", cache.as_str()), ("result", result)], count.get());
                }
            }
        }
    }
}

pub(in crate::observe::metrics) fn render_histogram(
    text: &mut MetricsText,
    labels: &[(&str, &str)],
    histogram: &Histogram,
    printed: &[&str],
) -> u64 {
    let mut counted = HistogramTotal::default();
    histogram.add_to(&mut counted);
    text.histogram(labels, printed, &counted.buckets, counted.sum);
    counted.buckets.iter().sum()
}

struct TokenWaitGuard<'r> {
    reviews: &'r ReviewMetrics,
    began: std::time::Instant,
}

impl<'r> TokenWaitGuard<'r> {
    fn new(blocked: &AtomicUsize, reviews: &'r ReviewMetrics) -> TokenWaitGuard<'r> {
        blocked.fetch_add(1, Relaxed);
        TokenWaitGuard { reviews, began: std::time::Instant::now() }
    }
}

impl Drop for TokenWaitGuard<'_> {
    fn drop(&mut self) {
        self.reviews.blocked.fetch_sub(1, Relaxed);
        let mut misses = self.reviews.token_misses.lock();
        misses.get_or_insert_with(|| Histogram::new(&TOKEN_SECONDS)).observe_duration(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    #[test]
    fn review_metrics_render_every_family() {
        let reviews = ReviewMetrics::default();
        let silent = render(&reviews);
        assert_eq!(silent, "");
        reviews.record_request(ReviewKind::Token, Some(201), Duration::from_millis(300));
        reviews.record_request(ReviewKind::Access, None, Duration::from_secs(10));
        reviews.token_fetch_started();
        let waiting = reviews.token_wait_guard();
        assert!(render(&reviews).contains("authentication_token_cache_active_fetch_count{status=\"blocked\"} 1"));
        drop(waiting);
        reviews.token_fetch_finished(true);
        reviews.record_lookup(DecisionCacheKind::Token, CacheResult::Hit);
        std::thread::scope(|scope| {
            scope.spawn(|| reviews.record_lookup(DecisionCacheKind::Token, CacheResult::Hit));
        });
        reviews.record_lookup(DecisionCacheKind::Access, CacheResult::Stale);
        reviews.update_size(DecisionCacheKind::Access, (4, 700), (0, 0));
        reviews.update_size(DecisionCacheKind::Access, (3, 600), (4, 700));
        reviews.record_eviction(DecisionCacheKind::Access);
        let text = render(&reviews);
        for line in [
            "apiserver_delegated_authn_request_duration_seconds_bucket{code=\"201\",le=\"0.5\"} 1",
            "apiserver_delegated_authn_request_total{code=\"201\"} 1",
            "apiserver_delegated_authz_request_total{code=\"<error>\"} 1",
            "authentication_token_cache_active_fetch_count{status=\"blocked\"} 0",
            "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0",
            "authentication_token_cache_fetch_total{status=\"ok\"} 1",
            "authentication_token_cache_request_total{status=\"hit\"} 2",
            "authentication_token_cache_request_total{status=\"miss\"} 1",
            "narthex_decision_cache_bytes{cache=\"access\"} 600",
            "narthex_decision_cache_entries{cache=\"access\"} 3",
            "narthex_decision_cache_evictions_total{cache=\"access\"} 1",
            "narthex_decision_cache_requests_total{cache=\"token\",result=\"hit\"} 2",
            "narthex_decision_cache_requests_total{cache=\"access\",result=\"stale\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }

    fn render(reviews: &ReviewMetrics) -> String {
        let mut text = MetricsText::new(ExpositionFormat::Classic);
        reviews.render_requests(&mut text);
        reviews.render_token_cache(&mut text);
        reviews.render_decision_cache(&mut text);
        text.finish()
    }
}
