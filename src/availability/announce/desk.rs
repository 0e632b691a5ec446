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

use crate::availability::board::Asked;
use crate::availability::{Condition, ConditionStatus};
use crate::registry::Written;

/// Maximum time until a watch shows a write.
const UNSEEN: Duration = Duration::from_secs(10);
/// Overwrites by another writer that cause a back-off.
const OFTEN: usize = 2;
/// Time window in which overwrites are counted.
const WITHIN: Duration = Duration::from_secs(300);
/// Back-off after repeated overwrites: the first and the maximum. It doubles each time, and halves for each time that
/// both writers agree for as long as the first.
const LEAVE: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(4 * 3600));
/// Minimum time between writes during a back-off.
const SELDOM: Duration = Duration::from_secs(60);

/// Writes and disputes of each APIService.
#[derive(Default)]
pub(super) struct Desk {
    by_name: HashMap<String, Entry>,
}

#[derive(Default)]
struct Entry {
    wrote: Option<Wrote>,
    /// Times at which another writer overwrote this one.
    overwritten: Vec<Instant>,
    left_until: Option<Instant>,
    leave: Option<Duration>,
    /// When the conditions last differed.
    disagreed: Option<Instant>,
    /// The condition of another writer, its transition time, and when it was first seen.
    heard: Option<(Words, String, Instant)>,
    /// When this writer last wrote.
    last: Option<Instant>,
    /// Whether the computed condition changed since the last write.
    news: bool,
    /// Status and reason of the computed condition.
    opinion: (String, String),
}

struct Wrote {
    /// The `resourceVersion` of the APIService after the write.
    version: String,
    words: Words,
    at: Instant,
    /// Whether a watch has shown it.
    seen: bool,
}

/// A condition without its transition time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    status: String,
    reason: String,
    message: String,
}

/// The plan for one APIService.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// The conditions agree, or nothing can be decided yet.
    Fine,
    /// Write these conditions to this version.
    Write { version: String, conditions: Vec<Value> },
    /// Another writer's condition is newer than the last probe: probe the backend before writing.
    AskFirst,
    /// Another writer overwrites this one; returned once, for the log.
    LeaveIt(Duration),
}

impl Desk {
    /// Plans for the computed `condition`, the last probe `asked` and the current status `stands`.
    pub(super) fn judge(
        &mut self,
        name: &str,
        condition: &Condition,
        asked: Option<Asked>,
        stands: &Written,
        now: Instant,
    ) -> Verdict {
        // Not probed yet: nothing to report.
        if condition.status == ConditionStatus::Unknown && condition.reason == "NotProbed" {
            return Verdict::Fine;
        }
        let ours = Words {
            status: condition.status.as_str().to_owned(),
            reason: condition.reason.to_string(),
            message: condition.message.clone(),
        };
        let there = stands.conditions.iter().find(|one| one["type"] == "Available");
        let theirs = there.map(Words::of).unwrap_or_default();
        let entry = self.by_name.entry(name.to_owned()).or_default();
        if let Some(wrote) = &mut entry.wrote {
            wrote.seen |= has_reached(&stands.version, &wrote.version) || now.duration_since(wrote.at) >= UNSEEN;
            if !wrote.seen {
                return Verdict::Fine;
            }
        }
        if (&entry.opinion.0, &entry.opinion.1) != (&ours.status, &ours.reason) {
            entry.news = true;
            entry.opinion = (ours.status.clone(), ours.reason.clone());
        }
        let ours_stands = entry.wrote.as_ref().is_some_and(|wrote| wrote.words == theirs);
        let agrees = (&theirs.status, &theirs.reason) == (&ours.status, &ours.reason);
        entry.hear(ours_stands, &theirs, there, now);
        // Same status and reason with another message: theirs stays.
        if theirs == ours || (agrees && !ours_stands) {
            entry.agree(ours_stands, now);
            return Verdict::Fine;
        }
        entry.disagreed = Some(now);
        let left = entry.left_until.is_some_and(|until| now < until);
        if left {
            let lately = entry.last.is_some_and(|last| now.saturating_duration_since(last) < SELDOM);
            // The current status may be this writer's last change.
            if lately || !(entry.news || ours_stands) {
                return Verdict::Fine;
            }
        }
        if entry.may_be_outdated(&ours, &theirs, asked) {
            return Verdict::AskFirst;
        }
        if left {
            entry.wrote = None;
        }
        if entry.wrote.is_some() && !ours_stands {
            entry.wrote = None;
            entry.overwritten.retain(|at| now.duration_since(*at) < WITHIN);
            entry.overwritten.push(now);
            if entry.overwritten.len() >= OFTEN {
                entry.overwritten.clear();
                let first = entry.leave.is_none();
                let leave = entry.leave.map_or(LEAVE.0, |leave| (leave * 2).min(LEAVE.1));
                (entry.leave, entry.left_until) = (Some(leave), Some(now + leave));
                return if first { Verdict::LeaveIt(leave) } else { Verdict::Fine };
            }
        }
        let others = stands.conditions.iter().filter(|one| one["type"] != "Available").cloned();
        let since = transition(condition.since, there, theirs.status == ours.status);
        let conditions = others.chain([ours.condition(&since)]).collect();
        Verdict::Write { version: stands.version.clone(), conditions }
    }

