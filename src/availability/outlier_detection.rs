//! Outlier detection: health of one endpoint, shared by all threads.
//!
//! An endpoint with consecutive failures is ejected for a while, then tried with one request at a time. A new or
//! returning endpoint is slow-started. An endpoint that cannot be connected to gets no requests either: each worker
//! detects that itself, loses no request by it, and records it here for all.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Consecutive failures that eject an endpoint.
const CONSECUTIVE_FAILURES: u32 = 5;
/// Ejection time: the first one and the maximum. It doubles with each further ejection.
const EJECTION_TIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// An endpoint that was healthy for this long starts again with the first ejection time.
const EJECTION_RESET: Duration = Duration::from_secs(60);
/// Slow-start window of an endpoint that is new among others.
const SLOW_START: Duration = Duration::from_secs(10);
/// Weight at the beginning of the slow-start window.
const MIN_WEIGHT: f64 = 0.1;

/// Weight of an endpoint in load balancing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weight {
    /// Full weight.
    Full,
    /// Fraction of the full weight.
    Fraction(f64),
    /// One trial request.
    Trial,
    /// No requests.
    Zero,
}

/// Health of one endpoint, shared by all threads and by every APIService that has it.
pub struct EndpointHealth {
    /// Whether there is state to consult. Without it no lock is taken.
    has_state: AtomicBool,
    record: Mutex<FailureRecord>,
    /// Number of times a thread found the endpoint unresponsive.
    unresponsive_count: AtomicU32,
    /// Whether the endpoint is unresponsive, as far as any thread knows.
    is_unresponsive: AtomicBool,
    /// Why the last attempt to connect failed.
    dial_failure: Mutex<Option<DialFailure>>,
    /// Notified when requests begin to fail and when they succeed again; one for each APIService.
    watchers: Mutex<Vec<Weak<Notify>>>,
}

/// A failure to open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DialFailure {
    /// For example `ConnectionRefused`.
    reason: &'static str,
    /// Whether the failure counts against the APIServices: a request failed by it, or as many probes as one of them
    /// allows.
    confirmed: bool,
}

/// Failure history. Pure; the time is an argument.
#[derive(Clone, Copy, Debug, Default)]
struct FailureRecord {
    /// Consecutive failures.
    consecutive_failures: u32,
    /// Failures of requests among them since the last successful probe.
    request_failures: u32,
    /// Time of the next trial, if ejected.
    ejected_until: Option<Instant>,
    /// Length of the current or last ejection.
    ejection_time: Duration,
    /// End of the last ejection.
    returned_at: Option<Instant>,
    /// Start of the slow-start window.
    slow_start_since: Option<Instant>,
}

impl EndpointHealth {
    /// A new endpoint; `among_others` that have existed for longer.
    pub(super) fn new(among_others: bool, now: Instant) -> EndpointHealth {
        let record = FailureRecord { slow_start_since: among_others.then_some(now), ..FailureRecord::default() };
        EndpointHealth {
            has_state: AtomicBool::new(record.has_state()),
            record: Mutex::new(record),
            unresponsive_count: AtomicU32::new(0),
            is_unresponsive: AtomicBool::new(false),
            dial_failure: Mutex::default(),
            watchers: Mutex::default(),
        }
    }

    /// Has `watcher` notified when requests begin to fail and when they succeed again.
    pub(super) fn subscribe(&self, watcher: &Arc<Notify>) {
        let mut watchers = self.watchers.lock();
        if !watchers.iter().any(|registered| registered.as_ptr() == Arc::as_ptr(watcher)) {
            watchers.retain(|registered| registered.strong_count() > 0);
            watchers.push(Arc::downgrade(watcher));
        }
    }

    fn notify(&self) {
        self.watchers.lock().iter().filter_map(Weak::upgrade).for_each(|watcher| watcher.notify_one());
    }

    /// Whether there is no failure, ejection or slow start to consider.
    pub fn is_clean(&self) -> bool {
        !self.has_state.load(Relaxed)
    }

    /// Whether the endpoint is ejected.
    pub fn is_ejected(&self) -> bool {
        !self.is_clean() && self.record.lock().ejected_until.is_some()
    }

