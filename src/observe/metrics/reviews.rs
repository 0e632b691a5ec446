//! Metrics of TokenReviews and SubjectAccessReviews, and of the caches of their results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::cell::{Counted, Histogram, REVIEW_SECONDS, Striped, TOKEN_SECONDS};
use super::text::{Kind, Text};

/// Cache of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionCache {
    /// Valid tokens.
    Token,
    /// Unknown tokens (negative cache).
    UnknownToken,
    /// Authorization decisions.
    Access,
    /// Verified JWTs.
    Jwt,
}

/// Result of a cache lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The decision was cached.
    Hit,
    /// The decision was not cached.
    Miss,
    /// The review failed and an expired decision was used.
    Stale,
}

/// Kind of review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// TokenReview.
    Token,
    /// SubjectAccessReview.
    Access,
}

/// Metrics of reviews and their caches.
#[derive(Default)]
pub struct Reviews {
    caches: [Cache; 4],
    requests: [Mutex<BTreeMap<String, (u64, Histogram)>>; 2],
    token_misses: Mutex<Option<Histogram>>,
    fetches: [AtomicU64; 2],
    /// Requests that wait for a TokenReview.
    blocked: AtomicUsize,
    /// TokenReviews in flight.
    in_flight: AtomicUsize,
}

#[derive(Default)]
struct Cache {
    lookups: [Striped; 3],
    entries: AtomicUsize,
    bytes: AtomicUsize,
    evictions: AtomicU64,
}

impl DecisionCache {
    const ALL: [DecisionCache; 4] =
        [DecisionCache::Token, DecisionCache::UnknownToken, DecisionCache::Access, DecisionCache::Jwt];

    fn as_str(self) -> &'static str {
        ["token", "unknown_token", "access", "jwt"][self as usize]
    }
}

impl Lookup {
    const ALL: [&'static str; 3] = ["hit", "miss", "stale"];
}

impl Reviews {
    /// Counts a cache lookup. Counts on several threads do not contend.
    pub fn looked_up(&self, cache: DecisionCache, lookup: Lookup) {
        self.caches[cache as usize].lookups[lookup as usize].up();
    }

    /// Updates the size of a cache (entries, bytes) from `before` to `now`; several caches may share a label.
    pub fn holds(&self, cache: DecisionCache, now: (usize, usize), before: (usize, usize)) {
        let change = |held: &AtomicUsize, now: usize, before: usize| {
            held.fetch_add(now.wrapping_sub(before), Relaxed);
        };
        change(&self.caches[cache as usize].entries, now.0, before.0);
        change(&self.caches[cache as usize].bytes, now.1, before.1);
    }

    /// Counts the eviction of an unexpired decision.
    pub fn evicted(&self, cache: DecisionCache) {
        self.caches[cache as usize].evictions.fetch_add(1, Relaxed);
    }

    /// Counts an HTTP request for a review; without a status if there was no response.
    pub fn asked(&self, review: Review, status: Option<u16>, took: Duration) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        let mut requests = self.requests[review as usize].lock();
        let (count, histogram) = requests.entry(code).or_insert_with(|| (0, Histogram::new(&REVIEW_SECONDS)));
        *count += 1;
        histogram.observe_duration(took);
    }

    /// Counts a request as waiting for a TokenReview until the guard is dropped.
    pub fn token_is_awaited(&self) -> impl Drop {
        Awaited::new(&self.blocked, self)
    }

    /// Counts a TokenReview as in flight until [`Reviews::token_fetched`].
    pub fn token_is_fetched(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Counts the end of a TokenReview.
    pub fn token_fetched(&self, ok: bool) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.fetches[usize::from(!ok)].fetch_add(1, Relaxed);
    }

    fn hits(&self) -> u64 {
        let of = |cache: DecisionCache| self.caches[cache as usize].lookups[Lookup::Hit as usize].get();
        of(DecisionCache::Token) + of(DecisionCache::UnknownToken)
    }

    /// Families `apiserver_delegated_authn_*` and `apiserver_delegated_authz_*`.
    pub(super) fn delegated(&self, text: &mut Text) {
        let names = [
            ("apiserver_delegated_authn_request_duration_seconds", "apiserver_delegated_authn_request_total"),
            ("apiserver_delegated_authz_request_duration_seconds", "apiserver_delegated_authz_request_total"),
        ];
        for ((seconds, total), requests) in names.into_iter().zip(&self.requests) {
            let requests = requests.lock();
            let help = "[ALPHA] Request latency in seconds. Broken down by status code.";
            text.family(seconds, Kind::Histogram, help);
            for (code, (_, histogram)) in requests.iter() {
                histogram_of(text, &[("code", code)], histogram, REVIEW_SECONDS.printed);
            }
            text.family(total, Kind::Counter, "[ALPHA] Number of HTTP requests partitioned by status code.");
            for (code, (count, _)) in requests.iter() {
                text.sample(&[("code", code)], *count);
            }
        }
    }

