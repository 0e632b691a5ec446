//! When a backend is asked next. Pure.
//!
//! By its `probe-interval`; sooner where it is away; at once when its endpoints change; and as soon as what became of its
//! requests says otherwise than the last probe: both are judged together, so that nobody learns of an outage by waiting for the next turn.

use std::time::Duration;

/// While a backend is away it is asked again this soon at first, then twice as long after each time,
const SOON: Duration = Duration::from_secs(1);
/// up to this long, or its probe interval if that is shorter: whoever waits for it should not wait long.
const SELDOM: Duration = Duration::from_secs(5);

/// The time between the probes of one backend.
pub(super) struct Pace {
    interval: Duration,
    /// How long until the next while it is away.
    pause: Duration,
    /// What requests say, if they bring the next probe: whether it will be answered.
    expected: Option<bool>,
    /// How soon after the last one a probe may come that they bring.
    soon: Duration,
    /// Whether the last probe was answered.
    answered: bool,
    /// Whether its endpoints changed and none of them answered since.
    moved: bool,
}

impl Pace {
    pub(super) fn new(interval: Duration) -> Pace {
        let soon = SOON.min(interval);
        Pace { interval, pause: soon, expected: None, soon, answered: true, moved: false }
    }

    /// How long until the next probe, after one that was `answered` or not. The backend is known to be `away`, or its
    /// requests put it in doubt.
    pub(super) fn after(&mut self, answered: bool, away: bool, doubted: bool) -> Duration {
        let first = SOON.min(self.interval);
        // Requests that fail where probes are answered, or the other way round, bring fewer and fewer of them.
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
        // One that fails while it is available is not asked more often: `failure-threshold` intervals are what the operator
        // granted it. But for where its requests fail, too, and for endpoints that never answered.
        if !answered && (doubted || self.moved) { first } else { self.interval }
    }

    /// What requests say is another now. How soon after the last probe the next one is to come, if that says otherwise.
    pub(super) fn hear(&mut self, doubted: bool) -> Option<Duration> {
        if doubted != self.answered {
            return None;
        }
        self.expected = Some(!doubted);
        Some(self.soon)
    }

    /// Somebody wants a probe. How soon after the last one it is to come.
    pub(super) fn wanted(&self) -> Duration {
        SOON.min(self.interval)
    }

    /// Whether the next probe comes because requests fail.
    pub(super) fn expects_failure(&self) -> bool {
        self.expected == Some(false)
    }

    /// Its endpoints changed. How soon after the last probe the next one is to come.
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
