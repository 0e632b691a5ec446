//! Hysteresis: from single probe results to the `Available` condition. Pure; the time is an argument.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::condition::{Condition, ConditionStatus};

/// One result about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The backend answered as expected.
    Answered,
    /// The backend did not answer as expected. Counts against the failure threshold.
    Failed {
        /// Message for clients.
        message: String,
        /// Detail for logs.
        detail: String,
    },
    /// The backend cannot be resolved. Takes effect at once.
    Nowhere {
        /// kube-aggregator's reason.
        reason: &'static str,
        /// Message for clients.
        message: String,
    },
    /// A Local APIService: it has no backend of its own, and needs no probe.
    Local,
}

/// Tracks the condition of one APIService.
///
/// The first probe decides alone. After it, as many consecutive results as the thresholds say must contradict the
/// condition to change it. A backend that resolves again after it did not starts anew.
#[derive(Clone, Debug)]
pub struct Judge {
    failure_threshold: u32,
    success_threshold: u32,
    /// Consecutive results that contradict the condition.
    against: u32,
    condition: Condition,
    /// Whether a probe ended since the last restart.
    probed: bool,
    /// Whether the condition is a probe's result.
    by_probe: bool,
    /// Messages logged since the status last changed, with their times. Endpoints that fail in different ways
    /// alternate, and so may a circuit that opens and closes.
    logged: Vec<(String, SystemTime)>,
}

/// Time after which a message is logged again.
const LOGGED_AGAIN: Duration = Duration::from_secs(600);

/// Maximum number of messages logged between two changes of the status.
const MOST_LOGGED: usize = 8;

impl Judge {
    /// A tracker with the condition `Unknown`.
    pub fn new(failure_threshold: u32, success_threshold: u32, now: SystemTime) -> Judge {
        Judge {
            failure_threshold,
            success_threshold,
            against: 0,
            condition: Condition::unknown(now),
            probed: false,
            by_probe: false,
            logged: Vec::new(),
        }
    }

    /// Whether to log `next`, which follows `before`: its message was not logged since the status changed, or not for
    /// long.
    pub(super) fn is_news(&mut self, before: &Condition, next: &Condition, now: SystemTime) -> bool {
        if before.status != next.status {
            self.logged.clear();
        }
        self.logged.retain(|(_, at)| now.duration_since(*at).is_ok_and(|age| age < LOGGED_AGAIN));
        let is_news = self.logged.len() < MOST_LOGGED && !self.logged.iter().any(|(text, _)| *text == next.message);
        if is_news {
            self.logged.push((next.message.clone(), now));
        }
        is_news
    }

    /// Restarts with other settings or endpoints: the next probe decides alone. A condition that no probe set becomes
    /// `Unknown`; any other stays until then.
    pub fn begin_again(&mut self, failure_threshold: u32, success_threshold: u32, now: SystemTime) {
        (self.failure_threshold, self.success_threshold) = (failure_threshold, success_threshold);
        self.against = 0;
        if !self.by_probe && self.condition.status != ConditionStatus::Unknown {
            self.condition = Condition::unknown(now);
        }
        self.probed = false;
    }

    /// The current condition.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Feeds a result. Returns whether the condition changed.
    pub fn hear(&mut self, finding: Finding, now: SystemTime) -> bool {
        let (status, reason, message, detail) = match finding {
            Finding::Answered => (ConditionStatus::True, "Passed", "all checks passed".to_owned(), String::new()),
            Finding::Failed { message, detail } => (ConditionStatus::False, "FailedDiscoveryCheck", message, detail),
            Finding::Nowhere { reason, message } => {
                self.by_probe = false;
                return self.decide(ConditionStatus::False, reason, message, String::new(), now);
            }
            Finding::Local => {
                self.by_probe = false;
                let message = "Local APIServices are always available".to_owned();
                return self.decide(ConditionStatus::True, "Local", message, String::new(), now);
            }
        };
        let needed = match status {
            _ if !std::mem::replace(&mut self.probed, true) => 1,
            ConditionStatus::False => self.failure_threshold,
            _ => self.success_threshold,
        };
        if status == self.condition.status && self.by_probe {
            return self.decide(status, reason, message, detail, now);
        }
        self.against += 1;
        if self.against < needed {
            return false;
        }
        self.by_probe = true;
        self.decide(status, reason, message, detail, now)
    }

