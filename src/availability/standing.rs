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
const ROW: u32 = 5;
/// Ejection time: the first one and the maximum. It doubles with each further ejection.
const OUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// An endpoint that was healthy for this long starts again with the first ejection time.
const FORGIVEN: Duration = Duration::from_secs(60);
/// Slow-start window of an endpoint that is new among others.
const WARM_UP: Duration = Duration::from_secs(10);
/// Weight at the beginning of the slow-start window.
const LEAST: f64 = 0.1;

/// Weight of an endpoint in load balancing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// Full weight.
    Full,
    /// Fraction of the full weight.
    Part(f64),
    /// One trial request.
    Trial,
    /// No requests.
    Nothing,
}

/// Health of one endpoint, shared by all threads and by every APIService that has it.
pub struct Standing {
    /// Whether there is state to consult. Without it no lock is taken.
    remarkable: AtomicBool,
    record: Mutex<Record>,
    /// Number of times a thread found the endpoint unresponsive.
    silences: AtomicU32,
    /// Whether the endpoint is unresponsive, as far as any thread knows.
    silent: AtomicBool,
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
    /// Whether it counts against the APIServices: a request failed by it, or as many probes as one of them allows.
    confirmed: bool,
}

/// Failure history. Pure; the time is an argument.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Consecutive failures.
    row: u32,
    /// Failures of requests among them since the last successful probe.
    met: u32,
    /// Time of the next trial, if ejected.
    until: Option<Instant>,
    /// Length of the current or last ejection.
    last: Duration,
    /// End of the last ejection.
    back: Option<Instant>,
    /// Start of the slow-start window.
    warming: Option<Instant>,
}

impl Standing {
    /// A new endpoint; `among_others` that have existed for longer.
    pub(super) fn new(among_others: bool, now: Instant) -> Standing {
        let record = Record { warming: among_others.then_some(now), ..Record::default() };
        Standing {
            remarkable: AtomicBool::new(record.is_remarkable()),
            record: Mutex::new(record),
            silences: AtomicU32::new(0),
            silent: AtomicBool::new(false),
            dial_failure: Mutex::default(),
            watchers: Mutex::default(),
        }
    }

    /// Has `watcher` notified when requests begin to fail and when they succeed again.
    pub(super) fn subscribe(&self, watcher: &Arc<Notify>) {
        let mut watchers = self.watchers.lock();
        if !watchers.iter().any(|known| known.as_ptr() == Arc::as_ptr(watcher)) {
            watchers.retain(|known| known.strong_count() > 0);
            watchers.push(Arc::downgrade(watcher));
        }
    }

    fn notify(&self) {
        self.watchers.lock().iter().filter_map(Weak::upgrade).for_each(|watcher| watcher.notify_one());
    }

    /// Whether there is no failure, ejection or slow start to consider.
    pub fn is_plain(&self) -> bool {
        !self.remarkable.load(Relaxed)
    }

    /// Whether the endpoint is ejected.
    pub fn is_out(&self) -> bool {
        !self.is_plain() && self.record.lock().until.is_some()
    }

