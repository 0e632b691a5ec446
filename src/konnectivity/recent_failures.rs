//! The last failures, for the status.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::report::FailureReport;
use crate::observe::times::timestamp;

/// Failures that are kept: those that differ.
const MAX_FAILURES: usize = 32;
/// Maximum length of each text, in bytes.
const MAX_TEXT_BYTES: usize = 300;

/// What failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failure<'f> {
    /// The kind of failure, in one word.
    pub(super) reason: &'f str,
    /// Address of the target or of the peer.
    pub(super) address: &'f str,
    /// Id of the agent that answered; empty without one.
    pub(super) agent_id: &'f str,
    /// What failed, without secrets.
    pub(super) error: &'f str,
}

/// The last failures. Those that are alike are one entry with a count, so that one client cannot push out the others.
#[derive(Default)]
pub(super) struct RecentFailures(Mutex<VecDeque<CountedFailure>>);

struct CountedFailure {
    last: SystemTime,
    count: u64,
    /// Reason, address, agent and error.
    texts: [Box<str>; 4],
}

impl RecentFailures {
    /// Adds a failure. The oldest is dropped if there are too many.
    pub(super) fn record(&self, failure: Failure<'_>) {
        let Failure { reason, address, agent_id, error } = failure;
        let texts = [reason, address, agent_id, error].map(shorten);
        let mut entries = self.0.lock();
        let same = entries.iter().position(|entry| entry.texts.iter().zip(texts).all(|(old, new)| **old == *new));
        let mut entry = same.and_then(|at| entries.remove(at)).unwrap_or_else(|| CountedFailure {
            last: SystemTime::UNIX_EPOCH,
            count: 0,
            texts: texts.map(Box::from),
        });
        entry.last = SystemTime::now();
        entry.count += 1;
        entries.push_front(entry);
        entries.truncate(MAX_FAILURES);
    }

    /// The failures, the newest first.
    pub(super) fn report(&self) -> Vec<FailureReport> {
        let describe = |entry: &CountedFailure| {
            let [reason, address, agent_id, error] = entry.texts.clone().map(String::from);
            FailureReport { last: timestamp(entry.last), count: entry.count, reason, address, agent_id, error }
        };
        self.0.lock().iter().map(describe).collect()
    }
}

/// The beginning of a text that is too long.
pub(super) fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_failures_are_counted_and_bounded() {
        let failures = RecentFailures::default();
        for address in ["a", "b", "a"] {
            failures.record(Failure { reason: "no_agent", address, ..Failure::default() });
        }
        let counts = |report: Vec<FailureReport>| -> Vec<(String, u64)> {
            report.into_iter().map(|failure| (failure.address, failure.count)).collect()
        };
        assert_eq!(counts(failures.report()), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        for number in 0..1000 {
            failures.record(Failure { address: &number.to_string(), error: &"ü".repeat(4000), ..Failure::default() });
        }
        let report = failures.report();
        assert_eq!((report.len(), report[0].address.as_str(), report[0].error.len()), (MAX_FAILURES, "999", 300));
    }
}