    /// Records a write; `version` is that of the APIService after it.
    pub(super) fn wrote(&mut self, name: &str, condition: &Condition, version: String, now: Instant) {
        let words = Words {
            status: condition.status.as_str().to_owned(),
            reason: condition.reason.to_string(),
            message: condition.message.clone(),
        };
        let entry = self.by_name.entry(name.to_owned()).or_default();
        entry.wrote = Some(Wrote { version, words, at: now, seen: false });
        (entry.last, entry.news, entry.heard) = (Some(now), false, None);
    }

    /// Removes APIServices that are gone.
    pub(super) fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.by_name.retain(|name, _| stays(name));
    }
}

impl Entry {
    /// Records the current condition, of this writer (`ours`) or of another one.
    fn hear(&mut self, ours: bool, words: &Words, there: Option<&Value>, now: Instant) {
        let since = there.and_then(|there| there["lastTransitionTime"].as_str()).unwrap_or_default();
        if ours {
            self.heard = None;
        } else if !self.heard.as_ref().is_some_and(|(known, from, _)| known == words && from == since) {
            self.heard = Some((words.clone(), since.to_owned(), now));
        }
    }

    /// Whether another writer's condition is newer than the last probe. The first failure is enough for
    /// kube-apiserver's aggregator; the next probe here may confirm it.
    fn may_be_outdated(&self, ours: &Words, theirs: &Words, asked: Option<Asked>) -> bool {
        let (available, by_asking) = match ours.reason.as_str() {
            "Passed" => (true, theirs.status == "False"),
            "FailedDiscoveryCheck" => (false, theirs.status == "True"),
            _ => return false,
        };
        let Some((_, _, heard)) = self.heard.as_ref().filter(|_| by_asking) else { return false };
        !asked.is_some_and(|asked| asked.answered == available && asked.at >= *heard)
    }

    /// Both writers agree. After long agreement the dispute ends, and the back-off shrinks step by step.
    fn agree(&mut self, ours_stands: bool, now: Instant) {
        self.news = false;
        if !ours_stands {
            // The next change by the other writer overwrites nothing of this one.
            self.wrote = None;
        }
        let since = *self.disagreed.get_or_insert(now);
        if let Some(leave) = self.leave
            && now.saturating_duration_since(since) >= LEAVE.0
        {
            self.leave = Some(leave / 2).filter(|leave| *leave >= LEAVE.0);
            (self.left_until, self.disagreed) = (None, Some(now));
        }
    }
}

impl Words {
    fn of(condition: &Value) -> Words {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        Words { status: text("status"), reason: text("reason"), message: text("message") }
    }

