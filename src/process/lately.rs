//! A bounded log of recent changes, so that frequent readers can update incrementally.

use std::collections::VecDeque;

/// Number of changes kept; a reader further behind has to read everything.
const MOST: usize = 128;

/// The last changes of a versioned collection.
#[derive(Clone)]
pub struct Lately<K> {
    /// The log is complete for changes after this version.
    settled: u64,
    /// Changed keys with the version that each change created, oldest first.
    changes: VecDeque<(u64, K)>,
}

impl<K> Default for Lately<K> {
    fn default() -> Lately<K> {
        Lately { settled: 0, changes: VecDeque::new() }
    }
}

impl<K> Lately<K> {
    /// Records that `what` changed in `version`, which is not smaller than the previous one.
    pub fn note(&mut self, version: u64, what: K) {
        self.changes.push_back((version, what));
        if self.changes.len() > MOST {
            self.settled = self.changes.pop_front().map_or(self.settled, |(version, _)| version);
        }
    }

    /// Clears the log: readers with a version older than `version` have to read everything.
    pub fn settle(&mut self, version: u64) {
        self.settled = version;
        self.changes.clear();
    }

    /// The keys changed after `version`, oldest first, possibly with duplicates; `None` if the log does not reach back
    /// that far.
    pub fn since(&self, version: u64) -> Option<impl Iterator<Item = &K>> {
        let first = self.changes.partition_point(|(at, _)| *at <= version);
        (version >= self.settled).then(|| self.changes.range(first..).map(|(_, what)| what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_known_for_a_while() {
        let mut lately = Lately::default();
        for (version, what) in [(1, "a"), (2, "b"), (2, "c")] {
            lately.note(version, what);
        }
        let since = |lately: &Lately<&'static str>, version| Some(lately.since(version)?.copied().collect::<Vec<_>>());
        assert_eq!(since(&lately, 0), Some(vec!["a", "b", "c"]));
        assert_eq!(since(&lately, 1), Some(vec!["b", "c"]));
        assert_eq!(since(&lately, 2), Some(Vec::new()));
        for version in 3..3 + MOST as u64 {
            lately.note(version, "d");
        }
        assert_eq!((since(&lately, 1), since(&lately, 2).map(|all| all.len())), (None, Some(MOST)));
        lately.settle(1000);
        assert_eq!((since(&lately, 999), since(&lately, 1000)), (None, Some(Vec::new())));
    }
}
