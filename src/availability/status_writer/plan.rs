//! Decides when an APIService's status is written. Pure; the time is an argument.
//!
//! Other writers set the same condition: every kube-apiserver runs an aggregator that probes the same backends. While
//! the conditions agree nothing is written. While they differ, each writer would overwrite the other for ever.
//! Therefore:
//!
//! * a condition of another writer is overwritten only after a probe that is newer than it;
//! * after two overwrites by another writer this one backs off for a while;
//! * a change of the computed condition is still written once, at a limited rate: the other writer may be gone, or
//!   agree by now.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::availability::availability_map::ProbeRecord;
use crate::availability::{AvailabilityCondition, ConditionStatus};
use crate::registry::StoredStatus;

/// Maximum time until a watch shows a write.
const WATCH_DELAY: Duration = Duration::from_secs(10);
/// Overwrites by another writer that cause a back-off.
const MAX_OVERWRITES: usize = 2;
/// Time window in which overwrites are counted.
const OVERWRITE_WINDOW: Duration = Duration::from_secs(300);
/// Back-off after repeated overwrites: the first and the maximum. It doubles each time, and halves for each time that
/// both writers agree for as long as the first.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(4 * 3600));
/// Minimum time between writes during a back-off.
const BACK_OFF_WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// Writes and disputes of each APIService.
#[derive(Default)]
pub(super) struct StatusPlanner {
    by_name: HashMap<String, WriteHistory>,
}

#[derive(Default)]
struct WriteHistory {
    last_write: Option<LastWrite>,
    /// Times at which another writer overwrote this one.
    overwritten_at: Vec<Instant>,
    back_off_until: Option<Instant>,
    back_off: Option<Duration>,
    /// When the conditions last differed.
    disagreed_at: Option<Instant>,
    /// The condition of another writer, its transition time, and when it was first seen.
    foreign: Option<(ConditionContent, String, Instant)>,
    /// When this writer last wrote.
    written_at: Option<Instant>,
    /// Whether the computed condition changed since the last write.
    has_news: bool,
    /// Status and reason of the computed condition.
    computed: (String, String),
}

struct LastWrite {
    /// The `resourceVersion` of the APIService after the write.
    version: String,
    content: ConditionContent,
    written_at: Instant,
    /// Whether a watch has shown it.
    is_observed: bool,
}

/// A condition without its transition time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ConditionContent {
    status: String,
    reason: String,
    message: String,
}

/// The plan for one APIService.
#[derive(Debug, PartialEq)]
pub(super) enum StatusPlan {
    /// The conditions agree, or nothing can be decided yet.
    NoChange,
    /// Write these conditions to this version.
    Write { version: String, conditions: Vec<Value> },
    /// Another writer's condition is newer than the last probe: probe the backend before writing.
    ProbeFirst,
    /// Another writer overwrites this one; returned once, for the log.
    BackOff(Duration),
}

