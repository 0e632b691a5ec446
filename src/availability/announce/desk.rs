//! What is to be written as an APIService's status, and what is better left alone. Pure; the time is an argument.
//!
//! Others write the same condition: every kube-apiserver has an aggregator of its own that asks the same backends. As
//! long as it agrees nothing is written. Where it does not, each would set right what the other wrote, for ever; so
//! nobody is contradicted by what was found out before they spoke, and
//! who finds its word overwritten twice leaves it to the other for a while. What is news to us is said all the same, once
//! and not too often: the other may be gone, or of our opinion by now.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::availability::board::Asked;
use crate::availability::{Condition, ConditionStatus};
use crate::registry::Written;

/// How long it may take until a watch shows what we wrote.
const UNSEEN: Duration = Duration::from_secs(10);
/// Overwritten so often
const OFTEN: usize = 2;
/// within this time,
const WITHIN: Duration = Duration::from_secs(300);
/// we leave it to the other for this long; longer each time, up to the second, and shorter again for each time that both
/// agree for as long as the first.
const LEAVE: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(4 * 3600));
/// Meanwhile nothing is written, but for our news, so long after what we wrote last.
const SELDOM: Duration = Duration::from_secs(60);

/// What we remember of what we wrote.
#[derive(Default)]
pub(super) struct Desk {
    by_name: HashMap<String, Entry>,
}

#[derive(Default)]
struct Entry {
    wrote: Option<Wrote>,
    /// When we were overwritten.
    overwritten: Vec<Instant>,
    left_until: Option<Instant>,
    leave: Option<Duration>,
    /// When both last disagreed.
    disagreed: Option<Instant>,
    /// What somebody else says, when that became so as they say, and since when we know.
    heard: Option<(Words, String, Instant)>,
    /// When we last wrote, and whether our opinion is another since.
    last: Option<Instant>,
    news: bool,
    /// Our opinion.
    opinion: (String, String),
}

struct Wrote {
    /// The version that the APIService had by it.
    version: String,
    words: Words,
    at: Instant,
    /// Whether a watch showed it.
    seen: bool,
}

/// What a condition says, but for when it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    status: String,
    reason: String,
    message: String,
}

/// What to do about one APIService.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// It says what we would say, or it is too early to say anything.
    Fine,
    /// These conditions are to be written, to this version.
    Write { version: String, conditions: Vec<Value> },
    /// Somebody else says otherwise, and may know better by now: the backend is to be asked before anything is written.
    AskFirst,
    /// Somebody else overwrites what we write; this is said once.
    LeaveIt(Duration),
}

impl Desk {
    /// What to do now that `condition` is known, the backend was last `asked` then, and `stands` is there.
    pub(super) fn judge(
        &mut self,
        name: &str,
        condition: &Condition,
        asked: Option<Asked>,
        stands: &Written,
        now: Instant,
    ) -> Verdict {
        // Nobody has asked yet: that is no news to anybody.
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
        // Of one opinion in other words: theirs are as good.
        if theirs == ours || (agrees && !ours_stands) {
            entry.agree(ours_stands, now);
            return Verdict::Fine;
        }
        entry.disagreed = Some(now);
        let left = entry.left_until.is_some_and(|until| now < until);
        if left {
            let lately = entry.last.is_some_and(|last| now.saturating_duration_since(last) < SELDOM);
            // What stands there may be our last news.
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

    /// This was written; the APIService has this version by it.
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

    /// Forgets those that are no more.
    pub(super) fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.by_name.retain(|name, _| stays(name));
    }
}

impl Entry {
    /// Hears what stands there, of ours or of somebody else.
    fn hear(&mut self, ours: bool, words: &Words, there: Option<&Value>, now: Instant) {
        let since = there.and_then(|there| there["lastTransitionTime"].as_str()).unwrap_or_default();
        if ours {
            self.heard = None;
        } else if !self.heard.as_ref().is_some_and(|(known, from, _)| known == words && from == since) {
            self.heard = Some((words.clone(), since.to_owned(), now));
        }
    }

