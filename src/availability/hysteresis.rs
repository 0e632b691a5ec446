//! Hysteresis: from single probe results to the `Available` condition. Pure; the time is an argument.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::condition::{AvailabilityCondition, ConditionStatus};

/// One result about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
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
    Unresolved {
        /// `reason` of the `Available` condition, as kube-aggregator sets it, for example `ServiceNotFound`.
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
pub struct ConditionTracker {
    failure_threshold: u32,
    success_threshold: u32,
    /// Consecutive results that contradict the condition.
    contrary_results: u32,
    condition: AvailabilityCondition,
    /// Whether a probe ended since the last restart.
    probed: bool,
    /// Whether the condition is a probe's result.
    is_probe_result: bool,
    /// Messages logged since the status last changed, with their times. Endpoints that fail in different ways
    /// alternate, and so may a circuit that opens and closes.
    logged: Vec<(String, SystemTime)>,
}

/// Time after which a message is logged again.
const LOG_REPEAT_INTERVAL: Duration = Duration::from_secs(600);

/// Maximum number of messages logged between two changes of the status.
const MAX_LOGGED: usize = 8;

impl ConditionTracker {
    /// A tracker with the condition `Unknown`.
    pub fn new(failure_threshold: u32, success_threshold: u32, now: SystemTime) -> ConditionTracker {
        ConditionTracker {
            failure_threshold,
            success_threshold,
            contrary_results: 0,
            condition: AvailabilityCondition::unknown(now),
            probed: false,
            is_probe_result: false,
            logged: Vec::new(),
        }
    }

    /// Whether to log `next`, which follows `before`: its message was not logged since the status changed, or not for
    /// long.
    pub(super) fn should_log(
        &mut self,
        before: &AvailabilityCondition,
        next: &AvailabilityCondition,
        now: SystemTime,
    ) -> bool {
        if before.status != next.status {
            self.logged.clear();
        }
        self.logged.retain(|(_, at)| now.duration_since(*at).is_ok_and(|age| age < LOG_REPEAT_INTERVAL));
        let is_news = self.logged.len() < MAX_LOGGED && !self.logged.iter().any(|(text, _)| *text == next.message);
        if is_news {
            self.logged.push((next.message.clone(), now));
        }
        is_news
    }

    /// Restarts with other settings or endpoints: the next probe decides alone. A condition that no probe set becomes
    /// `Unknown`; any other stays until then.
    pub fn restart(&mut self, failure_threshold: u32, success_threshold: u32, now: SystemTime) {
        (self.failure_threshold, self.success_threshold) = (failure_threshold, success_threshold);
        self.contrary_results = 0;
        if !self.is_probe_result && self.condition.status != ConditionStatus::Unknown {
            self.condition = AvailabilityCondition::unknown(now);
        }
        self.probed = false;
    }

    /// The current condition.
    pub fn condition(&self) -> &AvailabilityCondition {
        &self.condition
    }

    /// Feeds a result. Returns whether the condition changed.
    pub fn observe(&mut self, finding: ProbeResult, now: SystemTime) -> bool {
        let (status, reason, message, detail) = match finding {
            ProbeResult::Answered => (ConditionStatus::True, "Passed", "all checks passed".to_owned(), String::new()),
            ProbeResult::Failed { message, detail } => {
                (ConditionStatus::False, "FailedDiscoveryCheck", message, detail)
            }
            ProbeResult::Unresolved { reason, message } => {
                self.is_probe_result = false;
                return self.set_condition(ConditionStatus::False, reason, message, String::new(), now);
            }
            ProbeResult::Local => {
                self.is_probe_result = false;
                let message = "Local APIServices are always available".to_owned();
                return self.set_condition(ConditionStatus::True, "Local", message, String::new(), now);
            }
        };
        let needed = match status {
            _ if !std::mem::replace(&mut self.probed, true) => 1,
            ConditionStatus::False => self.failure_threshold,
            _ => self.success_threshold,
        };
        if status == self.condition.status && self.is_probe_result {
            return self.set_condition(status, reason, message, detail, now);
        }
        self.contrary_results += 1;
        if self.contrary_results < needed {
            return false;
        }
        self.is_probe_result = true;
        self.set_condition(status, reason, message, detail, now)
    }

    fn set_condition(
        &mut self,
        status: ConditionStatus,
        reason: &'static str,
        message: String,
        detail: String,
        now: SystemTime,
    ) -> bool {
        self.contrary_results = 0;
        let since = if status == self.condition.status { self.condition.since } else { now };
        let next = AvailabilityCondition { status, reason: Cow::Borrowed(reason), message, detail, since };
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

    fn failed() -> ProbeResult {
        ProbeResult::Failed { message: "no answer".to_owned(), detail: "10.0.0.1: refused".to_owned() }
    }

    fn unresolved() -> ProbeResult {
        ProbeResult::Unresolved { reason: "ServiceNotFound", message: "gone".to_owned() }
    }

    #[test]
    fn condition_set_by_first_probe() {
        let mut judge = ConditionTracker::new(3, 2, at(0));
        assert_eq!(judge.condition().status, ConditionStatus::Unknown);
        assert!(judge.observe(failed(), at(1)));
        assert_eq!((judge.condition().status, judge.condition().since), (ConditionStatus::False, at(1)));
        let mut judge = ConditionTracker::new(3, 2, at(0));
        assert!(judge.observe(ProbeResult::Answered, at(1)));
        assert_eq!(judge.condition().message, "all checks passed");
    }

    #[test]
    fn condition_changes_after_threshold_of_consecutive_results() {
        let mut judge = ConditionTracker::new(3, 2, at(0));
        judge.observe(ProbeResult::Answered, at(1));
        for second in 2..4 {
            assert!(!judge.observe(failed(), at(second)));
        }
        assert!(!judge.observe(ProbeResult::Answered, at(4)), "one success resets the count");
        assert!(!judge.observe(failed(), at(5)) && !judge.observe(failed(), at(6)));
        assert!(judge.observe(failed(), at(7)));
        assert_eq!((judge.condition().reason.as_ref(), judge.condition().since), ("FailedDiscoveryCheck", at(7)));
        assert!(!judge.observe(ProbeResult::Answered, at(8)));
        assert!(judge.observe(ProbeResult::Answered, at(9)));
        assert_eq!(judge.condition().since, at(9));
    }

    #[test]
    fn condition_message_changes_without_transition() {
        let mut judge = ConditionTracker::new(1, 1, at(0));
        judge.observe(failed(), at(1));
        assert!(!judge.observe(failed(), at(2)));
        let other = ProbeResult::Failed { message: "503".to_owned(), detail: String::new() };
        assert!(judge.observe(other, at(3)));
        assert_eq!(judge.condition().since, at(1));
    }

    #[test]
    fn condition_unresolved_set_at_once() {
        let mut judge = ConditionTracker::new(3, 1, at(0));
        judge.observe(ProbeResult::Answered, at(1));
        assert!(judge.observe(unresolved(), at(2)));
        assert_eq!(judge.condition().reason, "ServiceNotFound");
        judge.restart(3, 1, at(3));
        assert_eq!(judge.condition().status, ConditionStatus::Unknown);
        assert!(judge.observe(failed(), at(4)), "the first probe decides");
    }

    #[test]
    fn condition_kept_on_restart_until_next_probe() {
        let mut judge = ConditionTracker::new(3, 5, at(0));
        judge.observe(failed(), at(1));
        judge.restart(3, 5, at(2));
        judge.restart(3, 5, at(2));
        assert_eq!(judge.condition().status, ConditionStatus::False);
        assert!(judge.observe(ProbeResult::Answered, at(3)));
    }

    #[test]
    fn condition_logged_once_per_message_until_its_status_changes() {
        let mut judge = ConditionTracker::new(1, 1, at(0));
        let condition = |status, message: &str| {
            let message = message.to_owned();
            AvailabilityCondition { status, message, ..AvailabilityCondition::unknown(at(0)) }
        };
        let down = |message: &str| condition(ConditionStatus::False, message);
        let up = condition(ConditionStatus::True, "fine");
        let mut last = up.clone();
        let mut news_at = |next: AvailabilityCondition, seconds| {
            let is_news = judge.should_log(&last, &next, at(seconds));
            last = next;
            is_news
        };
        let mut news = |next| news_at(next, 1);
        let said = ["refused", "timed out", "refused", "timed out", "refused"].map(|message| news(down(message)));
        assert_eq!(said, [true, true, false, false, false]);
        assert_eq!([news(up.clone()), news(up), news(down("refused"))], [true, false, true]);
        let many = (0..100).filter(|number| news(down(&number.to_string()))).count();
        assert_eq!(many, MAX_LOGGED - 1);
        assert!(news_at(down("refused"), 601) && !news_at(down("refused"), 602));
    }

    #[test]
    fn condition_of_local_apiservice_always_true() {
        let mut judge = ConditionTracker::new(3, 1, at(0));
        assert!(judge.observe(ProbeResult::Local, at(1)));
        assert_eq!((judge.condition().status, judge.condition().reason.as_ref()), (ConditionStatus::True, "Local"));
    }
}