impl StatusPlanner {
    /// Plans for the computed `condition`, the last probe `last_probe` and the current status `stored`.
    pub(super) fn plan(
        &mut self,
        name: &str,
        condition: &AvailabilityCondition,
        last_probe: Option<ProbeRecord>,
        stored: &StoredStatus,
        now: Instant,
    ) -> StatusPlan {
        // Not probed yet: nothing to report.
        if condition.status == ConditionStatus::Unknown && condition.reason == "NotProbed" {
            return StatusPlan::NoChange;
        }
        let computed = ConditionContent {
            status: condition.status.as_str().to_owned(),
            reason: condition.reason.to_string(),
            message: condition.message.clone(),
        };
        let there = stored.conditions.iter().find(|one| one["type"] == "Available");
        let current = there.map(ConditionContent::from_value).unwrap_or_default();
        let entry = self.by_name.entry(name.to_owned()).or_default();
        if let Some(wrote) = &mut entry.last_write {
            wrote.is_observed |=
                has_reached(&stored.version, &wrote.version) || now.duration_since(wrote.written_at) >= WATCH_DELAY;
            if !wrote.is_observed {
                return StatusPlan::NoChange;
            }
        }
        if (&entry.computed.0, &entry.computed.1) != (&computed.status, &computed.reason) {
            entry.has_news = true;
            entry.computed = (computed.status.clone(), computed.reason.clone());
        }
        let is_own_current = entry.last_write.as_ref().is_some_and(|wrote| wrote.content == current);
        let agrees = (&current.status, &current.reason) == (&computed.status, &computed.reason);
        entry.observe(is_own_current, &current, there, now);
        // Same status and reason with another message: theirs stays.
        if current == computed || (agrees && !is_own_current) {
            entry.record_agreement(is_own_current, now);
            return StatusPlan::NoChange;
        }
        entry.disagreed_at = Some(now);
        let left = entry.back_off_until.is_some_and(|until| now < until);
        if left {
            let is_recent =
                entry.written_at.is_some_and(|last| now.saturating_duration_since(last) < BACK_OFF_WRITE_INTERVAL);
            // The current status may be this writer's last change.
            if is_recent || !(entry.has_news || is_own_current) {
                return StatusPlan::NoChange;
            }
        }
        if entry.is_foreign_newer_than_probe(&computed, &current, last_probe) {
            return StatusPlan::ProbeFirst;
        }
        if left {
            entry.last_write = None;
        }
        if entry.last_write.is_some() && !is_own_current {
            entry.last_write = None;
            entry.overwritten_at.retain(|at| now.duration_since(*at) < OVERWRITE_WINDOW);
            entry.overwritten_at.push(now);
            if entry.overwritten_at.len() >= MAX_OVERWRITES {
                entry.overwritten_at.clear();
                let first = entry.back_off.is_none();
                let delay = entry.back_off.map_or(BACK_OFF.0, |delay| (delay * 2).min(BACK_OFF.1));
                (entry.back_off, entry.back_off_until) = (Some(delay), Some(now + delay));
                return if first { StatusPlan::BackOff(delay) } else { StatusPlan::NoChange };
            }
        }
        let others = stored.conditions.iter().filter(|one| one["type"] != "Available").cloned();
        let since = transition_time(condition.since, there, current.status == computed.status);
        let conditions = others.chain([computed.into_value(&since)]).collect();
        StatusPlan::Write { version: stored.version.clone(), conditions }
    }

    /// Records a write; `version` is that of the APIService after it.
    pub(super) fn record_write(
        &mut self,
        name: &str,
        condition: &AvailabilityCondition,
        version: String,
        now: Instant,
    ) {
        let words = ConditionContent {
            status: condition.status.as_str().to_owned(),
            reason: condition.reason.to_string(),
            message: condition.message.clone(),
        };
        let entry = self.by_name.entry(name.to_owned()).or_default();
        entry.last_write = Some(LastWrite { version, content: words, written_at: now, is_observed: false });
        (entry.written_at, entry.has_news, entry.foreign) = (Some(now), false, None);
    }

    /// Removes APIServices that are gone.
    pub(super) fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.by_name.retain(|name, _| stays(name));
    }
}

impl WriteHistory {
    /// Records the current condition, of this writer (`is_own`) or of another one.
    fn observe(&mut self, is_own: bool, words: &ConditionContent, there: Option<&Value>, now: Instant) {
        let since = there.and_then(|there| there["lastTransitionTime"].as_str()).unwrap_or_default();
        if is_own {
            self.foreign = None;
        } else if !self.foreign.as_ref().is_some_and(|(content, from, _)| content == words && from == since) {
            self.foreign = Some((words.clone(), since.to_owned(), now));
        }
    }

    /// Whether another writer's condition is newer than the last probe. The first failure is enough for
    /// kube-apiserver's aggregator; the next probe here may confirm it.
    fn is_foreign_newer_than_probe(
        &self,
        computed: &ConditionContent,
        current: &ConditionContent,
        last_probe: Option<ProbeRecord>,
    ) -> bool {
        let (available, by_asking) = match computed.reason.as_str() {
            "Passed" => (true, current.status == "False"),
            "FailedDiscoveryCheck" => (false, current.status == "True"),
            _ => return false,
        };
        let Some((_, _, heard)) = self.foreign.as_ref().filter(|_| by_asking) else { return false };
        !last_probe.is_some_and(|record| record.is_answered == available && record.at >= *heard)
    }

    /// Both writers agree. After long agreement the dispute ends, and the back-off shrinks step by step.
    fn record_agreement(&mut self, is_own_current: bool, now: Instant) {
        self.has_news = false;
        if !is_own_current {
            // The next change by the other writer overwrites nothing of this one.
            self.last_write = None;
        }
        let since = *self.disagreed_at.get_or_insert(now);
        if let Some(delay) = self.back_off
            && now.saturating_duration_since(since) >= BACK_OFF.0
        {
            self.back_off = Some(delay / 2).filter(|delay| *delay >= BACK_OFF.0);
            (self.back_off_until, self.disagreed_at) = (None, Some(now));
        }
    }
}