    fn decide(
        &mut self,
        status: ConditionStatus,
        reason: &'static str,
        message: String,
        detail: String,
        now: SystemTime,
    ) -> bool {
        self.against = 0;
        let since = if status == self.condition.status { self.condition.since } else { now };
        let next = Condition { status, reason: Cow::Borrowed(reason), message, detail, since };
        let changed = next != self.condition;
        self.condition = next;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn failed() -> Finding {
        Finding::Failed { message: "no answer".to_owned(), detail: "10.0.0.1: refused".to_owned() }
    }

    fn nowhere() -> Finding {
        Finding::Nowhere { reason: "ServiceNotFound", message: "gone".to_owned() }
    }

    #[test]
    fn the_first_probe_decides_alone() {
        let mut judge = Judge::new(3, 2, at(0));
        assert_eq!(judge.condition().status, ConditionStatus::Unknown);
        assert!(judge.hear(failed(), at(1)));
        assert_eq!((judge.condition().status, judge.condition().since), (ConditionStatus::False, at(1)));
        let mut judge = Judge::new(3, 2, at(0));
        assert!(judge.hear(Finding::Answered, at(1)));
        assert_eq!(judge.condition().message, "all checks passed");
    }

    #[test]
    fn only_findings_in_a_row_turn_the_verdict() {
        let mut judge = Judge::new(3, 2, at(0));
        judge.hear(Finding::Answered, at(1));
        for second in 2..4 {
            assert!(!judge.hear(failed(), at(second)));
        }
        assert!(!judge.hear(Finding::Answered, at(4)), "one success resets the count");
        assert!(!judge.hear(failed(), at(5)) && !judge.hear(failed(), at(6)));
        assert!(judge.hear(failed(), at(7)));
        assert_eq!((judge.condition().reason.as_ref(), judge.condition().since), ("FailedDiscoveryCheck", at(7)));
        assert!(!judge.hear(Finding::Answered, at(8)));
        assert!(judge.hear(Finding::Answered, at(9)));
        assert_eq!(judge.condition().since, at(9));
    }

    #[test]
    fn another_message_is_a_change_without_a_transition() {
        let mut judge = Judge::new(1, 1, at(0));
        judge.hear(failed(), at(1));
        assert!(!judge.hear(failed(), at(2)));
        let other = Finding::Failed { message: "503".to_owned(), detail: String::new() };
        assert!(judge.hear(other, at(3)));
        assert_eq!(judge.condition().since, at(1));
    }

    #[test]
    fn nowhere_to_go_needs_no_second_look_and_ends_at_once() {
        let mut judge = Judge::new(3, 1, at(0));
        judge.hear(Finding::Answered, at(1));
        assert!(judge.hear(nowhere(), at(2)));
        assert_eq!(judge.condition().reason, "ServiceNotFound");
        judge.begin_again(3, 1, at(3));
        assert_eq!(judge.condition().status, ConditionStatus::Unknown);
        assert!(judge.hear(failed(), at(4)), "the first probe decides");
    }

    #[test]
    fn a_fresh_start_keeps_the_verdict_until_the_next_probe() {
        let mut judge = Judge::new(3, 5, at(0));
        judge.hear(failed(), at(1));
        judge.begin_again(3, 5, at(2));
        judge.begin_again(3, 5, at(2));
        assert_eq!(judge.condition().status, ConditionStatus::False);
        assert!(judge.hear(Finding::Answered, at(3)));
    }

    #[test]
    fn condition_logged_once_per_message_until_its_status_changes() {
        let mut judge = Judge::new(1, 1, at(0));
        let condition = |status, message: &str| {
            let message = message.to_owned();
            Condition { status, message, ..Condition::unknown(at(0)) }
        };
        let down = |message: &str| condition(ConditionStatus::False, message);
        let up = condition(ConditionStatus::True, "fine");
        let mut last = up.clone();
        let mut news_at = |next: Condition, seconds| {
            let is_news = judge.is_news(&last, &next, at(seconds));
            last = next;
            is_news
        };
        let mut news = |next| news_at(next, 1);
        let said = ["refused", "timed out", "refused", "timed out", "refused"].map(|message| news(down(message)));
        assert_eq!(said, [true, true, false, false, false]);
        assert_eq!([news(up.clone()), news(up), news(down("refused"))], [true, false, true]);
        let many = (0..100).filter(|number| news(down(&number.to_string()))).count();
        assert_eq!(many, MOST_LOGGED - 1);
        assert!(news_at(down("refused"), 601) && !news_at(down("refused"), 602));
    }

    #[test]
    fn local_is_always_available() {
        let mut judge = Judge::new(3, 1, at(0));
        assert!(judge.hear(Finding::Local, at(1)));
        assert_eq!((judge.condition().status, judge.condition().reason.as_ref()), (ConditionStatus::True, "Local"));
    }
}
