//! Delay until the next probe of a backend. Pure.
//!
//! The delay is the `probe-interval`. It is shorter while the backend is unavailable or its endpoints have just
//! changed, and when requests contradict the last probe: an outage is then confirmed without waiting for the interval.

use std::time::Duration;

/// First delay between probes of an unavailable backend; doubles after each probe.
const SOON: Duration = Duration::from_secs(1);
/// Maximum delay between probes of an unavailable backend. The probe interval applies if it is shorter.
const SELDOM: Duration = Duration::from_secs(5);

/// Decides the delays between the probes of one backend.
pub(super) struct Pace {
    interval: Duration,
    /// Next delay while the backend is unavailable.
    pause: Duration,
    /// Set if requests trigger the next probe: the result they predict.
    expected: Option<bool>,
    /// Minimum time between the last probe and one that requests trigger.
    soon: Duration,
    /// Result of the last probe.
    answered: bool,
    /// Whether the endpoints changed and no probe succeeded since.
    moved: bool,
}

impl Pace {
    pub(super) fn new(interval: Duration) -> Pace {
        let soon = SOON.min(interval);
        Pace { interval, pause: soon, expected: None, soon, answered: true, moved: false }
    }

    /// Delay until the next probe after a result of `answered`. `away`: the backend is unavailable. `doubted`: its
    /// requests fail.
    pub(super) fn after(&mut self, answered: bool, away: bool, doubted: bool) -> Duration {
        let first = SOON.min(self.interval);
        // When requests contradict probes, they trigger fewer and fewer of them.
        let misled = self.expected.take().is_some_and(|expected| expected != answered);
        self.soon = if misled { (self.soon * 2).min(self.interval) } else { first };
        self.answered = answered;
        self.moved &= !answered;
        if away {
            let wait = self.pause;
            self.pause = (wait * 2).min(SELDOM).min(self.interval);
            return wait;
        }
        self.pause = first;
        // One failure of an available backend does not shorten the interval: `failure-threshold` intervals are what the
        // operator granted it. It does when requests fail too, or when new endpoints never answered.
        if !answered && (doubted || self.moved) { first } else { self.interval }
    }

    /// Requests began or ceased to fail. Returns the minimum time since the last probe if that contradicts it.
    pub(super) fn hear(&mut self, doubted: bool) -> Option<Duration> {
        if doubted != self.answered {
            return None;
        }
        self.expected = Some(!doubted);
        Some(self.soon)
    }

    /// A probe was requested. Returns the minimum time since the last one.
    pub(super) fn wanted(&self) -> Duration {
        SOON.min(self.interval)
    }

    /// Whether the next probe runs because requests fail.
    pub(super) fn expects_failure(&self) -> bool {
        self.expected == Some(false)
    }

    /// The endpoints changed. Returns the minimum time since the last probe.
    pub(super) fn others(&mut self) -> Duration {
        self.pause = SOON.min(self.interval);
        self.moved = true;
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[test]
    fn who_is_away_is_asked_more_often_and_who_fails_once_is_not() {
        let mut pace = Pace::new(INTERVAL);
        assert_eq!(pace.after(true, false, false), INTERVAL);
        assert_eq!(pace.after(false, false, false), INTERVAL);
        let waits = [1, 2, 4, 5, 5].map(Duration::from_secs);
        assert_eq!(waits.map(|_| pace.after(false, true, true)), waits);
        pace.others();
        assert_eq!(pace.after(false, true, true), SOON);
        let mut quick = Pace::new(Duration::from_millis(100));
        assert_eq!(quick.after(false, false, true), Duration::from_millis(100));
    }

    #[test]
    fn endpoints_that_changed_are_probed_quickly_until_one_answers() {
        let mut pace = Pace::new(INTERVAL);
        pace.after(true, false, false);
        assert_eq!(pace.others(), SOON);
        assert_eq!([(); 2].map(|()| pace.after(false, false, false)), [SOON; 2]);
        assert_eq!(pace.after(true, false, false), INTERVAL);
        assert_eq!(pace.after(false, false, false), INTERVAL, "they answered once");
    }

    #[test]
    fn failures_that_requests_confirm_follow_each_other() {
        let mut pace = Pace::new(INTERVAL);
        pace.after(true, false, false);
        assert!(!pace.expects_failure());
        assert_eq!((pace.hear(true), pace.expects_failure()), (Some(SOON), true));
        assert_eq!((pace.after(false, false, true), pace.expects_failure()), (SOON, false));
        assert_eq!(pace.hear(true), None, "that is known");
        assert_eq!(pace.after(false, false, true), SOON);
        assert_eq!(pace.hear(false), Some(SOON), "answers, too, bring a probe");
        assert_eq!(pace.after(true, false, false), INTERVAL);
    }

    #[test]
    fn requests_that_mislead_bring_fewer_and_fewer_probes() {
        let mut pace = Pace::new(INTERVAL);
        pace.after(true, false, false);
        let mut brought = || {
            let soon = pace.hear(true).unwrap();
            pace.after(true, false, false);
            soon.as_secs()
        };
        assert_eq!([(); 7].map(|()| brought()), [1, 2, 4, 8, 16, 30, 30]);
        pace.after(true, false, false);
        assert_eq!(pace.hear(true), Some(SOON));
    }
}