    /// Whether requests fail repeatedly, with or without ejection.
    pub(super) fn is_failing(&self) -> bool {
        let unreachable = || self.dial_failure.lock().is_some_and(|failure| failure.confirmed);
        !self.is_clean() && self.record.lock().request_failures >= CONSECUTIVE_FAILURES || unreachable()
    }

    /// Why the last attempt to connect failed, for example `ConnectionRefused`; `None` if it succeeded or there was
    /// none.
    pub fn dial_failure(&self) -> Option<&'static str> {
        self.dial_failure.lock().map(|failure| failure.reason)
    }

    /// Records the result of opening a connection for a request.
    pub fn record_dial(&self, result: Result<(), &'static str>) {
        self.record_connection(result, true);
    }

    /// Records the result of opening a connection for a probe. A failure counts against the endpoint once it is
    /// confirmed.
    pub(super) fn record_probe_dial(&self, result: Result<(), &'static str>) {
        self.record_connection(result, false);
    }

    /// Confirms the dial failure: as many probes failed as an APIService allows. The other APIServices are notified.
    pub(super) fn confirm_dial_failure(&self) {
        if let Some(reason) = self.dial_failure() {
            self.record_connection(Err(reason), true);
        }
    }

    fn record_connection(&self, result: Result<(), &'static str>, confirms: bool) {
        if result.is_ok() {
            self.is_unresponsive.store(false, Relaxed);
        }
        let mut failure = self.dial_failure.lock();
        let before = failure.is_some_and(|failure| failure.confirmed);
        let now = result.err().map(|reason| DialFailure { reason, confirmed: confirms || before });
        *failure = now;
        drop(failure);
        if now.is_some_and(|failure| failure.confirmed) != before {
            self.notify();
        }
    }

    /// The current weight. A trial is taken by asking: it goes to a request that `may_try`, which can be sent elsewhere
    /// if it fails, or to any request if none of these came for long.
    pub fn weight(&self, may_try: bool) -> Weight {
        if self.is_clean() { Weight::Full } else { self.update_record(|record| record.weight(may_try, Instant::now())) }
    }

    /// Records a successful response.
    pub fn record_success(&self) {
        if !self.is_clean() && self.update_record(|record| record.record_success(Instant::now())) {
            self.notify();
        }
    }

    /// Records a request that failed: the endpoint answered with an error of its own, with an invalid response, or not
    /// at all. `may_go` says whether it may be ejected, and is called only if it should be. Returns true if it is newly
    /// ejected.
    pub fn record_failure(&self, may_go: impl FnOnce() -> bool) -> bool {
        if self.update_record(FailureRecord::record_request_failure) {
            self.notify();
        }
        self.record_probe_failure(may_go)
    }

    /// Records a failed probe; `may_go` as above.
    pub(super) fn record_probe_failure(&self, may_go: impl FnOnce() -> bool) -> bool {
        let should_go = self.update_record(|record| record.record_failure(Instant::now()));
        // Called without the lock: it reads the state of other endpoints, which may be in this function, too.
        should_go && may_go() && self.update_record(|record| record.eject(Instant::now()))
    }

    /// Records a successful probe: the next trial is due at once.
    pub fn record_probe_success(&self) {
        if !self.is_clean() {
            self.update_record(|record| {
                record.ejected_until = record.ejected_until.map(|_| Instant::now());
                record.request_failures = 0;
            });
        }
    }

    /// Records that the endpoint is unresponsive. Returns how often that was so, and whether no thread had found it
    /// since a connection was last opened.
    pub fn record_unresponsive(&self) -> (u32, bool) {
        let silences = self.unresponsive_count.fetch_add(1, Relaxed).wrapping_add(1);
        (silences, !self.is_unresponsive.swap(true, Relaxed))
    }

    /// Number of times the endpoint was found unresponsive.
    pub fn unresponsive_count(&self) -> u32 {
        self.unresponsive_count.load(Relaxed)
    }

    fn update_record<T>(&self, change: impl FnOnce(&mut FailureRecord) -> T) -> T {
        let mut record = self.record.lock();
        let result = change(&mut record);
        self.has_state.store(record.has_state(), Relaxed);
        result
    }
}