    /// Whether we would contradict somebody without having asked since they spoke. The first failure of a backend is
    /// reason enough for kube-apiserver; we may be about to find it out, or just not have looked.
    fn may_be_outdated(&self, ours: &Words, theirs: &Words, asked: Option<Asked>) -> bool {
        let (available, by_asking) = match ours.reason.as_str() {
            "Passed" => (true, theirs.status == "False"),
            "FailedDiscoveryCheck" => (false, theirs.status == "True"),
            _ => return false,
        };
        let Some((_, _, heard)) = self.heard.as_ref().filter(|_| by_asking) else { return false };
        !asked.is_some_and(|asked| asked.answered == available && asked.at >= *heard)
    }

    /// Both are of one opinion. Who has been for long is in no dispute any more, and little by little never was.
    fn agree(&mut self, ours_stands: bool, now: Instant) {
        self.news = false;
        if !ours_stands {
            // Whatever the other says next, it is not what we wrote that it changes.
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

/// Whether `version` is `other` or a later one. Those of a kube-apiserver are numbers that grow (KEP-5504); of others
/// nobody knows but that they are the same.
fn has_reached(version: &str, other: &str) -> bool {
    match (version.parse::<u128>(), other.parse::<u128>()) {
        (Ok(version), Ok(other)) => version >= other,
        _ => version == other,
    }
}

/// `lastTransitionTime`: it moves only when the status does, and never back.
fn transition(since: SystemTime, there: Option<&Value>, same: bool) -> String {
    let before = there.and_then(|there| there["lastTransitionTime"].as_str()).unwrap_or_default();
    let ours = jiff::Timestamp::try_from(since).unwrap_or_default();
    let theirs = before.parse::<jiff::Timestamp>().ok();
    match theirs {
        Some(_) if same => before.to_owned(),
        // It became so by our word, whatever we knew before.
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
        /// What to do if the backend has just been asked, and that was found.
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
        // Somebody said otherwise after we knew: it turns when we say so, not before.
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
        // The watch shows something older.
        assert_eq!(desk.look("a", &passed(), &stands("2", &[failed_there()]), now), Verdict::Fine);
        assert_eq!(desk.look("a", &passed(), &stands("3", &[passed_there()]), now), Verdict::Fine);
        // Somebody was so fast that only theirs is shown.
        desk.wrote("a", &passed(), "4".to_owned(), now);
        assert!(matches!(desk.look("a", &passed(), &stands("5", &[failed_there()]), now), Verdict::Write { .. }));
        // Versions of which nobody knows the order.
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
        // Another try after that; if it ends the same, nobody needs to hear it again.
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
                // And somebody writes theirs again.
                version += 2;
            }
            written
        };
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "refused");
        // They say that it is there, and we that it is not, until we leave it to them.
        assert!(round(&mut desk, &failed, &passed_there(), now) && round(&mut desk, &failed, &passed_there(), now));
        for _ in 0..5 {
            assert!(!round(&mut desk, &failed, &passed_there(), now));
            now += Duration::from_secs(60);
        }
        // It is back, and then gone again: that is said, and once.
        assert!(!round(&mut desk, &passed(), &passed_there(), now));
        now += Duration::from_secs(1);
        assert!(round(&mut desk, &failed, &passed_there(), now));
        now += Duration::from_secs(30);
        assert!(!round(&mut desk, &failed, &passed_there(), now));
        // Other news have to wait until the last are a minute old.
        let nowhere = condition(ConditionStatus::False, "EndpointsNotFound", "none");
        assert!(!round(&mut desk, &nowhere, &passed_there(), now));
        now += Duration::from_secs(30);
        assert!(round(&mut desk, &nowhere, &passed_there(), now));
        // However often we change our mind.
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
        // They spoke again, in the same words.
        desk.wrote("a", &passed(), "3".to_owned(), at(9));
        well = desk.judge("a", &passed(), asked(6, true), &stands("4", &[failed_there()]), at(10));
        assert_eq!(well, Verdict::AskFirst);
        // It is the same the other way round. What has stood there for long is no news.
        let failed = condition(ConditionStatus::False, "FailedDiscoveryCheck", "refused");
        assert_eq!(desk.judge("b", &failed, asked(1, false), &fine, at(2)), Verdict::AskFirst);
        assert_eq!(desk.judge("b", &failed, asked(3, true), &fine, at(4)), Verdict::AskFirst);
        assert!(matches!(desk.judge("b", &failed, asked(5, false), &fine, at(6)), Verdict::Write { .. }));
        // Of a place that is not there nobody has to be asked; and what is ours is ours to change.
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
            // We are first each time, and they say it in their words.
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
