//! What changed last, so that whoever looks often enough need not look at everything.

use std::collections::VecDeque;

/// Whoever looks more seldom than this has to look at everything.
const MOST: usize = 128;

/// The last changes of something that counts its versions.
#[derive(Clone)]
pub struct Lately<K> {
    /// Of what changed after this version, everything is in `changes`.
    settled: u64,
    /// What changed, oldest first, and the version that each made.
    changes: VecDeque<(u64, K)>,
}

impl<K> Default for Lately<K> {
    fn default() -> Lately<K> {
        Lately { settled: 0, changes: VecDeque::new() }
    }
}

impl<K> Lately<K> {
    /// This changed, and made that version, which is no smaller than the last.
    pub fn note(&mut self, version: u64, what: K) {
        self.changes.push_back((version, what));
        if self.changes.len() > MOST {
            self.settled = self.changes.pop_front().map_or(self.settled, |(version, _)| version);
        }
    }

    /// Whoever knows something older than `version` has to look at everything.
    pub fn settle(&mut self, version: u64) {
        self.settled = version;
        self.changes.clear();
    }

    /// What changed after `version`, oldest first, some of it twice; nothing if that is too long ago.
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