    /// Whether requests fail repeatedly, with or without ejection.
    pub(super) fn is_against(&self) -> bool {
        let unreachable = || self.dial_failure.lock().is_some_and(|failure| failure.confirmed);
        !self.is_plain() && self.record.lock().met >= ROW || unreachable()
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
            self.silent.store(false, Relaxed);
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
    pub fn share(&self, may_try: bool) -> Share {
        if self.is_plain() { Share::Full } else { self.with(|record| record.share(may_try, Instant::now())) }
    }

    /// Records a successful response.
    pub fn answered(&self) {
        if !self.is_plain() && self.with(|record| record.answered(Instant::now())) {
            self.notify();
        }
    }

    /// Records a request that failed: the endpoint answered with an error of its own, with an invalid response, or not
    /// at all. `may_go` says whether it may be ejected, and is called only if it should be. Returns true if it is newly
    /// ejected.
    pub fn failed(&self, may_go: impl FnOnce() -> bool) -> bool {
        if self.with(Record::met) {
            self.notify();
        }
        self.missed(may_go)
    }

    /// Records a failed probe; `may_go` as above.
    pub(super) fn missed(&self, may_go: impl FnOnce() -> bool) -> bool {
        let should_go = self.with(|record| record.failed(Instant::now()));
        // Called without the lock: it reads the state of other endpoints, which may be in this function, too.
        should_go && may_go() && self.with(|record| record.go(Instant::now()))
    }

    /// Records a successful probe: the next trial is due at once.
    pub fn vouched_for(&self) {
        if !self.is_plain() {
            self.with(|record| {
                record.until = record.until.map(|_| Instant::now());
                record.met = 0;
            });
        }
    }

    /// Records that the endpoint is unresponsive. Returns how often that was so, and whether no thread had found it
    /// since a connection was last opened.
    pub fn record_silence(&self) -> (u32, bool) {
        let silences = self.silences.fetch_add(1, Relaxed).wrapping_add(1);
        (silences, !self.silent.swap(true, Relaxed))
    }

    /// Number of times the endpoint was found unresponsive.
    pub fn silences(&self) -> u32 {
        self.silences.load(Relaxed)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        let mut record = self.record.lock();
        let result = change(&mut record);
        self.remarkable.store(record.is_remarkable(), Relaxed);
        result
    }
}

impl Record {
    fn is_remarkable(&self) -> bool {
        self.row > 0 || self.met > 0 || self.until.is_some() || self.warming.is_some()
    }

    fn share(&mut self, may_try: bool, now: Instant) -> Share {
        if let Some(until) = self.until {
            // Without requests that may try, any request becomes the trial.
            if now < until || !may_try && now < until + self.last {
                return Share::Nothing;
            }
            // If the trial has no result, the next one follows after this.
            self.until = Some(now + self.last);
            return Share::Trial;
        }
        let Some(since) = self.warming else { return Share::Full };
        let part = now.saturating_duration_since(since).as_secs_f64() / WARM_UP.as_secs_f64();
        if part >= 1.0 {
            self.warming = None;
            return Share::Full;
        }
        Share::Part(part.max(LEAST))
    }

    /// Returns whether requests failed there until now.
    fn answered(&mut self, now: Instant) -> bool {
        self.row = 0;
        if self.until.take().is_some() {
            self.back = Some(now);
            self.warming = Some(now);
        }
        std::mem::take(&mut self.met) >= ROW
    }

    /// Returns whether this failure makes the endpoint count as failing.
    fn met(&mut self) -> bool {
        self.met = self.met.saturating_add(1);
        self.met == ROW
    }

    /// Returns whether the endpoint should be ejected.
    fn failed(&mut self, now: Instant) -> bool {
        self.row = self.row.saturating_add(1);
        if self.until.is_some() {
            self.last = (self.last * 2).min(OUT.1);
            self.until = Some(now + self.last);
            return false;
        }
        self.row >= ROW
    }

