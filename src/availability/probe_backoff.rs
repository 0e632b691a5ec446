//! Delay until the next probe of a backend. Pure.
//!
//! The delay is the `probe-interval`. It is shorter while the backend is unavailable or its endpoints have just
//! changed, and when requests contradict the last probe: an outage is then confirmed without waiting for the interval.

use std::time::Duration;

/// First delay between probes of an unavailable backend; doubles after each probe.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay between probes of an unavailable backend. The probe interval applies if it is shorter.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Decides the delays between the probes of one backend.
pub(super) struct ProbeBackoff {
    interval: Duration,
    /// Next delay while the backend is unavailable.
    backoff: Duration,
    /// Set if requests trigger the next probe: the result they predict.
    expected_result: Option<bool>,
    /// Minimum time between the last probe and one that requests trigger.
    min_gap: Duration,
    /// Result of the last probe.
    last_result: bool,
    /// Whether the endpoints changed and no probe succeeded since.
    has_new_endpoints: bool,
}

impl ProbeBackoff {
    pub(super) fn new(interval: Duration) -> ProbeBackoff {
        let soon = MIN_DELAY.min(interval);
        ProbeBackoff {
            interval,
            backoff: soon,
            expected_result: None,
            min_gap: soon,
            last_result: true,
            has_new_endpoints: false,
        }
    }

    /// Delay until the next probe after a probe that failed or `is_answered`. `is_unavailable`: the backend is
    /// unavailable. `is_doubted`: its requests fail.
    pub(super) fn next_delay(&mut self, is_answered: bool, is_unavailable: bool, is_doubted: bool) -> Duration {
        let first = MIN_DELAY.min(self.interval);
        // When requests contradict probes, they trigger fewer and fewer of them.
        let misled = self.expected_result.take().is_some_and(|expected| expected != is_answered);
        self.min_gap = if misled { (self.min_gap * 2).min(self.interval) } else { first };
        self.last_result = is_answered;
        self.has_new_endpoints &= !is_answered;
        if is_unavailable {
            let wait = self.backoff;
            self.backoff = (wait * 2).min(MAX_BACKOFF).min(self.interval);
            return wait;
        }
        self.backoff = first;
        // One failure of an available backend does not shorten the interval: `failure-threshold` intervals are what the
        // operator granted it. It does when requests fail too, or when new endpoints never answered.
        if !is_answered && (is_doubted || self.has_new_endpoints) { first } else { self.interval }
    }

    /// Requests began or ceased to fail. Returns the minimum time since the last probe if that contradicts it.
    pub(super) fn requests_changed(&mut self, doubted: bool) -> Option<Duration> {
        if doubted != self.last_result {
            return None;
        }
        self.expected_result = Some(!doubted);
        Some(self.min_gap)
    }

    /// A probe was requested. Returns the minimum time since the last one.
    pub(super) fn requested_delay(&self) -> Duration {
        MIN_DELAY.min(self.interval)
    }

    /// Whether the next probe runs because requests fail.
    pub(super) fn expects_failure(&self) -> bool {
        self.expected_result == Some(false)
    }

    /// The endpoints changed. Returns the minimum time since the last probe.
    pub(super) fn endpoints_changed(&mut self) -> Duration {
        self.backoff = MIN_DELAY.min(self.interval);
        self.has_new_endpoints = true;
        self.backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[test]
    fn probe_backoff_shorter_while_unavailable() {
        let mut pace = ProbeBackoff::new(INTERVAL);
        assert_eq!(pace.next_delay(true, false, false), INTERVAL);
        assert_eq!(pace.next_delay(false, false, false), INTERVAL);
        let waits = [1, 2, 4, 5, 5].map(Duration::from_secs);
        assert_eq!(waits.map(|_| pace.next_delay(false, true, true)), waits);
        pace.endpoints_changed();
        assert_eq!(pace.next_delay(false, true, true), MIN_DELAY);
        let mut quick = ProbeBackoff::new(Duration::from_millis(100));
        assert_eq!(quick.next_delay(false, false, true), Duration::from_millis(100));
    }

    #[test]
    fn probe_backoff_short_for_new_endpoints_until_one_answers() {
        let mut pace = ProbeBackoff::new(INTERVAL);
        pace.next_delay(true, false, false);
        assert_eq!(pace.endpoints_changed(), MIN_DELAY);
        assert_eq!([(); 2].map(|()| pace.next_delay(false, false, false)), [MIN_DELAY; 2]);
        assert_eq!(pace.next_delay(true, false, false), INTERVAL);
        assert_eq!(pace.next_delay(false, false, false), INTERVAL, "they answered once");
    }

    #[test]
    fn probe_backoff_short_while_requests_fail_too() {
        let mut pace = ProbeBackoff::new(INTERVAL);
        pace.next_delay(true, false, false);
        assert!(!pace.expects_failure());
        assert_eq!((pace.requests_changed(true), pace.expects_failure()), (Some(MIN_DELAY), true));
        assert_eq!((pace.next_delay(false, false, true), pace.expects_failure()), (MIN_DELAY, false));
        assert_eq!(pace.requests_changed(true), None, "that is known");
        assert_eq!(pace.next_delay(false, false, true), MIN_DELAY);
        assert_eq!(pace.requests_changed(false), Some(MIN_DELAY), "answers, too, bring a probe");
        assert_eq!(pace.next_delay(true, false, false), INTERVAL);
    }

    #[test]
    fn probe_backoff_doubles_when_requests_contradict_probes() {
        let mut pace = ProbeBackoff::new(INTERVAL);
        pace.next_delay(true, false, false);
        let mut brought = || {
            let soon = pace.requests_changed(true).unwrap();
            pace.next_delay(true, false, false);
            soon.as_secs()
        };
        assert_eq!([(); 7].map(|()| brought()), [1, 2, 4, 8, 16, 30, 30]);
        pace.next_delay(true, false, false);
        assert_eq!(pace.requests_changed(true), Some(MIN_DELAY));
    }
}