impl FailureRecord {
    fn has_state(&self) -> bool {
        self.consecutive_failures > 0
            || self.request_failures > 0
            || self.ejected_until.is_some()
            || self.slow_start_since.is_some()
    }

    fn weight(&mut self, may_try: bool, now: Instant) -> Weight {
        if let Some(until) = self.ejected_until {
            // Without requests that may try, any request becomes the trial.
            if now < until || !may_try && now < until + self.ejection_time {
                return Weight::Zero;
            }
            // If the trial has no result, the next one follows after this.
            self.ejected_until = Some(now + self.ejection_time);
            return Weight::Trial;
        }
        let Some(since) = self.slow_start_since else { return Weight::Full };
        let part = now.saturating_duration_since(since).as_secs_f64() / SLOW_START.as_secs_f64();
        if part >= 1.0 {
            self.slow_start_since = None;
            return Weight::Full;
        }
        Weight::Fraction(part.max(MIN_WEIGHT))
    }

    /// Returns whether requests failed there until now.
    fn record_success(&mut self, now: Instant) -> bool {
        self.consecutive_failures = 0;
        if self.ejected_until.take().is_some() {
            self.returned_at = Some(now);
            self.slow_start_since = Some(now);
        }
        std::mem::take(&mut self.request_failures) >= CONSECUTIVE_FAILURES
    }

    /// Returns whether this failure makes the endpoint count as failing.
    fn record_request_failure(&mut self) -> bool {
        self.request_failures = self.request_failures.saturating_add(1);
        self.request_failures == CONSECUTIVE_FAILURES
    }

    /// Returns whether the endpoint should be ejected.
    fn record_failure(&mut self, now: Instant) -> bool {
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        if self.ejected_until.is_some() {
            self.ejection_time = (self.ejection_time * 2).min(EJECTION_TIME.1);
            self.ejected_until = Some(now + self.ejection_time);
            return false;
        }
        self.consecutive_failures >= CONSECUTIVE_FAILURES
    }