    fn condition(self, since: &str) -> Value {
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
fn transition(since: SystemTime, there: Option<&Value>, same: bool) -> String {
    let before = there.and_then(|there| there["lastTransitionTime"].as_str()).unwrap_or_default();
    let ours = jiff::Timestamp::try_from(since).unwrap_or_default();
    let theirs = before.parse::<jiff::Timestamp>().ok();
    match theirs {
        Some(_) if same => before.to_owned(),
        // The status changes by this write, whatever was computed before.
        Some(theirs) if theirs > ours => timestamp(jiff::Timestamp::now().max(theirs)),
        _ => timestamp(ours),
    }
}

fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%FT%TZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    impl Desk {
        /// The plan if the backend has just been probed with this result.
        fn look(&mut self, name: &str, condition: &Condition, stands: &Written, now: Instant) -> Verdict {
            let answered = condition.status == ConditionStatus::True;
            self.judge(name, condition, Some(Asked { at: now, answered }), stands, now)
        }
    }

    fn condition(status: ConditionStatus, reason: &'static str, message: &str) -> Condition {
        Condition {
            status,
            reason: Cow::Borrowed(reason),
            message: message.to_owned(),
            detail: "10.0.0.1 refused".to_owned(),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(3600),
        }
    }

    fn passed() -> Condition {
        condition(ConditionStatus::True, "Passed", "all checks passed")
    }

    fn stands(version: &str, conditions: &[Value]) -> Written {
        Written { version: version.to_owned(), conditions: conditions.to_vec() }
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
    fn only_what_differs_is_written_and_others_conditions_stay() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        assert_eq!(desk.look("a", &passed(), &stands("1", &[passed_there()]), now), Verdict::Fine);
        let unknown = condition(ConditionStatus::Unknown, "NotProbed", "not asked");
        assert_eq!(desk.look("a", &unknown, &stands("1", &[]), now), Verdict::Fine);
        let other = json!({"type": "Other", "status": "True"});
        let Verdict::Write { version, conditions } =
            desk.look("a", &passed(), &stands("7", &[failed_there(), other.clone()]), now)
        else {
            panic!("it differs");
        };
        assert_eq!(version, "7");
        assert_eq!(conditions, [other, available("True", "Passed", "all checks passed", "1970-01-01T01:00:00Z")]);
    }

    #[test]
    fn the_transition_is_when_the_status_changed() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let written = |desk: &mut Desk, there: &Value| match desk.look(
            "a",
            &passed(),
            &stands("1", std::slice::from_ref(there)),
            now,
        ) {
            Verdict::Write { conditions, .. } => conditions[0]["lastTransitionTime"].as_str().unwrap().to_owned(),
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
    fn other_words_for_the_same_are_left_alone_unless_the_old_ones_are_ours() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "our words");
        assert_eq!(desk.look("a", &failed, &stands("1", &[failed_there()]), now), Verdict::Fine);
        assert!(matches!(desk.look("a", &failed, &stands("1", &[]), now), Verdict::Write { .. }));
        desk.wrote("a", &failed, "2".to_owned(), now);
        let ours = available("False", "FailedDiscoveryCheck", "our words", "1970-01-01T01:00:00Z");
        assert_eq!(desk.look("a", &failed, &stands("2", std::slice::from_ref(&ours)), now), Verdict::Fine);
        let news = condition(ConditionStatus::False, "FailedDiscoveryCheck", "our news");
        assert!(matches!(desk.look("a", &news, &stands("2", &[ours]), now), Verdict::Write { .. }));
    }