    /// Families `authentication_token_cache_*`, if the cache is used.
    pub(super) fn token_cache(&self, text: &mut Text) {
        let misses = self.token_misses.lock();
        let fetched: u64 = self.fetches.iter().map(|count| count.load(Relaxed)).sum();
        let (blocked, in_flight) = (self.blocked.load(Relaxed) as u64, self.in_flight.load(Relaxed) as u64);
        if misses.is_none() && fetched + blocked + in_flight == 0 {
            return;
        }
        text.family("authentication_token_cache_active_fetch_count", Kind::Gauge, "[ALPHA] ");
        text.sample(&[("status", "blocked")], blocked);
        text.sample(&[("status", "in_flight")], in_flight);
        text.family("authentication_token_cache_fetch_total", Kind::Counter, "[ALPHA] ");
        for (status, count) in ["ok", "error"].into_iter().zip(&self.fetches) {
            text.sample(&[("status", status)], count.load(Relaxed));
        }
        text.family("authentication_token_cache_request_duration_seconds", Kind::Histogram, "[ALPHA] ");
        // Hits take microseconds: they are counted, not timed.
        let hits = self.hits();
        let mut known = vec![0; TOKEN_SECONDS.printed.len() + 1];
        known[0] = hits;
        text.histogram(&[("status", "hit")], TOKEN_SECONDS.printed, &known, 0.0);
        let mut asked = 0;
        if let Some(misses) = &*misses {
            asked = histogram_of(text, &[("status", "miss")], misses, TOKEN_SECONDS.printed);
        }
        text.family("authentication_token_cache_request_total", Kind::Counter, "[ALPHA] ");
        text.sample(&[("status", "hit")], hits);
        text.sample(&[("status", "miss")], asked);
    }

    /// Families `narthex_decision_cache_*`.
    pub(super) fn decision_cache(&self, text: &mut Text) {
        let used = |cache: &&DecisionCache| {
            let cache = &self.caches[**cache as usize];
            cache.lookups.iter().any(|lookups| lookups.get() > 0) || cache.entries.load(Relaxed) > 0
        };
        let caches: Vec<DecisionCache> = DecisionCache::ALL.iter().filter(used).copied().collect();
        text.family("narthex_decision_cache_bytes", Kind::Gauge, "Memory used by cached decisions, in bytes.");
        for cache in &caches {
            text.sample(&[("cache", cache.as_str())], self.caches[*cache as usize].bytes.load(Relaxed) as u64);
        }
        text.family("narthex_decision_cache_entries", Kind::Gauge, "Cached decisions.");
        for cache in &caches {
            text.sample(&[("cache", cache.as_str())], self.caches[*cache as usize].entries.load(Relaxed) as u64);
        }
        text.family(
            "narthex_decision_cache_evictions_total",
            Kind::Counter,
            "Unexpired decisions evicted from the cache.",
        );
        for cache in &caches {
            text.sample(&[("cache", cache.as_str())], self.caches[*cache as usize].evictions.load(Relaxed));
        }
        text.family(
            "narthex_decision_cache_requests_total",
            Kind::Counter,
            "Lookups in the decision cache: hit, miss, or stale (expired decision used because the review failed).",
        );
        for cache in &caches {
            for (result, count) in Lookup::ALL.iter().zip(&self.caches[*cache as usize].lookups) {
                if count.get() > 0 {
                    text.sample(&[("cache", cache.as_str()), ("result", result)], count.get());
                }
            }
        }
    }
}

pub(super) fn histogram_of(text: &mut Text, labels: &[(&str, &str)], histogram: &Histogram, printed: &[&str]) -> u64 {
    let mut counted = Counted::default();
    histogram.add_to(&mut counted);
    text.histogram(labels, printed, &counted.buckets, counted.sum);
    counted.buckets.iter().sum()
}

struct Awaited<'r> {
    reviews: &'r Reviews,
    began: std::time::Instant,
}

impl<'r> Awaited<'r> {
    fn new(blocked: &AtomicUsize, reviews: &'r Reviews) -> Awaited<'r> {
        blocked.fetch_add(1, Relaxed);
        Awaited { reviews, began: std::time::Instant::now() }
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.reviews.blocked.fetch_sub(1, Relaxed);
        let mut misses = self.reviews.token_misses.lock();
        misses.get_or_insert_with(|| Histogram::new(&TOKEN_SECONDS)).observe_duration(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn every_family_says_what_was_counted() {
        let reviews = Reviews::default();
        let silent = render(&reviews);
        assert_eq!(silent, "");
        reviews.asked(Review::Token, Some(201), Duration::from_millis(300));
        reviews.asked(Review::Access, None, Duration::from_secs(10));
        reviews.token_is_fetched();
        let waiting = reviews.token_is_awaited();
        assert!(render(&reviews).contains("authentication_token_cache_active_fetch_count{status=\"blocked\"} 1"));
        drop(waiting);
        reviews.token_fetched(true);
        reviews.looked_up(DecisionCache::Token, Lookup::Hit);
        std::thread::scope(|scope| {
            scope.spawn(|| reviews.looked_up(DecisionCache::Token, Lookup::Hit));
        });
        reviews.looked_up(DecisionCache::Access, Lookup::Stale);
        reviews.holds(DecisionCache::Access, (4, 700), (0, 0));
        reviews.holds(DecisionCache::Access, (3, 600), (4, 700));
        reviews.evicted(DecisionCache::Access);
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

    fn render(reviews: &Reviews) -> String {
        let mut text = Text::new(Format::Classic);
        reviews.delegated(&mut text);
        reviews.token_cache(&mut text);
        reviews.decision_cache(&mut text);
        text.finish()
    }
}