    /// Ejects the endpoint; false if it is ejected already.
    fn eject(&mut self, now: Instant) -> bool {
        if self.ejected_until.is_some() {
            return false;
        }
        let again = self.returned_at.is_some_and(|back| now.saturating_duration_since(back) < EJECTION_RESET);
        self.ejection_time = if again { (self.ejection_time * 2).min(EJECTION_TIME.1) } else { EJECTION_TIME.0 };
        self.ejected_until = Some(now + self.ejection_time);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint_health(among_others: bool) -> EndpointHealth {
        EndpointHealth::new(among_others, Instant::now())
    }

    fn second(start: Instant) -> impl Fn(u64) -> Instant {
        move |second| start + Duration::from_secs(second)
    }

    fn eject(record: &mut FailureRecord, now: Instant) {
        for number in 1..=CONSECUTIVE_FAILURES {
            assert_eq!(record.record_failure(now), number == CONSECUTIVE_FAILURES);
        }
        assert!(record.eject(now) && !record.eject(now));
    }

    #[test]
    fn outlier_ejected_after_consecutive_failures_if_allowed() {
        let one = endpoint_health(false);
        for _ in 0..100 {
            for _ in 1..CONSECUTIVE_FAILURES {
                assert!(!one.record_failure(|| unreachable!("too few")));
            }
            one.record_success();
        }
        assert!(one.is_clean());
        for _ in 0..100 {
            assert!(!one.record_failure(|| false));
        }
        assert_eq!((one.weight(true), one.is_clean()), (Weight::Full, false));
        // The closure may look at the endpoint.
        assert!(one.record_failure(|| !one.is_ejected()));
        assert_eq!(one.weight(true), Weight::Zero);
    }

    #[test]
    fn outlier_trials_one_at_a_time_with_backoff() {
        let at = second(Instant::now());
        let mut record = FailureRecord::default();
        eject(&mut record, at(0));
        assert_eq!(record.weight(false, at(1)), Weight::Zero, "not with a request that could not go elsewhere");
        assert_eq!({ record }.weight(false, at(2)), Weight::Trial, "unless there are no others");
        assert_eq!((record.weight(true, at(1)), record.weight(true, at(1))), (Weight::Trial, Weight::Zero));
        record.record_failure(at(1));
        let tried = |record: &mut FailureRecord, from: u64| {
            let when = (from..).find(|second| record.weight(true, at(*second)) == Weight::Trial).unwrap();
            record.record_failure(at(when));
            when
        };
        let mut times = vec![1];
        for _ in 0..6 {
            times.push(tried(&mut record, times[times.len() - 1]));
        }
        assert_eq!(times, [1, 3, 7, 15, 31, 61, 91]);
    }

    #[test]
    fn outlier_slow_start_and_longer_second_ejection() {
        let at = second(Instant::now());
        let mut record = FailureRecord::default();
        eject(&mut record, at(0));
        record.record_success(at(2));
        assert_eq!(record.weight(true, at(2)), Weight::Fraction(MIN_WEIGHT));
        assert_eq!(record.weight(true, at(7)), Weight::Fraction(0.5));
        assert_eq!(record.weight(true, at(12)), Weight::Full);
        eject(&mut record, at(20));
        assert_eq!(record.ejection_time, EJECTION_TIME.0 * 2);
        record.record_success(at(23));
        eject(&mut record, at(23) + EJECTION_RESET);
        assert_eq!(record.ejection_time, EJECTION_TIME.0);
    }

    #[test]
    fn slow_start_only_for_new_endpoint_among_others() {
        assert!(endpoint_health(false).is_clean());
        let new = endpoint_health(true);
        assert!(matches!(new.weight(true), Weight::Fraction(_)) && !new.is_clean());
        new.record_success();
        assert!(matches!(new.weight(true), Weight::Fraction(_)), "an answer does not end it");
    }

    #[test]
    fn outlier_trial_at_once_after_probe_success() {
        let one = endpoint_health(false);
        one.record_probe_success();
        for _ in 0..CONSECUTIVE_FAILURES {
            one.record_failure(|| true);
        }
        assert!(one.is_ejected());
        assert_eq!(one.weight(true), Weight::Zero);
        one.record_probe_success();
        assert_eq!(one.weight(true), Weight::Trial);
        one.record_success();
        assert!(!one.is_ejected());
    }

    #[test]
    fn outlier_request_failures_notified_once() {
        let turned = Arc::new(Notify::new());
        let one = endpoint_health(false);
        one.subscribe(&turned);
        let is_told = || futures_util::FutureExt::now_or_never(turned.notified()).is_some();
        for _ in 0..100 {
            one.record_probe_failure(|| false);
        }
        assert!(!one.is_failing() && !is_told());
        for number in 1..100 {
            one.record_failure(|| false);
            assert_eq!((one.is_failing(), is_told()), (number >= CONSECUTIVE_FAILURES, number == CONSECUTIVE_FAILURES));
        }
        one.record_success();
        assert!(!one.is_failing() && is_told());
        one.record_success();
        assert!(!is_told());
        assert!((0..CONSECUTIVE_FAILURES).all(|_| !one.record_failure(|| false)));
        assert!(one.is_failing() && is_told());
        one.record_probe_success();
        assert!(!one.is_failing() && !is_told(), "a probe succeeded");
    }

    #[test]
    fn dial_failure_shared_by_apiservices_once_confirmed() {
        let all: [Arc<Notify>; 2] = Default::default();
        let one = endpoint_health(false);
        all.iter().for_each(|watcher| one.subscribe(watcher));
        let told = || all.iter().filter(|one| futures_util::FutureExt::now_or_never(one.notified()).is_some()).count();
        one.record_probe_dial(Err("ConnectionRefused"));
        assert_eq!((one.dial_failure(), one.is_failing(), told()), (Some("ConnectionRefused"), false, 0));
        one.confirm_dial_failure();
        assert_eq!((one.is_failing(), told()), (true, 2));
        one.record_probe_dial(Err("CertificateExpired"));
        assert_eq!((one.dial_failure(), one.is_failing(), told()), (Some("CertificateExpired"), true, 0));
        one.record_probe_dial(Ok(()));
        assert_eq!((one.dial_failure(), one.is_failing(), told()), (None, false, 2));
        one.confirm_dial_failure();
        assert!(!one.is_failing(), "there is none");
        one.record_dial(Err("ConnectionRefused"));
        assert_eq!((one.is_failing(), told()), (true, 2));
    }
}