    #[test]
    fn what_we_wrote_is_waited_for() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let before = stands("1", &[failed_there()]);
        assert!(matches!(desk.look("a", &passed(), &before, now), Verdict::Write { .. }));
        desk.wrote("a", &passed(), "3".to_owned(), now);
        // The watch shows an older version.
        assert_eq!(desk.look("a", &passed(), &stands("2", &[failed_there()]), now), Verdict::Fine);
        assert_eq!(desk.look("a", &passed(), &stands("3", &[passed_there()]), now), Verdict::Fine);
        // The other writer was so fast that only its write is shown.
        desk.wrote("a", &passed(), "4".to_owned(), now);
        assert!(matches!(desk.look("a", &passed(), &stands("5", &[failed_there()]), now), Verdict::Write { .. }));
        // Versions without a known order.
        desk.wrote("b", &passed(), "x".to_owned(), now);
        assert_eq!(desk.look("b", &passed(), &stands("y", &[failed_there()]), now), Verdict::Fine);
        let later = now + UNSEEN;
        assert!(matches!(desk.look("b", &passed(), &stands("y", &[failed_there()]), later), Verdict::Write { .. }));
    }

    #[test]
    fn who_is_overwritten_twice_leaves_it_to_the_other() {
        let (mut desk, mut now) = (Desk::default(), Instant::now());
        let mut version = 1;
        let mut round = |desk: &mut Desk, now: Instant| {
            let verdict = desk.look("a", &passed(), &stands(&version.to_string(), &[failed_there()]), now);
            if matches!(verdict, Verdict::Write { .. }) {
                version += 1;
                desk.wrote("a", &passed(), version.to_string(), now);
                let ours = stands(&version.to_string(), &[passed_there()]);
                assert_eq!(desk.look("a", &passed(), &ours, now), Verdict::Fine);
                version += 1;
            }
            verdict
        };
        assert!(matches!(round(&mut desk, now), Verdict::Write { .. }));
        assert!(matches!(round(&mut desk, now), Verdict::Write { .. }), "once may be chance");
        assert_eq!(round(&mut desk, now), Verdict::LeaveIt(LEAVE.0));
        assert_eq!(round(&mut desk, now), Verdict::Fine);
        // Another attempt after that; if it ends the same, it is not logged again.
        now += LEAVE.0;
        assert!(matches!(round(&mut desk, now), Verdict::Write { .. }));
        assert!(matches!(round(&mut desk, now), Verdict::Write { .. }));
        assert_eq!(round(&mut desk, now), Verdict::Fine);
        now += LEAVE.0;
        assert_eq!(round(&mut desk, now), Verdict::Fine, "twice as long");
        now += LEAVE.0;
        assert!(matches!(round(&mut desk, now), Verdict::Write { .. }));
        desk.retain(|_| false);
        assert!(desk.by_name.is_empty());
    }

    #[test]
    fn news_of_ours_is_written_although_it_is_left_to_the_other() {
        let (mut desk, mut now, mut version) = (Desk::default(), Instant::now(), 1);
        let mut round = |desk: &mut Desk, ours: &Condition, theirs: &Value, now: Instant| {
            let verdict = desk.look("a", ours, &stands(&version.to_string(), std::slice::from_ref(theirs)), now);
            let written = matches!(verdict, Verdict::Write { .. });
            if written {
                desk.wrote("a", ours, (version + 1).to_string(), now);
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
    fn what_stands_of_ours_is_kept_up_to_date() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        for version in ["1", "3"] {
            assert!(matches!(
                desk.look("a", &passed(), &stands(version, &[failed_there()]), now),
                Verdict::Write { .. }
            ));
            desk.wrote("a", &passed(), version.to_owned(), now);
        }
        assert_eq!(desk.look("a", &passed(), &stands("4", &[failed_there()]), now), Verdict::LeaveIt(LEAVE.0));
        let later = now + SELDOM;
        let failed = condition(ConditionStatus::False, "EndpointsNotFound", "one word");
        assert!(matches!(desk.look("a", &failed, &stands("4", &[failed_there()]), later), Verdict::Write { .. }));
        desk.wrote("a", &failed, "5".to_owned(), later);
        let ours = stands("5", &[available("False", "EndpointsNotFound", "one word", "1970-01-01T01:00:00Z")]);
        let other = condition(ConditionStatus::False, "EndpointsNotFound", "another");
        assert_eq!(desk.look("a", &other, &ours, later), Verdict::Fine);
        assert!(matches!(desk.look("a", &other, &ours, later + SELDOM), Verdict::Write { .. }));
    }

    #[test]
    fn overwritten_seldom_is_no_dispute() {
        let (mut desk, mut now) = (Desk::default(), Instant::now());
        for version in 0..10 {
            let there = stands(&(2 * version).to_string(), &[failed_there()]);
            assert!(matches!(desk.look("a", &passed(), &there, now), Verdict::Write { .. }), "{version}");
            let ours = (2 * version + 1).to_string();
            desk.wrote("a", &passed(), ours.clone(), now);
            assert_eq!(desk.look("a", &passed(), &stands(&ours, &[passed_there()]), now), Verdict::Fine);
            now += WITHIN;
        }
    }

    #[test]
    fn nobody_is_contradicted_by_what_was_known_before_they_spoke() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let asked = |second, answered| Some(Asked { at: at(second), answered });
        let mut desk = Desk::default();
        let (fine, out) = (stands("1", &[passed_there()]), stands("2", &[failed_there()]));
        assert_eq!(desk.judge("a", &passed(), asked(1, true), &fine, at(2)), Verdict::Fine);
        for (second, before) in [None, asked(1, true), asked(1, false), asked(8, false)].into_iter().enumerate() {
            assert_eq!(desk.judge("a", &passed(), before, &out, at(5 + second as u64)), Verdict::AskFirst);
        }
        let mut well = desk.judge("a", &passed(), asked(6, true), &out, at(9));
        assert!(matches!(well, Verdict::Write { .. }));
        // The other writer wrote again, with the same content.
        desk.wrote("a", &passed(), "3".to_owned(), at(9));
        well = desk.judge("a", &passed(), asked(6, true), &stands("4", &[failed_there()]), at(10));
        assert_eq!(well, Verdict::AskFirst);
        // The same in the other direction. A condition that is older than the probe is overwritten.
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "refused");
        assert_eq!(desk.judge("b", &failed, asked(1, false), &fine, at(2)), Verdict::AskFirst);
        assert_eq!(desk.judge("b", &failed, asked(3, true), &fine, at(4)), Verdict::AskFirst);
        assert!(matches!(desk.judge("b", &failed, asked(5, false), &fine, at(6)), Verdict::Write { .. }));
        // An unresolved backend needs no probe, and this writer's own condition may always be changed.
        let nowhere = condition(ConditionStatus::False, "EndpointsNotFound", "none");
        assert!(matches!(desk.judge("c", &nowhere, None, &fine, at(1)), Verdict::Write { .. }));
        desk.wrote("c", &nowhere, "2".to_owned(), at(1));
        let ours = stands("2", &[available("False", "EndpointsNotFound", "none", "1970-01-01T01:00:00Z")]);
        assert!(matches!(desk.judge("c", &passed(), asked(1, true), &ours, at(2)), Verdict::Write { .. }));
    }

    #[test]
    fn who_agrees_in_other_words_overwrites_nothing() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "our words");
        for version in (0..40).step_by(4) {
            let stands = |number: u32, there: Value| stands(&(version + number).to_string(), &[there]);
            // This writer is first each time, and the other one writes its own message.
            for (opinion, before, after, number) in
                [(&failed, passed_there(), failed_there(), 0), (&passed(), failed_there(), passed_there(), 2)]
            {
                let verdict = desk.look("a", opinion, &stands(number, before), now);
                assert!(matches!(verdict, Verdict::Write { .. }), "{version} {verdict:?}");
                desk.wrote("a", opinion, (version + number + 1).to_string(), now);
                assert_eq!(desk.look("a", opinion, &stands(number + 1, after), now), Verdict::Fine);
            }
        }
    }

    #[test]
    fn a_dispute_is_forgotten_while_both_agree() {
        let (mut desk, mut now) = (Desk::default(), Instant::now());
        let entry = Entry { leave: Some(LEAVE.0 * 4), left_until: Some(now + LEAVE.1), ..Entry::default() };
        desk.by_name.insert("a".to_owned(), entry);
        let fine = stands("1", &[passed_there()]);
        let left = |desk: &Desk| (desk.by_name["a"].leave, desk.by_name["a"].left_until.is_some());
        assert_eq!(desk.look("a", &passed(), &fine, now), Verdict::Fine);
        assert_eq!(left(&desk), (Some(LEAVE.0 * 4), true));
        for expected in [Some(LEAVE.0 * 2), Some(LEAVE.0), None, None] {
            now += LEAVE.0 - Duration::from_secs(1);
            desk.look("a", &passed(), &fine, now);
            now += Duration::from_secs(1);
            desk.look("a", &passed(), &fine, now);
            assert_eq!(left(&desk), (expected, false));
        }
    }
}
