//! From single findings to a verdict, with hysteresis. Pure; the time is an argument.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::condition::{Condition, ConditionStatus};

/// One thing found out about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It answered as it should.
    Answered,
    /// It did not answer, or not as it should: counts against the failure threshold.
    Failed {
        /// For clients.
        message: String,
        /// For logs.
        detail: String,
    },
    /// There is nowhere to ask: that needs no second look.
    Nowhere {
        /// kube-aggregator's reason.
        reason: &'static str,
        /// For clients.
        message: String,
    },
    /// Nobody has to be asked: it is not served by a backend of its own.
    Local,
}

/// Judges one APIService.
///
/// The first probe decides alone; after it, so many in a row must disagree with the verdict as the
/// thresholds say. A place to ask that was missing and is found again makes a fresh start.
#[derive(Clone, Debug)]
pub struct Judge {
    failure_threshold: u32,
    success_threshold: u32,
    /// Findings in a row that disagree with the condition.
    against: u32,
    condition: Condition,
    /// Whether a probe has been heard since the last fresh start.
    probed: bool,
    /// Whether the condition is what a probe said, not what was known without one.
    by_probe: bool,
    /// The messages that were logged since the status last changed, and when: endpoints that fail in different ways take
    /// turns, and so may a circuit that opens and closes.
    logged: Vec<(String, SystemTime)>,
}

/// After this long a message is logged once more.
const LOGGED_AGAIN: Duration = Duration::from_secs(600);

/// Messages that are logged between two changes of a status; more than these are of no use to anybody.
const MOST_LOGGED: usize = 8;

impl Judge {
    /// A judge that knows nothing yet.
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

    /// Whether `next`, which follows `before`, is to be logged: the first time since its status changed, or for long, that
    /// its message is this.
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

    /// A fresh start with other settings or places: the next probe decides alone. A backend that could not be
    /// found is unknown again; any other verdict stands until then.
    pub fn begin_again(&mut self, failure_threshold: u32, success_threshold: u32, now: SystemTime) {
        (self.failure_threshold, self.success_threshold) = (failure_threshold, success_threshold);
        self.against = 0;
        if !self.by_probe && self.condition.status != ConditionStatus::Unknown {
            self.condition = Condition::unknown(now);
        }
        self.probed = false;
    }

    /// What is known now.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Takes a finding into account; true if the condition is another now.
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
        assert!(!judge.hear(Finding::Answered, at(4)), "one answer clears the doubt");
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