impl ConditionContent {
    fn from_value(condition: &Value) -> ConditionContent {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        ConditionContent { status: text("status"), reason: text("reason"), message: text("message") }
    }

    fn into_value(self, since: &str) -> Value {
        json!({
            "type": "Available",
            "status": self.status,
            "lastTransitionTime": since,
            "reason": self.reason,
            "message": self.message,
        })
    }
}

/// Whether `version` is `other` or a later one. Versions of a kube-apiserver are increasing numbers (KEP-5504); others
/// can only be compared for equality.
fn has_reached(version: &str, other: &str) -> bool {
    match (version.parse::<u128>(), other.parse::<u128>()) {
        (Ok(version), Ok(other)) => version >= other,
        _ => version == other,
    }
}

/// `lastTransitionTime`: changes only with the status, and never goes back.
fn transition_time(since: SystemTime, there: Option<&Value>, same: bool) -> String {
    let before = there.and_then(|there| there["lastTransitionTime"].as_str()).unwrap_or_default();
    let own_time = jiff::Timestamp::try_from(since).unwrap_or_default();
    let current_time = before.parse::<jiff::Timestamp>().ok();
    match current_time {
        Some(_) if same => before.to_owned(),
        // The status changes by this write, whatever was computed before.
        Some(current_time) if current_time > own_time => timestamp(jiff::Timestamp::now().max(current_time)),
        _ => timestamp(own_time),
    }
}

fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%FT%TZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    impl StatusPlanner {
        /// The plan if the backend has just been probed with this result.
        fn plan_after_probe(
            &mut self,
            name: &str,
            condition: &AvailabilityCondition,
            stands: &StoredStatus,
            now: Instant,
        ) -> StatusPlan {
            let answered = condition.status == ConditionStatus::True;
            self.plan(name, condition, Some(ProbeRecord { at: now, is_answered: answered }), stands, now)
        }
    }

    fn condition(status: ConditionStatus, reason: &'static str, message: &str) -> AvailabilityCondition {
        AvailabilityCondition {
            status,
            reason: Cow::Borrowed(reason),
            message: message.to_owned(),
            detail: "10.0.0.1 refused".to_owned(),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(3600),
        }
    }

    fn passed() -> AvailabilityCondition {
        condition(ConditionStatus::True, "Passed", "all checks passed")
    }

    fn stands(version: &str, conditions: &[Value]) -> StoredStatus {
        StoredStatus { version: version.to_owned(), conditions: conditions.to_vec() }
    }

    fn available(status: &str, reason: &str, message: &str, since: &str) -> Value {
        json!({"type": "Available", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since})
    }

    fn passed_there() -> Value {
        available("True", "Passed", "all checks passed", "1970-01-01T00:00:07Z")
    }

    fn failed_there() -> Value {
        available("False", "FailedDiscoveryCheck", "refused", "1970-01-01T00:00:07Z")
    }

    #[test]
    fn status_written_only_when_different_and_other_conditions_kept() {
        let (mut desk, now) = (StatusPlanner::default(), Instant::now());
        assert_eq!(desk.plan_after_probe("a", &passed(), &stands("1", &[passed_there()]), now), StatusPlan::NoChange);
        let unknown = condition(ConditionStatus::Unknown, "NotProbed", "not asked");
        assert_eq!(desk.plan_after_probe("a", &unknown, &stands("1", &[]), now), StatusPlan::NoChange);
        let other = json!({"type": "Other", "status": "True"});
        let StatusPlan::Write { version, conditions } =
            desk.plan_after_probe("a", &passed(), &stands("7", &[failed_there(), other.clone()]), now)
        else {
            panic!("it differs");
        };
        assert_eq!(version, "7");
        assert_eq!(conditions, [other, available("True", "Passed", "all checks passed", "1970-01-01T01:00:00Z")]);
    }

    #[test]
    fn status_transition_time_moves_only_with_status() {
        let (mut desk, now) = (StatusPlanner::default(), Instant::now());
        let written = |desk: &mut StatusPlanner, there: &Value| match desk.plan_after_probe(
            "a",
            &passed(),
            &stands("1", std::slice::from_ref(there)),
            now,
        ) {
            StatusPlan::Write { conditions, .. } => conditions[0]["lastTransitionTime"].as_str().unwrap().to_owned(),
            other => panic!("{other:?}"),
        };
        let same = available("True", "Local", "x", "1970-01-01T00:00:07Z");
        assert_eq!(written(&mut desk, &same), "1970-01-01T00:00:07Z");
        assert_eq!(written(&mut desk, &failed_there()), "1970-01-01T01:00:00Z");
        // Another writer's transition is later than the computed one: the new transition is the time of the write.
        let later = available("False", "x", "x", "2020-01-01T00:00:00Z");
        assert!(written(&mut desk, &later).as_str() > "2020-01-01T00:00:00Z");
        let none = json!({"type": "Available"});
        assert_eq!(written(&mut desk, &none), "1970-01-01T01:00:00Z");
    }

    #[test]
    fn status_message_of_others_kept_unless_written_here() {
        let (mut desk, now) = (StatusPlanner::default(), Instant::now());
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "our words");
        assert_eq!(desk.plan_after_probe("a", &failed, &stands("1", &[failed_there()]), now), StatusPlan::NoChange);
        assert!(matches!(desk.plan_after_probe("a", &failed, &stands("1", &[]), now), StatusPlan::Write { .. }));
        desk.record_write("a", &failed, "2".to_owned(), now);
        let ours = available("False", "FailedDiscoveryCheck", "our words", "1970-01-01T01:00:00Z");
        assert_eq!(
            desk.plan_after_probe("a", &failed, &stands("2", std::slice::from_ref(&ours)), now),
            StatusPlan::NoChange
        );
        let news = condition(ConditionStatus::False, "FailedDiscoveryCheck", "our news");
        assert!(matches!(desk.plan_after_probe("a", &news, &stands("2", &[ours]), now), StatusPlan::Write { .. }));
    }

    #[test]
    fn status_write_waits_for_watch() {
        let (mut desk, now) = (StatusPlanner::default(), Instant::now());
        let before = stands("1", &[failed_there()]);
        assert!(matches!(desk.plan_after_probe("a", &passed(), &before, now), StatusPlan::Write { .. }));
        desk.record_write("a", &passed(), "3".to_owned(), now);
        // The watch shows an older version.
        assert_eq!(desk.plan_after_probe("a", &passed(), &stands("2", &[failed_there()]), now), StatusPlan::NoChange);
        assert_eq!(desk.plan_after_probe("a", &passed(), &stands("3", &[passed_there()]), now), StatusPlan::NoChange);
        // The other writer was so fast that only its write is shown.
        desk.record_write("a", &passed(), "4".to_owned(), now);
        assert!(matches!(
            desk.plan_after_probe("a", &passed(), &stands("5", &[failed_there()]), now),
            StatusPlan::Write { .. }
        ));
        // Versions without a known order.
        desk.record_write("b", &passed(), "x".to_owned(), now);
        assert_eq!(desk.plan_after_probe("b", &passed(), &stands("y", &[failed_there()]), now), StatusPlan::NoChange);
        let later = now + WATCH_DELAY;
        assert!(matches!(
            desk.plan_after_probe("b", &passed(), &stands("y", &[failed_there()]), later),
            StatusPlan::Write { .. }
        ));
    }

    #[test]
    fn status_writer_backs_off_after_two_overwrites() {
        let (mut desk, mut now) = (StatusPlanner::default(), Instant::now());
        let mut version = 1;
        let mut round = |desk: &mut StatusPlanner, now: Instant| {
            let verdict = desk.plan_after_probe("a", &passed(), &stands(&version.to_string(), &[failed_there()]), now);
            if matches!(verdict, StatusPlan::Write { .. }) {
                version += 1;
                desk.record_write("a", &passed(), version.to_string(), now);
                let ours = stands(&version.to_string(), &[passed_there()]);
                assert_eq!(desk.plan_after_probe("a", &passed(), &ours, now), StatusPlan::NoChange);
                version += 1;
            }
            verdict
        };
        assert!(matches!(round(&mut desk, now), StatusPlan::Write { .. }));
        assert!(matches!(round(&mut desk, now), StatusPlan::Write { .. }), "once may be chance");
        assert_eq!(round(&mut desk, now), StatusPlan::BackOff(BACK_OFF.0));
        assert_eq!(round(&mut desk, now), StatusPlan::NoChange);
        // Another attempt after that; if it ends the same, it is not logged again.
        now += BACK_OFF.0;
        assert!(matches!(round(&mut desk, now), StatusPlan::Write { .. }));
        assert!(matches!(round(&mut desk, now), StatusPlan::Write { .. }));
        assert_eq!(round(&mut desk, now), StatusPlan::NoChange);
        now += BACK_OFF.0;
        assert_eq!(round(&mut desk, now), StatusPlan::NoChange, "twice as long");
        now += BACK_OFF.0;
        assert!(matches!(round(&mut desk, now), StatusPlan::Write { .. }));
        desk.retain(|_| false);
        assert!(desk.by_name.is_empty());
    }

    #[test]
    fn status_change_written_during_back_off() {
        let (mut desk, mut now, mut version) = (StatusPlanner::default(), Instant::now(), 1);
        let mut round = |desk: &mut StatusPlanner, ours: &AvailabilityCondition, theirs: &Value, now: Instant| {
            let verdict =
                desk.plan_after_probe("a", ours, &stands(&version.to_string(), std::slice::from_ref(theirs)), now);
            let written = matches!(verdict, StatusPlan::Write { .. });
            if written {
                desk.record_write("a", ours, (version + 1).to_string(), now);
                // And the other writer overwrites it.
                version += 2;
            }
            written
        };
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "refused");
        // The other writer reports True and this one False, until this one backs off.
        assert!(round(&mut desk, &failed, &passed_there(), now) && round(&mut desk, &failed, &passed_there(), now));
        for _ in 0..5 {
            assert!(!round(&mut desk, &failed, &passed_there(), now));
            now += Duration::from_secs(60);
        }
        // The backend is back, and then gone again: that is written once.
        assert!(!round(&mut desk, &passed(), &passed_there(), now));
        now += Duration::from_secs(1);
        assert!(round(&mut desk, &failed, &passed_there(), now));
        now += Duration::from_secs(30);
        assert!(!round(&mut desk, &failed, &passed_there(), now));
        // Further changes wait until the last write is a minute old.
        let nowhere = condition(ConditionStatus::False, "EndpointsNotFound", "none");
        assert!(!round(&mut desk, &nowhere, &passed_there(), now));
        now += Duration::from_secs(30);
        assert!(round(&mut desk, &nowhere, &passed_there(), now));
        // However often the computed condition changes.
        let written = (0..3600).filter(|second| {
            let ours = if second % 2 == 0 { &failed } else { &nowhere };
            round(&mut desk, ours, &passed_there(), now + Duration::from_secs(*second))
        });
        assert!((50..=70).contains(&written.count()));
    }

    #[test]
    fn status_message_updated_when_written_here() {
        let (mut desk, now) = (StatusPlanner::default(), Instant::now());
        for version in ["1", "3"] {
            assert!(matches!(
                desk.plan_after_probe("a", &passed(), &stands(version, &[failed_there()]), now),
                StatusPlan::Write { .. }
            ));
            desk.record_write("a", &passed(), version.to_owned(), now);
        }
        assert_eq!(
            desk.plan_after_probe("a", &passed(), &stands("4", &[failed_there()]), now),
            StatusPlan::BackOff(BACK_OFF.0)
        );
        let later = now + BACK_OFF_WRITE_INTERVAL;
        let failed = condition(ConditionStatus::False, "EndpointsNotFound", "one word");
        assert!(matches!(
            desk.plan_after_probe("a", &failed, &stands("4", &[failed_there()]), later),
            StatusPlan::Write { .. }
        ));
        desk.record_write("a", &failed, "5".to_owned(), later);
        let ours = stands("5", &[available("False", "EndpointsNotFound", "one word", "1970-01-01T01:00:00Z")]);
        let other = condition(ConditionStatus::False, "EndpointsNotFound", "another");
        assert_eq!(desk.plan_after_probe("a", &other, &ours, later), StatusPlan::NoChange);
        assert!(matches!(
            desk.plan_after_probe("a", &other, &ours, later + BACK_OFF_WRITE_INTERVAL),
            StatusPlan::Write { .. }
        ));
    }

    #[test]
    fn status_rare_overwrites_do_not_back_off() {
        let (mut desk, mut now) = (StatusPlanner::default(), Instant::now());
        for version in 0..10 {
            let there = stands(&(2 * version).to_string(), &[failed_there()]);
            assert!(
                matches!(desk.plan_after_probe("a", &passed(), &there, now), StatusPlan::Write { .. }),
                "{version}"
            );
            let ours = (2 * version + 1).to_string();
            desk.record_write("a", &passed(), ours.clone(), now);
            assert_eq!(
                desk.plan_after_probe("a", &passed(), &stands(&ours, &[passed_there()]), now),
                StatusPlan::NoChange
            );
            now += OVERWRITE_WINDOW;
        }
    }

    #[test]
    fn status_of_others_overwritten_only_after_new_probe() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let asked = |second, answered| Some(ProbeRecord { at: at(second), is_answered: answered });
        let mut desk = StatusPlanner::default();
        let (fine, out) = (stands("1", &[passed_there()]), stands("2", &[failed_there()]));
        assert_eq!(desk.plan("a", &passed(), asked(1, true), &fine, at(2)), StatusPlan::NoChange);
        for (second, before) in [None, asked(1, true), asked(1, false), asked(8, false)].into_iter().enumerate() {
            assert_eq!(desk.plan("a", &passed(), before, &out, at(5 + second as u64)), StatusPlan::ProbeFirst);
        }
        let mut well = desk.plan("a", &passed(), asked(6, true), &out, at(9));
        assert!(matches!(well, StatusPlan::Write { .. }));
        // The other writer wrote again, with the same content.
        desk.record_write("a", &passed(), "3".to_owned(), at(9));
        well = desk.plan("a", &passed(), asked(6, true), &stands("4", &[failed_there()]), at(10));
        assert_eq!(well, StatusPlan::ProbeFirst);
        // The same in the other direction. A condition that is older than the probe is overwritten.
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "refused");
        assert_eq!(desk.plan("b", &failed, asked(1, false), &fine, at(2)), StatusPlan::ProbeFirst);
        assert_eq!(desk.plan("b", &failed, asked(3, true), &fine, at(4)), StatusPlan::ProbeFirst);
        assert!(matches!(desk.plan("b", &failed, asked(5, false), &fine, at(6)), StatusPlan::Write { .. }));
        // An unresolved backend needs no probe, and this writer's own condition may always be changed.
        let nowhere = condition(ConditionStatus::False, "EndpointsNotFound", "none");
        assert!(matches!(desk.plan("c", &nowhere, None, &fine, at(1)), StatusPlan::Write { .. }));
        desk.record_write("c", &nowhere, "2".to_owned(), at(1));
        let ours = stands("2", &[available("False", "EndpointsNotFound", "none", "1970-01-01T01:00:00Z")]);
        assert!(matches!(desk.plan("c", &passed(), asked(1, true), &ours, at(2)), StatusPlan::Write { .. }));
    }

    #[test]
    fn status_with_same_reason_is_no_overwrite() {
        let (mut desk, now) = (StatusPlanner::default(), Instant::now());
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "our words");
        for version in (0..40).step_by(4) {
            let stands = |number: u32, there: Value| stands(&(version + number).to_string(), &[there]);
            // This writer is first each time, and the other one writes its own message.
            for (opinion, before, after, number) in
                [(&failed, passed_there(), failed_there(), 0), (&passed(), failed_there(), passed_there(), 2)]
            {
                let verdict = desk.plan_after_probe("a", opinion, &stands(number, before), now);
                assert!(matches!(verdict, StatusPlan::Write { .. }), "{version} {verdict:?}");
                desk.record_write("a", opinion, (version + number + 1).to_string(), now);
                assert_eq!(desk.plan_after_probe("a", opinion, &stands(number + 1, after), now), StatusPlan::NoChange);
            }
        }
    }

    #[test]
    fn status_back_off_shrinks_while_both_agree() {
        let (mut desk, mut now) = (StatusPlanner::default(), Instant::now());
        let entry = WriteHistory {
            back_off: Some(BACK_OFF.0 * 4),
            back_off_until: Some(now + BACK_OFF.1),
            ..WriteHistory::default()
        };
        desk.by_name.insert("a".to_owned(), entry);
        let fine = stands("1", &[passed_there()]);
        let left = |desk: &StatusPlanner| (desk.by_name["a"].back_off, desk.by_name["a"].back_off_until.is_some());
        assert_eq!(desk.plan_after_probe("a", &passed(), &fine, now), StatusPlan::NoChange);
        assert_eq!(left(&desk), (Some(BACK_OFF.0 * 4), true));
        for expected in [Some(BACK_OFF.0 * 2), Some(BACK_OFF.0), None, None] {
            now += BACK_OFF.0 - Duration::from_secs(1);
            desk.plan_after_probe("a", &passed(), &fine, now);
            now += Duration::from_secs(1);
            desk.plan_after_probe("a", &passed(), &fine, now);
            assert_eq!(left(&desk), (expected, false));
        }
    }
}
