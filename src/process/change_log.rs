//! A bounded log of recent changes, so that frequent readers can update incrementally.

use std::collections::VecDeque;

/// Number of changes kept; a reader further behind has to read everything.
const MAX_CHANGES: usize = 128;

/// The last changes of a versioned collection.
#[derive(Clone)]
pub struct ChangeLog<K> {
    /// The log is complete for changes after this version.
    complete_since: u64,
    /// Changed keys with the version that each change created, oldest first.
    changes: VecDeque<(u64, K)>,
}

impl<K> Default for ChangeLog<K> {
    fn default() -> ChangeLog<K> {
        ChangeLog { complete_since: 0, changes: VecDeque::new() }
    }
}

impl<K> ChangeLog<K> {
    /// Records that `what` changed in `version`, which is not smaller than the previous one.
    pub fn record(&mut self, version: u64, what: K) {
        self.changes.push_back((version, what));
        if self.changes.len() > MAX_CHANGES {
            self.complete_since = self.changes.pop_front().map_or(self.complete_since, |(version, _)| version);
        }
    }

    /// Clears the log: readers with a version older than `version` have to read everything.
    pub fn reset(&mut self, version: u64) {
        self.complete_since = version;
        self.changes.clear();
    }

    /// The keys changed after `version`, oldest first, possibly with duplicates; `None` if the log does not reach back
    /// that far.
    pub fn changes_since(&self, version: u64) -> Option<impl Iterator<Item = &K>> {
        let first = self.changes.partition_point(|(at, _)| *at <= version);
        (version >= self.complete_since).then(|| self.changes.range(first..).map(|(_, what)| what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_log_keeps_the_last_changes() {
        let mut lately = ChangeLog::default();
        for (version, what) in [(1, "a"), (2, "b"), (2, "c")] {
            lately.record(version, what);
        }
        let since = |lately: &ChangeLog<&'static str>, version| {
            Some(lately.changes_since(version)?.copied().collect::<Vec<_>>())
        };
        assert_eq!(since(&lately, 0), Some(vec!["a", "b", "c"]));
        assert_eq!(since(&lately, 1), Some(vec!["b", "c"]));
        assert_eq!(since(&lately, 2), Some(Vec::new()));
        for version in 3..3 + MAX_CHANGES as u64 {
            lately.record(version, "d");
        }
        assert_eq!((since(&lately, 1), since(&lately, 2).map(|all| all.len())), (None, Some(MAX_CHANGES)));
        lately.reset(1000);
        assert_eq!((since(&lately, 999), since(&lately, 1000)), (None, Some(Vec::new())));
    }
}