    /// Ejects the endpoint; false if it is ejected already.
    fn go(&mut self, now: Instant) -> bool {
        if self.until.is_some() {
            return false;
        }
        let again = self.back.is_some_and(|back| now.saturating_duration_since(back) < FORGIVEN);
        self.last = if again { (self.last * 2).min(OUT.1) } else { OUT.0 };
        self.until = Some(now + self.last);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(among_others: bool) -> Standing {
        Standing::new(among_others, Instant::now())
    }

    fn second(start: Instant) -> impl Fn(u64) -> Instant {
        move |second| start + Duration::from_secs(second)
    }

    fn out(record: &mut Record, now: Instant) {
        for number in 1..=ROW {
            assert_eq!(record.failed(now), number == ROW);
        }
        assert!(record.go(now) && !record.go(now));
    }

    #[test]
    fn only_faults_in_a_row_take_it_out_and_only_if_it_may_go() {
        let one = standing(false);
        for _ in 0..100 {
            for _ in 1..ROW {
                assert!(!one.failed(|| unreachable!("too few")));
            }
            one.answered();
        }
        assert!(one.is_plain());
        for _ in 0..100 {
            assert!(!one.failed(|| false));
        }
        assert_eq!((one.share(true), one.is_plain()), (Share::Full, false));
        // The closure may look at the endpoint.
        assert!(one.failed(|| !one.is_out()));
        assert_eq!(one.share(true), Share::Nothing);
    }

    #[test]
    fn it_is_tried_with_one_request_at_a_time_less_and_less_often() {
        let at = second(Instant::now());
        let mut record = Record::default();
        out(&mut record, at(0));
        assert_eq!(record.share(false, at(1)), Share::Nothing, "not with a request that could not go elsewhere");
        assert_eq!({ record }.share(false, at(2)), Share::Trial, "unless there are no others");
        assert_eq!((record.share(true, at(1)), record.share(true, at(1))), (Share::Trial, Share::Nothing));
        record.failed(at(1));
        let tried = |record: &mut Record, from: u64| {
            let when = (from..).find(|second| record.share(true, at(*second)) == Share::Trial).unwrap();
            record.failed(at(when));
            when
        };
        let mut times = vec![1];
        for _ in 0..6 {
            times.push(tried(&mut record, times[times.len() - 1]));
        }
        assert_eq!(times, [1, 3, 7, 15, 31, 61, 91]);
    }

    #[test]
    fn who_comes_back_warms_up_and_who_fails_again_soon_is_out_for_longer() {
        let at = second(Instant::now());
        let mut record = Record::default();
        out(&mut record, at(0));
        record.answered(at(2));
        assert_eq!(record.share(true, at(2)), Share::Part(LEAST));
        assert_eq!(record.share(true, at(7)), Share::Part(0.5));
        assert_eq!(record.share(true, at(12)), Share::Full);
        out(&mut record, at(20));
        assert_eq!(record.last, OUT.0 * 2);
        record.answered(at(23));
        out(&mut record, at(23) + FORGIVEN);
        assert_eq!(record.last, OUT.0);
    }

    #[test]
    fn only_who_is_new_among_others_warms_up() {
        assert!(standing(false).is_plain());
        let new = standing(true);
        assert!(matches!(new.share(true), Share::Part(_)) && !new.is_plain());
        new.answered();
        assert!(matches!(new.share(true), Share::Part(_)), "an answer does not end it");
    }

    #[test]
    fn a_word_for_it_brings_the_next_trial_at_once() {
        let one = standing(false);
        one.vouched_for();
        for _ in 0..ROW {
            one.failed(|| true);
        }
        assert!(one.is_out());
        assert_eq!(one.share(true), Share::Nothing);
        one.vouched_for();
        assert_eq!(one.share(true), Share::Trial);
        one.answered();
        assert!(!one.is_out());
    }

    #[test]
    fn requests_that_fail_there_are_told_of_once_and_probes_are_not() {
        let turned = Arc::new(Notify::new());
        let one = standing(false);
        one.subscribe(&turned);
        let is_told = || futures_util::FutureExt::now_or_never(turned.notified()).is_some();
        for _ in 0..100 {
            one.missed(|| false);
        }
        assert!(!one.is_against() && !is_told());
        for number in 1..100 {
            one.failed(|| false);
            assert_eq!((one.is_against(), is_told()), (number >= ROW, number == ROW));
        }
        one.answered();
        assert!(!one.is_against() && is_told());
        one.answered();
        assert!(!is_told());
        assert!((0..ROW).all(|_| !one.failed(|| false)));
        assert!(one.is_against() && is_told());
        one.vouched_for();
        assert!(!one.is_against() && !is_told(), "a probe succeeded");
    }

    #[test]
    fn dial_failure_counts_against_all_who_have_the_endpoint_once_confirmed() {
        let all: [Arc<Notify>; 2] = Default::default();
        let one = standing(false);
        all.iter().for_each(|watcher| one.subscribe(watcher));
        let told = || all.iter().filter(|one| futures_util::FutureExt::now_or_never(one.notified()).is_some()).count();
        one.record_probe_dial(Err("ConnectionRefused"));
        assert_eq!((one.dial_failure(), one.is_against(), told()), (Some("ConnectionRefused"), false, 0));
        one.confirm_dial_failure();
        assert_eq!((one.is_against(), told()), (true, 2));
        one.record_probe_dial(Err("CertificateExpired"));
        assert_eq!((one.dial_failure(), one.is_against(), told()), (Some("CertificateExpired"), true, 0));
        one.record_probe_dial(Ok(()));
        assert_eq!((one.dial_failure(), one.is_against(), told()), (None, false, 2));
        one.confirm_dial_failure();
        assert!(!one.is_against(), "there is none");
        one.record_dial(Err("ConnectionRefused"));
        assert_eq!((one.is_against(), told()), (true, 2));
    }
}
